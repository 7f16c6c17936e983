"""Brokers die, are cut off and are restarted, while three clients publish and read.

What each test holds: every delivery is acknowledged in the end, everything acknowledged is read, in order and once; and
afterwards everything is healthy by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.integration.containers import BROKERS, Containers, broker
from tests.integration.load import Load
from tests.integration.view import View

ApplyLoad = Callable[[View], AbstractContextManager[Load]]


def test_the_leader_is_killed(containers: Containers, view: View, applied_load: ApplyLoad) -> None:
    with applied_load(view) as running:
        running.more()
        topic = running.flows["confluent-kafka"].topic
        leader = view.leader(topic)
        containers.kill(broker(leader))
        assert view.leader_besides(topic, leader) in BROKERS
        running.more()
        containers.start(broker(leader))
        containers.wait_healthy()
        running.more()


def test_the_controller_is_killed(containers: Containers, view: View, applied_load: ApplyLoad) -> None:
    """Another one takes its place; a topic that is created then proves that it decides."""
    with applied_load(view) as running:
        running.more()
        controller = view.controller()
        containers.kill(broker(controller))
        running.more()
        view.leader_besides(running.flows["aiokafka"].topic, controller)
        containers.start(broker(controller))
        containers.wait_healthy()
        view.create_topic(f"after-controller-{controller}")
        running.more()


def test_the_leader_is_cut_off_from_the_others_and_from_zookeeper(containers: Containers, view: View, applied_load: ApplyLoad) -> None:
    """Clients still reach it. It must not acknowledge by itself what no one else has, and its followers need another leader."""
    with applied_load(view) as running:
        running.more()
        topic = running.flows["confluent-kafka"].topic
        leader = view.leader(topic)
        others = [broker(broker_id) for broker_id in BROKERS if broker_id != leader]
        containers.cut(broker(leader), [*others, "zookeeper"])
        try:
            seen_by_others = View(",".join(containers.address(other, 9094) for other in others))
            assert seen_by_others.leader_besides(topic, leader) in BROKERS
        finally:
            containers.heal(broker(leader))
        view.wait_in_sync()
        running.more()


def test_every_broker_is_restarted_in_turn(containers: Containers, view: View, applied_load: ApplyLoad) -> None:
    """As an operator does: stop one, start it, continue when it is healthy. No client sees an error, and none waits for long."""
    with applied_load(view) as running:
        for broker_id in BROKERS:
            running.more()
            assert containers.stop(broker(broker_id)) == 0
            # Leaders have gone to others before it went: no one waits for a session to end.
            assert running.more(seconds=30) < 30
            containers.start(broker(broker_id))
            containers.wait_healthy()
            view.wait_in_sync()


def test_all_brokers_are_killed_at_once(containers: Containers, view: View, applied_load: ApplyLoad) -> None:
    """A power cut of all machines but ZooKeeper's. All that was acknowledged is still there, and they find to each other again."""
    with applied_load(view) as running:
        running.more()
        for broker_id in BROKERS:
            containers.kill(broker(broker_id))
        containers.start(*map(broker, BROKERS))
        containers.wait_healthy()
        view.wait_in_sync()
        running.more()

"""ZooKeeper goes and comes: alone, and as the leader of an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from tests.integration.compose import ComposeCluster, ensemble_variables
from tests.integration.containers import BROKERS, Containers, broker, wait_until
from tests.integration.docker import DockerFailed
from tests.integration.load import Load
from tests.integration.view import View

ApplyLoad = Callable[[View], AbstractContextManager[Load]]
ENSEMBLE = ("zookeeper", "zookeeper-2", "zookeeper-3")


def test_brokers_go_on_while_zookeeper_is_restarted(containers: Containers, view: View, applied_load: ApplyLoad) -> None:
    """Without it nothing is decided, and nothing needs to be: who leads continues leading, and stays healthy."""
    with applied_load(view) as running:
        running.more()
        leaders = {name: view.leader(flow.topic) for name, flow in running.flows.items()}
        containers.stop("zookeeper", seconds=20)
        running.more(100)
        for broker_id in BROKERS:
            containers.execute(broker(broker_id), "bash", "/usr/local/bin/ottla-ready", "/healthz")
        containers.start("zookeeper")
        containers.wait_healthy()
        view.create_topic("after-zookeeper")
        running.more()
        assert {name: view.leader(flow.topic) for name, flow in running.flows.items()} == leaders


def test_zookeeper_is_killed_for_longer_than_a_session(containers: Containers, view: View, applied_load: ApplyLoad) -> None:
    with applied_load(view) as running:
        running.more()
        containers.kill("zookeeper")
        # Session timeout is 6 s; by then the brokers' sessions are older than that.
        running.more(1_000)
        containers.start("zookeeper")
        containers.wait_healthy()
        view.wait_in_sync()
        view.create_topic("after-sessions")
        running.more()


@pytest.fixture(scope="module")
def ensemble(new_cluster: Callable[..., ComposeCluster]) -> Iterator[ComposeCluster]:
    """Three ZooKeepers and the brokers; no one looks at Prometheus here."""
    made = new_cluster("ensemble", environment=ensemble_variables())
    made.up(*ENSEMBLE, *map(broker, BROKERS))
    yield made
    made.down()


def mode(containers: Containers, service: str) -> str:
    """`leader`, `follower`, or nothing when it has no majority."""
    question = "exec 3<>/dev/tcp/127.0.0.1/2181 && printf srvr >&3 && sed -n 's/^Mode: //p' <&3"
    try:
        return containers.execute(service, "bash", "-c", question).strip()
    except DockerFailed:
        return ""


def test_the_ensemble_s_leader_is_killed(ensemble: ComposeCluster, applied_load: ApplyLoad) -> None:
    containers, view = ensemble.containers, View(ensemble.containers.addresses())
    with applied_load(view) as running:
        running.more()
        (leader,) = [server for server in ENSEMBLE if mode(containers, server) == "leader"]
        containers.kill(leader)
        others = [server for server in ENSEMBLE if server != leader]
        wait_until("another ZooKeeper leads", lambda: "leader" in [mode(containers, other) for other in others], 180.0)
        running.more()
        view.create_topic("decided-by-two")
        containers.start(leader)
        containers.wait_healthy()
        running.more()
        assert mode(containers, leader) == "follower"
    view.wait_in_sync()


def test_one_that_was_alone_is_not_outvoted_by_empty_ones(new_cluster: Callable[..., ComposeCluster]) -> None:
    """Two new servers are a majority that knows nothing; so a server that was alone refuses to join them by itself."""
    made = new_cluster("grown")
    made.up("zookeeper")
    made.compose("up", "--detach", "--no-build", "--no-deps", "zookeeper", environment=ensemble_variables())
    wait_until(
        "it refuses",
        lambda: "of a server that was alone" in made.containers.logs("zookeeper"),
        60,
        lambda: made.containers.logs("zookeeper"),
    )
    made.down()

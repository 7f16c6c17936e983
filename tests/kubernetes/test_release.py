"""The life of a release, from install to uninstall, with clients at work meanwhile. The tests stand in the order of that life."""

# ruff: noqa: T201  (figures, for anyone who runs it with -s)
from __future__ import annotations

import json
import time

import pytest
from tests.kubernetes.cluster import FULLNAME, RELEASE, WAIT_SECONDS, Cluster, Failed, Load, until

pytestmark = pytest.mark.timeout(4 * WAIT_SECONDS)


def assert_nothing_was_lost(load: Load) -> None:
    """Acknowledged means there, once; and no producer and no consumer was told of an error."""
    print(f"\n{load.topic}: {load.outcome}")
    assert load.outcome["acknowledged"] > 500
    assert load.outcome["refused"] == []
    assert load.outcome["lost"] == []
    assert load.outcome["doubled"] == 0
    assert load.outcome["not_read_by_the_group"] == []
    assert load.outcome["group_errors"] == []


def test_install_is_ready_when_it_says_so(installed: Cluster) -> None:
    assert installed.ready_brokers() == 3
    assert {fact["broker_id"] for fact in installed.facts()["brokers"]} == {0, 1, 2}


def test_helm_test_passes(installed: Cluster) -> None:
    said = installed.helm("test", RELEASE, f"--timeout={WAIT_SECONDS}s")
    assert "Failed" not in said
    log = installed.kubectl("logs", f"{FULLNAME}-check-failover")
    print(f"\n{log}")
    assert "0 refused, 0 lost, 0 doubled" in log
    until("all in sync", lambda: installed.is_whole(3))


@pytest.mark.parametrize("victim", ["controller", "leader"])
def test_a_broker_that_is_killed_costs_no_message(installed: Cluster, victim: str) -> None:
    """SIGKILL: its session has to end before anybody else leads, and its logs are recovered when it is back."""
    with Load(installed, victim) as load:
        facts = installed.facts()
        others = [fact["broker_id"] for fact in facts["brokers"] if fact["broker_id"] != facts["controller_id"] and fact["leader_count"]]
        broker = facts["controller_id"] if victim == "controller" else others[0]
        before = installed.restarts(broker)
        installed.kill(broker)
        until(f"broker {broker} is restarted", lambda: installed.restarts(broker) > before)
        took = until("all in sync", lambda: installed.is_whole(3))
        print(f"\nbroker {broker} ({victim}): all in sync {took:.0f} s after it was restarted")
    assert_nothing_was_lost(load)


def test_a_pod_that_is_deleted_comes_back_as_the_same_broker(installed: Cluster) -> None:
    """Identity and volume stay: it has its replicas, and catches up with what came meanwhile."""
    uid = installed.get("pod", f"{FULLNAME}-broker-1")["metadata"]["uid"]
    with Load(installed, "deleted") as load:
        installed.kubectl("delete", "pod", f"{FULLNAME}-broker-1", seconds=150)
        until("another pod is ready", lambda: installed.ready_brokers() == 3)
        until("all in sync", lambda: installed.is_whole(3))
    assert installed.get("pod", f"{FULLNAME}-broker-1")["metadata"]["uid"] != uid
    assert_nothing_was_lost(load)


def test_a_second_broker_is_not_evicted_while_one_is_away(installed: Cluster) -> None:
    """What `kubectl drain` does on two nodes at the same time: the budget refuses the second, and lets it go later."""
    pod = f"{FULLNAME}-broker-0"
    uid = installed.get("pod", pod)["metadata"]["uid"]
    installed.evict(0)
    with pytest.raises(Failed, match="disruption budget"):
        installed.evict(1)
    # It is ready for as long as it hands over what it leads, and so are three.
    until("another broker 0 is ready", lambda: installed.is_another_and_ready(pod, uid))
    until("all in sync", lambda: installed.is_whole(3))


def test_a_cold_start_of_everything_does_not_deadlock(installed: Cluster) -> None:
    """All pods at once, as after a power cut: no one can be ready before the others are there, so no one may wait for that."""
    messages = "".join(f"{number}\n" for number in range(500))
    installed.ottla("topics", "create", "cold", "--partitions", "3", "--replication-factor", "3")
    installed.kubectl(
        *("exec", "--stdin", f"{FULLNAME}-broker-0", "--container=broker", "--", "ottla", "produce", "cold", "--acks", "all"),
        given=messages,
    )
    pods = [item["metadata"]["name"] for item in installed.get("pods", f"--selector=app.kubernetes.io/instance={RELEASE}")["items"]]
    running = [pod for pod in pods if "-check-" not in pod]
    assert len(running) == 4
    installed.kubectl("delete", "pod", *running, "--grace-period=1", seconds=120)
    until("brokers are ready", lambda: installed.ready_brokers() == 3)
    took = until("all in sync", lambda: installed.is_whole(3))
    print(f"\nall in sync {took:.0f} s after the last was ready")
    assert sorted(installed.ottla("consume", "cold").split(), key=int) == messages.split()


def test_a_rolling_upgrade_is_felt_by_no_client(installed: Cluster) -> None:
    """Another setting is another pod, one after the other, each once the one before is in sync."""
    uids = {broker["metadata"]["uid"] for broker in _brokers(installed)}
    with Load(installed, "upgrade") as load:
        since = time.monotonic()
        installed.deploy("upgrade", broker__settings={"num.partitions": 2})
        print(f"\nthree brokers in {time.monotonic() - since:.0f} s")
        until("all in sync", lambda: installed.is_whole(3))
    assert not uids & {broker["metadata"]["uid"] for broker in _brokers(installed)}
    assert_nothing_was_lost(load)


def test_a_fourth_broker_takes_its_share(installed: Cluster) -> None:
    uids = {broker["metadata"]["uid"] for broker in _brokers(installed)}
    with Load(installed, "scale") as load:
        installed.deploy("upgrade", broker__replicas=4)
        assert uids < {broker["metadata"]["uid"] for broker in _brokers(installed)}, "the others were left alone"
        installed.ottla("reassign", "execute", "--topics", load.topic, "--to-brokers", "0,1,2,3")
        until("all in sync", lambda: installed.is_whole(4))
    assert _replicas(installed)[3] > 0
    assert_nothing_was_lost(load)


def test_a_scale_down_is_refused_until_the_last_broker_holds_nothing(installed: Cluster) -> None:
    with pytest.raises(Failed, match="pre-upgrade hooks failed"):
        installed.deploy("upgrade", broker__replicas=3)
    said = installed.kubectl("logs", f"job/{FULLNAME}-scale-down-check")
    print(f"\n{said}")
    assert "refused: broker 3 holds" in said
    assert installed.ready_brokers() == 4
    topics = {load["topic"] for load in json.loads(installed.ottla("topics", "list", "--internal", "--json"))}
    installed.ottla("reassign", "execute", "--topics", ",".join(sorted(topics)), "--to-brokers", "0,1,2")
    until("broker 3 holds nothing", lambda: _replicas(installed)[3] == 0)
    installed.deploy("upgrade", broker__replicas=3)
    until("three brokers", lambda: installed.is_whole(3))


def test_uninstall_leaves_the_volumes_and_nothing_else(installed: Cluster) -> None:
    """As Kubernetes has it for a StatefulSet: what a person has not deleted is not deleted."""
    installed.helm("uninstall", RELEASE, "--wait", f"--timeout={WAIT_SECONDS}s")
    took = until(
        "no pod is left", lambda: not [item for item in installed.get("pods")["items"] if "check-" not in item["metadata"]["name"]]
    )
    print(f"\nall pods are gone after {took:.0f} s")
    own = f"app.kubernetes.io/instance={RELEASE}"
    for kind in ("statefulset", "service", "poddisruptionbudget", "networkpolicy", "role", "rolebinding", "serviceaccount"):
        assert installed.get(kind, f"--selector={own}")["items"] == [], kind
    claims = {item["metadata"]["name"] for item in installed.get("persistentvolumeclaim")["items"]}
    assert claims == {*(f"data-{FULLNAME}-broker-{number}" for number in range(4)), f"data-{FULLNAME}-zookeeper-0"}


def _brokers(cluster: Cluster) -> list[dict[str, dict[str, str]]]:
    found: list[dict[str, dict[str, str]]] = cluster.get("pods", "--selector=app.kubernetes.io/component=broker")["items"]
    return found


def _replicas(cluster: Cluster) -> dict[int, int]:
    """How many replicas each broker has."""
    return {fact["broker_id"]: fact["replica_count"] for fact in cluster.facts()["brokers"]}

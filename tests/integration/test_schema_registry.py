"""Two schema registries in containers: killed, replaced and scraped during registrations, and what they acknowledged stays."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from tests.integration.compose import ComposeCluster
from tests.integration.containers import Containers, wait_until
from tests.integration.docker import DockerFailed, docker
from tests.integration.prometheus import Prometheus, impatient

NODES: Final = ("schema-registry", "schema-registry-2")
SESSION_SECONDS: Final = 6.0  # zookeeper.session.timeout.ms in the compose file
ANSWER_SECONDS: Final = 30.0
CLIENTS: Final = 4
PREVIOUS: Final = "ottla/schema-registry:previous"


@pytest.fixture(scope="module")
def registries(new_cluster: Callable[..., ComposeCluster]) -> Iterator[ComposeCluster]:
    made = new_cluster("registries", {"COMPOSE_PROFILES": "registries"})
    made.up()
    yield made
    made.down()


def ask(url: str, body: Any = None) -> Any:
    """The answer's JSON; raises what urllib raises."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/vnd.schemaregistry.v1+json"})
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        return json.load(answer)


def figure(containers: Containers, node: str, metric: str) -> float | None:
    """A metric without labels, as a scrape finds it; None where no one answers."""
    try:
        with urllib.request.urlopen(f"http://{containers.address(node, 9404)}/metrics", timeout=ANSWER_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
    except (OSError, IndexError, DockerFailed):  # a container that does not run has no port
        return None
    return next((float(line.split()[1]) for line in lines if line.startswith(f"{metric} ")), None)


def schema(name: str) -> str:
    return json.dumps({"type": "record", "name": name, "fields": [{"name": "number", "type": "long"}]})


@dataclass(slots=True)
class Registrations:
    """Clients that register one new schema after the other, each at any node that answers; what was acknowledged, by subject."""

    urls: list[str]
    acknowledged: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    unanswered: dict[int, str] = field(default_factory=dict)  # the latest of each client, for the text of a failure
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self, client: int) -> None:
        number = attempts = 0  # each client has its own turns: two that passed one list on could each find the dead node for good
        while not self.is_over.is_set():
            subject = f"subject-{client}-{number}"
            url = f"{self.urls[(client + number + attempts) % len(self.urls)]}/subjects/{subject}/versions"
            try:
                self.acknowledged[subject] = ask(url, {"schema": schema(f"record_{client}_{number}")})["id"]
                number += 1
            except urllib.error.HTTPError as error:
                if error.code < 500:
                    self.refused.append(f"{subject}: {error.code} {error.read()[:200]!r}")
                    return
                self.unanswered[client] = f"{url}: {error}"
                time.sleep(0.1)
            except (OSError, http.client.HTTPException) as error:  # the second when a node dies in the middle of its answer
                self.unanswered[client] = f"{url}: {error!r}"
                attempts += 1
                time.sleep(0.1)

    def troubles(self) -> tuple[list[str], dict[int, str]]:
        return self.refused, self.unanswered


def leader_of(containers: Containers) -> str:
    leaders = [node for node in NODES if figure(containers, node, "ottla_registry_is_leader") == 1.0]
    return leaders[0] if len(leaders) == 1 else ""


def test_the_leader_is_killed_and_no_acknowledged_schema_is_lost_or_shares_an_id(registries: ComposeCluster) -> None:
    """Killed twice, the node that was dead being back in between: no id twice, none missing, and each read at both nodes."""
    containers = registries.containers
    registrations = Registrations([f"http://{containers.address(node, 8081)}" for node in NODES])
    clients = [threading.Thread(target=registrations.run, args=(client,), daemon=True) for client in range(CLIENTS)]
    for thread in clients:
        thread.start()

    def wait_for_more() -> None:
        wanted = len(registrations.acknowledged) + 50
        wait_until("schemas are registered", lambda: len(registrations.acknowledged) > wanted, 180.0, registrations.troubles)

    try:
        for _ in range(2):
            leader = wait_until("one leads", lambda: leader_of(containers), 180.0)
            wait_for_more()
            containers.kill(leader)
            wait_until("the other leads", lambda: leader_of(containers), SESSION_SECONDS + 120)
            wait_for_more()
            assert leader_of(containers) != leader
            containers.start(leader)
            containers.wait_healthy(NODES)
    finally:
        registrations.is_over.set()
        for thread in clients:
            thread.join(30)
    assert not registrations.refused
    ids = list(registrations.acknowledged.values())
    assert len(set(ids)) == len(ids)
    for node in NODES:
        check_node(f"http://{containers.address(node, 8081)}", registrations.acknowledged)
        assert figure(containers, node, "ottla_registry_conflicts_total") == 0.0


def check_node(url: str, acknowledged: dict[str, int]) -> None:
    """A node has every schema under the id that was acknowledged, and few others."""
    wait_until("all are there", lambda: acknowledged.keys() <= set(ask(f"{url}/subjects")), 180.0)
    for subject, identifier in acknowledged.items():
        found = json.loads(ask(f"{url}/schemas/ids/{identifier}")["schema"])
        assert found["name"] == subject.replace("subject-", "record_").replace("-", "_")
    # An id that no one was told of may have been given just before each kill: one to each client.
    highest = ask(f"{url}/schemas/ids/{min(acknowledged.values())}?fetchMaxId=true")["maxId"]
    assert len(acknowledged) <= highest <= len(acknowledged) + 2 * CLIENTS


def test_the_page_is_in_the_image(registries: ComposeCluster) -> None:
    url = f"http://{registries.containers.address('schema-registry', 8081)}/ui"
    for name, kind in (
        ("", "text/html"),
        ("/style.css", "text/css"),
        ("/components.js", "text/javascript"),
        ("/registry.js", "text/javascript"),
    ):
        with urllib.request.urlopen(url + name, timeout=ANSWER_SECONDS) as answer:  # the first is led on to /ui/
            assert answer.headers.get_content_type() == kind
            assert answer.read()


def test_the_nodes_are_replaced_one_by_one_and_registrations_go_on(registries: ComposeCluster) -> None:
    """As an upgrade does it: each container goes with SIGTERM, the last one its leader, and another image's comes over the same volume.

    There is no release before this one, so the former image is this one under another name.
    """
    containers = registries.containers
    image = containers.inspect(NODES[0])["Config"]["Image"]
    docker("tag", image, PREVIOUS)
    former = {"OTTLA_SCHEMA_REGISTRY_IMAGE": PREVIOUS}
    registries.compose("up", "--detach", "--no-build", "--no-deps", *NODES, environment=former)
    containers.wait_healthy(NODES)
    leader = wait_until("one leads", lambda: leader_of(containers), 180.0)
    registrations = Registrations([f"http://{containers.address(node, 8081)}" for node in NODES])
    clients = [threading.Thread(target=registrations.run, args=(client,), daemon=True) for client in range(CLIENTS)]
    for thread in clients:
        thread.start()
    try:
        for node in sorted(NODES, key=lambda node: node == leader):
            before = containers.container(node)
            registries.compose("up", "--detach", "--no-build", "--no-deps", node)
            assert containers.container(node) != before and containers.inspect(node)["Config"]["Image"] == image
            containers.wait_healthy(NODES)
            registrations.urls[:] = [f"http://{containers.address(node, 8081)}" for node in NODES]
            wanted = len(registrations.acknowledged) + 50
            wait_until("schemas are registered", lambda: len(registrations.acknowledged) > wanted, 180.0, registrations.troubles)  # noqa: B023
    finally:
        registrations.is_over.set()
        for thread in clients:
            thread.join(30)
    assert not registrations.refused
    assert len(set(registrations.acknowledged.values())) == len(registrations.acknowledged)
    for node in NODES:
        url = f"http://{containers.address(node, 8081)}"
        wait_until("all are there", lambda: registrations.acknowledged.keys() <= set(ask(f"{url}/subjects")), 180.0)  # noqa: B023
        for subject, identifier in registrations.acknowledged.items():
            assert ask(f"{url}/subjects/{subject}/versions/1")["id"] == identifier
        assert figure(containers, node, "ottla_registry_conflicts_total") == 0.0


def test_prometheus_scrapes_both(registries: ComposeCluster) -> None:
    """The targets' files, their job and their component."""
    prometheus = Prometheus(f"http://{registries.containers.address('prometheus', 9090)}")
    up = 'sum(up{job="ottla", component="schema-registry"})'
    wait_until("they are scraped", lambda: prometheus.value(up) == len(NODES), 180.0, prometheus.targets)
    assert prometheus.value("sum by (job) (ottla_registry_is_leader)") == 1.0


def test_its_alerts_fire_and_clear(registries: ComposeCluster) -> None:
    """A node that is stopped, and a ZooKeeper that is gone for longer than sessions live. Rules that wait for seconds, not for minutes."""
    containers = registries.containers
    with impatient(containers, "registries") as prometheus:

        def firing() -> set[str]:
            return {name for name, _ in prometheus.firing() if name.startswith("Registry")}

        wait_until("nothing fires", lambda: not firing(), 180.0, prometheus.firing)
        leader = wait_until("one leads", lambda: leader_of(containers), 180.0)
        assert containers.stop(leader, seconds=30) == 0  # the other one leads then, and is a target as well
        wait_until("RegistryDown fires", lambda: firing() == {"RegistryDown"}, 180.0, prometheus.firing)
        containers.start(leader)
        containers.wait_healthy(NODES)
        wait_until("it is over", lambda: not firing(), 180.0, prometheus.firing)
        containers.stop("zookeeper", seconds=30)
        try:
            wait_until("RegistryNoLeader fires", lambda: firing() == {"RegistryNoLeader"}, 180.0, prometheus.firing)
        finally:
            containers.start("zookeeper")
        wait_until("it is over", lambda: not firing(), 180.0, prometheus.firing)
    containers.start(NODES[1])
    containers.wait_healthy()

"""The audit counter in containers: killed while messages are counted, a standby beside it, scraped, and its alerts."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import confluent_kafka
from tests.integration.containers import Containers, wait_until
from tests.integration.docker import docker
from tests.integration.prometheus import Prometheus, impatient
from tests.integration.view import View

from ottla.client import audited

COUNTER: Final = "audit-counter"
ANSWER_SECONDS: Final = 30.0
KNOWN_SECONDS: Final = 240.0  # a window of a minute is over, and said, and judged
MESSAGES: Final = 2_000
REPORTING: Final = {"ottla.audit.report.interval.ms": 500}


def ask(address: str, path: str) -> Any:
    """The answer's JSON; None where there is no such topic yet, or no one answers."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=ANSWER_SECONDS) as answer:
            return json.load(answer)
    except (urllib.error.HTTPError, OSError):
        return None


def edges(address: str, topic: str) -> list[dict[str, Any]]:
    return [
        row for row in ask(address, f"/v1/topics/{topic}/edges") or () if row["edge"] in ("producer->broker", "broker->consumer:billing")
    ]


def is_complete(address: str, topic: str, count: int) -> bool:
    """Whether both edges have all messages at both their ends."""
    found = edges(address, topic)
    ends = [sum(row[end] for row in found) for end in ("upstream_count", "downstream_count")]
    return ends == [2 * count, 2 * count] and {row["verdict"] for row in found} <= {"COMPLETE", "LATE"}


@contextmanager
def standby(containers: Containers) -> Iterator[tuple[str, str]]:
    """A second counter with a file of its own: its container, and the address of its REST interface."""
    settings = containers.inspect(COUNTER)["Config"]
    named = [word for variable in settings["Env"] if variable.startswith("OTTLA_") for word in ("--env", variable)]
    container = docker(
        *("run", "--detach", "--network", containers.network, "--publish", "127.0.0.1::8090", "--read-only", "--tmpfs", "/tmp"),
        *(*named, "--label", f"ottla.integration={containers.project}", settings["Image"]),
    ).strip()
    try:
        yield container, docker("port", container, "8090").splitlines()[0]
    finally:
        docker("rm", "--force", "--volumes", container)


class Pipeline:
    """An audited producer and an audited consumer of one topic."""

    def __init__(self, addresses: str, topic: str) -> None:
        self._topic = topic
        self._producer = audited(confluent_kafka.Producer)({"bootstrap.servers": addresses, **REPORTING})
        group = {"group.id": "billing", "auto.offset.reset": "earliest"}
        self._consumer = audited(confluent_kafka.Consumer)({"bootstrap.servers": addresses, **group, **REPORTING})
        self._consumer.subscribe([topic])
        self._sent = 0
        self._read = 0

    def carry(self, count: int) -> None:
        """Sends so many messages, and reads them."""
        for number in range(count):
            self._producer.produce(self._topic, b"value-%d" % (self._sent + number), b"key-%d" % number)
            self._producer.poll(0)
        assert self._producer.flush(60) == 0
        self._sent += count
        deadline = time.monotonic() + 120
        while self._read < self._sent:
            assert time.monotonic() < deadline, f"{self._read} of {self._sent} messages were read"
            self._read += sum(message.error() is None for message in self._consumer.consume(500, 1.0))

    def close(self) -> None:
        assert self._producer.close_audit() == 0  # type: ignore[attr-defined]
        self._consumer.close()


def test_a_counter_that_is_killed_counts_nothing_twice_and_a_standby_goes_on(
    containers: Containers, view: View, new_topic: Callable[[], str]
) -> None:
    topic = view.create_topic(new_topic(), partitions=3)
    with standby(containers) as (_, beside):
        wait_until("the standby answers", lambda: ask(beside, "/v1/sessions") is not None, 120.0)
        pipeline = Pipeline(containers.addresses(), topic)
        pipeline.carry(MESSAGES)
        containers.kill(COUNTER)
        pipeline.carry(MESSAGES)
        pipeline.close()
        wait_until(
            "the standby says COMPLETE", lambda: is_complete(beside, topic, 2 * MESSAGES), KNOWN_SECONDS, lambda: edges(beside, topic)
        )
        containers.start(COUNTER)
        containers.wait_healthy([COUNTER])
    first = containers.address(COUNTER, 8090)
    wait_until("the first one says so too", lambda: is_complete(first, topic, 2 * MESSAGES), KNOWN_SECONDS, lambda: edges(first, topic))


def test_it_is_scraped_and_its_alert_fires_and_clears(containers: Containers, prometheus_url: str) -> None:
    prometheus = Prometheus(prometheus_url)
    wait_until("it is scraped", lambda: prometheus.value(f'sum(up{{component="{COUNTER}"}})') == 1.0, 180.0, prometheus.targets)
    wait_until("it is active", lambda: prometheus.value("sum(ottla_audit_is_active)") == 1.0, 180.0)
    with impatient(containers) as alerts:

        def fires() -> bool:
            return any(name == "AuditCounterDown" for name, _ in alerts.firing())

        assert not fires()
        assert containers.stop(COUNTER, seconds=30) == 0
        wait_until("AuditCounterDown fires", fires, 180.0, alerts.firing)
        containers.start(COUNTER)
        containers.wait_healthy([COUNTER])
        wait_until("it is over", lambda: not fires(), 180.0, alerts.firing)

"""Consumers of `ottla.client` that share partitions out in ZooKeeper: how long that takes, and what 200 partitions cost one of them.

20 consumers have 200 partitions, and the last of them comes: until each has its ten. One of two is killed: until all that was written
to its partitions after that is handed out by the other. `python -m tests.bench.paper_client_groups JSON` is a program of consumers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.processes import resident_bytes

SESSION_MS = 6_000  # the default
CONSUMERS, PARTITIONS = 20, 200
POLL_SECONDS = 0.02


def connector_of(arguments: dict[str, Any], group: str) -> Any:
    from ottla.client import ConsumerConnector, ConsumerSettings

    settings = ConsumerSettings(
        group_id=f"{group}-{arguments['run']}",
        zookeeper_connect=arguments["zookeeper"],
        zookeeper_session_timeout_ms=SESSION_MS,
        auto_offset_reset="smallest",
    )
    return ConsumerConnector(settings)


def until(holds: Callable[[], bool]) -> float:
    """Seconds until that is so."""
    began = time.perf_counter()
    while not holds():
        time.sleep(POLL_SECONDS)
    return time.perf_counter() - began


def rebalance(arguments: dict[str, Any]) -> float:
    """Seconds from the last consumer's call to where each has its share."""
    with ExitStack() as stack:
        connectors = [stack.enter_context(connector_of(arguments, "rebalance")) for _ in range(CONSUMERS)]
        for connector in connectors[:-1]:
            connector.create_message_streams({arguments["topic"]: 1})
        until(lambda: sum(len(connector.owned) for connector in connectors) == PARTITIONS)
        began = time.perf_counter()
        connectors[-1].create_message_streams({arguments["topic"]: 1})
        until(lambda: {len(connector.owned) for connector in connectors} == {PARTITIONS // CONSUMERS})
        return time.perf_counter() - began


def victim(arguments: dict[str, Any]) -> float:
    """Joins a group, and reads until it is killed."""
    with connector_of(arguments, "killed") as connector:
        (stream,) = connector.create_message_streams({arguments["topic"]: 1})[arguments["topic"]]
        for _ in stream:
            pass
    return 0.0


def killed(arguments: dict[str, Any]) -> float:
    """Seconds beyond the session's timeout until the partitions of a consumer that was killed flow again."""
    from ottla.client import Producer, ProducerSettings

    topic = arguments["topic"]
    with Producer(ProducerSettings(broker_list=arguments["address"])) as producer, connector_of(arguments, "killed") as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        program = [sys.executable, "-m", "tests.bench.paper_client_groups", json.dumps({**arguments, "kind": "victim"})]
        with subprocess.Popen(program) as process:
            until(lambda: len(connector.owned) == PARTITIONS // 2)
            lost = set(range(PARTITIONS)) - {partition.partition for partition in connector.owned}
            process.kill()
        began = time.perf_counter()
        value = b"%f" % began
        for partition in sorted(lost):
            producer.send(topic, value, partition=partition)
        for message in stream:
            if message.value == value:
                lost.discard(message.partition)
                if not lost:
                    break
        return time.perf_counter() - began - SESSION_MS / 1000


def resident(arguments: dict[str, Any]) -> float:
    """MiB of a consumer that has read all of 200 partitions, each some hundred KiB."""
    left = arguments["count"]
    with connector_of(arguments, "resident") as connector:
        (stream,) = connector.create_message_streams({arguments["topic"]: 1})[arguments["topic"]]
        for _ in stream:
            left -= 1
            if not left:
                break
        return resident_bytes(int(Path("/proc/self").readlink().name)) / (1 << 20)


def imported(arguments: dict[str, Any]) -> float:
    """Seconds of CPU of a program's import of all that the client has."""
    began = time.process_time()
    from ottla.client import ConsumerConnector, Producer, SimpleConsumer  # noqa: F401

    return time.process_time() - began


KINDS = {kind.__name__: kind for kind in (rebalance, victim, killed, resident, imported)}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps({"value": KINDS[asked["kind"]](asked)}) + "\n")

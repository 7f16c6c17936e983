"""Transactions of confluent-kafka producers, or the same produce without them, in a process of its own.

`python -m tests.bench.transactional_load JSON` prints one JSON line. Without transactions a producer is idempotent and waits
for all of its messages where it would commit: what is compared is the transaction and nothing else.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass

from confluent_kafka import Producer
from tests.bench import wire
from tests.bench.processes import cpu_seconds


@dataclass(frozen=True, slots=True)
class TransactionalLoad:
    """`producers` in threads, each of which commits, or waits, after so many messages."""

    port: int
    server_pid: int
    topic: str
    partitions: int
    producers: int
    messages: int
    message_size: int
    seconds: float
    is_transactional: bool
    name: str = ""


def produce(load: TransactionalLoad, number: int, begin: threading.Barrier, counts: list[int]) -> None:
    settings: dict[str, object] = {
        "bootstrap.servers": f"127.0.0.1:{load.port}",
        "linger.ms": 0 if load.messages == 1 else 1,
        "enable.idempotence": True,
    }
    if load.is_transactional:
        settings["transactional.id"] = f"bench-{load.name}-{number}"
    producer = Producer(settings)
    value = b"x" * load.message_size
    if load.is_transactional:
        producer.init_transactions(60)

    def one() -> None:
        if load.is_transactional:
            producer.begin_transaction()
        for index in range(load.messages):
            producer.produce(load.topic, value, partition=(number + index) % load.partitions)
        if load.is_transactional:
            producer.commit_transaction(60)
        elif producer.flush(60):
            raise wire.UnexpectedAnswer("messages were not acknowledged within 60 s")

    for _ in range(3):
        one()
    begin.wait(60)
    ends_at = time.perf_counter() + load.seconds
    while time.perf_counter() < ends_at:
        one()
        counts[number] += 1


def run(load: TransactionalLoad) -> dict[str, float]:
    begin = threading.Barrier(load.producers + 1)
    counts = [0] * load.producers
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            produce(load, number, begin, counts)
        except BaseException as error:
            errors.append(error)
            begin.abort()

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(load.producers)]
    for thread in threads:
        thread.start()
    try:
        begin.wait(120)
    except threading.BrokenBarrierError:
        raise wire.UnexpectedAnswer(f"a producer could not begin: {errors}") from None
    cpu, began = cpu_seconds(load.server_pid), time.perf_counter()
    for thread in threads:
        thread.join(load.seconds + 120)
    if errors:
        raise wire.UnexpectedAnswer(repr(errors[0]))
    return {"count": sum(counts), "seconds": time.perf_counter() - began, "server_cpu_seconds": cpu_seconds(load.server_pid) - cpu}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(TransactionalLoad(**json.loads(sys.argv[1])))) + "\n")

"""Copies one topic to another exactly once: the loop of consume, transform and produce that transactions are for.

A program of its own, to be killed at any moment: `python copy_worker.py ADDRESS TRANSACTIONAL_ID SOURCE TARGET`. Each
message goes to the partition that it comes from, with its offset in front. A transaction that fails is aborted and its
messages are read again; what cannot be settled so ends the program, and its owner starts another.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import confluent_kafka

AT_ONCE = 40
SECONDS = 90.0
# librdkafka 2.15 keeps to the group's coordinator that it remembers, for five minutes, also when that broker is gone for
# good. So this wait is short, and the next process looks for the coordinator again.
OFFSETS_SECONDS = 5.0


def main(address: str, transactional_id: str, source: str, target: str) -> NoReturn:
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "log_level": 0,
        "reconnect.backoff.max.ms": 200,
        # When no broker can be reached it would give up those it knows, but for that coordinator, and wait for that even
        # when the producer is closed.
        "metadata.recovery.strategy": "none",
    }
    consumer = confluent_kafka.Consumer(
        {
            **settings,
            "group.id": "copiers",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 2000,
            "heartbeat.interval.ms": 400,
        }
    )
    producer = confluent_kafka.Producer({**settings, "transactional.id": transactional_id, "transaction.timeout.ms": 20_000})
    producer.init_transactions(SECONDS)
    consumer.subscribe([source])
    while True:
        messages = [message for message in consumer.consume(AT_ONCE, 0.2) if message.error() is None]
        if not messages:
            continue
        try:
            producer.begin_transaction()
            for message in messages:
                value = b"%d %s" % (message.offset() or 0, message.value() or b"")
                producer.produce(target, value, partition=message.partition() or 0)
            offsets = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), OFFSETS_SECONDS)
            commit(producer)
        except confluent_kafka.KafkaException as exception:
            error = exception.args[0]
            sys.stderr.write(f"{error}\n")
            sys.stderr.flush()
            if error.fatal() or not error.txn_requires_abort():
                os._exit(3)  # without closing anything: as if it had been killed
            producer.abort_transaction(SECONDS)
            rewind(consumer)


def commit(producer: confluent_kafka.Producer) -> None:
    """Asks until it is known: a commit that timed out may have been one."""
    while True:
        try:
            producer.commit_transaction(SECONDS)
            return
        except confluent_kafka.KafkaException as exception:
            if not exception.args[0].retriable():
                raise


def rewind(consumer: confluent_kafka.Consumer) -> None:
    """Continues where the last committed transaction ended."""
    for partition in consumer.committed(consumer.assignment(), SECONDS):
        if partition.offset < 0:
            partition.offset = confluent_kafka.OFFSET_BEGINNING
        consumer.seek(partition)


if __name__ == "__main__":
    main(*sys.argv[1:])

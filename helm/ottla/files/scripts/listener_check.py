"""`helm test`: through one listener, something is written to every broker and read back; and every broker says that it is well.

    listener_check.py BOOTSTRAP_SERVER REPLICAS SECONDS [outside | URL ...]

A topic of its own is made, with a partition for each broker, and deleted. CLIENT_PROPERTIES in the environment is JSON:
librdkafka's names, for TLS. The URLs are those that must answer 200. With `outside` it begins where clients outside of Kubernetes do:
BOOTSTRAP_SERVER is asked for these addresses alone, as its name need not be in a certificate for them.
"""

# ruff: noqa: T201  (what it prints is the pod's log)
from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

MESSAGES = 50  # to each partition
ANSWER_SECONDS = 10.0


def until(deadline: float, what: str, happened: Callable[[], bool]) -> None:
    """Waits, and says what it was waited for in vain."""
    while not happened():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within the time that it may take")
        time.sleep(0.5)


def leaders(admin: AdminClient, topic: str) -> dict[int, int]:
    """The partitions of a topic that have a leader, with it."""
    found = admin.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].partitions
    return {number: each.leader for number, each in found.items() if each.leader >= 0}


def write(client: Mapping[str, str], topic: str, partitions: int, seconds: float) -> list[tuple[int, bytes]]:
    """What every replica in sync has acknowledged, by partition."""
    refused: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(error.str())

    producer = Producer({**client, "acks": "all", "message.timeout.ms": int(seconds * 1000)})
    written = [(partition, f"{partition}/{number}".encode()) for partition in range(partitions) for number in range(MESSAGES)]
    for partition, value in written:
        producer.produce(topic, value, partition=partition, on_delivery=delivered)
    left = producer.flush(seconds)
    if left or refused:
        raise SystemExit(f"{left} messages were not acknowledged and {len(refused)} refused: {refused[:1]}")
    return written


def read(client: Mapping[str, str], topic: str, partitions: int, count: int, deadline: float) -> list[tuple[int, bytes]]:
    """The first messages of a topic, by partition."""
    consumer = Consumer({**client, "group.id": "ottla-check", "enable.auto.commit": "false"})
    found: list[tuple[int, bytes]] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        while len(found) < count:
            if time.monotonic() > deadline:
                raise SystemExit(f"read {len(found)} of {count} messages")
            for message in consumer.consume(count, 1.0):
                if (error := message.error()) is not None:
                    raise SystemExit(f"reading: {error.str()}")
                found.append((message.partition() or 0, message.value() or b""))
    finally:
        consumer.close()
    return sorted(found, key=lambda each: (each[0], int(each[1].rpartition(b"/")[2])))


def outside(bootstrap_server: str, properties: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The addresses that clients outside hear, and whom they trust: a Secret of a public authority's certificate has no `ca.crt`."""
    trusting = {name: value for name, value in properties.items() if name != "ssl.ca.location" or Path(value).exists()}
    asking = {**trusting, "ssl.endpoint.identification.algorithm": "none"}
    admin = AdminClient({"bootstrap.servers": bootstrap_server, "client.id": "ottla-check", **asking})
    heard = [(str(broker.host), broker.port) for broker in admin.list_topics(timeout=ANSWER_SECONDS).brokers.values()]
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in heard), trusting


def check_listener(bootstrap_server: str, replicas: int, seconds: float, properties: Mapping[str, str]) -> None:
    """Every broker can be written to and read from at the addresses that this listener gives."""
    deadline = time.monotonic() + seconds
    client = {"bootstrap.servers": bootstrap_server, "client.id": "ottla-check", **properties}
    admin = AdminClient({**client})
    brokers = admin.list_topics(timeout=ANSWER_SECONDS).brokers
    print(f"{bootstrap_server} knows of {', '.join(str(each) for each in brokers.values())}", flush=True)
    if len(brokers) < replicas:
        raise SystemExit(f"{len(brokers)} of {replicas} brokers are there")
    topic = f"ottla-check-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, replicas, min(3, replicas))])[topic].result(ANSWER_SECONDS)
    try:
        until(deadline, "a leader for each partition", lambda: len(leaders(admin, topic)) == replicas)
        led_by = set(leaders(admin, topic).values())
        if len(led_by) < replicas:
            raise SystemExit(f"{replicas} partitions are led by {sorted(led_by)} only")
        written = write(client, topic, replicas, max(deadline - time.monotonic(), 1.0))
        if read(client, topic, replicas, len(written), deadline) != written:
            raise SystemExit("what was read is not what was written")
        print(f"{len(written)} messages there and back through all {replicas} brokers", flush=True)
    finally:
        admin.delete_topics([topic])[topic].result(ANSWER_SECONDS)


def check_urls(urls: Sequence[str]) -> None:
    """Each answers 200; anything else is raised as an error that names it."""
    for url in urls:
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
                answer.read()
        except OSError as error:
            raise SystemExit(f"{url}: {error}") from error
        print(f"{url}: {answer.status}", flush=True)


def main() -> None:
    """The check's command."""
    bootstrap_server, replicas, seconds, *urls = sys.argv[1:]
    properties = json.loads(os.environ.get("CLIENT_PROPERTIES", "{}"))
    try:
        if urls == ["outside"]:
            urls = []
            bootstrap_server, properties = outside(bootstrap_server, properties)
        check_listener(bootstrap_server, int(replicas), float(seconds), properties)
    except KafkaException as error:
        raise SystemExit(f"{bootstrap_server}: {error.args[0].str()}") from error
    check_urls(urls)


if __name__ == "__main__":
    main()

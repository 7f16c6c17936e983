"""`helm test`: a broker that leads is taken away under load, and nothing that was acknowledged is lost or doubled.

    failover_check.py BOOTSTRAP_SERVER REPLICAS SECONDS STATEFULSET ID_BASE

Its token may delete the brokers' pods and nothing else. CLIENT_PROPERTIES in the environment is JSON: librdkafka's names.
"""

# ruff: noqa: T201  (what it prints is the pod's log)
from __future__ import annotations

import json
import os
import ssl
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PARTITIONS = 3
PAUSE_SECONDS = 0.005
MESSAGES_BEFORE_AND_AFTER = 500
ANSWER_SECONDS = 10.0


class Load(threading.Thread):
    """Numbered messages, one after another, until it is asked to stop. An idempotent producer, so nothing may come twice."""

    def __init__(self, client: Mapping[str, str], topic: str) -> None:
        super().__init__(name="load", daemon=True)
        self._producer = Producer({**client, "enable.idempotence": "true", "linger.ms": "5", "message.timeout.ms": "120000"})
        self._topic = topic
        self._stopped = threading.Event()
        self.acknowledged: list[int] = []
        self.refused: list[str] = []

    def run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            self._producer.produce(self._topic, str(number), partition=number % PARTITIONS, on_delivery=self._delivered)
            self._producer.poll(PAUSE_SECONDS)
            number += 1
        self._producer.flush(120)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(error.str())
        else:
            self.acknowledged.append(int(message.value() or b"-1"))

    def stop(self) -> None:
        """Ends it; what was sent is waited for."""
        self._stopped.set()
        self.join(150)


def take_away(pod: str, namespace: str) -> None:
    """Deletes a pod with a second's grace, which is too little for its preStop hook; the kubelet adds two and then kills it."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    request = urllib.request.Request(
        f"https://{f'[{host}]' if ':' in host else host}:{port}/api/v1/namespaces/{namespace}/pods/{pod}",
        method="DELETE",
        data=json.dumps({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 1}).encode(),
        headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text().strip()}", "Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    urllib.request.urlopen(request, timeout=ANSWER_SECONDS, context=context).close()


def partitions(admin: AdminClient, topic: str) -> dict[int, PartitionMetadata]:
    """Who leads and follows each partition."""
    return admin.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].partitions


def until(deadline: float, what: str, happened: Callable[[], bool]) -> float:
    """Waits; gives the seconds that it took."""
    since = time.monotonic()
    while not happened():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within the time that it may take")
        time.sleep(0.2)
    return time.monotonic() - since


def read_all(client: Mapping[str, str], topic: str, deadline: float) -> list[int]:
    """Every message of a topic, from the beginning to what is the end now."""
    consumer = Consumer({**client, "group.id": "ottla-check", "enable.auto.commit": "false"})
    found: list[int] = []
    try:
        ends = {each: consumer.get_watermark_offsets(TopicPartition(topic, each), ANSWER_SECONDS)[1] for each in range(PARTITIONS)}
        consumer.assign([TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
        while len(found) < sum(ends.values()):
            if time.monotonic() > deadline:
                raise SystemExit(f"read {len(found)} of {sum(ends.values())} messages")
            found += [int(message.value() or b"-1") for message in consumer.consume(1000, 1.0) if message.error() is None]
    finally:
        consumer.close()
    return found


def main() -> None:
    """The check's command."""
    bootstrap_server, replicas, seconds, stateful_set, id_base = sys.argv[1:]
    deadline = time.monotonic() + float(seconds)
    client = {"bootstrap.servers": bootstrap_server, "client.id": "ottla-check", **json.loads(os.environ.get("CLIENT_PROPERTIES", "{}"))}
    copies = min(3, int(replicas))
    topic = f"ottla-check-{uuid.uuid4().hex[:8]}"
    admin = AdminClient(client)
    settings = {"min.insync.replicas": "2" if copies == 3 else "1"}
    admin.create_topics([NewTopic(topic, PARTITIONS, copies, config=settings)])[topic].result(ANSWER_SECONDS)
    load = Load(client, topic)
    try:
        until(deadline, "leaders", lambda: all(len(each.isrs) == copies for each in partitions(admin, topic).values()))
        load.start()
        until(deadline, "the first messages", lambda: len(load.acknowledged) >= MESSAGES_BEFORE_AND_AFTER)
        leader = partitions(admin, topic)[0].leader
        pod = f"{stateful_set}-{leader - int(id_base)}"
        print(f"taking {pod} away, which leads {topic}-0, after {len(load.acknowledged)} messages", flush=True)
        take_away(pod, os.environ["POD_NAMESPACE"])
        took = until(deadline, "another leader", lambda: partitions(admin, topic)[0].leader not in (leader, -1))
        print(f"another leader after {took:.1f} s", flush=True)
        before = len(load.acknowledged)
        until(deadline, "messages afterwards", lambda: len(load.acknowledged) >= before + MESSAGES_BEFORE_AND_AFTER)
        whole = until(deadline, f"{pod} in sync", lambda: all(len(each.isrs) == copies for each in partitions(admin, topic).values()))
        print(f"{pod} is back and in sync after {whole:.1f} s more", flush=True)
        load.stop()
        found = read_all(client, topic, deadline)
        lost, doubled = set(load.acknowledged) - set(found), len(found) - len(set(found))
        print(f"{len(load.acknowledged)} acknowledged, {len(load.refused)} refused, {len(lost)} lost, {doubled} doubled", flush=True)
        if lost or doubled or load.refused:
            raise SystemExit(f"lost: {sorted(lost)[:10]}; refused: {load.refused[:1]}")
    finally:
        if load.is_alive():
            load.stop()
        admin.delete_topics([topic])[topic].result(ANSWER_SECONDS)


if __name__ == "__main__":
    main()

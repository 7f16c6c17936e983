"""A cluster as clients see it: who leads, who is in sync, who is the controller; asked of whichever broker answers."""

from __future__ import annotations

from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from tests.compat.quiet import quiet
from tests.integration.containers import BROKERS, wait_until

ANSWER_SECONDS = 30.0
IN_SYNC_SECONDS = 240.0


class View:
    """Questions to a cluster, and new topics."""

    def __init__(self, addresses: str) -> None:
        self.addresses = addresses

    def _client(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.addresses, "reconnect.backoff.max.ms": 500, **quiet()})

    def metadata(self) -> Any:
        """All topics and brokers; None when no one answers just now.

        A new client each time asks one of those that it was given, where an old one asks any that it has heard of. To one
        that is cut off from the others things are still as they were.
        """
        try:
            return self._client().list_topics(timeout=ANSWER_SECONDS)
        except confluent_kafka.KafkaException:
            return None

    def create_topic(self, name: str, partitions: int = 1, replicas: int = 3, seconds: float = 60.0, **config: str) -> str:
        """A topic that every broker has, in sync."""

        def is_created() -> bool:
            client = self._client()  # kept until it has answered
            # No broker that answers is a KafkaException too, as long as the future is waited for longer than the request.
            new = NewTopic(name, partitions, replicas, config=config)
            future = client.create_topics([new], operation_timeout=10, request_timeout=15)[name]
            try:
                future.result(20)
            except confluent_kafka.KafkaException as exception:
                # The first request may have been decided and its answer lost.
                return bool(exception.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS)
            return True

        wait_until(f"topic {name} is created", is_created, seconds)
        self.wait_in_sync(name)
        return name

    def leader(self, topic: str, partition: int = 0) -> int:
        """Who leads a partition, as soon as someone does."""
        return wait_until(f"{topic}-{partition} has a leader", lambda: self._leader(topic, partition), 180.0)

    def _leader(self, topic: str, partition: int) -> int:
        metadata = self.metadata()
        found = metadata.topics.get(topic) if metadata is not None else None
        return max(0, found.partitions[partition].leader) if found is not None and partition in found.partitions else 0

    def leader_besides(self, topic: str, broker_id: int, seconds: float = 60.0) -> int:
        """Who leads a topic's first partition as soon as that is not this broker."""

        def another() -> int:
            leader = self._leader(topic, 0)
            return leader if leader != broker_id else 0

        return wait_until(f"{topic} is led by another than {broker_id}", another, seconds)

    def controller(self) -> int:
        """The broker that decides, as soon as there is one."""

        def found() -> int:
            metadata = self.metadata()
            return max(0, metadata.controller_id) if metadata is not None else 0

        return wait_until("there is a controller", found, 180.0)

    def out_of_sync(self, topic: str | None = None) -> list[str] | None:
        """Partitions (or a topic's) without all of their replicas; None when it is not known, or a broker or the topic is not there."""
        metadata = self.metadata()
        if metadata is None or sorted(metadata.brokers) != list(BROKERS) or topic not in (None, *metadata.topics):
            return None
        return [
            f"{name}-{partition.id}: leader {partition.leader}, replicas {partition.replicas}, in sync {partition.isrs}"
            for name, known in metadata.topics.items()
            for partition in known.partitions.values()
            if topic in (None, name) and (partition.leader < 0 or sorted(partition.isrs) != sorted(partition.replicas))
        ]

    def wait_in_sync(self, topic: str | None = None, seconds: float = IN_SYNC_SECONDS) -> None:
        """Until all brokers are there and every replica (or a topic's) is in sync."""

        def state() -> str:
            return str(self.out_of_sync(topic))[:1500]

        wait_until("every broker is there and every replica in sync", lambda: self.out_of_sync(topic) == [], seconds, state)

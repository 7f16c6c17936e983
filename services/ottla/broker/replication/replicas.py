"""All partitions that this broker holds, and the requests that wait for them.

The replica manager turns what the controller says into logs and roles, and lets waiting requests know when a
partition has moved on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

from ottla.broker.purgatory import Purgatory
from ottla.broker.replication.appends import Appends
from ottla.broker.replication.group_commit import GroupCommit
from ottla.broker.replication.partition import Partition
from ottla.config.topic import TopicSettings
from ottla.errors import KafkaStorageError, UnknownTopicOrPartition
from ottla.model import BrokerId, TopicDescription, TopicPartition
from ottla.storage.log_manager import LogManager

log = logging.getLogger(__name__)


class ReplicaManager:
    """The broker's partitions.

    Args:
        broker_id: this broker.
        logs: where partitions' logs come from.
        fetches: the fetches that wait for more bytes.
        produces: the produces that wait for the high watermark.
    """

    def __init__(self, broker_id: BrokerId, logs: LogManager, fetches: Purgatory, produces: Purgatory) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._fetches = fetches
        self._produces = produces
        self._partitions: dict[TopicPartition, Partition] = {}
        # False on most brokers, and then the produce path looks no further.
        self.some_open_batches = False
        self.appends = Appends(self._written)
        self.group_commit = GroupCommit(self._flushed)

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """What is hosted here, for looking only."""
        return MappingProxyType(self._partitions)

    def get(self, topic: str, partition: int) -> Partition:
        """The partition as this broker holds it.

        Raises:
            UnknownTopicOrPartition: it is not here.
            KafkaStorageError: it is here, and its log directory has failed.
        """
        found = self._partitions.get((topic, partition))  # type: ignore[call-overload]  # a plain tuple hashes as the named one
        if found is None:
            raise UnknownTopicOrPartition(f"{topic}-{partition} is not on broker {self._broker_id}")
        return found  # type: ignore[no-any-return]

    def apply_topic(self, description: TopicDescription, settings: TopicSettings, *, is_new: bool) -> None:
        """Hosts and leads what the description gives to this broker; what is hosted already is brought up to date.

        A partition whose log can not be opened (its directory failed) is left out and told in the log; the others
        are not affected.

        Args:
            is_new: the topic, or some of its partitions, have just been made; otherwise their logs should be there.
        """
        for index, state in enumerate(description.partitions):
            if self._broker_id not in state.replicas:
                continue
            key = TopicPartition(description.name, index)
            partition = self._partitions.get(key)
            if partition is None:
                try:
                    partition = self._host(key, description, settings, is_new)
                except KafkaStorageError as error:
                    log.error("%s is offline on broker %d: %s", key, self._broker_id, error)
                    continue
            if state.leader == self._broker_id:
                partition.become_leader(state)

    def _host(self, key: TopicPartition, description: TopicDescription, settings: TopicSettings, is_new: bool) -> Partition:
        opened = self._logs.get(key) or self._logs.create(key, description.topic_id, is_new=is_new)
        partition = Partition(key, description.topic_id, self._broker_id, opened, settings)
        recorded = self._logs.recorded_high_watermark(key)
        if recorded is not None:
            partition.high_watermark = min(max(recorded, opened.log_start_offset), opened.log_end_offset)
        self._partitions[key] = partition
        self.some_open_batches |= partition.opens_batches
        return partition

    def update_settings(self, topic: str, settings: TopicSettings) -> None:
        """Gives a topic's new settings to its partitions."""
        for key, partition in self._partitions.items():
            if key.topic == topic:
                partition.update_settings(settings)
                self.some_open_batches |= partition.opens_batches

    async def remove_topic(self, topic: str, partition_count: int) -> None:
        """Stops hosting the topic; its logs are renamed at once and deleted later."""
        for index in range(partition_count):
            key = TopicPartition(topic, index)
            partition = self._partitions.pop(key, None)
            if partition is not None:
                partition.is_leader = False
                self._fetches.check(key)
                self._produces.check(key)
                await self._logs.delete(key)

    def directory_failed(self) -> None:
        """A log directory has failed: its partitions refuse everything, and whoever waits for them is told."""
        for key, partition in self._partitions.items():
            if partition.log.is_offline and partition.storage_error is None:
                partition.storage_error = KafkaStorageError(f"{key}: its log directory {partition.log.directory.parent} has failed")
                self._produces.check(key)
                self._fetches.check(key)

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """What goes into the checkpoint."""
        return {key: partition.high_watermark for key, partition in self._partitions.items()}

    def _written(self, partition: Partition) -> None:
        """A group of appends is in the file."""
        if partition.waits_for_flush:
            self.group_commit.written(partition)
        elif self._fetches.is_watched(partition.topic_partition):
            self._fetches.check(partition.topic_partition)

    def _flushed(self, partition: Partition) -> None:
        """A group commit has reached the disk, or failed to."""
        partition.advance_high_watermark()
        self._produces.check(partition.topic_partition)
        self._fetches.check(partition.topic_partition)

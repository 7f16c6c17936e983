"""A consumer of all partitions that never commits: it reads on from where it is, and writes down what it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any, Final

from tests.chaos.history import DAMAGED, Polls
from tests.simulation.producing import VALUE
from tests.simulation.wire import ClientView

from ottla.protocol.api import ApiKey
from ottla.protocol.messages import message
from ottla.record.batch import batches
from ottla.record.records import read_records

_OFFSET_OUT_OF_RANGE: Final = 1
_LATEST: Final = -1


class Consumer:
    """A client that reads all partitions.

    Args:
        unexpected: told what no correct cluster answers to one that was told all its offsets by the cluster itself.
        leads: whether a broker is the leader of a partition for all the others, too. One whose session has ended, and that
            cannot be told, takes the new leader's offsets for wrong ones; Kafka's does, too.
        fences: whether fetches carry the leader epoch that the client knows.
        rack: where the client stands; the broker there is read from once its leader says so (KIP-392).
    """

    def __init__(
        self,
        view: ClientView,
        topic: str,
        partition_count: int,
        broker_ids: list[int],
        random: Random,
        time_ms: Callable[[], int],
        polls: Polls,
        unexpected: Callable[[str], None],
        leads: Callable[[int, int], bool],
        fences: bool,
        rack: str,
    ) -> None:
        self._view = view
        self._topic = topic
        self._broker_ids = broker_ids
        self._random = random
        self._time_ms = time_ms
        self._polls = polls
        self._unexpected = unexpected
        self._leads = leads
        self._fences = fences
        self._rack = rack
        self._nearby: dict[int, int] = {}  # the brokers to read from in place of the leaders, by partition
        self._is_stopping = False
        self.positions = [0] * partition_count

    async def run(self, every_seconds: float) -> None:
        """Reads until `stop`."""
        now_ms = self._time_ms()
        for partition in range(len(self.positions)):
            self._polls.assign(partition, 0, now_ms)
        while not self._is_stopping:
            if not await self.read_once(500):
                await self._refresh()
            await asyncio.sleep(self._random.uniform(0.5, 1.5) * every_seconds)
        self._view.close()

    def stop(self) -> None:
        self._is_stopping = True

    async def read_to_the_end(self) -> bool:
        """Reads until every partition has been read to where it ends now; False when someone did not answer."""
        if not self._polls.counts and not len(self._polls.first_offsets):
            for partition in range(len(self.positions)):
                self._polls.assign(partition, 0, self._time_ms())
        ends = [await self._end_of(partition) for partition in range(len(self.positions))]
        if None in ends:
            await self._refresh()
            return False
        while any(position < (end or 0) for position, end in zip(self.positions, ends, strict=True)):
            before = list(self.positions)
            if not await self.read_once(100) or before == self.positions:
                return False
        return True

    async def read_once(self, max_wait_ms: int) -> bool:
        """One fetch from each leader; False when a leader is not known, or not where it was."""
        by_leader: dict[int, list[int]] = {}
        for partition in range(len(self.positions)):
            source = self._nearby.get(partition, self._view.leaders.get((self._topic, partition), -1))
            by_leader.setdefault(source, []).append(partition)
        if by_leader.keys() == {-1}:
            return False
        fetches = [self._fetch(leader, partitions, max_wait_ms) for leader, partitions in by_leader.items() if leader >= 0]
        return all(await asyncio.gather(*fetches)) and -1 not in by_leader

    async def _fetch(self, leader: int, partitions: list[int], max_wait_ms: int) -> bool:
        api = message(ApiKey.FETCH, 12)
        kinds = api.request
        asked = tuple(
            kinds.FetchPartition(
                partition=partition,
                fetch_offset=self.positions[partition],
                partition_max_bytes=1 << 16,
                current_leader_epoch=self._view.leader_epochs.get((self._topic, partition), -1) if self._fences else -1,
            )
            for partition in partitions
        )
        body = kinds.FetchRequest(
            max_wait=timedelta(milliseconds=max_wait_ms),
            min_bytes=1,
            topics=(kinds.FetchTopic(topic=self._topic, partitions=asked),),
            forgotten_topics_data=(),
            rack_id=self._rack,
        )
        try:
            answer = await self._view.ask(leader, api, body, 5.0)
        except OSError:
            for partition in partitions:
                self._nearby.pop(partition, None)
            return False
        if int(answer.error_code):
            return False
        is_taken = True
        for topic in answer.responses:
            for found in topic.partitions:
                is_taken = self._take(leader, found) and is_taken
        return is_taken

    def _take(self, leader: int, found: Any) -> bool:
        partition, error = found.partition_index, int(found.error_code)
        if error and self._nearby.pop(partition, None) is not None:
            return True  # the leader is asked next
        if error == _OFFSET_OUT_OF_RANGE and self._leads(leader, partition):
            self._unexpected(f"partition {partition}: offset {self.positions[partition]} is out of range, and all before it was read")
        if error:
            return False
        if found.preferred_read_replica >= 0:
            self._nearby[partition] = found.preferred_read_replica
        now_ms = self._time_ms()
        records = bytes(found.records or b"")
        for position, header in batches(records):
            for record in read_records(records[position : position + header.size]):
                if record.offset >= self.positions[partition]:
                    value = DAMAGED if record.value is None else VALUE.unpack_from(record.value)[0]
                    self._polls.poll(partition, record.offset, value, now_ms)
                    self.positions[partition] = record.offset + 1
        return True

    async def _end_of(self, partition: int) -> int | None:
        api = message(ApiKey.LIST_OFFSETS, 6)
        kinds = api.request
        leader = self._view.leaders.get((self._topic, partition), -1)
        if leader < 0:
            return None
        asked = kinds.ListOffsetsPartition(partition_index=partition, timestamp=_LATEST)
        body = kinds.ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=(kinds.ListOffsetsTopic(name=self._topic, partitions=(asked,)),)
        )
        try:
            answer = await self._view.ask(leader, api, body, 5.0)
        except OSError:
            return None
        found = answer.topics[0].partitions[0]
        return None if int(found.error_code) else int(found.offset)

    async def _refresh(self) -> None:
        with suppress(OSError):
            await self._view.refresh(self._random.choice(self._broker_ids), self._topic)
        await asyncio.sleep(0.1)

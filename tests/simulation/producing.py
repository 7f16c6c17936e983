"""An idempotent producer with acks=all, several batches in flight, that writes down what it was told.

It does what the Java client does: sequences are given once, a batch that failed is sent again with those behind it, in
their order, until it is acknowledged or its time is over. Then no one knows what became of it, and the client goes on
as another process with a new producer id, because nothing promises an order across that.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Final
from uuid import UUID

from tests.chaos.history import NO_OFFSET, Sends, sender_of
from tests.simulation.wire import ClientView

from ottla.protocol.api import ApiKey
from ottla.protocol.messages import message
from ottla.record.records import Record, build_batch
from ottla.testing.clock import DEFAULT_START_MS

VALUE: Final = struct.Struct(">Q")

_NONE: Final = 0
_OUT_OF_ORDER: Final = 45
_DUPLICATE: Final = 46
_UNKNOWN_PRODUCER_ID: Final = 59
# After which the same batch may be sent again: no leader here, too few replicas, no answer in time, the disk, the network.
_RETRIABLE: Final = {3, 5, 6, 7, 13, 14, 15, 16, 19, 20, 56, 74, 75, 76}
MOST_IN_FLIGHT: Final = 4


@dataclass(slots=True)
class _Batch:
    partition: int
    base_sequence: int
    values: list[int]
    encoded: bytes
    deadline: float
    is_in_flight: bool = False
    attempts: int = 0
    has_failed: bool = False  # and waits to be sent again; until then nothing else of its partition is sent
    leader: int = -1  # that it was sent to last


class Producer:
    """A client that produces until it is told to stop.

    Args:
        new_sends: gives the columns of a new process.
        unexpected: told what no correct cluster answers.
        delivery_seconds: how long a batch is tried for.
        acknowledged: told partition and offset of each message that is acknowledged.
        note: told what is sent and answered.
        place_of: the topic's id and the leader that ZooKeeper has, of topic and partition.
        key_of: a message's key, by its value.
    """

    def __init__(
        self,
        view: ClientView,
        topic: str,
        partition_count: int,
        broker_ids: list[int],
        random: Random,
        time_ms: Callable[[], int],
        new_sends: Callable[[], Sends],
        unexpected: Callable[[str], None],
        delivery_seconds: float,
        acknowledged: Callable[[int, int], None],
        note: Callable[[str], None],
        place_of: Callable[[str, int], tuple[UUID | None, int]],
        key_of: Callable[[int], bytes | None] = lambda value: None,
    ) -> None:
        self._view = view
        self._topic = topic
        self._partition_count = partition_count
        self._broker_ids = broker_ids
        self._random = random
        self._time_ms = time_ms
        self._new_sends = new_sends
        self._unexpected = unexpected
        self._delivery_seconds = delivery_seconds
        self._acknowledged = acknowledged
        self._note = note
        self._place_of = place_of
        self._topic_ids: dict[int, UUID | None] = {}  # by partition, at this process's first acknowledgement
        self._key_of = key_of
        self._sends = new_sends()
        self._producer_id = -1
        self._epoch = -1
        self._next_sequence = [0] * partition_count
        self._lines: list[deque[_Batch]] = [deque() for _ in range(partition_count)]
        self._changed = asyncio.Event()
        self._is_stopping = False

    async def run(self, every_seconds: float) -> None:
        """Produces a batch now and then, until `stop`; ends when all that was sent is acknowledged or given up."""
        loop = asyncio.get_running_loop()
        partitions = [loop.create_task(self._send_partition(number)) for number in range(self._partition_count)]
        while not self._is_stopping:
            await asyncio.sleep(self._random.expovariate(1 / every_seconds))
            if self._producer_id < 0 and not await self._initialise():
                continue
            self._append(self._random.randrange(self._partition_count))
        self._wake()
        await asyncio.gather(*partitions)
        self._view.close()

    def stop(self) -> None:
        """Nothing new is produced."""
        self._is_stopping = True

    async def _initialise(self) -> bool:
        api = message(ApiKey.INIT_PRODUCER_ID, 4)
        body = api.request.InitProducerIdRequest(transactional_id=None, transaction_timeout=timedelta(milliseconds=2**31 - 1))
        try:
            answer = await self._view.ask(self._random.choice(self._broker_ids), api, body, 10.0)
        except OSError:
            return False
        if int(answer.error_code) != _NONE:
            return False
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        return True

    def _append(self, partition: int) -> None:
        """A new batch at the end of its partition's line."""
        if len(self._lines[partition]) >= 10:
            return
        now_ms = self._time_ms()
        values = [self._sends.begin(partition, now_ms) for _ in range(self._random.choice((1, 1, 2, 5)))]
        padding = bytes(self._random.choice((0, 0, 100, 700)))
        encoded = build_batch(
            [
                Record(index, DEFAULT_START_MS + now_ms, self._key_of(value), VALUE.pack(value) + padding)
                for index, value in enumerate(values)
            ],
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._next_sequence[partition],
        )
        deadline = asyncio.get_running_loop().time() + self._delivery_seconds
        self._lines[partition].append(_Batch(partition, self._next_sequence[partition], values, encoded, deadline))
        self._next_sequence[partition] += len(values)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _send_partition(self, partition: int) -> None:
        """Keeps the line of a partition moving: a few batches in flight, and after a failure all of them again."""
        line = self._lines[partition]
        while line or not self._is_stopping:
            changed = self._changed
            in_flight = [batch for batch in line if batch.is_in_flight]
            ready = next((batch for batch in line if not batch.is_in_flight), None)
            if ready is not None and self._may_follow(ready, in_flight, line):
                ready.is_in_flight = True
                ready.attempts += 1
                ready.leader = self._leader_of(partition)
                asyncio.get_running_loop().create_task(self._send(ready))
            else:
                await changed.wait()

    def _may_follow(self, batch: _Batch, in_flight: list[_Batch], line: deque[_Batch]) -> bool:
        """Whether a batch may be sent behind those in flight: they begin with the first that is not acknowledged, and go the same way.

        Kafka takes any sequence from a producer that it does not know, so whoever could arrive before the first must wait.
        """
        if any(batch.has_failed for batch in line):
            return False
        if not in_flight:
            return True
        if line[0] is not in_flight[0] or in_flight[-1].base_sequence > batch.base_sequence or len(in_flight) >= MOST_IN_FLIGHT:
            return False
        return all(sent.leader == self._leader_of(batch.partition) for sent in in_flight)

    def _leader_of(self, partition: int) -> int:
        return self._view.leaders.get((self._topic, partition), -1)

    async def _send(self, batch: _Batch) -> None:
        what = f"producer {self._producer_id} partition {batch.partition} sequence {batch.base_sequence} ({len(batch.values)})"
        self._note(f"{what} -> broker {batch.leader}")
        error, offset = await self._exchange(batch)
        self._note(f"{what} <- error {error}, offset {offset}")
        line = self._lines[batch.partition]
        if batch not in line:
            return  # given up with the process that it was sent by
        if error == _DUPLICATE:
            error, offset = _NONE, NO_OFFSET
        if error == _NONE:
            # The acknowledgements of one partition come in the order of the batches, or a retry of the earlier follows.
            line.remove(batch)
            self._topic_ids.setdefault(batch.partition, self._place_of(self._topic, batch.partition)[0])
            if offset != NO_OFFSET:
                self._acknowledged(batch.partition, offset + len(batch.values) - 1)
            for index, value in enumerate(batch.values):
                self._sends.acknowledge(sender_of(value)[1], NO_OFFSET if offset == NO_OFFSET else offset + index, self._time_ms())
        elif error in (_OUT_OF_ORDER, _UNKNOWN_PRODUCER_ID) and line[0] is not batch:
            pass  # the one before it did not get there
        elif error in (_OUT_OF_ORDER, _UNKNOWN_PRODUCER_ID) and batch.attempts > 1:
            # It may be there, and its successors too: a broker that started again knows the last batch of each producer
            # before its last segment, as Kafka's does, and cannot tell a repetition of an earlier one from a gap.
            self._give_up()
        elif error in (_OUT_OF_ORDER, _UNKNOWN_PRODUCER_ID) and self._is_elsewhere(batch):
            self._give_up()  # Java's client takes another epoch then
        elif error not in _RETRIABLE:
            self._unexpected(
                f"partition {batch.partition}: batch {batch.base_sequence} of producer {self._producer_id}, all before it acknowledged,"
                f" is refused with error {error}"
            )
            self._give_up()
        if error != _NONE:
            if asyncio.get_running_loop().time() > batch.deadline and batch in line:
                self._give_up()
            batch.has_failed = True
            await self._back_off()
            batch.has_failed = False
        batch.is_in_flight = False
        self._wake()

    def _is_elsewhere(self, batch: _Batch) -> bool:
        """Whether a former leader was asked, which is cut off from ZooKeeper, or the topic was made again since an acknowledgement."""
        topic_id, leader = self._place_of(self._topic, batch.partition)
        return batch.leader != leader or self._topic_ids.get(batch.partition, topic_id) != topic_id

    async def _exchange(self, batch: _Batch) -> tuple[int, int]:
        """Error code and base offset; 7 (REQUEST_TIMED_OUT) where the network failed."""
        leader = batch.leader
        if leader < 0:
            return 5, NO_OFFSET
        api = message(ApiKey.PRODUCE, 9)
        kinds = api.request
        data = kinds.PartitionProduceData(index=batch.partition, records=batch.encoded)
        body = kinds.ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout=timedelta(seconds=5),
            topic_data=(kinds.TopicProduceData(name=self._topic, partition_data=(data,)),),
        )
        try:
            answer = await self._view.ask(leader, api, body, 8.0)
        except OSError:
            return 7, NO_OFFSET
        produced = answer.responses[0].partition_responses[0]
        return int(produced.error_code), produced.base_offset

    async def _back_off(self) -> None:
        await asyncio.sleep(self._random.uniform(0.05, 0.3))
        with suppress(OSError):
            await self._view.refresh(self._random.choice(self._broker_ids), self._topic)

    def _give_up(self) -> None:
        """What is not acknowledged stays unknown; what comes is sent by another process."""
        for line in self._lines:
            for batch in line:
                for value in batch.values:
                    self._sends.give_up(sender_of(value)[1], self._time_ms())
            line.clear()
        self._sends = self._new_sends()
        self._producer_id = -1
        self._topic_ids.clear()
        self._next_sequence = [0] * self._partition_count

"""A topic that holds records, and is deleted and made again under its name while it is written, read and deleted from.

Promised is, for each incarnation (a topic id): what was acknowledged in it is in it, at the offset that the producer was
given, for as long as it lives and no one deleted it (`DeleteRecords`); and nothing that was acknowledged in a former one.
A producer writes by name, so only ZooKeeper's own view says in which incarnation a message was acknowledged: in the one
that was there before the message was sent and was still there after it was acknowledged. Others are not judged.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from tests.chaos.history import DAMAGED, NO_OFFSET, Outcome, Sends, value_of
from tests.simulation.asking import EARLIEST, NONE, OFFSET_OUT_OF_RANGE
from tests.simulation.control import MOST_STRAGGLING_SECONDS
from tests.simulation.faults import Kind
from tests.simulation.producing import VALUE
from tests.simulation.scenes import Stage

TOPIC: Final = "w"
WATCH_SECONDS: Final = 0.2
END_ATTEMPTS: Final = 100


@dataclass(slots=True)
class Incarnation:
    """One life of the topic, by ZooKeeper.

    Attributes:
        made_ms: when it was not there yet.
        first_seen_ms: when it was there, for the first time that someone looked.
        last_seen_ms: for the last time.
        asked_start: up to where records were asked to be deleted, by partition.
        read: the values that were read in it, by partition and offset.
        spans: what stretches of offsets were read without a gap, by partition.
    """

    topic_id: UUID
    made_ms: int
    first_seen_ms: int
    last_seen_ms: int
    asked_start: dict[int, int] = field(default_factory=dict)
    read: dict[tuple[int, int], int] = field(default_factory=dict)
    spans: list[tuple[int, int, int]] = field(default_factory=list)


class Recreation:
    """The scene."""

    def __init__(self, stage: Stage) -> None:
        self._stage: Final = stage
        random = stage.random
        self._partition_count: Final = random.choice((1, 2))
        self._settings: Final = {
            "min.insync.replicas": "2",
            "segment.bytes": str(random.choice((1 << 12, 1 << 14, 1 << 20))),
            "index.interval.bytes": str(random.choice((64, 512))),
            **({"flush.messages": "1"} if random.random() < 0.3 else {}),
        }
        self._every: Final = random.choice((0.1, 0.3, 0.5))
        self._sends: Final[list[Sends]] = []
        self._producer: Final = stage.producer(TOPIC, self._partition_count, self._sends)
        self._asker: Final = stage.asker("recreation")
        self._reader: Final = stage.asker("reader of w")
        self.incarnations: Final[dict[UUID, Incarnation]] = {}
        self._is_healed = False
        self._is_left_alone: Final = asyncio.Event()
        self._is_stopping = False
        self._checked_ms = 0

    @property
    def topics(self) -> frozenset[str]:
        return frozenset({TOPIC})

    async def begin(self) -> bool:
        return True

    async def run(self) -> None:
        every = (self._watch(), self._producer.run(self._every), self._recreate(), self._read())
        tasks = [asyncio.get_running_loop().create_task(work) for work in every]
        await asyncio.gather(*tasks)

    def stop(self) -> None:
        self._is_stopping = True
        self._producer.stop()

    async def after_healing(self) -> None:
        """The topic is there, also when a request to delete it was on its way for long."""
        self._is_healed = True
        await self._is_left_alone.wait()
        straggles = any(fault.kind is Kind.STRAGGLING_CALLS for fault in self._stage.plan.faults)
        await asyncio.sleep(MOST_STRAGGLING_SECONDS + 5.0 if straggles else 3.0)
        for _ in range(120):  # a deletion waits for brokers that are not back yet
            if await self._create() and self._is_there():
                await asyncio.sleep(3.0)
                if self._is_there():
                    return
            await asyncio.sleep(1.0)
        self._stage.fail(f"{TOPIC}: it cannot be made after everything has healed")

    def _is_there(self) -> bool:
        return self._stage.cluster.topic_id(TOPIC) is not None and not self._stage.is_going(TOPIC)

    # What happens to it.

    async def _watch(self) -> None:
        while not self._is_stopping:
            self._see()
            await asyncio.sleep(WATCH_SECONDS)

    def _see(self) -> Incarnation | None:
        topic_id, now_ms = self._stage.cluster.topic_id(TOPIC), self._stage.time_ms()
        before_ms, self._checked_ms = self._checked_ms, now_ms
        if topic_id is None:
            return None
        found = self.incarnations.setdefault(topic_id, Incarnation(topic_id, before_ms, now_ms, now_ms))
        found.last_seen_ms = now_ms
        return found

    async def _create(self) -> bool:
        return await self._stage.create(TOPIC, self._partition_count, self._settings)

    async def _recreate(self) -> None:
        try:
            await self._recreate_until_healed()
        finally:
            self._is_left_alone.set()

    async def _recreate_until_healed(self) -> None:
        random = self._stage.random
        while not self._is_healed:
            if not await self._create():
                await asyncio.sleep(0.5)
                continue
            await asyncio.sleep(random.choice((random.uniform(1.0, 6.0), random.uniform(4.0, 15.0), random.uniform(10.0, 40.0))))
            for _ in range(random.choice((0, 1, 1, 2))):
                await self._delete_records()
                await asyncio.sleep(random.choice((0.0, random.uniform(0.0, 6.0))))
            if self._is_healed:
                return
            with suppress(OSError):
                await self._stage.administrator.delete(TOPIC)
            await asyncio.sleep(random.choice((0.0, 0.0, random.uniform(0.0, 2.0))))

    async def _delete_records(self) -> None:
        incarnation = self._see()
        partition = self._stage.random.randrange(self._partition_count)
        with suppress(OSError):
            error, end = await self._asker.offset_at(TOPIC, partition, -1)
            if error or incarnation is None:
                return
            offset = self._stage.random.randint(0, end)
            # Whichever it meets; a request is answered before the next one of this client.
            incarnation.asked_start[partition] = max(offset, incarnation.asked_start.get(partition, 0))
            error = await self._asker.delete_records(TOPIC, partition, offset)
            self._stage.tell(f"records of {TOPIC}-{partition} before {offset} deleted: error {error}")

    # Reading.

    async def _read(self) -> None:
        begun: dict[tuple[UUID, int], int] = {}
        while not self._is_stopping:
            for partition in range(self._partition_count):
                with suppress(OSError):
                    await self._read_on(partition, begun)
            await asyncio.sleep(self._stage.random.uniform(0.2, 2.0))

    async def _read_on(self, partition: int, positions: dict[tuple[UUID, int], int], *, is_last: bool = False) -> tuple[int, int] | None:
        """One fetch from where this incarnation was read to; position and high watermark when it was answered."""
        asker, stage = self._reader, self._stage
        await asker.leader(TOPIC, partition)
        topic_id = asker.view.topic_ids[TOPIC]
        position = positions.get((topic_id, partition))
        if position is None:
            error, position = await asker.offset_at(TOPIC, partition, EARLIEST)
            if error or asker.view.topic_ids[TOPIC] != topic_id:
                return None
        self._see()
        found = await asker.fetch(TOPIC, partition, position)
        incarnation = self.incarnations.get(found.topic_id)
        if found.topic_id != topic_id or incarnation is None:
            return None
        if found.error == OFFSET_OUT_OF_RANGE:
            positions.pop((topic_id, partition), None)
            asked = incarnation.asked_start.get(partition, 0)
            if position >= asked and (topic_id, partition) in positions and stage.leads(found.leader, TOPIC, partition):
                stage.fail(f"{TOPIC}-{partition}: offset {position} is out of range, and all before it was read; {asked} was asked for")
        if found.error != NONE:
            return None
        at = position
        for record in found.records:
            value = DAMAGED if record.value is None else VALUE.unpack_from(record.value)[0]
            former = incarnation.read.setdefault((partition, record.offset), value)
            if former != value:
                stage.fail(f"{TOPIC}-{partition}: offset {record.offset} held {former:#x} and holds {value:#x}")
            if record.offset != at:
                stage.fail(f"{TOPIC}-{partition}: offset {record.offset} follows {at - 1}")
            at = record.offset + 1
        if found.records:
            incarnation.spans.append((partition, position, at))
        positions[topic_id, partition] = at
        if is_last and found.log_start_offset > incarnation.asked_start.get(partition, 0):
            stage.fail(
                f"{TOPIC}-{partition}: its log begins at {found.log_start_offset},"
                f" and no one asked for more than {incarnation.asked_start.get(partition, 0)} to be deleted"
            )
        return at, found.high_watermark

    async def look_at_the_end(self) -> None:
        """Everything of the last incarnation, from its start."""
        positions: dict[tuple[UUID, int], int] = {}
        for partition in range(self._partition_count):
            attempts, before = 0, NO_OFFSET
            while attempts < END_ATTEMPTS:
                attempts += 1
                with suppress(OSError):
                    found = await self._read_on(partition, positions, is_last=True)
                    if found is not None and found[0] >= found[1]:
                        break
                    if found is not None and found[0] > before:
                        attempts, before = 0, found[0]
                        continue
                await asyncio.sleep(0.3)
            else:
                self._stage.fail(f"{TOPIC}-{partition}: it cannot be read to its end: {positions}")

    # Judging.

    def findings(self) -> Iterator[str]:
        yield from judge(list(self.incarnations.values()), self._sends)


def judge(incarnations: list[Incarnation], sends: list[Sends]) -> Iterator[str]:
    """What is wrong with what was read in each incarnation, by what was acknowledged in it and in those before it.

    Args:
        incarnations: the last is the one that was read to its end.
    """
    in_order = sorted(incarnations, key=lambda incarnation: incarnation.first_seen_ms)
    acknowledged = [dict(_acknowledged_in(incarnation, sends)) for incarnation in in_order]
    for number, incarnation in enumerate(in_order):
        is_last = number == len(in_order) - 1
        spans = defaultdict(list)
        for partition, start, end in incarnation.spans:
            spans[partition].append((start, end))
        for (partition, offset), value in acknowledged[number].items():
            if offset < incarnation.asked_start.get(partition, 0):
                continue
            read = incarnation.read.get((partition, offset))
            is_covered = is_last or any(start <= offset < end for start, end in spans[partition])
            if is_covered and read != value:
                holds = "nothing" if read is None else f"{read:#x}"
                yield f"{TOPIC}-{partition}, incarnation {number}: {value:#x} was acknowledged at offset {offset}, which holds {holds}"
        former = {value for earlier in acknowledged[:number] for value in earlier.values()}
        for (partition, offset), value in incarnation.read.items():
            if value in former:
                yield f"{TOPIC}-{partition}, incarnation {number}: offset {offset} holds {value:#x}, acknowledged in a former one"


def _acknowledged_in(incarnation: Incarnation, sends: list[Sends]) -> Iterator[tuple[tuple[int, int], int]]:
    for process in sends:
        for sequence, (partition, offset, outcome) in enumerate(zip(process.partitions, process.offsets, process.outcomes, strict=True)):
            is_within = process.sent_at[sequence] >= incarnation.first_seen_ms and process.done_at[sequence] <= incarnation.last_seen_ms
            if outcome == Outcome.ACKNOWLEDGED and offset != NO_OFFSET and is_within:
                yield (partition, offset), value_of(process.process, sequence)

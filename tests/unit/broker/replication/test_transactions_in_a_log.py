"""What a reader of committed data sees of a partition, whatever becomes of its log: recovery, truncation, deletion, rolls.

The model is a list of batches. A record counts when it is plain, or when the next marker of its producer says commit; nothing
from the first undecided transaction on is seen. The reader is a client as librdkafka and the Java client are: it gets batches
and a list of aborted transactions, a part of the log at a time.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.examples import examples
from tests.unit.storage.logs import PARTITION, FailingFiles, log_maker

from ottla.broker.replication.partition import Partition
from ottla.config.topic import TopicSettings
from ottla.interbroker.calls import PartitionAssignment
from ottla.model import BrokerId, PartitionState
from ottla.record.batch import batches
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, marker_of
from ottla.record.records import Record, build_batch, read_records
from ottla.testing import ManualClock

BROKER = BrokerId(1)
PRODUCERS = st.integers(10, 12)
TIME = 1_000
# A few hundred fsyncs are no part of what is tried here.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True)
class Batch:
    """A batch as the model has it; `kind` is plain, transaction, COMMIT or ABORT."""

    kind: str
    producer_id: int
    base_offset: int
    count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.count - 1


def committed_view(partition: Partition, offset: int, max_bytes: int) -> list[int]:
    """The offsets that a client with `read_committed` delivers."""
    delivered = []
    while (region := partition.read(offset, max_bytes, committed_only=True, at_least_one_batch=True)) is not None:
        waiting = sorted(
            (transaction.first_offset, transaction.producer_id) for transaction in partition.aborted_transactions(offset, region)
        )
        aborted: set[int] = set()
        data = region.read()
        next_offset = offset
        for position, header in batches(data):
            while waiting and waiting[0][0] <= header.last_offset:
                aborted.add(waiting.pop(0)[1])
            batch = data[position : position + header.size]
            if header.is_control:
                marker = marker_of(batch)
                assert marker is not None
                if marker.control_type is ControlRecordType.ABORT:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                delivered += [record.offset for record in read_records(batch) if record.offset >= offset]
            next_offset = header.last_offset + 1
        assert next_offset > offset, "a read brought no whole batch"
        offset = next_offset
    return delivered


class CommittedData(RuleBasedStateMachine):
    """A partition and the list of what was appended to it."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ottla-committed-", dir=MEMORY))
        self.maker = log_maker(self.directory / "clicks-0", ManualClock(1_000_000), FailingFiles())
        self.model: list[Batch] = []
        self.epoch = 0
        self.has_crashed = False

    def teardown(self) -> None:
        self.partition.log.files.release()
        shutil.rmtree(self.directory)

    @initialize()
    def open(self) -> None:
        self.lead(self.maker(segment_bytes=1_500, index_interval_bytes=300))

    def lead(self, log: Any) -> None:
        settings = TopicSettings(segment_bytes=1_500, index_interval_bytes=300)
        self.partition = Partition(PARTITION, UUID(int=1), BROKER, log, settings)
        self.epoch += 1
        state = PartitionState(BROKER, self.epoch, (BROKER,), (BROKER,))
        self.partition.become_leader(PartitionAssignment("clicks", UUID(int=1), 0, state, self.epoch), 0)

    def written(self, kind: str, producer_id: int, base_offset: int, count: int) -> None:
        self.partition.log.appender.write_staged()
        self.partition.appended()
        self.model.append(Batch(kind, producer_id, base_offset, count))

    def open_transactions(self, from_offset: int = 0) -> dict[int, int]:
        """First offsets by producer, as far as batches from an offset on tell them."""
        found: dict[int, int] = {}
        for batch in self.model:
            if batch.base_offset < from_offset:
                continue
            if batch.kind == "transaction":
                found.setdefault(batch.producer_id, batch.base_offset)
            elif batch.kind != "plain":
                found.pop(batch.producer_id, None)
        return found

    # What producers and coordinators do.

    @rule(producer_id=PRODUCERS, count=st.integers(1, 3), size=st.sampled_from((1, 200)), is_plain=st.sampled_from((False, False, True)))
    def publish(self, producer_id: int, count: int, size: int, is_plain: bool) -> None:
        is_transactional = not is_plain or producer_id in self.open_transactions()
        producers = self.partition.log.producers
        if is_transactional:
            producers.end_verification(producer_id, 0, producers.begin_verification(producer_id), True)
        known = producers.get(producer_id)
        batch = build_batch(
            [Record(index, TIME, b"k", b"v" * size) for index in range(count)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0 if known is None else known.next_sequence,
            transactional=is_transactional,
        )
        base_offset, _, _ = self.partition.append_as_leader(memoryview(batch), 0, len(batch), -1, TIME, in_transaction=True)
        self.written("transaction" if is_transactional else "plain", producer_id, base_offset, count)

    @rule(producer_id=PRODUCERS)
    def commit(self, producer_id: int) -> None:
        self.mark(producer_id, ControlRecordType.COMMIT)

    @rule(producer_id=PRODUCERS)
    def abort(self, producer_id: int) -> None:
        self.mark(producer_id, ControlRecordType.ABORT)

    def mark(self, producer_id: int, control_type: ControlRecordType) -> None:
        base_offset = self.partition.append_marker(producer_id, 0, EndTransactionMarker(control_type, 1), TIME)
        self.written(control_type.name, producer_id, base_offset, 1)

    # What becomes of the log.

    @rule(data=st.data())
    def happen(self, data: st.DataObject) -> None:
        """One rule for all of these, so that most steps add something."""
        match data.draw(st.sampled_from(("roll", "sync", "crash", "stop and start", "truncate", "delete records")), label="what"):
            case "roll":
                self.partition.log.appender.roll()
            case "sync":
                run(self.partition.log.flush())
            case "crash":
                self.crash()
            case "stop and start":
                self.stop_and_start()
            case "truncate":
                self.truncate(data)
            case _:
                self.delete_records(data)

    def crash(self) -> None:
        """Everything written is there, but nothing says so beyond the recovery point."""
        self.has_crashed = True
        log = self.partition.log
        log.files.release()
        run(log.abandon())
        self.reopen(clean=False, recovery_point=log.recovery_point, log_start_offset=log.log_start_offset)

    def stop_and_start(self) -> None:
        log = self.partition.log
        run(log.close())
        self.reopen(clean=True, recovery_point=log.recovery_point, log_start_offset=log.log_start_offset)

    def reopen(self, **how: Any) -> None:
        self.lead(self.maker(segment_bytes=1_500, index_interval_bytes=300, **how))
        self.partition.high_watermark = self.partition.log.log_end_offset

    def truncate(self, data: st.DataObject) -> None:
        """As a follower does for a new leader, which it then becomes itself. It cuts off a few batches."""
        ends = [batch.base_offset for batch in self.model if batch.base_offset >= self.partition.log.log_start_offset]
        if not ends:
            return
        offset = data.draw(st.sampled_from(ends[-6:]), label="offset")
        while not self.partition.log.truncate_to(offset):
            run(self.partition.log.checkpoint_truncation())
        self.model = [batch for batch in self.model if batch.base_offset < offset]
        self.lead(self.partition.log)
        self.partition.high_watermark = offset

    def delete_records(self, data: st.DataObject) -> None:
        log = self.partition.log
        self.partition.delete_records(min(log.log_start_offset + data.draw(st.integers(1, 8), label="offsets"), log.log_end_offset))
        if data.draw(st.booleans(), label="with their files"):
            log.delete_old_segments(TIME)

    # What has to be so.

    @invariant()
    def the_last_stable_offset_is_where_the_first_undecided_transaction_begins(self) -> None:
        log = self.partition.log
        first = min(self.open_transactions().values(), default=log.log_end_offset)
        # A start after a crash knows a transaction whose first batches were deleted, with their files, by those that are left.
        known_from = log.segments[0].base_offset if self.has_crashed else 0
        latest = min(self.open_transactions(known_from).values(), default=log.log_end_offset)
        stable, start = self.partition.last_stable_offset, log.log_start_offset
        assert max(first, start) <= stable <= max(latest, start)

    @invariant()
    def readers_get_what_is_committed_and_nothing_else(self) -> None:
        start, stable = self.partition.log.log_start_offset, self.partition.last_stable_offset
        expected: list[int] = []
        undecided: dict[int, list[int]] = {}
        for batch in self.model:
            offsets = range(batch.base_offset, batch.last_offset + 1)
            if batch.kind == "plain":
                expected += offsets
            elif batch.kind == "transaction":
                undecided.setdefault(batch.producer_id, []).extend(offsets)
            else:
                decided = undecided.pop(batch.producer_id, [])
                expected += decided if batch.kind == "COMMIT" else []
        expected = sorted(number for number in expected if start <= number < stable)
        for max_bytes in (1, 700, 1 << 20):
            assert committed_view(self.partition, start, max_bytes) == expected
        middle = (start + stable) // 2
        if start <= middle:
            assert committed_view(self.partition, middle, 700) == [number for number in expected if number >= middle]


def run(work: Coroutine[Any, Any, Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await work

    asyncio.run(bounded())


CommittedData.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=40, deadline=None)
TestCommittedData = CommittedData.TestCase

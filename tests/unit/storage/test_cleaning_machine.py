"""Any history of records, tombstones, transactions, producers, cleanings, crashes, truncations and deletions, against a model.

The model keeps everything that was ever appended and not cut. Of the log it is asked that
    the last value of each key is the model's, for readers of committed data too;
    what is there is at its offset, in order and unchanged, and what is missing had a reason to go;
    the producers are those that the whole history makes, also when only the log is left to tell.

A crash comes before any operation on a file; what was done before it stays, as when a process dies.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.examples import examples

from ottla.record.batch import batches, read_header
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch
from ottla.storage.log import Log
from ottla.storage.producer_replay import note_batch
from ottla.storage.producers import ProducerStates
from ottla.testing import ManualClock

from .cleanings import ABORT, COMMIT, Keyed, cleaner_of, committed_records_of, keyed_batch, records_of
from .crashes import crash_after
from .logs import FailingFiles, LogMaker, Owner, append, log_maker, truncate

DELETE_RETENTION_MS = 10_000
KEYS = st.sampled_from("abcdef")
VALUES = st.one_of(st.none(), st.text("xyz", min_size=1, max_size=30))
RECORDS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5)
PRODUCERS = st.sampled_from([-1, 1, 2])
TRANSACTIONAL = st.sampled_from([False, False, True])
OUTCOMES = st.sampled_from([ABORT, COMMIT])
Append = tuple[list[Keyed], int, bool, int, bool]
APPENDS = st.lists(st.tuples(RECORDS, PRODUCERS, TRANSACTIONAL, st.sampled_from([0, 0, 4]), st.booleans()), min_size=1, max_size=6)


@dataclass
class Producer:
    epoch: int = 0
    next_sequence: int = 0
    in_transaction: bool = False


@dataclass
class Stored:
    """A record of the model."""

    key: str
    value: str | None
    timestamp: int
    transaction: int | None  # its first offset, by which its outcome is known
    producer_id: int


@dataclass
class Model:
    records: dict[int, Stored] = field(default_factory=dict)
    batches: list[bytes] = field(default_factory=list)
    outcomes: dict[tuple[int, int], ControlRecordType] = field(default_factory=dict)  # (producer, first offset of the transaction)
    open: dict[int, int] = field(default_factory=dict)  # producer -> first offset

    def is_committed(self, record: Stored) -> bool:
        return record.transaction is None or self.outcomes.get((record.producer_id, record.transaction)) is COMMIT

    def is_aborted(self, record: Stored) -> bool:
        return record.transaction is not None and self.outcomes.get((record.producer_id, record.transaction)) is ABORT


@dataclass(frozen=True)
class Checkpoints(Owner):
    """Writes what the machine opens its log with again."""

    machine: CleaningMachine

    async def write_recovery_points(self, path: Path) -> None:
        self.machine.checkpoint()


class CleaningMachine(RuleBasedStateMachine):
    @initialize(
        segment_bytes=st.sampled_from([300, 1_000, 1 << 20]),
        index_interval_bytes=st.sampled_from([1, 200]),
        map_slots=st.sampled_from([13, 1_000]),
        appends=APPENDS,
    )
    def begin(self, segment_bytes: int, index_interval_bytes: int, map_slots: int, appends: list[Append]) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="ottla-cleaning-")
        self.clock = ManualClock()
        self.make: LogMaker = log_maker(Path(self.folder.name) / "clicks-0", self.clock, FailingFiles())
        self.settings: dict[str, Any] = {
            "cleanup_policy": ("compact", "delete"),
            "retention_ms": -1,
            "min_cleanable_dirty_ratio": 0.0,
            "delete_retention_ms": DELETE_RETENTION_MS,
            "segment_bytes": segment_bytes,
            "index_interval_bytes": index_interval_bytes,
        }
        self.map: dict[str, Any] = {  # the smaller one takes five keys: the most that a batch has, and fewer than there are
            "log_cleaner_dedupe_buffer_size": 24 * map_slots,
            "log_cleaner_io_buffer_load_factor": 0.45,
        }
        self.model = Model()
        self.producers: dict[int, Producer] = {1: Producer(), 2: Producer()}
        self.cleaned_up_to = 0  # as the checkpoint has it
        self.log_start_offset = 0
        self.committed = 0  # nothing below is ever truncated
        self.recovery_point = 0
        self.make.context = replace(self.make.context, owner=Checkpoints(self.make.deletions, self.make.failures, self))
        self.first_cleaned_ms: dict[int, int] = {}  # when a record can first have had its batch's delete horizon set
        self.log = self.open()
        self.append(appends)

    def open(self) -> Log:
        return self.make(
            recovery_point=self.recovery_point, log_start_offset=self.log_start_offset, cleaned_up_to=self.cleaned_up_to, **self.settings
        )

    def checkpoint(self) -> None:
        """What a restart would read."""
        self.recovery_point, self.cleaned_up_to = self.log.recovery_point, self.log.cleaned_up_to

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    # What clients do.

    @rule(appends=APPENDS)
    def append(self, appends: list[Append]) -> None:
        for records, producer_id, transactional, codec, rolls in appends:
            self._append_records(records, producer_id, transactional, codec)
            if rolls:
                self.log.appender.roll()

    def _append_records(self, records: list[Keyed], producer_id: int, transactional: bool, codec: int) -> None:
        offset, timestamp = self.log.log_end_offset, self.clock.time_ms()
        more: dict[str, Any] = {}
        first_offset = None
        producer = self.producers.get(producer_id)
        if producer is not None:
            transactional |= producer.in_transaction
            more = {"producer_id": producer_id, "producer_epoch": producer.epoch, "base_sequence": producer.next_sequence}
            producer.next_sequence += len(records)
            if transactional:
                more["transactional"] = True
                producer.in_transaction = True
                first_offset = self.model.open.setdefault(producer_id, offset)
        self._append(keyed_batch(offset, *records, timestamp=timestamp, codec=codec, **more))
        for index, (key, value) in enumerate(records):
            assert key is not None
            self.model.records[offset + index] = Stored(key, value, timestamp + index, first_offset, producer_id)

    @rule(producer_id=st.sampled_from([1, 2]), outcome=OUTCOMES, fences=st.booleans())
    def end_transaction(self, producer_id: int, outcome: ControlRecordType, fences: bool) -> None:
        self._end_transaction(producer_id, outcome, fences)

    def _end_transactions(self, outcomes: list[ControlRecordType]) -> None:
        """Or something would nearly always be open."""
        for producer_id, outcome in zip([1, 2], outcomes, strict=False):
            self._end_transaction(producer_id, outcome, fences=False)

    def _end_transaction(self, producer_id: int, outcome: ControlRecordType, fences: bool) -> None:
        producer = self.producers[producer_id]
        if not producer.in_transaction:
            if fences:  # an idempotent one begins a new epoch by itself
                producer.epoch += 1
                producer.next_sequence = 0
            return
        if fences:
            producer.epoch += 1
            producer.next_sequence = 0
        producer.in_transaction = False
        self.model.outcomes[producer_id, self.model.open.pop(producer_id)] = outcome
        self._append(
            build_marker_batch(
                EndTransactionMarker(outcome, 1),
                base_offset=self.log.log_end_offset,
                timestamp=self.clock.time_ms(),
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                leader_epoch=0,
            )
        )

    def _append(self, batch: bytes) -> None:
        append(self.log, batch)
        self.model.batches.append(batch)

    @rule(share=st.floats(0, 0.3), retention=st.booleans())
    def delete_records(self, share: float, retention: bool) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.log.advance_log_start_offset(start + int((end - start) * share))
        if retention:
            self.log.delete_old_segments(self.clock.time_ms())
        self.log_start_offset = self.log.log_start_offset

    # What the broker does.

    @rule(seconds=st.sampled_from([1, 5, 11]))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds=seconds)

    @rule(appends=APPENDS, outcomes=st.lists(OUTCOMES, max_size=2), uncommitted=st.sampled_from([0, 0, 1, 4]))
    def clean(self, appends: list[Append], outcomes: list[ControlRecordType], uncommitted: int) -> None:
        self.append(appends)
        self._end_transactions(outcomes)
        asyncio.run(self._prepare())
        asyncio.run(self._clean(uncommitted))

    @rule(appends=APPENDS, outcomes=st.lists(OUTCOMES, max_size=2), uncommitted=st.integers(0, 1), operations=st.integers(0, 60))
    def clean_and_crash(self, appends: list[Append], outcomes: list[ControlRecordType], uncommitted: int, operations: int) -> None:
        self.append(appends)
        self._end_transactions(outcomes)
        asyncio.run(self._prepare())
        with crash_after(operations) as countdown:
            asyncio.run(self._clean(uncommitted))
        if countdown.crashed:
            self._open_after_a_crash()

    async def _prepare(self) -> None:
        self.log.appender.roll()
        await self.log.flush()
        await self.log.flusher.flush_sealed()

    async def _clean(self, uncommitted: int) -> None:
        high_watermark = max(self.log.log_end_offset - uncommitted, self.committed)
        self.committed = high_watermark
        for offset in self.model.records:
            if offset < high_watermark:
                self.first_cleaned_ms.setdefault(offset, self.clock.time_ms())
        cleaner = cleaner_of(self.log, self.clock, high_watermark=high_watermark, **self.map)
        before = self.log.cleaned_up_to
        await cleaner.clean_filthiest()
        assert not cleaner.uncleanable
        assert self.log.cleaned_up_to >= before

    def _open_after_a_crash(self) -> None:
        self.log.files.release()
        self.log = self.open()

    @rule(crashes=st.booleans())
    def restart(self, crashes: bool) -> None:
        if crashes:
            self._open_after_a_crash()
            return
        asyncio.run(self.log.close())
        self.checkpoint()
        self.log = self.make(clean=True, log_start_offset=self.log_start_offset, cleaned_up_to=self.cleaned_up_to, **self.settings)

    @precondition(lambda self: hasattr(self, "log") and self.log.log_end_offset > max(self.committed, self.log.log_start_offset))
    @rule(back=st.integers(1, 5))
    def truncate(self, back: int) -> None:
        """A follower drops what its leader does not have: never what was committed, and always whole batches."""
        lowest = max(self.log.log_end_offset - back, self.committed, self.log.log_start_offset)
        offset = next((number for number in map(_base_offset, self.model.batches) if number >= lowest), None)
        if offset is None:
            return
        asyncio.run(truncate(self.log, offset))
        asyncio.run(self.log.checkpoint_truncation())
        model = Model()
        self.model, old = model, self.model
        model.batches = [batch for batch in old.batches if _base_offset(batch) < offset]
        model.records = {at: each for at, each in old.records.items() if at < offset}
        self.first_cleaned_ms = {at: each for at, each in self.first_cleaned_ms.items() if at < offset}
        states = _states_of(model.batches, 0)
        for producer_id, producer in self.producers.items():
            state = states.get(producer_id)
            # The producer continues where the log ends now; a fresh epoch where the log says nothing of it.
            first = -1 if state is None else state.transaction_first_offset
            producer.in_transaction = first >= 0
            if first >= 0:
                model.open[producer_id] = first
            producer.next_sequence = 0 if state is None or state.producer_epoch != producer.epoch else state.next_sequence
            if state is not None and state.producer_epoch != producer.epoch and producer.in_transaction:
                producer.epoch, producer.next_sequence = state.producer_epoch, state.next_sequence
        kept = {(record.producer_id, record.transaction) for record in model.records.values() if record.transaction is not None}
        model.outcomes = {key: outcome for key, outcome in old.outcomes.items() if key in kept and model.open.get(key[0]) != key[1]}

    # What has to hold.

    @invariant()
    def what_is_there_is_right_and_what_is_not_had_a_reason(self) -> None:
        if not hasattr(self, "log"):
            return
        log, model = self.log, self.model
        stored = records_of(log)
        offsets = [record.offset for record in stored]
        assert offsets == sorted(set(offsets))
        for found in stored:
            expected = model.records[found.offset]
            assert (found.key, found.value, found.timestamp) == (_bytes(expected.key), _bytes(expected.value), expected.timestamp)
        first = log.segments[0].base_offset
        last_committed: dict[str, int] = {}
        for offset, record in sorted(model.records.items()):
            if model.is_committed(record):
                last_committed[record.key] = offset
        there = set(offsets)
        for offset, record in model.records.items():
            if offset < first or offset in there or model.is_aborted(record):
                continue
            assert offset < self.committed, f"{offset} was not committed, and is gone"
            if last_committed[record.key] > offset:
                continue
            assert record.value is None, f"{offset} was the last of {record.key}"
            age_ms = self.clock.time_ms() - self.first_cleaned_ms[offset]
            assert age_ms >= DELETE_RETENTION_MS, f"the tombstone at {offset} went after {age_ms} ms"

    @invariant()
    def readers_of_committed_data_see_the_last_value_of_each_key(self) -> None:
        if not hasattr(self, "log"):
            return
        log, model = self.log, self.model
        unstable = log.producers.first_undecided_offset
        up_to = log.log_end_offset if unstable is None else unstable
        seen: dict[bytes | None, bytes | None] = {}
        for record in committed_records_of(log, up_to):
            assert model.is_committed(model.records[record.offset]), f"{record.offset} is not committed"
            seen[record.key] = record.value
        expected = {
            _bytes(each.key): _bytes(each.value)
            for offset, each in sorted(model.records.items())
            if log.log_start_offset <= offset < up_to and model.is_committed(each)
        }
        assert _present(seen) == _present(expected)

    @invariant()
    def the_producers_are_those_of_the_history(self) -> None:
        if not hasattr(self, "log"):
            return
        first = self.log.segments[0].base_offset
        from_history = _facts(_states_of(self.model.batches, first))
        stored: list[bytes] = []
        for segment in self.log.segments:
            data = Path(segment.path()).read_bytes()
            stored += [data[position : position + header.size] for position, header in batches(data)]
        assert _facts(_states_of(stored, first)) == from_history
        # Where a transaction began that has lost its beginning, only memory knows.
        live = {producer_id: (epoch, sequence, begin >= 0) for producer_id, (epoch, sequence, begin) in _facts(self.log.producers).items()}
        headers = [read_header(batch) for batch in self.model.batches]
        written = {header.producer_id for header in headers if header.base_offset >= first and not header.is_control}
        for producer_id, (epoch, sequence, begin) in from_history.items():
            if producer_id not in written and live[producer_id][0] == epoch:
                # Retention has left a marker and nothing else: of the sequence before it only memory knows.
                sequence = live[producer_id][1]
            assert live[producer_id] == (epoch, sequence, begin >= 0)

    @invariant()
    def the_log_ends_where_it_did(self) -> None:
        if hasattr(self, "log"):
            ends = [header.last_offset + 1 for batch in self.model.batches[-1:] for _, header in batches(batch)]
            assert self.log.log_end_offset == max([*ends, 0])
            assert self.log.log_start_offset == self.log_start_offset


def _base_offset(batch: bytes) -> int:
    return read_header(batch).base_offset


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _present(values: dict[bytes | None, bytes | None]) -> dict[bytes | None, bytes | None]:
    return {key: value for key, value in values.items() if value is not None}


def _states_of(history: list[bytes], first: int) -> ProducerStates:
    states = ProducerStates()
    for batch in history:
        header = read_header(batch)
        if header.producer_id >= 0 and header.base_offset >= first:
            note_batch(states, header, batch)
    return states


def _facts(states: ProducerStates) -> dict[int, tuple[int, int, int]]:
    return {state.producer_id: (state.producer_epoch, state.next_sequence, state.transaction_first_offset) for state in states}


TestCleaningMachine = CleaningMachine.TestCase
TestCleaningMachine.settings = settings(
    max_examples=examples(12),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

"""How far the counter has read: nothing is known by what it has yet to hear of. Method: a fetcher that hands out what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.audit_counter.records import MINUTE, NOW, START, appended, produced, read

from ottla.audit_counter import service
from ottla.audit_counter.service import AuditCounter, CounterSettings
from ottla.audit_counter.store import Store
from ottla.audit_counter.verdicts import EdgeVerdict
from ottla.clock import SystemClock
from ottla.model import TopicPartition
from ottla.protocol.list_offsets_client import ListedOffset
from ottla.record.audit_records import TOPIC, Verdict, encode
from ottla.record.records import Record, build_batch
from ottla.wire.fetching import Fetched

PARTITION = TopicPartition(TOPIC, 0)


class Reading:
    """A fetcher of one partition, and a cluster in which it ends where the test says.

    Attributes:
        polls: what it answers, with where it has come by then and the end that it was told; then it waits for ever.
    """

    unread_seconds = 0.0

    def __init__(self, end: int, *polls: tuple[list[Fetched], int, int]) -> None:
        self.end = end
        self.polls = list(polls)
        self.assigned = {PARTITION: -2}
        self.told = -1
        self.partitions = {0: None}
        self.is_through = asyncio.Event()

    async def poll(self, timeout_seconds: float) -> list[Fetched]:
        if not self.polls:
            self.is_through.set()
            await asyncio.Event().wait()
        fetched, self.assigned[PARTITION], self.told = self.polls.pop(0)
        return fetched

    def watermarks(self, partition: TopicPartition) -> tuple[int, int, int]:
        return 0, self.told, self.told

    async def topic(self, name: str) -> Reading:
        return self


async def after_reading(
    store: Store, reading: Reading, look: Callable[[AuditCounter], Any], during: Callable[[], None] = lambda: None
) -> Any:
    """What is seen when all polls were answered; something happens while what came is taken in."""

    async def in_store(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        if function == store.apply:
            during()
        return function(*arguments, **keywords)

    async def ends(*_: object, **__: object) -> dict[TopicPartition, ListedOffset]:
        return {PARTITION: ListedOffset(0, reading.end)}

    counter = AuditCounter(cast(Any, reading), store, CounterSettings(), SystemClock(), in_store, in_store)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(service, "list_offsets", ends)
        patched.setattr(service, "_READ_SECONDS", 0.01)
        task = asyncio.ensure_future(counter._read(cast(Any, reading)))
        await asyncio.wait([task, asyncio.ensure_future(reading.is_through.wait())], return_when=asyncio.FIRST_COMPLETED)
        try:
            found = look(counter)
            return await found if asyncio.iscoroutine(found) else found
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def some(next_offset: int) -> list[Fetched]:
    return [Fetched(PARTITION, 0, next_offset, memoryview(b""), next_offset, next_offset, 0)]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    store = Store(tmp_path / "audit.db", MINUTE, 168 * 3_600_000)
    store.next_offsets("topic-1")
    yield store
    store.close()


async def test_a_counter_that_has_heard_of_no_end_has_not_come_to_it(store: Store) -> None:
    assert not await after_reading(store, Reading(10, ([], -2, -1)), lambda counter: counter.is_caught_up)


async def test_what_was_read_ahead_is_still_to_be_read(store: Store) -> None:
    reading = Reading(10, (some(5), 5, 10))

    def more_comes() -> None:
        reading.assigned[PARTITION] = 10

    look = lambda counter: (counter.progress.lag, counter.is_caught_up)  # noqa: E731
    assert await after_reading(store, reading, look, more_comes) == (5, False)


async def test_what_was_deleted_before_it_was_read_is_not_waited_for(store: Store) -> None:
    """A partition of which retention has left nothing begins where it ends."""
    assert await after_reading(store, Reading(10, ([], 10, 10)), lambda counter: counter.has_read(5.0))


async def test_a_reading_that_takes_too_long_says_so(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """A TimeoutError of asyncio has no text, and as any exception it counts as true."""
    caplog.set_level("INFO")
    assert not await after_reading(store, Reading(10, ([], 9, 10)), lambda counter: counter.has_read(0.0))
    assert "__audit was not read to its end within 0.0 s: timed out" in caplog.text


@pytest.mark.parametrize(("position", "verdict", "code"), [(10, Verdict.COMPLETE, 0), (9, Verdict.PENDING, 3)])
async def test_nothing_is_complete_by_a_counter_that_is_behind(store: Store, position: int, verdict: Verdict, code: int) -> None:
    """What it knows is all there, and a window that it has not heard of may lack messages."""
    store.apply(read(produced(0, [0]), appended(0, [0])), {0: 2}, NOW)
    store.put_verdicts("clicks", START, [EdgeVerdict("producer", "broker", Verdict.COMPLETE)])
    store.judged(store.unjudged())
    verify = lambda counter: counter.verify("clicks", 0, 1 << 60, (), 0.0)  # noqa: E731
    found = await after_reading(store, Reading(10, ([], position, 10)), verify)
    assert (found.verdict, found.exit_code, found.windows) == (verdict, code, 1)


async def test_what_was_written_in_the_place_of_a_tail_that_was_cut_off_is_read(store: Store) -> None:
    """As after an election of a broker that was not in sync: what was said until the log was as long as before was skipped."""
    store.apply(read(produced(0, [0])), {0: 3}, NOW)
    said = memoryview(build_batch([Record(0, NOW, b"clicks", encode(appended(0, [0])))]))
    reading = Reading(1, ([Fetched(PARTITION, 0, 1, said, 1, 1, 0)], 1, 1))
    tiers = lambda counter: {session.tier for session in store.sessions()}  # noqa: E731
    assert await after_reading(store, reading, tiers) == {"producer", "broker"}
    assert store.next_offsets("topic-1") == {0: 1}

"""How far a reader is in what a fetch brought, and that both ways of decoding give the same messages."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.forks import said_in_child

from ottla.client import message_stream
from ottla.client.errors import ConsumerTimeout
from ottla.client.message_stream import AsyncMessageStream, Chunk, Feed, MessageStream
from ottla.client.messages import Message, MessageSet, read_stretch, stretches_of
from ottla.errors import InvalidRecord
from ottla.lifecycle import LoopThread
from ottla.model import TopicPartition
from ottla.record.batch import HEADER_SIZE
from ottla.record.columnar import read_columns
from ottla.record.records import Record, build_batch
from ottla.wire.cluster import Cluster
from ottla.wire.fetching import Fetched, FetchSettings
from ottla.wire.groups import CommittedOffset

CLICKS = TopicPartition("clicks", 3)
BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=2).map(tuple)
RECORDS = st.lists(st.builds(Record, st.just(0), st.integers(0, 2**40), BYTES, BYTES, HEADERS), min_size=1, max_size=80)


def batches(*sizes: int, value_size: int = 10) -> memoryview:
    """Batches of so many records each, end to end."""
    found, offset = b"", 0
    for size in sizes:
        found += build_batch([Record(offset + index, 1_000, None, b"%0*d" % (value_size, offset + index)) for index in range(size)])
        offset += size
    return memoryview(found)


def message_set(records: memoryview, offset: int, next_offset: int) -> MessageSet:
    return MessageSet(CLICKS, offset, next_offset, records, (), next_offset, 0)


@given(RECORDS, st.integers(0, 40), st.sampled_from([0, 1, 4]))
def test_columns_and_records_are_the_same_messages(records: list[Record], start: int, codec: int) -> None:
    numbered = [replace(record, offset=index) for index, record in enumerate(records)]
    view = memoryview(build_batch(numbered, codec=codec))
    found = [stretch for columns in read_columns(view, start_offset=start) for stretch in stretches_of(columns, CLICKS)]
    assert [message for stretch in found for message in stretch.messages] == list(read_stretch(view, CLICKS, start).messages)


@pytest.mark.parametrize("sizes", [(3, 4), (150, 100, 50)], ids=["records", "columns"])
def test_a_message_is_processed_when_the_next_one_is_asked_for_or_when_it_is_marked(sizes: tuple[int, ...]) -> None:
    count = sum(sizes)
    chunk = Chunk(message_set(batches(*sizes), 1, count))
    seen: list[int] = []
    while (messages := chunk.advance()) is not None:
        for message in messages:
            assert chunk.processed_offset == max(1, message.offset)
            seen.append(message.offset)
            if message.offset % 5 == 0:
                chunk.mark_processed()
                assert chunk.processed_offset == message.offset + 1
    assert seen == list(range(1, count))


def test_nothing_is_handed_out_of_what_is_revoked() -> None:
    chunk = Chunk(message_set(batches(100, 100, 100), 0, 300))
    messages = chunk.advance()
    assert messages is not None
    assert [next(messages).offset for _ in range(3)] == [0, 1, 2]
    assert chunk.processed_offset == 2
    chunk.revoke()
    assert list(messages) == []
    assert chunk.advance() is None


def test_a_chunk_may_be_revoked_by_another_thread_at_any_time() -> None:
    for _ in range(20):
        chunk = Chunk(message_set(batches(3_000), 0, 3_000))
        revoking = threading.Thread(target=chunk.revoke)
        seen = 0
        while (messages := chunk.advance()) is not None:
            for message in messages:
                assert message.offset == seen
                seen += 1
                if seen == 100:
                    revoking.start()
        revoking.join()
        assert 100 <= seen <= 3_000


@pytest.mark.parametrize("sizes", [(2, 2), (300, 2)], ids=["records", "columns"])
def test_what_cannot_be_decoded_is_said_each_time_and_not_skipped(sizes: tuple[int, int]) -> None:
    """The checksum was right, so it was written so. What is before it is handed out once."""
    first, second = bytes(batches(sizes[0])), bytearray(batches(1))
    second[HEADER_SIZE] = 0x7F  # its length goes beyond the batch
    second[:8] = sizes[0].to_bytes(8, "big")
    chunk = Chunk(message_set(memoryview(first + bytes(second)), 0, sizes[0] + 1))
    seen: list[int] = []
    for _ in range(3):
        with pytest.raises(InvalidRecord):
            while (messages := chunk.advance()) is not None:
                seen += [message.offset for message in messages]
    assert seen == list(range(sizes[0]))
    assert chunk.processed_offset == sizes[0]


def test_a_forked_child_gets_nothing_of_what_its_parent_has_fetched() -> None:
    """It would be processed in both."""
    with LoopThread("stream") as thread:

        async def made() -> Feed:
            return Feed(Cluster("127.0.0.1:1"), FetchSettings(), 0)

        feed = thread.call(made(), 60)
        feed._ready += [Chunk(message_set(batches(3), 0, 3)), Chunk(message_set(batches(3), 0, 3))]
        stream = MessageStream(feed, -1, thread, time.monotonic)
        messages = iter(stream)
        assert next(messages).offset == 0
        for read in (lambda: next(messages), lambda: next(iter(stream))):
            assert said_in_child(read).startswith("LoopThreadUnusable")
        assert next(messages).offset == 1


class _Interrupted:
    """A thread's loop whose first answer comes as the caller is interrupted."""

    is_here = True

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self._is_first = True

    def call(self, coroutine: Any, timeout_seconds: float) -> Any:
        found = self._thread.call(coroutine, timeout_seconds)
        if self._is_first:
            self._is_first = False
            raise KeyboardInterrupt
        return found


def test_what_came_as_its_reader_was_interrupted_is_given_to_the_next_one() -> None:
    """As in a notebook, whose cell is interrupted and run again: it would count as processed, and be committed."""
    with LoopThread("stream") as thread:

        async def made() -> Feed:
            return Feed(Cluster("127.0.0.1:1"), FetchSettings(), 0)

        feed = thread.call(made(), 60)
        feed._offsets[CLICKS] = CommittedOffset(0)
        fetched = Fetched(CLICKS, 0, 3, batches(3), 3, 3, 0)
        stream = MessageStream(feed, 2_000, _Interrupted(thread), time.monotonic)  # type: ignore[arg-type]
        thread.call(_deliver(feed, fetched), 60)
        with pytest.raises(KeyboardInterrupt):
            next(iter(stream))
        assert next(iter(stream)).offset == 0
        assert feed.offset(CLICKS) == CommittedOffset(0)


def feed_of(thread: LoopThread, *arrived: Fetched) -> Feed:
    """One for which that has arrived."""

    async def made() -> Feed:
        feed = Feed(Cluster("127.0.0.1:1"), FetchSettings(), 0)
        feed._offsets[CLICKS] = CommittedOffset(0)
        for fetched in arrived:
            feed._fetcher.deliver(fetched)
        return feed

    return thread.call(made(), 60)


async def first_of(stream: AsyncMessageStream) -> Message:
    return await anext(aiter(stream))


def test_a_stream_that_does_not_wait_gives_what_is_there() -> None:
    """As Kafka 0.8's `consumer.timeout.ms=0`, which polls its queue."""
    fetched = Fetched(CLICKS, 0, 3, batches(3), 3, 3, 0)
    with LoopThread("stream") as thread:
        assert next(iter(MessageStream(feed_of(thread, fetched), 0, thread, time.monotonic))).offset == 0
        assert thread.call(first_of(AsyncMessageStream(feed_of(thread, fetched), 0)), 60).offset == 0


def test_a_stream_times_out_though_something_comes_of_which_no_message_is_to_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As markers and what was aborted: for as long as some came, no one heard that there was no message."""
    left = 100

    async def nothing_to_be_seen(feed: Feed, timeout_seconds: float) -> Chunk:
        nonlocal left
        left -= 1
        assert left, "it does not time out"
        await asyncio.sleep(0.01)
        return Chunk(message_set(memoryview(b""), 0, 1))

    monkeypatch.setattr(Feed, "next_chunk", nothing_to_be_seen)
    with LoopThread("stream") as thread:
        with pytest.raises(ConsumerTimeout):
            next(iter(MessageStream(feed_of(thread), 50, thread, time.monotonic)))
        with pytest.raises(ConsumerTimeout):
            thread.call(first_of(AsyncMessageStream(feed_of(thread), 50)), 60)


def test_an_iterator_that_has_timed_out_is_read_on() -> None:
    """Kafka 0.8's ConsumerIterator resets its state before it throws: that of a stream seemed to be at its end, as after a shutdown."""
    with LoopThread("stream") as thread:
        feed = feed_of(thread)
        messages = iter(MessageStream(feed, 50, thread, time.monotonic))
        for _ in range(2):
            with pytest.raises(ConsumerTimeout):
                next(messages)
        thread.call(_deliver(feed, Fetched(CLICKS, 0, 3, batches(3), 3, 3, 0)), 60)
        assert [next(messages).offset for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ConsumerTimeout):
            next(messages)
        thread.call(feed.close(), 60)
        assert list(messages) == []


def test_a_stream_whose_process_stood_still_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that wakes before the loop does, as after a SIGSTOP, has waited for as long as the process stood."""
    monkeypatch.setattr(message_stream, "_CALL_SECONDS", 0.1)
    with LoopThread("stream") as thread:
        goes_on = threading.Event()

        async def made() -> Feed:
            feed = Feed(Cluster("127.0.0.1:1"), FetchSettings(), 0)
            feed._offsets[CLICKS] = CommittedOffset(0)
            feed._fetcher.deliver(Fetched(CLICKS, 0, 3, batches(3), 3, 3, 0))
            return feed

        stream = MessageStream(thread.call(made(), 60), -1, thread, time.monotonic)
        thread._loop.call_soon_threadsafe(goes_on.wait, 60)
        threading.Timer(0.5, goes_on.set).start()
        assert [message.offset for message in islice(stream, 3)] == [0, 1, 2]


async def _deliver(feed: Feed, fetched: Fetched) -> None:
    feed._fetcher.deliver(fetched)

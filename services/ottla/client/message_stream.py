"""A stream of messages: what a thread or a task of a consumer reads, whatever partitions it has at the time.

    for message in stream: ...          async for message in stream: ...

A stream has a `Feed`, which lives on the connector's loop: a fetch loop, the partitions that it reads, and how far they are processed.
Chunks go from there to the reader, which decodes them. A message counts as processed when the one behind it is asked for, so that what
a reader holds when it dies is read again.

A chunk whose partition is given up ends at the next message. One reader at a time; the feed belongs to the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from operator import length_hint
from threading import Lock
from typing import Final
from weakref import WeakSet

from ottla.client.errors import ConsumerTimeout
from ottla.client.messages import Message, MessageSet, Stretch
from ottla.errors import OttlaError, UnknownTopicId
from ottla.lifecycle import LoopThread, LoopThreadUnusable
from ottla.model import TopicPartition
from ottla.wire.cluster import Cluster
from ottla.wire.fetching import Fetched, Fetcher, FetchFailed, FetchSettings
from ottla.wire.groups import CommittedOffset
from ottla.wire.offsets import EARLIEST

log: Final = logging.getLogger(__name__)

_POLL_SECONDS: Final = 1.0
_CALL_SECONDS: Final = 30.0


class Chunk:
    """What one answer had of one partition, on its way through a reader, stretch by stretch.

    The reader's thread advances it, and the loop asks how far it is. That is seen from the iterator of the stretch's offsets, so that
    nothing is to be done for each message; and a list that is emptied ends the iterator at once.
    """

    __slots__ = ("_found", "_marked", "_state", "_stretches", "is_revoked", "last_epoch", "next_offset", "partition")

    def __init__(self, found: MessageSet) -> None:
        self.partition = found.partition
        self.next_offset = found.next_offset
        self.last_epoch = found.last_epoch
        self.is_revoked = False
        self._found = found
        self._stretches: Iterator[Stretch] | None = None
        # What lies before the stretch is processed up to that offset; the stretch, whose messages the reader has.
        self._state: tuple[int, Stretch] = (found.offset, _nothing())
        self._marked: tuple[Stretch, int] = (self._state[1], 0)

    @property
    def is_begun(self) -> bool:
        """Whether its reader has it."""
        return self._stretches is not None

    @property
    def unread(self) -> Iterator[Message]:
        """What is left of the current stretch."""
        return self._state[1].messages

    def advance(self) -> Iterator[Message] | None:
        """The next stretch, and all before it is processed; None at the end.

        Raises:
            CorruptMessage, InvalidRecord, UnsupportedCompressionType: it cannot be decoded. The next call says so again.
        """
        if self.is_revoked:
            return None
        if self._stretches is None:
            self._stretches = self._found.stretches()
        processed, stretch = self._state
        if stretch.offsets:
            processed = stretch.offsets[-1] + 1
        try:
            following = next(self._stretches, None)
        except OttlaError:
            self._found = replace(self._found, offset=processed)
            self._state, self._stretches = (processed, _nothing()), None
            raise
        if following is None:
            return None
        self._state = (processed, following)
        if self.is_revoked:  # meanwhile, by the loop
            following.offsets.clear()
        return following.messages

    def _handed(self) -> tuple[int, Stretch, int]:
        processed, stretch = self._state
        return processed, stretch, len(stretch.offsets) - length_hint(stretch.unread)

    def mark_processed(self) -> None:
        """All that was handed out is processed, the message that the reader holds too."""
        _, stretch, handed = self._handed()
        self._marked = (stretch, handed)

    @property
    def processed_offset(self) -> int:
        """Behind the last message that is processed: the one before the last that was handed out, or what was marked."""
        processed, stretch, handed = self._handed()
        marked, count = self._marked
        count = max(handed - 1, count if marked is stretch else 0)
        return stretch.offsets[count - 1] + 1 if count > 0 else processed

    @property
    def has_unmarked(self) -> bool:
        """Whether its reader has a message that no one has marked as processed."""
        _, stretch, handed = self._handed()
        marked, count = self._marked
        return handed > (count if marked is stretch else 0)

    def revoke(self) -> None:
        """Nothing more of it is handed out."""
        self.is_revoked = True
        self._state[1].offsets.clear()


def _nothing() -> Stretch:
    return Stretch([], iter(()), iter(()))


class Feed:
    """The loop's side of a stream, and what of it has been fetched and waits for the reader: under the lock, as the reader takes from it.

    Args:
        out_of_range: where to go on when a log has not the offset.
    """

    def __init__(self, cluster: Cluster, settings: FetchSettings, out_of_range: int) -> None:
        self._out_of_range = out_of_range
        self._moved: set[TopicPartition] = set()  # their logs say where they are read from
        self._fetcher: Final = Fetcher(cluster, settings, self._move)
        self._lock = Lock()
        self._ready: deque[Chunk] = deque()
        self._current: Chunk | None = None
        self._lost: Chunk | None = None  # given up while its reader had a message that was not marked, and has it still
        self._offsets: dict[TopicPartition, CommittedOffset] = {}  # up to which each partition is processed, but for the current chunk
        self._is_closed = False

    def assign(self, partition: TopicPartition, offset: int, last_epoch: int = -1) -> None:
        """Reads the partition from there on; what is known of it so far is dropped. The epoch is that of the record before it, if known."""
        lost = self._lost
        self.revoke(partition)
        self._lost = lost  # what is read elsewhere is not given up
        self._offsets[partition] = CommittedOffset(offset, last_epoch)
        if offset < 0:
            self._moved.add(partition)
        self._fetcher.assign(partition, offset, last_epoch=last_epoch)

    def revoke(self, partition: TopicPartition) -> CommittedOffset | None:
        """Hands out nothing of the partition any more, and gives the offset up to which it is processed."""
        self._fetcher.unassign(partition)
        self._moved.discard(partition)
        with self._lock:
            self._ready = deque(chunk for chunk in self._ready if chunk.partition != partition)
            offset = self._offset(partition)
            if self._current is not None and self._current.partition == partition:
                self._lost = self._current if self._current.has_unmarked else None
                self._current.revoke()
                self._current = None  # a partition that is assigned again does not stand where its reader was
            self._offsets.pop(partition, None)
        return offset

    def offset(self, partition: TopicPartition) -> CommittedOffset | None:
        """Up to where the partition is processed. None if the stream does not read it."""
        with self._lock:
            return self._offset(partition)

    def _offset(self, partition: TopicPartition) -> CommittedOffset | None:
        known, current = self._offsets.get(partition), self._current
        if known is not None and current is not None and current.partition == partition:
            processed = current.processed_offset
            return known if processed == known.offset else CommittedOffset(processed, current.last_epoch)
        return known

    def mark_processed(self) -> Chunk | None:
        """All that was handed out is processed, the message that the reader holds too. Gives what that is of, whether given up or not."""
        with self._lock:
            if self._current is not None:
                self._current.mark_processed()
            return self._current or self._lost

    def take(self) -> Chunk | None:
        """The next one, if one has been fetched; the former, if it was read, is processed by that. The reader's thread may call this."""
        with self._lock:
            former, self._current, self._lost = self._current, None, None
            if former is not None and not former.is_revoked:
                if not former.is_begun:  # who was to have it was interrupted
                    self._current = former
                    return former
                self._offsets[former.partition] = CommittedOffset(former.next_offset, former.last_epoch)
            if self._ready and not self._is_closed:
                self._current = self._ready.popleft()
            return self._current

    async def next_chunk(self, timeout_seconds: float) -> Chunk | None:
        """The next one; the former is processed by that. None after the timeout and when the stream has ended.

        Raises:
            FetchFailed: a partition cannot be read on; the others can.
        """
        if (taken := self.take()) is not None or self._is_closed:
            return taken
        found: list[Fetched] = []
        try:
            found = await self._fetcher.poll(timeout_seconds)
        except FetchFailed as failed:
            if not isinstance(failed.__cause__, UnknownTopicId):
                raise
            log.warning("%s; continuing at its beginning", failed)  # what was read and committed is of a topic that has gone
            self.assign(failed.partition, EARLIEST)
        else:
            if self._moved:
                self._follow({fetched.partition: fetched.offset for fetched in reversed(found)} if found else self._fetcher.assigned)
        with self._lock:
            self._ready += [Chunk(MessageSet.of(fetched)) for fetched in found if fetched.partition in self._offsets]
        return self.take()

    def _move(self, partition: TopicPartition, offset: int) -> int:
        self._moved.add(partition)
        return self._out_of_range

    def _follow(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Partitions that were moved are processed up to where they are read from now, as their reader has had all before.

        If the former offset were committed, the next owner would be moved too, and "largest" would skip what came meanwhile.
        """
        with self._lock:
            for partition in self._moved & offsets.keys():
                if 0 <= offsets[partition] != self._offsets[partition].offset:
                    self._offsets[partition] = CommittedOffset(offsets[partition])

    @property
    def is_closed(self) -> bool:
        """Whether the stream has ended."""
        return self._is_closed

    async def close(self) -> None:
        """Ends the stream: its reader gets nothing more."""
        with self._lock:
            self._is_closed = True
            if self._current is not None:
                self._current.revoke()
        await self._fetcher.close()


class AsyncMessageStream:
    """Messages of the partitions that the stream owns, in the order of each partition. It ends with `shutdown`.

    Raises while it is read; then it is read on by another `async for`, as a generator that has raised has ended:
        ConsumerTimeout: after `consumer.timeout.ms`.
        FetchFailed: a partition cannot be read on; the others can.
    """

    def __init__(self, feed: Feed, timeout_ms: int) -> None:
        self.feed: Final = feed
        self._timeout_ms = timeout_ms
        self._chunk: Chunk | None = None

    async def __aiter__(self) -> AsyncIterator[Message]:
        loop = asyncio.get_running_loop()
        since: float | None = None  # when the next message was asked for
        while True:
            if self._chunk is not None:
                for message in self._chunk.unread:
                    yield message
                while (messages := self._chunk.advance()) is not None:
                    for message in messages:
                        yield message
                    since = None
            found = None
            while found is None:
                now = loop.time()
                since = now if since is None else since
                found = await self.feed.next_chunk(_wait_seconds(self._timeout_ms, since, now))
                if found is None and self.feed.is_closed:
                    return
            self._chunk = found


# Those of this process, for its forked children: to ask at each message whether this is one costs too much.
_streams: Final[WeakSet[MessageStream]] = WeakSet()


def _forked() -> None:
    for stream in _streams:
        stream.leave()


os.register_at_fork(after_in_child=_forked)


class MessageStream:
    """`AsyncMessageStream` for a thread of its own. Also the same iterator can be read on after an error."""

    def __init__(self, feed: Feed, timeout_ms: int, thread: LoopThread, monotonic: Callable[[], float]) -> None:
        self._feed = feed
        self._timeout_ms = timeout_ms
        self._thread = thread
        self._monotonic = monotonic
        self._chunk: Chunk | None = None
        _streams.add(self)

    def leave(self) -> None:
        """This is a forked child, which gets nothing of what its parent has fetched."""
        if self._chunk is not None:
            self._chunk.revoke()

    def __iter__(self) -> Iterator[Message]:
        # Not a generator: each message would pass through it.
        return chain.from_iterable(self._iterators())

    def _iterators(self) -> Iterator[Iterator[Message]]:
        while True:
            try:
                yield from self._iterators_until_error()
            except OttlaError as error:
                yield _raised(error)
            else:
                return

    def _iterators_until_error(self) -> Iterator[Iterator[Message]]:
        since: float | None = None  # when the next message was asked for
        while True:
            if self._chunk is not None:
                yield self._chunk.unread
                while (messages := self._chunk.advance()) is not None:
                    yield messages
                    since = None
            found = self._feed.take() if self._thread.is_here else None  # most often there is one, and the loop is not asked
            while found is None:
                if self._feed.is_closed:
                    return
                now = self._monotonic()
                since = now if since is None else since
                seconds = _wait_seconds(self._timeout_ms, since, now)
                try:
                    found = self._thread.call(self._feed.next_chunk(seconds), _CALL_SECONDS)
                except TimeoutError:
                    continue  # the process stood still, and its loop has not come to it yet
                except LoopThreadUnusable:
                    if self._feed.is_closed:  # by another thread, meanwhile
                        return
                    raise
            self._chunk = found


def _raised(error: OttlaError) -> Iterator[Message]:
    """Raises it once, as the next message. A source of `chain` that raises ends it, and a stream can be read on."""
    raise error
    yield


def _wait_seconds(timeout_ms: int, since: float, now: float) -> float:
    """How long to wait for a chunk at once. Raises ConsumerTimeout, but not before the first wait."""
    if timeout_ms < 0:
        return _POLL_SECONDS
    left = since + timeout_ms / 1000 - now
    if left <= 0 and now > since:
        raise ConsumerTimeout(f"no message came within {timeout_ms} ms")
    return min(max(left, 0.0), _POLL_SECONDS)

"""Reads `_schemas` into the state, and writes to it while this node leads.

A write is decided against the state, written, and answered after the replay has taken it: so what is answered is what every node will say.
The replay takes an acknowledged batch as it was written where it is what comes next: all before it was replayed, so no other leader has
begun, and every reader of the topic finds it there. Anything else it reads, and it looks at the topic now and then in any case.
Registrations that come while others are being written are decided together and written as one batch; those that were answered together
mostly come again, so the next batch waits a moment for as many. Anything else is decided alone, when nothing is under way. Before its
first write a leader raises the epoch of the producer, which makes the partition refuse the former one, and writes a NOOP: what stood
before that is complete once the NOOP comes back.

A write whose outcome is not known is answered with an error and may have taken place. The next one raises the epoch again first, so that
what was under way has either arrived before the NOOP or never will.

A refusal is answered once the replay has reached the end of the topic: another node may lead by then, and may have written what is missed.

A topic that was deleted, made again or cut is an error in the log, and nothing is written any more: reads go on from memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from ottla.errors import ApiError, InvalidProducerEpoch, MessageTooLarge, OttlaError, ProducerFenced, RequestTimedOut
from ottla.metrics.cells import Histogram
from ottla.schema_registry.state import decisions
from ottla.schema_registry.state.decisions import Batch, Draft, Registered, Registration, Stale
from ottla.schema_registry.state.drafts import Drafts
from ottla.schema_registry.state.errors import LeaderUnknown, RegistryError, SchemaTooLarge, StoreFailed, StoreTimedOut
from ottla.schema_registry.state.records import Change, Record
from ottla.schema_registry.state.replay import EPOCH_HEADER, State
from ottla.schema_registry.state.schemas import Version

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

BATCH_RECORDS: Final = 1_000
BATCH_BYTES: Final = 512 * 1024
# A registration that finds its subject changed each time; every one of those changes was someone's success.
ATTEMPTS: Final = 1_000
NOOP_SECONDS: Final = 3600.0
WAITING_WRITES: Final = 10_000
# For as long a batch waits for those who were just answered; a batch takes as long by itself.
GATHER_SECONDS: Final = 0.002
_PAUSE_SECONDS: Final = 0.5
# Between two looks of a leader at a topic in which records come: they are its own, and where others write it is seen by the next batch.
_LEADER_PAUSE_SECONDS: Final = 0.2
# So many records are applied in one stretch before others on the loop get their turn.
_STRETCH: Final = 500


class TopicChanged(OttlaError):
    """The topic is not the one that was read: it was deleted, made again, or cut."""


class Fenced(OttlaError):
    """Another node has led since."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record as it stands in the topic."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch gave: records, and the offset to go on from, which gaps and control records move too."""

    records: Sequence[TopicRecord]
    next_offset: int


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch of records stands: the first one's offset, and the timestamp of all."""

    offset: int
    timestamp_ms: int


class Topic(Protocol):
    """`_schemas`: one partition."""

    async def fetch(self, offset: int) -> Fetched:
        """Records from an offset on; waits a moment for some.

        Raises:
            TopicChanged: it is another topic, or it ends before the offset.
            ApiError, OSError: not now.
        """
        ...

    async def begin(self) -> int:
        """Raises the epoch of the producer: what a former one has under way is refused from now on.

        Returns:
            The offset after the last record that any former one has written.
        """
        ...

    async def end(self) -> int:
        """The offset after the last record that was acknowledged.

        Raises:
            ApiError, OSError: not now.
        """
        ...

    async def append(self, records: Sequence[Record], header: tuple[str, bytes]) -> Appended:
        """Writes records as one batch, which every reader finds there once it is acknowledged.

        Args:
            header: which each of them gets besides its own.

        Raises:
            ProducerFenced, InvalidProducerEpoch: another one has begun.
            ApiError, OSError: it was not written, or that is not known.
        """
        ...


@dataclass(slots=True)
class _Write:
    """A write that waits for its turn: a draft, or a decision."""

    done: asyncio.Future[Any]
    draft: Draft | None = None
    decide: Callable[[State], tuple[Any, Sequence[Change]]] | None = None


class Store:
    """The state, fed by the topic.

    Args:
        topic: which.
        drafts: reads schemas.
        state: what a snapshot had, or an empty one.
        timeout_seconds: for a write, and for records that are waited for.
    """

    def __init__(self, topic: Topic, drafts: Drafts, state: State, timeout_seconds: float) -> None:
        self.state = state
        self.drafts = drafts
        self.fault = ""  # why nothing is written any more
        self.write_seconds = Histogram()
        self.written_count = self.batch_count = 0
        self._topic = topic
        self._timeout_seconds = timeout_seconds
        self._waiters: dict[asyncio.Future[None], int] = {}  # with the offset
        self._hurried = 0  # of these, who wait for records that may be in the topic already
        self._has_to_hurry = asyncio.Event()
        self._queue: deque[_Write] = deque()
        self._queued = asyncio.Event()
        self._wanted = 1  # so many writes in the queue wake the writer
        self._epoch: int | None = None
        self._has_begun = False
        self._fenced: Callable[[str], None] = lambda _: None
        self._replaying: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self.has_gap = False  # whether records were compacted away before they were read

    # Reading.

    def start(self) -> None:
        """Replays from now on."""
        self._replaying = asyncio.ensure_future(self._replay())

    async def close(self) -> None:
        """Ends reading and writing."""
        await self.abdicate("the node stops")
        if self._replaying is not None:
            self._replaying.cancel()
            await asyncio.wait([self._replaying])
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(StoreFailed("the node stops"))
        self._waiters.clear()

    async def wait_for(self, offset: int, timeout_seconds: float | None = None) -> None:
        """Waits until all records before an offset are replayed.

        Raises:
            StoreTimedOut: they are not, in time.
        """
        if self.state.next_offset >= offset:
            return
        self._hurried += 1
        self._has_to_hurry.set()
        try:
            async with asyncio.timeout(timeout_seconds or self._timeout_seconds):
                await self.wait_for_ever(offset)
        except TimeoutError:
            if self.state.next_offset >= offset:
                return  # they came as the time ended
            raise StoreTimedOut(
                f"offset {offset} is not replayed after {timeout_seconds or self._timeout_seconds:g} s, only {self.state.next_offset}"
            ) from None
        finally:
            self._hurried -= 1

    async def wait_for_ever(self, offset: int) -> None:
        """As `wait_for`, for as long as it takes, and without haste."""
        if self.state.next_offset >= offset:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = offset
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)

    async def _replay(self) -> None:
        complaint = ""
        while True:
            try:
                fetched = await self._topic.fetch(self.state.next_offset)
                if complaint:
                    log.info("reading the topic again")
                    complaint = ""
                await self._apply(fetched)
                if fetched.records and self.is_writing:
                    await self._pause()
            except TopicChanged as error:
                self._break(str(error))
                return
            except (ApiError, OSError) as error:
                if complaint != repr(error):
                    complaint = repr(error)
                    log.warning("the topic cannot be read from offset %d, trying again: %s", self.state.next_offset, complaint)
                await asyncio.sleep(_PAUSE_SECONDS)
            except Exception as error:  # where the task ends
                log.exception("the replay ends")
                self._break(repr(error))
                return

    async def _pause(self) -> None:
        """Reads nothing for a moment, unless someone waits for it."""
        if self._hurried:
            return
        self._has_to_hurry.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEADER_PAUSE_SECONDS):
                await self._has_to_hurry.wait()

    async def _apply(self, fetched: Fetched) -> None:
        state = self.state
        for index, record in enumerate(fetched.records):
            if record.offset < state.next_offset:
                continue
            self.has_gap |= record.offset != state.next_offset
            state.apply(record.offset, record.timestamp_ms, record.key, record.value, record.headers)
            if index % _STRETCH == _STRETCH - 1:
                self._wake()
                await asyncio.sleep(0)
        self.has_gap |= fetched.next_offset > state.next_offset
        state.next_offset = max(state.next_offset, fetched.next_offset)
        self._wake()

    def _take(self, records: Sequence[Record], header: tuple[str, bytes], appended: Appended) -> None:
        """Takes in what this node wrote, if that comes next."""
        state, common = self.state, dict((header,))
        if appended.offset == state.next_offset:
            for offset, record in enumerate(records, appended.offset):
                headers = {**dict(record.headers), **common} if record.headers else common
                state.apply(offset, appended.timestamp_ms, record.key, record.value, headers, record.known)
            self._wake()

    def _wake(self) -> None:
        for waiter, offset in self._waiters.items():
            if offset <= self.state.next_offset and not waiter.done():
                waiter.set_result(None)

    def _break(self, reason: str) -> None:
        if not self.fault:
            self.fault = reason
            log.error("nothing is written any more, and reads are answered from memory: %s", reason)
        self._refuse_queue(StoreFailed(reason))

    # Writing.

    @property
    def is_writing(self) -> bool:
        """Whether this node leads and may write."""
        return self._epoch is not None and not self.fault

    async def lead(self, epoch: int, fenced: Callable[[str], None]) -> None:
        """Begins to write.

        Args:
            epoch: of the leader's term. A higher one is taken where the topic has records of a higher one.
            fenced: called with the reason when another leader has taken the topic over.

        Raises:
            OttlaError, OSError: it cannot be written.
        """
        await self.abdicate("another term begins")
        self._fenced = fenced
        self._epoch = epoch
        try:
            await self._begin(is_first=True)
            if self._epoch is None:
                raise LeaderUnknown("the term ended while it began")
        except BaseException:
            self._epoch = None
            self._refuse_queue(LeaderUnknown("Leader not known: this node cannot lead"))
            raise
        self._writing = asyncio.ensure_future(self._write())
        log.info("leading with epoch %d from offset %d", self._epoch, self.state.next_offset)

    async def abdicate(self, reason: str) -> None:
        """Writes nothing any more; what waits is refused. A batch that is under way is waited for."""
        self._epoch = None
        self._refuse_queue(LeaderUnknown(f"Leader not known: {reason}"))
        # Kept until it has ended: a term may begin while another caller waits for it, and two writers would give one id twice.
        writing = self._writing
        if writing is not None:
            self._queued.set()
            done, _ = await asyncio.wait([writing], timeout=self._timeout_seconds)
            if not done:
                writing.cancel()
                await asyncio.wait([writing])
            if self._writing is writing:
                self._writing = None

    async def register(self, request: Registration) -> Version:
        """Registers a schema, and waits until it is replayed.

        Raises:
            RegistryError: it is refused, or could not be written.
        """
        for _ in range(ATTEMPTS):
            draft = await self.drafts.draft(self.state, request)
            if draft.seen and self.state.versions(request.subject) is draft.seen:
                found = decisions.existing(self.state, draft)
                if found is not None:
                    return found
            try:
                registered: Registered = await self._queue_up(_Write(_future(), draft=draft))
            except Stale:
                continue
            return registered.version
        raise StoreTimedOut(f"{request.subject} changed {ATTEMPTS} times while it was looked at")

    async def change(self, decide: Callable[[State], tuple[T, Sequence[Change]]]) -> T:
        """Writes what a decision says, and waits until it is replayed.

        Raises:
            RegistryError: it is refused, or could not be written.
        """
        answer: T = await self._queue_up(_Write(_future(), decide=decide))
        return answer

    async def _queue_up(self, write: _Write) -> Any:
        if self.fault:
            raise StoreFailed(self.fault)
        if self._epoch is None:
            raise LeaderUnknown("Leader not known.")
        if len(self._queue) >= WAITING_WRITES:
            raise StoreTimedOut(f"{WAITING_WRITES} writes are waiting already")
        self._queue.append(write)
        if len(self._queue) >= self._wanted:
            self._queued.set()
        return await write.done

    async def _begin(self, *, is_first: bool) -> None:
        """Makes this node the only writer, and its state complete.

        Args:
            is_first: whether the term begins. Otherwise another node that has led meanwhile is not to be disturbed.
        """
        self._has_begun = False
        if not is_first:
            self._check_epoch(self._epoch)
        async with asyncio.timeout(self._timeout_seconds):
            await self.wait_for(await self._topic.begin())
            if not is_first:
                self._check_epoch(self._epoch)
            if self._epoch is None:
                raise LeaderUnknown("Leader not known: the term ended while it began")
            if self.state.epoch > self._epoch:
                log.info(
                    "epoch %d instead of %d, as the topic has records of epoch %d", self.state.epoch + 1, self._epoch, self.state.epoch
                )
                self._epoch = self.state.epoch + 1
            appended = await self._append([decisions.noop(self.state)], _header_of(self._epoch))
            await self.wait_for(appended.offset + 1)
        self._has_begun = True

    def _check_epoch(self, epoch: int | None) -> None:
        if epoch is not None and self.state.epoch > epoch:
            raise Fenced(f"the topic has records of epoch {self.state.epoch}, and this node leads with {epoch}")

    async def _append(self, records: Sequence[Record], header: tuple[str, bytes]) -> Appended:
        expected = self.state.next_offset
        appended = await self._topic.append(records, header)
        if appended.offset < expected:
            raise TopicChanged(
                f"the topic has given offset {appended.offset}, and {expected} records were read before: it was cut or made again"
            )
        return appended

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        noop_due = loop.time() + NOOP_SECONDS
        while self._epoch is not None and not self.fault:
            if not self._queue:
                self._queued.clear()
                try:
                    async with asyncio.timeout_at(noop_due):
                        await self._queued.wait()
                except TimeoutError:  # the broker forgets a producer that is silent for long
                    self._queue.append(_Write(_future(), decide=lambda state: (None, ())))
                    self._has_begun = False
                continue
            writes: list[tuple[_Write, Any]] = []
            try:
                if not self._has_begun:
                    await self._begin(is_first=False)
                    noop_due = loop.time() + NOOP_SECONDS
                began, epoch = loop.time(), self._epoch
                records, writes = self._decide()
                if any(isinstance(answer, RegistryError) for _, answer in writes) and await self._was_behind(epoch):
                    self._queue.extendleft(write for write, _ in reversed(writes))
                    continue
                if records:
                    header = _header_of(epoch)
                    # Of a registration the topic has all or nothing.
                    for piece in _pieces(records) if writes[0][0].draft is None else [records]:
                        async with asyncio.timeout(self._timeout_seconds):
                            appended = await self._append(piece, header)
                        self._take(piece, header, appended)
                        await self.wait_for(appended.offset + len(piece))
                    # What was written after the NOOP of another leader is in the topic, and every replay drops it.
                    self._check_epoch(epoch)
                    self.write_seconds.observe(loop.time() - began)
                    self.batch_count += 1
                    self.written_count += len(records)
                for write, answer in writes:
                    self._answer(write, answer)
                await self._gather(min(len(writes) + len(self._queue), BATCH_RECORDS))
            except (ProducerFenced, InvalidProducerEpoch, Fenced) as error:
                self._epoch = None
                refusal = LeaderUnknown("Leader not known: another node leads")
                self._fail_all(writes, refusal)
                self._refuse_queue(refusal)
                self._fenced(f"another node writes to the topic: {error}")
                return
            except TopicChanged as error:
                self._fail_all(writes, StoreFailed(str(error)))
                self._break(str(error))
                return
            except (TimeoutError, RequestTimedOut, StoreTimedOut) as error:
                self._failed(writes, StoreTimedOut(f"the topic did not take the write in time: {str(error) or 'no answer'}"))
            except (ApiError, OSError, RegistryError) as error:
                is_too_large = isinstance(error, MessageTooLarge) and len(writes) == 1
                self._failed(writes, (SchemaTooLarge if is_too_large else StoreFailed)(f"the topic did not take the write: {error}"))
                await asyncio.sleep(_PAUSE_SECONDS / 5)
            except Exception as error:  # where writes end
                log.exception("a write failed in a way that was not foreseen")
                self._failed(writes, StoreFailed(repr(error)))
            except asyncio.CancelledError:
                self._fail_all(writes, LeaderUnknown("Leader not known: the term ended before the topic took the write"))
                raise
        # What was put back to be decided again, after all that waited was refused.
        self._refuse_queue(StoreFailed(self.fault) if self.fault else LeaderUnknown("Leader not known: the term has ended"))

    async def _was_behind(self, epoch: int | None) -> bool:
        """Whether the topic had more than was replayed. It is replayed then."""
        before = self.state.next_offset
        async with asyncio.timeout(self._timeout_seconds):
            await self.wait_for(await self._topic.end())
        self._check_epoch(epoch)
        return self.state.next_offset != before

    async def _gather(self, wanted: int) -> None:
        """Waits a moment until so many writes are in the queue."""
        if wanted <= max(1, len(self._queue)):
            return
        self._wanted = wanted
        self._queued.clear()
        try:
            async with asyncio.timeout(GATHER_SECONDS):
                await self._queued.wait()
        except TimeoutError:
            pass
        finally:
            self._wanted = 1

    def _failed(self, writes: Sequence[tuple[_Write, Any]], error: RegistryError) -> None:
        """Refuses what was under way; where that could not even begin, what waits."""
        self._has_begun = False
        log.warning("%s", error)
        if writes:
            self._fail_all(writes, error)
        else:
            self._refuse_queue(error)

    def _refuse_queue(self, error: RegistryError) -> None:
        for write in self._queue:
            _fail(write, error)
        self._queue.clear()

    @staticmethod
    def _fail_all(writes: Sequence[tuple[_Write, Any]], error: RegistryError) -> None:
        for write, _ in writes:
            _fail(write, error)

    def _decide(self) -> tuple[list[Record], list[tuple[_Write, Any]]]:
        """Decides what waits: one decision, or as many registrations as fit into a batch. What is refused is answered by an error."""
        records: list[Record] = []
        writes: list[tuple[_Write, Any]] = []
        batch, size = Batch(), 0
        while self._queue and len(records) < BATCH_RECORDS and size < BATCH_BYTES:
            write = self._queue[0]
            if write.draft is None and writes:
                break
            self._queue.popleft()
            if write.done.done():  # the client has gone
                continue
            try:
                if write.draft is not None:
                    registered = decisions.register(self.state, write.draft, batch)
                    batch.note(self.state, registered)
                    changes, answer = registered.changes, registered
                else:
                    assert write.decide is not None
                    answer, changes = write.decide(self.state)  # type: ignore[assignment]  # a result of any type
                added = decisions.records_of(self.state, changes)
                added_size = _size_of(added)
                if records and size + added_size > BATCH_BYTES:  # together the topic may not take them
                    self._queue.appendleft(write)
                    break
            except RegistryError as error:
                writes.append((write, error))
                continue
            except Stale as error:
                _fail(write, error)
                continue
            except Exception as error:  # where a write ends: the others of the batch are written
                log.exception("a write failed in a way that was not foreseen")
                _fail(write, StoreFailed(repr(error)))
                continue
            records += added
            size += added_size
            writes.append((write, answer))
            if write.draft is None:
                break
        return records, writes

    def _answer(self, write: _Write, answer: Any) -> None:
        if write.done.done():
            return
        if isinstance(answer, RegistryError):
            write.done.set_exception(answer)
            return
        if isinstance(answer, Registered):
            version = answer.version
            found = self.state.version(version.subject, version.version)
            if found is None or found.id != version.id or not found.schema.is_same_definition(version.schema):
                _fail(write, StoreFailed(f"{version.subject}/{version.version} was written, and another record came in between"))
                return
            answer = Registered(found)
        write.done.set_result(answer)


async def replayed(
    topic: Topic, drafts: Drafts, state: State, offsets: tuple[int, int], timeout_seconds: float, init_timeout_seconds: float
) -> Store:
    """A store that has replayed the topic: from where a snapshot ends, or from the beginning if records behind that were compacted away.

    What was deleted for good is a tombstone for as long as `delete.retention.ms` says, and then nothing: a node that was stopped
    meanwhile would keep for ever what its snapshot has of it.

    Args:
        state: what the snapshot had, or an empty one.
        offsets: where the topic begins and ends.

    Raises:
        StoreTimedOut: it takes longer than `init_timeout_seconds`.
    """
    first_offset, next_offset = offsets
    is_whole = state.next_offset <= first_offset
    state.next_offset = max(state.next_offset, first_offset)
    store = Store(topic, drafts, state, timeout_seconds)
    try:
        store.start()
        await store.wait_for(next_offset, init_timeout_seconds)
    except BaseException:
        await store.close()
        raise
    if is_whole or not store.has_gap:
        return store
    log.info("records behind the snapshot were compacted away, and with them what they deleted: the topic is read from its beginning")
    await store.close()
    return await replayed(topic, drafts, State(state.defaults), offsets, timeout_seconds, init_timeout_seconds)


def _size_of(records: Sequence[Record]) -> int:
    return sum(len(record.key) + len(record.value or b"") for record in records)


def _pieces(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """In batches that the topic takes: a single command may write all versions of a subject, or of a context."""
    begin = size = 0
    for index, record in enumerate(records):
        more = _size_of([record])
        if index > begin and (index - begin == BATCH_RECORDS or size + more > BATCH_BYTES):
            yield records[begin:index]
            begin, size = index, 0
        size += more
    yield records[begin:]


def _header_of(epoch: int | None) -> tuple[str, bytes]:
    return EPOCH_HEADER, str(epoch).encode()


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def _fail(write: _Write, error: Exception) -> None:
    if not write.done.done():
        write.done.set_exception(error)

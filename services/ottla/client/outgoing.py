"""What a producer has to send: messages in batches by partition, between the threads that send and the loop that writes.

    send ──put──► open batches ──full, or old enough──► ready ──► RecordSender ──written or failed──► Delivery

A batch takes messages until there are `batch.size` of them, or a megabyte, or its first has waited for `queue.buffering.max.ms`. Messages
of a topic whose partitions are not known yet wait in their order until they are. A message without a key goes to the partition of the
batch that is open for such ones, and each such batch to a partition by chance (KIP-480), one that has a leader if there is any.

No object is made for a message: a batch is a few lists, and a `Delivery` knows where its messages are in them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import index
from random import Random
from typing import Final

from ottla.client.errors import ClientClosed, DeliveryFailed, InvalidPartition, QueueFull
from ottla.client.partitioners import murmur2_partition
from ottla.clock import Clock, wall_ns
from ottla.errors import MessageTooLarge, UnknownTopicOrPartition, reason_of
from ottla.model import TopicPartition
from ottla.record.lists import NO_HEADERS

NO_OFFSET: Final = -1
NO_PARTITION: Final = -1
_LARGEST_MESSAGE: Final = 1_000_000  # `message.max.bytes` of librdkafka, below what brokers take by default
_LARGEST_BATCH: Final = 1_000_000
_PIECE: Final = _LARGEST_BATCH // 4  # of what is put at once: more is split
_MOST_BYTES: Final = 1 << 30  # `queue.buffering.max.kbytes`
_BEYOND_TIMES: Final = 1 << 62  # in ms: a batch has room for as much between two
_MOST_FAILURES: Final = 10_000  # that are kept apart from each other until someone knows of them
_OVERHEAD: Final = 20  # of a record at most, besides key, value and headers

Slot = tuple[str, int]  # topic and partition, or -1 for messages that any partition may have


@dataclass(slots=True, eq=False)
class OutgoingBatch:
    """Messages of a partition that are sent together.

    Attributes:
        times: from which message on they have which timestamp, in ms.
        base_offset: once it is written; -1 where no one knows.
        opened_ms: when its first message came.
        deadline: until when it is tried, by the clock.
    """

    partition: TopicPartition
    slot: Slot
    deadline: float
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] | None = None  # none has one so far
    sections: list[bytes] | None = None  # of headers, likewise
    times: list[tuple[int, int]] = field(default_factory=list)
    last_ms: int | None = None
    opened_ms: int = field(default_factory=lambda: wall_ns() // 1_000_000)
    size: int = 0  # in bytes, at most
    count: int = 0  # set when it takes no more
    sends: int = 0  # how many more there were than messages: none, or fewer
    seen: int = 0  # sends of which the failure was raised
    base_offset: int = NO_OFFSET
    error: DeliveryFailed | None = None
    is_over: bool = False

    @property
    def unseen(self) -> int:
        """How many sends have messages in it and have not raised its failure."""
        return self.count + self.sends - self.seen


@dataclass(slots=True)
class _Waiting:
    """Messages of one `put` whose topic is not known yet."""

    values: Sequence[bytes | None]
    size: int
    key: bytes | None
    section: bytes | None
    timestamp_ms: int
    partition: int
    delivery: Delivery
    deadline: float
    is_over: bool = False


@dataclass(slots=True)
class _Rest:
    """What few deliveries have."""

    more: list[tuple[OutgoingBatch, int, int]] = field(default_factory=list)  # further batches, and which of their messages
    unsent: int = 0  # messages that are in no batch yet
    error: DeliveryFailed | None = None  # of these
    is_seen: bool = False  # its failure was raised


class Delivery:
    """What becomes of the messages of one `send`."""

    __slots__ = ("_batch", "_count", "_first", "_outgoing", "_rest")

    def __init__(self, outgoing: Outgoing, batch: OutgoingBatch | None = None, first: int = 0, count: int = 0) -> None:
        self._outgoing = outgoing
        self._batch = batch
        self._first = first
        self._count = count
        self._rest: _Rest | None = None

    @property
    def is_done(self) -> bool:
        """Whether all of them are written or have failed, as far as the brokers have said."""
        return self.left == 0

    @property
    def left(self) -> int:
        """How many are neither written nor have failed."""
        return self.unsent + sum(count for batch, _, count in self._parts() if not batch.is_over)

    @property
    def unsent(self) -> int:
        """How many are in no batch yet."""
        return 0 if self._rest is None else self._rest.unsent

    def result(self, timeout_seconds: float | None = None) -> list[tuple[TopicPartition, int]]:
        """Waits until all of them are written, and gives partition and offset of each, in the order in which they were sent.

        Raises:
            DeliveryFailed: one of them at least is not written, or no one knows.
            TimeoutError: not in that time; it continues all the same.
            ClientClosed: in a forked child, which does not hear of them.
        """
        if not self._outgoing.wait(lambda: not self.left, timeout_seconds):
            raise TimeoutError(f"{self.left} messages are not delivered after {timeout_seconds:g} s")
        error = self.error
        if error is not None:
            self._outgoing.seen(self)
            raise error
        return [
            (batch.partition, NO_OFFSET if batch.base_offset < 0 else batch.base_offset + number)
            for batch, first, count in self._parts()
            for number in range(first, first + count)
        ]

    @property
    def error(self) -> DeliveryFailed | None:
        """The first failure."""
        if self._rest is not None and self._rest.error is not None:
            return self._rest.error
        return next((batch.error for batch, _, _ in self._parts() if batch.error is not None), None)

    # For what sends.

    def failed(self, error: DeliveryFailed, count: int = 1) -> None:
        """So many messages, which are in no batch, are not written."""
        with self._outgoing.lock:
            rest = self._further()
            rest.error = rest.error or error
            rest.unsent -= count
            self._outgoing.unseen.add(self)
            self._outgoing.keep_few_failures()
            self._outgoing.failure = self._outgoing.failure or error
            self._outgoing.changed.notify_all()

    def dropped(self, count: int = 1) -> None:
        """So many messages, which are in no batch, are not to be written, or someone else has."""
        with self._outgoing.lock:
            self._further().unsent -= count
            self._outgoing.changed.notify_all()

    def grown(self, count: int) -> None:
        """So many messages more, which are in no batch, belong to it."""
        with self._outgoing.lock:
            self._further().unsent += count

    def extend(self, batch: OutgoingBatch, first: int, count: int) -> None:
        """So many messages of the batch, from that one on, belong to it."""
        if self._batch is None:
            self._batch, self._first, self._count = batch, first, count
        else:
            self._further().more.append((batch, first, count))

    def see(self) -> list[OutgoingBatch]:
        """Its failure is raised. Gives the batches that have failed, the first time."""
        rest = self._further()
        was_seen, rest.is_seen = rest.is_seen, True
        return [] if was_seen else [batch for batch, _, _ in self._parts() if batch.error is not None]

    def _further(self) -> _Rest:
        if self._rest is None:
            self._rest = _Rest()
        return self._rest

    def _parts(self) -> Iterator[tuple[OutgoingBatch, int, int]]:
        if self._batch is not None:
            yield self._batch, self._first, self._count
        if self._rest is not None:
            yield from self._rest.more


class Outgoing:
    """The batches of one producer. Any thread may call; what is not for all is called with `lock` held.

    Args:
        most: messages of a batch.
        queue_size: messages that may wait, those on their way included.
        timeout_seconds: how long the messages of a topic may wait for its partitions to be known, and how long a batch is tried.
        wake: called, in any thread, when there is something for the sender to look at.
        random: chooses partitions.

    Attributes:
        open: the batches that take more.
        counts: how many partitions a topic has, of those that are known.
        led: which of its partitions have a leader, of a topic that was asked for.
        waiting: the messages of topics that are not.
        opened, ready: batches that are new, and those that take no more, until the sender has taken them over.
        outstanding: the batches that are neither written nor have failed.
        unseen: deliveries with messages that have failed before they were in a batch, and no one knows yet.
        failed: batches that have failed, as long as there are sends of which no one knows.
        failure: the first since it was None, whether anyone knows of it or not.
        hurries: whether someone waits for everything to be written.
        refusal: why nothing is taken at the moment.
    """

    def __init__(
        self, most: int, queue_size: int, timeout_seconds: float, clock: Clock, wake: Callable[[], None], random: Random | None = None
    ) -> None:
        self.most: Final = most
        self.queue_size: Final = queue_size
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.open: Final[dict[Slot, OutgoingBatch]] = {}
        self.counts: Final[dict[str, int]] = {}
        self.led: Final[dict[str, list[int]]] = {}
        self.waiting: Final[dict[str, list[_Waiting]]] = {}
        self.opened: list[OutgoingBatch] = []
        self.ready: list[OutgoingBatch] = []
        self.outstanding: Final[dict[OutgoingBatch, None]] = {}
        self.unseen: set[Delivery] = set()
        self.failed: dict[OutgoingBatch, None] = {}
        self._counted: tuple[int, DeliveryFailed | None] = (0, None)  # failures that are only counted by now, and the first
        self.failure: DeliveryFailed | None = None
        self.hurries = 0
        self.refusal: Callable[[], Exception] | None = None
        self.left = 0  # messages that are neither written nor have failed
        self._bytes = 0  # of them, without those of open batches
        self._timeout_seconds: Final = timeout_seconds
        self._clock: Final = clock
        self._wake: Final = wake
        self._is_woken = False
        self._random: Final = random or Random()
        self._is_here = True

    def left_behind(self) -> None:
        """This is a forked child: a thread that has stayed in the parent may hold the lock."""
        self._is_here = False
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)

    def refuse(self, refusal: Callable[[], Exception]) -> None:
        """Takes nothing from now on; who waits for room hears of it at once."""
        with self.lock:
            self.refusal = refusal
            self.changed.notify_all()

    def wait(self, until: Callable[[], object], timeout_seconds: float | None) -> bool:
        """Waits until that holds, and gives whether it does.

        Raises:
            ClientClosed: in a forked child.
        """
        if not self._is_here:
            raise ClientClosed("the producer belongs to a process of which this is a forked child")
        with self.lock:
            return bool(self.changed.wait_for(until, timeout_seconds))

    def put(
        self,
        topic: str,
        values: Sequence[bytes | None],
        delivery: Delivery,
        *,
        key: bytes | None = None,
        section: bytes | None = None,
        timestamp_ms: int = 0,
        partition: int = NO_PARTITION,
        patience_ms: int = -1,
    ) -> None:
        """Takes messages, which belong to the delivery from then on.

        Args:
            key: of all of them.
            section: their headers, encoded.
            timestamp_ms: 0 for now.
            partition: -1 for that of the key.
            patience_ms: how long to wait for room; -1 for as long as it takes.

        Raises:
            QueueFull: there was no room in that time; those before are taken.
            InvalidPartition, ValueError, TypeError: no partition and no timestamp can be that.
            What `refusal` makes.
        """
        # Said before they are in a batch, as it would fail with those of others.
        partition, timestamp_ms = index(partition), index(timestamp_ms)
        if partition < NO_PARTITION:
            raise InvalidPartition(f"{topic}: no partition has the number {partition}")
        if abs(timestamp_ms) >= _BEYOND_TIMES:
            raise ValueError(f"{timestamp_ms} is no timestamp in ms")
        deadline = None
        first, behind = 0, len(values)
        while first < behind:
            with self.lock:
                if self.left >= self.queue_size or self._bytes >= _MOST_BYTES:
                    now = self._clock.monotonic()
                    deadline = now + patience_ms / 1000 if deadline is None else deadline
                    self.changed.wait_for(self._makes_room, None if patience_ms < 0 else deadline - now)
                    if not self._has_room():
                        raise QueueFull(f"the queue has {self.queue_size} messages, for {patience_ms} ms by now")
                if self.refusal is not None:
                    raise self.refusal()
                room = self.queue_size - self.left
                some = values if not first and behind <= room else values[first : first + room]
                self._take(topic, some, delivery, key, section, timestamp_ms or wall_ns() // 1_000_000, partition)
                first += len(some)

    def add(self, batch: OutgoingBatch, value: bytes, timestamp_ms: int) -> Delivery | None:
        """Takes one message, without a key and headers, into an open batch. None: it is for `put`. Called with `lock` held."""
        values, size = batch.values, batch.size + len(value) + _OVERHEAD
        first = len(values)
        if size > _LARGEST_BATCH or self.left >= self.queue_size or batch.keys is not None or batch.sections is not None:
            return None
        if timestamp_ms != batch.last_ms:
            batch.times.append((first, timestamp_ms))
            batch.last_ms = timestamp_ms
        values.append(value)
        batch.size = size
        self.left += 1
        if first + 1 >= self.most:
            self.close(batch)
        return Delivery(self, batch, first, 1)

    def _makes_room(self) -> bool:
        """As `_has_room`. Where nothing is on its way that would make room, batches do not wait for others to go with any more."""
        if self._has_room():
            return True
        if len(self.open) == len(self.outstanding):
            for batch in list(self.open.values()):
                self.close(batch)
        return False

    def _has_room(self) -> bool:
        return (self.left < self.queue_size and self._bytes < _MOST_BYTES) or self.refusal is not None

    def _take(
        self,
        topic: str,
        values: Sequence[bytes | None],
        delivery: Delivery,
        key: bytes | None,
        section: bytes | None,
        timestamp_ms: int,
        partition: int,
    ) -> None:
        count = self.counts.get(topic)
        self.left += len(values)
        if count is None or partition >= count or topic in self.waiting:
            size = _size_of(values, key, section)
            deadline = self._clock.monotonic() + self._timeout_seconds
            others = self.waiting.setdefault(topic, [])
            if not others:  # `add` would put what comes later into a batch that is open, before these
                for batch in [batch for slot, batch in self.open.items() if slot[0] == topic]:
                    self.close(batch)
            others.append(_Waiting(tuple(values), size, key, section, timestamp_ms, partition, delivery, deadline))
            delivery.grown(len(values))
            self._bytes += size
            if len(others) == 1:
                self.wake()
        else:
            self._fill((topic, _chosen(partition, key, count)), values, delivery, key, section, timestamp_ms)

    def _fill(
        self, slot: Slot, values: Sequence[bytes | None], delivery: Delivery, key: bytes | None, section: bytes | None, timestamp_ms: int
    ) -> None:
        count = len(values)
        if count > self.most:  # here and not below: a list may be a thousand batches long, and calls cannot be so deep
            for number in range(0, count, self.most):
                self._fill(slot, values[number : number + self.most], delivery, key, section, timestamp_ms)
            return
        size = _size_of(values, key, section)
        if size > _PIECE and count > 1:
            for some in (values[: count // 2], values[count // 2 :]):
                self._fill(slot, some, delivery, key, section, timestamp_ms)
            return
        if size > _LARGEST_MESSAGE:
            self._too_large(slot, size, delivery)
            return
        batch = self.open.get(slot)
        if batch is not None and batch.size + size > _LARGEST_BATCH:
            self.close(batch)
            batch = None
        batch = batch or self._begun(slot)
        first = len(batch.values)
        room = self.most - first
        if count > room:
            for some in (values[:room], values[room:]):
                self._fill(slot, some, delivery, key, section, timestamp_ms)
            return
        _append(batch, values, key, section, timestamp_ms)
        batch.size += size
        batch.sends += 1 - count
        delivery.extend(batch, first, count)
        if first + count >= self.most:
            self.close(batch)

    def _too_large(self, slot: Slot, size: int, delivery: Delivery) -> None:
        """The message fails alone."""
        self.left -= 1
        delivery.grown(1)
        delivery.failed(DeliveryFailed(f"{slot[0]}: the message is too large: {size} bytes of {_LARGEST_MESSAGE}", MessageTooLarge.code))

    def _begun(self, slot: Slot) -> OutgoingBatch:
        topic, number = slot
        if number == NO_PARTITION:
            number = self._random.choice(self.led.get(topic) or range(self.counts[topic]))
        partition = TopicPartition(topic, number)
        batch = self.open[slot] = OutgoingBatch(partition, slot, self._clock.monotonic() + self._timeout_seconds)
        self.outstanding[batch] = None
        self.opened.append(batch)
        self.wake()
        return batch

    def close(self, batch: OutgoingBatch) -> None:
        """The open batch takes no more."""
        del self.open[batch.slot]
        batch.count = len(batch.values)
        self._bytes += batch.size
        self.ready.append(batch)
        self.wake()

    def wake(self) -> None:
        """There is something for the sender."""
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def taken_over(self) -> tuple[list[OutgoingBatch], list[OutgoingBatch]]:
        """What the sender has not seen yet: batches that are new, unless they are closed again, and those that take no more."""
        self._is_woken = False
        opened, ready = self.opened, self.ready
        self.opened, self.ready = [], []
        return [batch for batch in opened if not batch.count], ready

    def place(self, topic: str, count: int) -> list[tuple[int, int]]:
        """The topic has so many partitions: what waits for that goes to them. Gives as `give_up` what wants another partition."""
        given_up = []
        with self.lock:
            self.counts[topic] = count
            for some in self.waiting.pop(topic, ()):
                self._bytes -= some.size
                if some.partition >= count:
                    error = UnknownTopicOrPartition(f"{topic} has {count} partitions, and none of number {some.partition}")
                    given_up.append(self._give_up(some, failure_of(topic, error)))
                    continue
                slot = topic, _chosen(some.partition, some.key, count)
                self._fill(slot, some.values, some.delivery, some.key, some.section, some.timestamp_ms)
                some.delivery.dropped(len(some.values))  # they are in batches now
                some.is_over = True
            self.changed.notify_all()
        return given_up

    def give_up(self, topic: str, error: DeliveryFailed, before: float | None = None) -> list[tuple[int, int]]:
        """What waits for the topic's partitions fails: all of it, or what may not wait beyond that time.

        Gives timestamps in ms, and how many messages of each have failed.
        """
        with self.lock:
            others = self.waiting.get(topic, [])
            failed = [some for some in others if before is None or some.deadline <= before]
            others[:] = others[len(failed) :]
            if not others:
                self.waiting.pop(topic, None)
            for some in failed:
                self._bytes -= some.size
            return [self._give_up(some, error) for some in failed]

    def _give_up(self, some: _Waiting, error: DeliveryFailed) -> tuple[int, int]:
        some.is_over = True
        self.left -= len(some.values)
        some.delivery.failed(error, len(some.values))
        return some.timestamp_ms, len(some.values)

    def end(self, batch: OutgoingBatch, base_offset: int = NO_OFFSET, error: DeliveryFailed | None = None) -> None:
        """The batch is written there, or has failed."""
        with self.lock:
            if batch.is_over:
                return
            batch.base_offset, batch.error, batch.is_over = base_offset, error, True
            del self.outstanding[batch]
            self.left -= batch.count
            self._bytes -= batch.size
            if error is not None:
                self.failed[batch] = None
                self.keep_few_failures()
                self.failure = self.failure or error
            batch.values, batch.keys, batch.sections = [], None, None
            self.changed.notify_all()

    def seen(self, delivery: Delivery) -> None:
        """The delivery's failure is raised."""
        with self.lock:
            self.unseen.discard(delivery)
            for batch in delivery.see():
                batch.seen += 1
                if not batch.unseen:
                    self.failed.pop(batch, None)

    def take_failures(self) -> tuple[int, DeliveryFailed | None]:
        """How many sends have failed of which no one knows, and why one of them has; they are known from now on."""
        with self.lock:
            unseen, failed, (count, first) = self.unseen, self.failed, self._counted
            self.unseen, self.failed, self._counted = set(), {}, (0, None)
        errors = [error for delivery in unseen if (error := delivery.error) is not None]
        count += len(errors)
        for batch in failed:
            if batch.error is not None:
                count += batch.unseen
                errors.append(batch.error)
        return count, first or (errors[0] if errors else None)

    def keep_few_failures(self) -> None:
        """Only counts them where there are many: who raises one of these later does not make them fewer. Called with `lock` held."""
        if len(self.unseen) + len(self.failed) >= _MOST_FAILURES:
            self._counted = self.take_failures()

    def discard(self, error: DeliveryFailed) -> None:
        """Everything fails that is not written yet."""
        with self.lock:
            for topic in list(self.waiting):
                self.give_up(topic, error)
            for batch in list(self.outstanding):
                if self.open.get(batch.slot) is batch:
                    self.close(batch)
                self.end(batch, error=error)

    def flush(self, timeout_seconds: float) -> bool:
        """Waits until everything that was taken is written or has failed, and gives whether that is so."""
        deadline = self._clock.monotonic() + timeout_seconds
        with self.lock:
            self.hurries += 1
            try:
                for batch in list(self.open.values()):
                    self.close(batch)
                waiting = [some for others in self.waiting.values() for some in others]
                if not self.changed.wait_for(lambda: all(some.is_over for some in waiting), timeout_seconds):
                    return False
                batches = list(self.outstanding)
                left = max(0.0, deadline - self._clock.monotonic())
                return self.changed.wait_for(lambda: all(batch.is_over for batch in batches), left)
            finally:
                self.hurries -= 1

    def on_their_way(self, topic: str, *, by_clock: bool) -> Iterator[tuple[int, int]]:
        """Times in ms, and how many messages of the topic that are on their way have each: their own, or when their batch was begun."""
        with self.lock:
            for batch in self.outstanding:
                if batch.partition.topic == topic:
                    yield from [(batch.opened_ms, batch.count or len(batch.values))] if by_clock else runs_of(batch)
            yield from [(some.timestamp_ms, len(some.values)) for some in self.waiting.get(topic, ())]


def runs_of(batch: OutgoingBatch) -> list[tuple[int, int]]:
    """Timestamps, and how many messages of the batch, one after the other, have each."""
    bounds = [*(first for first, _ in batch.times), batch.count or len(batch.values)]
    return [(timestamp, bounds[number + 1] - first) for number, (first, timestamp) in enumerate(batch.times)]


def failure_of(topic: str, error: BaseException) -> DeliveryFailed:
    """As an application sees why its messages were not written."""
    failure = DeliveryFailed(f"{topic}: {reason_of(error)}", getattr(error, "code", -1))
    failure.__cause__ = error
    return failure


def _chosen(partition: int, key: bytes | None, count: int) -> int:
    if partition >= 0:
        return partition
    return NO_PARTITION if key is None else murmur2_partition(key, count)


def _size_of(values: Sequence[bytes | None], key: bytes | None, section: bytes | None) -> int:
    """Bytes that the records take at most."""
    each = _OVERHEAD + len(key or b"") + len(section or b"")
    try:
        return sum(map(len, values)) + each * len(values)  # type: ignore[arg-type]  # a null has no length
    except TypeError:
        return sum(len(value or b"") for value in values) + each * len(values)


def _append(batch: OutgoingBatch, values: Sequence[bytes | None], key: bytes | None, section: bytes | None, timestamp_ms: int) -> None:
    before, count = len(batch.values), len(values)
    if timestamp_ms != batch.last_ms:
        batch.times.append((before, timestamp_ms))
        batch.last_ms = timestamp_ms
    if batch.keys is not None or key is not None:
        if batch.keys is None:
            batch.keys = [None] * before
        batch.keys += [key] * count
    if batch.sections is not None or section is not None:
        if batch.sections is None:
            batch.sections = [NO_HEADERS] * before
        batch.sections += [section or NO_HEADERS] * count
    batch.values += values

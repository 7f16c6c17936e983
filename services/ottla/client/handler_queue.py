"""The queue of an asynchronous producer with handlers, and the thread that empties it: 0.7's own, before what sends.

    send ─ before_enqueue ─► queue ─ after_dequeuing ─ before_sending ─ event handler, or what sends

A handler is the application's: what it raises fails its batch, and the thread continues with the next.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Final, TypeAlias

from ottla.client.errors import ClientClosed, DeliveryFailed, QueueFull
from ottla.client.outgoing import Delivery, Outgoing
from ottla.client.producer_handlers import CallbackHandler, EventHandler, ProducerRecord
from ottla.config.client import ProducerSettings
from ottla.errors import OperationNotAttempted

log: Final = logging.getLogger(__name__)

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
_Run: TypeAlias = tuple[list[ProducerRecord], Delivery]  # of one `send`


class HandlerQueue:
    """The queue of one producer, and its thread, until it is closed.

    Args:
        settings: how many messages wait, and for how long.
        outgoing: where the deliveries belong.
        hand_over: takes values that are to be sent, what they have in common, and the delivery to which they belong.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        callbacks: CallbackHandler,
        events: EventHandler | None,
        outgoing: Outgoing,
        hand_over: Callable[[str, Sequence[bytes | None], Delivery, bytes | None, Headers, int, int], None],
    ) -> None:
        self._settings = settings
        self._batch_size = min(settings.batch_size, settings.queue_size)  # who waits for room makes no batch any larger
        self._callbacks = callbacks
        self._events = events
        self._outgoing = outgoing
        self._hand_over = hand_over
        self._queue: deque[_Run] = deque()
        self._count = 0  # of messages in it
        self._busy = 0  # of those that its thread has in hand
        self._done = 0  # of those that have left both
        self._hurries = 0  # who waits for that
        self._changed = threading.Condition()
        self._is_closing = False
        callbacks.init(settings)
        self._thread = threading.Thread(target=self._run, name="ottla-producer", daemon=True)
        self._thread.start()

    @property
    def left(self) -> int:
        """How many messages are in the queue, or in its thread's hand."""
        return self._count + self._busy

    def put(self, records: Iterable[ProducerRecord], delivery: Delivery) -> None:
        """Enqueues the messages of one `send`. Raises QueueFull, and what making a record or `before_enqueue` raises."""
        before = self._callbacks.before_enqueue
        ready: list[ProducerRecord] = []
        try:
            ready.extend(filter(None, map(before, records)))  # those before one that cannot be made are kept
        finally:
            delivery.dropped(delivery.unsent - len(ready))
            self._enqueue(ready, delivery)

    def _enqueue(self, ready: list[ProducerRecord], delivery: Delivery) -> None:
        size, timeout_ms = self._settings.queue_size, self._settings.queue_enqueue_timeout_ms
        if threading.current_thread() is self._thread:  # a handler sends: no one but its own thread makes room
            timeout_ms = 0
        begin = 0
        while begin < len(ready):
            with self._changed:
                has_room = self._changed.wait_for(
                    lambda: self._count < size or self._is_closing, None if timeout_ms < 0 else timeout_ms / 1000
                )
                if self._is_closing:  # its thread may have ended
                    delivery.dropped(len(ready) - begin)
                    raise ClientClosed("the producer is closed")
                former = self._count
                some = ready[begin : begin + size - former] if has_room else ready[begin:]
                if has_room:
                    self._queue.append((some, delivery))
                    self._count += len(some)
                    if not former or former < self._batch_size <= self._count:
                        self._changed.notify_all()
            deque(map(self._callbacks.after_enqueue, some, repeat(has_room)), maxlen=0)
            if not has_room:
                delivery.dropped(len(some))
                raise QueueFull(f"the queue has {size} messages, for {timeout_ms} ms by now")
            begin += len(some)

    def flush(self, timeout_seconds: float) -> None:
        """Waits until all that is in the queue now has left it. Raises TimeoutError; RuntimeError in a handler, which it would wait for."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a handler cannot flush: its own batch would be waited for")
        with self._changed:
            until = self._done + self._busy + self._count
            self._hurries += 1
            self._changed.notify_all()
            is_done = self._changed.wait_for(lambda: self._done >= until, timeout_seconds)
            self._hurries -= 1
            left = until - self._done
        if not is_done:
            raise TimeoutError(f"{left} messages are in the queue after {timeout_seconds:g} s")

    def drop(self) -> None:
        """Does not send what is in the queue."""
        with self._changed:
            dropped = list(self._queue)
            self._queue.clear()
            self._done += self._count
            self._count = 0
            self._changed.notify_all()
        for some, delivery in dropped:
            delivery.failed(DeliveryFailed("the transaction is aborted", OperationNotAttempted.code), len(some))

    def close(self, timeout_seconds: float) -> None:
        """Empties the queue and ends the thread. Raises TimeoutError."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"the producer's thread did not end within {timeout_seconds:g} s")

    def _run(self) -> None:
        while batch := self._next_batch():
            self._send(batch)
            with self._changed:
                self._done += self._busy
                self._busy = 0
                self._changed.notify_all()
        added = Delivery(self._outgoing)
        try:
            last = list(self._callbacks.last_batch_before_close() or ())
            if last:
                added.grown(len(last))
                self._deliver(last, last, [(added, len(last))])
        except BaseException as error:
            added.failed(failure_by(error), added.unsent)
        try:
            self._callbacks.close()
        except Exception:  # the handler is the application's
            log.exception("the callback handler failed at the producer's close")

    def _next_batch(self) -> list[_Run]:
        """What goes together: when there is enough, or the first has waited long enough. Nothing at the end."""
        size, seconds = self._batch_size, self._settings.queue_buffering_max_ms / 1000
        batch: list[_Run] = []
        with self._changed:
            while True:
                self._changed.wait_for(lambda: bool(self._queue) or self._is_closing)
                self._changed.wait_for(lambda: self._count >= size or self._is_closing or self._hurries, seconds)
                if self._queue or self._is_closing:  # and it was not dropped
                    break
            while self._queue and size:
                some, delivery = self._queue.popleft()
                if len(some) > size:
                    self._queue.appendleft((some[size:], delivery))
                    some = some[:size]
                batch.append((some, delivery))
                size -= len(some)
                self._count -= len(some)
            self._busy = sum(len(some) for some, _ in batch)
            self._changed.notify_all()
        return batch

    def _send(self, batch: list[_Run]) -> None:
        records: list[ProducerRecord] = []
        owners: list[tuple[Delivery, int]] = []
        try:
            for some, delivery in batch:
                before = len(records)
                # Not kept until all are there: the collector of garbage would go through them.
                records.extend(chain.from_iterable(map(self._callbacks.after_dequeuing, some)))
                owners.append((delivery, len(records) - before))
                delivery.grown(len(records) - before - len(some))
            self._deliver(self._callbacks.before_sending(records), records, owners)
        except BaseException as error:
            # The handler is the application's, also what is no `Exception`. The batch has failed, and the thread continues with the next.
            failure = failure_by(error)
            grown = [count for _, count in owners] + [len(some) for some, _ in batch[len(owners) :]]
            for (_, delivery), count in zip(batch, grown, strict=True):
                delivery.failed(failure, count)

    def _deliver(
        self, to_send: Sequence[ProducerRecord], records: Sequence[ProducerRecord], owners: Sequence[tuple[Delivery, int]]
    ) -> None:
        """Sends some of the records, so many of which, one after the other, have an owner, and others that a handler has added."""
        left_out: list[tuple[Delivery, int]] = []
        if to_send is not records:
            to_send = list(to_send)  # a handler may give what can be gone through only once
            added = Delivery(self._outgoing)
            by_id: dict[int, list[Delivery]] = {}
            for record, delivery in zip(records, chain.from_iterable(repeat(*owner) for owner in owners), strict=True):
                by_id.setdefault(id(record), []).append(delivery)
            owners = [(by_id[id(record)].pop(0) if by_id.get(id(record)) else added, 1) for record in to_send]
            left_out = [(delivery, 1) for rest in by_id.values() for delivery in rest]
            added.grown(sum(delivery is added for delivery, _ in owners))
        if self._events is not None:
            self._events.handle(to_send)
            left_out += owners
            owners = to_send = ()
        for delivery, count in left_out:  # not before the event handler has returned: of what it raises the whole batch fails
            delivery.dropped(count)
        begin = 0
        for delivery, count in owners:
            self._give(to_send[begin : begin + count], delivery)
            begin += count

    def _give(self, records: Sequence[ProducerRecord], delivery: Delivery) -> None:
        """Hands records over: all at once if they are alike, as those of one `send` are."""
        try:
            topics, keys, values, headers, times, partitions = zip(*records, strict=True)
            if all(column.count(column[0]) == len(column) for column in (topics, keys, headers, times, partitions)):
                self._hand_over(topics[0], values, delivery, keys[0], headers[0], times[0], partitions[0])
                return
        except (TypeError, ValueError):
            pass  # below, one by one
        for record in records:
            try:
                topic, key, value, own_headers, timestamp_ms, partition = record
            except (TypeError, ValueError) as error:  # it is no record; those before it are on their way
                delivery.failed(failure_by(error, f"{record!r}: "))
            else:
                self._hand_over(topic, (value,), delivery, key, own_headers, timestamp_ms, partition)


def failure_by(error: BaseException, before: str = "a handler raised ") -> DeliveryFailed:
    """What the application's own code raised, as a delivery says it."""
    failure = DeliveryFailed(f"{before}{type(error).__name__}: {error}", -1)
    failure.__cause__ = error
    return failure

"""The producer of the paper: messages of a topic, one or many at a time, synchronous or asynchronous.

    with Producer(ProducerSettings(broker_list="127.0.0.1:9092")) as producer:
        producer.send("clicks", [b"first", b"second"])
        producer.send("clicks", b"third", key=b"alice")

`ottla.wire` sends them, on an event loop in a thread of its own (docs/decisions/0023): whole batches, pipelined, in order, each once.
What is here is the paper's interface to it. An asynchronous producer with a callback handler or an event handler has a queue and a
thread more before that; without them a message goes into its batch at once.

A delivery that fails never vanishes: `result` raises it, or else `flush` and `close` do. Any thread may call; a forked child is refused.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakSet

from ottla.client.errors import ClientClosed, DeliveryFailed, InvalidPartition
from ottla.client.handler_queue import HandlerQueue, failure_by
from ottla.client.outgoing import NO_PARTITION, Delivery, Outgoing
from ottla.client.partitioners import Partitioner
from ottla.client.producer_handlers import CallbackHandler, EventHandler, ProducerRecord
from ottla.client.record_sender import RecordSender, SendSettings
from ottla.clock import Clock, SystemClock, wall_ns
from ottla.config.client import ProducerSettings
from ottla.errors import ApiError, ConfigurationError, InvalidTransactionState, OperationNotAttempted, reason_of
from ottla.lifecycle import LoopThread, LoopThreadUnusable
from ottla.record.codecs import codec_number
from ottla.record.lists import NO_HEADERS
from ottla.record.message_ids import ids_of_sections, with_id
from ottla.record.records import encode_headers
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.transactions import TransactionState

if TYPE_CHECKING:
    from ottla.client.audited_clients import Reporter
    from ottla.client.auditing import OutgoingAudit

log: Final = logging.getLogger(__name__)

Encoder = Callable[[Any], bytes | None]

_CODECS: Final = {"0": "none", "1": "gzip", "2": "snappy"}
_ASKING_SECONDS: Final = 30.0  # for metadata, and for a step of a transaction
# `id:host:port` is how 0.7 has a broker; without the id it is today's address.
_ID_OF_07: Final = re.compile(r"(^|,)\s*\d+:(?=[^,:\[\]]+:\d+\s*(?:,|$))")
_CLOSE_SECONDS: Final = 60.0
_END_SECONDS: Final = 30.0  # beyond that, for connections, sessions and the thread
_ABORT_SECONDS: Final = 1.0  # at least, at the close of a producer with a transaction
_SYNC_BATCH: Final = 10_000  # messages
_SYNC_QUEUE: Final = 100_000
_PLAIN: Final = {bytes}

# Those of this process. A fork makes each of them unusable in the child: to ask for the process's id at each `send` takes time.
_producers: Final[WeakSet[Producer]] = WeakSet()


def _forked() -> None:
    for producer in _producers:
        producer.left_behind()


os.register_at_fork(after_in_child=_forked)


def _ends() -> None:
    for producer in _producers:
        producer.say_what_is_lost()


atexit.register(_ends)


class Producer:
    """Sends messages to the brokers of one cluster.

    Args:
        settings: where the brokers are, and how to send.
        encoder, key_encoder: make bytes of values and keys; without them they are bytes or str already.
        partitioner: chooses the partition; the Java client's hash of the key if None, any partition for a message without a key.
        callback_handler, event_handler: for an asynchronous producer.
        audit: whether what is sent is reported to the audit counter (docs/audit.md), which needs the extra `audit`; settings
            `ottla.audit.…` say so too.
        clock: measures timeouts.

    Raises:
        ConfigurationError: settings that contradict each other, or handlers of a synchronous producer.
        BrokerNotAvailable: ZooKeeper knows no broker.
        DeliveryFailed: the transactional id cannot be had.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        encoder: Encoder | None = None,
        key_encoder: Encoder | None = None,
        partitioner: Partitioner | None = None,
        callback_handler: CallbackHandler | None = None,
        event_handler: EventHandler | None = None,
        audit: bool | Mapping[str, Any] = False,
        clock: Clock | None = None,
    ) -> None:
        for _, error in settings.contradictions():
            raise error
        settings.warn_without_effect(settings.given, log)
        self.settings: Final = settings
        self._is_sync: Final = settings.producer_type == "sync"
        is_handled = callback_handler is not None or event_handler is not None
        if self._is_sync and is_handled:
            raise ConfigurationError("callback.handler, event.handler: they are for producer.type=async")
        self._encoder = encoder
        self._key_encoder = key_encoder
        self._partitioner = partitioner
        self._process_id = os.getpid()
        self._clock: Final = clock or SystemClock()
        self._is_closed = False
        self._patience_ms: Final = -1 if self._is_sync else settings.queue_enqueue_timeout_ms
        # How a transaction ends, until that is answered: no other one begins before.
        self._ending: Callable[[], None] | None = None
        self._thread: Final = LoopThread("ottla-producer")
        self._sender: RecordSender | None = None
        self._queue: HandlerQueue | None = None
        self._audit: OutgoingAudit | None = None
        self._stamp: tuple[tuple[str, str], ...] = ()  # headers that each message has besides its own
        self._names_messages = False  # puts an id on each that has none
        self._reporter: Reporter | None = None
        sending = _sending(settings)
        self._outgoing: Final = Outgoing(
            _SYNC_BATCH if self._is_sync else settings.batch_size,
            _SYNC_QUEUE if self._is_sync else settings.queue_size,
            sending.timeout_seconds,
            self._clock,
            self._wake,
        )
        self._open: Final = self._outgoing.open
        # What programs send most goes into its batch by the least of Python.
        self._is_plain = encoder is None and partitioner is None and not is_handled and not self._is_sync
        try:
            self._thread.call(self._begin(sending, audit), _ASKING_SECONDS + _END_SECONDS)
            if settings.transactional_id is not None:
                self._outgoing.refusal = self._outside
            if is_handled:
                self._queue = HandlerQueue(settings, callback_handler or CallbackHandler(), event_handler, self._outgoing, self._hand_over)
        except BaseException:
            self._is_closed = True
            self._end()
            raise
        _producers.add(self)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """A producer as a file of Kafka 0.7 or 0.8 describes it. Classes are `module:name`.

        Raises:
            ConfigurationError: a name that is unknown (with the nearest that is known), a value or a class that cannot be used.
        """
        settings = ProducerSettings.from_properties(properties)
        made = {
            "callback_handler": _loaded("callback.handler", settings.callback_handler),
            "event_handler": _loaded("event.handler", settings.event_handler),
            "encoder": _loaded("serializer.class", settings.serializer_class),
            "key_encoder": _loaded("key.serializer.class", settings.key_serializer_class),
            "partitioner": _loaded("partitioner.class", settings.partitioner_class),
        }
        return cls(settings, **{name: found() if isinstance(found, type) else found for name, found in made.items()})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self,
        topic: str,
        messages: Any,
        *,
        key: Any = None,
        headers: Sequence[tuple[str, str | bytes | None]] = (),
        timestamp_ms: int = 0,
        partition: int = NO_PARTITION,
    ) -> Delivery:
        """Sends one message, or a list or tuple of messages as a set. A synchronous producer returns when they are written.

        Args:
            key: of all of them; it chooses the partition.
            timestamp_ms: 0 for now.
            partition: -1 leaves the choice to the partitioner.

        Raises:
            DeliveryFailed: (sync) one of them at least is not written; or none can be outside a transaction.
            QueueFull: (async) there was no room within `queue.enqueue.timeout.ms`, or for a handler, which cannot wait; those before it
                are sent.
            InvalidPartition: the partitioner gave a number that no partition has, or `partition` can be none.
            ClientClosed: closed, or a forked child.
            TypeError: a key or a message that is neither bytes nor str; those before it are sent. Or a number or headers that are none.
            ValueError: no timestamp is so far away.
            What encoder, partitioner and `before_enqueue` raise.
        """
        outgoing = self._outgoing
        if type(messages) is bytes and self._is_plain and key is None and not headers and not timestamp_ms:
            with outgoing.lock:
                batch = self._open.get((topic, partition))
                if batch is not None:
                    delivery = outgoing.add(batch, messages, wall_ns() // 1_000_000)
                    if delivery is not None:
                        return delivery
        if self._queue is None:
            delivery = Delivery(outgoing)
            self._put(topic, messages, key, headers, timestamp_ms, partition, delivery)
            if self._is_sync:
                delivery.result()
            return delivery
        self._check_usable()
        values = messages if isinstance(messages, list | tuple) else (messages,)
        encoded_key = self._encoded_key(key)
        delivery = Delivery(outgoing)
        delivery.grown(len(values))
        encode = self._encoder
        # A `map` would end without a word at an encoder's StopIteration, as of a `next` that finds nothing.
        encoded_values = iter(values) if encode is None else (encode(value) for value in values)
        same = map(repeat, (tuple(headers), timestamp_ms, partition))
        # As `ProducerRecord(…)` would make them, without a call of Python for each.
        fields = zip(repeat(topic), repeat(encoded_key), encoded_values, *same)
        self._queue.put(map(tuple.__new__, repeat(ProducerRecord), fields), delivery)
        return delivery

    def flush(self, timeout_seconds: float = _CLOSE_SECONDS) -> None:
        """Waits until everything is delivered.

        Raises:
            DeliveryFailed: something is not written, and no `result` has said so.
            TimeoutError: not in that time.
            RuntimeError: called by a handler.
        """
        self._check_usable()
        self._flush(timeout_seconds)

    def _flush(self, timeout_seconds: float) -> None:
        outgoing = self._outgoing
        end = self._clock.monotonic() + timeout_seconds
        if self._queue is not None:
            self._queue.flush(timeout_seconds)
        if not outgoing.flush(max(0.0, end - self._clock.monotonic())):
            raise TimeoutError(f"{outgoing.left} messages are not delivered after {timeout_seconds:g} s")
        count, error = outgoing.take_failures()
        if error is not None:
            raise DeliveryFailed(f"{count} sends have failed; one of them: {error}", error.code)

    def close(self, timeout_seconds: float = _CLOSE_SECONDS) -> None:
        """Delivers what is on its way and closes. A second call does nothing. Raises as `flush`."""
        if self._is_closed:
            return
        self._is_closed = True
        end = self._clock.monotonic() + timeout_seconds
        queue = self._queue
        if queue is None:
            self._outgoing.refuse(_refuse)  # else it would wait for what other threads send meanwhile
        try:
            if queue is not None:
                queue.close(timeout_seconds)
            self._outgoing.refuse(_refuse)
            self._flush(timeout_seconds)
        finally:
            self._outgoing.refuse(_refuse)
            self._end(end - self._clock.monotonic())

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A transaction: what is sent in here is written as a whole, or not at all when something raises.

        Raises:
            DeliveryFailed: it cannot be begun or committed; then it is aborted, if it was not before, or by the next one if the abort is
                not answered. Only where the commit was not answered for a minute, and the message says so, does no one know: the next one
                asks for it again first, and raises if it was not committed.
        """
        if self.settings.transactional_id is None:
            raise ConfigurationError("transactional.id: a transaction needs one")
        self._check_usable()
        with self._coordinated():
            if self._ending is not None:
                self._ending()
            self._transactions.begin()
        if self._audit is not None:
            self._audit.begin_transaction()
        outgoing = self._outgoing
        outgoing.failure = outgoing.refusal = None
        try:
            yield self
            if self._queue is None:
                outgoing.refuse(self._outside)  # what other threads send from now on would be in the next one
            self.flush()
            failure = outgoing.failure
            if failure is not None:  # the program has seen it and continues; but a transaction is whole or nothing
                raise DeliveryFailed(f"not all of the transaction is written: {failure}", failure.code)
        except BaseException as error:  # the application's, perhaps, which is raised as it is
            try:
                if not self._is_closed:  # or `close` has aborted it
                    with self._coordinated():
                        self._abort()
            except DeliveryFailed as further:
                if isinstance(error, Exception):
                    raise
                error.add_note(f"and the abort is not answered: {further}")  # who interrupts a program wants it to end
            raise
        outgoing.refusal = self._outside
        with self._coordinated():
            self._commit()

    @contextmanager
    def _coordinated(self) -> Iterator[None]:
        """What the coordinator says, or that it says nothing, is raised as DeliveryFailed."""
        try:
            yield
        except (ApiError, OSError) as error:
            code = getattr(error, "code", -1)
            raise DeliveryFailed(f"transaction of {self.settings.transactional_id}: {reason_of(error)}", code) from error

    @property
    def _transactions(self) -> Any:
        assert self._sender is not None
        return self._sender.transactions

    def _abort(self) -> None:
        self._ending = self._abort
        outgoing = self._outgoing
        outgoing.refusal = self._outside
        if self._queue is not None:
            self._queue.drop()
        outgoing.discard(DeliveryFailed("the transaction is aborted", OperationNotAttempted.code))
        if self._queue is not None:
            self._queue.flush(_ASKING_SECONDS)
        outgoing.take_failures()  # the caller that aborts knows that nothing of it is written
        if self._audit is not None:
            self._audit.end_transaction(is_committed=False)
        if self._transactions.state is not TransactionState.READY:  # else it was answered as its caller was interrupted
            self._thread.call(self._transactions.abort(), _ASKING_SECONDS + _END_SECONDS)
        self._ending = None

    def _commit(self) -> None:
        self._ending = self._commit
        end = self._clock.monotonic() + _CLOSE_SECONDS
        while self._transactions.state is not TransactionState.READY:  # as it also is if its caller was interrupted by then
            try:
                self._thread.call(self._transactions.commit(), _ASKING_SECONDS + _END_SECONDS)
            except (ApiError, OSError):
                # As long as no one knows it can be asked for again, and not be aborted any more.
                if self._transactions.state is TransactionState.COMMITTING and self._clock.monotonic() < end:
                    continue
                if self._transactions.state is TransactionState.FAILED:
                    self._abort()
                raise
        self._ending = None
        if self._audit is not None:
            self._audit.end_transaction(is_committed=True)

    def left_behind(self) -> None:
        """This is a forked child: nothing is sent from now on."""
        self._is_closed, self._is_plain = True, False
        self._outgoing.refusal = _refuse
        self._outgoing.left_behind()

    def say_what_is_lost(self) -> None:
        """The program ends."""
        if self._is_closed:
            return
        left = self._outgoing.left + (0 if self._queue is None else self._queue.left)
        count, error = self._outgoing.take_failures()  # of what was looked up as the interpreter's threads ended, too
        if left:
            log.warning("%s: %d messages are lost: the producer was not closed", self.settings.client_id, left)
        if count:
            log.warning("%s: %d sends have failed; one of them: %s", self.settings.client_id, count, error)

    async def _begin(self, sending: SendSettings, audit: bool | Mapping[str, Any]) -> None:
        settings, discovery = self.settings, None
        if settings.broker_list is None:
            from ottla.client.discovery import BrokerDiscovery, open_client_session  # who has a broker list needs none of it

            discovery = BrokerDiscovery(open_client_session(settings.zookeeper_connect or ""))
            try:
                await discovery.begin()
            except BaseException:
                await discovery.close()
                raise
        asking = ClusterSettings(
            client_id=settings.client_id,
            request_timeout_seconds=settings.request_timeout_ms / 1000,
            api_timeout_seconds=_ASKING_SECONDS,
            retry_backoff_seconds=settings.retry_backoff_ms / 1000,
            retry_backoff_max_seconds=max(1.0, settings.retry_backoff_ms / 1000),
            allow_auto_create_topics=True,
        )
        servers = _ID_OF_07.sub(r"\1", settings.broker_list or "")
        try:
            cluster = Cluster(discovery or servers, asking, clock=self._clock)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        sender = self._sender = RecordSender(self._outgoing, cluster, sending, discovery, self._all_moved)
        if audit is not False:
            known = servers if discovery is None else await discovery.bootstrap_servers()
            sender.audit = self._audit = self._begun_audit(known, {} if audit is True else audit)
        try:
            await sender.begin()
        except (ApiError, OSError) as error:
            raise DeliveryFailed(f"transactional.id: {reason_of(error)}", getattr(error, "code", -1)) from error

    def _begun_audit(self, servers: str, configuration: Mapping[str, Any]) -> OutgoingAudit:
        from ottla.client.audited_clients import Reporter, names_messages, options_of, session_options, stamp_of  # with numpy and Avro
        from ottla.client.auditing import OutgoingAudit, new_session

        plain, options = options_of({"bootstrap.servers": servers, "client.id": self.settings.client_id, **configuration})
        session = new_session("producer", **session_options(options))
        counting = OutgoingAudit(session, self._outgoing, by_append=options["time"] == "append")
        self._reporter = Reporter(plain, counting, options)
        self._stamp, self._names_messages = stamp_of(options), names_messages(options)
        self._is_plain = self._is_plain and not self._stamp and not self._names_messages
        return counting

    def _all_moved(self, servers: str) -> None:
        if self._reporter is not None:
            self._reporter.move(servers)

    def _wake(self) -> None:
        """There is something for the sender, which belongs to its loop."""
        if self._sender is not None:
            self._sender.wake()

    def _end(self, left_seconds: float = 0.0) -> None:
        """Ends all that was begun."""
        self._is_plain = False
        sender, reporter = self._sender, self._reporter
        try:
            if sender is not None:
                abort_seconds = max(_ABORT_SECONDS, left_seconds)
                self._thread.call(sender.close(abort_seconds), abort_seconds + _END_SECONDS)
        except (LoopThreadUnusable, ApiError, OSError) as error:
            log.warning("%s: closing the producer: %s", self.settings.client_id, reason_of(error))
        finally:
            if reporter is not None:
                reporter.close()
            self._thread.close(_END_SECONDS)

    def _check_usable(self) -> None:
        if os.getpid() != self._process_id:
            raise ClientClosed(f"the producer belongs to process {self._process_id}, of which this is a forked child")
        if self._is_closed:
            raise _refuse()

    def _outside(self) -> DeliveryFailed:
        return DeliveryFailed(
            f"{self.settings.transactional_id} has no transaction open: nothing can be sent in this state", InvalidTransactionState.code
        )

    # Messages.

    def _encoded_key(self, key: Any) -> bytes | None:
        encoded = key if key is None or self._key_encoder is None else self._key_encoder(key)
        return _optional_octets(encoded)

    def _put(
        self,
        topic: str,
        messages: Any,
        key: Any,
        headers: Sequence[tuple[str, str | bytes | None]],
        timestamp_ms: int,
        partition: int,
        delivery: Delivery,
    ) -> None:
        if self._is_closed:
            self._check_usable()
        if not isinstance(topic, str):
            raise TypeError(f"a topic is a str, and not {type(topic).__name__}")
        encoded_key = self._encoded_key(key)
        section = self._section(headers)
        values: Sequence[Any] = messages if isinstance(messages, list | tuple) else (messages,)
        if self._encoder is None and self._partitioner is None and set(map(type, values)) == _PLAIN:
            self._enqueue(topic, values, encoded_key, section, timestamp_ms, partition, delivery)
            return
        # Those before one that cannot be sent are.
        encode, place = self._encoder or _optional_octets, partition
        ready: list[bytes | None] = []
        try:
            # A `map` would end without a word at an encoder's StopIteration, as of a `next` that finds nothing.
            for encoded in (encode(value) for value in values):
                to = self._chosen(topic, encoded_key, partition)
                if to != place and ready:
                    some, ready = ready, []
                    self._enqueue(topic, some, encoded_key, section, timestamp_ms, place, delivery)
                place = to
                ready.append(_optional_octets(encoded))
        finally:
            if ready:
                self._enqueue(topic, ready, encoded_key, section, timestamp_ms, place, delivery)

    def _enqueue(
        self,
        topic: str,
        values: Sequence[bytes | None],
        key: bytes | None,
        section: bytes | None,
        timestamp_ms: int,
        partition: int,
        delivery: Delivery,
    ) -> None:
        parts: Sequence[tuple[Sequence[bytes | None], bytes | None]] = [(values, section)]
        if self._names_messages and ids_of_sections([section or NO_HEADERS]) is None:
            parts = [((value,), with_id(section)) for value in values]
        for some, own in parts:
            self._outgoing.put(
                topic,
                some,
                delivery,
                key=key,
                section=own,
                timestamp_ms=timestamp_ms,
                partition=partition,
                patience_ms=self._patience_ms if self._queue is None else -1,
            )

    def _hand_over(
        self,
        topic: str,
        values: Sequence[bytes | None],
        delivery: Delivery,
        key: bytes | None,
        headers: Sequence[tuple[str, str | bytes | None]],
        timestamp_ms: int,
        partition: int,
    ) -> None:
        """Takes messages out of the queue with handlers, where they were counted."""
        is_plain = self._partitioner is None and not self._names_messages and set(map(type, values)) == _PLAIN
        if len(values) > 1 and not is_plain:
            for value in values:
                self._hand_over(topic, (value,), delivery, key, headers, timestamp_ms, partition)
            return
        try:
            octets = values if is_plain else list(map(_optional_octets, values))
            encoded_key = _optional_octets(key)
            section = self._section(headers)
            to = self._chosen(topic, encoded_key, partition)
            self._enqueue(topic, octets, encoded_key, section, timestamp_ms, to, delivery)
        except BaseException as error:  # the application's partitioner's, or it is no record; those before it are on their way
            delivery.failed(failure_by(error, f"{topic}: "), len(values))
        else:
            delivery.dropped(len(values))  # they are in batches now

    def _section(self, headers: Sequence[tuple[str, str | bytes | None]]) -> bytes | None:
        return _section_of([*(headers or ()), *self._stamp]) if headers or self._stamp else None

    def _chosen(self, topic: str, key: bytes | None, partition: int) -> int:
        """The partition that the program's partitioner chooses, if there is one and nothing else was given."""
        if partition >= 0 or self._partitioner is None:
            return partition
        count = self._outgoing.counts.get(topic)
        if count is None:
            assert self._sender is not None
            try:
                count = self._thread.call(self._sender.partition_count(topic), _ASKING_SECONDS + _END_SECONDS)
            except LoopThreadUnusable:
                raise _refuse() from None
        chosen = self._partitioner(key, count)
        if not isinstance(chosen, int) or not 0 <= chosen < count:
            raise InvalidPartition(f"the partitioner gives {chosen!r} for {topic}, which has {count} partitions")
        return chosen


def _refuse() -> ClientClosed:
    return ClientClosed("the producer is closed")


def _optional_octets(value: Any) -> bytes | None:
    """Raises TypeError: it is neither bytes nor text."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a key, a message or a header is bytes, str or None, and not {type(value).__name__}")


def _section_of(headers: Sequence[tuple[str, str | bytes | None]]) -> bytes:
    """Raises TypeError: they are no pairs."""
    for header in headers:
        if not (isinstance(header, tuple | list) and len(header) == 2 and isinstance(header[0], str)):  # a str would be taken apart
            raise TypeError(f"a header is a pair of a str and a value, and not {header!r:.100}")
    return encode_headers([(name, _optional_octets(value)) for name, value in headers])


def _sending(settings: ProducerSettings) -> SendSettings:
    is_sync, timeout_ms = settings.producer_type == "sync", settings.message_timeout_ms
    return SendSettings(
        linger_seconds=0.0 if is_sync else min(settings.queue_buffering_max_ms, timeout_ms // 2) / 1000,
        timeout_seconds=timeout_ms / 1000,
        acks=settings.request_required_acks,
        idempotent=settings.enable_idempotence or settings.transactional_id is not None,
        codec=codec_number(_CODECS.get(settings.compression_codec, settings.compression_codec)),
        transactional_id=settings.transactional_id,
        transaction_timeout_ms=max(60_000, timeout_ms),
    )


def _loaded(name: str, place: str | None) -> Any:
    if place is None:
        return None
    module, _, attribute = place.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{name} = {place!r}: {error or 'it is module:name'}") from error

"""The producer of the paper: messages of a topic, one or many at a time, synchronous or asynchronous.

    with Producer(ProducerSettings(broker_list="127.0.0.1:9092")) as producer:
        producer.send("clicks", [b"first", b"second"])
        producer.send("clicks", b"third", key=b"alice")

librdkafka sends them (docs/decisions/0023): it batches, compresses, retries in order and keeps idempotence and transactions. What is
ours is the paper's interface to it. An asynchronous producer with a callback handler or an event handler has a queue and a thread of its
own before librdkafka's; without them messages go to librdkafka's queue at once.

A delivery that fails never vanishes: `result` raises it, or else `flush` and `close` do. Any thread may call; a forked child is refused.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import repeat
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias
from weakref import WeakSet

from ottla.client.errors import ClientClosed, DeliveryFailed, InvalidPartition, QueueFull
from ottla.client.partitioners import Partitioner
from ottla.client.producer_handlers import CallbackHandler, EventHandler, ProducerRecord
from ottla.clock import Clock, SystemClock
from ottla.config.client import ProducerSettings
from ottla.errors import ConfigurationError
from ottla.model import TopicPartition

if TYPE_CHECKING:
    from ottla.client.discovery import BrokerDiscovery, Discovered

log: Final = logging.getLogger(__name__)

Encoder = Callable[[Any], bytes | None]
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

_CODECS: Final = {"0": "none", "1": "gzip", "2": "snappy"}
_ASKING_SECONDS: Final = 30.0  # for metadata, and for a step of a transaction
_COUNT_SECONDS: Final = 60.0  # as long is a topic's number of partitions taken to stay
# `id:host:port` is how 0.7 has a broker; librdkafka would take it for an IPv6 address.
_ID_OF_07: Final = re.compile(r"(^|,)\s*\d+:(?=[^,:\[\]]+:\d+\s*(?:,|$))")
_PURGED: Final = -152  # KafkaError._PURGE_QUEUE: taken out of librdkafka's queue, and never sent
_POLL_SECONDS: Final = 0.1
_POLLED_AFTER: Final = 50  # messages: to ask librdkafka for deliveries costs a third as much as to give it a message
_FOLLOWING_SECONDS: Final = 3.0  # for the brokers to answer what there is
_CLOSE_SECONDS: Final = 60.0


# Those of this process. A fork makes each of them unusable in the child: to ask for the process's id at each `send` takes a quarter longer.
_producers: Final[WeakSet[Producer]] = WeakSet()


def _forked() -> None:
    for producer in _producers:
        producer.leave()


os.register_at_fork(after_in_child=_forked)


class Delivery:
    """What becomes of the messages of one `send`."""

    __slots__ = ("_error", "_expected", "_producer", "_written")

    def __init__(self, producer: Producer, count: int) -> None:
        self._producer = producer
        self._expected = count  # those that are written, too
        self._error: DeliveryFailed | None = None
        # Topic, partition and offset of each message that was written, as they came.
        self._written: list[tuple[str, int, int]] | tuple[()] = ()

    @property
    def is_done(self) -> bool:
        """Whether all of them are written or have failed, as far as the brokers have said."""
        self._producer.poll(0)
        return self.left == 0

    @property
    def left(self) -> int:
        """How many are neither written nor have failed."""
        return self._expected - len(self._written)

    def result(self, timeout_seconds: float | None = None) -> list[tuple[TopicPartition, int]]:
        """Waits until all of them are written, and gives partition and offset of each, in the order of the acknowledgements.

        Raises:
            DeliveryFailed: one of them at least is not written, or no one knows.
            TimeoutError: not in that time; it continues all the same.
        """
        end = None if timeout_seconds is None else self._producer.monotonic() + timeout_seconds
        while self.left:
            left = _POLL_SECONDS if end is None else min(_POLL_SECONDS, end - self._producer.monotonic())
            if left <= 0:
                raise TimeoutError(f"{self.left} messages are not delivered after {timeout_seconds:g} s")
            self._producer.poll(left)
        if self._error is not None:
            self._producer.seen(self)
            raise self._error
        return [(TopicPartition(topic, partition), offset) for topic, partition, offset in self._written]

    def failed(self, error: DeliveryFailed, count: int = 1) -> None:
        """So many messages are not written."""
        self._error = self._error or error
        self._expected -= count
        self._producer.unseen(self)

    def dropped(self, count: int = 1) -> None:
        """So many messages are not to be written, or someone else has."""
        self._expected -= count

    def grown(self, count: int) -> None:
        """So many messages more belong to it."""
        self._expected += count

    def __call__(self, error: Any, message: Any) -> None:
        """As librdkafka calls it, once for each message. A bound method would be one more object for each, for the collector to look at."""
        if error is not None:
            self.failed(DeliveryFailed(f"{message.topic()}: {error.str()}", error.code()))
            return
        where = (message.topic(), message.partition(), message.offset())
        if self._written:
            self._written.append(where)
        else:
            self._written = [where]

    @property
    def error(self) -> DeliveryFailed | None:
        """The first failure."""
        return self._error


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
        handlers = (callback_handler, event_handler)
        self.settings: Final = settings
        self._is_sync: Final = settings.producer_type == "sync"
        if self._is_sync and any(handler is not None for handler in handlers):
            raise ConfigurationError("callback.handler, event.handler: they are for producer.type=async")
        self._encoder = encoder
        self._key_encoder = key_encoder
        self._partitioner = partitioner
        self._audit: Mapping[str, Any] | None = None if audit is False else {} if audit is True else audit
        self._process_id = os.getpid()
        self._clock: Final = clock or SystemClock()
        self._is_usable = True  # neither closed, nor in a forked child
        self._takes_more = True  # and not being closed
        # How a transaction ends, until that is answered: librdkafka begins no other one before.
        self._ending: Callable[[], None] | None = None
        self._unseen: set[Delivery] = set()
        self._unpolled = 0  # messages sent since deliveries were asked for
        self._partition_counts: dict[str, tuple[int, float]] = {}
        self._discovery: BrokerDiscovery | None = None
        servers = settings.broker_list and _ID_OF_07.sub(r"\1", settings.broker_list)
        if servers is None:
            from ottla.client.discovery import BrokerDiscovery, open_client_session  # who has a broker list needs none of it

            self._discovery = BrokerDiscovery(open_client_session(settings.zookeeper_connect or ""))
            servers = self._discovery.bootstrap_servers
        self._former: list[Any] = []  # clients of brokers that have all gone, until nothing is on its way
        self._moving: Final = threading.RLock()  # what a former client gives back goes before what is sent next
        self._addresses = set(servers.split(","))
        self._sender: _Sender | None = None
        self._client: Any = None
        try:
            self._client = self._connected(servers)
            # librdkafka's own, for messages that nothing here has to look at or remember.
            produce = self._client.produce if partitioner is None and self._discovery is None else None
            is_plain = not self._is_sync and encoder is None and key_encoder is None and all(handler is None for handler in handlers)
            self._plain_produce = produce if is_plain else None
            if self._discovery is not None:
                self._discovery.follow(self._follow)
            if any(handler is not None for handler in handlers):
                self._sender = _Sender(settings, callback_handler or CallbackHandler(), event_handler, self._hand_over, produce, self)
        except BaseException:
            self._end_discovery()
            self._end_audit(self._client)
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def send(
        self,
        topic: str,
        messages: Any,
        *,
        key: Any = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int = 0,
        partition: int = -1,
    ) -> Delivery:
        """Sends one message, or a list or tuple of messages as a set. A synchronous producer returns when they are written.

        Args:
            key: of all of them; it chooses the partition.
            timestamp_ms: 0 for now.
            partition: -1 leaves the choice to the partitioner.

        Raises:
            DeliveryFailed: (sync) one of them at least is not written; or none can be any more, or not outside a transaction.
            QueueFull: (async) there was no room within `queue.enqueue.timeout.ms`; those before it are sent.
            InvalidPartition: the partitioner gave a number that no partition has.
            ClientClosed: closed, or a forked child.
            What encoder, partitioner and `before_enqueue` raise.
        """
        produce = self._plain_produce
        if produce is not None and type(messages) is bytes and not headers and not timestamp_ms:
            delivery = Delivery(self, 1)  # what programs send most, by the least of Python
            try:
                produce(topic, messages, key, partition, delivery)
            except self.refusals:
                self._produce(topic, key, messages, (), 0, partition, delivery)
            self._unpolled += 1
            if self._unpolled >= _POLLED_AFTER:
                self.poll(0)
            return delivery
        if not self._takes_more:
            self._check_process()
            raise ClientClosed("the producer is closed")
        if self._discovery is not None:
            self._discovery.uses(topic)
        values = messages if isinstance(messages, list | tuple) else (messages,)
        encoded_key = key if key is None or self._key_encoder is None else self._key_encoder(key)
        if isinstance(encoded_key, str):  # as librdkafka has it; a partitioner and the handlers see it, too
            encoded_key = encoded_key.encode()
        delivery = Delivery(self, len(values))
        unread = iter(values)
        encode = self._encoder
        # A `map` would end without a word at an encoder's StopIteration, as of a `next` that finds nothing.
        encoded_values = unread if encode is None else (encode(value) for value in unread)
        sender = self._sender
        headers_given = tuple(headers) if headers else ()
        if sender is not None:
            same = map(repeat, (headers_given, timestamp_ms, partition))
            # As `ProducerRecord(…)` would make them, without a call of Python for each.
            fields = zip(repeat(topic), repeat(encoded_key), encoded_values, *same)
            sender.put(map(tuple.__new__, repeat(ProducerRecord), fields), delivery)
        else:
            is_bare = not (headers_given or timestamp_ms or self._partitioner is not None or self._discovery is not None)
            told, produce, stamped, entered = delivery, self._opened().produce, 0, None
            if self._audit is not None and is_bare:
                # A bound method, as an object that is called is a call of C and of Python.
                produce, told, stamped, entered = self._opened().at_once(topic, len(values), delivery.__call__)
            try:
                for encoded in encoded_values:
                    if not is_bare:
                        self._hand_over(ProducerRecord(topic, encoded_key, encoded, headers_given, timestamp_ms, partition), delivery)
                        continue
                    try:  # the same, without a call of Python for each message
                        if entered is None:
                            produce(topic, encoded, encoded_key, partition, told)
                        else:
                            produce(topic, encoded, encoded_key, partition, told, None, stamped)
                    except self.refusals:
                        self._produce(topic, encoded_key, encoded, (), 0, partition, delivery)
                        if entered is not None:
                            entered.pop()
            except BaseException as error:
                left = length_hint(unread)
                delivery.dropped(left + 1)
                if entered is not None:  # the one that was interrupted may be on its way
                    for _ in range(left + isinstance(error, Exception)):
                        entered.pop()
                raise
        if self._is_sync:
            delivery.result()
            return delivery
        self._unpolled += len(values)
        if self._unpolled >= _POLLED_AFTER:
            self.poll(0)
        return delivery

    def flush(self, timeout_seconds: float = _CLOSE_SECONDS) -> None:
        """Waits until everything is delivered.

        Raises:
            DeliveryFailed: something is not written, and no `result` has said so.
            TimeoutError: not in that time.
        """
        self._check_usable()
        end = self._clock.monotonic() + timeout_seconds
        if self._sender is not None:
            self._sender.flush(timeout_seconds)
        latest = None
        while latest is not self._client:  # or all brokers have moved meanwhile, and it has what its predecessor gave back
            *_, latest = clients = self._clients()
            if left := sum(client.flush(max(0.0, end - self._clock.monotonic())) for client in clients):
                raise TimeoutError(f"{left} messages are not delivered after {timeout_seconds:g} s")
        unseen, self._unseen = self._unseen, set()  # another thread may add to it meanwhile
        if errors := [delivery.error for delivery in unseen if delivery.error is not None]:
            raise DeliveryFailed(f"{len(errors)} sends have failed; one of them: {errors[0]}", errors[0].code)

    def close(self, timeout_seconds: float = _CLOSE_SECONDS) -> None:
        """Delivers what is on its way and closes. A second call does nothing. Raises as `flush`."""
        if not self._is_usable:
            return
        self._takes_more, self._plain_produce = False, None  # else it would wait for what other threads send meanwhile
        try:
            if self._sender is not None:
                self._sender.close(timeout_seconds)
            self.flush(timeout_seconds)
        finally:
            self.leave()
            self._end_discovery()
            for client in self._clients():
                if client.flush(0):
                    client.purge()
                    client.flush(1)
            self._end_audit(self._client)
            # librdkafka's threads and connections last as long as anyone refers to its clients.
            self._sender, self._client, self._former = None, None, []

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A transaction: what is sent in here is written as a whole, or not at all when something raises.

        Raises:
            DeliveryFailed: it cannot be begun or committed; then it is aborted, if it was not before, or by the next one if the abort is
                not answered. Only where the commit was not answered for a minute, and the message says so, does no one know: the next one
                asks for it again first, and raises if it was not committed.
        """
        from confluent_kafka import KafkaException

        if self.settings.transactional_id is None:
            raise ConfigurationError("transactional.id: a transaction needs one")
        self._check_usable()
        try:
            if self._ending is not None:
                self._ending()
            self._client.begin_transaction()
            try:
                yield self
                self.flush()
            except BaseException:
                self._abort()
                raise
            self._commit()
        except KafkaException as error:
            raise DeliveryFailed(f"transaction of {self.settings.transactional_id}: {error.args[0].str()}", error.args[0].code()) from error

    def _abort(self) -> None:
        self._ending = self._abort
        if self._sender is not None:
            self._sender.drop()
            self._client.purge()  # makes room for what is on its way to librdkafka
            self._sender.flush(_ASKING_SECONDS)
        self._client.purge()
        self._client.flush(_ASKING_SECONDS)
        self._unseen.clear()  # the caller that aborts knows that nothing of it is written
        self._client.abort_transaction(_ASKING_SECONDS)
        self._ending = None

    def _commit(self) -> None:
        from confluent_kafka import KafkaException

        self._ending = self._commit
        end = self._clock.monotonic() + _CLOSE_SECONDS
        while True:
            try:
                self._client.commit_transaction(_ASKING_SECONDS)
                self._ending = None
                return
            except KafkaException as error:
                # librdkafka continues what was not answered in time: that can be asked for again, and not be aborted any more.
                if error.args[0].retriable() and self._clock.monotonic() < end:
                    continue
                if error.args[0].txn_requires_abort():
                    self._abort()
                raise

    # For deliveries and the sender.

    def poll(self, timeout_seconds: float) -> None:
        """Hears of deliveries."""
        if not self._is_usable:
            self._check_process()
        self._unpolled = 0
        for client in self._former:
            client.poll(0)
        if (client := self._client) is not None:
            client.poll(timeout_seconds)
        elif timeout_seconds:  # what was not given back at its close is not known any more
            raise ClientClosed("the producer is closed")

    def leave(self) -> None:
        """It is closed, or this is a forked child: nothing is sent from now on."""
        self._is_usable = self._takes_more = False
        self._plain_produce = None

    def monotonic(self) -> float:
        """What timeouts are measured with."""
        return self._clock.monotonic()

    def unseen(self, delivery: Delivery) -> None:
        """The delivery has failed and no one knows yet."""
        self._unseen.add(delivery)

    def seen(self, delivery: Delivery) -> None:
        """Its failure was raised."""
        self._unseen.discard(delivery)

    def _opened(self) -> Any:
        """librdkafka's client. Raises ClientClosed."""
        client = self._client
        if client is None:
            raise ClientClosed("the producer is closed")
        return client

    def _hand_over(self, record: ProducerRecord, delivery: Delivery) -> None:
        """Gives one message to librdkafka."""
        partition = record.partition
        if partition < 0 and self._partitioner is not None:
            count = self._partition_count(record.topic)
            partition = self._partitioner(record.key, count)
            if not isinstance(partition, int) or not 0 <= partition < count:
                raise InvalidPartition(f"the partitioner gives {partition!r} for {record.topic}, which has {count} partitions")
        if not record.headers and not record.timestamp_ms and self._discovery is None:
            try:
                self._opened().produce(record.topic, record.value, record.key, partition, delivery)
                return
            except self.refusals:
                pass  # below, with patience
        self._produce(record.topic, record.key, record.value, record.headers, record.timestamp_ms, partition, delivery)

    def _produce(
        self,
        topic: str,
        key: Any,
        value: Any,
        headers: Headers,
        timestamp_ms: int,
        partition: int,
        delivery: Delivery,
    ) -> None:
        from confluent_kafka import KafkaError, KafkaException

        told: Callable[[Any, Any], None] = delivery
        if self._discovery is not None:
            told = partial(self._delivered, delivery, (topic, key, value, headers, timestamp_ms, partition))
        end: float | None = None
        while True:
            try:
                with self._moving:
                    client = self._opened()
                    if headers:
                        client.produce(topic, value, key, partition, told, timestamp=timestamp_ms, headers=list(headers))
                    else:
                        client.produce(topic, value, key, partition, told, timestamp=timestamp_ms)
                return
            except BufferError:
                timeout_ms = -1 if self._is_sync else self.settings.queue_enqueue_timeout_ms
                now = self._clock.monotonic()
                end = now + timeout_ms / 1000 if end is None else end
                if timeout_ms >= 0 and now >= end:
                    raise QueueFull(f"the queue has {self.settings.queue_size} messages, for {timeout_ms} ms by now") from None
                client.poll(_POLL_SECONDS if timeout_ms < 0 else min(_POLL_SECONDS, end - now))
            except KafkaException as error:
                failure = DeliveryFailed(f"{topic}: {error.args[0].str()}", error.args[0].code())
                if failure.code in (KafkaError._STATE, KafkaError._FATAL, KafkaError._FENCED):  # of which no other would be taken either
                    raise failure from error
                delivery.failed(failure)  # as of a message that is too large: it fails alone
                return

    def _partition_count(self, topic: str) -> int:
        from confluent_kafka import KafkaException

        count, until = self._partition_counts.get(topic, (0, 0.0))
        now = self._clock.monotonic()
        if now >= until:
            try:
                found = self._opened().list_topics(topic, _ASKING_SECONDS).topics[topic]
            except KafkaException as error:
                raise DeliveryFailed(f"{topic}: {error.args[0].str()}", error.args[0].code()) from error
            if found.error is not None:
                raise DeliveryFailed(f"{topic}: {found.error.str()}", found.error.code())
            count = len(found.partitions)
            self._partition_counts[topic] = (count, now + _COUNT_SECONDS)
        return count

    # Brokers that come and go, in the discovery's thread.

    def _follow(self, found: Discovered) -> bool:
        """Has librdkafka ask the brokers, and gives whether they say what ZooKeeper does."""
        from confluent_kafka import KafkaException

        self._former = [client for client in self._former if len(client)]
        registered = set(found.bootstrap_servers.split(","))
        try:
            metadata = self._client.list_topics(timeout=_FOLLOWING_SECONDS)
        except KafkaException as error:
            log.info("%s: the brokers do not say what there is: %s", self.settings.client_id, error.args[0].str())
            if not registered & self._addresses:
                self._move(found.bootstrap_servers)
            return False
        self._addresses |= {f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()}
        counts = {name: len(metadata.topics[name].partitions) for name in found.partition_counts if name in metadata.topics}
        until = self._clock.monotonic() + _COUNT_SECONDS
        self._partition_counts = {name: (count, until) for name, count in counts.items() if count}
        return counts == found.partition_counts and registered <= self._addresses

    def _move(self, servers: str) -> None:
        """All brokers have other addresses than any that librdkafka knows, and it can be given none: another client begins there."""
        if self.settings.transactional_id is not None:
            log.error("%s: all brokers have moved to %s; a transactional producer has to be opened again", self.settings.client_id, servers)
            return
        log.warning("%s: all brokers have moved; going on with %s", self.settings.client_id, servers)
        former, client = self._client, self._connected(servers)
        if self._audit is not None:
            client.take_over(former, servers)
        self._addresses = set(servers.split(","))
        with self._moving:
            self._client = client
            self._former.append(former)
            former.purge(in_queue=True, in_flight=False)
            former.poll(0)  # has `_delivered` called of each

    def _delivered(self, delivery: Delivery, sent: tuple[str, Any, Any, Headers, int, int], error: Any, message: Any) -> None:
        """As a `Delivery`; what never left a client whose brokers have all moved is sent by its successor."""
        if error is not None and error.code() == _PURGED and self._former and self._is_usable:
            self._produce(*sent, delivery)
        else:
            delivery(error, message)

    def _clients(self) -> list[Any]:
        return [*self._former, self._client]

    def _end_discovery(self) -> None:
        if self._discovery is not None:
            self._discovery.close()

    def _end_audit(self, client: Any) -> None:
        if self._audit is not None and client is not None:
            client.audit_reporter.close()

    def _connected(self, servers: str) -> Any:
        import confluent_kafka

        settings = self.settings
        is_idempotent = settings.enable_idempotence or settings.transactional_id is not None
        properties: dict[str, Any] = {
            "bootstrap.servers": servers,
            "client.id": settings.client_id,
            "acks": settings.request_required_acks,
            "enable.idempotence": is_idempotent,
            "compression.type": _CODECS.get(settings.compression_codec, settings.compression_codec),
            "message.timeout.ms": settings.message_timeout_ms,
            "partitioner": "murmur2_random",
            "linger.ms": 0 if self._is_sync else min(settings.queue_buffering_max_ms, settings.message_timeout_ms - 1),
            "batch.num.messages": 10_000 if self._is_sync else settings.batch_size,
            "queue.buffering.max.messages": 100_000 if self._is_sync else settings.queue_size,
        }
        if settings.transactional_id is not None:
            properties["transactional.id"] = settings.transactional_id
            properties["transaction.timeout.ms"] = max(60_000, settings.message_timeout_ms)
        self.refusals = (BufferError, confluent_kafka.KafkaException)  # of a message, by librdkafka; `_produce` says what that means
        kind: Any = confluent_kafka.Producer
        if self._audit is not None:
            from ottla.client.audited_clients import audited  # with numpy and Avro

            kind = audited(kind)
            properties |= self._audit
        client = None
        try:
            client = kind(properties, logger=log)
            if settings.transactional_id is not None:
                client.init_transactions(_ASKING_SECONDS)
        except confluent_kafka.KafkaException as error:
            self._end_audit(client)
            if error.args[0].code() == confluent_kafka.KafkaError._INVALID_ARG:
                raise ConfigurationError(error.args[0].str()) from error
            raise DeliveryFailed(f"transactional.id: {error.args[0].str()}", error.args[0].code()) from error
        return client

    def _check_process(self) -> None:
        if os.getpid() != self._process_id:
            raise ClientClosed(f"the producer belongs to process {self._process_id}, of which this is a forked child")

    def _check_usable(self) -> None:
        self._check_process()
        if not self._is_usable:
            raise ClientClosed("the producer is closed")


class _Sender:
    """The queue of an asynchronous producer with handlers, and the thread that empties it."""

    def __init__(
        self,
        settings: ProducerSettings,
        callbacks: CallbackHandler,
        events: EventHandler | None,
        hand_over: Callable[[ProducerRecord, Delivery], None],
        produce: Callable[..., None] | None,
        producer: Producer,
    ) -> None:
        self._settings = settings
        self._callbacks = callbacks
        self._events = events
        self._hand_over = hand_over
        self._produce = produce
        self._producer = producer
        self._queue: deque[tuple[ProducerRecord, Delivery]] = deque()
        self._changed = threading.Condition()
        self._is_hurried = self._is_closing = self._is_busy = False
        callbacks.init(settings)
        self._thread = threading.Thread(target=self._run, name="ottla-producer", daemon=True)
        self._thread.start()

    def put(self, records: Iterable[ProducerRecord], delivery: Delivery) -> None:
        """Enqueues the messages of one `send`. Raises QueueFull, and what making a record or `before_enqueue` raises."""
        before = self._callbacks.before_enqueue
        ready: list[ProducerRecord] = []
        try:
            for record in records:
                changed = before(record)
                if changed is not None:
                    ready.append(changed)
        finally:
            delivery.dropped(delivery.left - len(ready))
            self._enqueue(ready, delivery)

    def _enqueue(self, ready: list[ProducerRecord], delivery: Delivery) -> None:
        size, timeout_ms = self._settings.queue_size, self._settings.queue_enqueue_timeout_ms
        begin = 0
        while begin < len(ready):
            with self._changed:
                has_room = self._changed.wait_for(
                    lambda: len(self._queue) < size or self._is_closing, None if timeout_ms < 0 else timeout_ms / 1000
                )
                if self._is_closing:  # its thread may have ended
                    delivery.dropped(len(ready) - begin)
                    raise ClientClosed("the producer is closed")
                former = len(self._queue)
                some = ready[begin : begin + size - former] if has_room else ready[begin:]
                if has_room:
                    self._queue += zip(some, repeat(delivery))
                    if not former or former < self._settings.batch_size <= len(self._queue):
                        self._changed.notify_all()
            after = self._callbacks.after_enqueue
            for record in some:
                after(record, has_room)
            if not has_room:
                delivery.dropped(len(some))
                raise QueueFull(f"the queue has {size} messages, for {timeout_ms} ms by now")
            begin += len(some)

    def flush(self, timeout_seconds: float) -> None:
        """Waits until the queue is empty. Raises TimeoutError."""
        with self._changed:
            self._is_hurried = True
            self._changed.notify_all()
            is_empty = self._changed.wait_for(lambda: not self._queue and not self._is_busy, timeout_seconds)
            self._is_hurried = False
        if not is_empty:
            raise TimeoutError(f"{len(self._queue)} messages are in the queue after {timeout_seconds:g} s")

    def drop(self) -> None:
        """Does not send what is in the queue."""
        with self._changed:
            dropped = Counter(delivery for _, delivery in self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for delivery, count in dropped.items():
            delivery.failed(DeliveryFailed("the transaction is aborted", _PURGED), count)

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
                self._is_busy = False
                self._changed.notify_all()
        added = Delivery(self._producer, 0)
        try:
            last = self._callbacks.last_batch_before_close()
            if last:
                added.grown(len(last))
                self._deliver(last, last, [added] * len(last))
        except BaseException as error:
            added.failed(_failure_by(error), added.left)
        try:
            self._callbacks.close()
        except Exception:  # the handler is the application's
            log.exception("the callback handler failed at the producer's close")

    def _next_batch(self) -> list[tuple[ProducerRecord, Delivery]]:
        """What goes together: when there is enough, or the first has waited long enough. Nothing at the end."""
        size, seconds = self._settings.batch_size, self._settings.queue_buffering_max_ms / 1000
        with self._changed:
            while True:
                self._changed.wait_for(lambda: bool(self._queue) or self._is_closing)
                self._changed.wait_for(lambda: len(self._queue) >= size or self._is_closing or self._is_hurried, seconds)
                if self._queue or self._is_closing:  # and it was not dropped
                    break
            if len(self._queue) <= size:
                batch = list(self._queue)
                self._queue.clear()
            else:
                batch = [self._queue.popleft() for _ in range(size)]
            self._is_busy = bool(batch)
            self._changed.notify_all()
        return batch

    def _send(self, batch: list[tuple[ProducerRecord, Delivery]]) -> None:
        records: list[ProducerRecord] = []
        owners: list[Delivery] = []
        grown: Counter[Delivery] = Counter()
        after = self._callbacks.after_dequeuing
        try:
            for record, delivery in batch:
                found = after(record)
                records += found
                owners.append(delivery)
                if len(found) != 1:
                    delivery.grown(len(found) - 1)
                    grown[delivery] += len(found) - 1
                    owners[-1:] = [delivery] * len(found)
            self._deliver(self._callbacks.before_sending(records), records, owners)
        except BaseException as error:
            # The handler is the application's, also what is no `Exception`. The batch has failed, and the thread continues with the next.
            failure = _failure_by(error)
            for delivery, count in Counter(delivery for _, delivery in batch).items():
                delivery.failed(failure, min(count + grown[delivery], delivery.left))

    def _deliver(self, to_send: Sequence[ProducerRecord], records: Sequence[ProducerRecord], owners: Sequence[Delivery]) -> None:
        """Sends some of the records, each of which has an owner, and others that a handler has added."""
        left_out: list[Delivery] = []
        if to_send is not records:
            added = Delivery(self._producer, 0)
            by_id: dict[int, list[Delivery]] = {}
            for record, delivery in zip(records, owners, strict=True):
                by_id.setdefault(id(record), []).append(delivery)
            owners = [by_id[id(record)].pop(0) if by_id.get(id(record)) else added for record in to_send]
            left_out = [delivery for rest in by_id.values() for delivery in rest]
            added.grown(sum(delivery is added for delivery in owners))
        if self._events is not None:
            self._events.handle(to_send)
            left_out += owners
            owners = to_send = ()
        for delivery in left_out:  # not before the event handler has returned: of what it raises the whole batch fails
            delivery.dropped()
        produce = self._produce
        for record, delivery in zip(to_send, owners, strict=True):
            try:
                topic, key, value, headers, timestamp_ms, partition = record
                if produce is None or headers or timestamp_ms:
                    self._hand_over(record, delivery)
                    continue
                try:  # the same, without a call of Python for each message
                    produce(topic, value, key, partition, delivery)
                except self._producer.refusals:
                    self._hand_over(record, delivery)
            except BaseException as error:
                # librdkafka's, or the application's partitioner's, or it is no record. Those before it are on their way.
                delivery.failed(_failure_by(error, f"{getattr(record, 'topic', record)}: "))


def _failure_by(error: BaseException, before: str = "a handler raised ") -> DeliveryFailed:
    failure = DeliveryFailed(f"{before}{type(error).__name__}: {error}", -1)
    failure.__cause__ = error
    return failure


def _loaded(name: str, place: str | None) -> Any:
    if place is None:
        return None
    module, _, attribute = place.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{name} = {place!r}: {error or 'it is module:name'}") from error

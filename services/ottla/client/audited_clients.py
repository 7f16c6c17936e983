"""Clients of confluent-kafka, audited: they count what they send and read, and report it to `__audit`.

    producer = audited(confluent_kafka.Producer)({"bootstrap.servers": "…", "ottla.audit.application": "checkout"})
    consumer = audited(confluent_kafka.Consumer)({"bootstrap.servers": "…", "group.id": "billing"})

They are what they were in everything else; settings that begin with `ottla.audit.` are taken out of the configuration. A producer's
messages are stamped here unless they have a time, so that the window is known in which they are on their way.

A message costs two calls of Python: `produce` enters it in a list; with its delivery report it leaves that list, and the report is kept in
another one, which is read by columns, many at a time. librdkafka's copy is hashed: what was sent, whatever became of the buffer.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise, repeat
from operator import itemgetter, methodcaller
from typing import Any, Final, TypeAlias, TypeVar

import confluent_kafka
import numpy as np

from ottla.client.auditing import Audit, ConsumerAudit, Outcomes, ProducerAudit, new_session
from ottla.clock import SystemClock, wall_ns
from ottla.network.audit_schema import AuditSchemaId
from ottla.record.audit_records import MAXIMUM_TEXT, TOPIC, AuditRecord, Session, encode
from ottla.record.digests import digests_of
from ottla.record.message_ids import ID_HEADER, id_of, new_id

log: Final = logging.getLogger(__name__)

_CLOCK: Final = SystemClock()

T = TypeVar("T")

PREFIX: Final = "ottla.audit."
_DEFAULTS: Final = {
    "report.interval.ms": 10_000,
    "window.ms": 60_000,
    "application": "",
    "cluster": "",
    "host": "",
    "host.header": "",
    "id.header": "false",
    "max.records": 10_000,
    "time": "message",  # or append
    "schema.registry.url": "",
    "schema.registry.basic.auth.user.info": "",
}
# The lowest and the highest: a counter takes none of another window, and no name that is longer.
_BOUNDS: Final = {"report.interval.ms": (1, 86_400_000), "window.ms": (10_000, 600_000), "max.records": (1, 10_000_000)}
_NAMES: Final = ("application", "cluster", "host")
# What a reporter's own producer takes over: how to reach the cluster.
_CONNECTION: Final = (
    *("bootstrap.servers", "metadata.broker.list", "client.id", "client.dns.", "broker."),
    *("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "oauth_cb", "https."),
)
_TOO_LARGE: Final = confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE
_CLOSE_SECONDS: Final = 10.0
_PURGE_SECONDS: Final = 1.0
_ONE_SECONDS: Final = 0.5  # for a record that is sent by itself
# Delivery reports are read when there are so many, and at once with one of so large a value: so few bytes are held.
_READ_AT: Final = 512
_READ_BYTES: Final = 32_768
_READ_FROM: Final = 16  # messages that a consumer is given at once are read by columns; fewer are read one by one in less time


class Reporter:
    """Writes what an audit counted to `__audit`, and keeps what was not acknowledged; in a thread of its own.

    Args:
        configuration: of the client, for how to reach the cluster.
        audit: what counts.
        options: `ottla.audit.…` without that.
    """

    def __init__(self, configuration: Mapping[str, Any], audit: Audit, options: Mapping[str, Any]) -> None:
        self._connection = {name: value for name, value in configuration.items() if name.startswith(_CONNECTION)}
        self._audit = audit
        self._interval_seconds = int(options["report.interval.ms"]) / 1000
        self._most = int(options["max.records"])
        urls = [url.strip() for url in str(options["schema.registry.url"]).split(",") if url.strip()]
        self._schema = AuditSchemaId(urls, _CLOCK, str(options["schema.registry.basic.auth.user.info"]) or None)
        self._waiting: deque[AuditRecord] = deque()
        self._moved_to: str | None = None
        self._has_failed = False
        self._is_one_by_one = self._is_too_large = False
        self._producer = self._connected()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ottla-audit", daemon=True)
        self._thread.start()

    def _connected(self) -> confluent_kafka.Producer:
        own = {
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "lz4",
            # A record that came behind a later one of its session would be taken for audit data that is missing: none is given up here.
            "message.timeout.ms": 0,
            "queue.buffering.max.messages": self._most,
            **({"batch.num.messages": 1} if self._is_one_by_one else {}),
        }
        return confluent_kafka.Producer({**self._connection, **own})

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_seconds):
            self._report(is_final=False)
        self._report(is_final=True)
        deadline = _CLOCK.monotonic() + _CLOSE_SECONDS
        while self._producer.flush(0.5) or self._waiting:
            if _CLOCK.monotonic() > deadline:
                log.warning("%d audit records were not acknowledged when the client was closed", len(self._producer) + len(self._waiting))
                return
            self._send()

    def _report(self, *, is_final: bool) -> None:
        self._waiting.extend(self._audit.records(_CLOCK.time_ms(), is_final=is_final))
        waiting = len(self._waiting)
        if (too_many := waiting - self._most) > 0:
            log.warning("%s is not reached: the oldest audit records are given up, %d of %d", TOPIC, too_many, waiting)
            for _ in range(too_many):
                self._waiting.popleft()
        self._send()

    def _send(self) -> None:
        servers, self._moved_to = self._moved_to, None
        if servers is not None:
            self._connection["bootstrap.servers"] = servers
            self._reconnect()
        self._producer.poll(0)
        if self._is_too_large:
            self._is_one_by_one, self._is_too_large = True, False
            self._reconnect()
        if self._has_failed:  # what is queued was said later, and is not to come before what failed
            self._producer.purge(in_flight=False)
            self._producer.poll(0)
            self._has_failed = False
            self._sort()
        schema_id = self._schema.get() if self._waiting else None
        for _ in range(len(self._waiting)):
            if self._is_one_by_one and (self._producer.flush(_ONE_SECONDS) or self._has_failed):
                break  # what a session says later may not come before it
            record = self._waiting.popleft()
            try:
                self._producer.produce(TOPIC, encode(record, schema_id), record.topic.encode(), on_delivery=partial(self._reported, record))
            except (BufferError, confluent_kafka.KafkaException) as error:
                if isinstance(error, confluent_kafka.KafkaException) and error.args[0].code() == _TOO_LARGE:
                    self._waiting.extendleft(self._smaller(record))
                    continue
                self._waiting.appendleft(record)
                log.debug("audit records wait: %s", error)
                if isinstance(error, confluent_kafka.KafkaException) and error.args[0].fatal():
                    self._reconnect()
                break
        self._producer.poll(0)

    def _reconnect(self) -> None:
        """Another producer begins with what was not acknowledged; what arrived all the same is a second copy to the counter."""
        former, self._producer = self._producer, self._connected()
        former.purge()
        former.flush(_PURGE_SECONDS)
        self._sort()

    def _sort(self) -> None:
        self._waiting = deque(sorted(self._waiting, key=lambda record: record.sequence))  # of a topic in the order of the session

    def _reported(self, record: AuditRecord, error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        if error is None:
            return
        if error.code() == _TOO_LARGE and self._is_one_by_one:
            self._waiting.extend(self._smaller(record))
        else:
            log.warning("an audit record of %s is sent again: %s", record.topic, error)
            self._waiting.append(record)
            self._is_too_large |= error.code() == _TOO_LARGE  # with others of its batch
        self._has_failed = True

    def _smaller(self, record: AuditRecord) -> list[AuditRecord]:
        """A record that is too large by itself, without what names single messages; nothing of one that has no such."""
        if any(tally.sketch is not None for tally in record.windows.values()):
            return [record._replace(windows={start_ms: replace(tally, sketch=None) for start_ms, tally in record.windows.items()})]
        log.warning("an audit record of %s is given up: it is larger than %s takes (max.message.bytes)", record.topic, TOPIC)
        return []

    def move(self, servers: str) -> None:
        """All brokers are at other addresses from now on."""
        self._moved_to = servers

    def close(self) -> None:
        """Says the final word, and waits until it is acknowledged."""
        self._stopped.set()
        self._thread.join(_CLOSE_SECONDS + self._interval_seconds)


def options_of(configuration: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A client's configuration, and ours."""
    own = {name.removeprefix(PREFIX): value for name, value in configuration.items() if name.startswith(PREFIX)}
    unknown = sorted(own.keys() - _DEFAULTS.keys())
    if unknown:
        raise ValueError(f"unknown setting {PREFIX}{unknown[0]}; there are {', '.join(PREFIX + name for name in _DEFAULTS)}")
    options = {**_DEFAULTS, **own}
    if options["time"] not in ("message", "append"):
        raise ValueError(f"{PREFIX}time = {options['time']} is neither message nor append")
    if str(options["id.header"]).lower() not in ("true", "false"):
        raise ValueError(f"{PREFIX}id.header = {str(options['id.header'])[:50]} is neither true nor false")
    for name, (lowest, highest) in _BOUNDS.items():
        text = str(options[name])
        if not text.isdecimal() or not lowest <= int(text) <= highest:
            raise ValueError(f"{PREFIX}{name} = {text[:50]} is not in [{lowest}, {highest}]")
    for name in _NAMES:
        if len(str(options[name])) > MAXIMUM_TEXT:
            raise ValueError(f"{PREFIX}{name} has {len(str(options[name]))} characters; {MAXIMUM_TEXT} are allowed")
    options["host"] = options["host"] or socket.gethostname()
    for name in (*_NAMES, "host.header"):
        try:
            str(options[name]).encode()
        except UnicodeEncodeError:
            raise ValueError(f"{PREFIX}{name} = {str(options[name])[:50]!r} is not UTF-8") from None
    return {name: value for name, value in configuration.items() if not name.startswith(PREFIX)}, options


def session_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"window_ms": int(options["window.ms"]), **{name: str(options[name]) for name in _NAMES}}


def stamp_of(options: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The header with the host that each message of a producer gets, where one is asked for."""
    return ((str(options["host.header"]), str(options["host"])),) if options["host.header"] else ()


def names_messages(options: Mapping[str, Any]) -> bool:
    """Whether a producer puts an id on each message that has none."""
    return str(options["id.header"]).lower() == "true"


class _Deliveries:
    """Delivery reports that are not counted yet; those of a transaction are once it is committed."""

    def __init__(self) -> None:
        self.messages: list[confluent_kafka.Message] = []
        self.ways: list[deque[None]] = []  # of a transaction: where its messages are still entered
        self.outcomes: list[tuple[str, Outcomes]] = []  # of a transaction

    def read(self, topics: Collection[str]) -> list[tuple[str, Outcomes]]:
        """What they say, by topic, of those there are."""
        messages = self.messages[:]
        del self.messages[: len(messages)]  # others come meanwhile
        return _by_topic(messages, topics, None) if messages else []


def _by_topic(messages: list[confluent_kafka.Message], topics: Collection[str], now_ms: int | None) -> list[tuple[str, Outcomes]]:
    """What messages say that are of these topics: delivery reports, or what was read at that time. Their order in the list is changed."""
    if len(topics) == 1:
        return [(next(iter(topics)), _outcomes(messages, now_ms))]
    messages.sort(key=_topic_of)
    names = list(map(_topic_of, messages))
    outcomes, firsts = _outcomes(messages, now_ms), {topic: names.index(topic) for topic in dict.fromkeys(names)}
    bounds = pairwise([*firsts.values(), len(messages)])
    return [(topic, outcomes.part(first, behind)) for topic, (first, behind) in zip(firsts, bounds, strict=True)]


# Not called by its name: where the client has set an exception, as for a header's name that is not UTF-8, Python may crash (cli.rendering).
_headers: Final = methodcaller("headers")
_topic_of: Final[Any] = confluent_kafka.Message.topic
_time_of: Final = itemgetter(1)  # behind whose it is


def _headers_of(message: confluent_kafka.Message) -> Any:
    """None where there are none, and where the client cannot give them: the application may not need them.

    The message has none then: what the client keeps as its headers by now ends the process that goes through it.
    """
    try:
        return _headers(message)
    except SystemError:
        message.set_headers([])
        return None


def _outcomes(messages: list[confluent_kafka.Message], now_ms: int | None) -> Outcomes:
    kind, count = confluent_kafka.Message, len(messages)
    headers = list(map(kind.headers if now_ms is None else _headers_of, messages))  # those that were sent here have names that are text
    ids = None if headers.count(None) == count else [id_of(some or ()) for some in headers]
    digests, key_lengths, sizes = digests_of(list(map(kind.key, messages)), list(map(kind.value, messages)), ids)
    try:
        offsets = np.fromiter(map(kind.offset, messages), np.int64, count)
    except TypeError:  # some are None: no one knows them
        offsets = np.array([-1 if (offset := message.offset()) is None else offset for message in messages], np.int64)
    timestamps = np.fromiter(map(_time_of, map(kind.timestamp, messages)), np.int64, count)
    if now_ms is None:
        latencies_ms = (1000 * np.fromiter(map(kind.latency, messages), np.float64, count)).astype(np.int64)
    else:
        latencies_ms = np.maximum(now_ms - timestamps, 0)
    return Outcomes(
        digests,
        np.fromiter(map(kind.partition, messages), np.int64, count),
        offsets,
        timestamps,
        latencies_ms,
        key_lengths,
        sizes,
    )


class _DeliveryAudit(ProducerAudit):
    """Is given the delivery reports of confluent-kafka."""

    def __init__(self, session: Session, *, by_append: bool) -> None:
        super().__init__(session, by_append=by_append)
        self.deliveries: Final = _Deliveries()

    def failed_on(self, way: deque[None], topic: str, counted_ms: int) -> None:
        """As `failed`, of a message that was entered there."""
        with self._lock:
            way.pop()
            self._failed(topic, counted_ms)

    def read(self, deliveries: _Deliveries) -> None:
        """So that they are not too many."""
        with self._lock:
            if deliveries is self.deliveries:
                self._gather()
            else:
                deliveries.outcomes += deliveries.read(self._topics)

    def ended(self, transaction: _Deliveries, *, is_committed: bool) -> None:
        """What the transaction had counts, or is nowhere and counts for nothing."""
        with self._lock:
            found = transaction.outcomes + transaction.read(self._topics)
            while transaction.ways:
                transaction.ways.pop().pop()
            now_ms = self._clock.time_ms()
            for topic, outcomes in found if is_committed else ():
                self._count(topic, outcomes._replace(latencies_ms=np.maximum(outcomes.latencies_ms, now_ms - outcomes.timestamps)))

    def _gather(self) -> None:
        for topic, outcomes in self.deliveries.read(self._topics):
            self._count(topic, outcomes)


# A window's start and end; where messages of a topic and of it are entered while they are on their way; what an application wants to be
# called at a delivery, what librdkafka calls, and what makes that. No class: a tuple is unpacked while one attribute is read.
_Way: TypeAlias = tuple[int, int, deque[None], Any, Any, Any]
_NO_WAY: Final[_Way] = (0, 0, deque(), None, None, None)
_produce: Final[Any] = confluent_kafka.Producer.produce


def _told_with(headers: Any, told: Any, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
    """librdkafka's copy has none of the headers that were sent."""
    message.set_headers(headers)
    told(error, message)


class _AuditedProducer(confluent_kafka.Producer):
    def __init__(self, configuration: Mapping[str, Any], *arguments: Any, **keywords: Any) -> None:
        plain, options = options_of(configuration)
        self._default = keywords.pop("on_delivery", plain.pop("on_delivery", None))
        self._is_told_errors_alone = str(plain.pop("delivery.report.only.error", False)).lower() in ("true", "t", "1")
        super().__init__(plain, *arguments, **keywords)
        self.audit = _DeliveryAudit(new_session("producer", **session_options(options)), by_append=options["time"] == "append")
        self.audit_reporter = Reporter(plain, self.audit, options)
        self._window_ms = int(options["window.ms"])
        self._stamp, self._names_messages = stamp_of(options), names_messages(options)
        self._transaction: _Deliveries | None = None
        self._ways: dict[str, _Way] = {}

    def begin_transaction(self) -> None:
        """As the class does; messages are acknowledged with the commit from now on."""
        super().begin_transaction()
        self._transaction, self._ways = _Deliveries(), {}

    def commit_transaction(self, *arguments: Any, **keywords: Any) -> None:
        """As the class does, and counts what the transaction had."""
        super().commit_transaction(*arguments, **keywords)
        self._end_transaction(is_committed=True)

    def abort_transaction(self, *arguments: Any, **keywords: Any) -> None:
        """As the class does; what the transaction had is nowhere, and counts for nothing."""
        super().abort_transaction(*arguments, **keywords)
        self._end_transaction(is_committed=False)

    def _end_transaction(self, *, is_committed: bool) -> None:
        transaction, self._transaction, self._ways = self._transaction, None, {}
        if transaction is not None:
            self.audit.ended(transaction, is_committed=is_committed)

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        callback: Any = None,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """As the class does, and counts."""
        message_id = None
        if headers or self._stamp or self._names_messages:
            headers, message_id = self._with_own(headers)
        if not timestamp:
            timestamp = counted_ms = wall_ns() // 1_000_000
        else:
            counted_ms = wall_ns() // 1_000_000 if self.audit.by_append else timestamp
        then = on_delivery if callback is None else callback
        try:
            start_ms, end_ms, entered, last, told, telling = self._ways[topic]
        except KeyError:
            start_ms, end_ms, entered, last, told, telling = _NO_WAY
        if not start_ms <= counted_ms < end_ms:
            _, _, entered, _, told, _ = self._way(topic, counted_ms, then)
        elif then is not last:
            told = telling(then)
            self._ways[topic] = (start_ms, end_ms, entered, then, told, telling)
        if message_id is not None:
            told = partial(_told_with, headers, told)
        entered.append(None)
        try:
            _produce(self, topic, value, key, partition, told, None, timestamp, headers)
        except BaseException:
            entered.pop()
            raise

    def _with_own(self, headers: Any) -> tuple[Any, bytes | None]:
        """Headers of a message, with those that each one gets, and the id that they say."""
        pairs = headers.items() if isinstance(headers, dict) else headers or ()
        message_id = id_of(pairs)
        own: list[tuple[str, str | bytes]] = list(self._stamp)
        if self._names_messages and message_id is None:
            message_id = new_id()
            own.append((ID_HEADER, message_id))
        return [*pairs, *own] if own or message_id is not None else headers, message_id

    def _way(self, topic: str, counted_ms: int, then: Any) -> _Way:
        str.encode(topic)  # raises as librdkafka would: a record of such a topic could not be written
        entered, start_ms = self.audit.way(topic, counted_ms), counted_ms - counted_ms % self._window_ms
        telling = self._telling(topic, counted_ms, entered)
        found = self._ways[topic] = (start_ms, start_ms + self._window_ms, entered, then, telling(then), telling)
        return found

    def _telling(self, topic: str, counted_ms: int, entered: deque[None]) -> Any:
        """Makes what librdkafka calls for each message that was entered there."""
        audit, transaction = self.audit, self._transaction
        default, is_told_errors_alone = self._default, self._is_told_errors_alone
        deliveries = transaction or audit.deliveries
        messages, keep = deliveries.messages, deliveries.messages.append
        leave = entered.pop if transaction is None else partial(transaction.ways.append, entered)

        def telling(then: Any) -> Any:
            then = default if then is None else then
            then_if_written = None if is_told_errors_alone else then

            def told(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
                if error is None:
                    keep(message)
                    leave()
                    if len(messages) >= _READ_AT or len(message) >= _READ_BYTES:
                        audit.read(deliveries)
                    if then_if_written is not None:
                        then_if_written(error, message)
                else:
                    audit.failed_on(entered, topic, counted_ms)
                    if then is not None:
                        then(error, message)

            return told

        return telling

    def produce_batch(
        self, topic: str, messages: list[dict[str, Any]], partition: int = -1, callback: Any = None, on_delivery: Any = None
    ) -> int:
        """As the class does, and counts."""
        if self._stamp or self._names_messages:
            raise ValueError(f"{PREFIX}{'host' if self._stamp else 'id'}.header: produce_batch of confluent-kafka takes no headers")
        counted_ms = wall_ns() // 1_000_000
        then = on_delivery if callback is None else callback
        _, _, entered, _, _, telling = self._way(topic, counted_ms, then)
        callbacks = [then if message.get("callback") is None else message["callback"] for message in messages]
        sent = [{**message, "callback": telling(one)} for message, one in zip(messages, callbacks, strict=True)]
        entered += repeat(None, len(sent))
        taken = 0
        try:
            taken = super().produce_batch(topic, sent, partition)
        finally:
            for _ in range(len(sent) - taken):
                entered.pop()
            for message, copy in zip(messages, sent, strict=True):
                if "_error" in copy:
                    message["_error"] = copy["_error"]
        return taken

    def close(self) -> bool:
        """As the class does, and says the final word."""
        is_closed = super().close()
        self.audit_reporter.close()
        return is_closed

    def __exit__(self, *_: object) -> None:
        self.close()

    def close_audit(self, timeout_seconds: float = 30.0) -> int:
        """Flushes, says the final word, and gives how many messages are still on their way."""
        left = self.flush(timeout_seconds)
        self.audit_reporter.close()
        return left


class _AuditedConsumer(confluent_kafka.Consumer):
    def __init__(self, configuration: Mapping[str, Any], *arguments: Any, **keywords: Any) -> None:
        plain, options = options_of(configuration)
        super().__init__(plain, *arguments, **keywords)
        group = plain.get("group.id", "")
        self.audit = ConsumerAudit(new_session(f"consumer:{group}", **session_options(options)))
        self.audit_reporter = Reporter(plain, self.audit, options)

    def poll(self, *arguments: Any, **keywords: Any) -> Any:
        """As the class does, and counts."""
        message = super().poll(*arguments, **keywords)
        if message is not None and message.error() is None:
            self._consumed(message)
        return message

    def consume(self, *arguments: Any, **keywords: Any) -> Any:
        """As the class does, and counts."""
        messages = super().consume(*arguments, **keywords)
        found = [message for message in messages if message.error() is None]
        if len(found) < _READ_FROM:
            for message in found:
                self._consumed(message)
            return messages
        for topic, outcomes in _by_topic(found, set(map(_topic_of, found)), _CLOCK.time_ms()):
            self.audit.consumed_many(topic, outcomes)
        return messages

    def _consumed(self, message: Any) -> None:
        place = message.topic(), message.partition(), message.offset()
        self.audit.consumed(*place, message.key(), message.value(), message.timestamp()[1], _headers_of(message) or ())

    def close(self, *arguments: Any, **keywords: Any) -> Any:
        """As the class does, after the final word."""
        self.audit_reporter.close()
        return super().close(*arguments, **keywords)

    def __exit__(self, *_: object) -> None:
        self.close()


def audited(client: type[T]) -> type[T]:
    """A producer or consumer class of confluent-kafka's (or one made from it) that is audited.

    Raises:
        TypeError: the class is neither.
    """
    for base, kind in ((confluent_kafka.Producer, _AuditedProducer), (confluent_kafka.Consumer, _AuditedConsumer)):
        if issubclass(client, base):  # what a subclass of theirs makes of messages is theirs: what it sends and is given is counted
            return type(f"Audited{client.__name__}", (kind,) if client is base else (client, kind), {})
    raise TypeError(f"{client.__name__} is neither a Producer nor a Consumer of confluent-kafka")

"""Clients of confluent-kafka, audited: they count what they send and read, and report it to `__audit`.

    producer = audited(confluent_kafka.Producer)({"bootstrap.servers": "…", "ottla.audit.application": "checkout"})
    consumer = audited(confluent_kafka.Consumer)({"bootstrap.servers": "…", "group.id": "billing"})

They are what they were in everything else; settings that begin with `ottla.audit.` are taken out of the configuration. A producer's
messages are stamped here unless they have a time, so that their content is known before they leave.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import confluent_kafka

from ottla.client.auditing import Attempt, ConsumerAudit, ProducerAudit, new_session
from ottla.clock import SystemClock
from ottla.network.audit_schema import AuditSchemaId
from ottla.record.audit_records import TOPIC, AuditRecord, encode

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
    "max.records": 10_000,
    "time": "message",  # or append
    "schema.registry.url": "",
    "schema.registry.basic.auth.user.info": "",
}
# What a reporter's own producer takes over: how to reach the cluster.
_CONNECTION: Final = ("bootstrap.servers", "security.", "sasl.", "ssl.", "client.id", "broker.")
_CLOSE_SECONDS: Final = 10.0
_PURGE_SECONDS: Final = 1.0
_LOG_APPEND_TIME: Final = 2


class Reporter:
    """Writes what an audit counted to `__audit`, and keeps what was not acknowledged; in a thread of its own.

    Args:
        configuration: of the client, for how to reach the cluster.
        audit: what counts.
        options: `ottla.audit.…` without that.
    """

    def __init__(self, configuration: Mapping[str, Any], audit: ProducerAudit | ConsumerAudit, options: Mapping[str, Any]) -> None:
        self._connection = {name: value for name, value in configuration.items() if name.startswith(_CONNECTION)}
        self._audit = audit
        self._interval_seconds = int(options["report.interval.ms"]) / 1000
        self._most = int(options["max.records"])
        urls = [url.strip() for url in str(options["schema.registry.url"]).split(",") if url.strip()]
        self._schema = AuditSchemaId(urls, _CLOCK, str(options["schema.registry.basic.auth.user.info"]) or None)
        self._waiting: deque[AuditRecord] = deque()
        self._moved_to: str | None = None
        self._producer = self._connected()
        self._stopped = threading.Event()
        self.given_up = 0  # audit records that were not acknowledged before there were too many
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
        while len(self._waiting) > self._most:
            self._waiting.popleft()
            self.given_up += 1
        self._send()

    def _send(self) -> None:
        servers, self._moved_to = self._moved_to, None
        if servers is not None:
            self._connection["bootstrap.servers"] = servers
            self._reconnect()
        schema_id = self._schema.get() if self._waiting else None
        for _ in range(len(self._waiting)):
            record = self._waiting.popleft()
            try:
                self._producer.produce(TOPIC, encode(record, schema_id), record.topic.encode(), on_delivery=partial(self._reported, record))
            except (BufferError, confluent_kafka.KafkaException) as error:
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
        self._waiting = deque(sorted(self._waiting, key=lambda record: record.sequence))  # of a topic in the order of the session

    def _reported(self, record: AuditRecord, error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        if error is not None:
            log.warning("an audit record of %s is sent again: %s", record.topic, error)
            self._waiting.append(record)

    def move(self, servers: str) -> None:
        """All brokers are at other addresses from now on."""
        self._moved_to = servers

    def close(self) -> None:
        """Says the final word, and waits until it is acknowledged."""
        self._stopped.set()
        self._thread.join(_CLOSE_SECONDS + self._interval_seconds)


def _options(configuration: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A client's configuration, and ours."""
    own = {name.removeprefix(PREFIX): value for name, value in configuration.items() if name.startswith(PREFIX)}
    unknown = sorted(own.keys() - _DEFAULTS.keys())
    if unknown:
        raise ValueError(f"unknown setting {PREFIX}{unknown[0]}; there are {', '.join(PREFIX + name for name in _DEFAULTS)}")
    options = {**_DEFAULTS, **own}
    if options["time"] not in ("message", "append"):
        raise ValueError(f"{PREFIX}time = {options['time']} is neither message nor append")
    options["host"] = options["host"] or socket.gethostname()
    return {name: value for name, value in configuration.items() if not name.startswith(PREFIX)}, options


def _session_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"window_ms": int(options["window.ms"]), **{name: str(options[name]) for name in ("application", "cluster", "host")}}


def _bytes(data: Any) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


class _AuditedProducer:
    """In front of a producer class."""

    def __init__(self, configuration: Mapping[str, Any], *arguments: Any, **keywords: Any) -> None:
        plain, options = _options(configuration)
        super().__init__(plain, *arguments, **keywords)  # type: ignore[call-arg]  # of the client that this class is mixed into
        self.audit = ProducerAudit(new_session("producer", **_session_options(options)), by_append=options["time"] == "append")
        self.audit_reporter = Reporter(plain, self.audit, options)
        self._in_transaction: list[tuple[Attempt, int, int, int | None]] | None = None  # acknowledged, and not committed yet

    def begin_transaction(self) -> None:
        """As the class does; messages are acknowledged with the commit from now on."""
        super().begin_transaction()  # type: ignore[misc]  # of the client that this class is mixed into
        self._in_transaction = []

    def commit_transaction(self, *arguments: Any, **keywords: Any) -> None:
        """As the class does, and counts what the transaction had."""
        super().commit_transaction(*arguments, **keywords)  # type: ignore[misc]  # of the client that this class is mixed into
        for outcome in self._transaction_ended():
            self.audit.acknowledged(*outcome)

    def abort_transaction(self, *arguments: Any, **keywords: Any) -> None:
        """As the class does; what the transaction had is nowhere, and counts for nothing."""
        super().abort_transaction(*arguments, **keywords)  # type: ignore[misc]  # of the client that this class is mixed into
        for attempt, *_ in self._transaction_ended():
            self.audit.withdrawn(attempt)

    def _transaction_ended(self) -> list[tuple[Attempt, int, int, int | None]]:
        found, self._in_transaction = self._in_transaction or [], None
        return found

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        callback: Callable[..., object] | None = None,
        on_delivery: Callable[..., object] | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """As the class does, and counts."""
        stamped = timestamp or _CLOCK.time_ms()
        attempt = self.audit.attempted(topic, _bytes(key), _bytes(value), stamped)
        keywords: dict[str, Any] = {"headers": headers} if headers is not None else {}
        try:
            super().produce(  # type: ignore[misc]  # of the client that this class is mixed into
                topic, value, key, partition, partial(self._delivered, attempt, on_delivery or callback), timestamp=stamped, **keywords
            )
        except BaseException:
            self.audit.withdrawn(attempt)
            raise

    def _delivered(self, attempt: Attempt, then: Callable[..., object] | None, error: Any, message: Any) -> None:
        if error is not None:
            self.audit.failed(attempt)
        else:
            kind, stamped = message.timestamp()
            outcome = attempt, message.partition(), message.offset(), stamped if kind == _LOG_APPEND_TIME else None
            if self._in_transaction is None:
                self.audit.acknowledged(*outcome)
            else:
                self._in_transaction.append(outcome)
        if then is not None:
            then(error, message)

    def take_over(self, former: _AuditedProducer, servers: str) -> None:
        """Counts and reports in the session of a former client from now on, which had other addresses of the same brokers."""
        self.audit_reporter.close()  # it has nothing to say
        self.audit, self.audit_reporter = former.audit, former.audit_reporter
        self.audit_reporter.move(servers)

    def close_audit(self, timeout_seconds: float = 30.0) -> int:
        """Flushes, says the final word, and gives how many messages are still on their way."""
        left: int = self.flush(timeout_seconds)  # type: ignore[attr-defined]  # of the client that this class is mixed into
        self.audit_reporter.close()
        return left


class _AuditedConsumer:
    """In front of a consumer class."""

    def __init__(self, configuration: Mapping[str, Any], *arguments: Any, **keywords: Any) -> None:
        plain, options = _options(configuration)
        super().__init__(plain, *arguments, **keywords)  # type: ignore[call-arg]  # of the client that this class is mixed into
        group = plain.get("group.id", "")
        self.audit = ConsumerAudit(new_session(f"consumer:{group}", **_session_options(options)))
        self.audit_reporter = Reporter(plain, self.audit, options)

    def poll(self, *arguments: Any, **keywords: Any) -> Any:
        """As the class does, and counts."""
        message = super().poll(*arguments, **keywords)  # type: ignore[misc]  # of the client that this class is mixed into
        if message is not None and message.error() is None:
            self._consumed(message)
        return message

    def consume(self, *arguments: Any, **keywords: Any) -> Any:
        """As the class does, and counts."""
        messages = super().consume(*arguments, **keywords)  # type: ignore[misc]  # of the client that this class is mixed into
        for message in messages:
            if message.error() is None:
                self._consumed(message)
        return messages

    def _consumed(self, message: Any) -> None:
        self.audit.consumed(message.topic(), message.partition(), message.offset(), message.key(), message.value(), message.timestamp()[1])

    def close(self, *arguments: Any, **keywords: Any) -> Any:
        """As the class does, after the final word."""
        self.audit_reporter.close()
        return super().close(*arguments, **keywords)  # type: ignore[misc]  # of the client that this class is mixed into


def audited(client: type[T]) -> type[T]:
    """A producer or consumer class of confluent-kafka's (or one made from it) that is audited.

    Raises:
        TypeError: the class is neither.
    """
    for base, front in ((confluent_kafka.Producer, _AuditedProducer), (confluent_kafka.Consumer, _AuditedConsumer)):
        if issubclass(client, base):
            return type(f"Audited{client.__name__}", (front, client), {})
    raise TypeError(f"{client.__name__} is neither a Producer nor a Consumer of confluent-kafka")

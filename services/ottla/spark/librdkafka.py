"""`engine=librdkafka`: ranges by confluent-kafka's consumer, for clusters that ask for a SASL mechanism which `wire` does not speak.

    bootstrap, offsets   AdminClient      what `reading.ClusterReader` asks for
    ranges               Consumer         messages, made into the columns that `reading.read_ranges` gives

Each record is a Python object on its way, so it is slower than the client of our own. What lies between two messages is a marker, aborted,
or compacted: librdkafka does not say which, so nothing is counted as unseen, and a load, which accounts for every offset, has the other
engine.

A range is over when a message behind it arrives or, where there is none, when librdkafka says that a partition's end was reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import methodcaller
from typing import Any, Final

import numpy as np

from ottla.model import TopicPartition
from ottla.record.columnar import ByteColumn, Columns
from ottla.record.records import encode_headers
from ottla.spark.offsets import EARLIEST, LATEST, Loss, OffsetRange, Offsets
from ottla.spark.reading import Portion, ReadFailed, TopicFacts, report
from ottla.spark.settings import HEADERS, OptionRefused, SourceSettings
from ottla.wire.client_security import login_of

_MESSAGES: Final = 10_000
_POLL_SECONDS: Final = 1.0
_NO_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"  # all zero: the broker does not say
# Java's names, which Spark's source has, and librdkafka's of the same things.
_NAMES: Final = {
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.location": "ssl.certificate.location",
    "sasl.mechanism": "sasl.mechanisms",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "request.timeout.ms": "socket.timeout.ms",
}
_HOST_NAME: Final = "ssl.endpoint.identification.algorithm"
# By its name Python may call it without a look at whether it has failed, and crash later (`cli.rendering`).
_HEADERS: Final = methodcaller("headers")
_LEFT_OUT: Final = frozenset({"sasl.jaas.config", "default.api.timeout.ms", "ssl.truststore.type", "ssl.keystore.type"})


def client_settings(settings: SourceSettings) -> dict[str, Any]:
    """What a client of librdkafka is made with: `kafka.*` as they are, those of Java under its names."""
    found: dict[str, Any] = {_NAMES.get(name, name): value for name, value in settings.kafka.items() if name not in _LEFT_OUT}
    if "ssl.keystore.location" in settings.kafka:  # Java's has the key too
        found.setdefault("ssl.key.location", settings.kafka["ssl.keystore.location"])
    if found.get(_HOST_NAME) == "":
        found[_HOST_NAME] = "none"
    found.setdefault("client.id", settings.group_id_prefix)
    found.setdefault("log_level", "2")
    username, password = login_of(settings.kafka)
    if username is not None and password is not None:
        found |= {"sasl.username": username, "sasl.password": password}
    return found


def _made(kind: Callable[[dict[str, Any]], Any], configuration: dict[str, Any]) -> Any:
    from confluent_kafka import KafkaException

    try:
        return kind(configuration)
    except KafkaException as error:
        raise OptionRefused(f"engine=librdkafka: {error.args[0].str()}") from error


class Asking:
    """What a driver asks, by librdkafka."""

    def __init__(self, settings: SourceSettings) -> None:
        from confluent_kafka.admin import AdminClient

        consumers = ("isolation.level", "check.crcs")  # of a consumer alone
        given = {
            name: value
            for name, value in client_settings(settings).items()
            if name not in consumers and not name.startswith(("fetch.", "max.partition.", "queued."))
        }
        self._admin = _made(AdminClient, given)
        self._seconds = settings.api_timeout_seconds
        self._read_committed = settings.read_committed

    def topics(self, names: Iterable[str] | None) -> dict[str, TopicFacts]:
        """Those that are there; None: all."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        if names is None:
            names = self._answer(lambda: self._admin.list_topics(timeout=self._seconds)).topics
        found = {}
        asked = self._admin.describe_topics(TopicCollection(sorted(names)), request_timeout=self._seconds)
        for name, future in asked.items():
            try:
                described = future.result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise ConnectionError(error.args[0].str()) from error
            leaders = {one.id: None if one.leader is None else one.leader.id for one in described.partitions}
            topic_id = str(described.topic_id)
            found[name] = TopicFacts(None if topic_id == _NO_TOPIC_ID else topic_id, leaders, described.is_internal)
        return found

    def offsets(self, asked: Offsets) -> dict[TopicPartition, int]:
        """As `wire.offsets.list_offsets`: -1 where no record is as young."""
        from confluent_kafka import IsolationLevel
        from confluent_kafka import TopicPartition as Place
        from confluent_kafka.admin import OffsetSpec

        words: dict[int, Any] = {EARLIEST: OffsetSpec.earliest, LATEST: OffsetSpec.latest}

        isolation = IsolationLevel.READ_COMMITTED if self._read_committed else IsolationLevel.READ_UNCOMMITTED
        wanted = {
            Place(*partition): words[offset]() if offset in words else OffsetSpec.for_timestamp(offset)
            for partition, offset in asked.items()
        }
        futures = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=self._seconds)
        return {TopicPartition(place.topic, place.partition): self._answer(future.result).offset for place, future in futures.items()}

    def close(self) -> None:
        """Its threads end when it is not known any more."""
        self._admin = None

    def _answer(self, ask: Callable[[], Any]) -> Any:
        from confluent_kafka import KafkaException

        try:
            return ask()
        except KafkaException as error:
            raise ConnectionError(error.args[0].str()) from error


def read_ranges(settings: SourceSettings, ranges: Sequence[OffsetRange], now: Callable[[], float]) -> Iterator[Portion]:
    """As `reading.read_ranges`."""
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka import TopicPartition as Place

    configuration = {
        "isolation.level": "read_uncommitted",
        "check.crcs": "true",
        **client_settings(settings),
        "group.id": settings.group_id_prefix,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
    }
    left = {one.partition: one for one in ranges}
    consumer = _made(Consumer, configuration)
    trouble = ""
    try:
        consumer.assign([Place(*one.partition, one.start) for one in left.values()])
        moved_at = now()
        while left:
            messages = consumer.consume(_MESSAGES, min(_POLL_SECONDS, settings.poll_timeout_ms / 1000))
            by_partition: dict[tuple[str, int], list[Any]] = {}
            errors = []
            for message in messages:  # the one loop over records: a call less is some percent
                if message.error() is None:
                    by_partition.setdefault((message.topic(), message.partition()), []).append(message)
                else:
                    errors.append(message)
            for place, some in by_partition.items():
                one = left.get(TopicPartition(*place))
                if one is not None:
                    yield from _taken(consumer, left, one, some, settings.columns)
                    moved_at = now()
            for message in errors:
                error = message.error()
                one = left.get(TopicPartition(message.topic() or "", -1 if message.partition() is None else message.partition()))
                if error.code() == KafkaError._PARTITION_EOF:
                    if one is not None and message.offset() >= one.end:
                        yield _rest(consumer, left, one)
                        moved_at = now()
                elif one is not None and error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    _after_loss(consumer, settings, left, one)
                    moved_at = now()
                elif one is not None and error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
                    report([Loss(one.partition, one.start, one.end, "the topic was deleted, or made again, while it was read")], settings)
                    _finished(consumer, left, one)
                elif one is not None or error.fatal() or error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
                    where = settings.kafka["bootstrap.servers"] if one is None else f"{one.partition} at offset {one.start}"
                    raise ReadFailed(f"{where}: {error.str()}")
                else:
                    trouble = f": {error.str()}"  # of one broker, which librdkafka tries again
            if now() - moved_at > settings.poll_timeout_ms / 1000:
                stuck = ", ".join(f"{one.partition} at offset {one.start} of {one.end}" for one in left.values())
                servers = settings.kafka["bootstrap.servers"]
                raise ReadFailed(f"{servers} gave nothing for {settings.poll_timeout_ms} ms: {stuck}{trouble}")
    finally:
        consumer.close()


def _taken(
    consumer: Any, left: dict[TopicPartition, OffsetRange], one: OffsetRange, messages: Sequence[Any], names: Collection[str]
) -> Iterator[Portion]:
    last = messages[-1].offset()
    is_whole = one.start <= messages[0].offset() and last < one.end
    mine = messages if is_whole else [message for message in messages if one.start <= message.offset() < one.end]
    end = one.end if last >= one.end - 1 else last + 1
    if mine or end > one.start:
        yield Portion(one.partition, columns_of(mine, end, names), one.start, end, 0)
    if end == one.end:
        _finished(consumer, left, one)
    else:
        left[one.partition] = OffsetRange(one.partition, end, one.end)


def _rest(consumer: Any, left: dict[TopicPartition, OffsetRange], one: OffsetRange) -> Portion:
    _finished(consumer, left, one)
    return Portion(one.partition, columns_of([], one.end, ()), one.start, one.end, 0)


def _finished(consumer: Any, left: dict[TopicPartition, OffsetRange], one: OffsetRange) -> None:
    from confluent_kafka import TopicPartition as Place

    del left[one.partition]
    consumer.incremental_unassign([Place(*one.partition)])


def _after_loss(consumer: Any, settings: SourceSettings, left: dict[TopicPartition, OffsetRange], one: OffsetRange) -> None:
    from confluent_kafka import TopicPartition as Place

    asking = Asking(settings)
    earliest, latest = (asking.offsets({one.partition: bound})[one.partition] for bound in (EARLIEST, LATEST))
    if latest < one.start:
        report([Loss(one.partition, one.start, one.end, f"the log ends at {latest}")], settings)
        _finished(consumer, left, one)
        return
    gone = min(max(earliest, one.start), one.end)
    if gone > one.start:
        report([Loss(one.partition, one.start, gone, f"the log begins at {earliest}")], settings)
    _finished(consumer, left, one)
    if gone < one.end:
        left[one.partition] = OffsetRange(one.partition, gone, one.end)
        consumer.incremental_assign([Place(*one.partition, gone)])


def columns_of(messages: Sequence[Any], next_offset: int, names: Collection[str]) -> Columns:
    """The columns of messages of one partition. Keys, values and headers are null where their columns are not wanted."""
    times = [message.timestamp() for message in messages]
    nothing: list[bytes | None] = [None] * len(messages)
    return Columns(
        np.array([message.offset() for message in messages], np.int64),
        np.array([milliseconds for _, milliseconds in times], np.int64),
        np.array([kind - 1 for kind, _ in times], np.int8),
        _bytes_of([message.key() for message in messages] if "key" in names else nothing),
        _bytes_of([message.value() for message in messages] if "value" in names else nothing),
        _bytes_of([_headers_of(message) for message in messages] if HEADERS in names else nothing),
        next_offset,
    )


def _headers_of(message: Any) -> bytes:
    try:
        return encode_headers(_HEADERS(message) or ())
    except SystemError as error:
        place = f"{message.topic()}-{message.partition()}@{message.offset()}"
        raise ReadFailed(f"engine=librdkafka: {place}: the name of a header is not UTF-8, and this client cannot give it") from error


def _bytes_of(strings: Sequence[bytes | None]) -> ByteColumn:
    data = np.frombuffer(b"".join([string for string in strings if string is not None]) + b"\0", np.uint8)
    lengths = np.array([-1 if string is None else len(string) for string in strings], np.int64)
    sizes = np.maximum(lengths, 0)
    return ByteColumn(data, np.cumsum(sizes) - sizes, lengths)

"""The options of the source `ottla`: those of Spark's Kafka source, under the same names, and a few more.

`OPTIONS` is the table; docs/spark.md is compared with it. `SourceSettings.of` reads what a query gives. What Spark's source refuses
is refused in the same words, and a name that no one knows is refused too, where Spark's source ignores it. Limits of triggers are
ignored in a batch, with a warning.

Pure: no I/O, no time, and no pyspark. A value of this can be pickled, so that an executor connects as the driver does.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Final, Literal, NamedTuple, TypeVar, cast, get_args

from ottla.errors import ConfigurationError
from ottla.model import TopicPartition
from ottla.spark.offsets import read_assignment, read_offsets, read_timestamps
from ottla.wire.broker_connection import Security
from ottla.wire.client_security import security_of
from ottla.wire.cluster import ClusterSettings, bootstrap_endpoints
from ottla.wire.fetching import FetchSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS: Final = "headers"
Where = Literal["batch and stream", "batch", "stream"]
Strategy = Literal["error", "latest"]
Engine = Literal["ottla", "librdkafka"]


class Option(NamedTuple):
    """An option: its name, its default as text, where it has an effect, and what it does."""

    name: str
    default: str
    where: Where
    meaning: str


OPTIONS: Final = (
    Option("kafka.bootstrap.servers", "none", "batch and stream", "Where the cluster answers; must be given."),
    Option("assign", "none", "batch and stream", 'The partitions to read, as JSON: `{"clicks":[0,1]}`.'),
    Option("subscribe", "none", "batch and stream", "Topics, with commas between them."),
    Option("subscribePattern", "none", "batch and stream", "A regular expression of topics' whole names; brokers' own are left out."),
    Option("startingOffsets", "earliest in a batch, latest in a stream", "batch and stream", "`earliest`, `latest`, or JSON with -2, -1."),
    Option("endingOffsets", "latest", "batch", "`latest`, or JSON with -1 for the latest."),
    Option("startingTimestamp", "none", "batch and stream", "Milliseconds, for all partitions; wins over the two others."),
    Option("startingOffsetsByTimestamp", "none", "batch and stream", "Milliseconds of each partition, as JSON."),
    Option("endingTimestamp", "none", "batch", "Milliseconds, for all partitions."),
    Option("endingOffsetsByTimestamp", "none", "batch", "Milliseconds of each partition, as JSON."),
    Option("startingOffsetsByTimestampStrategy", "error", "batch and stream", "Where no record is as young: `error`, or `latest`."),
    Option("minPartitions", "none", "batch and stream", "At least so many tasks, as far as there are records."),
    Option("maxRecordsPerPartition", "none", "batch and stream", "At most so many offsets in a task."),
    Option("maxOffsetsPerTrigger", "none", "stream", "At most so many offsets in a micro-batch, in proportion to the backlogs."),
    Option("minOffsetsPerTrigger", "none", "stream", "A micro-batch waits until there are so many offsets."),
    Option("maxTriggerDelay", "15m", "stream", "But no longer than this."),
    Option("failOnDataLoss", "true", "batch and stream", "Whether a query fails when records that it should read are gone."),
    Option("engine", "ottla", "batch and stream", "What reads: `ottla`, or `librdkafka` by confluent-kafka. Not Spark's."),
    Option("onCorrupt", "fail", "batch and stream", "What a damaged batch does: `fail`, or `quarantine`. Not Spark's."),
    Option("quarantinePath", "none", "batch and stream", "Where its bytes are put then, a directory or address. Not Spark's."),
    Option("includeHeaders", "false", "batch and stream", "Whether there is a column `headers`."),
    Option("groupIdPrefix", "spark-kafka-source", "batch and stream", "What `client.id` begins with; no consumer group is used."),
    Option("fetchOffset.numRetries", "3", "batch and stream", "How often offsets are asked for again."),
    Option("fetchOffset.retryIntervalMs", "10", "batch and stream", "The first pause before that; each is twice the last, up to 10 s."),
    Option("kafkaConsumer.pollTimeoutMs", "120000", "batch and stream", "A task fails when a partition gives nothing for as long."),
    Option("columns", "all", "batch and stream", "Which columns, with commas; others are not made. Not Spark's."),
    Option("includeValue", "true", "batch and stream", "Whether there is a column `value`. Not Spark's."),
)
# What the same program may hand to a sink or to Spark itself through the same `options(**…)`.
_OTHERS: Final = frozenset({"path", "topic", "checkpointlocation", "usedeprecatedoffsetfetching", "delivery.semantics", "queryname"})

# What Spark's source refuses of `kafka.*`, and why.
_REFUSED: Final = {
    "group.id": "offsets live in the checkpoint, and no group is used; see groupIdPrefix",
    "auto.offset.reset": "use startingOffsets: what is gone is a matter of failOnDataLoss",
    "key.deserializer": "keys are always read as bytes",
    "value.deserializer": "values are always read as bytes",
    "enable.auto.commit": "the source commits no offset",
    "interceptor.classes": "the source always reads keys and values as bytes, and an interceptor may break the query",
}
_DURATION: Final = re.compile(r"(\d{1,18})\s*(ms|s|m|min|h|d)?", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, None: 0.001}
_REQUEST_BITS: Final = 32  # of the numbers that a Fetch request has


class OptionRefused(ConfigurationError):
    """An option is unknown, malformed, or contradicts another one. Spark's `IllegalArgumentException`."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where reading begins, or ends: the first of these that is there.

    Attributes:
        timestamp_ms: for all partitions.
        timestamps_ms: of each partition.
        offsets: of each partition; -1 is the latest, -2 the earliest.
        topic_offsets: -1 or -2 of all partitions of a topic.
        default: of partitions that nothing else speaks of.
    """

    timestamp_ms: int | None = None
    timestamps_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    topic_offsets: Mapping[str, int] = field(default_factory=dict)
    default: Literal["earliest", "latest"] = "latest"


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What a query asked for. Names are those of the options."""

    kafka: Mapping[str, str] = field(repr=False)
    starting: Boundary
    ending: Boundary
    assign: tuple[TopicPartition, ...] = ()
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: str | None = None
    strategy: Strategy = "error"
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_seconds: float = 900.0
    fail_on_data_loss: bool = True
    group_id_prefix: str = "spark-kafka-source"
    fetch_offset_retries: int = 3
    fetch_offset_retry_interval_ms: int = 10
    poll_timeout_ms: int = 120_000
    columns: tuple[str, ...] = COLUMNS
    quarantine: str | None = None
    engine: Engine = "ottla"

    @classmethod
    def of(cls, options: Mapping[str, str], *, is_stream: bool) -> SourceSettings:
        """Reads options; their names are compared without regard to case, as Spark does.

        Raises:
            OptionRefused: with a sentence about the first that is wrong.
        """
        given = {name.lower(): value for name, value in options.items()}
        kafka = {name[len("kafka.") :]: value for name, value in given.items() if name.startswith("kafka.")}
        _check_names(given, kafka)
        chosen = [name for name in ("assign", "subscribe", "subscribepattern") if name in given]
        if len(chosen) != 1:
            which = "Only one" if chosen else "One"
            raise OptionRefused(f"{which} of the following options must be specified: subscribe, subscribePattern, assign")
        if is_stream:
            for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
                if name.lower() in given:
                    raise OptionRefused(f"{name} is not valid in a streaming query: it has no end")
        else:
            for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
                if given.pop(name.lower(), None) is not None:
                    log.warning("%s has no effect in a batch query: there are no triggers", name)
        strategy = given.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
        if strategy not in get_args(Strategy):
            raise OptionRefused(f"startingOffsetsByTimestampStrategy is 'error' or 'latest', not {strategy!r}")
        at_most, at_least = (_positive(given, name) for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger"))
        if at_most is not None and at_least is not None and at_least > at_most:
            raise OptionRefused(
                f"The value of minOffsetsPerTrigger({at_least}) must be lower than or equal to maxOffsetsPerTrigger({at_most})"
            )
        return cls(
            kafka=kafka,
            starting=_boundary(given, "starting", "latest" if is_stream else "earliest", is_stream),
            ending=_boundary(given, "ending", "latest", is_stream),
            assign=tuple(sorted(_json(read_assignment, given["assign"], "assign"))) if "assign" in given else (),
            subscribe=_subscribed(given),
            subscribe_pattern=_pattern(given),
            strategy=cast(Strategy, strategy),
            min_partitions=_positive(given, "minPartitions"),
            max_records_per_partition=_positive(given, "maxRecordsPerPartition"),
            max_offsets_per_trigger=at_most,
            min_offsets_per_trigger=at_least,
            max_trigger_delay_seconds=_seconds(given.get("maxtriggerdelay", "15m"), "maxTriggerDelay"),
            fail_on_data_loss=flag(given, "failOnDataLoss", True),
            group_id_prefix=given.get("groupidprefix", "spark-kafka-source"),
            fetch_offset_retries=_number(given, "fetchOffset.numRetries", 3, 0),
            fetch_offset_retry_interval_ms=_number(given, "fetchOffset.retryIntervalMs", 10, 0),
            poll_timeout_ms=_number(given, "kafkaConsumer.pollTimeoutMs", 120_000, 1),
            columns=_columns(given),
            quarantine=_quarantine(given),
            engine=_engine(given),
        )

    @property
    def read_committed(self) -> bool:
        """`kafka.isolation.level`; as Kafka's, read_uncommitted unless it is given."""
        return self.kafka.get("isolation.level", "read_uncommitted") == "read_committed"

    @property
    def api_timeout_seconds(self) -> float:
        """`kafka.default.api.timeout.ms`."""
        return _number(self.kafka, "default.api.timeout.ms", 60_000, 1) / 1000

    def cluster_settings(self) -> ClusterSettings:
        """How the cluster is asked.

        Raises:
            OptionRefused: `kafka.*` says something that `wire` cannot do.
        """
        request_ms = _number(self.kafka, "request.timeout.ms", 30_000, 1)
        return ClusterSettings(
            client_id=self.kafka.get("client.id", self.group_id_prefix),
            security=_security_of(self.kafka),
            request_timeout_seconds=request_ms / 1000,
            api_timeout_seconds=self.api_timeout_seconds,
            rack=self.kafka.get("client.rack", ""),
        )

    def fetch_settings(self) -> FetchSettings:
        """How batches are fetched. Raises OptionRefused."""
        return FetchSettings(
            max_wait_ms=_number(self.kafka, "fetch.max.wait.ms", 500, 0, _REQUEST_BITS),
            min_bytes=_number(self.kafka, "fetch.min.bytes", 1, 0, _REQUEST_BITS),
            max_bytes=_number(self.kafka, "fetch.max.bytes", 16 << 20, 1, _REQUEST_BITS),
            max_partition_bytes=_number(self.kafka, "max.partition.fetch.bytes", 4 << 20, 1, _REQUEST_BITS),
            read_committed=self.read_committed,
            check_crcs=flag(self.kafka, "check.crcs", True),
        )


def _security_of(kafka: Mapping[str, str]) -> Security:
    try:
        return security_of(kafka)
    except ConfigurationError as error:
        more = "; engine=librdkafka has more" if str(error).startswith("sasl.mechanism") else ""
        raise OptionRefused(f"kafka.{error}{more}") from error


def _check_names(given: Mapping[str, str], kafka: Mapping[str, str]) -> None:
    known = {option.name.lower() for option in OPTIONS} | _OTHERS
    for name in given:
        if name not in known and not name.startswith("kafka."):
            raise OptionRefused(f"there is no option {name!r}; there are {', '.join(option.name for option in OPTIONS)}, and kafka.*")
    for name in kafka:
        if name in _REFUSED:
            raise OptionRefused(f"Kafka option '{name}' is not supported: {_REFUSED[name]}")
    if not kafka.get("bootstrap.servers"):
        raise OptionRefused("Option 'kafka.bootstrap.servers' must be specified for configuring the consumer")
    try:
        bootstrap_endpoints(kafka["bootstrap.servers"])
    except ValueError as error:
        raise OptionRefused(f"kafka.{error}") from error
    if kafka.get("isolation.level", "read_uncommitted") not in ("read_committed", "read_uncommitted"):
        raise OptionRefused(f"kafka.isolation.level is read_committed or read_uncommitted, not {kafka['isolation.level']!r}")


def _subscribed(given: Mapping[str, str]) -> tuple[str, ...]:
    topics = tuple(sorted({name.strip() for name in given.get("subscribe", "").split(",")} - {""}))
    if "subscribe" in given and not topics:
        raise OptionRefused(f"No topics to subscribe to as specified value for option 'subscribe' is '{given['subscribe']}'")
    return topics


def _pattern(given: Mapping[str, str]) -> str | None:
    pattern = given.get("subscribepattern")
    if pattern is None:
        return None
    pattern = pattern.strip()
    if not pattern:
        raise OptionRefused("Pattern to subscribe is empty as specified value for option 'subscribePattern'")
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionRefused(f"subscribePattern: {pattern!r} is no regular expression: {error}") from error
    return pattern


def _boundary(given: Mapping[str, str], side: Literal["starting", "ending"], default: str, is_stream: bool) -> Boundary:
    offsets: Mapping[TopicPartition, int] = {}
    topic_offsets: Mapping[str, int] = {}
    by_timestamp = given.get(f"{side}offsetsbytimestamp")
    timestamps = {} if by_timestamp is None else _json(read_timestamps, by_timestamp, f"{side}OffsetsByTimestamp")
    at = given.get(f"{side}timestamp")
    text = given.get(f"{side}offsets", default).strip() if at is None and by_timestamp is None else default
    word = text.lower()
    wrong = "earliest" if side == "ending" else None if is_stream else "latest"
    if word == wrong:
        raise OptionRefused(f"{side} offset can't be {wrong} for batch queries on Kafka")
    if word not in ("earliest", "latest"):
        offsets, topic_offsets = _json(read_offsets, text, f"{side}Offsets")
        if not offsets and not topic_offsets:
            raise OptionRefused(f"{side}Offsets names no partition: {text}")
        wrong_offset = -2 if side == "ending" else None if is_stream else -1
        for what, offset in (*offsets.items(), *topic_offsets.items()):
            if offset == wrong_offset:
                raise OptionRefused(f"{side}Offsets for {what} can't be {wrong} for batch queries on Kafka")
        word = default
    if by_timestamp is not None and not timestamps:
        raise OptionRefused(f"{side}OffsetsByTimestamp names no partition: {by_timestamp}")
    return Boundary(
        timestamp_ms=None if at is None else _number(given, f"{side}Timestamp", 0, 0),
        timestamps_ms=timestamps,
        offsets=offsets,
        topic_offsets=topic_offsets,
        default=cast(Literal["earliest", "latest"], word),
    )


def _engine(given: Mapping[str, str]) -> Engine:
    wanted = given.get("engine", "ottla").strip().lower()
    if wanted not in get_args(Engine):
        raise OptionRefused(f"engine is {' or '.join(get_args(Engine))}, not {wanted!r}")
    if wanted == "librdkafka":
        if find_spec("confluent_kafka") is None:
            raise OptionRefused("engine=librdkafka needs confluent-kafka: pip install confluent-kafka")
        if given.get("oncorrupt", "fail").strip().lower() == "quarantine":
            raise OptionRefused("engine=librdkafka does not have the bytes of a damaged batch, so that onCorrupt is fail")
    return cast(Engine, wanted)


def _quarantine(given: Mapping[str, str]) -> str | None:
    wanted = given.get("oncorrupt", "fail").strip().lower()
    if wanted not in ("fail", "quarantine"):
        raise OptionRefused(f"onCorrupt is fail or quarantine, not {wanted!r}")
    path = given.get("quarantinepath") or None
    if (path is None) == (wanted == "quarantine"):
        raise OptionRefused("onCorrupt=quarantine and quarantinePath are given together or not at all")
    return path


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    available: tuple[str, ...] = (*COLUMNS, HEADERS) if flag(given, "includeHeaders", False) else COLUMNS
    if not flag(given, "includeValue", True):
        available = tuple(name for name in available if name != "value")
    if "columns" not in given:
        return available
    by_name = {name.lower(): name for name in available}
    wanted = [name.strip() for name in given["columns"].split(",")]
    unknown = [name for name in wanted if name.lower() not in by_name]
    if unknown:
        raise OptionRefused(f"columns: there is no {unknown[0]!r}; there are {', '.join(available)}")
    return tuple(dict.fromkeys(by_name[name.lower()] for name in wanted))


def _json(read: Callable[[str], T], text: str, name: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise OptionRefused(f"{name}: {error}") from error


def flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    """An option that is true or false, of options in small letters. Raises OptionRefused."""
    text = given.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionRefused(f"{name} is true or false, not {text!r}")
    return text.strip().lower() == "true"


def _number(given: Mapping[str, str], name: str, default: int, at_least: int, bits: int = 64) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        raise OptionRefused(f"{name} is a whole number, not {text!r}") from None
    if not at_least <= number < 1 << bits - 1:
        raise OptionRefused(f"{name} must be at least {at_least} and fit {bits} bits, and is {number}")
    return number


def _positive(given: Mapping[str, str], name: str) -> int | None:
    return _number(given, name, 1, 1) if name.lower() in given else None


def _seconds(text: str, name: str) -> float:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise OptionRefused(f"{name} is a time such as 500ms, 10s, 15m or 1h, not {text!r}")
    unit = match[2]
    return int(match[1]) * _SECONDS[unit.lower() if unit else None]

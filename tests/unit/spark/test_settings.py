"""The options of the source: defaults, what is refused and in which words, TLS and SASL by the names of Kafka's clients."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from ottla.model import TopicPartition
from ottla.spark.loading.driver import LoadSettings
from ottla.spark.settings import COLUMNS, OPTIONS, Boundary, OptionRefused, SourceSettings

GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "clicks"}
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def batch(**options: str) -> SourceSettings:
    return SourceSettings.of({**GIVEN, **options}, is_stream=False)


def test_the_defaults_are_those_of_sparks_kafka_source() -> None:
    """Its guide: earliest in batches and latest in streams, and the others as its table has them."""
    stream = SourceSettings.of(GIVEN, is_stream=True)
    assert (batch().starting, stream.starting) == (Boundary(default="earliest"), Boundary(default="latest"))
    assert stream.ending == Boundary(default="latest")
    assert stream.columns == COLUMNS
    assert (stream.fail_on_data_loss, stream.strategy, stream.poll_timeout_ms, stream.fetch_offset_retries) == (True, "error", 120_000, 3)
    assert (stream.max_trigger_delay_seconds, stream.read_committed) == (900.0, False)
    assert stream.min_partitions is stream.max_offsets_per_trigger is stream.min_offsets_per_trigger is None


def test_every_option_of_the_table_is_taken() -> None:
    """Method: a value of each, where it has an effect; names are compared without regard to case."""
    values = {
        "assign": '{"a":[0]}',
        "subscribe": "a",
        "subscribePattern": "a.*",
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "startingOffsetsByTimestamp": '{"a":{"0":1}}',
        "endingOffsetsByTimestamp": '{"a":{"0":1}}',
        "startingOffsetsByTimestampStrategy": "latest",
        "maxTriggerDelay": "1m",
        "failOnDataLoss": "false",
        "includeHeaders": "true",
        "includeValue": "false",
        "groupIdPrefix": "mine",
        "columns": "key,offset",
        "engine": "librdkafka",
        "onCorrupt": "quarantine",
        "quarantinePath": "damaged",
    }
    for option in OPTIONS:
        if option.name == "kafka.bootstrap.servers":
            continue
        given = dict(GIVEN)
        if option.name in ("assign", "subscribe", "subscribePattern"):
            del given["subscribe"]
        given[option.name.upper()] = values.get(option.name, "7")
        if option.name in ("onCorrupt", "quarantinePath"):  # together or not at all
            given |= {name: values[name] for name in ("onCorrupt", "quarantinePath") if name != option.name}
        is_stream = option.where == "stream"
        found = SourceSettings.of(given, is_stream=is_stream)
        if option.name not in ("subscribe", "startingOffsets", "endingOffsets") or is_stream:
            assert found != SourceSettings.of(GIVEN, is_stream=is_stream), f"{option.name} has no effect"


def test_offsets_timestamps_and_columns_are_read() -> None:
    found = batch(
        startingOffsets='{"a":{"0":3,"1":-2}}',
        endingTimestamp="1000",
        includeHeaders="true",
        columns="headers, Offset",
        **{"kafka.isolation.level": "read_committed"},
    )
    assert found.starting.offsets == {A0: 3, A1: -2}
    assert found.ending.timestamp_ms == 1000
    whole = batch(startingOffsets='{"a":"Earliest","b":{"0":7}}', endingOffsets='{"a":"latest"}')
    assert (whole.starting.offsets, whole.starting.topic_offsets) == ({TopicPartition("b", 0): 7}, {"a": -2})
    assert whole.ending.topic_offsets == {"a": -1}
    assert found.columns == ("headers", "offset")
    assert found.read_committed
    assert batch(includeValue="false").columns == tuple(name for name in COLUMNS if name != "value")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": None}, "One of the following options must be specified: subscribe, subscribePattern, assign"),
        ({"assign": '{"a":[0]}'}, "Only one of the following options must be specified"),
        ({"kafka.bootstrap.servers": None}, "Option 'kafka.bootstrap.servers' must be specified"),
        ({"kafka.bootstrap.servers": "nowhere"}, "'nowhere' is not host:port"),
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries on Kafka"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries on Kafka"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "startingOffsets for a-0 can't be latest"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "endingOffsets for a-0 can't be earliest"),
        ({"startingOffsets": '{"a":"latest"}'}, "startingOffsets for a can't be latest"),
        ({"endingOffsets": '{"a":"earliest"}'}, "endingOffsets for a can't be earliest"),
        ({"startingOffsets": '{"a":"first"}'}, "'a' has a number for each partition, not 'first'"),
        ({"startingOffsets": "first"}, "startingOffsets: expected e.g."),
        ({"minPartitions": "0"}, "minPartitions must be at least 1"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss is true or false"),
        ({"subscribe": " , "}, "No topics to subscribe to"),
        ({"subscribe": None, "subscribePattern": "("}, "is no regular expression"),
        ({"columns": "key,nothing"}, "there is no 'nothing'"),
        ({"columns": "value", "includeValue": "false"}, "there is no 'value'"),
        ({"startOffsets": "earliest"}, "there is no option 'startoffsets'"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "'error' or 'latest'"),
        ({"kafka.group.id": "g"}, "Kafka option 'group.id' is not supported"),
        ({"kafka.auto.offset.reset": "latest"}, "'auto.offset.reset' is not supported"),
        ({"kafka.value.deserializer": "x"}, "'value.deserializer' is not supported"),
        ({"kafka.interceptor.classes": "x"}, "'interceptor.classes' is not supported"),
        ({"kafka.isolation.level": "all"}, "read_committed or read_uncommitted"),
    ],
)
def test_what_sparks_source_refuses_is_refused(options: dict[str, str | None], sentence: str) -> None:
    given = {name: value for name, value in {**GIVEN, **options}.items() if value is not None}
    with pytest.raises(OptionRefused) as refused:
        SourceSettings.of(given, is_stream=False)
    assert sentence in str(refused.value)


def test_offsets_are_not_looked_at_where_a_time_is_given() -> None:
    """As by Spark's source (`getKafkaOffsetRangeLimit`): also those that are refused without a time."""
    assert batch(startingOffsets="latest", startingTimestamp="7").starting.timestamp_ms == 7
    assert batch(startingOffsets="latest", startingOffsetsByTimestamp='{"a":{"0":7}}').starting.timestamps_ms == {A0: 7}
    assert batch(endingOffsets='{"a":{"0":-2}}', endingTimestamp="7").ending.timestamp_ms == 7


def test_offsets_of_a_stream_that_are_empty_are_no_json() -> None:
    with pytest.raises(OptionRefused, match=r"startingOffsets: expected e\.g\."):
        SourceSettings.of({**GIVEN, "startingOffsets": " "}, is_stream=True)


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"])
@pytest.mark.parametrize("text", ["{}", '{"a":{}}'])
def test_json_that_names_no_partition_is_not_the_default(name: str, text: str) -> None:
    """Spark's source asserts that all partitions are named (KafkaOffsetReaderAdmin, `fetchSpecificOffsets`), also where none is."""
    with pytest.raises(OptionRefused, match=f"{name} names no partition"):
        SourceSettings.of({**GIVEN, name: text}, is_stream=False)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(OptionRefused, match="not valid in a streaming query"):
        SourceSettings.of({**GIVEN, name: "1"}, is_stream=True)


@pytest.mark.parametrize(
    "given", [{"maxOffsetsPerTrigger": "8", "minOffsetsPerTrigger": "9"}, {"maxTriggerDelay": "soon"}, {"maxTriggerDelay": "9" * 400}]
)
def test_limits_of_triggers_have_no_effect_in_a_batch_query(given: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """A warning says so, as by Spark's source (`KafkaSourceProvider.validateBatchOptions`): a job may read both ways with one set."""
    assert batch(**given) == batch()
    assert all(name in caplog.text for name in given)
    with pytest.raises(OptionRefused, match=r"minOffsetsPerTrigger\(9\)|maxTriggerDelay is a time"):
        SourceSettings.of({**GIVEN, **given}, is_stream=True)


def test_a_minimum_above_the_maximum_is_refused() -> None:
    with pytest.raises(OptionRefused, match=r"minOffsetsPerTrigger\(9\) must be lower than or equal to maxOffsetsPerTrigger\(8\)"):
        SourceSettings.of({**GIVEN, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, is_stream=True)


@pytest.mark.parametrize(
    "kafka",
    [
        {"security.protocol": "TLS"},
        {"security.protocol": "SASL_PLAINTEXT"},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"},
        {"security.protocol": "SSL", "ssl.truststore.location": "/nowhere.pem"},
        {"security.protocol": "SSL", "ssl.truststore.location": "x.jks", "ssl.truststore.type": "JKS"},
    ],
)
def test_security_that_cannot_be_had_is_refused(kafka: dict[str, str]) -> None:
    with pytest.raises(OptionRefused, match=r"kafka\."):
        batch(**{f"kafka.{name}": value for name, value in kafka.items()}).cluster_settings()


def test_settings_go_to_executors_and_a_password_is_in_no_representation_of_them() -> None:
    found = batch(**{"kafka.sasl.password": "hidden-one"})
    assert pickle.loads(pickle.dumps(found)) == found
    assert "hidden-one" not in repr(found)


def test_the_page_has_every_option_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| (.+?) \| ((?:batch|stream)[a-z ]*) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [tuple(option) for option in OPTIONS]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kafka.partitioner.class": "org.example.Mine"}, "'partitioner.class' is not supported: a column 'partition' says where"),
        ({"kafka.partitioner.ignore.keys": "true"}, "'partitioner.ignore.keys' is not supported"),
        ({"kafka.value.serializer": "x"}, "'value.serializer' is not supported"),
        ({"kafka.compression.type": "brotli"}, "kafka.compression.type is one of"),
        ({"topic": None}, "topic option required when no 'topic' attribute is present"),
    ],
)
def test_a_sink_refuses_what_would_have_no_effect(options: dict[str, str | None], sentence: str) -> None:
    """Spark's sink has partitioners (`KafkaSinkSuite`, "partition column and partitioner priorities"); ours sends by the key's hash."""
    types = pytest.importorskip("pyspark.sql.types")
    from ottla.spark.sink import SinkSettings

    schema = types.StructType([types.StructField("value", types.BinaryType())])
    given = {"kafka.bootstrap.servers": "localhost:9092", "topic": "a", "kafka.partitioner.ignore.keys": "false"}
    assert SinkSettings.of(given, schema).topic == "a"
    with pytest.raises(OptionRefused) as refused:
        SinkSettings.of({name: value for name, value in {**given, **options}.items() if value is not None}, schema)
    assert sentence in str(refused.value)


def test_blanks_around_the_topic_of_a_sink_are_no_part_of_its_name() -> None:
    """As those around a source's; Spark's sink trims the option (`KafkaSourceProvider.createSink`)."""
    types = pytest.importorskip("pyspark.sql.types")
    from ottla.spark.sink import SinkSettings

    schema = types.StructType([types.StructField("value", types.BinaryType())])
    assert SinkSettings.of({"kafka.bootstrap.servers": "localhost:9092", "topic": " a\n"}, schema).topic == "a"


@pytest.mark.parametrize("name", ["fetch.max.wait.ms", "fetch.min.bytes", "fetch.max.bytes", "max.partition.fetch.bytes"])
def test_a_number_that_no_request_can_have_is_refused(name: str) -> None:
    """They are 32 bits of a request, and INT in Java's client; a task died of `struct.error`, which does not name the option."""
    assert batch(**{f"kafka.{name}": str((1 << 31) - 1)}).fetch_settings()
    with pytest.raises(OptionRefused, match=f"{name} must be at least [01] and fit 32 bits, and is 2147483648"):
        batch(**{f"kafka.{name}": str(1 << 31)}).fetch_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endingOffsets", '{"clicks":{"0":3}}'),
        ("endingOffsetsByTimestamp", '{"clicks":{"0":3}}'),
        ("endingTimestamp", "3"),
        ("columns", "offset"),
        ("includeValue", "false"),
    ],
)
def test_a_load_refuses_what_has_no_effect_on_it(name: str, value: str) -> None:
    """It loaded up to the topics' ends, with values."""
    with pytest.raises(OptionRefused, match=f"{name} is not for a load"):
        LoadSettings.of({**GIVEN, name.upper(): value}, "table", "job")

"""Loads that decode values through a real registry: typed columns, schemas that change, and what cannot be decoded. No JVM here."""

from __future__ import annotations

import datetime
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as F
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message_factory import GetMessages
from tests.unit.spark.test_avro import written
from tests.unit.spark.test_reading import KEPT

import ottla.spark
from ottla.cli.main import run
from ottla.spark.loading.decoding import SchemaChanged, merged
from ottla.spark.loading.schemas import Decoding, RegistryUnavailable, Schemas
from ottla.testing import EmbeddedCluster

pytest.importorskip("deltalake")

from ottla.spark.loading import driver
from ottla.spark.loading.driver import LoadOutcome, LoadSettings, LocalExecutor, Step, load
from ottla.spark.reading import ReadFailed
from ottla.spark.table import Table, TableConflict, TableUnusable

pytestmark = pytest.mark.timeout(1200)

FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}, {"name": "timestamp", "type": ["null", "string"]}]}
WIDER = {**FIRST, "fields": [*FIRST["fields"], {"name": "lines", "type": {"type": "array", "items": "string"}, "default": []}]}
OTHER = {**FIRST, "fields": [{"name": "id", "type": "string"}]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings=KEPT, services=["schema-registry"]) as running:
        yield running


def register(cluster: EmbeddedCluster, subject: str, schema: Any, **more: Any) -> int:
    """Whatever was registered before: the registry is not asked whether they are compatible."""

    def ask(method: str, path: str, body: Any) -> Any:
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = Request(cluster.schema_registry_url + path, json.dumps(body).encode(), headers, method=method)
        with urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    ask("PUT", f"/config/{subject}", {"compatibility": "NONE"})
    return int(ask("POST", f"/subjects/{subject}/versions", {"schema": json.dumps(schema), **more})["id"])


def framed(schema_id: int, schema: Any, *records: Any) -> list[bytes | None]:
    return [b"\0" + schema_id.to_bytes(4, "big") + octets for octets in written(schema, list(records))]


def produce(cluster: EmbeddedCluster, topic: str, values: list[bytes | None], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, b"k", partition)
    assert producer.flush(120) == 0


def settings_for(cluster: EmbeddedCluster, table: Path, topic: str, on_change: Any = "fail", **options: str) -> LoadSettings:
    source = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, **options}
    return LoadSettings.of(source, str(table), "job", decoding=Decoding(cluster.schema_registry_url, None, on_change))


def loaded(settings: LoadSettings) -> LoadOutcome:
    return load(settings, LocalExecutor())


def rows_of(table: Path, *columns: str) -> list[tuple[Any, ...]]:
    found = Table.open(str(table)).delta.to_pyarrow_table().sort_by([("partition", "ascending"), ("offset", "ascending")])
    return [tuple(row[name] for name in columns) for row in found.to_pylist()]


def test_values_are_columns_with_their_types_and_others_read_them(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """A null value is null in every column, `schemaId` too; a field named as a column of every table has another name."""
    import polars

    topic = cluster.create_topic("typed")
    number = register(cluster, f"{topic}-value", WIDER)
    values = framed(number, WIDER, *({"id": one, "timestamp": None if one % 2 else "t", "lines": ["a"] * one} for one in range(3)))
    produce(cluster, topic, [*values[:1], None, *values[1:]])
    outcome = loaded(settings_for(cluster, tmp_path, topic))
    assert outcome.rows == 4
    assert rows_of(tmp_path, "offset", "schemaId", "id", "value_timestamp", "lines") == [
        (0, number, 0, "t", []),
        (1, None, None, None, None),
        (2, number, 1, None, ["a"]),
        (3, number, 2, "t", ["a", "a"]),
    ]
    types = Table.open(str(tmp_path)).types()
    assert (types["id"], types["value_timestamp"], types["lines"]) == (pyarrow.int32(), pyarrow.string(), pyarrow.list_(pyarrow.string()))
    assert "value" not in types
    assert polars.read_delta(str(tmp_path)).sort("offset")["id"].to_list() == [0, None, 1, 2]
    assert loaded(settings_for(cluster, tmp_path, topic)).is_empty
    produce(cluster, topic, values)
    assert loaded(settings_for(cluster, tmp_path, topic)).rows == 3


def test_a_new_column_ends_a_load_or_is_merged_and_records_of_both_schemas_mix(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("wider", partitions=2)
    first, wider = (register(cluster, f"{topic}-value", schema) for schema in (FIRST, WIDER))
    old = framed(first, FIRST, {"id": 1, "timestamp": None})
    new = framed(wider, WIDER, {"id": 2, "timestamp": None, "lines": ["x"]})
    produce(cluster, topic, old)
    loaded(settings_for(cluster, tmp_path, topic))
    produce(cluster, topic, [*old, *new, *old, *new])
    produce(cluster, topic, new, 1)
    before = Table.open(str(tmp_path)).version
    with pytest.raises(
        SchemaChanged, match=rf"wider-0 at offset 2, schema {wider}: the table has no column lines .*onSchemaChange is fail"
    ):
        loaded(settings_for(cluster, tmp_path, topic))
    assert Table.open(str(tmp_path)).version == before
    assert loaded(settings_for(cluster, tmp_path, topic, "merge")).rows == 5
    assert rows_of(tmp_path, "partition", "offset", "id", "lines") == [
        (0, 0, 1, None),
        (0, 1, 1, None),
        (0, 2, 2, ["x"]),
        (0, 3, 1, None),
        (0, 4, 2, ["x"]),
        (1, 0, 2, ["x"]),
    ]
    produce(cluster, topic, [*old, *new])
    assert loaded(settings_for(cluster, tmp_path, topic)).rows == 2


def test_another_type_ends_a_load_or_is_a_column_of_its_own(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("other")
    first, other = (register(cluster, f"{topic}-value", schema) for schema in (FIRST, OTHER))
    produce(cluster, topic, framed(first, FIRST, {"id": 1, "timestamp": None}))
    loaded(settings_for(cluster, tmp_path, topic))
    produce(cluster, topic, framed(other, OTHER, {"id": "one"}))
    for on_change in ("fail", "merge"):
        with pytest.raises(SchemaChanged, match=r"offset 1.*the column id is int32 in the table and string here"):
            loaded(settings_for(cluster, tmp_path, topic, on_change))
    loaded(settings_for(cluster, tmp_path, topic, "new"))
    assert rows_of(tmp_path, "offset", "id", "id_string") == [(0, 1, None), (1, None, "one")]
    produce(cluster, topic, framed(other, OTHER, {"id": "two"}))
    loaded(settings_for(cluster, tmp_path, topic, "new"))
    assert rows_of(tmp_path, "id_string")[2:] == [("two",)]


def test_tasks_that_find_other_types_for_a_new_column_agree(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """int and long of one column are long; int and string are two columns with `new`, and end a load otherwise."""
    topic = cluster.create_topic("agree", partitions=2)
    wide = {**FIRST, "fields": [{"name": "id", "type": "long"}]}
    ids = [register(cluster, f"{topic}-value", schema) for schema in (FIRST, wide, OTHER)]
    produce(cluster, topic, framed(ids[0], FIRST, {"id": 1, "timestamp": None}))
    produce(cluster, topic, [*framed(ids[0], FIRST, {"id": 1, "timestamp": None}), *framed(ids[1], wide, {"id": 1 << 40})], 1)

    def settings(table: str, on_change: str) -> LoadSettings:
        return settings_for(cluster, tmp_path / table, topic, on_change)

    def apart(settings: LoadSettings) -> LoadOutcome:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "_SMALL_RANGE", 0)
            return load(settings, LocalExecutor(2))

    assert apart(settings("merge", "merge")).rows == 3
    assert rows_of(tmp_path / "merge", "id") == [(1,), (1,), (1 << 40,)]
    produce(cluster, topic, framed(ids[2], OTHER, {"id": "s"}), 1)
    with pytest.raises(SchemaChanged, match="agree-1 at offset 2"):
        apart(settings("merge", "merge"))
    with pytest.raises(SchemaChanged):
        apart(settings("fail", "fail"))
    assert apart(settings("new", "new")).rows == 4
    assert rows_of(tmp_path / "new", "id", "id_string") == [(1, None), (1, None), (1 << 40, None), (None, "s")]


def test_what_cannot_be_decoded_ends_a_load_with_its_offset_or_goes_into_quarantine(
    cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = cluster.create_topic("undecodable")
    number = register(cluster, f"{topic}-value", FIRST)
    json_id = register(cluster, f"{topic}-json", {"type": "object"}, schemaType="JSON")
    good = framed(number, FIRST, {"id": 1, "timestamp": None})
    assert good[0] is not None
    bad = [b"plain", b"", b"\0\0\0", b"\0\x7f\xff\xff\xff\2", good[0] + b"!", good[0][:-1], b"\0" + json_id.to_bytes(4, "big") + b"{"]
    produce(cluster, topic, [*good, *bad, *good])
    with pytest.raises(ReadFailed, match="undecodable-0: the value at offset 1 cannot be decoded: it does not begin with a zero byte"):
        loaded(settings_for(cluster, tmp_path, topic))
    arguments = [topic, "--into", str(tmp_path), "--master", "none", "-b", cluster.bootstrap_servers]
    assert run(["load", *arguments, "--registry", cluster.schema_registry_url]) == 1
    assert "the value at offset 1 cannot be decoded" in capsys.readouterr().err
    assert run(["load", *arguments, "--registry", cluster.schema_registry_url, "--quarantine"]) == 0
    assert f"{len(bad)} records in quarantine" in capsys.readouterr().err
    assert rows_of(tmp_path, "offset", "id") == [(0, 1), (len(bad) + 1, 1)]
    assert [(tmp_path / "_quarantine" / f"{topic}-0-{offset}.value").read_bytes() for offset in range(1, len(bad) + 1)] == bad
    assert run(["load", "verify", str(tmp_path)]) == 0
    assert "2 rows in 1 file" in capsys.readouterr().out


def test_the_reason_says_which_schema_is_unknown_or_has_no_columns(cluster: EmbeddedCluster) -> None:
    schemas = Schemas(Decoding(cluster.schema_registry_url))
    assert schemas.get(1 << 30) == f"the registry does not know schema {1 << 30}"
    number = register(cluster, "reasons", {"properties": {"a b": {}, "a_b": {}}}, schemaType="JSON")
    assert schemas.get(number) == f"schema {number}: two properties would be one column: a b, a_b"


def test_json_and_protobuf_of_confluents_serializers_are_columns_and_schemas_change(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Three formats in one topic, through `ottla.spark.load`: the same column of each has the same type, or `new` gives it another one."""
    topic = cluster.create_topic("formats")
    registry = SchemaRegistryClient({"url": cluster.schema_registry_url})
    there = SerializationContext(topic, MessageField.VALUE)
    place = {"$id": "place.json", "type": "object", "properties": {"street": {"type": "string"}}}
    register(cluster, "place", place, schemaType="JSON")
    order = {
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer"}, "at": {"$ref": "place.json"}, "note": {"oneOf": [{"type": "null"}, {"type": "string"}]}},
    }
    as_json = register(
        cluster, f"{topic}-json", order, schemaType="JSON", references=[{"name": "place.json", "subject": "place", "version": 1}]
    )
    values: list[bytes | None] = [b"\0" + as_json.to_bytes(4, "big") + json.dumps({"id": 1, "at": {"street": "s"}, "note": "n"}).encode()]
    register(cluster, f"{topic}-value", {"type": "string"}, schemaType="JSON")
    serializer = JSONSerializer(json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}), registry)
    values.append(serializer({"id": 2}, there))
    descriptor = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"])
    message = descriptor.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    message.field.add(name="placed", number=2, type=F.TYPE_MESSAGE, label=F.LABEL_OPTIONAL, type_name=".google.protobuf.Timestamp")
    kind = GetMessages([FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb), descriptor])["shop.Order"]
    values.append(ProtobufSerializer(kind, registry, {"use.deprecated.format": False})(kind(id="3", placed={"seconds": 86_400}), there))
    produce(cluster, topic, values)

    def loaded_as(on_change: Any) -> LoadOutcome:
        return ottla.spark.load(
            topic,
            str(tmp_path),
            bootstrap_servers=cluster.bootstrap_servers,
            decoding=Decoding(cluster.schema_registry_url, on_schema_change=on_change),
        )

    with pytest.raises(SchemaChanged, match=r"the column id is int64 in the table and string here"):
        loaded_as("merge")
    assert loaded_as("new").rows == 3
    assert rows_of(tmp_path, "id", "at", "note", "id_string", "placed") == [
        (1, {"street": "s"}, "n", None, None),
        (2, None, None, None, None),
        (None, None, None, "3", datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC)),
    ]
    assert loaded_as("fail").is_empty


def test_schemas_that_a_schema_refers_to_are_fetched(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    address = {"type": "record", "name": "Address", "namespace": "org", "fields": [{"name": "street", "type": "string"}]}
    person = {"type": "record", "name": "Person", "fields": [{"name": "home", "type": "org.Address"}]}
    topic = cluster.create_topic("referring")
    register(cluster, "address", address)
    number = register(cluster, f"{topic}-value", person, references=[{"name": "org.Address", "subject": "address", "version": 1}])
    whole = {**person, "fields": [{"name": "home", "type": address}]}
    produce(cluster, topic, framed(number, whole, {"home": {"street": "s"}}))
    loaded(settings_for(cluster, tmp_path / "first", topic))
    loaded(settings_for(cluster, tmp_path / "first", topic))
    for subject in (f"{topic}-value", "address"):  # softly: a schema is there by its id as long as values may have it
        with urlopen(Request(f"{cluster.schema_registry_url}/subjects/{subject}", method="DELETE"), timeout=30) as answer:
            assert answer.status == 200
    loaded(settings_for(cluster, tmp_path / "later", topic))
    for table in ("first", "later"):
        assert rows_of(tmp_path / table, "home") == [({"street": "s"},)]


def test_a_registry_that_is_away_or_silent_or_none_is_an_error_that_says_which(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Quarantine does not take what a registry would decode if it were there."""
    topic = cluster.create_topic("away")
    number = register(cluster, f"{topic}-value", FIRST)
    produce(cluster, topic, framed(number, FIRST, {"id": 1, "timestamp": None}))
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        urls = [f"http://127.0.0.1:{one.getsockname()[1]}" for one in (silent, closed)]
        settings = settings_for(cluster, tmp_path, topic, onCorrupt="quarantine", quarantinePath=str(tmp_path / "_quarantine"))
        for wrong in (",".join(urls), f"{cluster.schema_registry_url}/nowhere"):
            away = replace(settings, decoding=Decoding(wrong, timeout_seconds=0.2))
            with pytest.raises(RegistryUnavailable) as raised:
                loaded(away)
            assert all(url in str(raised.value) for url in wrong.split(","))
        third = replace(settings, decoding=Decoding(f"{urls[1]},{cluster.schema_registry_url}", timeout_seconds=20))
        assert loaded(third).rows == 1


def test_each_id_is_asked_for_once(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    number = register(cluster, "once", FIRST)
    schemas = Schemas(Decoding(cluster.schema_registry_url))
    asked: list[str] = []
    ask = schemas._ask_one

    def counted(url: str, path: str) -> Any:
        asked.append(path)
        return ask(url, path)

    monkeypatch.setattr(schemas, "_ask_one", counted)
    for _ in range(3):
        schemas.get(number)
        schemas.get(1 << 30)
    assert asked == [f"/schemas/ids/{number}", f"/schemas/ids/{1 << 30}"]


@pytest.mark.parametrize("first_adds_columns", [True, False])
def test_a_driver_that_was_second_commits_nothing_after_it_added_columns(
    cluster: EmbeddedCluster, tmp_path: Path, first_adds_columns: bool
) -> None:
    """Adding columns is a commit, and its snapshot is behind the other driver's; so the offsets are compared again."""
    topic = cluster.create_topic(f"second.{first_adds_columns}")
    first, wider = (register(cluster, f"{topic}-value", schema) for schema in (FIRST, WIDER))
    old = framed(first, FIRST, {"id": 1, "timestamp": None})
    produce(cluster, topic, old)
    settings = settings_for(cluster, tmp_path, topic, "merge")
    loaded(settings)
    produce(cluster, topic, [*old, *framed(wider, WIDER, {"id": 2, "timestamp": None, "lines": ["x"]})])

    def other_first(step: Step) -> None:
        if step is Step.CHECKED:
            loaded(settings if first_adds_columns else replace(settings, max_records=1))

    with pytest.raises(TableConflict):
        load(settings, LocalExecutor(), at=other_first)
    loaded(settings)
    assert rows_of(tmp_path, "offset", "id", "lines") == [(0, 1, None), (1, 1, None), (2, 2, ["x"])]


def test_a_table_of_bytes_and_one_of_columns_are_not_mixed(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("mixed")
    number = register(cluster, f"{topic}-value", FIRST)
    produce(cluster, topic, framed(number, FIRST, {"id": 1, "timestamp": None}))
    decoded = settings_for(cluster, tmp_path / "decoded", topic)
    plain = replace(decoded, decoding=None)
    loaded(decoded)
    with pytest.raises(TableUnusable, match="has columns"):
        loaded(plain)
    loaded(replace(plain, table=str(tmp_path / "plain")))
    with pytest.raises(TableUnusable, match="has columns"):
        loaded(replace(decoded, table=str(tmp_path / "plain")))


def test_columns_of_tasks_are_merged_and_what_does_not_fit_is_seen() -> None:
    merge, fail = Decoding("http://r", None, "merge"), Decoding("http://r")
    int32, int64, text = pyarrow.int32(), pyarrow.int64(), pyarrow.string()
    assert merged({"a": int32}, [{"a": int32}, {"a": int32, "b": text}], merge) == ({"a": int32, "b": text}, True)
    assert merged({}, [{"a": int32}, {"a": int64}], merge) == ({"a": int64}, False)
    assert merged({}, [{"a": int32}, {"a": text}], merge) == ({"a": int32}, False)
    assert merged({}, [{}, {"a": int32}, {"a": int32, "b": text}], fail) == ({"a": int32}, False)
    assert merged({}, [{"a": int32}, {}], fail) == ({"a": int32}, True)
    with pytest.raises(SchemaChanged, match="upper and lower case"):
        merged({"a": int32}, [{"a": int32, "A": int32}], merge)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--registry", "nowhere"], "a registry is http://host:port"),
        (["--registry", "http://r", "--on-schema-change", "guess"], "onSchemaChange is fail, merge or new, and not 'guess'"),
        (["--on-schema-change", "merge"], "which takes a --registry"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["load", "a", "--into", "x", *arguments]) != 0
    assert sentence in capsys.readouterr().err

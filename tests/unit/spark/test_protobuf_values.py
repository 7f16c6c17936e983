"""Protobuf messages become columns by their descriptor: every type, what is absent, and what is damaged."""

from __future__ import annotations

import base64
import datetime
from decimal import Decimal
from typing import Any

import pyarrow
import pytest
from google.protobuf import any_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from tests.unit.spark.test_json_values import column_of

from ottla.spark.loading.avro import SchemaUnusable
from ottla.spark.loading.protobuf_values import read_protobuf_schema

F = FieldDescriptorProto


def field(name: str, number: int, kind: Any, *, many: bool = False, of: str = "", optional: bool = False) -> FieldDescriptorProto:
    label = F.LABEL_REPEATED if many else F.LABEL_OPTIONAL
    found = F(name=name, number=number, type=kind, label=label, type_name=of or None)
    if optional:
        found.proto3_optional, found.oneof_index = True, 0
    return found


def file_of(*messages: DescriptorProto, imports: tuple[str, ...] = (), name: str = "default") -> FileDescriptorProto:
    return FileDescriptorProto(name=name, package="shop", syntax="proto3", dependency=imports, message_type=messages)


def encoded(file: FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def classes(file: FileDescriptorProto, *others: FileDescriptorProto) -> list[Any]:
    pool = DescriptorPool()
    for module in (any_pb2, timestamp_pb2, struct_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for descriptor in (*others, file):
        pool.AddSerializedFile(descriptor.SerializeToString())
    return [GetMessageClass(message) for message in pool.FindFileByName(file.name).message_types_by_name.values()]


SCALARS: dict[Any, tuple[Any, Any]] = {
    F.TYPE_DOUBLE: (1.5, pyarrow.float64()),
    F.TYPE_FLOAT: (0.5, pyarrow.float32()),
    F.TYPE_INT32: (-1, pyarrow.int32()),
    F.TYPE_INT64: (-(1 << 63), pyarrow.int64()),
    F.TYPE_UINT32: ((1 << 32) - 1, pyarrow.int64()),
    F.TYPE_FIXED64: (Decimal((1 << 64) - 1), pyarrow.decimal128(20, 0)),
    F.TYPE_BOOL: (True, pyarrow.bool_()),
    F.TYPE_STRING: ("é", pyarrow.string()),
    F.TYPE_BYTES: (b"\xff", pyarrow.binary()),
}


def test_every_scalar_has_its_type_and_its_default() -> None:
    file = file_of(DescriptorProto(name="All", field=[field(f"f{kind}", kind, kind) for kind in SCALARS]))
    [message] = classes(file)
    whole = message(**{f"f{kind}": int(value) if kind == F.TYPE_FIXED64 else value for kind, (value, _) in SCALARS.items()})
    values = [b"\0" + whole.SerializeToString(), b"\2\0" + b""]
    [(rows, columns)], is_bad = read_protobuf_schema(encoded(file), {}).decode(column_of(values, b"12345"), 5)
    assert (rows.tolist(), is_bad.tolist()) == ([0, 1], [False, False])
    for kind, (value, arrow) in SCALARS.items():
        assert columns[f"f{kind}"].type == arrow
        assert columns[f"f{kind}"].to_pylist() == [value, type(value)()]


def test_lists_maps_enums_messages_and_what_is_absent() -> None:
    line = DescriptorProto(name="Line", field=[field("n", 1, F.TYPE_INT32)])
    order = DescriptorProto(
        name="Order",
        field=[
            field("lines", 1, F.TYPE_MESSAGE, many=True, of=".shop.Line"),
            field("counts", 2, F.TYPE_MESSAGE, many=True, of=".shop.Order.CountsEntry"),
            field("state", 3, F.TYPE_ENUM, of=".shop.Order.State"),
            field("at", 4, F.TYPE_MESSAGE, of=".google.protobuf.Timestamp"),
            field("more", 5, F.TYPE_MESSAGE, of=".google.protobuf.Struct"),
            field("size", 6, F.TYPE_MESSAGE, of=".google.protobuf.Int64Value"),
            field("above", 7, F.TYPE_MESSAGE, of=".shop.Order"),
            field("nothing", 8, F.TYPE_MESSAGE, of=".shop.Nothing"),
            field("note", 9, F.TYPE_STRING, optional=True),
        ],
    )
    order.oneof_decl.add(name="_note")
    state = order.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    entry = order.nested_type.add(name="CountsEntry", field=[field("key", 1, F.TYPE_STRING), field("value", 2, F.TYPE_INT32)])
    entry.options.map_entry = True
    google = tuple(f"google/protobuf/{name}.proto" for name in ("timestamp", "struct", "wrappers"))
    file = file_of(order, line, DescriptorProto(name="Nothing"), imports=google)
    message = classes(file)[0]
    full = message(lines=[{"n": 1}, {}], counts={"a": 1}, note="", above={"note": "x"})
    full.at.FromDatetime(datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC))
    full.more.update({"a": 1})
    full.size.value = 7
    unknown = message.FromString(full.SerializeToString() + b"\x18\x09")  # state = 9, which the schema does not have
    values = [b"\0" + unknown.SerializeToString(), b"\0"]
    [(_, columns)], is_bad = read_protobuf_schema(encoded(file), {}).decode(column_of(values))
    assert not is_bad.any()
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        "lines": [[{"n": 1}, {"n": 0}], []],
        "counts": [[("a", 1)], []],
        "state": ["9", "NEW"],
        "at": [datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC), None],
        "more": ['{"a": 1.0}', None],
        "size": [7, None],
        "above": ['{"note": "x"}', None],
        "note": ["", None],
    }


def test_messages_of_one_file_are_groups_and_imported_files_are_found_by_name() -> None:
    imported = file_of(DescriptorProto(name="Place", field=[field("street", 1, F.TYPE_STRING)]), name="place.proto")
    first = DescriptorProto(name="First", field=[field("at", 1, F.TYPE_MESSAGE, of=".shop.Place")])
    first.nested_type.add(name="Inner", field=[field("n", 1, F.TYPE_INT32)])
    file = file_of(first, imports=("place.proto", "confluent/meta.proto"))
    plain = file_of(first, imports=("place.proto",))
    [message] = classes(plain, imported)
    outer, inner = message(at={"street": "s"}), message.Inner(n=3)
    values = [b"\0" + outer.SerializeToString(), b"\4\0\0" + inner.SerializeToString(), b"\2\0" + outer.SerializeToString()]
    schema = read_protobuf_schema(encoded(file), {"place.proto": encoded(imported)})
    groups, is_bad = schema.decode(column_of(values))
    assert [(rows.tolist(), {name: column.to_pylist() for name, column in columns.items()}) for rows, columns in groups] == [
        ([0, 2], {"at": [{"street": "s"}, {"street": "s"}]}),
        ([1], {"n": [3]}),
    ]
    assert not is_bad.any()


def test_a_file_with_a_public_import_and_nothing_else_stands_for_what_it_imports() -> None:
    """`ProtobufSchemaTest.testIndexesRoundTripThroughPublicImport`."""
    messages = [DescriptorProto(name=name, field=[field("n", 1, F.TYPE_INT32)]) for name in ("First", "Second")]
    imported = file_of(*messages, name="leaf.proto")
    top = file_of(imports=("leaf.proto",))
    top.public_dependency.append(0)
    schema = read_protobuf_schema(encoded(top), {"leaf.proto": encoded(imported)})
    [(rows, columns)], is_bad = schema.decode(column_of([b"\2\2" + classes(imported)[1](n=3).SerializeToString()]))
    assert (rows.tolist(), columns["n"].to_pylist(), bool(is_bad.any())) == ([0], [3], False)


@pytest.mark.parametrize("value", [b"", b"\x80", b"\0\x08", b"\2\x08", b"\1", b"\2\1", b"\4\0\0", b"\xff\xff\xff\xff\x0f", b"\0\x12\1\xff"])
def test_a_damaged_value_is_marked_and_costs_no_other(value: bytes) -> None:
    file = file_of(DescriptorProto(name="M", field=[field("n", 1, F.TYPE_INT32), field("s", 2, F.TYPE_STRING)]))
    groups, is_bad = read_protobuf_schema(encoded(file), {}).decode(column_of([b"\0\x08\1", value, b"\0\x08\3"]))
    assert is_bad.tolist() == [False, True, False]
    [(rows, columns)] = groups
    assert (rows.tolist(), columns["n"].to_pylist()) == ([0, 2], [1, 3])


def test_of_two_names_of_one_number_the_first_is_an_enums() -> None:
    """Java's `EnumDescriptor.findValueByNumber`: where several values have a number it is the first one."""
    file = file_of(DescriptorProto(name="M", field=[field("state", 1, F.TYPE_ENUM, of=".shop.State")]))
    state = file.enum_type.add(name="State")
    state.options.allow_alias = True
    for name, number in (("NEW", 0), ("RUNNING", 1), ("STARTED", 1)):
        state.value.add(name=name, number=number)
    [(_, columns)], _ = read_protobuf_schema(encoded(file), {}).decode(column_of([b"\0\x08\1", b"\0"]))
    assert columns["state"].to_pylist() == ["RUNNING", "NEW"]


def test_a_string_of_proto2_that_is_no_utf_8_is_damaged() -> None:
    """Protobuf's guide: a string is UTF-8. Readers of proto2 do not check it (`utf8_validation` is NONE), and no column can have it."""
    strings = [field("s", 1, F.TYPE_STRING), field("many", 2, F.TYPE_STRING, many=True)]
    file = file_of(DescriptorProto(name="M", field=strings))
    file.syntax = "proto2"
    values = [b"\0\x0a\1a\x12\1b", b"\0\x0a\1\xff", b"\0\x12\1\xff"]
    [(_, columns)], is_bad = read_protobuf_schema(encoded(file), {}).decode(column_of(values))
    assert is_bad.tolist() == [False, True, True]
    assert {name: column.to_pylist() for name, column in columns.items()} == {"s": ["a"], "many": [["b"]]}


def test_a_time_that_no_column_has_is_damaged() -> None:
    file = file_of(
        DescriptorProto(name="M", field=[field("at", 1, F.TYPE_MESSAGE, of=".google.protobuf.Timestamp")]),
        imports=("google/protobuf/timestamp.proto",),
    )
    [message] = classes(file)
    _, is_bad = read_protobuf_schema(encoded(file), {}).decode(column_of([b"\0" + message(at={"seconds": 1 << 62}).SerializeToString()]))
    assert is_bad.tolist() == [True]


def test_a_message_that_has_no_json_is_damaged_where_json_is_its_column() -> None:
    """A message that holds itself is text inside: a time that text cannot have, what is packed and not known, a number that is none."""
    known = {"timestamp": timestamp_pb2, "any": any_pb2, "struct": struct_pb2}
    fields = [field(name, number, F.TYPE_MESSAGE, of=f".google.protobuf.{name.title()}") for number, name in enumerate(known, 2)]
    node = DescriptorProto(name="Node", field=[field("child", 1, F.TYPE_MESSAGE, of=".shop.Node"), *fields])
    file = file_of(node, imports=tuple(f"google/protobuf/{name}.proto" for name in known))
    [message] = classes(file)
    children: list[dict[str, Any]] = [
        {"timestamp": {"seconds": 1}},
        {"timestamp": {"seconds": 1 << 62}},
        {"any": {"type_url": "nowhere/shop.Packed", "value": b"x"}},
        {"struct": {"n": float("nan")}},
    ]
    values = [b"\0" + message(child=child).SerializeToString() for child in children]
    [(rows, columns)], is_bad = read_protobuf_schema(encoded(file), {}).decode(column_of(values))
    assert (rows.tolist(), is_bad.tolist()) == ([0], [False, True, True, True])
    assert columns["child"].to_pylist() == ['{"timestamp": "1970-01-01T00:00:01Z"}']


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("!", "no Protobuf schema"),
        (base64.b64encode(b"\xff").decode(), "no Protobuf schema"),
        (encoded(file_of(imports=("nowhere.proto",))), "it imports nowhere.proto, which the registry does not give"),
        (encoded(file_of(imports=("google/nowhere.proto",))), "google/nowhere.proto"),
        (encoded(file_of(DescriptorProto(name="M", field=[field("n", 1, F.TYPE_MESSAGE, of=".shop.Missing")]))), "no Protobuf schema"),
    ],
)
def test_a_schema_that_cannot_be_used_says_why(text: str, sentence: str) -> None:
    with pytest.raises(SchemaUnusable, match=sentence):
        read_protobuf_schema(text, {})


@pytest.mark.timeout(60)
def test_messages_that_hold_each_other_twice_are_refused_by_how_many_columns_they_would_be() -> None:
    """Forty messages of two fields each of the one before it are 2^40 columns: a load of the topic never came to its end."""
    messages = [DescriptorProto(name="R0", field=[field("a", 1, F.TYPE_INT32)])]
    for number in range(1, 40):
        fields = [field(name, at, F.TYPE_MESSAGE, of=f".shop.R{number - 1}") for at, name in enumerate("ab", 1)]
        messages.append(DescriptorProto(name=f"R{number}", field=fields))
    with pytest.raises(SchemaUnusable, match=r"^the schema has more than 10000 types"):
        read_protobuf_schema(encoded(file_of(*reversed(messages))), {})
    values = [b"\2\x12"] + [b"\2\x4e"] * 200  # of R9, and of R39
    [(rows, _)], is_bad = read_protobuf_schema(encoded(file_of(*messages)), {}).decode(column_of(values))
    assert (rows.tolist(), is_bad.tolist()) == ([0], [False] + [True] * 200)


def test_fields_that_differ_in_upper_and_lower_case_alone_are_refused_as_no_table_can_have_both() -> None:
    """deltalake says so by a bare exception when all is written: a load ended in a traceback."""
    twins = DescriptorProto(name="Twins", field=[field("a", 1, F.TYPE_INT32), field("A", 2, F.TYPE_INT32)])
    whole = DescriptorProto(name="Whole", field=[field("twins", 1, F.TYPE_MESSAGE, of=".shop.Twins", many=True)])
    with pytest.raises(SchemaUnusable, match="two fields would be one column: A, a"):
        read_protobuf_schema(encoded(file_of(whole, twins)), {})

"""JSON becomes columns by its schema, and what does not fit is found record by record."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow
import pytest

from ottla.record.columnar import ByteColumn
from ottla.spark.loading.avro import SchemaUnusable
from ottla.spark.loading.json_values import read_json_schema


def column_of(values: list[bytes], before: bytes = b"") -> ByteColumn:
    """As a fetch has them: end to end."""
    whole = [before + value for value in values]
    lengths = np.array([len(value) for value in whole], np.int64)
    return ByteColumn(np.frombuffer(b"".join(whole) or b"\0", np.uint8), np.cumsum(lengths) - lengths, lengths)


def decoded(schema: Any, *values: Any, **referenced: Any) -> tuple[dict[str, Any], list[bool]]:
    kind = read_json_schema(json.dumps(schema), {name: json.dumps(other) for name, other in referenced.items()})
    octets = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    [(rows, columns)], is_bad = kind.decode(column_of(octets, b"frame"), 5)
    assert rows.tolist() == list(range(len(values)))
    return columns, is_bad.tolist()


SCALARS = {"yes": {"type": "boolean"}, "n": {"type": "integer"}, "x": {"type": ["null", "number"]}, "s": {"enum": ["a", "b"]}}


def test_properties_are_columns_and_null_or_absent_is_null() -> None:
    columns, is_bad = decoded(
        {"type": "object", "properties": SCALARS},
        {"yes": True, "n": 1, "x": 2, "s": "a", "other": 1},
        {"n": 1.0, "x": None},
        b'\n{ "n" : 9223372036854775807, "s" : "\\u00e9" }',
    )
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        "yes": [True, None, None],
        "n": [1, 1, (1 << 63) - 1],
        "x": [2.0, None, None],
        "s": ["a", None, "é"],
    }
    assert [column.type for column in columns.values()] == [pyarrow.bool_(), pyarrow.int64(), pyarrow.float64(), pyarrow.string()]
    assert not any(is_bad)


@pytest.mark.parametrize(
    "value",
    [
        {"n": True},
        {"n": 1.5},
        {"n": 1 << 63},
        {"n": "1"},
        {"yes": 1},
        {"x": 10**400},
        {"s": 1},
        b'{"s": "\\ud800"}',
        b'{"x": NaN}',
        b'{"n": 1e999}',
        b"[1]",
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_a_value_that_does_not_fit_is_marked_and_costs_no_other(value: Any) -> None:
    columns, is_bad = decoded({"type": "object", "properties": SCALARS}, {"n": 1}, value, {"n": 3})
    assert is_bad == [False, True, False]
    assert columns["n"].to_pylist() == [1, None, 3]


def test_arrays_maps_and_objects_nest_and_what_has_no_type_is_its_text() -> None:
    schema = {
        "properties": {
            "lines": {"type": "array", "items": {"properties": {"unit price": {"type": "number"}}}},
            "tags": {"type": "object", "additionalProperties": {"type": "integer"}},
            "any": {},
            "either": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            "maybe": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        }
    }
    columns, is_bad = decoded(
        schema, {"lines": [{"unit price": 1}, None], "tags": {"a": 1}, "any": {"x": ["é"]}, "either": 7, "maybe": "m"}
    )
    assert not any(is_bad)
    assert columns["lines"].to_pylist() == [[{"unit_price": 1.0}, None]]
    assert columns["tags"].to_pylist() == [[("a", 1)]]
    assert (columns["any"][0].as_py(), columns["either"][0].as_py(), columns["maybe"][0].as_py()) == ('{"x": ["é"]}', "7", "m")


def test_a_field_of_a_java_class_that_may_be_null_has_the_type_of_the_field() -> None:
    """Confluent's serializer makes this schema of a class (`KafkaJsonSchemaSerializerTest`; `json.oneof.for.nullables` is true)."""
    nothing = {"type": "null", "title": "Not included"}
    name, age = ({"oneOf": [nothing, {"type": kind}]} for kind in ("string", "integer"))
    columns, is_bad = decoded({"type": "object", "properties": {"name": name, "age": age}}, {"name": "a", "age": 7}, {"name": None})
    assert {label: column.to_pylist() for label, column in columns.items()} == {"name": ["a", None], "age": [7, None]}
    assert not any(is_bad)


@pytest.mark.parametrize("with_it", [{"allOf": [{"$ref": "base"}]}, {"anyOf": [{"$ref": "base"}, {"type": "null"}]}, {"$ref": "base"}])
def test_no_property_is_left_out_that_stands_beside_those_of_another_schema(with_it: dict[str, Any]) -> None:
    """As a class that has another one's fields and its own is written. The base's own properties alone were columns."""
    base = {"type": "object", "properties": {"id": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"price": {"type": "number"}}, **with_it}
    columns, is_bad = decoded(schema, {"id": 1, "price": 2.5}, base=base)
    assert {name: column.to_pylist() for name, column in columns.items()} == {"": ['{"id": 1, "price": 2.5}']}
    columns, is_bad = decoded({"properties": {"in": schema}}, {"in": {"id": 1, "price": 2.5}}, base=base)
    assert columns["in"].to_pylist() == ['{"id": 1, "price": 2.5}']
    assert not any(is_bad)


def test_references_are_followed_and_a_type_that_holds_itself_is_text() -> None:
    tree = {
        "properties": {"name": {"$ref": "#/$defs/name"}, "left": {"$ref": "#"}, "at": {"$ref": "place"}},
        "$defs": {"name": {"type": "string"}},
    }
    columns, is_bad = decoded(
        tree, {"name": "a", "left": {"name": "b"}, "at": {"street": "s"}}, place={"properties": {"street": {"type": "string"}}}
    )
    assert not any(is_bad)
    assert columns["left"].to_pylist() == [{"name": "b", "left": None, "at": None}]
    assert columns["left"].type.field("left").type == pyarrow.string()
    assert columns["at"].to_pylist() == [{"street": "s"}]


def test_a_pointer_is_part_of_an_address_and_an_anchor_is_not_the_whole_schema() -> None:
    """RFC 6901, section 6: in a URI a pointer is percent-encoded; JSON Schema, `$anchor`: a fragment may be a plain name."""
    schema = {
        "properties": {"pointed": {"$ref": "#/$defs/Page%3CInt%3E"}, "anchored": {"$ref": "#number"}},
        "$defs": {"Page<Int>": {"type": "integer"}, "number": {"$anchor": "number", "type": "integer"}},
    }
    columns, is_bad = decoded(schema, {"pointed": 1, "anchored": 2})
    assert not any(is_bad)
    assert {name: column.to_pylist() for name, column in columns.items()} == {"pointed": [1], "anchored": ["2"]}


def test_a_schema_of_no_object_is_one_column_without_a_name() -> None:
    assert decoded({"type": "string"}, "a")[0][""].to_pylist() == ["a"]
    assert decoded(True, {"a": 1})[0][""].to_pylist() == ['{"a": 1}']


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "no JSON Schema"),
        ('{"$ref": "elsewhere"}', "elsewhere, which the registry does not give"),
        ('{"$ref": "#/nowhere"}', "no JSON Schema"),
        ('{"properties": {"a b": true, "a_b": true}}', "would be one column"),
        ('{"type": [["a"]]}', "no JSON Schema"),
    ],
)
def test_a_schema_that_has_no_columns_says_why(text: str, sentence: str) -> None:
    with pytest.raises(SchemaUnusable, match=sentence):
        read_json_schema(text, {})


@pytest.mark.timeout(60)
def test_a_small_schema_whose_types_hold_each_other_twice_is_refused_by_how_many_columns_it_would_be() -> None:
    """Forty objects of two properties each of the one before it are 2^40 columns: a load of the topic never came to its end."""
    types: dict[str, Any] = {"r0": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    for number in range(1, 40):
        before = {"$ref": f"#/definitions/r{number - 1}"}
        types[f"r{number}"] = {"type": "object", "properties": {"a": before, "b": before}}
    with pytest.raises(SchemaUnusable, match=r"^the schema has more than 10000 types"):
        read_json_schema(json.dumps({"$ref": "#/definitions/r39", "definitions": types}), {})
    read_json_schema(json.dumps({"$ref": "#/definitions/r9", "definitions": types}), {})

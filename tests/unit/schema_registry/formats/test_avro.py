"""Avro schemas: what is read, how it is written, and who reads whom.

Sources: Avro's specification 1.12 ("Schema Declaration", "Names", "Schema Resolution"); Avro's `SchemaCompatibility` for the names of
rules; Confluent's documentation, "Schema Evolution and Compatibility". fastavro, which this project did not write, judges by reading.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
from typing import Any

import fastavro
import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.schema_registry.formats import (
    CompatibilityLevel,
    EntityType,
    Formats,
    InvalidSchema,
    Limits,
    SchemaEntity,
    SchemaTooLarge,
    SchemaType,
    avro,
    changes_between,
    check_compatibility,
)
from ottla.schema_registry.formats.avro import AvroSchema

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


def parsed(schema: Any, references: dict[str, str] | None = None, is_new: bool = True) -> AvroSchema:
    """Of a schema as JSON, or as text."""
    is_text = isinstance(schema, str) and schema not in PRIMITIVES
    return avro.parse(schema if is_text else json.dumps(schema), references or {}, Limits(), is_new)


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    """A record of fields."""
    return {"type": "record", "name": name, "fields": [*fields], **more}


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    """A field."""
    return {"name": name, "type": type_, **more}


def rules(reader: Any, writer: Any) -> list[tuple[str, str]]:
    """Why a reader does not read, as rule and path."""
    found = check_compatibility(parsed(reader), parsed(writer), CompatibilityLevel.BACKWARD)
    return [(reason.rule, reason.path) for reason in found]


# The written forms


def test_the_canonical_form_has_the_order_of_javas_library_and_no_white_space() -> None:
    """Confluent stores `Schema.toString()`: a short name with its namespace, properties behind the fields, aliases last."""
    schema = record(
        field("id", "long", aliases=["key"], default=0, doc="a key", order="descending", note=[1]),
        field("next", ["null", "a.b.Order"], default=None),
        name="a.b.Order",
        aliases=["a.b.Purchase", "c.Purchase"],
        owner="team",
        doc="an order",
    )
    assert parsed(json.dumps(schema, indent=4)).canonical == (
        '{"type":"record","name":"Order","namespace":"a.b","doc":"an order","fields":['
        '{"name":"id","type":"long","doc":"a key","default":0,"order":"descending","aliases":["key"],"note":[1]},'
        '{"name":"next","type":["null","Order"],"default":null}],"owner":"team","aliases":["Purchase","c.Purchase"]}'
    )


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        *[("1e-4", "1.0E-4"), ("0.00099", "9.9E-4"), ("0.001", "0.001"), ("-2.5e-7", "-2.5E-7"), ("0.10", "0.1"), ("0.0", "0.0")],
        *[("9999999.0", "9999999.0"), ("1e7", "1.0E7"), ("123456789.125", "1.23456789125E8"), ("1e22", "1.0E22"), ("7", "7")],
        *[('"1e-4"', "1.0E-4"), ('"2.5"', "2.5"), ('"NaN"', '"NaN"')],
    ],
)
def test_a_number_is_written_as_java_has_a_double(written: str, canonical: str) -> None:
    """`Double.toString`, in defaults and in properties: the text is part of the guid."""
    text = f'{{"type":"record","name":"R","fields":[{{"name":"a","type":"double","default":{written},"p":{{"q":[{written}]}}}}]}}'
    property_ = written if written.startswith('"') else canonical
    schema = parsed(text)
    assert f'"default":{canonical},"p":{{"q":[{property_}]}}' in schema.canonical
    assert schema.equivalent(parsed(schema.canonical)) and parsed(schema.normalized).normalized == schema.normalized


@pytest.mark.parametrize("kind", PRIMITIVES)
def test_a_primitive_is_written_short_unless_it_has_properties(kind: str) -> None:
    """`{"type": "string"}` and `"string"` are one schema (specification, "Primitive Types")."""
    assert parsed({"type": kind}).canonical == f'"{kind}"'
    assert parsed({"type": kind, "java": "X"}).canonical == f'{{"type":"{kind}","java":"X"}}'
    assert parsed({"type": kind}).equivalent(parsed(f'"{kind}"'))


def test_normalising_makes_one_text_of_schemas_that_differ_in_order() -> None:
    """Properties, aliases and the parts of a logical type are put in order (Confluent, `normalize=true`)."""
    amount = {"type": "bytes", "scale": 2, "logicalType": "decimal", "precision": 9, "b": 1, "a": {"d": 1, "c": 2}}
    one = record(field("amount", amount, z=1, y=2), aliases=["B", "A"], doc="")
    amount = dict(reversed(amount.items()))
    other = dict(reversed(record(field("amount", amount, y=2, z=1), aliases=["A", "B"]).items()))
    assert parsed(one).canonical != parsed(other).canonical
    assert parsed(one).normalized == parsed(other).normalized
    assert '{"type":"bytes","logicalType":"decimal","precision":9,"scale":2,"a":{"c":2,"d":1},"b":1}' in parsed(one).normalized
    assert parsed(parsed(one).normalized).normalized == parsed(one).normalized


def test_a_nested_type_without_a_namespace_says_so() -> None:
    """A null namespace inside another is written as an empty one, or the name would be taken for that of the outer (Avro, Names)."""
    schema = record(field("inner", record(name="I", namespace="")), name="a.O")
    assert '"name":"I","namespace":"",' in parsed(schema).canonical


def test_a_type_of_a_reference_stays_a_name_and_is_written_out_when_resolved() -> None:
    """Confluent, "Schema references": the canonical form names the type; `format=resolved` has it inside, once."""
    references = {"a.Id": json.dumps({"type": "fixed", "name": "a.Id", "size": 4}), "unused": json.dumps(record(name="a.Unused"))}
    schema = parsed(record(field("one", "Id"), field("two", "a.Id"), name="a.R"), references)
    assert schema.canonical.count('"type":"Id"') == 2
    assert schema.formatted("resolved").count('{"type":"fixed","name":"Id","size":4}') == 1
    inlined = record(field("one", {"type": "fixed", "name": "Id", "size": 4}), field("two", "Id"), name="a.R")
    assert schema.equivalent(parsed(inlined))


def test_a_name_may_be_used_before_it_is_defined() -> None:
    """As Avro 1.12's parser allows."""
    schema = parsed(record(field("one", "Later"), field("two", {"type": "enum", "name": "Later", "symbols": ["A"]})))
    assert schema.canonical.index('"type":"enum"') < schema.canonical.index('"two"')


def test_tags_are_found_and_changed_where_they_stand() -> None:
    """`confluent:tags` of records and fields (Confluent, "Data contracts"); entities are full names."""
    schema = parsed(record(field("ssn", "string", **{"confluent:tags": ["PII"]}), field("id", "int"), name="a.R"))
    ssn, identity = SchemaEntity("a.R.ssn", EntityType.FIELD), SchemaEntity("a.R.id", EntityType.FIELD)
    assert schema.tagged_entities == {ssn: ["PII"]}
    whole = SchemaEntity("a.R", EntityType.RECORD)
    changed = parsed(schema.with_tags({identity: ["B", "A"], whole: ["X"]}, {ssn: ["PII"]}))
    assert changed.tagged_entities == {whole: ["X"], identity: ["B", "A"]}
    again = parsed(changed.with_tags({identity: ["A", "0", "C"], whole: ["W"]}, {identity: ["C"]}))
    assert again.tagged_entities == {whole: ["X", "W"], identity: ["B", "A", "0"]}  # `AvroSchemaTest.testComplexAddAndRemoveTags`
    with pytest.raises(InvalidSchema, match=r"a\.R\.none"):
        schema.with_tags({SchemaEntity("a.R.none", EntityType.FIELD): ["A"]}, {})


@pytest.mark.parametrize("name", ["my-service.v1.Order", '"\\.Order', "a..b.Order", "my-service.Gr\u00f6\u00dfe"])
def test_a_name_that_javas_library_takes_is_taken_and_written(name: str) -> None:
    """Avro's `Schema.Name` looks at what follows the last dot, and at that with `Character.isLetter`; so Confluent's registry has such."""
    space, _, short = name.rpartition(".")
    schema = record(field("next", ["null", short]), field("in", record(field("of", name), name="In", namespace="other")), name=name)
    once = parsed(schema)
    assert once.root.name == name and json.loads(once.canonical)["namespace"] == space
    again = parsed(once.canonical)
    assert again.canonical == once.canonical and again.equivalent(once)


# What is refused


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ('{"type": "record",', "line 1 column 19"),
        ("5", ""),
        (" null", ""),
        ('"nothing"', ""),
        ({"type": {"type": "int"}}, ""),
        ({"type": "array"}, ""),
        ({"type": "map", "values": "x"}, "/values"),
        (record(name="a.1"), "/name"),
        (record(name="a-b"), "/name"),
        (record(name="gr\u00f6\u00dfe\u00b2"), "/name"),
        (record(name="string"), "/name"),
        ({"type": "record", "name": "R"}, ""),
        (record(field("a b", "int")), "/fields/0/name"),
        (record({"name": "a"}), "/fields/0"),
        (record(field("a", "int"), field("a", "int")), "/fields/1/name"),
        (record(field("a", record()), name="R"), "/fields/0/type/name"),
        (record(field("a", "int", order="up")), "/fields/0/order"),
        (record(field("a", "int", aliases="b")), "/fields/0/aliases"),
        (["int", "int"], "/1"),
        (["null", ["int"]], "/1"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "/symbols"),
        ({"type": "enum", "name": "E", "symbols": ["A-"]}, "/symbols/0"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "/default"),
        ({"type": "fixed", "name": "F", "size": -1}, "/size"),
        ({"type": "fixed", "name": "F", "size": True}, "/size"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(schema: Any, place: str) -> None:
    """Specification, "Complex Types" and "Names"; 42201 is Confluent's code."""
    with pytest.raises(InvalidSchema) as refused:
        parsed(schema)
    assert (refused.value.place, refused.value.code) == (place, 42201)


@pytest.mark.parametrize(
    ("type_", "good", "bad"),
    [
        ("int", [0, -(2**31), 2**31 - 1], [2**31, 1.0, True, "1", None]),
        ("long", [2**63 - 1], [2**63, 0.5]),
        ("float", [1, 1.5, "NaN", "2.5"], [True, None, "x", "nan", "inf", "-Infinity ", "1e999"]),
        ("boolean", [True], [0, "true"]),
        ("null", [None], [0, "null"]),
        ("string", ["", "x"], [1, None]),
        ("bytes", ["\u00ff"], [1]),
        ({"type": "array", "items": "int"}, [[], [1]], [["x"], {}, 1]),
        ({"type": "map", "values": "int"}, [{}, {"a": 1}], [{"a": "x"}, []]),
        (["null", "string"], [None, "x"], [1]),
        (record(field("a", "int"), field("b", "int", default=1), name="I"), [{"a": 1}], [{"b": 1}, {"a": "x"}, 1]),
    ],
)
def test_a_default_fits_its_type(type_: Any, good: list[Any], bad: list[Any]) -> None:
    """The specification's table "field default values"; any branch of a union may take it since 1.12. What stands already is kept."""
    for value in good:
        parsed(record(field("f", type_, default=value)))
    for value in bad:
        with pytest.raises(InvalidSchema, match="default"):
            parsed(record(field("f", type_, default=value)))
    in_store = [value for value in bad if not isinstance(value, str) or type_ != "float"]
    assert all(parsed(record(field("f", type_, default=value)), is_new=False) for value in in_store)


@pytest.mark.parametrize("count", [10, 150, 400])
def test_what_is_taken_is_read_again_where_types_are_used_before_they_are_defined(count: int) -> None:
    """They are written where they are used first, each within the one before."""
    chain = [field(f"f{n}", record(*([field("next", f"T{n + 1}")] if n < count else []), name=f"T{n}")) for n in range(1, count + 1)]
    text = json.dumps(record(field("first", "T1"), *chain))
    try:
        schema = asyncio.run(Formats().parse(SchemaType.AVRO, text, {}))
    except InvalidSchema as refused:
        assert count > 100 and "deep" in str(refused)
    else:
        assert count == 10 and parsed(schema.canonical, is_new=False).equivalent(schema)


# Compatibility: the table of the specification


READS = {("long", "int"), ("float", "int"), ("float", "long"), ("double", "int"), ("double", "long"), ("double", "float")}
READS |= {("string", "bytes"), ("bytes", "string")} | {(kind, kind) for kind in PRIMITIVES}


@pytest.mark.parametrize("reader", PRIMITIVES)
@pytest.mark.parametrize("writer", PRIMITIVES)
def test_primitives_are_promoted_as_the_specification_says(reader: str, writer: str) -> None:
    """ "Schema Resolution": int to long, float, double; long to float, double; float to double; string to bytes and back."""
    expected = [] if (reader, writer) in READS else [("TYPE_MISMATCH", "/")]
    assert rules(reader, writer) == expected
    inside = [] if not expected else [("TYPE_MISMATCH", "/fields/0/type/items")]
    assert (
        rules(
            record(field("a", {"type": "array", "items": reader})),
            record(field("a", {"type": "array", "items": writer})),
        )
        == inside
    )


ENUM_AB = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED_4 = {"type": "fixed", "name": "F", "size": 4}


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}, []),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, [("TYPE_MISMATCH", "/values")]),
        ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, [("TYPE_MISMATCH", "/")]),
        # enums: a symbol the reader has not is its default, and an error without one
        ({**ENUM_AB, "symbols": ["B", "C", "A"]}, ENUM_AB, []),
        ({**ENUM_AB, "symbols": ["A"]}, ENUM_AB, [("MISSING_ENUM_SYMBOLS", "/symbols")]),
        ({**ENUM_AB, "symbols": ["A"], "default": "A"}, ENUM_AB, []),
        ({**ENUM_AB, "name": "X"}, ENUM_AB, [("NAME_MISMATCH", "/name")]),
        # names: the unqualified must match, or an alias the full one
        ({**FIXED_4, "name": "other.F"}, {**FIXED_4, "name": "ns.F"}, []),
        ({**FIXED_4, "name": "ns.G", "aliases": ["F"]}, {**FIXED_4, "name": "ns.F"}, []),
        ({**FIXED_4, "name": "G", "aliases": ["F"]}, {**FIXED_4, "name": "ns.F"}, [("NAME_MISMATCH", "/name")]),
        ({**FIXED_4, "size": 5}, FIXED_4, [("FIXED_SIZE_MISMATCH", "/size")]),
        # records: order does not matter, a field that the reader has not is skipped, one that the writer has not needs a default
        (record(field("b", "int"), field("a", "int")), record(field("a", "int"), field("b", "int"), field("c", "int")), []),
        (record(field("a", "int"), field("b", "int")), record(field("a", "int")), [("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/1")]),
        (record(field("a", "int"), field("b", "int", default=1)), record(field("a", "int")), []),
        (record(field("b", "int", aliases=["a"])), record(field("a", "int")), []),
        (
            record(field("c", "int", aliases=["a", "b"])),
            record(field("a", "int"), field("b", "int")),
            [("AMBIGUOUS_FIELD_ALIASES", "/fields/0/aliases")],
        ),
        (record(field("e", ENUM_AB | {"default": "A"})), record(), [("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/0")]),
        (record(name="A"), record(name="B"), [("NAME_MISMATCH", "/name")]),
        # unions: each branch of the writer's is read by one of the reader's
        (["null", "string"], "string", []),
        ("string", ["null", "string"], [("TYPE_MISMATCH", "/0")]),
        ("string", ["string"], []),
        (["null", "long"], ["null", "int"], []),
        (["null", "string"], ["null", "string", "int"], [("MISSING_UNION_BRANCH", "/2")]),
        (["null", "string"], "int", [("MISSING_UNION_BRANCH", "/")]),
        ({"type": "error", "name": "R", "fields": []}, record(), []),
        # logical types do not matter, as in Java's library
        ({"type": "int", "logicalType": "date"}, "int", []),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, {"type": "bytes", "logicalType": "decimal", "precision": 9}, []),
    ],
)
def test_schema_resolution(reader: Any, writer: Any, expected: list[tuple[str, str]]) -> None:
    """Rule by rule, in the order of "Schema Resolution"."""
    assert rules(reader, writer) == expected


def test_each_reason_has_a_path_a_sentence_and_a_remedy() -> None:
    """As verbose answers have it: Confluent's type, description and additional information, and what can be done."""
    old, new = parsed(record(field("a", "int"))), parsed(record(field("a", "int"), field("b", "int")))
    (reason,) = check_compatibility(new, old, CompatibilityLevel.BACKWARD)
    assert reason.message == (
        "{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', path:'/fields/1', "
        "description:'the old schema has no field b, and at '/fields/1' in the new schema it has no default', additionalInfo:'b', "
        "remedy:'give the field b of the new schema a default, or an alias that is a field of the old schema'}"
    )
    (reason,) = check_compatibility(old, new, CompatibilityLevel.FORWARD)
    assert "the new schema has no field b, and at '/fields/1' in the old schema" in reason.description


PLAIN = record(field("f1", "string"))
WITH_DEFAULT = record(field("f1", "string"), field("f2", "string", default="foo"))
WITHOUT_DEFAULT = record(field("f1", "string"), field("f2", "string"))


@pytest.mark.parametrize(
    ("level", "new", "old", "compatible"),
    [
        ("BACKWARD", WITH_DEFAULT, PLAIN, True),
        ("BACKWARD", WITHOUT_DEFAULT, PLAIN, False),
        ("FORWARD", WITHOUT_DEFAULT, PLAIN, True),
        ("FORWARD", PLAIN, WITHOUT_DEFAULT, False),
        ("FULL", WITH_DEFAULT, PLAIN, True),
        ("FULL", WITHOUT_DEFAULT, PLAIN, False),
        ("FULL", PLAIN, WITHOUT_DEFAULT, False),
        ("NONE", "int", PLAIN, True),
    ],
)
def test_levels_choose_who_reads(level: str, new: Any, old: Any, compatible: bool) -> None:
    """Confluent's documentation, the table "Compatibility types": adding and removing optional and required fields."""
    found = check_compatibility(parsed(new), parsed(old), CompatibilityLevel(level))
    assert (found == []) == compatible


def test_a_recursive_type_is_compared_to_its_end() -> None:
    """A list of ints cannot be read as a list of booleans, however it leads back to itself."""

    def linked(value: str) -> dict[str, Any]:
        return record(field("next", ["null", "R"]), field("value", value))

    assert rules(linked("long"), linked("int")) == []
    assert ("TYPE_MISMATCH", "/fields/1/type") in rules(linked("boolean"), linked("int"))


def test_what_was_assumed_of_a_cycle_is_not_kept_when_it_proves_wrong() -> None:
    """A pair found compatible inside a comparison that fails may not count elsewhere; Java's library keeps it.

    B of the new schema reads B of the old only if A reads A, which it does not, because of a field behind the one that leads to B. The
    union has another branch, so A against A failing is no objection in itself; the field `again` leads to B directly.
    """

    def schema(value: str) -> Any:
        b = record(field("a", ["null", "A"]), name="B")
        a = record(field("b", b), field("value", value), name="A")
        return record(field("first", [a, "null"]), field("again", "B"), name="Top")

    found = rules(schema("boolean"), schema("int"))
    assert ("MISSING_UNION_BRANCH", "/fields/1/type/fields/0/type/1") in found


def test_changes_are_found_by_name() -> None:
    """For a page and a command; places are names, not numbers."""
    old = parsed(record(field("a", "int"), field("b", "string")))
    new = parsed(record(field("b", ["null", "string"]), field("a", "long"), field("c/d".replace("/", "_"), "int"), doc="text"))
    assert [(change.kind.value, change.path) for change in changes_between(old, new)] == [
        ("changed", "/fields/a/type"),
        ("changed", "/fields/b/type"),
        ("added", "/fields/c_d"),
        ("added", "/doc"),
    ]


# Hostile text


def hostile() -> list[tuple[str, str]]:
    deep: Any = "int"
    for _ in range(150):
        deep = {"type": "array", "items": deep}
    names = [record(field("x", "int"), name=f"N{index}") for index in range(700)]
    wide = record(field("a", names), field("b", [f"N{index}" for index in range(700)]))
    return [
        ("[" * 100_000, "nested too deep"),
        ('{"a":' * 50_000, "nested too deep"),
        (json.dumps(deep), "nested more than"),
        ('"\\ud800"', "surrogate"),
        ('{"type":"int","x":NaN}', "NaN"),
        ('{"type":"int","x":1e999}', "too large"),
        ('{"type":"int","x":' + "9" * 5000 + "}", "no JSON"),
        (json.dumps(wide), ""),
    ]


@pytest.mark.parametrize(("text", "reason"), hostile())
def test_hostile_text_is_refused(text: str, reason: str) -> None:
    """Depth, numbers and halves of characters; the last is valid and makes half a million pairs, which have a bound too."""
    if reason:
        with pytest.raises(InvalidSchema, match=reason):
            parsed(text)
    else:
        with pytest.raises(InvalidSchema, match="too complex"):
            check_compatibility(parsed(text), parsed(text.replace('"x"', '"y"')), CompatibilityLevel.BACKWARD)


@pytest.mark.parametrize(
    "schema",
    [
        record(*(field(f"f{index}", {"type": "fixed", "name": f"F{index}", "size": 1}) for index in range(1_000)), namespace="n" * 50_000),
        record(*(field(f"f{index}", "R") for index in range(1_000)), namespace="n" * 50_000),
        record(*(field(f"f{index}", "int", **{"confluent:tags": ["PII"]}) for index in range(1_000)), namespace="n" * 50_000),
        record(namespace="n" * 50_000, aliases=[f"a{index}" for index in range(5_000)]),
    ],
)
def test_a_long_namespace_is_not_repeated_for_each_name_without_a_bound(schema: Any) -> None:
    """A namespace of half of the largest text, in front of the names of the other half, would be gigabytes."""
    with pytest.raises(InvalidSchema, match="too complex"):
        parsed(schema)


def test_size_has_a_bound_with_and_without_references() -> None:
    """42209 is Confluent's code for a schema that is too large."""
    with pytest.raises(SchemaTooLarge) as refused:
        parsed('"int"' + " " * (1 << 20))
    assert refused.value.code == 42209
    with pytest.raises(SchemaTooLarge):
        parsed('"int"', {str(number): '"int"' + " " * 1_000_000 for number in range(11)})
    with pytest.raises(InvalidSchema, match="references 1001"):
        parsed('"int"', {str(number): '"int"' for number in range(1001)})


# Compatible means that the reader reads what the writer wrote

VALUES: dict[str, Any] = {"int": 7, "long": 8, "float": 0.5, "double": 0.25, "string": "x", "bytes": "y", "boolean": True, "null": None}


class Generator:
    """Schemas and values by a seed: hypothesis draws the seed, for drawing the schemas themselves takes it longer than reading them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0

    def type_(self, depth: int) -> Any:
        """Any type."""
        self.count += 1
        match self.random.choice([*PRIMITIVES, "enum", "fixed"] + (["array", "map", "union", "record"] * 3 if depth else [])):
            case "enum":
                symbols = self.random.sample("ABC", self.random.randint(1, 3))
                default = {"default": symbols[0]} if self.random.random() < 0.3 else {}
                return {"type": "enum", "name": f"E{self.count}", "symbols": symbols, **default}
            case "fixed":
                return {"type": "fixed", "name": f"F{self.count}", "size": self.random.randint(1, 2)}
            case "array":
                return {"type": "array", "items": self.type_(depth - 1)}
            case "map":
                return {"type": "map", "values": self.type_(depth - 1)}
            case "union":
                inner = self.type_(0)
                branches: list[Any] = self.random.sample(PRIMITIVES, self.random.randint(1, 3))
                return branches if isinstance(inner, str) else [*branches, inner]
            case "record":
                return self.record(depth - 1)
            case primitive:
                return primitive

    def record(self, depth: int) -> Any:
        """A record of up to three fields."""
        self.count += 1
        name = f"R{self.count}"
        return record(*(self.field(letter, depth) for letter in self.random.sample("abcd", self.random.randint(0, 3))), name=name)

    def field(self, name: str, depth: int) -> Any:
        """A field, with a default when its type is primitive and chance has it."""
        type_ = self.type_(depth)
        has_default = isinstance(type_, str) and self.random.random() < 0.5
        return field(name, type_, **({"default": VALUES[type_]} if has_default else {}))

    def changed(self, type_: Any) -> Any:
        """A later version of a type: often the same, sometimes compatible, sometimes not."""
        chance = self.random.random()
        if chance < 0.08:
            return self.type_(0)
        if isinstance(type_, str):
            if chance < 0.3:
                return ["null", type_] if type_ != "null" else ["int", "null"]
            return self.random.choice([type_, *(reader for reader, writer in sorted(READS) if writer == type_)])
        if isinstance(type_, list):
            kept = [self.changed(branch) if isinstance(branch, dict) else branch for branch in type_ if self.random.random() < 0.9]
            return kept + [kind for kind in ("null", "long") if kind not in kept and chance < 0.5]
        match type_["type"]:
            case "record":
                fields = [{**member, "type": self.changed(member["type"])} for member in type_["fields"] if self.random.random() < 0.8]
                fields = [member if "default" not in member else field(member["name"], member["type"]) for member in fields]
                if fields and chance < 0.3:
                    fields[0] |= {"name": "renamed", "aliases": [fields[0]["name"]]}
                if chance > 0.5:
                    fields.append(self.field("new", 0))
                self.random.shuffle(fields)
                return {**type_, "fields": fields}
            case "enum":
                return {**type_, "symbols": self.random.sample("ABC", 3)} if chance < 0.7 else type_
            case "array":
                return {**type_, "items": self.changed(type_["items"])}
            case "map":
                return {**type_, "values": self.changed(type_["values"])}
        return type_

    def value(self, type_: Any) -> Any:
        """What a writer may write."""
        match type_:
            case list():
                return self.value(self.random.choice(type_)) if type_ else None
            case {"type": "record", "fields": fields}:
                return {member["name"]: self.value(member["type"]) for member in fields}
            case {"type": "enum", "symbols": symbols}:
                return self.random.choice(symbols)
            case {"type": "fixed", "size": size}:
                return bytes(size)
            case {"type": "array", "items": items}:
                return [self.value(items) for _ in range(2)]
            case {"type": "map", "values": values}:
                return {"key": self.value(values)}
            case "bytes":
                return b"y"
        return VALUES[type_]


@settings(max_examples=examples(250), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_compatible_means_that_the_reader_reads_what_the_writer_wrote(seed: int) -> None:
    """fastavro writes with one schema and reads with the other; whatever the check calls compatible it must read."""
    generator = Generator(seed)
    writer = generator.record(2)
    reader = generator.changed(writer)
    note(f"writer {json.dumps(writer)} reader {json.dumps(reader)}")
    try:
        compatible = rules(reader, writer) == []
    except InvalidSchema:  # chance has put a union into a union
        return
    event("compatible" if compatible else "not compatible")
    if not compatible:
        return
    for _ in range(3):
        value = generator.value(writer)
        written = io.BytesIO()
        fastavro.schemaless_writer(written, fastavro.parse_schema(writer), value)
        written.seek(0)
        fastavro.schemaless_reader(written, fastavro.parse_schema(writer), fastavro.parse_schema(reader))


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_written_forms_are_the_schema(seed: int) -> None:
    """Reading the canonical and the normalised text gives the schema; fastavro has the same parsing canonical form for all three."""
    schema = Generator(seed).record(2)
    first = parsed(schema)
    again = parsed(first.canonical)
    assert again.canonical == first.canonical
    assert parsed(first.normalized).equivalent(first)
    forms = [fastavro.schema.to_parsing_canonical_form(json.loads(text)) for text in (first.canonical, first.normalized)]
    assert forms == [fastavro.schema.to_parsing_canonical_form(schema)] * 2

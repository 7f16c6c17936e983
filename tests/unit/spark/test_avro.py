"""Avro as columns: what fastavro writes is read as fastavro reads it, and a damaged record costs the others nothing."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from io import BytesIO
from random import Random
from typing import Any

import fastavro
import numpy as np
import pytest

from ottla.record.columnar import ByteColumn
from ottla.spark.loading.avro import SchemaUnusable, decode, read_schema

ADDRESS = {
    "type": "record",
    "name": "Address",
    "fields": [{"name": "street", "type": "string"}, {"name": "number", "type": ["null", "int"]}],
}
EVERYTHING: dict[str, Any] = {
    "type": "record",
    "name": "Everything",
    "namespace": "org.example",
    "fields": [
        {"name": "boolean", "type": "boolean"},
        {"name": "int", "type": "int"},
        {"name": "long", "type": "long"},
        {"name": "float", "type": "float"},
        {"name": "double", "type": "double"},
        {"name": "bytes", "type": "bytes"},
        {"name": "string", "type": ["null", "string"], "default": None},
        {"name": "enum", "type": {"type": "enum", "name": "Suit", "symbols": ["HEARTS", "SPADES"]}},
        {"name": "fixed", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "nothing", "type": "null"},
        {"name": "date", "type": {"type": "int", "logicalType": "date"}},
        {"name": "millis", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "micros", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}},
        {"name": "home", "type": ADDRESS},
        {"name": "others", "type": {"type": "array", "items": "Address"}},
        {"name": "scores", "type": {"type": "map", "values": ["null", "double"]}},
        {"name": "matrix", "type": {"type": "array", "items": {"type": "array", "items": "long"}}},
        {"name": "any", "type": ["null", "long", "string"]},
    ],
}


def column_of(octets: list[bytes]) -> ByteColumn:
    """With other bytes between them, as in a fetched batch."""
    data = b"".join(b"\xff\xff" + one for one in octets) + b"\xff"
    lengths = np.array([len(one) for one in octets], np.int64)
    starts = np.cumsum(lengths + 2) - lengths
    return ByteColumn(np.frombuffer(data, np.uint8), starts, lengths)


def written(schema: Any, records: list[Any]) -> list[bytes]:
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    found = []
    for record in records:
        octets = BytesIO()
        fastavro.schemaless_writer(octets, parsed, record)
        found.append(octets.getvalue())
    return found


def address(random: Random) -> dict[str, Any]:
    return {"street": random.choice(["", "Hauptstraße", "x" * 300]), "number": random.choice([None, random.randrange(-5, 5)])}


def record(random: Random) -> dict[str, Any]:
    at = datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=random.randrange(-(10**12), 10**9))
    return {
        "boolean": random.random() < 0.5,
        "int": random.choice([0, -1, (1 << 31) - 1, -(1 << 31), random.randrange(1000)]),
        "long": random.choice([0, -1, (1 << 63) - 1, -(1 << 63), random.randrange(1 << 40)]),
        "float": random.randrange(1000) / 8,
        "double": random.random(),
        "bytes": random.randbytes(random.randrange(200)),
        "string": random.choice([None, "", "żółw", "s" * random.randrange(200)]),
        "enum": random.choice(["HEARTS", "SPADES"]),
        "fixed": random.randbytes(4),
        "nothing": None,
        "date": at.date(),
        "millis": random.choice([None, at]),
        "micros": at,
        "price": Decimal(random.choice([0, -1, 10**20 - 1, -(10**20) + 1, random.randrange(-(10**6), 10**6)])).scaleb(-2),
        "home": address(random),
        "others": [address(random) for _ in range(random.randrange(4))],
        "scores": {f"k{number}": random.choice([None, random.random()]) for number in range(random.randrange(4))},
        "matrix": [[random.randrange(100) for _ in range(random.randrange(3))] for _ in range(random.randrange(4))],
        "any": random.choice([None, 7, "seven"]),
    }


def expected(given: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in given.items() if name != "nothing"}
    found["scores"] = list(given["scores"].items())
    value = given["any"]
    members = {"member0": value if isinstance(value, int) else None, "member1": value if isinstance(value, str) else None}
    found["any"] = None if value is None else members  # as Spark's AvroDeserializer, whose record writer sets null first
    return found


def rows_of(columns: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*(column.to_pylist() for column in columns.values()), strict=True)]


@pytest.mark.parametrize("seed", range(10))
def test_every_type_is_read_as_it_was_written(seed: int) -> None:
    random = Random(seed)
    records = [record(random) for _ in range(random.choice([1, 2, 200]))]
    columns, is_bad = decode(read_schema(json.dumps(EVERYTHING)), column_of(written(EVERYTHING, records)))
    assert not is_bad.any()
    assert rows_of(columns) == [expected(one) for one in records]


def test_bytes_before_each_record_are_skipped_and_blocks_of_an_array_may_say_their_size() -> None:
    """Avro 1.12, Complex Types: a block's count may be negative, and its size in bytes follows then."""
    schema = read_schema('{"type": "array", "items": "int"}')
    columns, is_bad = decode(schema, column_of([b"frame" + bytes([3, 4, 2, 4, 2, 6, 0]), b"frame\x00", b"fram"]), 5)
    assert is_bad.tolist() == [False, False, True]
    assert columns[""].to_pylist()[:2] == [[1, 2, 3], []]


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_record_is_marked_and_the_others_are_read(seed: int) -> None:
    """Method: bytes of every third record are cut, added or changed. A changed one of the same length may still be a record."""
    random = Random(seed)
    records = [record(random) for _ in range(60)]
    octets = written(EVERYTHING, records)
    for number in range(0, 60, 3):
        whole = bytearray(octets[number])
        change = random.randrange(3)
        if change == 0:
            del whole[random.randrange(len(whole)) :]
        elif change == 1:
            whole += b"\0"
        else:
            for _ in range(5):
                whole[random.randrange(len(whole))] = random.randrange(256)
        octets[number] = bytes(whole)
    columns, is_bad = decode(read_schema(json.dumps(EVERYTHING)), column_of(octets))
    for number, (one, is_wrong) in enumerate(zip(records, is_bad, strict=True)):
        if number % 3:
            assert not is_wrong
            assert {name: column[number].as_py() for name, column in columns.items()} == expected(one)
        elif len(octets[number]) != len(written(EVERYTHING, [one])[0]):
            assert is_wrong


@pytest.mark.parametrize(
    ("schema", "octets"),
    [
        ('"long"', b"\xff" * 10 + b"\x01"),
        ('"int"', b"\xfe\xff\xff\xff\xff\x01"),
        ('"string"', b"\x04\xff\xff"),
        ('"string"', b"\x06ab"),
        ('"string"', b"\x01"),
        ('"boolean"', b"\x02"),
        ('["null", "int"]', b"\x04\x00"),
        ('{"type": "enum", "name": "e", "symbols": ["a"]}', b"\x02"),
        ('{"type": "array", "items": "int"}', b"\xfe\xff\xff\xff\xff\x01\x02"),
        ('{"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}', b"\xfe\xff\xff\xff\xff\x01\x00"),
        ('{"type": "bytes", "logicalType": "decimal", "precision": 2}', b"\x04\x7f\xff"),
        ('{"type": "bytes", "logicalType": "decimal", "precision": 2}', b"\x22\x01" + bytes(16)),
        ('{"type": "bytes", "logicalType": "decimal", "precision": 2}', b"\x22\x00\xff" + bytes(15)),
        ('{"type": "long", "logicalType": "timestamp-millis"}', b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ('{"type": "long", "logicalType": "timestamp-millis"}', b"\xff" * 9 + b"\x01"),
        ('"double"', b""),
        ('"int"', b"\x02\x02"),
    ],
)
def test_what_no_record_can_be_is_marked(schema: str, octets: bytes) -> None:
    _, is_bad = decode(read_schema(schema), column_of([octets]))
    assert is_bad.all()


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("{", "no Avro schema"),
        ('"unheard"', "no Avro schema"),
        ('{"type": "record", "name": "r"}', "no Avro schema"),
        ('{"type": "record", "name": "r", "fields": [{"name": "next", "type": ["null", "r"]}]}', "r holds itself"),
        ('{"type": "array", "items": ' * 70 + '"int"' + "}" * 70, "deeper than 64"),
        ('{"type": "array", "items": "null"}', "an array of nothing but null has no column"),
        ('{"type": "map", "values": ["null"]}', "a map of nothing but null has no column"),
        ('{"type": "array", "items": {"type": "record", "name": "r", "fields": []}}', "an array of nothing but null"),
        # A table of such a column cannot be made, as deltalake says by a bare exception when all is written.
        (
            '{"type": "map", "values": {"type": "record", "name": "r", "fields": ['
            '{"name": "a", "type": "int"}, {"name": "A", "type": "int"}]}}',
            "two fields would be one column: A, a",
        ),
    ],
)
def test_a_schema_without_columns_is_refused(schema: str, sentence: str) -> None:
    with pytest.raises(SchemaUnusable, match=sentence):
        read_schema(schema)


@pytest.mark.parametrize(
    "more", [{}, {"precision": None}, {"precision": "2"}, {"precision": 2, "scale": 3}, {"precision": 2, "scale": True}]
)
def test_a_logical_type_that_is_not_valid_is_what_it_is_made_of(more: dict[str, Any]) -> None:
    """The specification: implementations must ignore it, as Java's does when it writes."""
    schema = json.dumps({"type": "bytes", "logicalType": "decimal", **more})
    columns, is_bad = decode(read_schema(schema), column_of([b"\x02a"]))
    assert (columns[""].to_pylist(), is_bad.tolist()) == ([b"a"], [False])


def test_a_decimal_may_be_longer_than_its_digits_need() -> None:
    """The specification bounds the precision by the size of a fixed, and not the size by the precision; Java's BigInteger takes any."""
    fixed = {"type": "fixed", "name": "price", "size": 20, "logicalType": "decimal", "precision": 38, "scale": 2}
    numbers = [Decimal("1.25"), Decimal("-1.25"), Decimal("9" * 36 + ".99"), Decimal("-" + "9" * 36 + ".99")]
    columns, is_bad = decode(read_schema(json.dumps(fixed)), column_of(written(fixed, numbers)))
    assert columns[""].to_pylist() == numbers
    assert not is_bad.any()
    longer = [bytes([2 * len(octets)]) + octets for octets in (b"\xff" * 17 + b"\x85", bytes(17) + b"\x7b")]
    columns, is_bad = decode(read_schema(json.dumps({**fixed, "type": "bytes"})), column_of(longer))
    assert columns[""].to_pylist() == [Decimal("-1.23"), Decimal("1.23")]
    assert not is_bad.any()


def test_names_of_other_schemas_are_found() -> None:
    other = json.dumps({**ADDRESS, "namespace": "org.example"})
    schema = json.dumps({"type": "record", "name": "P", "fields": [{"name": "home", "type": "org.example.Address"}]})
    columns, is_bad = decode(read_schema(schema, [other]), column_of([b"\x02a\x00"]))
    assert not is_bad.any()
    assert columns["home"].to_pylist() == [{"street": "a", "number": None}]


def test_a_decimal_that_is_referred_to_by_its_name_is_a_decimal() -> None:
    """Java's Schema.parse takes the name where a type stands and where `type` says it, and gives the type that has the name."""
    price = {"type": "fixed", "name": "Price", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}
    kinds = [price, "Price", {"type": "Price"}, ["null", {"type": "Price"}]]
    schema = {"type": "record", "name": "Sale", "fields": [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]}
    octets = (125).to_bytes(4, "big")
    columns, is_bad = decode(read_schema(json.dumps(schema)), column_of([octets * 3 + b"\x02" + octets]))
    assert not is_bad.any()
    assert [column.to_pylist() for column in columns.values()] == [[Decimal("1.25")]] * 4


def test_a_field_that_has_no_column_may_have_the_name_of_one_that_has() -> None:
    schema = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}, {"name": "A", "type": "null"}]}'
    columns, _ = decode(read_schema(schema), column_of([b"\x02"]))
    assert list(columns) == ["a"]


@pytest.mark.timeout(60)
def test_a_small_schema_whose_types_hold_each_other_twice_is_refused_by_how_many_columns_it_would_be() -> None:
    """Forty records of two fields each of the one before it are 2^40 columns: a load of the topic never came to its end."""
    first = {"type": "record", "name": "R0", "fields": [{"name": "a", "type": "int"}]}
    types = [first] + [
        {"type": "record", "name": f"R{number}", "fields": [{"name": name, "type": f"R{number - 1}"} for name in "ab"]}
        for number in range(1, 40)
    ]
    fields = [{"name": f"r{number}", "type": kind} for number, kind in enumerate(types)]
    with pytest.raises(SchemaUnusable, match=r"^the schema has more than 10000 types"):
        read_schema(json.dumps({"type": "record", "name": "All", "fields": fields}))
    read_schema(json.dumps({"type": "record", "name": "All", "fields": fields[:9]}))

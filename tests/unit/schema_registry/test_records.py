"""The records of `_schemas` in Confluent's bytes.

The fixture has what Confluent Schema Registry 7.x writes, a record a line: key, tab, value (nothing for a tombstone). Its form is that of
`SchemaRegistryKeysTest.java`, `SchemaValuesTest.java` and the key and value classes in confluentinc/schema-registry.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.schema_registry.state.records import Change, Ignored, Noop, PutVersion, UnreadableRecord, decode, encode
from ottla.schema_registry.state.replay import State
from ottla.schema_registry.state.schemas import (
    Reference,
    Schema,
    Version,
    merged_metadata,
    merged_rule_sets,
    metadata_of,
    rule_set_of,
    with_confluent_version,
)

FIXTURE: Final = Path(__file__).parent / "schemas_topic.txt"


def lines() -> list[tuple[bytes, bytes | None]]:
    found = []
    for line in FIXTURE.read_bytes().splitlines():
        key, _, value = line.partition(b"\t")
        found.append((key, value or None))
    return found


def test_every_record_of_confluents_is_written_again_in_the_same_bytes() -> None:
    for key, value in lines():
        change: Change = decode(key, value, 5)
        if isinstance(change, Ignored):
            continue
        written = encode(change)
        assert (written.key, written.value) == (key, value)


def test_a_topic_of_confluents_is_read_as_it_is() -> None:
    state = State()
    for offset, (key, value) in enumerate(lines()):
        state.apply(offset, 1_700_000_000_000 + offset, key, value, {})
    assert state.unreadable_count == state.conflict_count == 0
    assert [(version.version, version.id, version.is_deleted) for version in state.versions("orders-value")] == [
        (1, 1, False),
        (2, 2, True),
        (3, 4, False),
    ]
    assert state.versions("gone-value") == ()
    assert [version.is_deleted for version in state.versions("old-value")] == [True]
    assert state.version_by_id(1) is not None and state.version_by_id(1).schema.text == '"string"'  # type: ignore[union-attr]
    protobuf = state.version("proto-value", 1)
    assert protobuf is not None and protobuf.schema.schema_type == "PROTOBUF"
    assert [referrer.subject for referrer in state.referrers("other.proto", 1)] == ["proto-value"]
    assert state.config("orders-value") == {"normalize": True, "compatibilityLevel": "FULL"}
    assert state.config_in_scope("whatever")["compatibilityLevel"] == "FORWARD"
    assert state.mode_in_scope("whatever") == "READWRITE" and state.mode_in_scope(":.lake:x") == "IMPORT"
    assert state.contexts == [".", ".lake"] and state.highest_ids == {".": 6, ".lake": 1}


@pytest.mark.parametrize(
    "key",
    [
        b'{"keytype":"CONFIG","subject":null,"magic":0}',  # as releases before 5.5 wrote it
        b'{"magic": 0, "keytype": "CONFIG"}',
    ],
)
def test_the_key_of_the_top_scope_is_read_in_older_forms(key: bytes) -> None:
    state = State()
    state.apply(0, 5, key, b'{"compatibilityLevel":"NONE"}', {})
    assert state.config_in_scope("any")["compatibilityLevel"] == "NONE"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"", b""),
        (b"\xff", b"{}"),
        (b"[]", b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":2}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b"not json"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b'{"subject":"s"}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":"one","magic":1}', b'{"id":1,"schema":"x"}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b'{"id":1,"schema":"x","references":7}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1e999,"magic":1}', b'{"id":1,"schema":"x"}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b'{"id":2147483648,"schema":"x"}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b'{"id":1,"schema":' + b"[" * 100_000),
        (
            b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
            b'{"id":1,"schema":"x","references":[{"name":"n","subject":"t","version":4294967296}]}',
        ),
        (b'{"keytype":"CONFIG","subject":"s","magic":0}', b'{"alias":"\\ud800"}'),
        (b'{"keytype":"MODE","subject":"\\ud800","magic":0}', b'{"mode":"IMPORT"}'),
        (b'{"keytype":"ELSE","magic":0}', None),
        (b'{"keytype":"MODE","magic":0}', b"[]"),
        (b'{"keytype":"MODE","magic":0}', b'{"mode":"FROZEN"}'),  # of a later release: the mode before stays
        (b'{"keytype":"CONFIG","magic":0}', b'{"compatibilityLevel":"SIDEWAYS"}'),
        (b'{"keytype":"CONFIG","subject":["s"],"magic":0}', b'{"compatibilityLevel":"FULL"}'),
        (b'{"keytype":"MODE","subject":{"s":1},"magic":0}', b'{"mode":"IMPORT"}'),
        (b'{"keytype":"CLEAR_SUBJECT","subject":5,"magic":0}', b"{}"),
    ],
)
def test_a_record_that_no_registry_writes_is_counted_and_skipped(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(UnreadableRecord):
        decode(key, value, 5)
    state = State()
    state.apply(3, 5, key, value, {})
    assert (state.unreadable_count, state.next_offset, state.subject_count) == (1, 4, 0)


def test_a_noop_and_associations_change_nothing() -> None:
    assert decode(b'{"keytype":"NOOP","magic":0}', None, 5) == Noop()
    assert isinstance(decode(b'{"keytype":"ASSOC","tenant":"default","magic":0}', b"{}", 5), Ignored)
    assert isinstance(decode(b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}', None, 5), Ignored)


def test_a_guid_is_confluents() -> None:
    """`SchemaValuesTest.testSchemaValueMD5` pins both."""
    text = '{"type":"record","name":"myrecord","fields":[{"type":"string","default":null,"name":"f"}]}'
    digest = bytes(byte & 0xFF for byte in (29, 32, -53, -71, -27, -29, 94, -105, 84, -25, -38, 23, 11, 110, 93, -37))
    assert Schema.of("AVRO", text).fingerprint == digest
    for empty_rule in ({"kind": "TRANSFORM", "mode": "WRITEREAD"}, {}):  # which are what `Rule` has where nothing is said
        with_both = Schema.of("AVRO", text, (), metadata_of({}), rule_set_of({"migrationRules": [empty_rule]}, is_new=False))
        assert with_both.fingerprint == bytes(
            byte & 0xFF for byte in (22, -15, -20, -91, -21, -7, 34, -77, -38, -128, 33, 47, -113, -89, 52, 46)
        )


def test_everything_that_a_schema_has_is_part_of_its_guid() -> None:
    plain = Schema.of("AVRO", '"int"')
    others = [
        Schema.of("AVRO", '"long"'),
        Schema.of("AVRO", '"int"', (Reference("n", "s", 1),)),
        Schema.of("AVRO", '"int"', (Reference("n", "s", 2),)),
        Schema.of("AVRO", '"int"', metadata=metadata_of({})),
        Schema.of("AVRO", '"int"', metadata=metadata_of({"properties": {"a": "b"}})),
        Schema.of("AVRO", '"int"', metadata=metadata_of({"tags": {"a": ["c", "b"]}})),
        Schema.of("AVRO", '"int"', rule_set=rule_set_of({"domainRules": [{"name": "r", "type": "CEL", "mode": "WRITE"}]})),
        Schema.of(
            "AVRO", '"int"', rule_set=rule_set_of({"domainRules": [{"name": "r", "type": "CEL", "mode": "WRITE", "disabled": True}]})
        ),
    ]
    assert len({schema.guid for schema in (plain, *others)}) == len(others) + 1


TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
METADATA: Final = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "tags": st.dictionaries(TEXTS, st.lists(TEXTS, max_size=3), max_size=3),
        "properties": st.dictionaries(TEXTS, TEXTS | st.integers() | st.booleans() | st.floats(allow_nan=False), max_size=3),
        "sensitive": st.lists(TEXTS, max_size=3),
    },
)
RULE: Final = st.fixed_dictionaries(
    {"name": st.sampled_from("abc")},
    optional={
        "doc": TEXTS,
        "tags": st.lists(TEXTS, max_size=2),
        "params": st.dictionaries(TEXTS, TEXTS | st.integers(), max_size=2),
        "disabled": st.booleans(),
        "onFailure": TEXTS,
    },
)
RULE_SET: Final = st.none() | st.fixed_dictionaries({}, optional={"domainRules": st.lists(RULE, max_size=2), "enableAt": TEXTS})


@given(
    st.sampled_from(["AVRO", "JSON", "PROTOBUF"]),
    TEXTS,
    st.lists(st.builds(Reference, TEXTS, TEXTS, st.integers(-1, 2**31 - 1)), max_size=2),
    st.lists(METADATA, min_size=2, max_size=2),
    st.lists(RULE_SET, min_size=2, max_size=2),
    st.none() | st.integers(1, 9),
)
def test_a_version_that_came_with_a_request_is_read_again_as_it_was(
    kind: str, text: str, references: list[Reference], metadata: list[Any], rule_sets: list[Any], number: int | None
) -> None:
    """The leader takes it without reading it, and every other node reads it: they say the same."""
    merged = merged_metadata(*map(metadata_of, metadata))
    rules = merged_rule_sets(*(rule_set_of(rule_set, is_new=False) for rule_set in rule_sets))
    schema = Schema.of(kind, text, references, with_confluent_version(merged, number), rules)
    version = Version(text, 7, 1, schema, False, 0)
    record = encode(PutVersion(version, is_new=True))
    assert record.known is version and encode(PutVersion(version)).known is None
    assert decode(record.key, record.value, 5) == PutVersion(replace(version, timestamp_ms=5))

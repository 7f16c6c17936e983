"""What records add up to, and what decisions write: by hypothesis against the topic, whole and compacted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.examples import examples
from tests.unit.schema_registry.registries import MemoryLog

from ottla.schema_registry.formats import Formats
from ottla.schema_registry.state import decisions, names
from ottla.schema_registry.state.decisions import Batch, Registration, Stale
from ottla.schema_registry.state.drafts import Drafts
from ottla.schema_registry.state.errors import InvalidSchema, RegistryError
from ottla.schema_registry.state.records import Change, PutVersion, Record, RemoveVersion, encode
from ottla.schema_registry.state.replay import EPOCH_HEADER, HIGHEST_IDS_HEADER, State
from ottla.schema_registry.state.schemas import Reference, Schema, Version, config_in_scope, merged_metadata, merged_rule_sets

SUBJECTS = ("a", "b", ":.c:a", ":.c:d")
TEXTS = ('"string"', '"int"', '"long"', '{"type":"array","items":"int"}', '{"type":"map","values":"long"}')


def replayed(records: Sequence[Any]) -> State:
    state = State()
    for record in records:
        state.apply(record.offset, record.timestamp_ms, record.key, record.value, record.headers)
    return state


def seen(state: State) -> dict[str, Any]:
    """All that a client can see, but for the counts of what was not applied."""
    return {
        "subjects": {subject: state.versions(subject) for subject in state.subjects_with_prefix(names.ANY_CONTEXT)},
        "ids": {
            context: {number: state.context(context).schemas[number].identity for number in state.context(context).schemas}
            for context in state.contexts
        },
        "highest": state.highest_ids,
        "configs": [state.config(scope) for scope in ("", *SUBJECTS)],
        "modes": [state.mode(scope) for scope in ("", *SUBJECTS)],
        "contexts": state.contexts,
    }


def test_a_schema_that_was_brought_under_two_ids_is_found_by_either_while_the_other_is_gone() -> None:
    """The lowest counts, whatever the order of the records: compaction and snapshots change that."""
    schema = Schema.of("AVRO", '"int"')
    puts = [PutVersion(Version("a", 1, 9, schema, True, 0)), PutVersion(Version("b", 1, 5, schema, True, 0))]
    for first, second in (puts, puts[::-1]):
        state = State()
        changes: list[Change] = [first, second]
        for change in changes:
            record = encode(change)
            state.apply(state.next_offset, 0, record.key, record.value, {})
        assert state.find_id(".", schema) == 5
        for gone, left in ((RemoveVersion("b", 1), [(".", 9)]), (RemoveVersion("a", 1), [])):
            record = encode(gone)
            state.apply(state.next_offset, 0, record.key, record.value, {})
            assert state.by_guid(schema.fingerprint) == left


class Topic(RuleBasedStateMachine):
    """Random commands on a leader; after each the topic is read by others."""

    @initialize()
    def begin(self) -> None:
        self.log = MemoryLog()
        self.state = State()
        self.drafts = Drafts(Formats())
        self.loop = asyncio.new_event_loop()
        self.given: dict[tuple[str, int], tuple[str, bytes]] = {}

    def teardown(self) -> None:
        self.loop.close()

    def write(self, records: Sequence[Record]) -> None:
        offset = self.log.put(records).offset
        for record in self.log.records[offset:]:
            self.state.apply(record.offset, record.timestamp_ms, record.key, record.value, record.headers)

    def change(self, decide: Callable[[State], tuple[Any, Sequence[Change]]]) -> None:
        try:
            _, changes = decide(self.state)
        except RegistryError:
            return
        self.write(decisions.records_of(self.state, changes))

    def register_alone(self, request: Registration) -> None:
        try:
            draft = self.loop.run_until_complete(self.drafts.draft(self.state, request))
            registered = decisions.register(self.state, draft, Batch())
        except RegistryError:
            return
        self.write(decisions.records_of(self.state, registered.changes))

    @rule(
        subjects=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=3), texts=st.lists(st.sampled_from(TEXTS), min_size=3, max_size=3)
    )
    def register(self, subjects: list[str], texts: list[str]) -> None:
        """Several at once, as a batch decides them."""
        batch, records, expected = Batch(), [], []
        for subject, text in zip(subjects, texts, strict=False):
            request = Registration(subject, text=text, force=True)
            try:
                draft = self.loop.run_until_complete(self.drafts.draft(self.state, request))
                registered = decisions.register(self.state, draft, batch)
            except (RegistryError, Stale):
                continue
            batch.note(self.state, registered)
            records += decisions.records_of(self.state, registered.changes)
            expected.append(registered.version)
        self.write(records)
        for version in expected:
            found = self.state.version(version.subject, version.version)
            assert found is not None and (found.id, found.schema) == (version.id, version.schema)

    @rule(subject=st.sampled_from(SUBJECTS), other=st.sampled_from(SUBJECTS))
    def register_with_a_reference(self, subject: str, other: str) -> None:
        if subject == other or not self.state.versions(other):
            return
        target = self.state.versions(other)[0]
        self.register_alone(Registration(subject, text='"double"', references=(Reference("r", other, target.version),), force=True))

    @rule(subject=st.sampled_from(SUBJECTS), number=st.integers(1, 5), permanent=st.booleans())
    def delete_version(self, subject: str, number: int, permanent: bool) -> None:
        self.change(lambda state: decisions.delete_version(state, subject, number, is_permanent=permanent))

    @rule(subject=st.sampled_from(SUBJECTS), permanent=st.booleans())
    def delete_subject(self, subject: str, permanent: bool) -> None:
        self.change(lambda state: decisions.delete_subject(state, subject, is_permanent=permanent))

    @rule(subject=st.sampled_from(SUBJECTS), number=st.none() | st.integers(1, 5))
    def undelete(self, subject: str, number: int | None) -> None:
        self.change(lambda state: decisions.undelete(state, subject, number))

    @rule(scope=st.sampled_from(("", *SUBJECTS)), level=st.sampled_from(["NONE", "FULL", None]))
    def configure(self, scope: str, level: str | None) -> None:
        self.change(lambda state: decisions.put_config(state, scope, {"compatibilityLevel": level}))

    @rule(scope=st.sampled_from(("", ":.c:", *SUBJECTS)), mode=st.sampled_from(["READWRITE", "READONLY", "IMPORT", None]))
    def set_mode(self, scope: str, mode: str | None) -> None:
        self.change(lambda state: decisions.put_mode(state, scope, mode, force=False, may_change=True))

    @rule(subject=st.sampled_from(SUBJECTS), number=st.integers(1, 12), text=st.sampled_from(TEXTS), version=st.integers(0, 3))
    def import_with_an_id(self, subject: str, number: int, text: str, version: int) -> None:
        self.register_alone(Registration(subject, text=text, schema_id=number, version=version))

    @invariant()
    def an_id_stands_for_one_schema_for_ever(self) -> None:
        """Unless someone deleted it for good and imported another one under the same id, which only IMPORT allows."""
        if not hasattr(self, "state"):
            return
        assert self.state.conflict_count == 0
        if any(b"IMPORT" in (record.value or b"") for record in self.log.records):
            return
        for context in self.state.contexts:
            for number, schema in self.state.context(context).schemas.items():
                assert self.given.setdefault((context, number), schema.identity) == schema.identity

    @invariant()
    def another_node_sees_the_same(self) -> None:
        if hasattr(self, "state"):
            assert seen(replayed(self.log.records)) == seen(self.state)

    @invariant()
    def compaction_changes_nothing(self) -> None:
        if hasattr(self, "state"):
            assert seen(replayed(self.log.compacted())) == seen(self.state)


TestTopic = Topic.TestCase
TestTopic.settings = settings(max_examples=examples(80), stateful_step_count=25, deadline=None)


def put(state: State, subject: str, number: int, schema_id: int, text: str, *, epoch: int | None = None, deleted: bool = False) -> None:
    record = encode(PutVersion(Version(subject, number, schema_id, Schema.of("AVRO", text), deleted, 0)))
    headers = {} if epoch is None else {EPOCH_HEADER: str(epoch).encode()}
    state.apply(state.next_offset, 1, record.key, record.value, headers)


def test_an_id_that_another_writer_gave_to_a_second_schema_is_quarantined() -> None:
    """Karapace issue 876, Confluent issue 858: different schemas under one id."""
    state = State()
    put(state, "a", 1, 1, '"int"')
    put(state, "b", 1, 1, '"long"')
    assert state.conflict_count == 1 and state.versions("b") == ()
    assert state.conflicts[0].offset == 1 and state.conflicts[0].holder == "a/1"
    found = state.version_by_id(1)
    assert found is not None and found.schema.text == '"int"'
    put(state, "b", 1, 2, '"long"')
    assert state.version("b", 1) is not None


def test_a_record_of_a_former_leader_is_dropped() -> None:
    state = State()
    put(state, "a", 1, 1, '"int"', epoch=3)
    put(state, "b", 1, 2, '"long"', epoch=2)
    put(state, "c", 1, 2, '"string"', epoch=3)
    put(state, "d", 1, 3, '"bytes"')  # of a registry without epochs
    assert (state.dropped_count, state.epoch, state.next_offset) == (1, 3, 4)
    assert list(state.subjects_with_prefix("")) == ["a", "c", "d"]


@pytest.mark.parametrize(("header", "ids"), [(b"", b"[1"), (b"x", b"[" * 100_000), (b"-1", b"[]"), (b"9" * 40, b'{".":"2"}')])
def test_a_header_that_no_registry_writes_is_skipped(header: bytes, ids: bytes) -> None:
    state = State()
    put(state, "a", 1, 1, '"int"', epoch=3)
    state.apply(1, 1, b'{"keytype":"NOOP","magic":0}', None, {EPOCH_HEADER: header, HIGHEST_IDS_HEADER: ids})
    assert (state.epoch, state.dropped_count, state.next_offset, state.highest_ids) == (3, 0, 2, {".": 1})


def writer(log: MemoryLog, state: State) -> Callable[[Sequence[Change]], None]:
    def write(changes: Sequence[Change]) -> None:
        offset = log.put(decisions.records_of(state, changes)).offset
        for record in log.records[offset:]:
            state.apply(record.offset, record.timestamp_ms, record.key, record.value, record.headers)

    return write


def test_a_version_that_is_imported_below_a_deleted_one_does_not_bring_that_one_back_with_its_own_deletion() -> None:
    """The second deletion takes the place of the first one when the topic is compacted. Found by `Topic`."""
    log, state = MemoryLog(), State()
    write = writer(log, state)
    for number in (2, 1):
        write([PutVersion(Version("a", number, 1, Schema.of("AVRO", '"int"'), False, 0))])
        write(decisions.delete_subject(state, "a", is_permanent=False)[1])
    assert [version.is_deleted for version in state.versions("a")] == [True, True]
    assert seen(replayed(log.compacted())) == seen(state)


def test_an_id_is_not_given_again_after_its_schema_is_gone_and_the_topic_compacted() -> None:
    log, state = MemoryLog(), State()
    write = writer(log, state)
    write([PutVersion(Version("a", 1, 7, Schema.of("AVRO", '"int"'), False, 0))])
    write(decisions.delete_subject(state, "a", is_permanent=False)[1])
    write(decisions.delete_subject(state, "a", is_permanent=True)[1])
    after = [record for record in log.compacted() if record.value is not None or b"NOOP" in (record.key or b"")]  # tombstones go too
    assert replayed(after).context(".").highest_id == 7


def test_contexts_that_are_too_many_for_a_record_give_no_id_again_and_do_not_end_all_writes() -> None:
    """The record that a leader begins with named each context: 600 with names of 2,000 characters were more than the topic takes."""
    log, state = MemoryLog(), State()
    write = writer(log, state)
    subjects = [f":.{number:02000}:s" for number in range(200)]
    for number, subject in enumerate(subjects, 1):
        write([PutVersion(Version(subject, 1, number, Schema.of("AVRO", '"int"'), False, 0))])
    for subject in (*subjects[:2], subjects[-1]):
        write(decisions.delete_subject(state, subject, is_permanent=False)[1])
        write(decisions.delete_subject(state, subject, is_permanent=True)[1])
        (_, header), *_ = decisions.noop(state).headers
        assert len(header) < 300_000
        after = replayed(log.compacted())
        for name in map(names.context_of, (*subjects, ":.new:s")):
            assert after.context(name).highest_id == state.context(name).highest_id
    found = [state.context(names.context_of(subject)).highest_id for subject in subjects]
    assert (
        all(number <= highest for number, highest in enumerate(found, 1)) and found[-1] == 200 and state.context(".").highest_id == found[0]
    )


async def test_a_batch_gives_each_new_schema_its_id_and_the_same_schema_the_same_one() -> None:
    state, drafts, batch = State(), Drafts(Formats()), Batch()
    ids = []
    for subject, text in (("a", '"int"'), ("b", '"long"'), ("c", '"int"'), (":.x:a", '"long"')):
        draft = await drafts.draft(state, Registration(subject, text=text))
        registered = decisions.register(state, draft, batch)
        batch.note(state, registered)
        ids.append(registered.version.id)
    again = await drafts.draft(state, Registration("a", text='"long"'))
    with pytest.raises(Stale):
        decisions.register(state, again, batch)
    assert ids == [1, 2, 1, 1]


async def test_a_draft_is_not_good_for_a_subject_that_has_changed() -> None:
    state, drafts = State(), Drafts(Formats())
    draft = await drafts.draft(state, Registration("a", text='"int"'))
    put(state, "a", 1, 1, '"string"')
    with pytest.raises(Stale):
        decisions.register(state, draft, Batch())
    draft = await drafts.draft(state, Registration("a", text='"string"'))
    assert decisions.register(state, draft, Batch()).changes == ()


@pytest.mark.parametrize("length", [1, 2, 400])
async def test_references_that_lead_in_a_circle_or_very_far_end(length: int) -> None:
    """No registration makes a circle; records of another writer may."""
    state = State()
    for number in range(length):
        following = Reference(f"n{number}", f"s{(number + 1) % length}", 1)
        text = f'{{"type":"record","name":"R{number}","fields":[]}}'
        schema = Schema.of("AVRO", text, (following,))
        change = encode(PutVersion(Version(f"s{number}", 1, number + 1, schema, False, 0)))
        state.apply(number, 1, change.key, change.value, {})
    version = state.versions("s0")[0]
    assert [referrer.subject for referrer in state.referrers("s0", 1)] == [f"s{length - 1}"]
    drafts = Drafts(Formats())
    if length > 100:
        with pytest.raises(InvalidSchema, match="deep"):
            await drafts.parsed(state, "s0", version.schema)
    else:
        with contextlib.suppress(InvalidSchema):
            await drafts.parsed(state, "s0", version.schema)


def test_configs_of_wider_scopes_fill_what_a_subject_does_not_say() -> None:
    own, context, everywhere = {"alias": "x", "normalize": True}, {"compatibilityLevel": "FULL"}, {"normalize": False, "alias": "y"}
    found = config_in_scope([own, context, everywhere])
    assert found == {"alias": "x", "normalize": True, "compatibilityLevel": "FULL"}
    assert "alias" not in config_in_scope([{}, context, everywhere])


def test_metadata_and_rules_are_merged_by_their_names() -> None:
    older = {"properties": {"a": "1", "b": "1"}, "sensitive": ["s"]}
    assert merged_metadata(older, {"properties": {"b": "2"}}) == {"properties": {"a": "1", "b": "2"}, "sensitive": ["s"]}
    assert merged_metadata(older, None) == older and merged_metadata(None, None) is None
    rules = merged_rule_sets({"domainRules": [{"name": "a", "expr": "1"}, {"name": "b"}]}, {"domainRules": [{"name": "a", "expr": "2"}]})
    assert rules == {"domainRules": [{"name": "b"}, {"name": "a", "expr": "2"}]}

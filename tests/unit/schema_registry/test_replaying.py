"""The store over a topic in memory: batches, what is answered when, writes whose outcome is unknown, former leaders, other topics."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.loops import at_once_at_the_end, until
from tests.unit.schema_registry.registries import TIMEOUT_SECONDS, MemoryLog, MemoryTopic, node, record

from ottla.coordination.election import Term
from ottla.errors import MessageTooLarge, RequestTimedOut
from ottla.schema_registry.formats import Formats
from ottla.schema_registry.leadership import Address
from ottla.schema_registry.state import decisions
from ottla.schema_registry.state.decisions import Registration
from ottla.schema_registry.state.drafts import Drafts
from ottla.schema_registry.state.errors import (
    Incompatible,
    LeaderUnknown,
    OperationNotPermitted,
    SchemaTooLarge,
    StoreFailed,
    StoreTimedOut,
    SubjectNotFound,
)
from ottla.schema_registry.state.records import PutVersion, Record, encode
from ottla.schema_registry.state.replay import State
from ottla.schema_registry.state.schemas import Schema, Version
from ottla.schema_registry.store import snapshot
from ottla.schema_registry.store.replaying import Appended, Fetched, Store, replayed


@asynccontextmanager
async def store_of(
    log: MemoryLog, *, epoch: int | None = 1, timeout_seconds: float = TIMEOUT_SECONDS, fenced: Any = print
) -> AsyncIterator[Store]:
    """A store that has replayed the log, and leads if it has an epoch."""
    store = Store(MemoryTopic(log), Drafts(Formats()), State(), timeout_seconds)
    store.start()
    await store.wait_for(len(log.records))
    if epoch is not None:
        await store.lead(epoch, fenced)
    try:
        yield store
    finally:
        await store.close()


def topic_of(store: Store) -> MemoryTopic:
    assert isinstance(store._topic, MemoryTopic)
    return store._topic


def registration(subject: str, text: str = '"int"') -> Registration:
    return Registration(subject, text=text)


def interferes(log: MemoryLog, subject: str) -> None:
    """Another registry writes a version of the subject, of id 1, before the first schema that comes."""

    def interfere(records: Sequence[Record]) -> None:
        if any(b"SCHEMA" in record.key for record in records):
            log.before_append = lambda _: None
            log.put([encode(PutVersion(Version(subject, 1, 1, Schema.of("AVRO", '"bytes"'), False, 0)))])

    log.before_append = interfere


async def test_what_is_replayed_as_the_time_for_it_ends_is_there() -> None:
    async with store_of(MemoryLog(), epoch=None) as store:
        waiting = asyncio.create_task(store.wait_for(1, 0.05))
        await asyncio.sleep(0)

        def replay() -> None:
            store.state.next_offset = 1
            store._wake()

        at_once_at_the_end(0.05, replay)
        await waiting


async def test_what_comes_while_others_are_written_is_written_as_one_batch() -> None:
    log = MemoryLog()
    async with store_of(log) as store:
        texts = [str(record(f"R{number}", "a")).replace("'", '"') for number in range(200)]
        found = await asyncio.gather(*(store.register(registration(f"s{number}", text)) for number, text in enumerate(texts)))
        assert sorted(version.id for version in found) == list(range(1, 201))
        assert store.batch_count < 20
        assert {version.id: version.schema.text for version in found} == {
            number: schema.text for number, schema in store.state.context(".").schemas.items()
        }


async def test_those_who_were_answered_together_come_again_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that ask one after the other fall into step; a batch waits for no more than were there, so an hour is never used up."""
    monkeypatch.setattr("ottla.schema_registry.store.replaying.GATHER_SECONDS", 3600.0)
    log = MemoryLog()
    async with store_of(log) as store:
        topic = topic_of(store)

        async def client(number: int) -> None:
            for turn in itertools.count():
                await store.register(registration(f"s{number}-{turn}", json.dumps(record(f"R{number}_{turn}", "a"))))

        topic.may_write.clear()
        clients = [asyncio.ensure_future(client(0))]
        await until(lambda: topic.append_count == 2)  # the NOOP was the first
        clients += [asyncio.ensure_future(client(number)) for number in range(1, 7)]
        await until(lambda: len(store._queue) == 6)
        topic.may_write.set()  # the one is answered, and the six wait for it
        await until(lambda: store.written_count > 70)
        assert store.written_count - 1 == 7 * (store.batch_count - 1)
        for waiting in clients:
            waiting.cancel()
        store._timeout_seconds = 0.1  # there is no one to wait for


async def test_a_batch_waits_for_those_who_have_gone_for_a_moment_only() -> None:
    async with store_of(MemoryLog()) as store:
        await asyncio.gather(*(store.register(registration(f"s{number}")) for number in range(5)))
        assert (await store.register(registration("alone", '"long"'))).id == 2


def bounded(log: MemoryLog) -> None:
    """A batch of more than 1 MiB, `max.message.bytes` as it is unless it is set, is refused."""

    def look(records: Sequence[Record]) -> None:
        if (size := sum(len(record.key) + len(record.value or b"") for record in records)) > 1024 * 1024:
            raise MessageTooLarge(f"_schemas-0: {size} bytes")

    log.before_append = look


def documented(name: str, size: int) -> str:
    """A schema with so much documentation."""
    return json.dumps({**record(name, "a"), "doc": "x" * size})


async def test_schemas_that_are_too_large_for_one_batch_together_are_written_one_after_the_other() -> None:
    """Registered at the same time, all of them were refused with 50001."""
    log = MemoryLog()
    bounded(log)
    async with store_of(log) as store:
        texts = [documented(f"R{number}", size) for number, size in enumerate((100, 400_000, 900_000, 100))]
        found = await asyncio.gather(*(store.register(registration(f"s{number}", text)) for number, text in enumerate(texts)))
        assert [version.id for version in found] == [1, 2, 3, 4]
    async with store_of(log, epoch=None) as reader:
        assert [version.schema.text for version in reader.state.versions_in(":.__GLOBAL:")] == [version.schema.text for version in found]


async def test_a_command_writes_more_than_the_topic_takes_in_one_batch() -> None:
    """A deletion of versions that have more than `max.message.bytes` together was never taken back: 50001, however often it was tried."""
    log = MemoryLog()
    bounded(log)
    async with store_of(log) as store:
        for name in ("A", "B", "C"):
            await store.register(Registration("s", text=documented(name, 500_000), force=True))
        await store.change(lambda state: decisions.delete_subject(state, "s", is_permanent=False))
        assert await store.change(lambda state: decisions.undelete(state, "s", None)) == [1, 2, 3]
        assert [version.is_deleted for version in store.state.versions("s")] == [False] * 3
    async with store_of(log, epoch=None) as reader:
        assert reader.state.versions("s") == store.state.versions("s")


async def test_a_schema_that_the_topic_does_not_take_is_too_large() -> None:
    """As at Confluent's (`EntryTooLargeException`): 42209, and not an error of the class 500, after which clients try again."""
    log = MemoryLog()
    bounded(log)
    async with store_of(log) as store:
        with pytest.raises(SchemaTooLarge, match="bytes"):
            await store.register(registration("s", json.dumps({**record("R", "a"), "doc": '"' * 400_000})))  # each takes four bytes
        assert (await store.register(registration("s"))).id == 1


async def test_the_same_schema_from_many_clients_at_once_has_one_id_and_one_version_for_each_subject() -> None:
    async with store_of(MemoryLog()) as store:
        found = await asyncio.gather(*(store.register(registration(f"s{number % 5}")) for number in range(100)))
        assert {version.id for version in found} == {1}
        assert all(len(store.state.versions(f"s{number}")) == 1 for number in range(5))


async def test_registrations_of_one_subject_are_decided_one_after_the_other() -> None:
    """Each is compared with those before it: of two that are incompatible one is refused."""
    async with store_of(MemoryLog()) as store:
        texts = [json.dumps(record("R", name)) for name in "abcd"]
        done = await asyncio.gather(*(store.register(registration("s", text)) for text in texts), return_exceptions=True)
        assert sum(isinstance(outcome, Version) for outcome in done) == 1
        assert sum(isinstance(outcome, Incompatible) for outcome in done) == 3


async def test_what_is_acknowledged_is_taken_as_it_was_written_and_is_what_everybody_reads() -> None:
    """It comes next, so no one has written anything before it that is not replayed."""
    log = MemoryLog()
    async with store_of(log) as store, store_of(log, epoch=None) as follower:
        topic = topic_of(store)
        topic.may_read.clear()
        await asyncio.gather(*(store.register(registration(f"s{number}")) for number in range(5)))
        await store.register(registration("s5", '{"type": "long", "ottla": "a"}'))
        await store.change(lambda state: decisions.put_config(state, "s1", {"compatibilityLevel": "FULL"}))
        for is_permanent in (False, True):
            await store.change(partial(decisions.delete_subject, subject="s5", is_permanent=is_permanent))
        topic.may_read.set()
        await follower.wait_for(len(log.records))
        assert store.state.image() == follower.state.image()


async def test_a_leader_that_writes_reads_the_topic_now_and_then() -> None:
    """Not each of its batches again; and at once where someone waits for what others have written."""
    log = MemoryLog()
    async with store_of(log) as store:
        topic = topic_of(store)
        for number in range(100):
            await store.register(registration(f"s{number}", json.dumps(record(f"R{number}", "a"))))
        assert topic.fetch_count < 50
        log.put([encode(PutVersion(Version("x", 1, 500, Schema.of("AVRO", '"bytes"'), False, 0)))])
        await until(lambda: store.state.versions("x"))


async def test_nothing_is_answered_before_all_that_was_written_before_it_is_replayed() -> None:
    log = MemoryLog()
    async with store_of(log) as store:
        topic = topic_of(store)

        def write_before(_: Sequence[Record]) -> None:
            log.before_append = lambda _: None
            log.put([encode(PutVersion(Version("x", 1, 500, Schema.of("AVRO", '"bytes"'), False, 0)))])

        await store.register(registration("a"))
        topic.may_read.clear()
        log.before_append = write_before
        registering = asyncio.ensure_future(store.register(registration("b", '"long"')))
        await asyncio.sleep(0.05)
        assert not registering.done() and store.state.versions("b") == ()
        topic.may_read.set()
        assert (await registering).id == 2
        assert store.state.versions("x") and store.state.next_offset == len(log.records)


async def test_a_new_leader_refuses_the_former_one_and_has_what_that_wrote() -> None:
    log = MemoryLog()
    told: list[str] = []
    async with store_of(log, fenced=told.append) as former:
        await former.register(registration("a"))
        async with store_of(log, epoch=2) as leader:
            assert leader.state.versions("a")
            with pytest.raises(LeaderUnknown):
                await former.register(registration("b", '"long"'))
            assert told and not former.is_writing
            assert (await leader.register(registration("b", '"string"'))).id == 2
            await former.wait_for(len(log.records))
            assert former.state.versions("b")[0].schema.text == '"string"'


async def test_a_new_leader_decides_nothing_before_it_has_read_what_the_former_one_wrote() -> None:
    log = MemoryLog()
    async with store_of(log) as former, store_of(log, epoch=None) as leader:
        slow = topic_of(leader)
        slow.may_read.clear()
        await former.register(registration("a"))
        leading = asyncio.ensure_future(leader.lead(2, lambda _: None))
        await asyncio.sleep(0.05)
        assert not leading.done()
        registering = asyncio.ensure_future(leader.register(registration("b", '"long"')))
        await asyncio.sleep(0.05)
        slow.may_read.set()
        await leading
        assert (await registering).id == 2 and leader.state.versions("a")


async def test_a_leader_that_lingers_does_not_take_the_lead_back() -> None:
    """Its write failed, and before it begins once more another node has led."""
    log = MemoryLog()
    told: list[str] = []
    async with store_of(log, fenced=told.append) as former, store_of(log, epoch=None) as leader:
        former._has_begun = False
        await leader.lead(2, lambda _: None)
        await leader.register(registration("a"))
        await former.wait_for(len(log.records))
        epoch = log.epoch
        with pytest.raises(LeaderUnknown):
            await former.register(registration("b", '"long"'))
        assert told and log.epoch == epoch
        assert (await leader.register(registration("b", '"long"'))).id == 2


async def test_a_former_leader_refuses_nothing_for_what_it_has_not_read() -> None:
    """Found by the simulation: the other node has deleted the subject, and this one says that it was never deleted."""
    log = MemoryLog()
    async with store_of(log) as former, store_of(log, epoch=None) as leader:
        await former.register(registration("a"))
        slow = topic_of(former)
        slow.may_read.clear()
        await leader.lead(2, lambda _: None)
        assert await leader.change(lambda state: decisions.delete_subject(state, "a", is_permanent=False)) == [1]
        deleting = asyncio.ensure_future(former.change(lambda state: decisions.delete_subject(state, "a", is_permanent=True)))
        await asyncio.sleep(0.05)
        assert not deleting.done()
        slow.may_read.set()
        with pytest.raises(LeaderUnknown):
            await deleting


async def test_what_was_refused_for_want_of_a_record_is_decided_again() -> None:
    log = MemoryLog()
    async with store_of(log) as store:
        slow = topic_of(store)
        slow.may_read.clear()
        late = encode(PutVersion(Version("b", 1, 9, Schema.of("AVRO", '"bytes"'), False, 0)))
        log.put([Record(late.key, late.value, (("ottla.epoch", b"1"),))])
        deleting = asyncio.ensure_future(store.change(lambda state: decisions.delete_subject(state, "b", is_permanent=False)))
        await asyncio.sleep(0.05)
        slow.may_read.set()
        assert await deleting == [1]
        with pytest.raises(SubjectNotFound):
            await store.change(lambda state: decisions.delete_subject(state, "c", is_permanent=False))


async def test_what_is_to_be_decided_again_when_the_term_ends_is_refused() -> None:
    """It was put back in the queue after the queue had been emptied, and its client waited for ever."""
    log = MemoryLog()
    async with store_of(log) as store:
        slow = topic_of(store)
        slow.may_read.clear()
        log.put([decisions.noop(store.state)])
        deleting = asyncio.ensure_future(store.change(lambda state: decisions.delete_subject(state, "b", is_permanent=False)))
        await until(lambda: store._waiters)
        ending = asyncio.ensure_future(store.abdicate("the session has ended"))
        await asyncio.sleep(0)
        slow.may_read.set()
        await ending
        async with asyncio.timeout(60):
            with pytest.raises(LeaderUnknown):
                await deleting


async def test_a_write_that_is_given_up_at_the_end_of_a_term_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog()
    async with store_of(log) as store:

        async def held(records: Sequence[Record], header: tuple[str, bytes]) -> Appended:
            store._timeout_seconds = 0.05  # for the end of the term; the write's own time is longer
            await asyncio.Event().wait()
            raise AssertionError(records, header)

        monkeypatch.setattr(store._topic, "append", held)
        under_way = asyncio.ensure_future(store.register(registration("a")))
        await until(lambda: store._timeout_seconds < 1)
        await store.abdicate("the session has ended")
        async with asyncio.timeout(60):
            with pytest.raises(LeaderUnknown):
                await under_way


async def test_a_write_that_cannot_be_encoded_fails_alone() -> None:
    """Half of a surrogate pair is no text. Those that were taken from the queue with it were never answered."""
    async with store_of(MemoryLog()) as store:
        others = [asyncio.ensure_future(store.register(registration(f"s{number}"))) for number in range(3)]
        await asyncio.sleep(0)
        bad = asyncio.ensure_future(store.change(lambda state: decisions.put_config(state, "a", {"alias": "\ud800"})))
        others.append(asyncio.ensure_future(store.register(registration("s9"))))
        async with asyncio.timeout(60):
            assert {version.id for version in await asyncio.gather(*others)} == {1}
            with pytest.raises(StoreFailed):
                await bad


async def test_an_id_that_is_brought_to_two_schemas_at_once_is_given_to_one() -> None:
    """IMPORT mode: both were decided for one batch, and the second was written as a conflict."""
    log = MemoryLog()
    async with store_of(log) as store:
        for subject in "abc":
            await store.change(partial(decisions.put_mode, scope=subject, mode="IMPORT", force=False, may_change=True))
        texts = {"a": '"int"', "b": '"long"', "c": '"int"', "new": '"bytes"'}
        requests = [Registration(name, text=text, schema_id=None if name == "new" else 1) for name, text in texts.items()]
        found = await asyncio.gather(*(store.register(request) for request in reversed(requests)), return_exceptions=True)
        assert sum(isinstance(outcome, Version) and outcome.id == 1 for outcome in found) in (1, 2)
        assert all(isinstance(outcome, (Version, OperationNotPermitted)) for outcome in found), found
        assert store.state.conflict_count == 0


async def test_what_a_former_leader_had_under_way_is_dropped_by_its_epoch() -> None:
    """Where the brokers do not refuse it: the record comes after the NOOP of the next leader, with a lower epoch."""
    log = MemoryLog()
    async with store_of(log, epoch=5) as leader:
        await leader.register(registration("a"))
        late = encode(PutVersion(Version("b", 1, 2, Schema.of("AVRO", '"bytes"'), False, 0)))
        log.put([Record(late.key, late.value, (("ottla.epoch", b"4"),))])
        assert (await leader.register(registration("c", '"long"'))).id == 2
        assert leader.state.versions("b") == () and leader.state.dropped_count == 1


async def test_a_term_that_begins_while_the_former_one_still_ends_has_one_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's session ended during a write, and the next one leads at once: the former writer does not go on beside its own.

    Seed 38 of the simulation's profile `registry` has found it.
    """
    log = MemoryLog()
    async with store_of(log) as store:
        append, begun, may_write = store._topic.append, asyncio.Event(), asyncio.Event()

        async def held(records: Sequence[Record], header: tuple[str, bytes]) -> Appended:
            begun.set()
            await may_write.wait()
            return await append(records, header)

        monkeypatch.setattr(store._topic, "append", held)
        under_way = asyncio.ensure_future(store.register(registration("a")))
        await begun.wait()
        ending = asyncio.ensure_future(store.abdicate("the session has ended"))
        await asyncio.sleep(0.01)
        leading = asyncio.ensure_future(store.lead(2, lambda _: None))
        await asyncio.sleep(0.01)
        may_write.set()
        await asyncio.gather(ending, leading, under_way)
        clients = [store.register(registration(f"s{number}", json.dumps(record(f"R{number}", "a")))) for number in range(20)]
        found = [await client for client in asyncio.as_completed(clients)]
        again = [store.register(registration(f"t{number}", json.dumps(record(f"T{number}", "a")))) for number in range(20)]
        found += await asyncio.gather(*again)
        assert sorted(version.id for version in found) == list(range(2, 42))
        assert store.state.conflict_count == 0


async def test_a_write_that_every_replay_drops_is_not_acknowledged() -> None:
    """The brokers have lost the producer, so they take what a former leader writes after the NOOP of the next one.

    That one has given the subject, the version and the id to another schema: what is found is not what was written.
    """
    log = MemoryLog()
    reasons: list[str] = []
    theirs = encode(PutVersion(Version("a", 1, 1, Schema.of("AVRO", '"bytes"'), False, 0)))

    def lead(_: Sequence[Record]) -> None:
        log.before_append = lambda _: None
        log.put([Record(theirs.key, theirs.value, (("ottla.epoch", b"2"),))])

    async with store_of(log, fenced=reasons.append) as former:
        log.before_append = lead
        with pytest.raises(LeaderUnknown):
            await former.register(registration("a"))
        assert former.state.dropped_count == 1 and former.state.versions("a")[0].schema.text == '"bytes"'
        assert not former.is_writing and len(reasons) == 1
    log = MemoryLog()
    async with store_of(log) as former:
        log.before_append = lead
        with pytest.raises(LeaderUnknown):
            await former.change(lambda state: decisions.put_config(state, "a", {"compatibility": "NONE"}))
        assert former.state.config("a") is None


async def test_a_schema_that_another_writer_has_put_in_the_place_is_not_answered_with_its_id() -> None:
    """Another registry gives the same subject, version and id to another schema while ours decides."""
    log = MemoryLog()
    async with store_of(log) as store:
        interferes(log, "a")
        with pytest.raises(StoreFailed, match="another record"):
            await store.register(registration("a"))
        assert store.state.conflict_count == 1 and store.state.versions("a")[0].schema.text == '"bytes"'


async def test_an_election_that_began_to_count_anew_does_not_lose_writes() -> None:
    """ZooKeeper was set up again: its epoch is lower than that of the topic."""
    log = MemoryLog()
    async with store_of(log, epoch=7) as store:
        await store.register(registration("a"))
    async with store_of(log, epoch=1) as store:
        assert (await store.register(registration("b", '"long"'))).id == 2
        assert store.state.epoch == 8


async def test_a_write_that_the_producer_gives_up_first_is_one_that_took_too_long() -> None:
    """Its `delivery.timeout.ms` is `kafkastore.timeout.ms`, so either of them may end the wait: 50002 both times."""
    log = MemoryLog()
    async with store_of(log) as store:

        def give_up(records: Sequence[Record]) -> None:
            raise RequestTimedOut("a batch could not be written within 2 s")

        log.before_append = give_up
        with pytest.raises(StoreTimedOut, match="within 2 s"):
            await store.register(registration("a"))


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_write_whose_outcome_is_unknown_is_refused_and_the_next_ones_are_right(is_written: bool) -> None:
    log = MemoryLog()
    async with store_of(log) as store:
        failures = [OSError("the connection was lost")]

        def fail(records: Sequence[Record]) -> None:
            if failures and any(b"SCHEMA" in record.key for record in records):
                raise failures.pop()

        if is_written:
            log.after_append = fail
        else:
            log.before_append = fail
        with pytest.raises(StoreFailed):
            await store.register(registration("a"))
        again = await store.register(registration("a"))
        other = await store.register(registration("b", '"long"'))
        assert (again.id, other.id) == (1, 2) and log.epoch == 2
        assert len(store.state.versions("a")) == 1


async def test_a_topic_that_was_cut_stops_writes_and_not_reads() -> None:
    log = MemoryLog()
    async with store_of(log) as store:
        await store.register(registration("a"))
        del log.records[1:]
        with pytest.raises(StoreFailed, match="cut"):
            await store.register(registration("b", '"long"'))
        assert store.fault and store.state.versions("a")
        with pytest.raises(StoreFailed):
            await store.change(lambda state: decisions.delete_subject(state, "a", is_permanent=False))


async def test_a_snapshot_does_not_bring_back_what_was_deleted_while_the_node_was_stopped() -> None:
    """The tombstones are gone by then (`delete.retention.ms`), so nothing behind the snapshot says that anything was deleted."""
    log = MemoryLog()
    async with store_of(log) as store, store_of(log, epoch=None) as stopped:
        await store.register(registration("a"))
        await store.register(registration("b", '"long"'))
        await store.change(lambda state: decisions.put_config(state, "b", {"compatibilityLevel": "FULL"}))
        await stopped.wait_for(len(log.records))
        await stopped.close()
        for is_permanent in (False, True):
            await store.change(partial(decisions.delete_subject, subject="a", is_permanent=is_permanent))
        await store.change(lambda state: decisions.delete_config(state, "b"))
        await store.register(registration("c", '"bytes"'))
    left = [record for record in log.compacted() if record.value is not None or b"NOOP" in (record.key or b"")]
    end = len(log.records)

    class Compacted(MemoryTopic):
        async def fetch(self, offset: int) -> Fetched:
            if offset == end:
                await asyncio.Event().wait()
            return Fetched([record for record in left if record.offset >= offset], end)

    topic = Compacted(log)
    store = await replayed(topic, Drafts(Formats()), stopped.state, (0, end), TIMEOUT_SECONDS, TIMEOUT_SECONDS)
    try:
        assert list(store.state.subjects_with_prefix("")) == ["b", "c"]
        assert store.state.config("b") is None and store.state.next_offset == end
    finally:
        await store.close()


@pytest.mark.parametrize("has_snapshot", [False, True])
async def test_what_an_older_release_wrote_under_other_keys_stays_deleted_when_the_topic_is_compacted(
    has_snapshot: bool, tmp_path: Path
) -> None:
    """Compaction compares keys byte by byte: it left the old record, and in time dropped the tombstone that was written under our key."""
    log = MemoryLog()
    value = encode(PutVersion(Version("a", 1, 1, Schema.of("AVRO", '"int"'), True, 0))).value
    log.put(
        [
            Record(b'{"keytype":"SCHEMA","subject":"a","version":1,"magic":0}', value),
            Record(b'{"keytype": "CONFIG", "subject": "a", "magic": 0}', b'{"compatibilityLevel":"FULL"}'),
            Record(b'{"keytype":"MODE","subject":null,"magic":0}', b'{"mode":"IMPORT"}'),
        ]
    )
    async with store_of(log) as store:
        if has_snapshot:
            identity = snapshot.Identity("cluster-1", "_schemas", "id-1")
            snapshot.write(tmp_path / "s", identity, store.state.image())
            store.state = snapshot.read(tmp_path / "s", identity, 0, len(log.records))
        await store.change(partial(decisions.delete_mode, scope="", is_recursive=False, may_change=True))
        await store.change(partial(decisions.delete_subject, subject="a", is_permanent=True))
        assert not store.state.other_keys
    left = State()
    for kept in log.compacted():
        if kept.value is not None or b"NOOP" in (kept.key or b""):
            left.apply(kept.offset, 0, kept.key, kept.value, kept.headers)
    assert (left.versions("a"), left.config("a"), left.mode("")) == ((), None, None)


async def test_an_id_that_another_writer_took_is_not_given_to_somebody_else() -> None:
    """A registry of another maker writes to the same topic while ours decides."""
    log = MemoryLog()
    async with store_of(log) as store:
        interferes(log, "x")
        with pytest.raises(StoreFailed, match="another record"):
            await store.register(registration("a"))
        assert store.state.conflict_count == 1
        assert (await store.register(registration("a"))).id == 2


async def test_deletions_and_configs_wait_for_what_was_before_them() -> None:
    async with store_of(MemoryLog()) as store:
        registering = [asyncio.ensure_future(store.register(registration(f"s{number}"))) for number in range(5)]
        await asyncio.gather(*registering)
        deleting = store.change(lambda state: decisions.delete_subject(state, "s0", is_permanent=False))
        after = store.register(registration("s0"))
        assert await deleting == [1]
        assert (await after).version in (1, 2)


async def test_who_does_not_lead_writes_nothing() -> None:
    async with store_of(MemoryLog(), epoch=None) as store:
        with pytest.raises(LeaderUnknown):
            await store.register(registration("a"))
    async with store_of(MemoryLog()) as store:
        await store.abdicate("for a test")
        with pytest.raises(LeaderUnknown):
            await store.register(registration("a"))


async def test_a_leader_that_is_silent_writes_a_noop_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker forgets a producer that does not write for long (`producer.id.expiration.ms`)."""
    monkeypatch.setattr("ottla.schema_registry.store.replaying.NOOP_SECONDS", 0.05)
    log = MemoryLog()
    async with store_of(log) as store:
        await store.wait_for(3)
        assert all(record.key == b'{"keytype":"NOOP","magic":0}' for record in log.records)


async def test_a_client_that_goes_leaves_its_write_behind() -> None:
    async with store_of(MemoryLog()) as store:
        gone = asyncio.ensure_future(store.register(registration("a")))
        await asyncio.sleep(0)
        gone.cancel()
        assert (await store.register(registration("b", '"long"'))).id in (1, 2)


async def test_a_node_that_sees_another_lead_writes_nothing_more() -> None:
    """Its own term had ended while it waited for the writer of the one before, and it began all the same."""
    async with node(MemoryLog()) as registry:
        await registry.leadership.term_begins(Term(Address("http://other:8081").encoded(), 2, None))
        await until(lambda: not registry.store.is_writing)
        assert registry.leadership.leader_url == "http://other:8081" and not registry.leadership.is_leader

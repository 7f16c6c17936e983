"""Schemas between two registries: ids and numbers are kept, what is another one in the target stays, and nothing is left in IMPORT mode."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.loops import until
from tests.unit.mirror_maker.mirrors import Side, two_sides
from tests.unit.mirror_maker.test_server import SECONDS, worker
from tests.unit.schema_registry.registries import Client
from tests.unit.wire.clusters import create_topic, servers

from ottla.clock import SystemClock
from ottla.config.registry import RegistrySettings
from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.mirror_maker.naming import name_filter
from ottla.mirror_maker.sync import schemas
from ottla.mirror_maker.sync.schemas import Registry, SchemaCopier, subject_in_target
from ottla.network.registry_http import RegistryAnswer, ask_registry
from ottla.schema_registry.server import SchemaRegistry


@asynccontextmanager
async def registry(side: Side) -> AsyncIterator[tuple[str, Client]]:
    properties = {
        "listeners": "http://127.0.0.1:0",
        "kafkastore.bootstrap.servers": servers(side.brokers),
        "kafkastore.topic.replication.factor": "1",
        "schema.search.max.limit": "2",
    }
    one = SchemaRegistry(RegistrySettings.from_properties(properties))
    await one.start()
    try:
        yield one.url, Client(int(one.url.rpartition(":")[2]))
    finally:
        await one.stop()


def record_of(name: str, *fields: str) -> str:
    return json.dumps({"type": "record", "name": name, "fields": [{"name": field, "type": "int", "default": 0} for field in fields]})


async def test_a_worker_carries_schemas_over_with_their_ids_and_renames_their_topics(tmp_path: Path) -> None:
    """More versions than a page of the registry has; references follow; a subject of a topic that is not copied does not."""
    async with two_sides(tmp_path) as (a, b), registry(a) as (from_url, source), registry(b) as (to_url, target):
        for topic in ("clicks", "private"):
            await create_topic(a.cluster, topic)
        assert await source.register("private-value", '"string"') == 1
        assert await source.register("common", record_of("Common", "x")) == 2
        assert await source.register("clicks-value", record_of("Click", "a")) == 3
        assert await source.register("clicks-value", record_of("Click", "a", "b")) == 4
        refers = {
            "schema": '{"type": "array", "items": "Common"}',
            "references": [{"name": "Common", "subject": "common", "version": 1}],
        }
        assert (await source.post("/subjects/clicks-key/versions", refers)).json["id"] == 5
        urls = {"A.schema.registry.url": from_url, "B.schema.registry.url": to_url}
        given = {"topics": "clicks", "sync.schemas.interval.seconds": "1", **urls}
        async with worker(a, b, None, **given) as one:
            link = one.links["A-B"]
            async with asyncio.timeout(SECONDS):
                while link.copied_schemas < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert (await target.get("/subjects")).json == ["A.clicks-key", "A.clicks-value", "common"]
            found = (await target.get("/subjects/A.clicks-value/versions/2")).json
            assert (found["id"], found["schema"]) == (4, (await source.get("/subjects/clicks-value/versions/2")).json["schema"])
            key = (await target.get("/schemas/ids/5")).json
            assert key["references"] == refers["references"]
            assert (await target.get("/mode/A.clicks-value")).code == 40409, "it takes no ids from others any more"
            assert await source.register("clicks-value", record_of("Click", "a", "b", "c")) == 6
            async with asyncio.timeout(SECONDS):
                while link.copied_schemas < 5:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert (await target.get("/subjects/A.clicks-value/versions")).json == [1, 2, 3]
            assert link.refused_schemas == 0


@pytest.mark.long
async def test_schemas_are_copied_by_one_worker_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next holder of slot 0 took the mode that the former one had set for the subject's own: it stayed in IMPORT for good."""
    begun, may_end = threading.Event(), threading.Event()
    ask = Registry.ask

    def ask_slowly(one: Registry, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        if method == "POST" and not begun.is_set():
            begun.set()
            may_end.wait(SECONDS)
        return ask(one, method, path, body)

    monkeypatch.setattr(Registry, "ask", ask_slowly)
    async with two_sides(tmp_path) as (a, b), registry(a) as (from_url, source), registry(b) as (to_url, target):
        await create_topic(a.cluster, "clicks")
        for field in "abc":
            await source.register("clicks-value", record_of("Click", field))
        given = {"sync.schemas.interval.seconds": "1", "A.schema.registry.url": from_url, "B.schema.registry.url": to_url}
        zookeeper = EmbeddedZooKeeper(None, SystemClock())
        try:
            async with worker(a, b, zookeeper.session, **given) as first:
                await until(begun.is_set)
                async with worker(a, b, zookeeper.session, **given) as second:
                    await until(lambda: 0 not in first.links["A-B"].slots)
                    await asyncio.sleep(1.0)  # in which the other would begin
                    may_end.set()
                    await until(lambda: 0 in second.links["A-B"].slots)
                    links = [one.links["A-B"] for one in (first, second)]
                    await until(lambda: sum(link.copied_schemas for link in links) == 3)
                    assert (await target.get("/subjects/A.clicks-value/versions")).json == [1, 2, 3]
                    assert (await target.get("/mode/A.clicks-value")).code == 40409
                    assert not any(link.refused_schemas for link in links)
        finally:
            may_end.set()
            await zookeeper.close()


async def test_no_copying_of_schemas_begins_while_slot_0_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It began behind that, beside the next holder's."""
    begun = threading.Event()
    copy = SchemaCopier.copy

    def noted(one: SchemaCopier, *arguments: Any) -> Any:
        begun.set()
        return copy(one, *arguments)

    monkeypatch.setattr(SchemaCopier, "copy", noted)
    async with two_sides(tmp_path) as (a, b), registry(a) as (from_url, _), registry(b) as (to_url, _):
        await create_topic(a.cluster, "clicks")
        urls = {"A.schema.registry.url": from_url, "B.schema.registry.url": to_url}
        async with worker(a, b, None, **urls) as one:
            link = one.links["A-B"]
            await until(lambda: 0 in link.slots and link.slots[0].former_modes is not None and link._names)
            for task in link._tasks:  # its own steps, which may come at any time
                task.cancel()
            await asyncio.wait(link._tasks)
            await link._follow_schemas()
            assert begun.is_set()
            begun.clear()
            await asyncio.gather(link._follow_schemas(), link._give_up(0))
            assert not begun.is_set()


async def test_a_stop_while_slot_0_is_given_up_ends_its_copier_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was in no list any more and had not been cancelled: it copied on, and its transaction stayed open."""
    begun, may_end = threading.Event(), threading.Event()

    def copy(one: SchemaCopier, *arguments: Any) -> int:
        begun.set()
        may_end.wait(SECONDS)
        return 0

    monkeypatch.setattr(SchemaCopier, "copy", copy)
    async with two_sides(tmp_path) as (a, b), registry(a) as (from_url, _), registry(b) as (to_url, _):
        await create_topic(a.cluster, "clicks")
        urls = {"A.schema.registry.url": from_url, "B.schema.registry.url": to_url}
        try:
            async with worker(a, b, None, **urls, **{"sync.schemas.interval.seconds": "1"}) as one:
                link = one.links["A-B"]
                await until(lambda: 0 in link.slots and begun.is_set())
                copying = link._copying[0]
                monkeypatch.setattr("ottla.mirror_maker.link.to_release", lambda *_: 0)
                await until(lambda: 0 not in link.slots)
                stopping = asyncio.create_task(link.stop())
                await until(lambda: all(task.cancelling() for task in link._tasks))
                may_end.set()
                await stopping
                assert copying.done()
        finally:
            may_end.set()


async def test_a_registrys_topic_is_not_copied_into_the_other_registrys_own(tmp_path: Path) -> None:
    """With identity names and all topics it would be a second writer there."""
    async with two_sides(tmp_path) as (a, b), registry(a) as (from_url, source), registry(b) as (to_url, target):
        await create_topic(a.cluster, "clicks")
        assert await source.register("of-a", '"string"') == 1
        assert await target.register("of-b", '"int"') == 1
        given = {"naming": "identity", "A.schema.registry.url": from_url, "B.schema.registry.url": to_url}
        async with worker(a, b, None, **given, **{"sync.schemas.interval.seconds": "1"}) as one:
            async with asyncio.timeout(SECONDS):
                while not one.links["A-B"].refused_schemas:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert not any(partition.topic == "_schemas" for partition in one.links["A-B"].statuses)
            assert (await target.get("/schemas/ids/1")).json["schema"] == '"int"'


async def test_a_mode_that_could_not_be_put_back_is_put_back_once_the_registry_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subject stayed in IMPORT mode for good, and clients could register nothing there."""
    is_away = False
    ask = Registry.ask

    def ask_or_fail(one: Registry, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        nonlocal is_away
        if method == "POST":
            is_away = True
        if is_away:
            raise ConnectionError("no one answers")
        return ask(one, method, path, body)

    monkeypatch.setattr(Registry, "ask", ask_or_fail)
    async with two_sides(tmp_path) as (a, b), registry(a) as (from_url, source), registry(b) as (to_url, target):
        await source.register("clicks-value", record_of("Click", "a"))
        copier = SchemaCopier(Registry([from_url]), Registry([to_url]), name_filter("subjects", [".*"], []))
        with pytest.raises(ConnectionError):
            await asyncio.to_thread(copier.copy, {"clicks": "clicks"}, ())
        assert (await target.get("/mode/clicks-value")).json == {"mode": "IMPORT"}
        is_away = False
        monkeypatch.setattr(Registry, "ask", ask)
        assert await asyncio.to_thread(copier.copy, {"clicks": "clicks"}, ()) == 1
        assert (await target.get("/mode/clicks-value")).code == 40409


@pytest.mark.long
async def test_a_mode_is_put_back_by_the_next_worker_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one took IMPORT for the subject's own mode, and clients could register nothing there. The killed worker asks for nothing
    any more; a mode that an operator has set since stays.
    """
    ask = Registry.ask
    killed = threading.Event()

    def ask_until_killed(one: Registry, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        if killed.is_set() or (method, path) == ("POST", "/subjects/A.clicks-value/versions"):
            killed.set()
            raise ConnectionError("it was killed")
        return ask(one, method, path, body)

    async with two_sides(tmp_path) as (a, b), registry(a) as (from_url, source), registry(b) as (to_url, target):
        await create_topic(a.cluster, "clicks")
        await source.register("clicks-value", record_of("Click", "a"))
        assert (await target.put("/mode/A.clicks-value", {"mode": "READWRITE"})).status == 200
        given = {"sync.schemas.interval.seconds": "1", "A.schema.registry.url": from_url, "B.schema.registry.url": to_url}
        for set_since in ("", "READONLY"):
            with monkeypatch.context() as patched:
                patched.setattr(Registry, "ask", ask_until_killed)
                async with worker(a, b, None, **given):
                    await until(killed.is_set)
            assert (await target.get("/mode/A.clicks-value")).json == {"mode": "IMPORT"}
            if set_since:
                assert (await target.put("/mode/A.clicks-value", {"mode": set_since})).status == 200
            killed.clear()
            async with worker(a, b, None, **given) as next_one:
                await until(lambda: next_one.links["A-B"].copied_schemas)
            assert (await target.get("/mode/A.clicks-value")).json == {"mode": set_since or "READWRITE"}
            assert await source.register("clicks-value", record_of("Click", "a", "b" + set_since)) > 1


async def test_what_is_another_schema_in_the_target_stays_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two registries that both give ids: an id that is taken, and a version that is. The mode that an operator has set comes back."""
    async with two_sides(tmp_path) as (a, b), registry(a) as (from_url, source), registry(b) as (to_url, target):
        run = asyncio.to_thread
        copier = SchemaCopier(Registry([from_url]), Registry(["http://127.0.0.1:1", to_url]), name_filter("subjects", [".*"], ["secret.*"]))
        assert await source.register("one", '"int"') == 1
        assert await source.register("two", '"long"') == 2
        assert await source.register("secret-value", '"bytes"') == 3
        assert await target.register("two", '"string"') == 1
        assert (await target.put("/mode/one", {"mode": "READONLY"})).status == 200
        assert await run(copier.copy, {}, ()) == 0
        assert sorted(copier.refused) == ["one, version 1", "two, version 1"]
        assert (
            "id 1" in copier.refused["one, version 1"] and "has id 1 in the target, and 2 in the source" in copier.refused["two, version 1"]
        )
        assert (await target.get("/mode/one")).json == {"mode": "READONLY"}
        assert (await target.get("/subjects/two/versions/1")).json["schema"] == '"string"'
        assert await run(copier.copy, {}, ()) == 0
        assert sum("is not copied" in record.getMessage() for record in caplog.records) == 2, "told once"
        assert await source.register("three", '"double"') == 4
        assert await run(copier.copy, {}, ()) == 1
        assert (await target.get("/schemas/ids/4")).json["schema"] == '"double"'
        with pytest.raises(OSError, match="no schema registry answers"):
            await run(SchemaCopier(Registry(["http://127.0.0.1:1"]), Registry([to_url]), name_filter("subjects", [".*"], [])).copy, {}, ())


async def test_a_subject_that_is_older_than_its_topic_is_copied_under_the_topics_name_too(tmp_path: Path) -> None:
    """As a pipeline registers schemas first. It was not, until one of the registries had another version."""
    async with two_sides(tmp_path) as (a, b), registry(a) as (from_url, source), registry(b) as (to_url, target):
        copier = SchemaCopier(Registry([from_url]), Registry([to_url]), name_filter("subjects", [".*"], []))
        assert await source.register("clicks-value", '"int"') == 1
        assert [await asyncio.to_thread(copier.copy, {}, ()) for _ in range(2)] == [1, 0]
        assert await asyncio.to_thread(copier.copy, {"clicks": "A.clicks"}, ()) == 1
        assert (await target.get("/subjects/A.clicks-value/versions/1")).json["id"] == 1


async def test_a_version_at_which_the_registry_fails_keeps_no_other_from_being_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 500, as at a schema that it stumbles over: each pass ended there. It is tried again a minute later."""
    is_failing = True

    def ask_or_fail(url: str, path: str, **more: Any) -> RegistryAnswer:
        if is_failing and (more["method"], path) == ("POST", "/subjects/bad/versions"):
            return RegistryAnswer(500, "Internal Server Error", b'{"error_code":50001,"message":"null"}')
        return ask_registry(url, path, **more)

    monkeypatch.setattr(schemas, "ask_registry", ask_or_fail)
    async with two_sides(tmp_path) as (a, b), registry(a) as (from_url, source), registry(b) as (to_url, target):
        copier = SchemaCopier(Registry([from_url]), Registry([to_url, "http://127.0.0.1:1"]), name_filter("subjects", [".*"], []))
        await source.register("bad", '"int"')
        await source.register("good", '"long"')
        assert [await asyncio.to_thread(copier.copy, {}, ()) for _ in range(3)] == [1, 0, 0]
        assert (await target.get("/subjects")).json == ["good"] and "500" in copier.refused["bad, version 1"]
        assert (await target.get("/mode/bad")).code == 40409
        is_failing = False
        assert sum([await asyncio.to_thread(copier.copy, {}, ()) for _ in range(schemas.WHOLE_PASSES)]) == 1
        assert (await target.get("/subjects/bad/versions/1")).json["id"] == 1 and not copier.refused


async def test_no_subject_is_left_in_import_mode_by_a_target_that_may_be_read_alone_for_a_while(tmp_path: Path) -> None:
    """READONLY_OVERRIDE of the whole registry is answered for each subject: what was set for that alone was not seen, nor put back."""
    async with two_sides(tmp_path) as (a, b), registry(a) as (from_url, source), registry(b) as (to_url, target):
        copier = SchemaCopier(Registry([from_url]), Registry([to_url]), name_filter("subjects", [".*"], []))
        await source.register("one", '"int"')
        assert (await target.put("/mode", {"mode": "READONLY_OVERRIDE"})).status == 200
        with pytest.raises(schemas.RegistryRefused, match="READONLY_OVERRIDE"):
            await asyncio.to_thread(copier.copy, {}, ())
        assert (await target.put("/mode", {"mode": "READWRITE"})).status == 200
        assert (await target.get("/mode/one")).code == 40409
        assert await asyncio.to_thread(copier.copy, {}, ()) == 1
        assert (await target.get("/mode/one")).code == 40409


async def test_registries_with_nothing_new_are_not_listed_whole_at_each_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every five seconds, 100 MB of them. A new subject is copied at once; a version of one with an id of before a minute later."""
    listed: list[str] = []
    ask = Registry.ask

    def noted(one: Registry, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        listed.extend([path] if path.startswith("/schemas?") else [])
        return ask(one, method, path, body)

    monkeypatch.setattr(Registry, "ask", noted)
    async with two_sides(tmp_path) as (a, b), registry(a) as (from_url, source), registry(b) as (to_url, target):
        copier = SchemaCopier(Registry([from_url]), Registry([to_url]), name_filter("subjects", [".*"], []))

        async def copied(passes: int) -> int:
            listed.clear()
            return sum([await asyncio.to_thread(copier.copy, {}, ()) for _ in range(passes)])

        await source.register("one", '"int"')
        await source.register("two", '"long"')
        assert await copied(4) == 2
        assert (await copied(8), listed) == (0, [])
        await source.put("/config", {"compatibility": "NONE"})
        await source.register("two", record_of("New"))
        assert await copied(3) == 1
        await source.register("of_the_same", '"int"')
        assert await copied(3) == 1
        await source.register("one", '"long"')
        assert (await copied(schemas.WHOLE_PASSES - 4), listed) == (0, [])
        assert await copied(4) == 1
        assert (await target.get("/subjects/one/versions")).json == [1, 2]


async def test_versions_of_which_a_page_is_larger_than_an_answer_may_be_are_copied_in_smaller_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 64 MiB, as a thousand versions of 70 kB have: none of them was ever copied."""
    monkeypatch.setattr(schemas, "MOST_BYTES", 3000)
    monkeypatch.setattr(schemas, "SMALL_PAGE", 1)
    async with two_sides(tmp_path) as (a, b), registry(a) as (from_url, source), registry(b) as (to_url, target):
        for number in range(3):
            await source.register("large", record_of("R" * 2000, f"field_{number}"))
        copier = SchemaCopier(Registry([from_url]), Registry([to_url]), name_filter("subjects", [".*"], []))
        assert await asyncio.to_thread(copier.copy, {}, ()) == 3
        assert (await target.get("/subjects/large/versions")).json == [1, 2, 3]


def test_subjects_are_called_as_their_topics_are() -> None:
    """TopicNameStrategy alone has a topic in its names that can be told from the rest."""
    topics, others = {"clicks": "A.clicks"}, {"A.clicks", "B.clicks", "private"}
    assert subject_in_target("clicks-value", topics, others) == "A.clicks-value"
    assert subject_in_target("clicks-key", topics, others) == "A.clicks-key"
    assert subject_in_target("com.example.Click", topics, others) == "com.example.Click"
    assert subject_in_target("B.clicks-value", topics, others) is None, "it came from there"
    assert subject_in_target("private-key", topics, others) is None

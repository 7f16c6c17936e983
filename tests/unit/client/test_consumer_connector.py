"""Consumers of a group that meet in ZooKeeper: who owns what, where the group goes on, and what happens when a session ends."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.loops import until
from tests.unit.client.groups import Group, batch, group, take
from tests.unit.wire.clusters import create_topic, produce

from ottla.client.consumer_connector import AsyncConsumerConnector, ConsumerConnector
from ottla.client.errors import ClientClosed, ConsumerIdInUse, ConsumerTimeout
from ottla.client.group_registry import GroupRegistry
from ottla.client.topic_filters import BlackList, WhiteList
from ottla.clock import SystemClock
from ottla.config.client import ConsumerSettings
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.errors import BadArguments, BadVersion, ConnectionLoss
from ottla.coordination.interface import Coordination, Delete, Stat, Watch, WatchedEvent
from ottla.errors import BrokerNotAvailable, ConfigurationError, CoordinatorNotAvailable, LeaderNotAvailable
from ottla.model import TopicPartition
from ottla.record.records import Record, build_batch
from ottla.wire.admin import delete_topics
from ottla.wire.cluster import Cluster
from ottla.wire.groups import CommittedOffset, commit_offsets, committed_offsets
from ottla.wire.offsets import ListedOffset, list_offsets
from ottla.wire.transactions import TransactionalProducer

CLICKS = TopicPartition("clicks", 0)


@pytest.fixture
def found(tmp_path: Path) -> AbstractAsyncContextManager[Group]:
    return group(tmp_path)


def ignore(event: WatchedEvent) -> None:
    pass


async def some_clicks(found: Group, partitions: int, *values: bytes) -> None:
    await create_topic(found.cluster, "clicks", partitions)
    for number in range(partitions):
        await produce(found.cluster, TopicPartition("clicks", number), batch(*values))


async def test_messages_are_read_and_the_group_goes_on_where_it_committed(found: Group) -> None:
    await some_clicks(found, 1, b"a", b"b", b"c")
    async with found.reading("one") as (connector, stream):
        assert await take(stream, 2) == [b"a", b"b"]
        await connector.commit_offsets()
        assert await found.offset("clicks", 0) == 2
        assert await found.owners("clicks") == {"0": "one-0"}
    assert await found.owners("clicks") == {}
    async with found.reading("two") as (connector, stream):
        assert await take(stream, 1) == [b"c"]
    with pytest.raises(ClientClosed):
        await connector.create_message_streams({"clicks": 1})


async def test_a_message_in_hand_is_not_committed_by_itself(found: Group) -> None:
    """At-least-once: what a consumer holds when it goes is read again; after an explicit commit it is not."""
    await some_clicks(found, 1, b"a", b"b", b"c")
    async with found.reading("one", auto_commit_interval_ms="20") as (_, stream):
        await take(stream, 2)
        async with asyncio.timeout(120):
            while await found.offset("clicks", 0) != 1:  # noqa: ASYNC110  # several writes come before it
                await asyncio.sleep(0.01)
    assert await found.offset("clicks", 0) == 1
    async with found.reading("two", auto_commit_enable="false") as (_, stream):
        assert await take(stream, 2) == [b"b", b"c"]
    assert await found.offset("clicks", 0) == 1


async def test_a_message_in_hand_of_a_partition_that_was_given_up_cannot_be_committed(found: Group) -> None:
    """Who commits before it processes would process what the next owner reads, too."""
    await create_topic(found.cluster, "clicks", 2)
    moved = TopicPartition("clicks", 1)
    await produce(found.cluster, moved, batch(b"a", b"b"))
    async with found.consumer("one", auto_commit_enable="false") as one, found.consumer("two") as two:
        (stream,) = (await one.create_message_streams({"clicks": 1}))["clicks"]
        messages = aiter(stream)
        assert (await anext(messages)).value == b"a"
        (other,) = (await two.create_message_streams({"clicks": 1}))["clicks"]
        await until(lambda: (one.owned, two.owned) == ([CLICKS], [moved]))
        with pytest.raises(BadVersion, match="clicks-1 was given up"):
            await one.commit_offsets()
        assert await take(other, 1) == [b"a"]
        await produce(found.cluster, CLICKS, batch(b"c"))
        assert (await anext(messages)).value == b"c"
        await one.seek("clicks", 0, 1)
        await one.commit_offsets()


async def test_a_second_consumer_gets_its_share_and_gives_it_back(found: Group) -> None:
    await some_clicks(found, 4, b"a")
    async with found.consumer("one") as one:
        await one.create_message_streams({"clicks": 2})
        assert len(one.owned) == 4
        async with found.consumer("two") as two:
            await two.create_message_streams({"clicks": 1})
            await until(lambda: len(one.owned) == 3 and len(two.owned) == 1)
            owners = {"0": "one-0", "1": "one-0", "2": "one-1", "3": "two-0"}
            assert await found.owners("clicks") == owners
        await until(lambda: len(one.owned) == 4)


async def test_a_filter_takes_topics_that_are_made_later_and_no_internal_ones(found: Group) -> None:
    await create_topic(found.cluster, "page.views")
    async with found.consumer("one") as connector:
        (stream,) = await connector.create_message_streams_by_filter(WhiteList("page\\..*, clicks"), 1)
        await until(lambda: len(connector.owned) == 1)
        await create_topic(found.cluster, "other")
        await some_clicks(found, 2, b"a")
        assert await take(stream, 2) == [b"a", b"a"]
        assert connector.owned == [CLICKS, TopicPartition("clicks", 1), TopicPartition("page.views", 0)]
    async with found.consumer("two") as connector:
        await connector.create_message_streams_by_filter(BlackList("page.*|other"), 1)
        assert {partition.topic for partition in connector.owned} == {"clicks"}


async def test_topics_are_seen_where_the_znode_above_them_was_deleted_and_made_again() -> None:
    """As by `deleteall /brokers/topics`: no watch can be set on the children of a znode that is not there."""
    zookeeper = EmbeddedZooKeeper(None, SystemClock())
    session = await zookeeper.session()
    registry, events = GroupRegistry(session, "g", "one", SystemClock()), list[WatchedEvent]()
    try:
        assert await registry.topics(events.append) == []
        await session.create("/brokers/topics/clicks", make_parents=True)
        await until(lambda: bool(events), seconds=10)
        assert await registry.topics(events.append) == ["clicks"]
    finally:
        await zookeeper.close()


def test_filters_match_whole_names_and_leave_internal_topics_out() -> None:
    assert WhiteList("a,b").allows("b", True)
    assert not WhiteList("a").allows("ab", True)
    assert BlackList("a").allows("ab", True)
    assert not BlackList("a").allows("__consumer_offsets", True)
    assert BlackList("a").allows("__consumer_offsets", False)
    with pytest.raises(ConfigurationError, match="no regular expression"):
        WhiteList("(")


async def test_an_expired_session_gives_up_ownership_before_anything_else_is_handed_out(found: Group) -> None:
    await some_clicks(found, 1, *(b"%d" % number for number in range(20)))
    sessions: list[EmbeddedSession] = []
    async with found.reading("one", sessions) as (connector, stream):
        messages = aiter(stream)
        assert [(await anext(messages)).value for _ in range(3)] == [b"0", b"1", b"2"]
        await connector.commit_offsets()
        handed = [(await anext(messages)).value for _ in range(2)]
        await found.zookeeper.expire(sessions[0])
        assert connector.owned == []
        # Of the batch that it has in memory it hands out nothing more: the next comes with a new claim, from the group's offset.
        assert (await anext(messages)).value == b"3"
        assert handed == [b"3", b"4"]
        assert len(sessions) == 2
        assert await found.owners("clicks") == {"0": "one-0"}


async def test_a_former_owner_cannot_commit(tmp_path: Path) -> None:
    """An offset is written by the version that the claim has raised."""
    zookeeper = EmbeddedZooKeeper(None, SystemClock())
    first_session, second_session = await zookeeper.session(), await zookeeper.session()
    first, second = (GroupRegistry(session, "g", name, SystemClock()) for session, name in ((first_session, "a"), (second_session, "b")))
    assert await first.claim(CLICKS, "a-0", ignore) == -1
    assert await second.claim(CLICKS, "b-0", ignore) is None
    await first.commit({CLICKS: 7})
    assert await first.claim(CLICKS, "a-1", ignore) == 7
    await first.commit({CLICKS: 8})
    await first_session.delete("/consumers/g/owners/clicks/0")  # as an expired session does
    assert await second.claim(CLICKS, "b-0", ignore) == 8
    with pytest.raises(BadVersion):
        await first.commit({CLICKS: 9})
    await second.commit({CLICKS: 9})
    with pytest.raises(BadVersion, match="does not own"):
        await first.commit({TopicPartition("clicks", 1): 9})
    await zookeeper.close()


async def test_commits_survive_a_connection_that_is_lost_before_their_answer() -> None:
    for arrives in (True, False):
        zookeeper = EmbeddedZooKeeper(None, SystemClock())
        session = await zookeeper.session()
        registry = GroupRegistry(session, "g", "a", SystemClock())
        await registry.claim(CLICKS, "a-0", ignore)
        zookeeper.break_connection(session, request_arrives=arrives)
        await registry.commit({CLICKS: 5})
        await registry.commit({CLICKS: 6})
        assert (await session.get("/consumers/g/offsets/clicks/0"))[0] == b"6"
        await zookeeper.close()


async def test_offsets_that_were_deleted_by_hand_are_made_again_by_their_owner_alone() -> None:
    """Kafka 0.8's ZkUtils.updatePersistentPath makes what is not there: each commit failed until the next sharing out."""
    zookeeper = EmbeddedZooKeeper(None, SystemClock())
    session = await zookeeper.session()
    registry = GroupRegistry(session, "g", "a", SystemClock())
    offset = "/consumers/g/offsets/clicks/0"
    await registry.claim(CLICKS, "a-0", ignore)
    await registry.commit({CLICKS: 1})
    await session.transaction([Delete(offset), Delete("/consumers/g/offsets/clicks")])
    await registry.commit({CLICKS: 2})
    await registry.commit({CLICKS: 3})
    assert (await session.get(offset))[0] == b"3"
    await session.transaction([Delete(offset), Delete("/consumers/g/owners/clicks/0")])
    with pytest.raises(BadVersion):
        await registry.commit({CLICKS: 4})
    assert await session.exists(offset) is None
    await zookeeper.close()


async def test_a_commit_of_which_nothing_was_heard_is_not_in_the_way_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written, and each one after it was refused for its version."""
    zookeeper = EmbeddedZooKeeper(None, SystemClock())
    session = await zookeeper.session()
    registry = GroupRegistry(session, "g", "a", SystemClock())
    await registry.claim(CLICKS, "a-0", ignore)
    set_now = session.set

    async def set_without_an_answer(path: str, data: bytes, version: int = -1) -> Stat:
        await set_now(path, data, version)
        zookeeper.break_connection(session, request_arrives=False)
        raise ConnectionLoss(path)

    with monkeypatch.context() as patched:
        patched.setattr(session, "set", set_without_an_answer)
        with pytest.raises(ConnectionLoss):
            await registry.commit({CLICKS: 5})
    await registry.commit({CLICKS: 6})
    assert (await session.get("/consumers/g/offsets/clicks/0"))[0] == b"6"
    await zookeeper.close()


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("what", ["exists", "delete", "transaction"])
async def test_a_claim_or_a_release_of_which_nothing_was_heard_blocks_nobody(
    monkeypatch: pytest.MonkeyPatch, what: str, arrives: bool
) -> None:
    """The owner's znode stayed, and its consumer knew nothing of it, so that no one could claim the partition."""
    zookeeper = EmbeddedZooKeeper(None, SystemClock())
    session, other = await zookeeper.session(), await zookeeper.session()
    registry, next_one = (GroupRegistry(one, "g", name, SystemClock()) for one, name in ((session, "a"), (other, "b")))
    if what != "transaction":
        await registry.claim(CLICKS, "a-0", ignore)
    action = getattr(session, what)

    async def without_an_answer(*arguments: Any, **named: Any) -> Any:
        if arrives:
            await action(*arguments, **named)
        raise ConnectionLoss(what)

    await registry.claim(TopicPartition("clicks", 1), "a-0", ignore)  # makes what the znodes lie under
    with monkeypatch.context() as patched:
        patched.setattr(session, what, without_an_answer)
        with pytest.raises(ConnectionLoss):
            await (registry.claim(CLICKS, "a-0", ignore) if what == "transaction" else registry.release(CLICKS))
    assert CLICKS in registry.claimed
    await registry.release(CLICKS)
    assert CLICKS not in registry.claimed
    assert await next_one.claim(CLICKS, "b-0", ignore) == -1
    await registry.release(CLICKS)
    with pytest.raises(BadVersion):
        await registry.commit({CLICKS: 1})
    await next_one.commit({CLICKS: 2})
    await zookeeper.close()


async def test_a_consumer_that_was_stopped_for_a_while_reads_on_though_its_connection_stood(
    found: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives its partitions up, and no event says that the session lives after all."""
    await some_clicks(found, 1, b"0", b"1", b"2")
    async with found.consumer("one") as connector:
        await connector.create_message_streams({"clicks": 1})
        with monkeypatch.context() as patched:
            patched.setattr(EmbeddedSession, "silent_seconds", 3_600.0)
            await until(lambda: connector.owned == [])
        await until(lambda: connector.owned == [CLICKS])


async def test_a_session_that_ends_as_partitions_are_about_to_be_released_does_not_end_the_sharing_out(
    found: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was to be released is owned no more by then: the consumer claimed nothing from then on, and did not say so."""
    await some_clicks(found, 1, b"0")
    leaders = GroupRegistry.preferred_leaders

    async def without_clicks(registry: GroupRegistry, topics: Iterable[str], watch: Watch) -> dict[str, list[int]]:
        monkeypatch.undo()
        there = await leaders(registry, topics, watch)
        asyncio.get_running_loop().call_soon(connector._session_lost)
        return {topic: [] for topic in there}

    async with found.consumer("one") as connector:
        await connector.create_message_streams({"clicks": 1})
        assert connector.owned == [CLICKS]
        monkeypatch.setattr(GroupRegistry, "preferred_leaders", without_clicks)
        connector._changed.set()
        await until(lambda: connector.owned == [], seconds=20)
        connector._changed.set()
        await until(lambda: connector.owned == [CLICKS], seconds=5)


async def test_a_session_lasts_as_long_as_zookeeper_granted_it(found: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its maxSessionTimeout may be below what was asked for, and others take over by that."""
    await some_clicks(found, 1, b"0")
    async with found.consumer("one", zookeeper_session_timeout_ms="30000") as connector:
        await connector.create_message_streams({"clicks": 1})
        monkeypatch.setattr(EmbeddedSession, "session_timeout_seconds", 4.0)
        monkeypatch.setattr(EmbeddedSession, "silent_seconds", 4.0)
        await until(lambda: connector.owned == [])


async def test_a_session_timeout_that_zookeeper_makes_longer_loses_no_partitions(found: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """400 ms, as in Kafka 0.8's example of a consumer: a server takes 4 s for it at the least, and its client asks every third of that."""
    await some_clicks(found, 1, b"a")
    looks, unheard, exists_now = 0, 0, EmbeddedSession.exists

    async def exists(session: EmbeddedSession, *arguments: Any) -> Stat | None:
        nonlocal unheard
        unheard = 0
        return await exists_now(session, *arguments)

    def silent_seconds(session: EmbeddedSession) -> float:
        nonlocal looks, unheard
        looks, unheard = looks + 1, unheard + 1
        return 0.2 * unheard  # of 0.36

    monkeypatch.setattr(EmbeddedSession, "exists", exists)
    async with found.consumer("one", zookeeper_session_timeout_ms="400") as connector:
        await connector.create_message_streams({"clicks": 1})
        monkeypatch.setattr(EmbeddedSession, "silent_seconds", property(silent_seconds))
        await until(lambda: looks > 5)
        assert connector.owned == [CLICKS]


async def test_a_partition_that_another_has_by_now_is_not_read_on(found: Group) -> None:
    """Its owner's znode was taken away by hand; the commit that is refused says so."""
    await some_clicks(found, 1, b"0", b"1", b"2")
    async with found.consumer("one", auto_commit_enable="false") as connector:
        await connector.create_message_streams({"clicks": 1})
        await found.look.delete("/consumers/g/owners/clicks/0")
        other = GroupRegistry(await found.zookeeper.session(), "g", "two", SystemClock())
        assert await other.claim(CLICKS, "two-0", ignore) is not None
        with pytest.raises(BadVersion):
            await connector.commit_offsets()
        await until(lambda: connector.owned == [])
        await other.release(CLICKS)
        await until(lambda: connector.owned == [CLICKS])


async def test_commits_at_once_and_behind_one_that_was_cancelled_are_written() -> None:
    """`commit_offsets` meets the one from time to time, and `shutdown` cancels that. Each has to know what version the other wrote."""
    zookeeper = EmbeddedZooKeeper(None, SystemClock())
    session = await zookeeper.session()
    registry = GroupRegistry(session, "g", "a", SystemClock())
    await registry.claim(CLICKS, "a-0", ignore)
    is_written, set_now = asyncio.Event(), session.set

    async def set_and_answer_later(path: str, data: bytes, version: int = -1) -> Stat:
        stat = await set_now(path, data, version)
        is_written.set()
        await asyncio.sleep(0)
        return stat

    session.set = set_and_answer_later  # type: ignore[method-assign]
    await asyncio.gather(registry.commit({CLICKS: 5}), registry.commit({CLICKS: 6}))
    is_written.clear()
    cancelled = asyncio.create_task(registry.commit({CLICKS: 7}))
    await is_written.wait()
    cancelled.cancel()
    await registry.commit({CLICKS: 8})
    assert (await session.get("/consumers/g/offsets/clicks/0"))[0] == b"8"
    await zookeeper.close()


async def test_a_second_consumer_of_one_id_is_refused(found: Group) -> None:
    await some_clicks(found, 1, b"a")
    async with found.consumer("one") as connector, found.consumer("one") as other:
        await connector.create_message_streams({"clicks": 1})
        with pytest.raises(ConsumerIdInUse, match="g has a consumer one that lives"):
            await other.create_message_streams({"clicks": 1})


async def test_a_topic_without_a_name_is_refused_and_stops_nobody(found: Group) -> None:
    """As a script's variable may be: to look for it failed each attempt of every consumer of the group."""
    await some_clicks(found, 1, b"a")
    await found.look.create("/consumers/g/ids/nameless", b'{"subscription":{"":1},"pattern":"static"}', make_parents=True)
    async with found.consumer("one") as connector:
        with pytest.raises(BadArguments, match="cannot be empty"):
            await connector.create_message_streams({"clicks": 1, "": 1})
        (stream,) = (await connector.create_message_streams({"clicks": 1}))["clicks"]
        async with asyncio.timeout(20):
            assert await take(stream, 1) == [b"a"]


async def test_znodes_that_are_no_json_stop_nobody(found: Group) -> None:
    await some_clicks(found, 1, b"a")
    for path, data in (("ids/strange", b"{"), ("ids/many", b'{"subscription":{"clicks":99999999},"pattern":"static"}')):
        await found.look.create(f"/consumers/g/{path}", data, make_parents=True)
    for name, expression in (("wild", b"("), ("half", b"\\ud800")):  # the second half of no character
        await found.look.create(f"/consumers/g/ids/{name}", b'{"subscription":{"%b":1},"pattern":"white_list"}' % expression)
    await found.look.create("/consumers/g/offsets/clicks/0", b"seven", make_parents=True)
    async with found.reading("one") as (_, stream):
        assert await take(stream, 1) == [b"a"]


async def test_settings_and_places_that_are_wrong_are_refused() -> None:
    zookeeper = EmbeddedZooKeeper(None, SystemClock())
    async with AsyncConsumerConnector(ConsumerSettings(group_id="g"), open_session=zookeeper.session) as connector:
        with pytest.raises(BrokerNotAvailable, match="is the chroot right"):
            await connector.create_message_streams({"clicks": 1})
    await zookeeper.close()
    with pytest.raises(ConfigurationError, match="no name of a znode"):
        AsyncConsumerConnector(ConsumerSettings(group_id="a/b"))
    with pytest.raises(ConfigurationError, match=r"did you mean 'auto\.commit\.enable'"):
        ConsumerSettings.from_properties({"group.id": "g", "auto.commit.enabled": "true"})
    with pytest.raises(ConfigurationError, match="one of largest, smallest"):
        ConsumerSettings.from_properties({"group.id": "g", "auto.offset.reset": "somewhere"})


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("auto_offset_reset", "earliest", r"auto\.offset\.reset = 'earliest': must be one of largest, smallest"),
        ("isolation_level", "READ_COMMITTED", "did you mean 'read_committed'"),
        ("offsets_storage", "Kafka", "must be one of zookeeper, kafka"),
        ("auto_commit_enable", "false", r"auto\.commit\.enable = 'false': not of the type bool"),
        ("consumer_timeout_ms", None, r"consumer\.timeout\.ms = None: not of the type int"),
        ("consumer_timeout_ms", 0.5, r"consumer\.timeout\.ms = 0\.5: not of the type int"),
        ("rebalance_max_retries", 0, "must be at least 1"),
        ("group_id", 7, r"group\.id = 7: not of the type str"),
    ],
)
async def test_what_a_program_sets_is_judged_as_what_a_file_says(name: str, value: object, complaint: str) -> None:
    """Taken as it was, "earliest" began at the end of each log, and "READ_COMMITTED" read what was aborted."""
    given: dict[str, Any] = {"group_id": "g", name: value}
    with pytest.raises(ConfigurationError, match=complaint):
        AsyncConsumerConnector(ConsumerSettings(**given))


async def test_what_a_file_of_07_or_08_tunes_in_vain_is_said_and_not_refused(caplog: pytest.LogCaptureFixture) -> None:
    names = [
        "socket.timeout.ms",
        "socket.receive.buffer.bytes",
        "num.consumer.fetchers",
        "refresh.leader.backoff.ms",
        "backoff.increment.ms",
        "zookeeper.sync.time.ms",
        "offsets.channel.backoff.ms",
        "offsets.channel.socket.timeout.ms",
        "offsets.commit.max.retries",
    ]
    AsyncConsumerConnector(ConsumerSettings.from_properties({"group.id": "g"} | dict.fromkeys(names, "1")))
    assert {record.args[0] for record in caplog.records if "has no effect" in record.msg} == set(names)  # type: ignore[index]


async def test_offsets_may_be_kept_in_kafka_and_in_both_places(found: Group) -> None:
    await some_clicks(found, 1, b"a", b"b", b"c")
    for name, dual in (("one", "true"), ("two", "false")):
        async with found.reading(name, offsets_storage="kafka", dual_commit_enabled=dual) as (connector, stream):
            assert await take(stream, 1) == [b"a" if dual == "true" else b"b"]
            await connector.commit_offsets()
    assert await found.offset("clicks", 0) == 1
    assert (await committed_offsets(found.cluster, "g"))[CLICKS].offset == 2


async def test_a_group_that_moves_to_kafka_goes_on_where_zookeeper_has_it(found: Group) -> None:
    """Kafka 0.8.2: `dual.commit.enabled` is true unless it is set. By `largest` all between the two consumers would be skipped."""
    await some_clicks(found, 1, b"a", b"b", b"c")
    for storage, value in (("zookeeper", b"a"), ("kafka", b"b")):
        async with found.reading("one", offsets_storage=storage) as (connector, stream):
            assert await take(stream, 1) == [value]
            await connector.commit_offsets()
    assert await found.offset("clicks", 0) == (await committed_offsets(found.cluster, "g"))[CLICKS].offset == 2


async def test_a_group_does_not_continue_behind_records_that_its_log_has_lost(found: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-320: a commit to Kafka has the leader epoch of what was read; a log without that epoch was cut, as by an unclean election."""
    monkeypatch.setattr("ottla.wire.fetching.FORMER_LEADER_SECONDS", 0.0)
    await some_clicks(found, 1, b"a", b"b", b"c")

    def consumer(name: str) -> AsyncConsumerConnector:
        return found.consumer(name, offsets_storage="kafka", dual_commit_enabled="false", auto_commit_enable="false")

    async with consumer("one") as connector:
        (stream,) = (await connector.create_message_streams({"clicks": 1}))["clicks"]
        assert await take(stream, 2) == [b"a", b"b"]
        await connector.commit_offsets()
    committed = (await committed_offsets(found.cluster, "g"))[CLICKS]
    assert (committed.offset, committed.leader_epoch) == (2, 0)
    for leader_epoch, value in ((0, b"c"), (7, b"a")):
        await commit_offsets(found.cluster, "g", {CLICKS: CommittedOffset(2, leader_epoch)})
        async with consumer("two") as connector:
            (stream,) = (await connector.create_message_streams({"clicks": 1}))["clicks"]
            assert await take(stream, 1) == [value]


async def test_a_commit_to_kafka_that_takes_long_is_written_before_a_partition_is_released(
    found: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator takes anyone's offsets: written behind those of the release, or of the next owner, they would go back."""
    await some_clicks(found, 2, b"a", b"b", b"c")
    one = found.consumer("one", offsets_storage="kafka", dual_commit_enabled="false")
    two = found.consumer("two", offsets_storage="kafka", dual_commit_enabled="false", auto_commit_enable="false")
    is_under_way = asyncio.Event()

    async def slow(*arguments: Any) -> None:
        if not is_under_way.is_set():
            is_under_way.set()
            await until(lambda: len(one.owned) == 1)
            await asyncio.sleep(0.2)  # in which the release would be written
        await commit_offsets(*arguments)

    async with one, two:
        (stream,) = (await one.create_message_streams({"clicks": 1}))["clicks"]
        assert await take(stream, 1) == [b"a"]
        monkeypatch.setattr("ottla.client.consumer_connector.commit_offsets", slow)
        committing = asyncio.create_task(one.commit_offsets())
        await is_under_way.wait()
        assert len(await take(stream, 5)) == 5
        await two.create_message_streams({"clicks": 1})
        await committing
        await until(lambda: two.owned)
        (moved,) = two.owned
        assert (await committed_offsets(found.cluster, "g"))[moved].offset >= 2


async def test_a_first_offset_that_waits_while_the_session_ends_is_not_written(found: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a commit that takes long: the offset of the next owner would go back to where its topic begins."""
    late = TopicPartition("late", 0)
    await some_clicks(found, 1, b"a", b"b")
    sessions: list[EmbeddedSession] = []
    one = found.consumer("one", sessions, offsets_storage="kafka", dual_commit_enabled="false")
    other = found.consumer("another", offsets_storage="kafka", dual_commit_enabled="false", auto_commit_enable="false")
    is_under_way, may_continue = asyncio.Event(), asyncio.Event()

    async def slow(cluster: Cluster, name: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        if CLICKS in offsets:
            is_under_way.set()
            await may_continue.wait()
        await commit_offsets(cluster, name, offsets)

    async with one, other:
        (stream,) = (await one.create_message_streams({"clicks": 1, "late": 1}))["clicks"]
        assert await take(stream, 1) == [b"a"]
        monkeypatch.setattr("ottla.client.consumer_connector.commit_offsets", slow)
        committing = asyncio.create_task(one.commit_offsets())
        await is_under_way.wait()
        await create_topic(found.cluster, "late", 1)
        await produce(found.cluster, late, batch(b"c", b"d"))
        await until(lambda: one._committing._waiters)
        await found.zookeeper.expire(sessions[0])
        (stream,) = (await other.create_message_streams({"late": 1}))["late"]
        assert await take(stream, 2) == [b"c", b"d"]
        await other.commit_offsets()
        may_continue.set()
        await committing
        await until(lambda: one.owned == [CLICKS])
        assert (await committed_offsets(found.cluster, "g"))[late].offset == 2


async def test_a_partition_is_not_released_while_its_program_commits(found: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who commits before processing would process what the next owner, who has heard of no commit, reads too."""
    await create_topic(found.cluster, "clicks", 2)
    moved = TopicPartition("clicks", 1)
    await produce(found.cluster, moved, batch(b"a", b"b"))
    one, two = (
        found.consumer(name, offsets_storage="kafka", dual_commit_enabled="false", auto_commit_enable="false") for name in ("one", "two")
    )
    is_under_way = asyncio.Event()

    async def slow(*arguments: Any) -> None:
        if not is_under_way.is_set():
            is_under_way.set()
            with suppress(TimeoutError):
                await until(lambda: two.owned, seconds=2.0)
        await commit_offsets(*arguments)

    async with one, two:
        (stream,) = (await one.create_message_streams({"clicks": 1}))["clicks"]
        messages = aiter(stream)
        assert (await anext(messages)).value == b"a"
        monkeypatch.setattr("ottla.client.consumer_connector.commit_offsets", slow)
        committing = asyncio.create_task(one.commit_offsets())
        await is_under_way.wait()
        (other,) = (await two.create_message_streams({"clicks": 1}))["clicks"]
        assert await take(other, 1) == [b"b"]
        await committing


async def test_what_is_released_while_a_consumer_is_shut_down_is_committed(found: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    await some_clicks(found, 2, b"a", b"b", b"c")
    one = found.consumer("one", offsets_storage="kafka", dual_commit_enabled="false")
    two = found.consumer("two", offsets_storage="kafka", dual_commit_enabled="false", auto_commit_enable="false")
    is_under_way, may_continue = asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any) -> None:
        is_under_way.set()
        await may_continue.wait()
        await commit_offsets(*arguments)

    async with one, two:
        (stream,) = (await one.create_message_streams({"clicks": 1}))["clicks"]
        assert len(await take(stream, 5)) == 5
        monkeypatch.setattr("ottla.client.consumer_connector.commit_offsets", slow)
        joining = asyncio.create_task(two.create_message_streams({"clicks": 1}))
        await is_under_way.wait()
        leaving = asyncio.create_task(one.shutdown())
        await until(lambda: all(task.done() or task.cancelling() for task in one._tasks))
        may_continue.set()
        await leaving
        await joining
        committed = await committed_offsets(found.cluster, "g")
        assert sum(committed[partition].offset for partition in committed) == 4  # all but the one in hand


async def test_a_consumer_that_is_shut_down_while_it_joins_is_in_no_group(found: Group) -> None:
    await some_clicks(found, 1, b"a")
    is_asked, may_open = asyncio.Event(), asyncio.Event()

    async def open_session() -> Coordination:
        is_asked.set()
        await may_open.wait()
        return await found.zookeeper.session()

    connector = AsyncConsumerConnector(found.consumer("one").settings, open_session=open_session)
    joining = asyncio.create_task(connector.create_message_streams({"clicks": 1}))
    await is_asked.wait()
    await connector.shutdown()
    may_open.set()
    with pytest.raises(ClientClosed):
        await joining
    assert await found.owners("clicks") == {}


async def test_an_attempt_to_join_that_is_given_up_holds_no_partition_and_may_be_repeated(
    found: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a bound of time, or a notebook's cell that is interrupted: it was a member that read nothing, and kept others from it."""
    await some_clicks(found, 1, b"a")

    async def never(*arguments: Any, **more: Any) -> None:
        await asyncio.get_running_loop().create_future()

    async with found.consumer("one") as one, found.consumer("two") as two:
        with monkeypatch.context() as patched:
            patched.setattr("ottla.client.consumer_connector.list_offsets", never)
            joining = asyncio.create_task(one.create_message_streams({"clicks": 1}))
            while await found.owners("clicks") == {}:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            joining.cancel()
            await asyncio.wait([joining])
        assert await found.owners("clicks") == {}
        for connector in (two, one):
            (stream,) = (await connector.create_message_streams({"clicks": 1}))["clicks"]
            assert await take(stream, 1) == [b"a"]
            await connector.shutdown()


async def test_streams_are_created_once_also_by_two_at_once(found: Group) -> None:
    """As `messageStreamCreated` of Kafka 0.8: both joined, in two sessions, and the first one's stayed."""
    await some_clicks(found, 1, b"a")
    sessions: list[EmbeddedSession] = []
    async with found.consumer("one", sessions) as connector:
        first, second = await asyncio.gather(*(connector.create_message_streams({"clicks": 1}) for _ in range(2)), return_exceptions=True)
        assert isinstance(second, ClientClosed)
        assert isinstance(first, dict)
        assert await take(first["clicks"][0], 1) == [b"a"]
        assert len(sessions) == 1


async def test_an_attempt_to_join_that_finds_no_broker_leaves_no_session(tmp_path: Path) -> None:
    zookeeper = EmbeddedZooKeeper(tmp_path, SystemClock())
    sessions: list[EmbeddedSession] = []

    async def open_session() -> Coordination:
        sessions.append(await zookeeper.session())
        return sessions[-1]

    settings = ConsumerSettings.from_properties({"group.id": "g"})
    async with AsyncConsumerConnector(settings, open_session=open_session) as connector:
        for _ in range(2):
            with pytest.raises(BrokerNotAvailable):
                await connector.create_message_streams({"clicks": 1})
        assert [session.is_over for session in sessions] == [True, True]
    await zookeeper.close()


async def test_offsets_of_a_topic_that_has_gone_are_not_committed_and_hold_up_no_release(
    found: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator does not know such a partition, which a client takes for something that time heals."""
    await some_clicks(found, 1, b"a", b"b")
    await create_topic(found.cluster, "gone", 1)
    asked: list[TopicPartition] = []

    async def noted(cluster: Cluster, name: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        asked.extend(offsets)
        await commit_offsets(cluster, name, offsets, timeout_seconds=1)

    async with found.consumer("one", offsets_storage="kafka", dual_commit_enabled="false") as connector:
        await connector.create_message_streams({"clicks": 1, "gone": 1})
        await until(lambda: len(connector.owned) == 2)
        monkeypatch.setattr("ottla.client.consumer_connector.commit_offsets", noted)
        assert not await delete_topics(found.cluster, ["gone"])
        registry = connector._registry
        assert registry is not None
        await until(lambda: registry.claimed == {CLICKS})
        assert asked == []
    assert asked == [CLICKS]


async def test_a_shutdown_that_is_given_up_ends_the_session(found: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by `asyncio.wait_for`, while partitions are given up to others: their znodes would be this consumer's for as long as it runs."""
    await some_clicks(found, 2, b"a", b"b", b"c")
    one = found.consumer("one", offsets_storage="kafka", dual_commit_enabled="false")
    is_under_way, may_continue = asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any) -> None:
        is_under_way.set()
        await may_continue.wait()

    async with found.consumer("two") as two:
        (stream,) = (await one.create_message_streams({"clicks": 1}))["clicks"]
        assert len(await take(stream, 5)) == 5
        monkeypatch.setattr("ottla.client.consumer_connector.commit_offsets", slow)
        joining = asyncio.create_task(two.create_message_streams({"clicks": 1}))
        await is_under_way.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.shutdown(), 0.1)
        may_continue.set()
        await joining
        await until(lambda: len(two.owned) == 2, seconds=20)


async def test_a_shutdown_that_is_given_up_hands_out_nothing_once_others_may_come(found: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session ends before it has released anything, and its end may take a while to be answered."""
    await some_clicks(found, 2, *(b"%d" % number for number in range(20)))
    one = found.consumer("one", offsets_storage="kafka", dual_commit_enabled="false")
    is_under_way, is_ending, may_continue = (asyncio.Event() for _ in range(3))
    close = EmbeddedSession.close

    async def slow(*arguments: Any) -> None:
        is_under_way.set()
        await may_continue.wait()

    async def unanswered(session: EmbeddedSession) -> None:
        is_ending.set()
        await may_continue.wait()
        await close(session)

    async with found.consumer("two") as two:
        (stream,) = (await one.create_message_streams({"clicks": 1}))["clicks"]
        assert len(await take(stream, 1)) == 1
        monkeypatch.setattr("ottla.client.consumer_connector.commit_offsets", slow)
        monkeypatch.setattr(EmbeddedSession, "close", unanswered)
        joining = asyncio.create_task(two.create_message_streams({"clicks": 1}))
        await is_under_way.wait()
        leaving = asyncio.create_task(one.shutdown())
        await until(lambda: all(task.done() or task.cancelling() for task in one._tasks))
        leaving.cancel()
        await is_ending.wait()
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await anext(aiter(stream))
        finally:
            may_continue.set()
            await asyncio.wait([leaving, joining])


def test_a_second_shutdown_waits_for_the_first_and_does_not_cut_it_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where one thread shuts down and the reader's, whose stream ends by that, leaves its `with`."""
    is_leaving, has_left = threading.Event(), threading.Event()

    async def slow(connector: AsyncConsumerConnector) -> None:
        is_leaving.set()
        await asyncio.sleep(0.3)
        has_left.set()

    monkeypatch.setattr(AsyncConsumerConnector, "_close", slow)
    with ThreadPoolExecutor(1) as another, ConsumerConnector(ConsumerSettings(group_id="g")) as connector:
        first = another.submit(connector.shutdown)
        assert is_leaving.wait(60)
        connector.shutdown()
        assert has_left.is_set()
        first.result(60)


async def test_a_stream_without_a_message_times_out_and_can_be_read_on(found: Group) -> None:
    await some_clicks(found, 1, b"a")
    async with found.reading("one", consumer_timeout_ms="50") as (connector, stream):
        await until(lambda: connector.owned == [CLICKS])

        async def patiently(count: int) -> list[bytes | None]:
            seen: list[bytes | None] = []
            while len(seen) < count:
                with suppress(ConsumerTimeout):  # a message may take longer than that
                    async for message in stream:
                        seen.append(message.value)
                        if len(seen) == count:
                            break
            return seen

        assert await patiently(1) == [b"a"]
        with pytest.raises(ConsumerTimeout, match="50 ms"):
            await take(stream, 1)
        await produce(found.cluster, CLICKS, batch(b"b"))
        assert await patiently(1) == [b"b"]
        await connector.seek("clicks", 0, 0)
        assert await patiently(2) == [b"a", b"b"]
        await connector.seek_to_timestamp(1_000)
        assert await patiently(1) == [b"a"]


@pytest.mark.parametrize("last_version", [6, 9])
async def test_a_group_continues_behind_what_an_open_transaction_commits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_version: int
) -> None:
    """Kafka's ConsumerCoordinatorTest.testRefreshOffsetWithPendingTransactions (KIP-447); before OffsetFetch 7 no one could say so."""
    monkeypatch.setattr("ottla.wire.groups.FETCH_VERSIONS", (1, last_version))
    async with group(tmp_path) as found:
        await some_clicks(found, 1, b"a", b"b", b"c")
        async with await TransactionalProducer.open(found.cluster, "loader") as producer:
            producer.begin()
            await producer.commit_offsets("g", {CLICKS: CommittedOffset(2)})
            async with found.consumer("one", offsets_storage="kafka", dual_commit_enabled="false") as connector:
                joining = asyncio.create_task(connector.create_message_streams({"clicks": 1}))
                await asyncio.wait([joining], timeout=0.5 if last_version >= 7 else 60)
                await producer.commit()
                (stream,) = (await joining)["clicks"]
                assert await take(stream, 1) == [b"c" if last_version >= 7 else b"a"]


async def test_a_seek_to_a_time_skips_nothing_that_is_written_meanwhile(found: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()

    async def listed(*arguments: Any) -> Mapping[TopicPartition, ListedOffset]:
        answer = await list_offsets(*arguments)
        await produce(found.cluster, CLICKS, build_batch([Record(0, 9_000, None, b"%d" % next(numbers))]))
        return answer

    await some_clicks(found, 1, b"a")
    async with found.reading("one") as (connector, stream):
        assert await take(stream, 1) == [b"a"]
        monkeypatch.setattr("ottla.client.consumer_connector.list_offsets", listed)
        await connector.seek_to_timestamp(9_000)
        assert await take(stream, 1) == [b"0"]


async def test_a_seek_to_what_is_no_offset_and_no_time_is_refused_and_changes_nothing(found: Group) -> None:
    """A hundred before the tenth: -90 failed the partition, -1 was the end of the log; what no request can say ended the stream."""
    await some_clicks(found, 1, b"a", b"b", b"c")
    async with found.consumer("one") as connector:
        with pytest.raises(ClientClosed, match="no streams"):
            await connector.seek_to_timestamp(0)
        (stream,) = (await connector.create_message_streams({"clicks": 1}))["clicks"]
        assert await take(stream, 1) == [b"a"]
        for offset in (-90, -1, 1 << 63):
            with pytest.raises(ValueError, match="no offset"):
                await connector.seek("clicks", 0, offset)
        for time_ms in (-1, 1 << 63):  # the first is the word for the end of the log
            with pytest.raises(ValueError, match="no time"):
                await connector.seek_to_timestamp(time_ms)
        no_number: Any = "1"
        with pytest.raises(TypeError):
            await connector.seek("clicks", 0, no_number)
        assert await take(stream, 1) == [b"b"]
    assert await found.offset("clicks", 0) == 1


async def test_what_a_reader_had_before_does_not_say_where_a_partition_stands_that_was_assigned_again(found: Group) -> None:
    """By a seek, or after a session: the reader has not asked for the next message yet."""
    await some_clicks(found, 1, *(b"%d" % number for number in range(5)))
    sessions: list[EmbeddedSession] = []
    async with found.reading("one", sessions, auto_commit_enable="false") as (connector, stream):
        assert len(await take(stream, 3)) == 3
        await connector.commit_offsets()
        await found.zookeeper.expire(sessions[0])
        await until(lambda: connector.owned == [CLICKS])
        await connector.commit_offsets()
        assert await found.offset("clicks", 0) == 3
    async with found.reading("two") as (connector, stream):
        assert await take(stream, 2) == [b"3", b"4"]
        await connector.commit_offsets()
        await connector.seek("clicks", 0, 1)
    assert await found.offset("clicks", 0) == 1


async def test_a_topic_that_is_made_again_between_two_looks_is_read_from_its_beginning(found: Group) -> None:
    """Its partitions are those that this consumer owns already, and what it has committed is of the topic before."""
    await some_clicks(found, 1, b"a", b"b")
    async with found.reading("one", auto_offset_reset="largest") as (connector, stream):
        await connector.seek("clicks", 0, 0)
        assert await take(stream, 2) == [b"a", b"b"]
        async with connector._rebalancing:
            assert not await delete_topics(found.cluster, ["clicks"])
            await some_clicks(found, 1, b"c", b"d", b"e")
        assert await take(stream, 3) == [b"c", b"d", b"e"]
        await connector.commit_offsets()
    assert await found.offset("clicks", 0) == 3


async def test_the_end_that_a_consumer_was_reset_to_is_where_its_group_continues(found: Group) -> None:
    """Kafka 0.8's ConsumerFetcherThread.handleOffsetOutOfRange: else "largest" skips what is written between this owner and the next."""
    await some_clicks(found, 1, b"a", b"b")
    await found.look.create("/consumers/g/offsets/clicks/0", b"9", make_parents=True)
    async with found.reading("one", auto_offset_reset="largest", consumer_timeout_ms="2000") as (_, stream):
        with pytest.raises(ConsumerTimeout):
            await take(stream, 1)
    assert await found.offset("clicks", 0) == 2
    await produce(found.cluster, CLICKS, batch(b"c"))
    async with found.reading("two", auto_offset_reset="largest") as (_, stream):
        assert await take(stream, 1) == [b"c"]


async def test_the_largest_offset_lies_before_a_transaction_that_is_open(found: Group) -> None:
    """As for Kafka's consumers of committed data: what it has written is read when it is committed, as a whole."""
    await some_clicks(found, 1, b"a")
    async with found.consumer("one", auto_offset_reset="largest") as connector:
        async with await TransactionalProducer.open(found.cluster, "open") as producer, producer.transaction():
            await (await producer.send(CLICKS, batch(b"b")))
            (stream,) = (await connector.create_message_streams({"clicks": 1}))["clicks"]
            await until(lambda: connector.owned == [CLICKS])
            await (await producer.send(CLICKS, batch(b"c")))
        assert await take(stream, 2) == [b"b", b"c"]


async def test_a_first_attempt_that_fails_is_followed_by_another(found: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing changes in ZooKeeper when a coordinator or a leader can be asked again."""
    await some_clicks(found, 1, b"a")
    refusals = [CoordinatorNotAvailable("not yet")]

    async def refused_once(*arguments: Any, require_stable: bool = False) -> dict[TopicPartition, CommittedOffset]:
        if refusals:
            raise refusals.pop()
        return await committed_offsets(*arguments, require_stable=require_stable)

    monkeypatch.setattr("ottla.client.consumer_connector.committed_offsets", refused_once)
    async with found.reading("one", offsets_storage="kafka", dual_commit_enabled="false") as (_, stream):
        assert await take(stream, 1) == [b"a"]
        assert not refusals


async def test_a_claim_goes_on_behind_no_other_that_has_failed(found: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """By then the partition may be another consumer's to have: it would be claimed behind its release, and released by no one."""
    await some_clicks(found, 2, b"a")
    is_joining, has_joined, may_claim, has_claimed = (asyncio.Event() for _ in range(4))
    claim_now, failures = GroupRegistry.claim, [ConnectionLoss("clicks-0")]

    async def claim(registry: GroupRegistry, partition: TopicPartition, stream: str, watch: Watch) -> int | None:
        if stream == "two-0":
            has_joined.set()
            await has_claimed.wait()
        elif partition == CLICKS and failures:
            is_joining.set()
            await has_joined.wait()
            raise failures.pop()
        elif partition != CLICKS and not has_claimed.is_set():
            await may_claim.wait()
            offset = await claim_now(registry, partition, stream, watch)
            has_claimed.set()
            return offset
        return await claim_now(registry, partition, stream, watch)

    monkeypatch.setattr(GroupRegistry, "claim", claim)
    async with found.consumer("one") as one, found.consumer("two") as two:
        joining = [asyncio.create_task(one.create_message_streams({"clicks": 1}))]
        await is_joining.wait()
        joining.append(asyncio.create_task(two.create_message_streams({"clicks": 1})))
        await has_joined.wait()
        await asyncio.sleep(0.3)  # in which the first would share the partitions out again
        may_claim.set()
        await asyncio.gather(*joining)
        await until(lambda: (one.owned, two.owned) == ([CLICKS], [TopicPartition("clicks", 1)]), seconds=20)


async def test_a_partition_without_a_leader_does_not_keep_the_others_from_being_read(found: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    await some_clicks(found, 2, b"a")
    without_leader = TopicPartition("clicks", 1)
    is_led = False

    async def listed(cluster: Cluster, asked: Mapping[TopicPartition, int], **more: Any) -> dict[TopicPartition, ListedOffset]:
        if without_leader in asked and not is_led:
            raise LeaderNotAvailable(f"{without_leader} has no leader")
        return await list_offsets(cluster, asked, **more)

    monkeypatch.setattr("ottla.client.consumer_connector.list_offsets", listed)
    async with found.reading("one") as (connector, stream):
        assert connector.owned == [CLICKS]
        assert await take(stream, 1) == [b"a"]
        is_led = True
        assert await take(stream, 1) == [b"a"]
        assert connector.owned == [CLICKS, without_leader]


async def test_no_two_consumers_own_a_partition_at_once_through_joins_leaves_and_expiries(found: Group) -> None:
    """Paper, section 3.2. In the end every message was read and the owners' znodes are those of the consumers."""
    chance = random.Random(7)
    await some_clicks(found, 6, b"a", b"b")
    consumers: dict[str, tuple[AsyncConsumerConnector, list[EmbeddedSession], asyncio.Task[None]]] = {}
    seen: set[tuple[int, int]] = set()

    async def read(connector: AsyncConsumerConnector) -> None:
        (stream,) = (await connector.create_message_streams({"clicks": 1}))["clicks"]
        async for message in stream:
            seen.add((message.partition, message.offset))

    for step in range(40):
        action = chance.choice(["join", "join", "leave", "expire"])
        if action == "join" and len(consumers) < 5:
            sessions: list[EmbeddedSession] = []
            connector = found.consumer(f"c{step}", sessions)
            consumers[f"c{step}"] = (connector, sessions, asyncio.create_task(read(connector)))
        elif action == "leave" and consumers:
            connector, _, task = consumers.pop(chance.choice(sorted(consumers)))
            await connector.shutdown()
            task.cancel()
        elif action == "expire" and consumers:
            connector, sessions, _ = consumers[chance.choice(sorted(consumers))]
            if sessions and not sessions[-1].is_over:
                await found.zookeeper.expire(sessions[-1])
        await asyncio.sleep(chance.random() * 0.05)
        owned = [partition for connector, _, _ in consumers.values() for partition in connector.owned]
        assert len(owned) == len(set(owned))
    if not consumers:
        connector = found.consumer("last")
        consumers["last"] = (connector, [], asyncio.create_task(read(connector)))

    async def are_owners() -> bool:
        owned = [
            (f"{partition.partition}", f"{connector.consumer_id}-0")
            for connector, _, _ in consumers.values()
            for partition in connector.owned
        ]
        return len(owned) == 6 and await found.owners("clicks") == dict(owned)

    while not await are_owners():  # noqa: ASYNC110  # the last expiry may be on its way to another rebalance
        await asyncio.sleep(0.01)
    await until(lambda: seen == {(number, offset) for number in range(6) for offset in range(2)})
    for connector, _, task in consumers.values():
        await connector.shutdown()
        task.cancel()

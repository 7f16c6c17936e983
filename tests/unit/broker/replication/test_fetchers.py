"""Following as a whole, against leaders whose wire is real and whose logs are lists.

The fetch waits at the leader for longer than a test may take, so nothing here passes because a wait was over.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.loops import until

from ottla.broker.replication.throttles import Throttle
from ottla.config.topic import TopicSettings
from ottla.errors import (
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
)
from ottla.model import BrokerId, TopicPartition
from ottla.testing.clock import ManualClock

from .followers import P0, P1, P2, Follower, following, named, until_equal, waits
from .leaders import SETTINGS, Led, LogOf, Replica, follow_of, topic_id


async def test_a_follower_becomes_what_its_leader_is(follower: Follower) -> None:
    leader = follower.leader()
    led = leader.lead(P0)
    leader.append(led, b"a", b"b")
    (replica,) = follower.follow(leader, P0)
    await until_equal(replica, led)
    for value in (b"c", b"d" * 100_000, b"e"):
        leader.append(led, value)
        await until_equal(replica, led)
    first = leader.requests[0]
    assert (first.replica_id, first.replica_epoch, first.session_epoch, first.isolation_level) == (1, 70, 0, 0)
    assert (first.min_bytes, first.max_bytes, first.topics[0].topic) == (1, 10 * 1024 * 1024, topic_id("flights"))
    follower.broker_epoch = 71
    leader.append(led, b"f")
    await until_equal(replica, led)
    leader.append(led, b"g")
    await until_equal(replica, led)
    assert leader.requests[-1].replica_epoch == 71


async def test_after_the_first_request_only_partitions_with_news_are_named(follower: Follower) -> None:
    leader = follower.leader()
    led = [leader.lead(partition) for partition in (P0, P1, P2)]
    replicas = follower.follow(leader, P0, P1, P2)
    await until(lambda: waits(leader))
    known = len(leader.requests)
    leader.append(led[1], b"x")
    await until_equal(replicas[1], led[1])
    await until(lambda: len(leader.requests) > known)
    assert named(leader.requests[0]) == [0, 1, 2]
    assert {tuple(named(request)) for request in leader.requests[known:]} == {(1,)}
    assert len({request.session_id for request in leader.requests[1:]}) == 1


@pytest.mark.long
async def test_thousands_of_partitions_catch_up_by_answers_of_bounded_size(follower: Follower) -> None:
    leader = follower.leader()
    leader.max_answer = 2000
    partitions = [TopicPartition("flights", index) for index in range(1200)]
    led = [leader.lead(partition) for partition in partitions]
    for index, each in enumerate(led):
        if index % 10 == 0:
            leader.append(each, bytes(100), bytes(index))
    replicas = follower.follow(leader, *partitions)
    await until(lambda: all(replica.log == each.log for replica, each in zip(replicas, led, strict=True)))
    assert all(replica.told for replica in replicas)


async def test_without_a_session_a_busy_partition_does_not_keep_the_answers_for_itself(follower: Follower) -> None:
    """As with `max.incremental.fetch.session.cache.slots=0`. Who got bytes goes to the end, as at Kafka's followers and in a session."""
    leader = follower.leader(slots=0)
    leader.max_answer = 200
    busy, other = leader.lead(P0), leader.lead(P1)
    leader.append(busy, *[bytes(100)] * 3)
    leader.append(other, bytes(100))
    first, second = follower.follow(leader, P0, P1)
    first.before_append = lambda: leader.append(busy, bytes(100)) if not second.log.end else None
    await until_equal(second, other)
    await until_equal(first, busy)


async def test_a_partition_that_comes_while_a_fetch_waits_is_fetched_at_once_and_then_with_the_others(follower: Follower) -> None:
    leader = follower.leader()
    old, new = leader.lead(P0), leader.lead(P1)
    (first,) = follower.follow(leader, P0)
    await until(lambda: waits(leader))
    (second,) = follower.follow(leader, P1)
    for value in (b"1", b"2", b"3"):
        leader.append(new, value)
        await until_equal(second, new)
    assert leader.open_connections == 2
    leader.append(old, b"wakes the first")
    await until_equal(first, old)
    await until(lambda: leader.requests[-1].max_wait_ms == 30_000 and set(named(leader.requests[-1])) >= {1})
    known = len(leader.requests)
    leader.append(new, b"4")
    await until_equal(second, new)
    await until(lambda: len(leader.requests) > known)
    assert {request.max_wait_ms for request in leader.requests[known:]} == {30_000}
    assert second.log == new.log


@pytest.mark.parametrize("how", ["another leader", "a newer epoch of the same leader", "nobody", "deleted here"])
async def test_an_answer_that_comes_after_the_leader_changed_is_dropped(follower: Follower, how: str) -> None:
    leader, other = follower.leader(2), follower.leader(3)
    led = leader.lead(P0)
    leader.append(led, b"old")
    leader.gate.clear()
    (replica,) = follower.follow(leader, P0)
    await until(lambda: bool(leader.requests))
    await asyncio.sleep(0.002)
    match how:
        case "another leader":
            new = other.lead(P0, epoch=1)
            other.append(new, b"new")
            follower.follow(other, P0, epoch=1)
        case "a newer epoch of the same leader":
            new = leader.lead(P0, epoch=1)
            leader.append(new, b"new")
            follower.follow(leader, P0, epoch=1)
        case "nobody":
            new = Led(LogOf())
            follower.fetchers.unfollow([P0, P1])
        case "deleted here":
            new = Led(LogOf())
            del follower.replicas[P0]
    leader.gate.set()
    await until_equal(replica, new)
    await asyncio.sleep(0.02)
    assert replica.log == new.log


async def test_what_was_told_in_a_dropped_answer_is_told_again(follower: Follower) -> None:
    """The leader believes that its high watermark is known here, and would not say it again by itself."""
    leader = follower.leader()
    led, other = leader.lead(P0), leader.lead(P1)
    leader.append(led, b"a", is_committed=False)
    replicas = follower.follow(leader, P0, P1)
    await until(lambda: replicas[0].log.end == 1 and waits(leader))
    leader.gate.clear()
    led.log.high_watermark = 1
    leader.append(other, b"x")
    await until(lambda: leader.held_back == 1)
    led.epoch = 5
    follower.follow(leader, P0, epoch=5)
    leader.gate.set()
    await until_equal(replicas[1], other)
    await until(lambda: waits(leader))
    leader.append(other, b"y")
    await until_equal(replicas[0], led)


async def test_told_the_same_again_a_partition_goes_on_as_it_was(follower: Follower) -> None:
    """A change of the ISR is told to all replicas, and happens often."""
    leader = follower.leader()
    led = leader.lead(P0)
    (replica,) = follower.follow(leader, P0)
    await until(lambda: waits(leader))
    known = len(leader.requests)
    follower.follow(leader, P0)
    leader.append(led, b"a")
    await until_equal(replica, led)
    await until(lambda: len(leader.requests) == known + 1)
    assert not leader.requests[-1].forgotten


async def test_the_leader_hears_of_records_only_when_they_are_where_they_must_be(follower: Follower) -> None:
    """flush.messages: what the next fetch says is here has been synced before it."""
    leader = follower.leader()
    led = leader.lead(P0)
    replica = follower.replicas[P0] = Replica()
    synced = 0

    def needs() -> None:
        replica.must_checkpoint_truncation = True

    def settled() -> None:
        nonlocal synced
        synced = replica.log.end

    replica.before_append, replica.settled = needs, settled
    follower.follow(leader, P0)
    for _ in range(5):
        leader.append(led, b"x")
        await until_equal(replica, led)
        await until(lambda: waits(leader))
        asked = [partition.fetch_offset for request in leader.requests for topic in request.topics for partition in topic.partitions]
        assert max(asked) <= synced
    failures = [KafkaStorageError("the disk is slow today"), None]
    replica.settled = lambda: failures.pop(0) if failures else settled()
    leader.append(led, b"y")
    await until_equal(replica, led)
    await until(lambda: not failures and not replica.must_checkpoint_truncation)


async def test_lagging_throttled_replicas_wait_and_those_in_sync_do_not() -> None:
    """KIP-73."""
    clock = ManualClock()
    throttle = Throttle(clock, 1000)
    async with following(throttle=throttle) as follower:
        leader = follower.leader()
        throttled, free = leader.lead(P0), leader.lead(P1)
        follower.replicas[P0] = Replica(TopicSettings(follower_replication_throttled_replicas=("0:1",)))
        leader.append(throttled, bytes(5000))
        replicas = follower.follow(leader, P0, P1)
        await until_equal(replicas[0], throttled)
        assert throttle.is_exceeded
        leader.append(throttled, bytes(10))  # it has caught up, and must stay so
        await until_equal(replicas[0], throttled)
        replicas[0].log.cut(0)
        replicas[0].log.records.clear()
        follower.follow(leader, P0, epoch=1)  # and now it lags
        throttled.epoch = 1
        leader.wake()
        for _ in range(5):
            leader.append(free, b"x")
            await until_equal(replicas[1], free)
        await asyncio.sleep(0.05)
        assert replicas[0].log.end == 0
        clock.advance(seconds=10)
        await until_equal(replicas[0], throttled)


@pytest.mark.parametrize("broker_epoch", [5, -1])  # it goes back where ZooKeeper was restored from a copy
async def test_a_leader_that_registers_elsewhere_is_found_there(follower: Follower, broker_epoch: int) -> None:
    leader = follower.leader()
    led = leader.lead(P0)
    (replica,) = follower.follow(leader, P0)
    await until(lambda: waits(leader))
    follower.fetchers.follow({P0: follow_of(leader, P0, port=9099, broker_epoch=broker_epoch)})
    leader.append(led, b"a")
    await until_equal(replica, led)
    leader.append(led, b"b")
    await until_equal(replica, led)
    assert leader.connections[-1].endpoint.port == 9099
    assert leader.open_connections == 1


async def test_a_leader_whose_address_has_changed_while_it_runs_is_found_there(follower: Follower) -> None:
    """As `advertised.listeners` may. Of a registration that is not its own any more nothing is taken."""
    leader = follower.leader()
    led = leader.lead(P0)
    (replica,) = follower.follow(leader, P0)
    await until(lambda: waits(leader))
    for epoch, port in ((0, 9099), (4, 9098)):
        follower.brokers = {BrokerId(2): leader.registration(port, epoch)}
        for value in (b"a", b"b"):
            leader.append(led, value)
            await until_equal(replica, led)
        assert leader.connections[-1].endpoint.port == (9099 if epoch == 0 else 9092)
    assert leader.open_connections == 1


async def test_partitions_are_shared_out_over_fetchers_and_again_when_their_number_changes() -> None:
    two = SETTINGS.with_changes({"num.replica.fetchers": "3"})
    async with following(two) as follower:
        leader = follower.leader()
        partitions = [TopicPartition(f"topic-{index % 5}", index) for index in range(30)]
        led = [leader.lead(partition) for partition in partitions]
        replicas = follower.follow(leader, *partitions)

        async def all_follow() -> None:
            for partition in led:
                leader.append(partition, b"x")
            await until(lambda: all(replica.log == each.log for replica, each in zip(replicas, led, strict=True)))

        await all_follow()
        assert sorted(map(len, follower.fetchers._fetchers.values())) == [10, 10, 10]
        follower.fetchers.update_settings(SETTINGS)
        await all_follow()
        assert [len(fetcher) for fetcher in follower.fetchers._fetchers.values()] == [30]
        follower.fetchers.update_settings(SETTINGS.with_changes({"num.replica.fetchers": "2"}))
        await all_follow()
        assert sum(map(len, follower.fetchers._fetchers.values())) == 30


async def test_with_nothing_to_follow_nothing_is_left(follower: Follower) -> None:
    leader, other = follower.leader(2), follower.leader(3)
    leader.lead(P0)
    other.lead(P0, epoch=1)
    before = asyncio.all_tasks()
    follower.follow(leader, P0)
    await until(lambda: waits(leader))
    follower.follow(other, P0, epoch=1)
    await until(lambda: waits(other) and leader.open_connections == 0)
    assert set(follower.fetchers.following) == {P0}
    follower.fetchers.unfollow([P0])
    await until(lambda: other.open_connections == 0 and asyncio.all_tasks() <= before)
    assert not follower.fetchers._fetchers


@pytest.mark.parametrize("turns", range(40))
async def test_following_can_be_closed_at_any_await(follower: Follower, turns: int) -> None:
    """Method: partitions with records, errors, a lost place and something to settle; closed after so many turns of the loop."""
    leader = follower.leader()
    led = [leader.lead(partition) for partition in (P0, P1, P2)]
    led[1].error = OffsetOutOfRange.code
    led[2].error = NotLeaderOrFollower.code
    for partition in led:
        leader.append(partition, b"x")
    follower.replicas[P0] = Replica()
    follower.replicas[P0].must_checkpoint_truncation = True
    replicas = follower.follow(leader, P0, P1, P2)
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.wait_for(follower.fetchers.close(), 120)
    ends = [replica.log.end for replica in replicas]
    for partition in led:
        partition.error = 0
        leader.append(partition, b"y")
    follower.follow(leader, P0)
    await asyncio.sleep(0.005)
    assert [replica.log.end for replica in replicas] == ends

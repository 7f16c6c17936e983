"""Following as a whole, against leaders whose wire is real and whose logs are lists.

The fetch waits at the leader for longer than a test may take, so nothing here passes because a wait was over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from ottla.broker.replication import fetch_lane
from ottla.broker.replication.fetchers import Fetchers
from ottla.broker.replication.throttles import Throttle
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.errors import (
    FetchSessionIdNotFound,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownServerError,
)
from ottla.model import BrokerId, Endpoint, TopicPartition
from ottla.protocol.fetch import FetchRequest
from ottla.testing.clock import ManualClock

from .leaders import SETTINGS, Connection, Leader, Led, LogOf, Replica, follow_of, topic_id

P0, P1, P2 = (TopicPartition("flights", index) for index in range(3))


class Follower:
    """A broker that follows, and its leaders."""

    def __init__(self, settings: BrokerSettings, throttle: Throttle | None) -> None:
        self.leaders: dict[str, Leader] = {}
        self.replicas: dict[TopicPartition, Replica] = {}
        self.broker_epoch = 70
        self.fetchers = Fetchers(
            BrokerId(1), lambda: self.broker_epoch, settings, ManualClock(), self._connect, self.replicas.get, throttle
        )

    def leader(self, broker_id: int = 2, **options: int) -> Leader:
        leader = Leader(broker_id, **options)
        self.leaders[f"host-{broker_id}"] = leader
        return leader

    def follow(self, leader: Leader, *partitions: TopicPartition, epoch: int = 0) -> list[Replica]:
        """Follows, as the replica manager does it: first each replica is told, then the fetchers."""
        for each in partitions:
            self.replicas.setdefault(each, Replica()).leader_epoch = epoch
        self.fetchers.follow({each: follow_of(leader, each, epoch) for each in partitions})
        return [self.replicas[each] for each in partitions]

    async def _connect(self, endpoint: Endpoint) -> Connection:
        return await self.leaders[endpoint.host].connect(endpoint)


@asynccontextmanager
async def following(settings: BrokerSettings = SETTINGS, throttle: Throttle | None = None) -> AsyncIterator[Follower]:
    follower = Follower(settings, throttle)
    before = asyncio.all_tasks()
    try:
        yield follower
    finally:
        for each in follower.leaders.values():
            each.gate.set()
        await asyncio.wait_for(follower.fetchers.close(), 20)
    assert not any(each.open_connections for each in follower.leaders.values())
    await until(lambda: asyncio.all_tasks() <= before)


def run(scenario: Callable[[Follower], Awaitable[None]], settings: BrokerSettings = SETTINGS, throttle: Throttle | None = None) -> None:
    async def main() -> None:
        async with following(settings, throttle) as follower:
            await scenario(follower)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until the condition holds; fails after 20 s."""
    deadline = asyncio.get_running_loop().time() + 20
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it never came to that"
        await asyncio.sleep(0.001)


async def until_equal(replica: Replica, led: Led) -> None:
    await until(lambda: replica.log == led.log)


def named(request: FetchRequest) -> list[int]:
    return [each.partition for topic in request.topics for each in topic.partitions]


def waits(leader: Leader) -> bool:
    """Whether the leader has been asked for everything it has, and has nothing to answer."""
    return bool(leader.requests) and leader.requests[-1].max_wait_ms > 0


def test_a_follower_becomes_what_its_leader_is() -> None:
    async def scenario(follower: Follower) -> None:
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

    run(scenario)


def test_after_the_first_request_only_partitions_with_news_are_named() -> None:
    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led = [leader.lead(each) for each in (P0, P1, P2)]
        replicas = follower.follow(leader, P0, P1, P2)
        await until(lambda: waits(leader))
        known = len(leader.requests)
        leader.append(led[1], b"x")
        await until_equal(replicas[1], led[1])
        await until(lambda: len(leader.requests) > known)
        assert named(leader.requests[0]) == [0, 1, 2]
        assert {tuple(named(each)) for each in leader.requests[known:]} == {(1,)}
        assert len({each.session_id for each in leader.requests[1:]}) == 1

    run(scenario)


def test_thousands_of_partitions_catch_up_by_answers_of_bounded_size() -> None:
    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        leader.max_answer = 2000
        partitions = [TopicPartition("flights", index) for index in range(1200)]
        led = [leader.lead(each) for each in partitions]
        for index, each in enumerate(led):
            if index % 10 == 0:
                leader.append(each, bytes(100), bytes(index))
        replicas = follower.follow(leader, *partitions)
        await until(lambda: all(replica.log == each.log for replica, each in zip(replicas, led, strict=True)))
        assert all(replica.told for replica in replicas)

    run(scenario)


def test_a_partition_that_comes_while_a_fetch_waits_is_fetched_at_once_and_then_with_the_others() -> None:
    async def scenario(follower: Follower) -> None:
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
        assert {each.max_wait_ms for each in leader.requests[known:]} == {30_000}
        assert second.log == new.log

    run(scenario)


@pytest.mark.parametrize("how", ["another leader", "a newer epoch of the same leader", "nobody", "deleted here"])
def test_an_answer_that_comes_after_the_leader_changed_is_dropped(how: str) -> None:
    async def scenario(follower: Follower) -> None:
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

    run(scenario)


def test_what_was_told_in_a_dropped_answer_is_told_again() -> None:
    """The leader believes that its high watermark is known here, and would not say it again by itself."""

    async def scenario(follower: Follower) -> None:
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

    run(scenario)


def test_an_error_of_one_partition_keeps_only_that_one_back() -> None:
    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        bad, good = leader.lead(P0), leader.lead(P1)
        for code in (NotLeaderOrFollower.code, UnknownServerError.code, OffsetNotAvailable.code, 9999):
            bad.error = code
            replicas = follower.follow(leader, P0, P1)
            for _ in range(3):
                leader.append(good, b"more")
                await until_equal(replicas[1], good)
            bad.error = 0
            leader.append(bad, b"at last")
            await until_equal(replicas[0], bad)

    run(scenario)


def test_a_leader_that_does_not_know_of_it_yet_is_asked_again_soon() -> None:
    """Follower and leader are told by the same controller, and nobody says which first. Method: the longest wait is a minute."""
    slow = SETTINGS.from_properties({"broker.id": "1", "replica.fetch.backoff.ms": "1000"})

    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led = leader.lead(P0, epoch=3)
        (replica,) = follower.follow(leader, P0, epoch=4)
        await until(lambda: len(leader.requests) >= 2)
        led.epoch = 4
        leader.append(led, b"a")
        await until_equal(replica, led)

    run(scenario, slow)


def test_a_fenced_partition_waits_for_the_controller() -> None:
    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        fenced, good = leader.lead(P0, epoch=6), leader.lead(P1, epoch=5)
        replicas = follower.follow(leader, P0, P1, epoch=5)
        leader.append(good, b"x")
        await until_equal(replicas[1], good)
        known = len(leader.requests)
        for _ in range(5):
            leader.append(good, b"x")
            await until_equal(replicas[1], good)
        assert all(0 not in named(each) for each in leader.requests[known:])
        leader.append(fenced, b"y")
        follower.follow(leader, P0, epoch=6)
        await until_equal(replicas[0], fenced)
        # Told the same epoch again, a partition that was given up is tried again.
        fenced.epoch = 7
        leader.append(fenced, b"z")
        await until(lambda: any(each.is_given_up for each in follower.fetchers._fetchers[leader.broker_id, 0]._followed.values()))
        fenced.epoch = 6
        follower.follow(leader, P0, epoch=6)
        await until_equal(replicas[0], fenced)

    run(scenario)


def test_told_the_same_again_a_partition_goes_on_as_it_was() -> None:
    """A change of the ISR is told to all replicas, and happens often."""

    async def scenario(follower: Follower) -> None:
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

    run(scenario)


def test_a_log_that_parted_from_its_leaders_is_cut_where_it_parted() -> None:
    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led = leader.lead(P0, epoch=4)
        led.log.append(1, b"a", b"b")
        led.log.append(4, b"c", b"d")
        replica = follower.replicas[P0] = Replica()
        replica.log.append(1, b"a", b"b")
        replica.log.append(2, b"x", b"y", b"z")
        led.log.high_watermark = 3
        follower.follow(leader, P0, epoch=4)
        await until_equal(replica, led)
        assert [each.value for each in replica.log.records] == [b"a", b"b", b"c", b"d"]

    run(scenario)


def test_a_follower_whose_records_are_all_gone_at_the_leader_begins_where_that_begins() -> None:
    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led, other = leader.lead(P0), leader.lead(P1)
        led.log.append(0, *(b"%d" % each for each in range(20)))
        led.log.begin_at(15)
        led.log.high_watermark = 20
        replica = follower.replicas[P0] = Replica()
        replica.log.append(0, b"0", b"1")
        replicas = follower.follow(leader, P0, P1)
        await until_equal(replica, led)
        assert leader.listed == 2
        leader.append(other, b"x")
        await until_equal(replicas[1], other)

    run(scenario)


def test_a_follower_that_has_more_than_its_leader_is_cut_to_it() -> None:
    """After an unclean election. The leader says so by an error where it knows no epochs of what it has."""

    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led = leader.lead(P0)
        led.error = OffsetOutOfRange.code
        led.log.append(0, b"a")
        led.log.high_watermark = 1
        replica = follower.replicas[P0] = Replica()
        replica.log.append(0, b"a", b"b", b"c")
        follower.follow(leader, P0)
        await until(lambda: replica.log.end == 1)
        led.error = 0
        leader.append(led, b"d")
        await until_equal(replica, led)

    run(scenario)


def test_a_place_that_can_not_be_found_is_looked_for_again_later() -> None:
    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led = leader.lead(P0)
        led.error = OffsetOutOfRange.code
        leader.append(led, b"a")
        (replica,) = follower.follow(leader, P0)
        await until(lambda: leader.listed >= 4)
        assert replica.log.end == 0
        led.error = 0
        leader.wake()
        await until_equal(replica, led)

    run(scenario)


@pytest.mark.parametrize("slots", [0, 100])
def test_a_lost_session_begins_anew(slots: int) -> None:
    """With no slots the leader keeps no session at all, and every request names everything."""

    async def scenario(follower: Follower) -> None:
        leader = follower.leader(slots=slots)
        led = [leader.lead(each) for each in (P0, P1)]
        replicas = follower.follow(leader, P0, P1)
        for _ in range(3):
            leader.sessions._sessions.clear()
            for each, replica in zip(led, replicas, strict=True):
                leader.append(each, b"x")
                await until_equal(replica, each)
        refused = [each for each in leader.requests if each.session_epoch > 0 and each.session_id not in leader.sessions._sessions]
        assert bool(refused) == bool(slots)
        if not slots:
            assert {tuple(named(each)) for each in leader.requests} == {(0, 1)}

    run(scenario)


def test_a_leader_that_refuses_every_session_is_not_asked_without_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led = leader.lead(P0)
        leader.session_error = FetchSessionIdNotFound("as if it had none")
        (replica,) = follower.follow(leader, P0)
        await until(lambda: len(leader.requests) >= 8)
        assert follower.fetchers._fetchers[leader.broker_id, 0]._lanes[0]._failures >= 7
        leader.session_error = None
        leader.append(led, b"a")
        await until_equal(replica, led)

    with caplog.at_level(logging.INFO):
        run(scenario)
    said = [each.getMessage() for each in caplog.records if "FetchSessionIdNotFound" in each.getMessage()]
    assert len(said) == 1


def test_a_leader_that_dies_and_comes_back_is_followed_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led = leader.lead(P0)
        (replica,) = follower.follow(leader, P0)
        await until(lambda: waits(leader))
        leader.refuses = True
        leader.kill_connections()
        lane = follower.fetchers._fetchers[leader.broker_id, 0]._lanes[0]
        await until(lambda: lane._failures >= 5)
        assert leader.open_connections == 0
        leader.refuses = False
        leader.append(led, b"a")
        await until_equal(replica, led)

    with caplog.at_level(logging.INFO):
        run(scenario)
    told = [each.getMessage() for each in caplog.records if each.name == fetch_lane.__name__]
    assert len(told) == 2, told
    assert "was killed; trying again" in told[0]
    assert "fetches again, after" in told[1]


def test_a_leader_that_falls_silent_is_connected_to_anew() -> None:
    """replica.socket.timeout.ms: the leader was stopped, or its answers are lost on the way."""
    impatient = BrokerSettings.from_properties(
        {"broker.id": "1", "replica.socket.timeout.ms": "50", "replica.fetch.wait.max.ms": "20", "replica.fetch.backoff.ms": "20"}
    )

    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led = leader.lead(P0)
        (replica,) = follower.follow(leader, P0)
        await until(lambda: bool(leader.requests))
        leader.gate.clear()
        leader.append(led, b"a")
        await until(lambda: len(leader.connections) >= 3)
        assert leader.open_connections <= 1
        leader.gate.set()
        await until_equal(replica, led)

    run(scenario, impatient)


@pytest.mark.parametrize("damage", ["another correlation id", "cut", "rubbish"])
def test_an_answer_that_is_none_ends_the_connection(damage: str) -> None:
    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led = leader.lead(P0)
        leader.append(led, b"a")
        original, remaining = leader.answer, [2]

        async def damaged(frame: memoryview) -> bytes:
            answer = await original(frame)
            if remaining[0] == 0:
                return answer
            remaining[0] -= 1
            match damage:
                case "another correlation id":
                    return b"\x7f" + answer[1:]
                case "cut":
                    return answer[:-3]
            return answer[:15] + b"\xff" * len(answer[15:])

        leader.answer = damaged  # type: ignore[method-assign]
        (replica,) = follower.follow(leader, P0)
        await until_equal(replica, led)
        assert len(leader.connections) == 3
        assert leader.open_connections == 1

    run(scenario)


def test_damaged_records_are_not_taken_and_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led, good = leader.lead(P0), leader.lead(P1)
        led.is_damaged = True
        leader.append(led, b"a")
        replicas = follower.follow(leader, P0, P1)
        await until(lambda: sum("is damaged" in each.getMessage() for each in caplog.records) >= 2)
        assert replicas[0].log.end == 0
        leader.append(good, b"b")
        await until_equal(replicas[1], good)
        led.is_damaged = False
        await until_equal(replicas[0], led)

    run(scenario)


def test_a_partition_that_fails_in_an_unforeseen_way_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led, good = leader.lead(P0), leader.lead(P1)

        def fail() -> None:
            raise ZeroDivisionError("a mistake of ours")

        follower.replicas[P0] = Replica()
        follower.replicas[P0].before_append = fail
        leader.append(led, b"a")
        leader.append(good, b"b")
        replicas = follower.follow(leader, P0, P1)
        await until_equal(replicas[1], good)
        await until(lambda: "a mistake of ours" in caplog.text)
        replicas[0].before_append = lambda: None
        await until_equal(replicas[0], led)

    run(scenario)


def test_a_full_disk_keeps_a_partition_back_until_there_is_room() -> None:
    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led, good = leader.lead(P0), leader.lead(P1)

        def fail() -> None:
            raise KafkaStorageError("no space left on device")

        follower.replicas[P0] = Replica()
        follower.replicas[P0].before_append = fail
        leader.append(led, b"a")
        leader.append(good, b"b")
        replicas = follower.follow(leader, P0, P1)
        await until_equal(replicas[1], good)
        replicas[0].before_append = lambda: None
        await until_equal(replicas[0], led)

    run(scenario)


def test_the_leader_hears_of_records_only_when_they_are_where_they_must_be() -> None:
    """flush.messages: what the next fetch says is here has been synced before it."""

    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led = leader.lead(P0)
        replica = follower.replicas[P0] = Replica()
        synced = 0

        def needs() -> None:
            replica.must_settle = True

        def settled() -> None:
            nonlocal synced
            synced = replica.log.end

        replica.before_append, replica.settled = needs, settled
        follower.follow(leader, P0)
        for _ in range(5):
            leader.append(led, b"x")
            await until_equal(replica, led)
            await until(lambda: waits(leader))
            asked = [each.fetch_offset for request in leader.requests for topic in request.topics for each in topic.partitions]
            assert max(asked) <= synced
        failures = [KafkaStorageError("the disk is slow today"), None]
        replica.settled = lambda: failures.pop(0) if failures else settled()
        leader.append(led, b"y")
        await until_equal(replica, led)
        await until(lambda: not failures and not replica.must_settle)

    run(scenario)


def test_lagging_throttled_replicas_wait_and_those_in_sync_do_not() -> None:
    """KIP-73."""
    clock = ManualClock()
    throttle = Throttle(clock, 1000)

    async def scenario(follower: Follower) -> None:
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

    run(scenario, throttle=throttle)


def test_a_leader_that_registers_elsewhere_is_found_there() -> None:
    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led = leader.lead(P0)
        (replica,) = follower.follow(leader, P0)
        await until(lambda: waits(leader))
        follower.fetchers.follow({P0: follow_of(leader, P0, port=9099, broker_epoch=5)})
        leader.append(led, b"a")
        await until_equal(replica, led)
        leader.append(led, b"b")
        await until_equal(replica, led)
        assert leader.connections[-1].endpoint.port == 9099
        assert leader.open_connections == 1

    run(scenario)


def test_a_leader_without_the_inter_broker_listener_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    other = BrokerSettings.from_properties(
        {"broker.id": "1", "listeners": "INNER://:0", "listener.security.protocol.map": "INNER:PLAINTEXT"}
        | {"inter.broker.listener.name": "INNER"}
    )

    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        follower.follow(leader, P0)
        await until(lambda: "broker 2 has no listener INNER" in caplog.text)

    run(scenario, other)


def test_partitions_are_shared_out_over_fetchers_and_again_when_their_number_changes() -> None:
    two = SETTINGS.with_changes({"num.replica.fetchers": "3"})

    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        partitions = [TopicPartition(f"topic-{index % 5}", index) for index in range(30)]
        led = [leader.lead(each) for each in partitions]
        replicas = follower.follow(leader, *partitions)

        async def all_follow() -> None:
            for each in led:
                leader.append(each, b"x")
            await until(lambda: all(replica.log == each.log for replica, each in zip(replicas, led, strict=True)))

        await all_follow()
        assert sorted(map(len, follower.fetchers._fetchers.values())) == [10, 10, 10]
        follower.fetchers.update_settings(SETTINGS)
        await all_follow()
        assert [len(each) for each in follower.fetchers._fetchers.values()] == [30]
        follower.fetchers.update_settings(SETTINGS.with_changes({"num.replica.fetchers": "2"}))
        await all_follow()
        assert sum(map(len, follower.fetchers._fetchers.values())) == 30

    run(scenario, two)


def test_with_nothing_to_follow_nothing_is_left() -> None:
    async def scenario(follower: Follower) -> None:
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

    run(scenario)


@pytest.mark.parametrize("turns", range(40))
def test_following_can_be_closed_at_any_await(turns: int) -> None:
    """Method: partitions with records, errors, a lost place and something to settle; closed after so many turns of the loop."""

    async def scenario(follower: Follower) -> None:
        leader = follower.leader()
        led = [leader.lead(each) for each in (P0, P1, P2)]
        led[1].error = OffsetOutOfRange.code
        led[2].error = NotLeaderOrFollower.code
        for each in led:
            leader.append(each, b"x")
        follower.replicas[P0] = Replica()
        follower.replicas[P0].must_settle = True
        replicas = follower.follow(leader, P0, P1, P2)
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(follower.fetchers.close(), 20)
        ends = [each.log.end for each in replicas]
        for each in led:
            each.error = 0
            leader.append(each, b"y")
        follower.follow(leader, P0)
        await asyncio.sleep(0.005)
        assert [each.log.end for each in replicas] == ends

    run(scenario)

"""Following when something fails: a partition, a session, a connection, a leader, a disk.

The fetch waits at the leader for longer than a test may take, so nothing here passes because a wait was over.
"""

from __future__ import annotations

import logging

import pytest
from tests.loops import until

from ottla.broker.replication import fetch_lane
from ottla.config.broker import BrokerSettings
from ottla.errors import (
    FetchSessionIdNotFound,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownServerError,
)

from .followers import P0, P1, Follower, following, named, until_equal, waits
from .leaders import SETTINGS, Led, Replica


async def test_an_error_of_one_partition_keeps_only_that_one_back(follower: Follower) -> None:
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


async def test_a_leader_that_does_not_know_of_it_yet_is_asked_again_soon() -> None:
    """Follower and leader are told by the same controller, and no one says which first. Method: the longest wait is a minute."""
    slow = SETTINGS.from_properties({"broker.id": "1", "replica.fetch.backoff.ms": "1000"})
    async with following(slow) as follower:
        leader = follower.leader()
        led = leader.lead(P0, epoch=3)
        (replica,) = follower.follow(leader, P0, epoch=4)
        await until(lambda: len(leader.requests) >= 2)
        led.epoch = 4
        leader.append(led, b"a")
        await until_equal(replica, led)


async def test_a_fenced_partition_waits_for_the_controller(follower: Follower) -> None:
    leader = follower.leader()
    fenced, good = leader.lead(P0, epoch=6), leader.lead(P1, epoch=5)
    replicas = follower.follow(leader, P0, P1, epoch=5)
    leader.append(good, b"x")
    await until_equal(replicas[1], good)
    known = len(leader.requests)
    for _ in range(5):
        leader.append(good, b"x")
        await until_equal(replicas[1], good)
    assert all(0 not in named(request) for request in leader.requests[known:])
    leader.append(fenced, b"y")
    follower.follow(leader, P0, epoch=6)
    await until_equal(replicas[0], fenced)
    # Told the same epoch again, a partition that was given up is tried again.
    fenced.epoch = 7
    leader.append(fenced, b"z")
    await until(lambda: any(followed.is_given_up for followed in follower.fetchers._fetchers[leader.broker_id, 0]._followed.values()))
    fenced.epoch = 6
    follower.follow(leader, P0, epoch=6)
    await until_equal(replicas[0], fenced)


async def test_a_log_that_parted_from_its_leaders_is_cut_where_it_parted(follower: Follower) -> None:
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
    assert [record.value for record in replica.log.records] == [b"a", b"b", b"c", b"d"]


async def test_a_follower_whose_records_are_all_gone_at_the_leader_begins_where_that_begins(follower: Follower) -> None:
    leader = follower.leader()
    led, other = leader.lead(P0), leader.lead(P1)
    led.log.append(0, *(b"%d" % number for number in range(20)))
    led.log.begin_at(15)
    led.log.high_watermark = 20
    replica = follower.replicas[P0] = Replica()
    replica.log.append(0, b"0", b"1")
    replicas = follower.follow(leader, P0, P1)
    await until_equal(replica, led)
    assert leader.listed == 2
    leader.append(other, b"x")
    await until_equal(replicas[1], other)


async def test_a_follower_that_has_more_than_its_leader_is_cut_to_it(follower: Follower) -> None:
    """After an unclean election. The leader says so by an error where it knows no epochs of what it has."""
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


async def test_a_place_that_can_not_be_found_is_looked_for_again_later(follower: Follower) -> None:
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


@pytest.mark.parametrize("slots", [0, 100])
async def test_a_lost_session_begins_anew(follower: Follower, slots: int) -> None:
    """With no slots the leader keeps no session at all, and every request names everything."""
    leader = follower.leader(slots=slots)
    led = [leader.lead(partition) for partition in (P0, P1)]
    replicas = follower.follow(leader, P0, P1)
    for _ in range(3):
        leader.sessions._sessions.clear()
        for each, replica in zip(led, replicas, strict=True):
            leader.append(each, b"x")
            await until_equal(replica, each)
    refused = [request for request in leader.requests if request.session_epoch > 0 and request.session_id not in leader.sessions._sessions]
    assert bool(refused) == bool(slots)
    if not slots:
        assert {tuple(sorted(named(request))) for request in leader.requests} == {(0, 1)}


async def test_a_leader_that_refuses_every_session_is_not_asked_without_a_pause(
    follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        leader = follower.leader()
        led = leader.lead(P0)
        leader.session_error = FetchSessionIdNotFound("as if it had none")
        (replica,) = follower.follow(leader, P0)
        await until(lambda: len(leader.requests) >= 8)
        assert follower.fetchers._fetchers[leader.broker_id, 0]._lanes[0]._failures >= 7
        leader.session_error = None
        leader.append(led, b"a")
        await until_equal(replica, led)
    said = [record.getMessage() for record in caplog.records if "FetchSessionIdNotFound" in record.getMessage()]
    assert len(said) == 1


async def test_a_leader_that_dies_and_comes_back_is_followed_again(follower: Follower, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
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
    told = [record.getMessage() for record in caplog.records if record.name == fetch_lane.__name__]
    assert len(told) == 2, told
    assert "was killed; retrying" in told[0]
    assert "fetching again after" in told[1]


async def test_a_leader_that_falls_silent_is_connected_to_anew() -> None:
    """replica.socket.timeout.ms: the leader was stopped, or its answers are lost on the way."""
    impatient = BrokerSettings.from_properties(
        {"broker.id": "1", "replica.socket.timeout.ms": "50", "replica.fetch.wait.max.ms": "20", "replica.fetch.backoff.ms": "20"}
    )
    async with following(impatient) as follower:
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


@pytest.mark.parametrize("damage", ["another correlation id", "cut", "rubbish"])
async def test_an_answer_that_is_none_ends_the_connection(follower: Follower, damage: str) -> None:
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


async def test_damaged_records_are_not_taken_and_asked_for_again(follower: Follower, caplog: pytest.LogCaptureFixture) -> None:
    leader = follower.leader()
    led, good = leader.lead(P0), leader.lead(P1)
    led.is_damaged = True
    leader.append(led, b"a")
    replicas = follower.follow(leader, P0, P1)
    await until(lambda: sum("are corrupt" in record.getMessage() for record in caplog.records) >= 2)
    assert replicas[0].log.end == 0
    leader.append(good, b"b")
    await until_equal(replicas[1], good)
    led.is_damaged = False
    await until_equal(replicas[0], led)


async def failing_beside_another(follower: Follower, error: Exception) -> tuple[Replica, Led]:
    """A replica whose appends fail, and what it is to have; another one of the same leader has all."""
    leader = follower.leader()
    led, good = leader.lead(P0), leader.lead(P1)

    def fail() -> None:
        raise error

    follower.replicas[P0] = Replica()
    follower.replicas[P0].before_append = fail
    leader.append(led, b"a")
    leader.append(good, b"b")
    failing, other = follower.follow(leader, P0, P1)
    await until_equal(other, good)
    return failing, led


async def test_a_partition_that_fails_in_an_unforeseen_way_harms_no_other(follower: Follower, caplog: pytest.LogCaptureFixture) -> None:
    failing, led = await failing_beside_another(follower, ZeroDivisionError("a mistake of ours"))
    await until(lambda: "a mistake of ours" in caplog.text)
    failing.before_append = lambda: None
    await until_equal(failing, led)


async def test_a_full_disk_keeps_a_partition_back_until_there_is_room(follower: Follower) -> None:
    failing, led = await failing_beside_another(follower, KafkaStorageError("no space left on device"))
    failing.before_append = lambda: None
    await until_equal(failing, led)


async def test_a_leader_without_the_inter_broker_listener_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    other = BrokerSettings.from_properties(
        {"broker.id": "1", "listeners": "INNER://:0", "listener.security.protocol.map": "INNER:PLAINTEXT"}
        | {"inter.broker.listener.name": "INNER"}
    )
    async with following(other) as follower:
        leader = follower.leader()
        follower.follow(leader, P0)
        await until(lambda: "broker 2 has no listener INNER" in caplog.text)

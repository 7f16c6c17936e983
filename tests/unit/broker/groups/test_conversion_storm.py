"""Members of both protocols come, go and fail over at random, and the group changes from one kind into the other and back.

Whatever happens in between, nothing breaks and no partition has two owners, and when it stops every partition is read by one member.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.broker.groups.consumer.clients import subscription
from tests.unit.broker.groups.known_topics import KnownTopics
from tests.unit.broker.groups.logs_in_memory import MovingLog
from tests.unit.broker.groups.offsets_log import SETTINGS, OffsetsLog, loaded

from ottla.broker.groups.classic.effects import Joined, JoinedMember
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.classic.joining import Join
from ottla.broker.groups.classic.member import Protocol
from ottla.broker.groups.classic.membership import Leaver, Sync
from ottla.broker.groups.consumer.assignment import assignment_of, partitions_of
from ottla.broker.groups.consumer.embedded import read_assignment, read_subscription, write_assignment
from ottla.broker.groups.consumer.group import ConsumerGroup, ConsumerLimits
from ottla.broker.groups.consumer.heartbeat import Heartbeat, HeartbeatAnswer
from ottla.broker.groups.shard import GroupShard
from ottla.errors import (
    ApiError,
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    IllegalGeneration,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from ottla.testing.clock import ManualClock

PARTITIONS = 6


class Storm:
    """One group and where it is coordinated at the moment."""

    def __init__(self, log: OffsetsLog | MovingLog | None = None, max_size: int = 100) -> None:
        self.topics = KnownTopics(clicks=PARTITIONS)
        self.log, self.clock = log or OffsetsLog(), ManualClock()
        self.shard: GroupShard
        self.kinds: list[str] = []
        self.epochs = 0
        limits = replace(SETTINGS.limits, max_size=max_size)
        self._settings = replace(SETTINGS, limits=limits, consumer_limits=ConsumerLimits(max_size=max_size))

    @property
    def partition_count(self) -> int:
        topic = self.topics.topic("clicks")
        assert topic is not None
        return len(topic.partitions)

    async def start(self) -> None:
        self.epochs += 1
        self.shard = await loaded(self.log, self.clock, epoch=self.epochs, topics=self.topics, settings=self._settings)

    def note_kind(self) -> None:
        group = self.shard.group("g")
        kind = "none" if group is None or not len(group) else "consumer" if isinstance(group, ConsumerGroup) else "classic"
        if not self.kinds or self.kinds[-1] != kind:
            self.kinds.append(kind)

    def check_owners(self, clients: Sequence[NewClient | OldClient]) -> None:
        """No partition has two owners, but for those of members that are out, or have been fenced, and have not heard of it."""
        group = self.shard.group("g")
        if group is None:
            return
        owners: dict[Any, str] = {}
        for client in clients:
            if not client.is_current(group):
                continue
            for partition in client.owned:
                former = owners.setdefault(partition, client.member_id)
                assert former == client.member_id, f"{partition} is {former}'s and {client.member_id}'s in {group.state}"

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds=seconds)
        entry = self.shard._groups.get("g")
        if entry is not None and entry.group.next_deadline_ms <= self.clock.monotonic() * 1000:
            if entry.timer is not None:
                entry.timer.cancel()
            self.shard._tick(entry)
        await settle()

    async def fail_over(self) -> None:
        self.shard.close()
        await settle()
        await self.start()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class NewClient:
    """Speaks the consumer protocol."""

    def __init__(self, storm: Storm, name: str, instance_id: str | None = None) -> None:
        self._storm = storm
        self.member_id = name
        self.instance_id = instance_id
        self._epoch = 0
        self._asked: asyncio.Future[HeartbeatAnswer] | None = None
        self._has_missed = False
        self.heard_s: list[float] = []  # when it was answered
        self.owned: set[Any] = set()

    @property
    def is_at_rest(self) -> bool:
        return True

    def is_current(self, group: Group | ConsumerGroup) -> bool:
        """Whether its next heartbeat would not be refused."""
        if isinstance(group, Group) or not group.has(self.member_id):
            return False
        position = group.get(self.member_id).position
        return self._epoch in (position.epoch, position.previous_epoch)

    async def step(self) -> None:
        if self._asked is None:
            joins = self._epoch == 0
            says_all = joins or self._has_missed
            more: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "names": frozenset({"clicks"})} if says_all else {}
            owned = {} if joins else assignment_of(self.owned)
            request = Heartbeat(self.member_id, self._epoch, instance_id=self.instance_id, owned=owned, **more)
            self._asked = asyncio.ensure_future(self._storm.shard.consumer_heartbeat("g", request))
            await settle()
        if not self._asked.done():
            return
        asked, self._asked = self._asked, None
        self._has_missed = True
        try:
            answer = asked.result()
        except (UnreleasedInstanceId, GroupMaxSizeReached):
            return  # it tries again
        except (FencedMemberEpoch, UnknownMemberId, GroupIdNotFound) as error:
            if isinstance(error, UnknownMemberId):
                since_s = self._storm.clock.monotonic() - 40
                assert len([at for at in self.heard_s if at > since_s]) < 3, f"{self.member_id} was put out though it lives"
            self._epoch, self.owned, self.heard_s = 0, set(), []
            return
        except ApiError as error:
            assert error.retriable, error
            return
        self._has_missed = False
        self.heard_s.append(self._storm.clock.monotonic())
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = set(partitions_of(answer.assignment))

    def loses_its_connection(self) -> None:
        if self._asked is not None:
            self._asked.cancel()
            self._asked, self._has_missed = None, True

    async def leave(self) -> None:
        await self._storm.shard.consumer_heartbeat("g", Heartbeat(self.member_id, -1, instance_id=self.instance_id))

    async def stop(self) -> None:
        """To be started again with the same group instance id."""
        await self._storm.shard.consumer_heartbeat("g", Heartbeat(self.member_id, -2, instance_id=self.instance_id))


class OldClient:
    """Speaks the classic protocol; when it leads, it deals out ranges."""

    def __init__(self, storm: Storm, name: str, instance_id: str | None = None) -> None:
        self._storm = storm
        self._name = name
        self.instance_id = instance_id
        self.member_id = ""
        self._generation = -1
        self._waiting: asyncio.Future[Any] | None = None
        self._is_joined = False
        self._count = 0  # of partitions, when it joined last
        self.owned: set[Any] = set()

    @property
    def is_at_rest(self) -> bool:
        """Whether it has joined, and has given nothing up since."""
        return self._is_joined

    def is_current(self, group: Group | ConsumerGroup) -> bool:
        """Whether it is a member, and of the right generation, or may be without knowing it yet."""
        if not group.has(self.member_id):
            return False
        generation = group.generation_id if isinstance(group, Group) else group.get(self.member_id).position.epoch
        return self._waiting is not None or not self._is_joined or self._generation == generation

    async def step(self) -> None:
        await settle()
        if self._waiting is not None:
            if not self._waiting.done():
                return
            answer, self._waiting = self._waiting.result(), None
            self._take(answer)
        try:
            if self._waiting is not None:
                return
            if self._is_joined and self._count == self._storm.partition_count:
                self._storm.shard.heartbeat("g", self.member_id, self.instance_id, self._generation)
            else:
                self._count = self._storm.partition_count
                data = subscription(frozenset({"clicks"}), self.owned, self._storm.topics)
                protocols = (Protocol("range", data),)
                is_static = self.instance_id is not None
                request = Join(
                    self.member_id, self.instance_id, self._name, "/h", 10_000, 60_000, "consumer", protocols, not is_static, True
                )
                self._waiting = self._storm.shard.join("g", request)
        except ApiError as error:
            self._refused(error)

    def _take(self, answer: Any) -> None:
        if answer.error is not None:
            if isinstance(answer.error, MemberIdRequired):
                self.member_id = answer.member_id
            else:
                self._refused(answer.error)
        elif isinstance(answer, Joined):
            self.member_id, self._generation = answer.member_id, answer.generation_id
            is_assigning = answer.leader == self.member_id and not answer.skip_assignment
            assignments = self._dealt(answer.members) if is_assigning else {}
            try:
                self._waiting = self._storm.shard.sync(
                    "g", Sync(self.member_id, self.instance_id, self._generation, assignments=assignments)
                )
            except ApiError as error:
                self._refused(error)
        else:
            topic = self._storm.topics.topic("clicks")
            assert topic is not None
            former = self.owned
            self.owned = {(topic.topic_id, click) for click in read_assignment(answer.assignment).get("clicks", ())}
            self._is_joined = former <= self.owned  # who has given something up joins again, so that another gets it

    def _dealt(self, members: Sequence[JoinedMember]) -> Mapping[str, bytes]:
        owned = {member.member_id: read_subscription(member.metadata).owned.get("clicks", frozenset()) for member in members}
        shares = {}
        for index, member_id in enumerate(owned):
            others = frozenset().union(*(some for other, some in owned.items() if other != member_id))
            shares[member_id] = frozenset(range(self._storm.partition_count)[index :: len(members)]) - others
        return {member_id: write_assignment({"clicks": some} if some else {}, 1) for member_id, some in shares.items()}

    def _refused(self, error: ApiError) -> None:
        self._is_joined = False
        if isinstance(error, UnknownMemberId | FencedInstanceId | GroupMaxSizeReached):
            self.member_id, self.owned = "", set()
        elif isinstance(error, IllegalGeneration):
            self.owned = set()
        else:
            assert isinstance(error, RebalanceInProgress) or error.retriable, error

    def loses_its_connection(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting, self._is_joined = None, False

    async def leave(self) -> None:
        self._storm.shard.leave("g", [Leaver(self.member_id, self.instance_id)])

    async def stop(self) -> None:
        """A static member says nothing when it stops."""


async def storm_of(seed: int) -> list[str]:
    dice, storm = random.Random(seed), Storm()
    await storm.start()
    clients: list[NewClient | OldClient] = []
    kinds: list[type[NewClient | OldClient]] = [NewClient, OldClient]
    for number in range(150):
        match dice.choices(["step", "come", "go", "restart", "fail over", "time"], [30, 3, 2, 2, 1, 3])[0]:
            case "come" if len(clients) < 5:
                name = f"c{number}"
                clients.append(dice.choice(kinds)(storm, name, dice.choice([None, f"i{number}"])))
            case "go" if clients:
                gone = clients.pop(dice.randrange(len(clients)))
                if dice.random() < 0.7:  # or it dies
                    with contextlib.suppress(ApiError):  # it may have been put out before
                        await gone.leave()
            case "restart" if clients and clients[-1].instance_id:
                stopped = clients.pop()
                with contextlib.suppress(ApiError):
                    await stopped.stop()
                clients.insert(0, dice.choice(kinds)(storm, f"c{number}", stopped.instance_id))
            case "fail over":
                await storm.fail_over()
            case "time":
                await storm.pass_time(dice.choice([0.1, 3, 9]))
            case _ if clients:
                await dice.choice(clients).step()
        storm.note_kind()
        storm.check_owners(clients)
    if not clients:
        clients.append(NewClient(storm, "last"))
    for _ in range(60):
        for client in clients:
            await client.step()
        await storm.pass_time(2)
    storm.note_kind()
    found = [partition for client in clients for _, partition in client.owned]
    group = storm.shard.group("g")
    assert isinstance(group, (Group, ConsumerGroup))
    assert sorted(found) == list(range(PARTITIONS)), f"{group.state} with {set(group.members)}: {[client.owned for client in clients]}"
    assert len(group) == len(clients)
    assert isinstance(group, ConsumerGroup) == any(isinstance(client, NewClient) for client in clients)
    storm.shard.close()
    await settle()
    return storm.kinds


@pytest.mark.parametrize("seed", [*range(10), 43, 350])
def test_a_storm_of_both_protocols_ends_with_every_partition_read_once(seed: int) -> None:
    asyncio.run(storm_of(seed))


def test_the_storms_turn_groups_into_the_other_kind() -> None:
    """That the storms are worth something: live groups went both ways."""
    kinds = [asyncio.run(storm_of(seed)) for seed in range(12)]
    steps = [step for kind in kinds for step in itertools.pairwise(kind)]
    assert ("classic", "consumer") in steps
    assert ("consumer", "classic") in steps

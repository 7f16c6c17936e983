"""The commands of the groups' scenarios: one group at its coordinator, what members ask, and what they are told.

group [k=v]                     a coordinator that knows nothing; delay= size= of classic groups, policy= of conversion
topic clicks 4                  a topic is made, or gets more partitions; `topic clicks gone` deletes it
wait 3s                         time passes, and with it what is due
fail-over                       another coordinator reads the log and continues
show                            the group

of the classic protocol, where a member is called by a name of the scenario:
join a [range,roundrobin] [instance=i] [has=clicks:0,1]
sync a [a=clicks:0,1 b=clicks:2,3]
heartbeat a
leave a
commit a clicks-0 7             also of the consumer protocol

of the consumer protocol:
beat a [topics=clicks] [regex=c.*] [instance=i] [assignor=range] [has=clicks:0,1] [epoch=0]
depart a [for-a-while]

An answer that has to wait is printed by the command that brings it about.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

from tests.unit.broker.groups.known_topics import KnownTopics
from tests.unit.broker.groups.offsets_log import KEY, SETTINGS, OffsetsLog

from ottla.broker.groups.classic.effects import Joined, Synced
from ottla.broker.groups.classic.joining import Join
from ottla.broker.groups.classic.member import Protocol
from ottla.broker.groups.classic.membership import Leaver, Sync
from ottla.broker.groups.consumer.assignment import Assignment
from ottla.broker.groups.consumer.embedded import read_assignment, write_assignment
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.heartbeat import Heartbeat
from ottla.broker.groups.consumer.member import LEAVES, LEAVES_FOR_A_WHILE
from ottla.broker.groups.records import CommittedOffset
from ottla.broker.groups.shard import GroupShard
from ottla.errors import ApiError, MemberIdRequired, UnknownMemberId
from ottla.lifecycle import offload_nothing
from ottla.model import TopicPartition
from ottla.testing.clock import ManualClock

SESSION_MS = 10_000
REBALANCE_MS = 60_000


class GroupCommands:
    """One group. Each command gives the lines that it prints."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._topics = KnownTopics()
        self._do_group()

    def close(self) -> None:
        self._shard.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def execute(self, line: str) -> Iterator[str]:
        """Executes a command."""
        name, *words = line.split()
        method = getattr(self, "_do_" + name.replace("-", "_"))
        positional = [word for word in words if "=" not in word]
        named = dict(word.split("=", 1) for word in words if "=" in word)
        yield from self._loop.run_until_complete(self._run(method, positional, named))

    async def _run(self, method: Any, positional: list[str], named: dict[str, str]) -> list[str]:
        before = self._state()
        try:
            lines = method(*positional, **named) if named or positional else method()
            lines = list(await lines if inspect.iscoroutine(lines) else lines or ())
        except ApiError as error:
            lines = [f"answer: {type(error).__name__}"]
            if isinstance(error, UnknownMemberId) and positional:
                self._names.pop(positional[0], None)
        await self._settle()
        lines += self._told()
        after = self._state()
        return lines + ([f"group: {before} -> {after}"] if before != after else [])

    async def _settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    # The coordinator.

    def _do_group(self, delay: str = "0", size: str = "1000", policy: str = "bidirectional") -> Iterable[str]:
        limits = replace(SETTINGS.limits, initial_rebalance_delay_ms=int(delay), max_size=int(size))
        consumer_limits = replace(
            SETTINGS.consumer_limits,
            max_size=int(size),
            can_upgrade=policy in ("bidirectional", "upgrade"),
            can_downgrade=policy in ("bidirectional", "downgrade"),
        )
        self._settings = replace(SETTINGS, limits=limits, consumer_limits=consumer_limits)
        self._log, self._clock = OffsetsLog(), ManualClock()
        self._unique = itertools.count(1)
        self._names: dict[str, str] = {}  # of a scenario, by member id
        self._epochs: dict[str, int] = {}
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._epoch = 0
        self._shard = self._loaded()
        return ()

    def _loaded(self) -> GroupShard:
        def unique() -> UUID:
            return UUID(int=next(self._unique))

        arguments: Any = (KEY, self._epoch, self._log, self._clock, unique, self._settings, self._topics)
        shard = GroupShard(*arguments)
        shard.topics_known()
        loading = shard.load(offload_nothing)
        try:
            loading.send(None)  # nothing in it waits for anything
        except StopIteration:
            return shard
        raise AssertionError("the log had it wait")

    async def _do_fail_over(self) -> Iterable[str]:
        self._shard.close()
        await self._settle()
        self._epoch += 1
        self._shard = self._loaded()
        return ()

    def _do_topic(self, name: str, partitions: str) -> Iterable[str]:
        if partitions == "gone":
            self._topics.delete(name)
        else:
            self._topics.make(name, int(partitions))
        return ()

    async def _do_wait(self, duration: str) -> Iterable[str]:
        left_ms = int(duration.removesuffix("s")) * 1000
        end_ms = int(self._clock.monotonic() * 1000) + left_ms
        while True:
            group = self._shard.group("g")
            now_ms = int(self._clock.monotonic() * 1000)
            due_ms = end_ms if group is None else min(end_ms, max(now_ms, group.next_deadline_ms))
            self._clock.advance(seconds=(due_ms - now_ms) / 1000)
            if due_ms >= end_ms and (group is None or group.next_deadline_ms > end_ms):
                return ()
            entry = self._shard._groups.get("g")
            assert entry is not None
            self._shard._tick(entry)
            await self._settle()

    # The classic protocol.

    async def _do_join(self, name: str, protocols: str = "range", instance: str | None = None, has: str = "") -> Iterable[str]:
        data = _subscription(("clicks",), _partitions(has))
        request = Join(
            self._id(name),
            instance,
            name,
            "/host",
            SESSION_MS,
            REBALANCE_MS,
            "consumer",
            tuple(Protocol(protocol, data) for protocol in protocols.split(",")),
            requires_known_member_id=instance is None,
        )
        answer = self._shard.join("g", request)
        await self._settle()
        if answer.done() and isinstance(answer.result().error, MemberIdRequired):
            self._names[name] = answer.result().member_id
            answer = self._shard.join("g", replace(request, member_id=answer.result().member_id))
        self._answers[name] = answer
        return ()

    async def _do_sync(self, name: str, **assigned: str) -> Iterable[str]:
        assignments = {self._id(each): write_assignment(_partitions(some), 1) for each, some in assigned.items()}
        self._answers[name] = self._shard.sync("g", Sync(self._id(name), None, self._epochs.get(name, -1), assignments=assignments))
        return ()

    def _do_heartbeat(self, name: str) -> Iterable[str]:
        self._shard.heartbeat("g", self._id(name), None, self._epochs.get(name, -1))
        return ["answer: ok"]

    def _do_leave(self, name: str = "", instance: str | None = None) -> Iterable[str]:
        (outcome,) = self._shard.leave("g", [Leaver(self._id(name) if name else "", instance)])
        return ["answer: ok" if outcome is None else f"answer: {type(outcome).__name__}"]

    async def _do_commit(self, name: str, partition: str, offset: str) -> Iterable[str]:
        topic, _, number = partition.rpartition("-")
        key = TopicPartition(topic, int(number))
        known = name != "nobody"
        epoch, member_id = (self._epochs.get(name, -1), self._id(name)) if known else (-1, "")
        outcomes = await self._shard.commit("g", epoch, member_id, None, {key: CommittedOffset(int(offset))}, knows_epochs=True)
        return ["answer: ok" if outcomes[key] is None else f"answer: {type(outcomes[key]).__name__}"]

    # The consumer protocol.

    async def _do_beat(
        self,
        name: str,
        topics: str | None = None,
        regex: str | None = None,
        instance: str | None = None,
        assignor: str | None = None,
        has: str | None = None,
        epoch: str | None = None,
    ) -> Iterable[str]:
        self._names.setdefault(name, name)
        said = int(epoch) if epoch is not None else self._epochs.get(name, 0)
        joins = said == 0
        names = None if topics is None else frozenset(topics.split(","))
        request = Heartbeat(
            name,
            said,
            name,
            "/host",
            instance,
            rebalance_timeout_ms=REBALANCE_MS if joins else -1,
            names=frozenset() if joins and names is None and regex is None else names,
            regex=regex,
            assignor=assignor,
            owned={} if joins else None if has is None else self._by_id(_partitions(has)),
        )
        answer = await self._shard.consumer_heartbeat("g", request)
        self._epochs[name] = answer.member_epoch
        given = "" if answer.assignment is None else f", has {self._listed(answer.assignment)}"
        return [f"answer: epoch {answer.member_epoch}{given}"]

    async def _do_depart(self, name: str, how: str = "", instance: str | None = None) -> Iterable[str]:
        epoch = LEAVES_FOR_A_WHILE if how else LEAVES
        answer = await self._shard.consumer_heartbeat("g", Heartbeat(name, epoch, instance_id=instance))
        self._epochs.pop(name, None)
        return [f"answer: epoch {answer.member_epoch}"]

    # Telling.

    def _told(self) -> list[str]:
        lines = []
        for name, answer in list(self._answers.items()):
            if not answer.done():
                continue
            del self._answers[name]
            told = answer.result()
            if told.error is not None:
                lines.append(f"  to {name}: {type(told.error).__name__}")
                if isinstance(told.error, UnknownMemberId):
                    self._names.pop(name, None)
            elif isinstance(told, Joined):
                self._names[name] = told.member_id
                self._epochs[name] = told.generation_id
                leads = f", leads {' '.join(self._called(member.member_id) for member in told.members)}" if told.members else ""
                lines.append(f"  to {name}: joined generation {told.generation_id} with {told.protocol_name}{leads}")
            elif isinstance(told, Synced):
                lines.append(f"  to {name}: has {_shown(read_assignment(told.assignment))}")
        return lines

    def _do_show(self) -> Iterable[str]:
        group = self._shard.group("g")
        if group is None:
            yield "no group"
        elif isinstance(group, ConsumerGroup):
            yield f"consumer group, {group.state.value}, epoch {group.epoch}, target of epoch {group.assignment_epoch} by {group.assignor}"
            for member_id, member in sorted(group.members.items(), key=lambda item: self._called(item[0])):
                position = member.position
                gives_up = f", gives up {self._listed(position.revoking)}" if position.revoking else ""
                how = "classic " if member.is_classic else ""
                yield (
                    f"  {how}{self._called(member_id)}: epoch {position.epoch}, {position.state.name.lower()},"
                    f" has {self._listed(position.assigned)}{gives_up}, is to have {self._listed(group.target(member_id))}"
                )
        else:
            leader = "nobody" if group.leader_id is None else self._called(group.leader_id)
            yield f"classic group, {group.state.value}, generation {group.generation_id}, {group.protocol_name}, led by {leader}"
            for member_id, each in group.members.items():
                waits = ", joining" if each.is_awaiting_join else ", syncing" if each.is_awaiting_sync else ""
                yield f"  {self._called(member_id)}: has {_shown(read_assignment(each.assignment))}{waits}"
        offsets = self._shard.offsets("g") if group is None else self._shard._groups.get("g").offsets  # type: ignore[union-attr]
        for partition, committed in sorted(offsets.items()):
            yield f"  {partition}: {committed.offset} is committed"

    def _state(self) -> str:
        try:
            group = self._shard.group("g")
        except (AttributeError, ApiError):
            return "none"
        return "none" if group is None else f"{'consumer' if isinstance(group, ConsumerGroup) else 'classic'} {group.state.value}"

    def _id(self, name: str) -> str:
        return self._names.get(name, "")

    def _called(self, member_id: str) -> str:
        return next((name for name, each in self._names.items() if each == member_id), member_id)

    def _by_id(self, partitions: dict[str, frozenset[int]]) -> Assignment:
        found = {}
        for name, numbers in partitions.items():
            topic = self._topics.topic(name)
            assert topic is not None, name
            found[topic.topic_id] = numbers
        return found

    def _listed(self, assignment: Assignment) -> str:
        return _shown({self._topics.topic_name(topic_id) or "a deleted topic": some for topic_id, some in assignment.items()})


def _partitions(text: str) -> dict[str, frozenset[int]]:
    """`clicks:0,1;views:0`; nothing for `nothing`."""
    if text in ("", "nothing"):
        return {}
    pairs = (word.split(":") for word in text.split(";"))
    return {topic: frozenset(map(int, numbers.split(","))) for topic, numbers in pairs}


def _shown(partitions: Any) -> str:
    return ";".join(f"{topic}:{','.join(map(str, sorted(some)))}" for topic, some in sorted(partitions.items())) or "nothing"


def _subscription(topics: tuple[str, ...], owned: dict[str, frozenset[int]]) -> bytes:
    def string(text: str) -> bytes:
        return struct.pack(">h", len(text)) + text.encode()

    data = struct.pack(">hi", 1, len(topics)) + b"".join(map(string, topics)) + struct.pack(">ii", -1, len(owned))
    for topic, numbers in sorted(owned.items()):
        data += string(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *sorted(numbers))
    return data

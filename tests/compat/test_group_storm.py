"""Rebalance storms: a hundred members, a fifth of which goes while as many come, again and again; in both protocols.

The members are connections that speak the protocol by hand: a hundred real clients would measure their threads.
"""

from __future__ import annotations

import asyncio
import io
import struct
import time
from typing import Any
from uuid import UUID

from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest, TopicPartitions
from kio.schema.consumer_group_heartbeat.v1.response import ConsumerGroupHeartbeatResponse
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32Timedelta
from tests.bench import wire
from tests.bench.group_members import Member, rebalance, wait_for_coordinator
from tests.compat.quiet import quiet
from tests.compat.test_consumer_protocol import SETTINGS

from ottla.testing import EmbeddedCluster

MEMBERS = 100
PARTITIONS = 250
COME_AND_GO = 20
ROUNDS = 4
SECONDS = 60.0
TOPICS = {"storm": PARTITIONS, "bench": 1}  # the second is what `wait_for_coordinator` commits an offset of
LEAVE_GROUP = 13
HEARTBEAT_KEY = 68

_write = entity_writer(ConsumerGroupHeartbeatRequest)
_read = entity_reader(ConsumerGroupHeartbeatResponse)


def test_a_hundred_classic_members_come_and_go() -> None:
    with EmbeddedCluster(topics=TOPICS) as cluster:
        port = int(cluster.bootstrap_servers.rpartition(":")[2])
        seconds = asyncio.run(classic_storm(port))
        assert max(seconds) < SECONDS / 2, seconds
        found = described(cluster.bootstrap_servers, "classic-storm")
        assert len(found) == MEMBERS
        assert sorted(partition for partitions in found for partition in partitions) == list(range(PARTITIONS))


async def classic_storm(port: int) -> list[float]:
    group, topic = b"classic-storm", b"storm"
    await wait_for_coordinator(port, b"probe-" + group)
    members = [await Member.connect(port) for _ in range(MEMBERS)]
    seconds = []
    try:
        async with asyncio.timeout(SECONDS * 2):
            seconds.append(await rebalance(members, group, topic, PARTITIONS))
            for _ in range(ROUNDS):
                gone, members = members[:COME_AND_GO], members[COME_AND_GO:]
                await asyncio.gather(*(leave(member, group) for member in gone))
                members += [await Member.connect(port) for _ in range(COME_AND_GO)]
                seconds.append(await rebalance(members, group, topic, PARTITIONS))
            assert len({member.generation_id for member in members}) == 1
    finally:
        for member in members:
            member.close()
    return seconds


async def leave(member: Member, group: bytes) -> None:
    answer = await member.ask(wire.frame(LEAVE_GROUP, 1, wire.string(group) + wire.string(member.member_id)))
    assert wire.INT16.unpack_from(answer, len(answer) - 2)[0] == 0
    member.close()


def described(address: str, group: str) -> list[list[int]]:
    """What the coordinator says that each member reads."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": address, **quiet()})
    found = admin.describe_consumer_groups([group], request_timeout=60)[group].result(90)
    assert found.state.name == "STABLE"
    return [[partition.partition for partition in member.assignment.topic_partitions] for member in found.members]


def test_a_hundred_members_of_the_consumer_protocol_come_and_go() -> None:
    with EmbeddedCluster(settings=SETTINGS, topics=TOPICS) as cluster:
        port = int(cluster.bootstrap_servers.rpartition(":")[2])
        seconds = asyncio.run(consumer_storm(port))
        assert max(seconds) < SECONDS / 2, seconds
        found = described(cluster.bootstrap_servers, "consumer-storm")
        assert len(found) == MEMBERS
        assert sorted(partition for partitions in found for partition in partitions) == list(range(PARTITIONS))
        assert {len(owned) for owned in found} == {PARTITIONS // MEMBERS, PARTITIONS // MEMBERS + 1}


class ConsumerMember:
    """A member of the consumer protocol on one connection. `readers` is who reads what, as the members see it."""

    def __init__(self, member_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, readers: dict[Any, str]) -> None:
        self.member_id = member_id
        self.epoch = 0
        self.owned: set[tuple[UUID, int]] = set()
        self._reader = reader
        self._writer = writer
        self._readers = readers

    @classmethod
    async def connect(cls, port: int, member_id: str, readers: dict[Any, str]) -> ConsumerMember:
        return cls(member_id, *await asyncio.open_connection("127.0.0.1", port), readers)

    async def beat(self, epoch: int | None = None) -> None:
        """One heartbeat, and what follows from its answer."""
        joins = self.epoch == 0
        by_topic: dict[UUID, list[int]] = {}
        for topic_id, partition in sorted(self.owned):
            by_topic.setdefault(topic_id, []).append(partition)
        request: Any = ConsumerGroupHeartbeatRequest
        out = io.BytesIO()
        _write(
            out,
            request(
                group_id="consumer-storm",
                member_id=self.member_id,
                member_epoch=self.epoch if epoch is None else epoch,
                rebalance_timeout=i32Timedelta.parse(_milliseconds(60_000 if joins else -1)),
                subscribed_topic_names=("storm",) if joins else None,
                topic_partitions=tuple(TopicPartitions(topic_id=each, partitions=tuple(some)) for each, some in by_topic.items()),  # type: ignore[arg-type]
            ),
        )
        head = struct.pack(">hhihB", HEARTBEAT_KEY, 1, 1, -1, 0)
        self._writer.write(struct.pack(">i", len(head) + len(out.getvalue())) + head + out.getvalue())
        frame = await self._reader.readexactly(struct.unpack(">i", await self._reader.readexactly(4))[0])
        answer, _ = _read(frame, 5)
        assert int(answer.error_code) == 0, (answer.error_code, answer.error_message)
        if epoch is not None:
            self.owned = self._now_reads(set())
            return
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = self._now_reads(
                {
                    (topic_partition.topic_id, one)
                    for topic_partition in answer.assignment.topic_partitions
                    for one in topic_partition.partitions
                }
            )

    def _now_reads(self, partitions: set[Any]) -> set[Any]:
        for lost in self.owned - partitions:
            del self._readers[lost]
        for partition in partitions - self.owned:
            assert partition not in self._readers, f"{partition} is read by {self._readers[partition]} and {self.member_id}"
            self._readers[partition] = self.member_id
        return partitions

    def close(self) -> None:
        self._writer.close()


def _milliseconds(count: int) -> Any:
    from datetime import timedelta

    return timedelta(milliseconds=count)


async def consumer_storm(port: int) -> list[float]:
    await wait_for_coordinator(port, b"probe-consumer-storm")
    readers: dict[Any, str] = {}
    members = [await ConsumerMember.connect(port, f"m{index}", readers) for index in range(MEMBERS)]
    seconds = []
    try:
        async with asyncio.timeout(SECONDS * 2):
            seconds.append(await settled(members, readers))
            for number in range(ROUNDS):
                gone, members = members[:COME_AND_GO], members[COME_AND_GO:]
                new = [await ConsumerMember.connect(port, f"n{number}-{index}", readers) for index in range(COME_AND_GO)]
                members += new
                _, took = await asyncio.gather(asyncio.gather(*(member.beat(epoch=-1) for member in gone)), settled(members, readers))
                seconds.append(took)
                for leaving in gone:
                    leaving.close()
    finally:
        for member in members:
            member.close()
    return seconds


async def settled(members: list[ConsumerMember], readers: dict[Any, str]) -> float:
    """All send heartbeats until everybody is at one epoch and everything is read; the seconds that it took."""
    began = time.perf_counter()
    while True:
        await asyncio.gather(*(member.beat() for member in members))
        if (
            len(readers) == PARTITIONS
            and len({member.epoch for member in members}) == 1
            and {*readers.values()} == {m.member_id for m in members}
        ):
            return time.perf_counter() - began

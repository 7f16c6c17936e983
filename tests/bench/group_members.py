"""A group of many members on as many connections, encoded by hand: JoinGroup 3, SyncGroup 2, OffsetCommit 7, LeaveGroup 1.

Runs as a process of its own (`run_module`). It measures, from the first request of a rebalance to the last answer, how
long the whole group takes to be assigned again; and how many offsets are committed in a second.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any

from tests.bench import wire
from tests.bench.processes import cpu_seconds

OFFSET_COMMIT = 8
JOIN_GROUP = 11
SYNC_GROUP = 14
FIND_COORDINATOR = 10
RETRIABLE = (14, 15, 16)
REBALANCE_IN_PROGRESS = 27


@dataclass(frozen=True, slots=True)
class Members:
    """What to do. `rebalances` of the members first, then commits of `offsets_a_commit` for `commit_seconds`."""

    port: int
    server_pid: int
    topic: str
    members: int
    partitions: int
    rebalances: int
    commit_connections: int
    offsets_a_commit: int
    commit_seconds: float


class Member:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.member_id = b""
        self.generation_id = -1

    @classmethod
    async def connect(cls, port: int) -> Member:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 22))

    async def ask(self, request: bytes) -> bytes:
        self._writer.write(request)
        return await self.answer()

    async def answer(self) -> bytes:
        prefix = await self._reader.readexactly(4)
        return prefix + await self._reader.readexactly(wire.INT32.unpack(prefix)[0])

    async def join(self, group: bytes, topic: bytes) -> list[bytes]:
        """Joins; gives the ids of all members when this one leads."""
        subscription = struct.pack(">hi", 0, 1) + wire.string(topic) + wire.INT32.pack(-1)
        body = wire.string(group) + struct.pack(">ii", 60_000, 60_000) + wire.string(self.member_id) + wire.string(b"consumer")
        body += wire.INT32.pack(1) + wire.string(b"range") + wire.INT32.pack(len(subscription)) + subscription
        reader = wire.Reader(await self.ask(wire.frame(JOIN_GROUP, 3, body)), 12)
        error_code = reader.int16()
        if error_code:
            raise wire.UnexpectedAnswer(f"JoinGroup answered with error {error_code}")
        self.generation_id = reader.int32()
        reader.string()
        leader = reader.string()
        self.member_id = reader.string()
        members = []
        for _ in range(reader.int32()):
            members.append(reader.string())
            reader.take(reader.int32())
        return members if leader == self.member_id else []

    async def sync(self, group: bytes, assignments: list[tuple[bytes, bytes]]) -> int:
        """Syncs; gives how many bytes the assignment has, or none when the group rebalances again."""
        body = wire.string(group) + wire.INT32.pack(self.generation_id) + wire.string(self.member_id) + wire.INT32.pack(len(assignments))
        body += b"".join(wire.string(member_id) + wire.INT32.pack(len(each)) + each for member_id, each in assignments)
        reader = wire.Reader(await self.ask(wire.frame(SYNC_GROUP, 2, body)), 12)
        error_code = reader.int16()
        if error_code == REBALANCE_IN_PROGRESS:
            return 0
        if error_code:
            raise wire.UnexpectedAnswer(f"SyncGroup answered with error {error_code}")
        size = reader.int32()
        if not size:
            raise wire.UnexpectedAnswer("a member was assigned nothing")
        return size

    def close(self) -> None:
        self._writer.close()


def assignments(members: list[bytes], topic: bytes, partitions: int) -> list[tuple[bytes, bytes]]:
    """Each member's partitions, as the range assignor would deal them."""
    share, rest = divmod(partitions, len(members))
    dealt, first = [], 0
    for index, member_id in enumerate(sorted(members)):
        count = share + (index < rest)
        listed = struct.pack(f">i{count}i", count, *range(first, first + count))
        dealt.append((member_id, struct.pack(">hi", 0, 1) + wire.string(topic) + listed + wire.INT32.pack(-1)))
        first += count
    return dealt


async def rebalance(members: list[Member], group: bytes, topic: bytes, partitions: int) -> float:
    """Everybody joins and syncs; the seconds from the first request to the last answer."""

    async def one(member: Member) -> None:
        size = 0
        while not size:
            all_members = await member.join(group, topic)
            size = await member.sync(group, assignments(all_members, topic, partitions) if all_members else [])

    began = time.perf_counter()
    await asyncio.gather(*(one(member) for member in members))
    return time.perf_counter() - began


async def commit_for(member: Member, request: bytes, until: float, latencies: list[float]) -> int:
    """Commits again and again on one connection, one request at a time; gives how many requests."""
    count = 0
    while time.perf_counter() < until:
        began = time.perf_counter()
        answer = await member.ask(request)
        if wire.INT16.unpack_from(answer, len(answer) - 2)[0]:
            raise wire.UnexpectedAnswer("OffsetCommit answered with an error")
        latencies.append(time.perf_counter() - began)
        count += 1
    return count


def commit_request(group: bytes, topic: bytes, offsets: int) -> bytes:
    """A commit by no one in particular, as a consumer without a group's help would send it."""
    body = wire.string(group) + wire.INT32.pack(-1) + wire.string(b"") + wire.INT16.pack(-1)
    body += wire.INT32.pack(1) + wire.string(topic) + wire.INT32.pack(offsets)
    body += b"".join(struct.pack(">iqi", index, 1000 + index, -1) + wire.string(b"") for index in range(offsets))
    return wire.frame(OFFSET_COMMIT, 7, body)


async def wait_for_coordinator(port: int, group: bytes) -> None:
    """Until the offsets topic is there and its partition loaded."""
    member = await Member.connect(port)
    deadline = time.monotonic() + 60
    while True:
        answer = await member.ask(wire.frame(FIND_COORDINATOR, 1, wire.string(group) + b"\0"))
        error_code = wire.INT16.unpack_from(answer, 12)[0]
        if error_code == 0:
            probe = await member.ask(commit_request(group, b"bench", 1))
            error_code = wire.INT16.unpack_from(probe, len(probe) - 2)[0]
        if error_code == 0:
            break
        if error_code not in RETRIABLE or time.monotonic() > deadline:
            raise wire.UnexpectedAnswer(f"no coordinator of {group!r}: error {error_code}")
        await asyncio.sleep(0.05)
    member.close()


async def measure(what: Members) -> dict[str, Any]:
    topic = what.topic.encode()
    await wait_for_coordinator(what.port, b"probe")
    members = [await Member.connect(what.port) for _ in range(what.members)]
    seconds, cpu = [], []
    group = b"rebalancing"
    await wait_for_coordinator(what.port, group + b"-probe")
    for _ in range(what.rebalances + 1):
        before = cpu_seconds(what.server_pid)
        seconds.append(await rebalance(members, group, topic, what.partitions))
        cpu.append(cpu_seconds(what.server_pid) - before)
    for member in members:
        member.close()
    committers = [await Member.connect(what.port) for _ in range(what.commit_connections)]
    for index in range(what.commit_connections):
        await wait_for_coordinator(what.port, b"committing-%d" % index)
    latencies: list[float] = []
    before, began = cpu_seconds(what.server_pid), time.perf_counter()
    until = began + what.commit_seconds
    requests = [commit_request(b"committing-%d" % index, topic, what.offsets_a_commit) for index in range(len(committers))]
    pairs = zip(committers, requests, strict=True)
    counts = await asyncio.gather(*(commit_for(each, request, until, latencies) for each, request in pairs))
    elapsed = time.perf_counter() - began
    for committer in committers:
        committer.close()
    return {
        # The first has the members come one by one, before there is a group.
        "first_rebalance_seconds": seconds[0],
        "rebalance_seconds": seconds[1:],
        "rebalance_cpu_seconds": cpu[1:],
        "commit_requests": sum(counts) / elapsed,
        "commit_cpu_seconds": (cpu_seconds(what.server_pid) - before) / sum(counts),
        "commit_p99": sorted(latencies)[int(len(latencies) * 0.99)],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(Members(**json.loads(sys.argv[1]))))))  # noqa: T201  (the answer to who started this)

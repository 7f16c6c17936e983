"""Replicas of one partition over histories: requests that are late, come twice or are lost, brokers that stop and lose what was not synced.

Promised is that what was committed, and so acknowledged or seen, lies at its offset in the log of each later leader and of all in sync,
that no request waits for what has happened, and that after all this every replica is in sync again, with the same log.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.disk import recording
from tests.simulation.loop import VirtualLoop

from ottla.broker.controller import decisions
from ottla.broker.handlers.produce import DelayedProduce
from ottla.broker.replication.fetch_lane import Outcome, find_place, take_in
from ottla.broker.replication.fetch_queue import PartitionFetchState
from ottla.broker.replication.partition import ACKS_ALL, Partition
from ottla.interbroker.calls import NO_LOG, ElectionType
from ottla.model import NO_LEADER
from ottla.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.fetch_client import FetchedPartition
from ottla.record.batch import batches
from ottla.record.records import Record, build_batch, read_records

from .replicated_brokers import BROKERS, KEY, LAG_TIME_MAX_MS, Cluster, Host, produced

EVENTS: Final = (
    *("produce",) * 6,
    *("fetch",) * 8,
    *("ask", "ask", "ask", "answer", "answer", "answer", "late fetch", "repeat", "all fetch", "all fetch"),
    *("hear", "hear", "hear", "hear", "hear all", "hear all", "late copy", "late copy"),
    *("wait", "wait", "wait", "wait long", "flush", "checkpoint", "consume", "consume", "consume"),
    *("kill", "power", "stop", "start", "start", "start", "expire"),
    *("tails", "tails", "join unheard", "lag", "few", "settings late", "question", "question"),
    *("prefer", "prefer", "reassign", "reassign", "delete records", "delete records", "move", "min isr", "made again"),
)
PRODUCE_MS: Final = 20_000
MOST_BYTES: Final = 1 << 20
ROUNDS: Final = 25


class Flight(NamedTuple):
    """A follower's fetch."""

    host: Host
    life: int
    followed: PartitionFetchState
    asked: FetchPartition
    answer: asyncio.Future[FetchedPartition]


class History:
    """What happens, and what has to hold."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.random = cluster.random
        self.story = cluster.story
        self.flights: list[Flight] = []
        self.late: list[tuple[Host, int, FetchRequest]] = []  # a leader gets them when no one waits for an answer
        self.waiting: list[tuple[Host, int, asyncio.Future[Any]]] = []
        self.settings: dict[str, str] | None = None  # that the controller has yet to learn
        self.forget()

    def forget(self) -> None:
        """The topic is a new one."""
        self.committed: dict[int, bytes] = {}  # batches
        self.acknowledged: dict[int, bytes] = {}  # values
        self.deleted_up_to = 0
        self.looked: dict[Host, tuple[object, ...]] = {}
        self.high_watermarks: dict[tuple[Host, int, int], int] = {}

    def expect(self, holds: object, what: object) -> None:
        assert holds, [*self.story, what]

    # Looking.

    def look(self) -> None:
        changed = []
        for host in self.cluster.hosts.values():
            partition = host.partition
            if partition is None or partition.topic_id != self.cluster.topic_id:
                continue
            log, high_watermark = partition.log, partition.high_watermark
            self.expect(high_watermark <= log.log_end_offset, f"{host} has {high_watermark} committed")
            if partition.is_leader:
                key = host, host.life, partition.leader_epoch
                self.expect(high_watermark >= self.high_watermarks.get(key, 0), f"the high watermark of {host} goes back")
                self.high_watermarks[key] = high_watermark
            facts = log, log.log_start_offset, log.log_end_offset, log.truncations, high_watermark, self.cluster.state, len(self.committed)
            if self.looked.get(host) != facts:
                self.looked[host] = facts
                stored = stored_in(partition)
                changed.append((host, partition, stored))
                for offset, batch in stored.items():
                    # A replica that was away may have something else where the leader's log has begun behind it since.
                    if self.deleted_up_to < end_of(offset, batch) <= high_watermark:
                        self.commit(host, offset, batch)
        for host, partition, stored in changed:
            self.look_at(host, partition, stored)
        for offset, values in self.acknowledged.items():
            self.expect(values_of(self.committed.get(offset)) == values, f"acknowledged at {offset}, and not there")
        for host in self.cluster.hosts.values():
            for operation in host.waiting():
                self.expect(not operation.try_complete(), f"{operation} waits on {host} for what has happened")

    def look_at(self, host: Host, partition: Partition, stored: dict[int, bytes]) -> None:
        state, start = self.cluster.state, partition.log.log_start_offset
        counts = host.broker_id in (*state.isr, *state.eligible_leader_replicas) and not host.has_forgotten
        has_all = counts or self.cluster.leader is host
        self.expect(start <= self.deleted_up_to, f"{host} starts at {start}")
        for offset, batch in self.committed.items():
            end = end_of(offset, batch)
            if end > max(start, self.deleted_up_to) and (has_all or end <= partition.high_watermark):
                self.expect(stored.get(offset) == batch, f"{host} does not have the batch at {offset}: {partition.log}")

    def commit(self, host: Host, offset: int, batch: bytes) -> None:
        self.expect(self.committed.setdefault(offset, batch) == batch, f"{host} has another batch at {offset}")

    # Single events.

    async def step(self) -> None:
        event, host, cluster = self.random.choice(EVENTS), self.host(), self.cluster
        match event:
            case "produce":
                for _ in range(self.random.choice((1, 1, 1, 4))):
                    self.produce(self.leading(), self.random.choice((0, 1, -1, -1, -1)))
            case "fetch":
                await self.fetch(host)
            case "all fetch":
                for other in self.random.sample(list(cluster.hosts.values()), len(BROKERS)):
                    await self.fetch(other)
            case "ask" | "late fetch":
                await self.ask(host, is_late=event == "late fetch")
            case "answer":
                done = [flight for flight in self.flights if flight.answer.done()]
                if done:
                    await self.take_in(self.random.choice(done))
            case "repeat" if self.late:
                leader, life, request = self.random.choice(self.late)
                if leader.running is not None and leader.life == life:
                    self.story.append(f"a late fetch of {request.replica_id} at {leader}")
                    cluster.spawn(leader.fetch(request))
            case "hear":
                await self.hear(host)
            case "hear all":
                await self.hear_all()
            case "late copy" if host.taken and host.is_there and host.partition is not None:
                message = self.random.choice((host.taken[-1], self.random.choice(host.taken)))
                if message.topic_id == cluster.topic_id == host.taken[-1].topic_id:
                    self.story.append(f"{host} hears again: {message.state}")
                    await host.take(message)
            case "wait" | "wait long":
                seconds = (0.001, 0.1, 0.6, 1.1) if event == "wait" else (2.5, 6.0, LAG_TIME_MAX_MS / 1000 + 6)
                await asyncio.sleep(self.random.choice(seconds))
            case "flush" if host.running is not None and host.partition is not None:
                await host.partition.log.flush()
                host.running.replicas.appends.written(host.partition)
            case "checkpoint" if host.running is not None:
                await host.running.logs.write_checkpoints()
                await host.running.logs.write_high_watermarks()
            case "consume":
                self.consume(self.random.choice((host, self.leading())))
            case "kill" | "power" | "stop" if host.running is not None and self.may_go(host):
                await self.stop(host, event)
            case "start":
                await self.start(host)
            case "expire" if host.is_registered and (host.running is None or self.may_go(host)):
                cluster.end_session(host)
            case "tails":
                for _ in range(self.random.randint(1, 3)):
                    await self.tails()
            case "join unheard":
                await self.join_unheard()
            case "lag":
                await self.lag()
            case "few":
                for member in self.random.sample(cluster.state.isr, len(cluster.state.isr)):
                    if member != cluster.state.leader and self.may_go(cluster.hosts[member]):
                        cluster.end_session(cluster.hosts[member])
            case "settings late":
                self.controller_learns()
            case "question":
                self.ask_who_leads(self.leading())
            case "prefer":
                cluster.log_ends()
                cluster.perform(decisions.elect_leaders(cluster.known.state, ElectionType.PREFERRED, None))
            case "reassign" if not any(other.has_forgotten for other in cluster.hosts.values()):
                there = [other.broker_id for other in cluster.hosts.values() if other.is_there]
                if len(there) > 1:
                    cluster.reassign(tuple(self.random.sample(there, min(len(there), self.random.randint(2, 3)))))
            case "delete records":
                self.delete_records()
            case "move" if host.running is not None and host.partition is not None:
                host.running.log_moves.move(KEY, str(self.random.choice(host.directories)))
            case "min isr":
                self.settings = {**cluster.topic.overrides, "min.insync.replicas": str(self.random.choice((1, 2, 2, 3)))}
                for other in cluster.hosts.values():
                    if other.is_there:
                        other.inbox.append(self.settings)
                if self.random.random() < 0.6:
                    self.controller_learns()
            case "made again" if self.random.random() < 0.3 and all(other.is_there for other in cluster.hosts.values()):
                if not cluster.partition.is_being_reassigned:
                    cluster.make_topic()
                    self.forget()

    def host(self) -> Host:
        return self.cluster.hosts[self.random.choice(BROKERS)]

    def leading(self) -> Host | None:
        """Mostly who leads; also one that only believes so."""
        leader = self.cluster.leader
        if leader is not None and self.random.random() < 0.8:
            return leader
        found = [host for host in self.cluster.hosts.values() if host.partition is not None and host.partition.is_leader]
        return self.random.choice(found) if found else None

    def produce(self, host: Host | None, acks: int) -> None:
        if host is None or host.partition is None:
            return
        self.cluster.count += 1
        count, times = self.random.choice((1, 1, 2, 5)), self.random.choice((1, 9, 20))
        values = [b"%d/%d" % (self.cluster.count, index) * times for index in range(count)]
        batch = build_batch([Record(index, self.cluster.clock.time_ms(), None, value) for index, value in enumerate(values)])
        answer, topic_id, life = host.produce(batch, acks, PRODUCE_MS), host.partition.topic_id, host.life
        self.story.append(f"{values[0][:9]!r} at {host}, acks={acks}: {host.partition.log}")
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def take(response: bytes) -> None:
            answered.set_result(None)
            error, offset = produced(response)
            if not error and acks == ACKS_ALL and topic_id == self.cluster.topic_id and host.life == life:
                self.acknowledged[offset] = b"".join(values)
                self.story.append(f"acknowledged at {offset}")

        if isinstance(answer, DelayedProduce):
            answer.answer_with(take)
            if not answer.try_complete():
                host.produces.watch(answer, answer.partitions(), answer.timeout_seconds)
                self.waiting.append((host, life, answered))
        elif answer is not None:
            take(answer)

    async def ask(self, host: Host, *, is_late: bool = False) -> None:
        followed, replica = host.followed, host.partition
        if followed is None or replica is None or followed.is_given_up:
            return
        if replica.must_checkpoint_truncation:
            await replica.checkpoint_truncation()
        offset, last_epoch, leader_epoch, start = replica.fetch_position()
        leader = self.cluster.hosts[followed.follow.leader.broker_id]
        if leader_epoch != followed.follow.leader_epoch or leader.running is None:
            return
        asked = FetchPartition(0, leader_epoch, offset, last_epoch, start, self.random.choice((300, MOST_BYTES)))
        if self.cluster.is_healed:
            asked = asked._replace(max_bytes=MOST_BYTES)
        topics, max_wait_ms = [FetchTopic(followed.key[0], [asked])], self.random.choice((0, 500))
        request = FetchRequest(host.broker_id, host.broker_epoch, max_wait_ms, 1, MOST_BYTES, 0, 0, -1, topics, [], "")
        if is_late:
            self.late.append((leader, leader.life, request))
            return
        self.story.append(f"{host} asks {leader} for {offset} after epoch {last_epoch}, in epoch {leader_epoch}")
        answer = self.cluster.spawn(leader.fetch(request))
        self.waiting.append((leader, leader.life, answer))
        self.flights.append(Flight(host, host.life, followed, asked, answer))
        await self.turn()

    async def take_in(self, flight: Flight) -> None:
        """An answer arrives, whatever became of the roles meanwhile."""
        self.flights.remove(flight)
        host, replica = flight.host, flight.host.partition
        if host.life != flight.life or replica is None or host.followed is not flight.followed:
            return
        self.look()
        outcome = take_in(replica, flight.followed, flight.asked, flight.answer.result())
        if outcome is Outcome.PLACE_LOST:
            leader = self.cluster.hosts[flight.followed.follow.leader.broker_id].partition
            if leader is not None and leader.is_leader and leader.leader_epoch == replica.leader_epoch:
                outcome = find_place(replica, flight.followed, leader.log.log_start_offset, leader.log.log_end_offset)
        flight.followed.is_given_up = outcome is Outcome.FENCED
        self.story.append(f"{host}: {outcome.value}, {replica.log}, {replica.high_watermark}")

    async def fetch(self, host: Host) -> None:
        """A whole exchange, and the end of the one before."""
        for flight in [flight for flight in self.flights if flight.host is host]:
            if flight.answer.done():
                await self.take_in(flight)
            else:
                self.flights.remove(flight)
        await self.ask(host)
        if self.flights and self.flights[-1].host is host and self.flights[-1].answer.done():
            await self.take_in(self.flights[-1])

    def consume(self, host: Host | None) -> None:
        partition = None if host is None else host.partition
        if host is None or partition is None or partition.topic_id != self.cluster.topic_id:
            return
        offset = self.random.choice((*self.committed, partition.high_watermark))
        asked = FetchPartition(0, self.random.choice((-1, partition.leader_epoch)), offset, -1, -1, MOST_BYTES)
        rack, topics = "" if partition.is_leader else "here", [FetchTopic(partition.topic_id, [asked])]
        request = FetchRequest(-1, -1, self.random.choice((0, 500)), 1, MOST_BYTES, 0, 0, -1, topics, [], rack)
        self.waiting.append((host, host.life, self.cluster.spawn(self.read(host, host.life, offset, request))))

    async def read(self, host: Host, life: int, offset: int, request: FetchRequest) -> None:
        found = await host.fetch(request)
        if request.topics[0].topic == self.cluster.topic_id and host.life == life:
            self.expect(found.error_code != 1 or offset < self.deleted_up_to, f"a consumer at {offset} is out of range on {host}")
            for position, header in batches(bytes(found.records)):
                self.commit(host, header.base_offset, bytes(found.records[position : position + header.size]))

    def ask_who_leads(self, host: Host | None) -> None:
        """Whether one still leads, as its followers say."""
        if host is None or host.partition is None or host.running is None:
            return
        self.late.clear()  # without a session such a fetch passes for one that was sent after the question
        epoch, topic_id = host.partition.leader_epoch, host.partition.topic_id
        others = [other.partition for other in self.cluster.hosts.values() if other.partition is not None]
        is_deposed = any(other.is_leader and other.leader_epoch > epoch and other.topic_id == topic_id for other in others)
        question = host.running.replicas.ask_whether_leading(host.partition)
        question.outcome.add_done_callback(
            lambda outcome: self.expect(not (is_deposed and outcome.result()), f"{host} takes itself for the leader in {epoch}")
        )

    def delete_records(self) -> None:
        host = self.cluster.leader
        if host is not None and host.partition is not None:
            end = host.partition.high_watermark
            offset = self.random.choice((self.random.randint(0, end), end))
            self.deleted_up_to = max(self.deleted_up_to, offset)
            self.waiting.append((host, host.life, host.delete_records(offset).answered))
            self.story.append(f"records up to {offset} are deleted at {host}")

    def controller_learns(self) -> None:
        if self.settings is not None:
            self.cluster.topic.overrides, self.settings = self.settings, None
            self.cluster.log_ends()
            self.cluster.perform(decisions.topics_found(self.cluster.known.state, [KEY.topic]))

    async def hear(self, host: Host) -> None:
        if host.running is not None and host.inbox:
            message = host.inbox.pop(0)
            await host.take(message)
            self.story.append(f"{host} hears {getattr(message, 'state', message)}")
            self.look()

    async def hear_all(self, but: Host | None = None) -> None:
        for host in self.cluster.hosts.values():
            while host.inbox and host is not but:
                await self.hear(host)

    async def stop(self, host: Host, kind: str) -> None:
        self.look()
        has_lost = kind == "power" and (self.cluster.flushes or self.another_is_well(host))
        await host.stop(clean=kind == "stop")
        if has_lost:
            host.has_forgotten = host.is_unnoticed = not self.cluster.flushes
            host.disk.lose_power(self.random)
        else:
            host.disk.release()
        self.looked.pop(host, None)
        self.story.append(f"{kind} of {host}, with a loss: {has_lost}")
        if kind == "stop":
            self.cluster.end_session(host)

    async def start(self, host: Host) -> None:
        if host.running is None:
            self.cluster.register(host, clean=await host.start())
        elif not host.is_registered:
            host.running.replicas.stop_leading_all()
            self.cluster.register(host, clean=True)

    # Events that come together.

    async def depose(self, *kinds: str) -> Host | None:
        """The leader goes, and all others hear of it."""
        leader, kind = self.cluster.leader, self.random.choice(kinds)
        if leader is None or not self.may_go(leader):
            return None
        if kind != "expire":
            await self.stop(leader, kind)
        self.cluster.end_session(leader)
        await self.hear_all(leader)
        return leader

    async def tails(self) -> None:
        """What few or none have fetched, in one epoch after the other."""
        for _ in range(self.random.randint(1, 3)):
            self.produce(self.leading(), self.random.choice((1, -1)))
        if self.random.random() < 0.5:
            await self.fetch(self.host())
        deposed = await self.depose("expire", "expire", "kill", "power")
        for _ in range(self.random.randint(0, 2)):
            self.produce(self.leading(), 1)
        if deposed is not None and self.random.random() < 0.7:
            await self.start(deposed)
            if self.random.random() < 0.7:
                await self.hear_all()

    async def join_unheard(self) -> None:
        """The controller has made a follower in sync, and its leader does not hear of it, nor of the follower."""
        cluster, state = self.cluster, self.cluster.state
        outside = [broker_id for broker_id in state.replicas if broker_id not in state.isr and cluster.hosts[broker_id].is_there]
        if not outside:
            return
        cluster.fates = ["unheard"] * self.random.choice((1, 3, 9))
        joining = cluster.hosts[self.random.choice(outside)]
        for _ in range(3):
            await self.fetch(joining)
        await asyncio.sleep(self.random.choice((0.1, 4.0)))
        self.produce(self.leading(), ACKS_ALL)
        for broker_id in (*state.isr, *state.isr):
            await self.fetch(cluster.hosts[broker_id])
        if self.random.random() < 0.6:
            await self.depose("kill")

    async def lag(self) -> None:
        """One follower fetches no more."""
        late = self.host()
        for _ in range(9):
            self.produce(self.leading(), self.random.choice((1, -1)))
            for host in self.cluster.hosts.values():
                if host is not late:
                    await self.fetch(host)
            await asyncio.sleep(1.9)
            self.look()

    # What may happen, as in the histories of elections.

    def may_go(self, host: Host) -> bool:
        state, hosts = self.cluster.state, self.cluster.hosts
        members = {*state.isr, *state.eligible_leader_replicas}
        is_safe = host.broker_id not in members or self.another_is_well(host)
        return is_safe or not any(hosts[member].is_unnoticed for member in members - {host.broker_id})

    def another_is_well(self, host: Host) -> bool:
        members = [self.cluster.hosts[member] for member in self.cluster.state.isr if member != host.broker_id]
        return any(member.is_there and not member.has_forgotten for member in members)

    # The end.

    async def round(self) -> bool:
        """All hear, and fetch; says whether all are in sync."""
        cluster = self.cluster
        if cluster.state.leader == NO_LEADER:
            cluster.log_ends()
            cluster.perform(decisions.brokers_changed(cluster.known.state, [], []))
        await self.hear_all()
        for host in cluster.hosts.values():
            await self.fetch(host)
        await asyncio.sleep(0.6)
        self.look()
        state, leader = cluster.state, cluster.leader
        replicas = [cluster.hosts[broker_id].partition for broker_id in state.replicas]
        ends = {end for replica in replicas if replica is not None for end in (replica.high_watermark, replica.log.log_end_offset)}
        is_complete = None not in replicas and set(state.isr) == set(state.replicas) and not cluster.partition.is_being_reassigned
        return leader is not None and is_complete and len(ends) == 1

    async def rounds(self) -> bool:
        """Says whether there is a leader in the end: there is none if all that were in sync last are back without a log (decision 19)."""
        for _ in range(ROUNDS):
            if await self.round():
                return True
        state, ends = self.cluster.state, self.cluster.known.state.known_log_ends(KEY) or {}
        last = {*state.isr, *state.eligible_leader_replicas, *state.last_known_leader_replicas}
        is_lost = state.leader == NO_LEADER and all(ends.get(member) == NO_LOG for member in last)
        self.expect(is_lost, ["no end is in sight", self.cluster.partition])
        return False

    async def end(self) -> None:
        self.cluster.is_healed = True
        self.story.append("all come back")
        self.controller_learns()
        for host in self.cluster.hosts.values():
            await self.start(host)
        await asyncio.sleep(8.0)  # what a leader has asked the controller is lost or answered
        if await self.rounds():
            before = len(self.acknowledged)
            self.produce(self.cluster.leader, ACKS_ALL)
            await self.rounds()
            self.expect(len(self.acknowledged) == before + 1, "the last batch is not acknowledged")
        await asyncio.sleep(PRODUCE_MS / 1000 + 1)
        for host, life, answered in self.waiting:
            self.expect(answered.done() or host.life != life, f"a request at {host} waits for good")

    async def turn(self) -> None:
        """What is ready runs."""
        for _ in range(3):
            await asyncio.sleep(0)


def stored_in(partition: Partition) -> dict[int, bytes]:
    """The batches of a replica, by their base offsets."""
    log, found = partition.log, dict[int, bytes]()
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        region = log.read(offset, MOST_BYTES, log.log_end_offset, True)
        assert region is not None, f"nothing is read at {offset} of {log}"
        data = region.read()
        for position, header in batches(data):
            found[header.base_offset] = data[position : position + header.size]
            offset = header.last_offset + 1
    return found


def end_of(offset: int, batch: bytes) -> int:
    ((_, header),) = batches(batch)
    return offset + header.last_offset_delta + 1


def values_of(batch: bytes | None) -> bytes | None:
    return None if batch is None else b"".join(record.value or b"" for record in read_records(batch))


async def tell_of(random: Random, directory: Path, loop: VirtualLoop, unhandled: list[Any]) -> None:
    overrides = {"min.insync.replicas": str(random.choice((1, 2, 2)))}
    if random.random() < 0.3:
        overrides["flush.messages"] = random.choice(("1", "3"))
    cluster = Cluster(random, directory, loop, overrides)
    with recording([host.disk for host in cluster.hosts.values()], random.randbytes):
        await cluster.begin()
        history = History(cluster)
        try:
            await history.hear_all()
            for _ in range(random.randint(20, 120)):
                await history.step()
                await history.turn()
                history.look()
                history.expect(not unhandled, unhandled)
            await history.end()
            history.expect(not unhandled, unhandled)
        finally:
            await cluster.close()


def run(seed: int, directory: Path) -> None:
    unhandled: list[Any] = []
    loop = cast("Any", VirtualLoop)(unhandled.append)
    try:
        loop.run_until_complete(tell_of(Random(seed), directory, loop, unhandled))
    finally:
        loop.close()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_committed_stays_where_it_is_and_all_are_in_sync_in_the_end(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    directory = tmp_path_factory.mktemp("replicas")
    run(seed, directory)
    shutil.rmtree(directory)

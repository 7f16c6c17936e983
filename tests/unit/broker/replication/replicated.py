"""Three replicas of one partition on real logs, and a controller in a page.

Nothing is on its way by itself: a test says which broker hears of a new state, asks, answers, stops or dies, and when.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from ottla.broker.replication.partition import Partition
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.errors import ApiError, FencedLeaderEpoch, IneligibleReplica, InvalidUpdateVersion
from ottla.interbroker.calls import AlteredPartition, IsrChange, PartitionAssignment
from ottla.lifecycle import offload_nothing
from ottla.model import NO_LEADER, BrokerId, PartitionState, TopicPartition
from ottla.record.batch import batches
from ottla.record.records import Record, build_batch
from ottla.storage.log_manager import LogManager
from ottla.testing import ManualClock

KEY = TopicPartition("events", 0)
TOPIC_ID = UUID(int=7)
BROKERS = (BrokerId(1), BrokerId(2), BrokerId(3))
LAG_TIME_MAX_MS = 10_000


@dataclass
class Answer:
    """What a leader answered to a fetch, on its way back."""

    leader_epoch: int
    records: bytes = b""
    diverging: tuple[int, int] | None = None
    high_watermark: int = 0
    log_start_offset: int = 0


@dataclass
class Node:
    """One broker."""

    broker_id: BrokerId
    directory: Path
    logs: LogManager | None = None
    partition: Partition | None = None
    broker_epoch: int = -1
    answer: Answer | None = None
    asked: IsrChange | None = None  # of the controller

    @property
    def is_up(self) -> bool:
        return self.partition is not None


@dataclass
class Controller:
    """The state of the partition as the controller keeps it, and its rules."""

    leader: BrokerId = BROKERS[0]
    leader_epoch: int = 0
    isr: tuple[BrokerId, ...] = BROKERS
    partition_epoch: int = 0
    living: dict[BrokerId, int] = field(default_factory=dict)  # with their broker epochs

    def assignment(self) -> PartitionAssignment:
        state = PartitionState(self.leader, self.leader_epoch, self.isr, BROKERS)
        return PartitionAssignment(KEY.topic, TOPIC_ID, KEY.partition, state, self.partition_epoch, is_new=True)

    def lead(self, leader: BrokerId) -> None:
        self.leader, self.leader_epoch, self.partition_epoch = leader, self.leader_epoch + 1, self.partition_epoch + 1

    def gone(self, broker_id: BrokerId) -> None:
        """The session of a broker has ended: it leaves the ISR unless it is the last, and another leads."""
        if self.living.pop(broker_id, None) is None:
            return
        if broker_id in self.isr and len(self.isr) > 1:
            self.isr = tuple(replica for replica in self.isr if replica != broker_id)
        candidates = [replica for replica in self.isr if replica in self.living]
        self.lead(self.leader if self.leader in candidates else candidates[0] if candidates else NO_LEADER)

    def registered(self, broker_id: BrokerId, broker_epoch: int) -> None:
        """A broker is there (again). As it was killed it leaves the ISR, unless it is the last, before it can lead."""
        self.gone(broker_id)
        self.living[broker_id] = broker_epoch
        if broker_id in self.isr and len(self.isr) > 1:
            self.isr = tuple(replica for replica in self.isr if replica != broker_id)
            self.partition_epoch += 1
        if self.leader == NO_LEADER and broker_id in self.isr:
            self.lead(broker_id)

    def alter(self, change: IsrChange) -> AlteredPartition:
        """The rules of Kafka's AlterPartition."""
        isr = tuple(replica.broker_id for replica in change.new_isr)
        if change.leader_epoch != self.leader_epoch:
            return AlteredPartition(FencedLeaderEpoch.code)
        if isr != self.isr:
            if change.partition_epoch != self.partition_epoch:
                return AlteredPartition(InvalidUpdateVersion.code)
            for replica in change.new_isr:
                if self.living.get(replica.broker_id) is None or replica.broker_epoch not in (-1, self.living[replica.broker_id]):
                    return AlteredPartition(IneligibleReplica.code)
            self.isr, self.partition_epoch = isr, self.partition_epoch + 1
        return AlteredPartition(0, self.assignment().state, self.partition_epoch)


class Replicated:
    """The partition on its three brokers."""

    def __init__(self, directory: Path, *, flush_messages: int | None = None, min_insync_replicas: int = 1) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.controller = Controller()
        self.nodes = {broker: Node(broker, directory / str(broker)) for broker in BROKERS}
        overrides = {"min.insync.replicas": str(min_insync_replicas)}
        if flush_messages is not None:
            overrides["flush.messages"] = str(flush_messages)
        broker = BrokerSettings.from_properties({"broker.id": "1", "log.dirs": str(directory)})
        # Small segments, so that a truncation drops some of them.
        self._settings = replace(TopicSettings.of(broker, overrides), segment_bytes=900, index_interval_bytes=200)
        self._epochs = 0
        self._written = 0
        self.committed: list[tuple[int, bytes]] = []  # every batch that was below a leader's high watermark: its end, its bytes
        for broker_id in BROKERS:
            self.start(broker_id)
            self.tell(broker_id)

    def partition(self, broker_id: BrokerId) -> Partition | None:
        """The replica on a broker that is up."""
        return self.nodes[broker_id].partition if broker_id in self.nodes else None

    # Brokers.

    def start(self, broker_id: BrokerId) -> None:
        """Starts a broker, which registers; it has yet to hear what it is."""
        node = self.nodes[broker_id]
        settings = BrokerSettings.from_properties({"broker.id": str(broker_id), "log.dirs": str(node.directory)})
        node.logs = LogManager(settings.log_directories, settings, self.clock, offload_nothing, lambda _: self._settings)
        node.logs.high_watermarks = lambda: {} if node.partition is None else {KEY: node.partition.high_watermark}
        self.loop.run_until_complete(node.logs.start())
        log = node.logs.get(KEY) or node.logs.create(KEY, TOPIC_ID)
        partition = Partition(KEY, TOPIC_ID, broker_id, log, self._settings)
        recorded = node.logs.recorded_high_watermark(KEY)
        if recorded is not None:
            partition.high_watermark = min(max(recorded, log.log_start_offset), log.log_end_offset)
        node.partition = partition
        self._epochs += 1
        node.broker_epoch = self._epochs
        first = self.controller.partition_epoch == 0 and not self.controller.leader_epoch
        if first:
            self.controller.living[broker_id] = node.broker_epoch
        else:
            self.controller.registered(broker_id, node.broker_epoch)

    def kill(self, broker_id: BrokerId) -> None:
        """Ends a broker as kill -9 does. The controller has yet to notice."""
        node = self.nodes[broker_id]
        assert node.logs is not None
        self.loop.run_until_complete(node.logs.shutdown(clean=False))
        node.logs = node.partition = node.answer = node.asked = None

    def checkpoint(self, broker_id: BrokerId) -> None:
        """The round that writes recovery points and high watermarks."""
        logs = self.nodes[broker_id].logs
        if logs is not None:
            self.loop.run_until_complete(logs.write_checkpoints())

    def flush(self, broker_id: BrokerId) -> None:
        """Brings the log to the disk, by age or as a group commit."""
        partition = self.partition(broker_id)
        if partition is not None:
            self.loop.run_until_complete(partition.log.flush())
            partition.advance_high_watermark()
            self.note_committed()

    def close(self) -> None:
        """Ends everything."""
        for node in self.nodes.values():
            if node.is_up:
                self.kill(node.broker_id)
        self.loop.close()

    # What goes to and fro.

    def tell(self, broker_id: BrokerId) -> None:
        """The controller's latest word reaches a broker."""
        node, controller = self.nodes[broker_id], self.controller
        if node.partition is None or broker_id not in controller.living:
            return
        assignment = controller.assignment()
        if controller.leader == broker_id:
            node.partition.become_leader(assignment, self.now_ms())
        else:
            node.partition.become_follower(assignment)
        self.note_committed()

    def append(self, broker_id: BrokerId, count: int) -> None:
        """A producer with acks=all writes a batch to the broker that believes to lead."""
        partition = self.partition(broker_id)
        self._written += 1
        records = [Record(number, 1, None, b"%d/%d" % (self._written, number) * 9) for number in range(count)]
        batch = memoryview(build_batch(records))
        if partition is not None:
            try:
                partition.append_as_leader(batch, 0, len(batch), -1, 1)
            except ApiError:
                return
            partition.log.appender.write_staged()
            partition.appended()
            self.note_committed()

    def fetch(self, broker_id: BrokerId) -> None:
        """A follower fetches all that there is."""
        self.answer(broker_id)
        self.ask(broker_id, 1 << 20)
        self.answer(broker_id)

    def ask(self, broker_id: BrokerId, max_bytes: int = 300) -> None:
        """A follower fetches from whom it believes to lead; the answer is on its way."""
        node = self.nodes[broker_id]
        follower = node.partition
        if follower is None or follower.is_leader or node.answer is not None or follower.leader not in self.nodes:
            return
        leader = self.nodes[follower.leader].partition
        if follower.must_checkpoint_truncation:
            self.loop.run_until_complete(follower.checkpoint_truncation())
        position = follower.fetch_position()
        if leader is None:
            return
        try:
            leader.check_leader_epoch(position.current_leader_epoch)
            if position.last_fetched_epoch >= 0:
                diverging = leader.divergence(position.last_fetched_epoch, position.fetch_offset)
                if diverging is not None:
                    node.answer = Answer(position.current_leader_epoch, diverging=diverging)
                    return
            assert position.fetch_offset <= leader.log.log_end_offset, "a follower is ahead and no one noticed"
            leader.record_follower_fetch(broker_id, node.broker_epoch, position.fetch_offset, position.log_start_offset, self.now_ms())
            self.note_committed()
            region = leader.read_as_leader(position.fetch_offset, max_bytes, at_least_one_batch=True)
        except ApiError as error:
            assert error.code in (6, 74, 75), error
            return
        node.answer = Answer(
            position.current_leader_epoch,
            b"" if region is None else region.read(),
            None,
            leader.high_watermark,
            leader.log.log_start_offset,
        )

    def answer(self, broker_id: BrokerId) -> None:
        """What the leader answered arrives."""
        node = self.nodes[broker_id]
        answer, node.answer = node.answer, None
        follower = node.partition
        if answer is None or follower is None:
            return
        if answer.diverging is None:
            follower.append_as_follower(memoryview(answer.records), answer.leader_epoch, answer.high_watermark, answer.log_start_offset)
        elif answer.leader_epoch == follower.leader_epoch:
            follower.truncate_for(*answer.diverging)

    def propose(self, broker_id: BrokerId, *, shrink: bool) -> None:
        """A leader looks whether its ISR should be another, and asks for it."""
        node = self.nodes.get(broker_id)
        if node is not None and node.partition is not None:
            now_ms = self.now_ms()
            change = node.partition.propose_shrink(now_ms, LAG_TIME_MAX_MS) if shrink else node.partition.propose_expansion(now_ms)
            node.asked = change or node.asked

    def alter(self, broker_id: BrokerId, *, is_heard: bool) -> None:
        """The controller decides on what a leader has asked for. What is not heard is asked again."""
        node = self.nodes.get(broker_id)
        if node is not None and node.asked is not None and node.partition is not None:
            altered = self.controller.alter(node.asked)
            if is_heard:
                node.partition.isr_altered(node.asked, altered, self.now_ms())
                node.asked = None
                self.note_committed()

    def now_ms(self) -> int:
        return round(self.clock.monotonic() * 1000)

    # What must hold.

    def stored(self, broker_id: BrokerId) -> list[tuple[int, bytes]]:
        """The batches of a replica: end offset, and bytes."""
        partition = self.nodes[broker_id].partition
        assert partition is not None
        log = partition.log
        found: list[tuple[int, bytes]] = []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            region = log.read(offset, 1 << 20, log.log_end_offset, True)
            assert region is not None, f"nothing is read at {offset} of {log}"
            data = region.read()
            for position, header in batches(data):
                assert header.base_offset == offset
                offset = header.last_offset + 1
                found.append((offset, data[position : position + header.size]))
        return found

    def note_committed(self) -> None:
        """What a leader calls committed is so for ever: it was acknowledged, or seen."""
        for node in self.nodes.values():
            partition = node.partition
            if partition is not None and partition.is_leader:
                known = self.committed[-1][0] if self.committed else 0
                if partition.high_watermark > known:
                    self.committed += [batch for batch in self.stored(node.broker_id) if known < batch[0] <= partition.high_watermark]

    def recover(self) -> None:
        """Everybody is up, registered, told, and fetches to the end."""
        for broker in BROKERS:
            if not self.nodes[broker].is_up:
                self.start(broker)
        assert self.controller.leader != NO_LEADER
        for _ in range(20):
            for broker in BROKERS:
                self.tell(broker)
                self.answer(broker)
                self.ask(broker, 1 << 20)
                self.answer(broker)
            leader = self.controller.leader
            self.flush(leader)
            self.propose(leader, shrink=False)
            self.alter(leader, is_heard=True)
            replicas = [node.partition for node in self.nodes.values() if node.partition is not None]
            ends = {replica.high_watermark for replica in replicas} | {replica.log.log_end_offset for replica in replicas}
            if len(ends) == 1 and len(self.controller.isr) == len(BROKERS) and not any(node.answer for node in self.nodes.values()):
                return
        raise AssertionError(f"no end is in sight: {replicas}, {self.controller}")

    def converge(self) -> None:
        """In the end all replicas are the same, with all that was committed, and one more batch reaches everybody."""
        self.recover()
        self.append(self.controller.leader, 1)
        self.recover()
        stored = {broker: self.stored(broker) for broker in BROKERS}
        assert stored[BROKERS[0]] == stored[BROKERS[1]] == stored[BROKERS[2]] == self.committed

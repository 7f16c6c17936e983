"""One partition on four brokers, for histories: replicas, logs, handlers, ISR rounds and the controller's decisions are the real ones.

A broker answers where it is asked, and nothing is fetched by itself: a history says who asks whom, and when an answer arrives. Time is
virtual, and a loss of power takes what was not synced.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Collection, Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar, cast
from uuid import UUID

from tests.simulation.disk import Disk
from tests.simulation.loop import VirtualLoop

from ottla.broker.controller import decisions, isr_changes, reassignments
from ottla.broker.controller.effects import Decision
from ottla.broker.controller.state import KnownPartition, KnownTopic
from ottla.broker.fetch_sessions import FetchSessions
from ottla.broker.handlers import fetch, produce
from ottla.broker.handlers.delete_records import Deletion
from ottla.broker.handlers.produce import DelayedProduce
from ottla.broker.handlers.registry import BrokerParts, EncodedBody, RequestContext
from ottla.broker.metadata import MetadataCache
from ottla.broker.purgatory import Delayed, Purgatory
from ottla.broker.replication.fetch_queue import PartitionFetchState
from ottla.broker.replication.following import Follow
from ottla.broker.replication.partition import Partition
from ottla.broker.replication.replicas import ReplicaManager
from ottla.broker.replication.schema_ids import SchemaIds
from ottla.broker.replication.throttles import ReplicationThrottles
from ottla.broker.security.authorizer import AllowAll
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.interbroker.calls import AlterPartitionRequest, AlterPartitionResponse, PartitionAssignment, PartitionToStop
from ottla.lifecycle import offload_nothing
from ottla.model import ANONYMOUS, BrokerId, PartitionState, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch import FetchRequest
from ottla.protocol.fetch_client import VERSION, FetchedPartition, read_head, walk
from ottla.protocol.produce import PartitionData, ProduceRequest, TopicData
from ottla.protocol.produce_client import decode_response
from ottla.storage.batch_opener import BatchOpener
from ottla.storage.log_manager import LogManager
from ottla.storage.log_moves import LogMoves

from ..controller.known_clusters import KnownCluster, ids

T = TypeVar("T")

KEY: Final = TopicPartition("a", 0)
BROKERS: Final = ids(1, 2, 3, 4)
LAG_TIME_MAX_MS: Final = 10_000
NOW_MS: Final = 1_700_000_000_000
PRODUCE_VERSION: Final = 9


class VirtualClock:
    """The loop's time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    def time_ms(self) -> int:
        return NOW_MS + round(self._loop.time() * 1000)


class Logs(LogManager):
    """Nothing is done in rounds: a history says when."""

    def _begin_rounds(self) -> None:
        pass


class Host:
    """A broker: its disk, and while it runs its parts."""

    def __init__(self, broker_id: BrokerId, directory: Path, cluster: Cluster) -> None:
        self.broker_id = broker_id
        self.disk = Disk(directory / str(broker_id))
        self.cluster = cluster
        self.directories = tuple(Path(self.disk.root) / name for name in ("xy" if cluster.random.random() < 0.3 else "x"))
        for path in self.directories:
            path.mkdir()
        properties = {"broker.id": str(broker_id), "log.dirs": ",".join(map(str, self.directories))}
        self.settings = BrokerSettings.from_properties(properties)
        self.running: BrokerParts | None = None
        self.life = 0
        self.broker_epoch = -1
        self.is_registered = False  # by the controller's account
        self.has_forgotten = False  # something that it has not fetched again
        self.is_unnoticed = False  # that it has forgotten
        self.followed: PartitionFetchState | None = None
        self.overrides: Mapping[str, str] = {}
        self.inbox: list[PartitionAssignment | PartitionToStop | Mapping[str, str]] = []
        self.taken: list[PartitionAssignment] = []  # in this registration

    @property
    def partition(self) -> Partition | None:
        return None if self.running is None else self.running.replicas.partitions.get(KEY)

    def __str__(self) -> str:
        return f"broker {self.broker_id}"

    def waiting(self) -> list[Delayed | DelayedProduce]:
        """The requests that wait here, but those for a flush that has yet to begin."""
        if self.running is None:
            return []
        produces = [] if self.partition is not None and self.partition.waits_for_flush else list(self.produces._waiting)
        return [*produces, *self.running.fetch_purgatory._waiting, *self.running.replicas.deletes._waiting]

    @property
    def is_there(self) -> bool:
        return self.running is not None and self.is_registered

    def topic_settings(self, _: str = KEY.topic) -> TopicSettings:
        return replace(TopicSettings.of(self.settings, self.overrides), segment_bytes=900, index_interval_bytes=200)

    async def start(self) -> bool:
        """Starts the process; says whether it had stopped cleanly."""
        cluster, settings, clock = self.cluster, self.settings, self.cluster.clock
        self.overrides = dict(cluster.topic.overrides)
        ids_of = Random(cluster.random.randrange(1 << 30))
        logs = Logs(
            self.directories, settings, clock, offload_nothing, self.topic_settings, new_id=lambda: UUID(int=ids_of.getrandbits(128))
        )
        await logs.start()
        fetches, produces = Purgatory(), Purgatory()
        replicas = ReplicaManager(self.broker_id, logs, fetches, produces, clock=clock, lag_time_max_ms=LAG_TIME_MAX_MS)
        replicas.following = self
        self.produces = produces
        moves = LogMoves(logs, self.directories, offload_nothing, replicas.log_moved, lambda: UUID(int=ids_of.getrandbits(128)))
        nothing = cast("Any", None)
        self.running = BrokerParts(
            settings=settings,
            clock=clock,
            offload=offload_nothing,
            opener=BatchOpener(offload_nothing, has_process=False),
            authorizer=AllowAll(),
            metadata=MetadataCache(clock),
            replicas=replicas,
            logs=logs,
            log_moves=moves,
            controller=nothing,
            producer_ids=nothing,
            fetch_sessions=FetchSessions(10, clock, Random(1), lambda key: True),
            fetch_purgatory=fetches,
            throttles=ReplicationThrottles(clock, settings),
            groups=nothing,
            transactions=nothing,
            schema_ids=SchemaIds(clock=clock),
        )
        self.life += 1
        replicas.start(self)
        return logs.clean_shutdown_epoch == self.broker_epoch

    async def stop(self, *, clean: bool) -> None:
        parts = self.running
        assert parts is not None
        self.running, self.followed = None, None
        self.inbox, self.taken = [], []
        for purgatory in (self.produces, parts.fetch_purgatory, parts.replicas.deletes):
            for operation in list(purgatory._waiting):
                purgatory.forget(operation)  # its connection is gone
        await parts.log_moves.close()
        await parts.replicas.close()
        await parts.logs.shutdown(clean, self.broker_epoch)

    # Following.

    def follow(self, partitions: Mapping[TopicPartition, Follow]) -> None:
        for key, follow in partitions.items():
            self.followed = PartitionFetchState(key, follow)

    def unfollow(self, partitions: Iterable[TopicPartition]) -> None:
        self.followed = None

    # The controller, as ISR rounds see it.

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        return await self.cluster.alter_partition(self, request)

    # Requests.

    async def fetch(self, request: FetchRequest) -> FetchedPartition:
        """What it answers, when it does."""
        assert self.running is not None
        context = RequestContext(ApiKey.FETCH, ANONYMOUS, "test", VERSION, 5, "PLAINTEXT", "127.0.0.1")
        answer = fetch.fetch(request, context, self.running)
        body = await answer if isinstance(answer, Awaitable) else answer
        assert isinstance(body, EncodedBody)
        pieces = [piece if isinstance(piece, bytes) else piece.read() for piece in cast("Any", body.pieces)]
        frame = memoryview(struct.pack(">ib", 5, 0) + b"".join(pieces))
        (found,) = walk(frame, read_head(frame, 5).position)
        return found

    def produce(self, batch: bytes, acks: int, timeout_ms: int) -> DelayedProduce | bytes | None:
        """The request that waits, or the response."""
        parts = self.running
        assert parts is not None
        context = RequestContext(ApiKey.PRODUCE, ANONYMOUS, "test", PRODUCE_VERSION, 5, "PLAINTEXT", "127.0.0.1")
        request = ProduceRequest(None, acks, timeout_ms, [TopicData(KEY.topic, [PartitionData(0, 0, len(batch))])])
        try:
            answer = produce.stage(request, memoryview(batch), context, parts, self.cluster.clock.time_ms())
        except produce.SilentFailure:
            return None
        assert not parts.replicas.appends.complete()
        assert answer is None or isinstance(answer, bytes | DelayedProduce)
        return answer

    def delete_records(self, offset: int) -> Deletion:
        parts, partition = self.running, self.partition
        assert parts is not None and partition is not None
        deletion = Deletion(KEY, partition, partition.delete_records(offset), 0, parts.metadata)
        if not deletion.try_complete():
            parts.replicas.deletes.watch(deletion, (KEY,), 20.0)
        return deletion

    async def take(self, message: PartitionAssignment | PartitionToStop | Mapping[str, str]) -> None:
        """Does what the controller says."""
        parts = self.running
        assert parts is not None
        if isinstance(message, PartitionToStop):
            await parts.replicas.stop([message])
        elif isinstance(message, PartitionAssignment):
            brokers = list(self.cluster.known.state.brokers.values())
            parts.metadata.put_brokers(brokers)
            if not self.taken or message.partition_epoch >= self.taken[-1].partition_epoch or message.topic_id != self.taken[-1].topic_id:
                parts.metadata.put_topic(self.cluster.topic.describe())
            for purgatory in (parts.replicas.deletes, parts.fetch_purgatory):
                purgatory.check(KEY)  # of what only metadata says they hear with their timeout, as with Kafka
            if not parts.replicas.written_epochs([message]):
                await parts.replicas.apply([message], brokers)
            self.taken.append(message)
        else:
            self.overrides = dict(message)
            parts.replicas.update_settings(KEY.topic, self.topic_settings())


class Cluster:
    """The brokers and their controller."""

    def __init__(self, random: Random, directory: Path, loop: VirtualLoop, overrides: Mapping[str, str]) -> None:
        self.random = random
        self.clock = VirtualClock(loop)
        self.known = KnownCluster()
        self.hosts: dict[BrokerId, Host] = {broker_id: Host(broker_id, directory, self) for broker_id in BROKERS}
        self.known.state.log_ends = {}
        self.topic_count = 0
        self.overrides = overrides
        self.flushes = "flush.messages" in overrides  # then nothing is acknowledged or seen that a loss of power would take
        self.is_healed = False
        self.fates: list[str] = []
        self.count = 0
        self.story: list[str] = []
        self.tasks: set[asyncio.Future[Any]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        task = asyncio.ensure_future(coroutine)
        self.tasks.add(task)
        return task

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        for host in self.hosts.values():
            if host.running is not None:
                await host.stop(clean=False)

    @property
    def topic(self) -> KnownTopic:
        return self.known.state.topics[KEY.topic]

    @property
    def topic_id(self) -> UUID:
        return self.topic.topic_id

    @property
    def partition(self) -> KnownPartition:
        return self.known.known("a-0")

    @property
    def state(self) -> PartitionState:
        return self.partition.state

    @property
    def leader(self) -> Host | None:
        """The one that leads and knows it."""
        host, state = self.hosts.get(self.state.leader), self.state
        held = None if host is None else host.partition
        if host is None or not host.is_there or held is None or held.topic_id != self.topic_id:
            return None
        return host if held.is_leader and held.leader_epoch == state.leader_epoch else None

    async def begin(self) -> None:
        self.known.state.put_topic(KnownTopic(KEY.topic, UUID(int=1), 0, [], dict(self.overrides)))
        for host in self.hosts.values():
            await host.start()
            self.register(host, clean=False)
        self.make_topic()

    def make_topic(self) -> None:
        """The topic is there, with this name and a new id; of the one before every living broker is to delete its replica."""
        former = self.topic
        for host in self.hosts.values():
            if host.is_there and former.partitions:
                host.inbox.append(PartitionToStop(KEY, -2, True, former.topic_id))
        self.topic_count += 1
        replicas = tuple(self.random.sample(BROKERS, 3))
        (state,) = decisions.new_topic_states(self.known.state, [replicas])
        topic = KnownTopic(KEY.topic, UUID(int=100 + self.topic_count), 0, [KnownPartition(state, 0)], dict(former.overrides))
        self.known.state.put_topic(topic)
        for host in self.hosts.values():
            host.has_forgotten = host.is_unnoticed = False
        self.story.append(f"made: {state}")
        self.publish(is_new=True)

    # The controller.

    def log_ends(self) -> None:
        ends = {}
        for broker_id, host in self.hosts.items():
            if host.is_there and host.running is not None:
                end = host.running.replicas.log_ends({KEY: self.topic_id}).get(KEY)
                if end is not None:
                    ends[broker_id] = end
        self.known.state.log_ends = {KEY: ends}

    def perform(self, decided: Iterable[Decision]) -> None:
        self.publish_all(self.known.perform(decided))

    def publish_all(self, performed: Collection[Decision]) -> None:
        if performed:
            self.story.append(f"the controller: {self.state}")
        if any(decision.assignments or any(not change.asked_by_leader for change in decision.changes) for decision in performed):
            self.publish()
        for decision in performed:
            for stop in decision.stops:
                host = self.hosts[stop.broker_id]
                if host.is_there:
                    host.inbox.append(replace(stop.partition, topic_id=self.topic_id))

    def assignment(self, broker_id: BrokerId, *, is_new: bool) -> PartitionAssignment:
        known = self.partition
        is_added = broker_id in known.adding_replicas and broker_id not in known.state.isr
        return PartitionAssignment(
            KEY.topic,
            self.topic_id,
            0,
            known.state,
            known.partition_epoch,
            known.adding_replicas,
            known.removing_replicas,
            is_new or is_added,
        )

    def publish(self, *, is_new: bool = False, to: Collection[BrokerId] = BROKERS) -> None:
        for broker_id in self.state.replicas:
            host = self.hosts[broker_id]
            if host.is_there and broker_id in to and self.partition.has_state:
                host.inbox.append(self.assignment(broker_id, is_new=is_new))

    def register(self, host: Host, *, clean: bool) -> None:
        """A session begins; one of before ends with it."""
        went = [host.broker_id] if host.is_registered else []
        registration = replace(self.known.registration(host.broker_id), previous_broker_epoch=host.broker_epoch if clean else -1)
        host.broker_epoch, host.is_registered = registration.broker_epoch, True
        host.is_unnoticed = False
        host.inbox, host.taken = [], []
        self.known.state.brokers_came_and_went([registration], went)
        if self.topic.partitions:
            self.log_ends()
            self.perform(decisions.brokers_changed(self.known.state, [registration], went))
            self.publish(to=[host.broker_id])

    def end_session(self, host: Host) -> None:
        """The controller hears of it, and the broker itself has yet to."""
        host.is_registered = host.is_unnoticed = False
        host.inbox, host.taken = [], []
        self.known.state.brokers_came_and_went([], [host.broker_id])
        self.log_ends()
        self.perform(decisions.brokers_changed(self.known.state, [], [host.broker_id]))

    def reassign(self, target: tuple[BrokerId, ...]) -> None:
        self.perform([reassignments.altered(self.known.state, {KEY: target})])

    async def alter_partition(self, host: Host, request: AlterPartitionRequest) -> AlterPartitionResponse:
        life = host.life
        fate = (
            "answered"
            if self.is_healed
            else self.fates.pop()
            if self.fates
            else self.random.choice(("answered", "answered", "lost", "unheard"))
        )
        await asyncio.sleep(0.0 if self.is_healed else self.random.choice((0.0, 0.0, 0.05, 3.0)))
        if fate == "lost" or life != host.life or host.running is None:
            raise ConnectionResetError("the request was lost")
        decision, response = isr_changes.altered(self.known.state, request)
        self.publish_all(self.known.perform([decision]))
        for member in (self.hosts[broker_id] for broker_id in self.state.isr):
            member.has_forgotten &= not member.is_registered or member.is_unnoticed
        isrs = [tuple(member.broker_id for member in change.new_isr) for change in request.partitions]
        self.story.append(f"{host} asks for ISR {isrs}, {fate}: {self.state}")
        await asyncio.sleep(0.0 if self.is_healed else self.random.choice((0.0, 0.0, 0.05, 3.0)))
        if fate == "unheard":
            raise ConnectionResetError("the answer was lost")
        return response


def produced(response: bytes) -> tuple[int, int]:
    ((found,), _) = decode_response(memoryview(response)[4:], 5, PRODUCE_VERSION)
    return found.error_code, found.base_offset

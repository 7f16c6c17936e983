"""Following: what this broker's replicas fetch from their leaders, and by whom.

    leader 2 ── fetcher 0 ── main lane      nearly all partitions, waiting for records up to replica.fetch.wait.max.ms
             │            └─ second lane    those that came while the main lane waits, until that is back
             └─ fetcher 1 ── …              num.replica.fetchers of them for each leader

A request that waits at the leader cannot be called back. Without the second lane a partition whose leader has just
changed would be fetched half a second later, and acks=all would take as long.

One event loop owns it all; `follow` and `unfollow` take effect at once, whatever is on its way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final
from zlib import crc32

from ottla.broker.replication.counts import FetchCounts
from ottla.broker.replication.fetch_lane import FetcherContext, FetchLane, LivingBrokers, Registered
from ottla.broker.replication.fetch_queue import FetchQueue, PartitionFetchState
from ottla.broker.replication.following import Connect, Follow, FollowingReplica
from ottla.broker.replication.throttles import Throttle
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.lifecycle import Tasks
from ottla.model import BrokerId, BrokerRegistration, Endpoint, TopicPartition

log = logging.getLogger(__name__)

# The main lane is mostly back sooner than a connection of the second one would be there.
SECOND_AFTER_SECONDS: Final = 0.01
# Partitions wait for the second lane no longer than this.
SECOND_WAIT_MS: Final = 50


class Fetcher:
    """What follows one leader, or a share of it."""

    def __init__(self, leader: BrokerRegistration, index: int, context: FetcherContext) -> None:
        self._leader = leader
        self._context = context
        self._followed: dict[TopicPartition, PartitionFetchState] = {}
        self._queue = FetchQueue()
        name = f"broker-{context.broker_id}-fetcher-{leader.broker_id}-{index}"
        second = FetchLane(
            f"{name}b",
            context,
            self._endpoint,
            self._queue,
            delay_seconds=SECOND_AFTER_SECONDS,
            longest_wait_ms=SECOND_WAIT_MS,
        )
        main = FetchLane(name, context, self._endpoint, self._queue, second=second)
        self._lanes = (main, second)
        loop = asyncio.get_running_loop()
        self.tasks: Final = tuple(
            loop.create_task(lane.run(), name=f"{name} {what}") for lane, what in ((main, "main"), (second, "second"))
        )

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def followed(self) -> Collection[PartitionFetchState]:
        """What is fetched, for looking only."""
        return self._followed.values()

    def follow(self, topic_partition: TopicPartition, follow: Follow) -> None:
        """Fetches the partition from now on. A repeat changes nothing, unless it had been given up."""
        self._leader = follow.leader
        former = self._followed.get(topic_partition)
        if former is not None and not former.is_given_up and former.continues(follow):
            return
        self.unfollow(topic_partition)
        followed = self._followed[topic_partition] = PartitionFetchState(topic_partition, follow)
        self._queue.put(followed)

    def unfollow(self, topic_partition: TopicPartition) -> None:
        """Fetches it no more."""
        followed = self._followed.pop(topic_partition, None)
        if followed is not None:
            self._queue.discard(followed)
            for lane in self._lanes:
                lane.remove(followed)

    def stop(self) -> None:
        """Ends the lanes; their tasks are over a little later."""
        self._queue.close()
        for lane, task in zip(self._lanes, self.tasks, strict=True):
            lane.stop()
            task.cancel()

    def _endpoint(self) -> Endpoint:
        listener_name = self._context.settings.inter_broker_listener.name
        known = self._context.living.brokers.get(self._leader.broker_id)
        # An address may change while a broker runs (`advertised.listeners`), and no LeaderAndIsr says so.
        leader = known if known is not None and known.broker_epoch == self._leader.broker_epoch else self._leader
        endpoint = leader.endpoint(listener_name)
        if endpoint is None:
            raise ConnectionError(f"broker {self._leader.broker_id} has no listener {listener_name}")
        return endpoint


class Fetchers:
    """All that this broker follows.

    Args:
        broker_id: this broker.
        registered: has its broker epoch.
        settings: the broker's.
        clock: what time throttles go by.
        connect: how to reach a leader.
        replicas: those that are here.
        living: has the addresses that brokers have now.
        throttle: of what followers take in; by default there is none.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        registered: Registered,
        settings: BrokerSettings,
        clock: Clock,
        connect: Connect,
        replicas: Mapping[TopicPartition, FollowingReplica],
        living: LivingBrokers,
        throttle: Throttle | None = None,
    ) -> None:
        self._context = FetcherContext(broker_id, registered, settings, connect, replicas, living, throttle or Throttle(clock))
        self._fetchers: dict[tuple[BrokerId, int], Fetcher] = {}
        self._following: dict[TopicPartition, Follow] = {}
        self._tasks: Final = Tasks()
        self._is_closed = False

    @property
    def following(self) -> Mapping[TopicPartition, Follow]:
        """Whom each partition follows, for looking only."""
        return self._following

    @property
    def counts(self) -> FetchCounts:
        """What went wrong, for looking only."""
        return self._context.counts

    def followed(self) -> list[tuple[BrokerId, PartitionFetchState]]:
        """Everything that is fetched, each with its leader, for looking only."""
        return [(leader, followed) for (leader, _), fetcher in self._fetchers.items() for followed in fetcher.followed]

    def follow(self, partitions: Mapping[TopicPartition, Follow]) -> None:
        """Fetches these partitions from the leaders given, and no more from those before."""
        if self._is_closed:
            return
        left = set()
        for topic_partition, follow in partitions.items():
            # Put last again: where all are followed again, the leader's last registration is the last to be named.
            former, key = self._following.pop(topic_partition, None), self._key(topic_partition, follow)
            if former is not None and (former_key := self._key(topic_partition, former)) != key:
                self._fetchers[former_key].unfollow(topic_partition)
                left.add(former_key)
            self._following[topic_partition] = follow
            fetcher = self._fetchers.get(key)
            if fetcher is None:
                fetcher = self._fetchers[key] = Fetcher(follow.leader, key[1], self._context)
                for task in fetcher.tasks:
                    self._tasks.keep(task).add_done_callback(_log_failure)
            fetcher.follow(topic_partition, follow)
        self._stop_idle(left)

    def unfollow(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches these no more; those that are not followed are skipped."""
        left = set()
        for topic_partition in partitions:
            follow = self._following.pop(topic_partition, None)
            if follow is not None:
                key = self._key(topic_partition, follow)
                self._fetchers[key].unfollow(topic_partition)
                left.add(key)
        self._stop_idle(left)

    def update_settings(self, settings: BrokerSettings) -> None:
        """Takes the broker's new settings; with another `num.replica.fetchers` the partitions are shared out again."""
        shares_change = settings.num_replica_fetchers != self._context.settings.num_replica_fetchers
        following = dict(self._following) if shares_change else {}
        self.unfollow(following)
        self._context.settings = settings
        self.follow(following)

    async def close(self) -> None:
        """Stops following; nothing is appended any more, and every connection is closed."""
        self._is_closed = True
        self.unfollow(list(self._following))
        await self._tasks.wait()

    def _key(self, topic_partition: TopicPartition, follow: Follow) -> tuple[BrokerId, int]:
        # Not by `hash`, which differs from process to process: a simulation must come out the same each time.
        share = (crc32(topic_partition.topic.encode()) + topic_partition.partition) % self._context.settings.num_replica_fetchers
        return follow.leader.broker_id, share

    def _stop_idle(self, keys: Iterable[tuple[BrokerId, int]]) -> None:
        for key in keys:
            if not len(self._fetchers[key]):
                self._fetchers.pop(key).stop()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s ended: %r", task.get_name(), error)

"""Whatever happens to leaders, sessions, connections and partitions: once it is quiet, each replica is what its leader is.

Method: a seeded sequence of events on two leaders and a follower, each while requests are on their way, and as many turns of
the loop in between as chance wants. A leader only ever loses what a new leader epoch replaces.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from ottla.config.broker import BrokerSettings
from ottla.errors import CorruptMessage, KafkaStorageError, NotLeaderOrFollower, OffsetOutOfRange
from ottla.model import TopicPartition

from .followers import Follower, following, until
from .leaders import Leader, Led, LogOf, Replica

SETTINGS = BrokerSettings.from_properties(
    {"broker.id": "1", "replica.fetch.backoff.ms": "3", "replica.fetch.wait.max.ms": "10", "num.replica.fetchers": "2"}
)
PARTITIONS = [TopicPartition(f"topic-{index % 2}", index) for index in range(5)]


class World:
    def __init__(self, random: Random, follower: Follower) -> None:
        self.random = random
        self.follower = follower
        self.leaders = [follower.leader(2, slots=random.choice((1, 100))), follower.leader(3)]
        self.epochs = dict.fromkeys(PARTITIONS, 0)
        self.led: dict[TopicPartition, tuple[Leader, Led]] = {}
        for each in PARTITIONS:
            self.change_leader(each)

    def change_leader(self, partition: TopicPartition) -> None:
        """Another leader, or the same: its log has all that was committed, and perhaps something of its own."""
        self.epochs[partition] += 1
        former = self.led.get(partition)
        log = LogOf()
        if former is not None:
            old = former[1].log
            log.records, log.start, log.end = list(old.records), old.start, old.end
            log.high_watermark = old.high_watermark
            if log.end > log.high_watermark:
                log.cut(self.random.randint(max(log.high_watermark, log.start), log.end))
            log.high_watermark = min(old.high_watermark, log.end)
        leader = self.random.choice(self.leaders)
        epoch = self.epochs[partition]
        if self.random.random() < 0.5:  # the follower may be told before the leader
            self.tell(partition, leader, epoch)
        led = leader.lead(partition, log, epoch)
        self.led[partition] = leader, led
        self.tell(partition, leader, epoch)

    def tell(self, partition: TopicPartition, leader: Leader, epoch: int) -> None:
        self.follower.follow(leader, partition, epoch=epoch)

    def step(self) -> None:
        random = self.random
        partition = random.choice(PARTITIONS)
        leader, led = self.led[partition]
        match random.randrange(16):
            case 0 | 1 | 2 | 3 | 4:
                leader.append(
                    led, *(random.randbytes(random.choice((1, 50, 3000))) for _ in range(random.randint(1, 4))), is_committed=False
                )
            case 5 | 6 | 7:
                led.log.high_watermark = random.randint(led.log.high_watermark, led.log.end)
                leader.wake()
            case 8 | 9:
                self.change_leader(partition)
            case 10:
                self.follower.fetchers.unfollow([partition])
                if random.random() < 0.8:
                    self.tell(partition, leader, led.epoch)
            case 11:
                leader.kill_connections()
                leader.refuses = random.random() < 0.5
            case 12:
                leader.sessions._sessions.clear()
            case 13:
                led.error = random.choice((NotLeaderOrFollower.code, 0))
                led.is_damaged = random.random() < 0.2
                leader.wake()
            case 14:
                if led.log.end:
                    led.log.begin_at(
                        random.randint(led.log.start, led.log.high_watermark or 0)
                        if led.log.high_watermark > led.log.start
                        else led.log.start
                    )
            case 15:
                self.fail_once(self.follower.replicas[partition])

    def fail_once(self, replica: Replica) -> None:
        failures: list[Exception] = [KafkaStorageError("full"), CorruptMessage("damaged"), ZeroDivisionError("a mistake")]
        failure = self.random.choice(failures)

        def fail() -> None:
            replica.before_append = lambda: None
            raise failure

        replica.before_append = fail

    def calm_down(self) -> None:
        for leader in self.leaders:
            leader.refuses = False
        for partition, (leader, led) in self.led.items():
            led.error, led.is_damaged = 0, False
            if led.log.end == led.log.start:
                leader.append(led, b"the last")
            led.log.high_watermark = led.log.end
            self.tell(partition, leader, led.epoch)
            leader.wake()


@pytest.mark.parametrize("seed", range(25))
def test_when_it_is_quiet_each_replica_is_what_its_leader_is(seed: int) -> None:
    async def main() -> None:
        random = Random(seed)
        async with following(SETTINGS) as follower:
            world = World(random, follower)
            for _ in range(150):
                world.step()
                for _ in range(random.choice((0, 1, 2, 5, 20))):
                    await asyncio.sleep(0)
                if random.random() < 0.05:
                    await asyncio.sleep(0.004)
            world.calm_down()
            for partition, (_, led) in world.led.items():
                replica = follower.replicas[partition]
                await until(lambda replica=replica, led=led: replica.log == led.log)  # type: ignore[misc]

    asyncio.run(main())


def test_an_out_of_range_offset_is_met_in_these_runs() -> None:
    """The test above would prove less without it."""
    assert OffsetOutOfRange.code == 1

    async def main() -> int:
        listed = 0
        for seed in range(6):
            random = Random(seed)
            async with following(SETTINGS) as follower:
                world = World(random, follower)
                for _ in range(150):
                    world.step()
                    for _ in range(random.choice((0, 1, 2, 5, 20))):
                        await asyncio.sleep(0)
                listed += sum(each.listed for each in world.leaders)
        return listed

    assert asyncio.run(main())

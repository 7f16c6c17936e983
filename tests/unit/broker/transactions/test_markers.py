"""The way of markers to the leaders of their partitions, whatever is the matter with those."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from tests.loops import until

from ottla.broker.transactions.markers import MarkerSender
from ottla.errors import (
    ApiError,
    BrokerNotAvailable,
    InvalidProducerEpoch,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    TransactionCoordinatorFenced,
)
from ottla.interbroker.calls import TransactionMarker
from ottla.model import NO_LEADER, BrokerId, TopicPartition

ONE, TWO = BrokerId(1), BrokerId(2)
CLICKS, VIEWS, SALES = TopicPartition("clicks", 0), TopicPartition("views", 0), TopicPartition("sales", 0)
MARKER = TransactionMarker(7, 0, True, 3, (CLICKS, VIEWS, SALES))


class Cluster:
    """Brokers that write what they lead, unless told otherwise."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, BrokerId] = {CLICKS: ONE, VIEWS: ONE, SALES: TWO}
        self.refusals: dict[TopicPartition, list[int]] = {}
        self.unreachable: dict[BrokerId, int] = {}
        self.appearing: dict[TopicPartition, BrokerId] = {}  # known here from the first call on
        self.topics_known = asyncio.Event()
        self.topics_known.set()
        self.calls: list[tuple[BrokerId, tuple[TopicPartition, ...]]] = []
        cluster: Any = self  # as far as markers go
        own: Any = Writer(self, ONE)
        self.sender = MarkerSender(cluster, cluster, own, retry_backoff_seconds=0, gone_after=3)

    async def send(self) -> None:
        await self.sender.send(MARKER, self.topics_known)

    def leader(self, key: TopicPartition) -> BrokerId | None:
        return self.leaders.get(key)

    def at(self, broker_id: BrokerId, own: Any) -> Any:
        return own if broker_id == ONE else Writer(self, broker_id)

    async def write(self, broker_id: BrokerId, marker: TransactionMarker) -> Mapping[TopicPartition, int]:
        assert (marker.producer_id, marker.coordinator_epoch) == (7, 3)
        self.calls.append((broker_id, marker.partitions))
        self.leaders |= self.appearing
        if self.unreachable.get(broker_id, 0):
            self.unreachable[broker_id] -= 1
            raise BrokerNotAvailable("gone")
        codes = {}
        for partition in marker.partitions:
            waiting = self.refusals.get(partition)
            codes[partition] = waiting.pop(0) if waiting else NotLeaderOrFollower.code if self.leaders[partition] != broker_id else 0
        return codes


@dataclass
class Writer:
    """One of them."""

    cluster: Cluster
    broker_id: BrokerId

    async def write_transaction_marker(self, marker: TransactionMarker) -> Mapping[TopicPartition, int]:
        return await self.cluster.write(self.broker_id, marker)


async def test_each_leader_is_called_once_for_all_of_its_partitions() -> None:
    cluster = Cluster()
    await cluster.send()
    assert sorted(cluster.calls) == [(ONE, (CLICKS, VIEWS)), (TWO, (SALES,))]


@pytest.mark.parametrize("code", [NotEnoughReplicas.code, NotLeaderOrFollower.code, 7, 3])
async def test_what_was_not_written_is_sent_again_and_nothing_else(code: int) -> None:
    cluster = Cluster()
    cluster.refusals[VIEWS] = [code, code]
    await cluster.send()
    assert cluster.calls.count((ONE, (VIEWS,))) == 2
    assert cluster.calls.count((TWO, (SALES,))) == 1


async def test_a_broker_that_is_away_is_waited_for_and_a_new_leader_found() -> None:
    cluster = Cluster()
    cluster.unreachable[TWO] = 1_000_000
    cluster.leaders[VIEWS] = NO_LEADER
    sending = asyncio.ensure_future(cluster.send())
    await until(lambda: cluster.unreachable[TWO] <= 1_000_000 - 3)
    assert not sending.done()
    cluster.leaders[SALES] = cluster.leaders[VIEWS] = ONE
    await sending
    assert (ONE, (SALES, VIEWS)) in cluster.calls


@pytest.mark.parametrize("error", [InvalidProducerEpoch, TransactionCoordinatorFenced])
async def test_who_is_out_of_date_stops(error: type[ApiError]) -> None:
    cluster = Cluster()
    cluster.refusals[SALES] = [error.code]
    with pytest.raises(error):
        await cluster.send()


async def test_a_partition_that_is_gone_for_good_needs_no_marker_and_a_new_one_does() -> None:
    cluster = Cluster()
    del cluster.leaders[SALES], cluster.leaders[VIEWS]
    cluster.appearing = {VIEWS: TWO}  # its topic was so new that it was not known here yet
    await cluster.send()
    assert cluster.calls == [(ONE, (CLICKS,)), (TWO, (VIEWS,))]


async def test_a_partition_of_which_this_broker_was_not_told_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has just come to lead, and whose controller dies before it has said which topics there are, must not take them for deleted.

    Nothing else ever ends the transaction in a partition that gets no marker: readers of committed data stop there.
    """
    cluster = Cluster()
    cluster.topics_known.clear()
    del cluster.leaders[SALES], cluster.leaders[VIEWS]
    attempts = 0

    async def next_attempt(seconds: float) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 100:
            cluster.leaders[SALES] = TWO
            cluster.topics_known.set()

    monkeypatch.setattr(asyncio, "sleep", next_attempt)
    await cluster.send()
    assert cluster.calls == [(ONE, (CLICKS,)), (TWO, (SALES,))]

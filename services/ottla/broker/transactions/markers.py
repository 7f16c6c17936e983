"""Telling every partition of a transaction how it ended: markers go to the partitions' leaders until all have them.

A decision that is written in `__transaction_state` cannot be taken back, so this continues until it is done: over leaders
that die and brokers that are away. What needs no marker any more is a partition whose topic is gone; but what is not known
here may also be very new, or not be told yet to a broker that has just come to lead. So that is believed only after a while, and
only of a broker that knows all topics: without its marker a transaction is open for ever, and nothing behind it is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from ottla.broker.metadata import MetadataCache
from ottla.broker.replication.internal_topics import InternalTopics
from ottla.errors import NONE, ApiError, BrokerNotAvailable, InvalidProducerEpoch, TransactionCoordinatorFenced, error_of
from ottla.interbroker.calls import ControlTransport, TransactionControl, TransactionMarker
from ottla.model import NO_LEADER, BrokerId, TopicPartition
from ottla.record.control_records import ControlRecordType, EndTransactionMarker

log: Final = logging.getLogger(__name__)

FENCING: Final = frozenset({InvalidProducerEpoch.code, TransactionCoordinatorFenced.code})
# How long the in-sync replicas may take to have a marker before the coordinator gets an error and tries again.
COMMIT_SECONDS: Final = 10.0


class MarkerSender:
    """The way of markers to their partitions.

    Args:
        leaders: of partitions.
        peers: the way to them.
        own: writes to what is led here.
        retry_backoff_seconds: between two attempts.
        gone_after: so many attempts that did not know of a partition say that it is gone, where all topics are known.
    """

    def __init__(
        self, leaders: MetadataCache, peers: TransactionPeers, own: MarkerWriter, retry_backoff_seconds: float = 0.1, gone_after: int = 50
    ) -> None:
        self._leaders = leaders
        self._peers = peers
        self._own = own
        self._retry_backoff_seconds = retry_backoff_seconds
        self._gone_after = gone_after

    async def send(self, marker: TransactionMarker, topics_known: asyncio.Event) -> None:
        """Returns when every partition has its marker.

        Args:
            topics_known: set once `leaders` has all that there are, as of a time when the transaction was coordinated here already.

        Raises:
            TransactionCoordinatorFenced: another coordinator has taken over, and does this.
            InvalidProducerEpoch: a newer producer has written to a partition, which only another coordinator can have allowed.
        """
        remaining = set(marker.partitions)
        attempt = 0
        while True:
            by_leader: dict[BrokerId, list[TopicPartition]] = {}
            for partition in sorted(remaining):
                leader = self._leaders.leader(partition)
                if leader is None and attempt >= self._gone_after and topics_known.is_set():
                    remaining.discard(partition)
                    log.info("producer %d: %s was deleted and needs no marker", marker.producer_id, partition)
                elif leader is not None and leader != NO_LEADER:
                    by_leader.setdefault(leader, []).append(partition)
            answers = await asyncio.gather(
                *(self._write(leader, replace(marker, partitions=tuple(partitions))) for leader, partitions in by_leader.items())
            )
            for answer in answers:
                for partition, code in answer.items():
                    if code == NONE:
                        remaining.discard(partition)
                    elif code in FENCING:
                        raise error_of(code, f"{partition}: the marker of producer {marker.producer_id} is out of date")
            if not remaining:
                return
            attempt += 1
            if attempt % 100 == 0:
                log.warning("producer %d: %d partitions have no marker after %d attempts", marker.producer_id, len(remaining), attempt)
            await asyncio.sleep(self._retry_backoff_seconds)

    async def _write(self, leader: BrokerId, marker: TransactionMarker) -> Mapping[TopicPartition, int]:
        try:
            return await self._peers.at(leader, self._own).write_transaction_marker(marker)
        except ApiError as error:
            log.debug("broker %d has not written the markers of producer %d: %s", leader, marker.producer_id, error)
            return {}


class TransactionEnds(Protocol):
    """Who has to know of transactions that ended: `ottla.broker.groups.coordinator.GroupCoordinator`."""

    def transaction_ended(self, key: TopicPartition, producer_id: int, is_commit: bool) -> None:
        """A transaction has ended in a partition."""
        ...


class MarkerWriter:
    """Writes markers to partitions that this broker leads.

    Args:
        internal: appends to what is led here.
        ends: hears of each partition in which a transaction has ended.
    """

    def __init__(self, internal: InternalTopics, ends: TransactionEnds) -> None:
        self._internal = internal
        self._ends = ends

    async def write_transaction_marker(self, marker: TransactionMarker) -> Mapping[TopicPartition, int]:
        """Appends the marker to each partition; gives their error codes when all in-sync replicas have what was appended."""
        codes = await asyncio.gather(*(self._write(partition, marker) for partition in marker.partitions))
        return dict(zip(marker.partitions, codes, strict=True))

    async def _write(self, key: TopicPartition, marker: TransactionMarker) -> int:
        control_type = ControlRecordType.COMMIT if marker.is_commit else ControlRecordType.ABORT
        record = EndTransactionMarker(control_type, marker.coordinator_epoch)
        try:
            producers = self._internal.partition(key).log.producers
            if producers.has_ended(marker.producer_id, marker.transaction):
                # It came late: an earlier copy was written, and what is open now is the producer's next transaction.
                log.info("%s: a marker of producer %d is not written: its transaction has already ended", key, marker.producer_id)
                return NONE
            offset, partition = self._internal.append_marker(key, marker.producer_id, marker.producer_epoch, record)
            if not self._internal.is_committed(partition, offset + 1):
                await self._internal.committed(partition, offset + 1, COMMIT_SECONDS)
        except ApiError as error:
            return error.code
        # Another copy may have been committed first, and what is open now is the producer's next transaction.
        if not producers.has_ended(marker.producer_id, marker.transaction):
            producers.note_ended(marker.producer_id, marker.transaction)
            self._ends.transaction_ended(key, marker.producer_id, marker.is_commit)
        return NONE


W = TypeVar("W")


class TransactionPeers:
    """The brokers of the cluster, as far as transactions go.

    Args:
        own_id: this broker, which is called directly.
        metadata: which brokers live.
        transport: the way to them.
    """

    def __init__(self, own_id: BrokerId, metadata: MetadataCache, transport: ControlTransport) -> None:
        self._own_id = own_id
        self._metadata = metadata
        self._transport = transport

    def at(self, broker_id: BrokerId, own: W) -> W | TransactionControl:
        """A broker; `own` where it is this one. Raises BrokerNotAvailable if it does not live."""
        if broker_id == self._own_id:
            return own
        registration = self._metadata.brokers.get(broker_id)
        if registration is None:
            raise BrokerNotAvailable(f"broker {broker_id} does not live")
        return self._transport.broker(registration)

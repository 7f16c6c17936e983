"""Telling every partition of a transaction how it ended: markers go to the partitions' leaders until all have them.

A decision that is written in `__transaction_state` can not be taken back, so this goes on until it is done: over leaders
that die and brokers that are away. What needs no marker any more is a partition whose topic is gone; but what is not known
here may also be very new, so that is believed only after a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from ottla.errors import NONE, ApiError, InvalidProducerEpoch, TransactionCoordinatorFenced, error_of
from ottla.interbroker.calls import TransactionMarker
from ottla.model import NO_LEADER, BrokerId, TopicPartition

log: Final = logging.getLogger(__name__)

FENCING: Final = frozenset({InvalidProducerEpoch.code, TransactionCoordinatorFenced.code})


# Has a broker write the marker; gives the error code of each partition.
WriteAt: TypeAlias = Callable[[BrokerId, TransactionMarker], Awaitable[Mapping[TopicPartition, int]]]


class MarkerSender:
    """The way of markers to their partitions.

    Args:
        leader_of: the broker that leads a partition, NO_LEADER, or None when there is no such partition any more.
        write_at: has a broker write a marker; it raises ApiError when that broker can not be reached.
        retry_backoff_seconds: between two attempts.
        gone_after: so many attempts that did not know of a partition say that it is gone.
    """

    def __init__(
        self,
        leader_of: Callable[[TopicPartition], BrokerId | None],
        write_at: WriteAt,
        retry_backoff_seconds: float = 0.1,
        gone_after: int = 50,
    ) -> None:
        self._leader_of = leader_of
        self._write_at = write_at
        self._retry_backoff_seconds = retry_backoff_seconds
        self._gone_after = gone_after

    async def send(self, marker: TransactionMarker) -> None:
        """Returns when every partition has its marker.

        Raises:
            TransactionCoordinatorFenced: another coordinator has taken over, and does this.
            InvalidProducerEpoch: a newer producer has written to a partition, which only another coordinator can have allowed.
        """
        remaining = set(marker.partitions)
        attempt = 0
        while True:
            by_leader: dict[BrokerId, list[TopicPartition]] = {}
            for partition in sorted(remaining):
                leader = self._leader_of(partition)
                if leader is None and attempt >= self._gone_after:
                    remaining.discard(partition)
                    log.info("producer %d: %s is gone and needs no marker", marker.producer_id, partition)
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
            return await self._write_at(leader, marker)
        except ApiError as error:
            log.debug("broker %d has not written the markers of producer %d: %s", leader, marker.producer_id, error)
            return {}

"""What transactions ask of other brokers, and other brokers of this one: markers for what they lead, and verification.

TransactionCalls    this broker's end: what others ask is done here
TransactionPeers    the way to any broker, this one included, which is called directly
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from ottla.broker.replication.internal_topics import InternalTopics
from ottla.errors import NONE, ApiError, BrokerNotAvailable
from ottla.interbroker.calls import TransactionAnswer, TransactionControl, TransactionMarker, TransactionQuestion
from ottla.model import BrokerId, BrokerRegistration, TopicPartition
from ottla.record.control_records import ControlRecordType, EndTransactionMarker

log: Final = logging.getLogger(__name__)

# How long the in-sync replicas may take to have a marker before the coordinator is told to try again.
COMMIT_SECONDS: Final = 10.0


class TransactionCalls:
    """What this broker does for others: `ottla.interbroker.calls.TransactionControl`.

    Args:
        internal: appends to what is led here.
        ended: told of each partition in which a transaction has ended, the producer, and whether it was committed.
        verify: says what this broker's coordinator knows.
    """

    def __init__(
        self,
        internal: InternalTopics,
        ended: Callable[[TopicPartition, int, bool], None],
        verify: Callable[[TransactionQuestion], TransactionAnswer],
    ) -> None:
        self._internal = internal
        self._ended = ended
        self._verify = verify

    async def write_transaction_marker(self, marker: TransactionMarker) -> Mapping[TopicPartition, int]:
        """Appends the marker to each partition; gives their error codes when all in-sync replicas have what was appended."""
        codes = await asyncio.gather(*(self._write(each, marker) for each in marker.partitions))
        return dict(zip(marker.partitions, codes, strict=True))

    async def _write(self, key: TopicPartition, marker: TransactionMarker) -> int:
        control_type = ControlRecordType.COMMIT if marker.is_commit else ControlRecordType.ABORT
        record = EndTransactionMarker(control_type, marker.coordinator_epoch)
        try:
            producers = self._internal.partition(key).log.producers
            if producers.has_ended(marker.producer_id, marker.transaction):
                # It came late: an earlier copy was written, and what is open now is the producer's next transaction.
                log.info("%s: a marker of producer %d came after its transaction had ended, and is not written", key, marker.producer_id)
                return NONE
            offset, partition = self._internal.append_marker(key, marker.producer_id, marker.producer_epoch, record)
            if not self._internal.is_committed(partition, offset + 1):
                await self._internal.committed(partition, offset + 1, COMMIT_SECONDS)
        except ApiError as error:
            return error.code
        producers.note_ended(marker.producer_id, marker.transaction)
        self._ended(key, marker.producer_id, marker.is_commit)
        return NONE

    async def verify_transaction(self, question: TransactionQuestion) -> TransactionAnswer:
        """Says what is known here of a transaction."""
        return self._verify(question)


class TransactionPeers:
    """The brokers of the cluster, as far as transactions go.

    Args:
        own_id: this broker, which is called directly.
        own: what it does.
        brokers: those that live.
        control: the way to one of them.
    """

    def __init__(
        self,
        own_id: BrokerId,
        own: TransactionControl,
        brokers: Callable[[], Mapping[BrokerId, BrokerRegistration]],
        control: Callable[[BrokerRegistration], TransactionControl],
    ) -> None:
        self._own_id = own_id
        self._own = own
        self._brokers = brokers
        self._control = control

    async def write_marker(self, broker_id: BrokerId, marker: TransactionMarker) -> Mapping[TopicPartition, int]:
        """Has a broker write a marker. Raises BrokerNotAvailable or RequestTimedOut when there was no answer."""
        return await self._at(broker_id).write_transaction_marker(marker)

    async def verify(self, broker_id: BrokerId, question: TransactionQuestion) -> TransactionAnswer:
        """Asks a coordinator. Raises BrokerNotAvailable or RequestTimedOut when there was no answer."""
        return await self._at(broker_id).verify_transaction(question)

    def _at(self, broker_id: BrokerId) -> TransactionControl:
        if broker_id == self._own_id:
            return self._own
        registration = self._brokers().get(broker_id)
        if registration is None:
            raise BrokerNotAvailable(f"broker {broker_id} does not live")
        return self._control(registration)

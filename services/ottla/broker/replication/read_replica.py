"""Which replica a consumer should read from: one in its own rack, if there is one (KIP-392).

Only replicas in sync are named: one that lags would keep the consumer behind for as long as it lags itself. Of several
in the rack it is the one that has most. Pure. Source: Kafka's `RackAwareReplicaSelector`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.broker.replication.follower_progress import FollowerProgress
from ottla.model import BrokerId, BrokerRegistration


def preferred_read_replica(
    rack: str,
    fetch_offset: int,
    leader: BrokerId,
    in_sync: Iterable[FollowerProgress],
    brokers: Mapping[BrokerId, BrokerRegistration],
) -> BrokerId | None:
    """The follower to read from; None when the leader is as good as any.

    Args:
        rack: where the consumer stands; empty when it does not say.
        in_sync: the followers in the ISR.
        brokers: the living.
    """
    if not rack or _rack_of(leader, brokers) == rack:
        return None
    nearby = [
        each
        for each in in_sync
        if _rack_of(each.broker_id, brokers) == rack and each.log_start_offset <= fetch_offset <= each.log_end_offset
    ]
    best = max(nearby, key=lambda each: (each.log_end_offset, each.caught_up_ms, -each.broker_id), default=None)
    return None if best is None else best.broker_id


def _rack_of(broker_id: BrokerId, brokers: Mapping[BrokerId, BrokerRegistration]) -> str | None:
    registration = brokers.get(broker_id)
    return None if registration is None else registration.rack

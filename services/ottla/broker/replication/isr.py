"""Who is in sync: the decisions, as functions of what a leader knows.

    expansion   a follower has all that is committed, and all that was there when the leader's epoch began
    shrink      a follower has not caught up for `replica.lag.time.max.ms`

Only the controller changes an ISR. While a change is on its way both the ISR before and the one proposed may turn out
to be true, so the high watermark counts everybody who is in either: the maximal ISR (KIP-497). Whatever the answer was,
it is read by `outcome_of`, and as long as it is not known for certain the proposal stands.

Pure: nothing here waits, asks a clock or changes anything. `isr_alterations` performs what is decided here.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from ottla.broker.replication.follower_progress import UNKNOWN_OFFSET, FollowerProgress
from ottla.errors import (
    NONE,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NewLeaderElected,
    OperationNotAttempted,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.model import BrokerId


class Outcome(enum.Enum):
    """What an answer to a proposed ISR means."""

    ALTERED = "the ISR is the one of the answer"
    REFUSED = "the ISR is the one before, and stays it"
    OVERTAKEN = "the controller knows better and is about to tell this broker"
    UNKNOWN = "whether it was altered is not known, so it is asked again"


# A follower asks at least every `replica.fetch.wait.max.ms` (0.5 s). One that has not for so long may be gone: it is not
# proposed, and nothing waits for it to join. Being wrong about it costs the follower a moment, and nothing else.
PRESENT_MS: Final = 2000
# A broker that the controller has refused is about to go, or not known to it yet.
REFUSED_MS: Final = 1000

_REFUSALS: Final = frozenset({IneligibleReplica.code, OperationNotAttempted.code})
_OVERTAKEN: Final = frozenset(
    {
        FencedLeaderEpoch.code,
        InvalidRequest.code,
        InvalidUpdateVersion.code,
        NewLeaderElected.code,
        UnknownTopicId.code,
        UnknownTopicOrPartition.code,
    }
)


def outcome_of(error: int) -> Outcome:
    """What follows from the error code of an alteration. Source: Kafka's `Partition.handleAlterPartitionError`."""
    if error == NONE:
        return Outcome.ALTERED
    if error in _REFUSALS:
        return Outcome.REFUSED
    return Outcome.OVERTAKEN if error in _OVERTAKEN else Outcome.UNKNOWN


def maximal_isr(isr: Iterable[BrokerId], proposed: Iterable[BrokerId]) -> frozenset[BrokerId]:
    """Everybody who may be in sync while a change is on its way."""
    return frozenset(isr) | frozenset(proposed)


def least_in_sync(min_insync_replicas: int, replicas: Sequence[BrokerId]) -> int:
    """`min.insync.replicas` as far as there are replicas: more can not be asked for than exist (KIP-966)."""
    return min(min_insync_replicas, len(replicas))


def may_join(follower: FollowerProgress, high_watermark: int, epoch_start_offset: int, now_ms: int) -> bool:
    """Whether a follower has what it takes to be in sync.

    Beyond the high watermark lies nothing that was promised to anybody. A leader's own high watermark may be old when
    its epoch begins, so the start of the epoch counts too (KAFKA-7128).
    """
    return follower.log_end_offset >= max(high_watermark, epoch_start_offset) and follower.refused_until_ms <= now_ms


def expanded(
    replicas: Sequence[BrokerId],
    isr: Sequence[BrokerId],
    followers: Mapping[BrokerId, FollowerProgress],
    high_watermark: int,
    epoch_start_offset: int,
    now_ms: int,
) -> tuple[BrokerId, ...]:
    """The ISR with the followers that may join and are still there, in the order of the assignment."""
    joining = {
        each.broker_id
        for each in followers.values()
        if each.broker_id not in isr
        and now_ms - each.fetched_ms <= PRESENT_MS
        and may_join(each, high_watermark, epoch_start_offset, now_ms)
    }
    return tuple(each for each in replicas if each in isr or each in joining) if joining else tuple(isr)


def lagging(
    isr: Collection[BrokerId],
    followers: Mapping[BrokerId, FollowerProgress],
    log_end_offset: int,
    now_ms: int,
    lag_time_max_ms: int,
) -> tuple[FollowerProgress, ...]:
    """The followers in the ISR that have not caught up for too long. One that has everything is never late."""
    return tuple(
        each
        for each in followers.values()
        if each.broker_id in isr and each.log_end_offset != log_end_offset and now_ms - each.caught_up_ms > lag_time_max_ms
    )


def committed_offset(own_offset: int, counted: Iterable[FollowerProgress]) -> int:
    """Up to where everybody who counts has the log; UNKNOWN_OFFSET as long as one of them has not said."""
    committed = own_offset
    for each in counted:
        if each.log_end_offset < committed:
            committed = each.log_end_offset
    return committed


def low_watermark(own_start_offset: int, followers: Iterable[FollowerProgress], living: Collection[BrokerId]) -> int:
    """The smallest log start offset of the living replicas: what DeleteRecords waits for (KIP-107)."""
    starts = [each.log_start_offset for each in followers if each.broker_id in living]
    return min([own_start_offset, *starts])


assert UNKNOWN_OFFSET < 0  # so that a follower that has said nothing holds the high watermark, and may not join

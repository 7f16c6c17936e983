"""Who is in sync: the decisions, as functions of what a leader knows.

    expansion   a follower has all that is committed, and all that was there when the leader's epoch began
    shrink      a follower has not caught up for `replica.lag.time.max.ms`

Only the controller changes an ISR. While a change is on its way both the ISR before and the one proposed may turn out
to be true, so the high watermark counts everybody who is in either: the maximal ISR (KIP-497). Whatever the answer was,
it is read by `outcome_of`, and as long as it is not known for certain the proposal stands.

Pure: nothing here waits, asks a clock or changes anything. `in_sync` has the state, `isr_alterations` does the asking.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from typing import Final

from ottla.broker.replication.follower_progress import FollowerProgress
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

# A follower asks at least every `replica.fetch.wait.max.ms` (0.5 s). One that has not for so long may be gone: it is not
# proposed, and nothing waits for it to join. Being wrong about it costs the follower a moment, and nothing else.
PRESENT_MS: Final = 2000
# A broker that the controller has refused is about to go, or not known to it yet.
REFUSED_MS: Final = 1000


class Outcome(enum.Enum):
    """What an answer to a proposed ISR means."""

    ALTERED = "the ISR is the one of the answer"
    REFUSED = "the ISR is the one before, and stays it"
    OVERTAKEN = "the controller knows better and is about to tell this broker"
    UNKNOWN = "whether it was altered is not known, so it is asked again"


# The controller compares the epochs first, so neither of these can follow upon a change that was made and not heard of.
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


def may_join(follower: FollowerProgress, needed_offset: int, now_ms: int) -> bool:
    """Whether a follower has what it takes to be in sync, and is there.

    Args:
        needed_offset: the high watermark, beyond which nothing was promised to anybody; or the start of the leader's
            epoch where that is later, because a new leader's high watermark may be an old one (KAFKA-7128).
    """
    is_present = now_ms - follower.fetched_ms <= PRESENT_MS
    return is_present and follower.log_end_offset >= needed_offset and follower.may_be_asked(now_ms)


def lags(follower: FollowerProgress, log_end_offset: int, now_ms: int, lag_time_max_ms: int) -> bool:
    """Whether a follower in the ISR has not caught up for too long. One that has everything is never late."""
    return follower.log_end_offset != log_end_offset and now_ms - follower.caught_up_ms > lag_time_max_ms


def low_watermark(own_start_offset: int, followers: Iterable[FollowerProgress], living: Collection[BrokerId]) -> int:
    """The smallest log start offset of the living replicas: what DeleteRecords waits for (KIP-107)."""
    starts = [follower.log_start_offset for follower in followers if follower.broker_id in living]
    return min([own_start_offset, *starts])

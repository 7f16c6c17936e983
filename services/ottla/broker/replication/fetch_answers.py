"""What a follower does with what its leader answered for one partition.

    records, high watermark      appended and taken over; a damaged batch is asked for again
    a diverging epoch            the log is cut where the leader's parts from it (KIP-595)
    OFFSET_OUT_OF_RANGE          where the leader's log begins and ends has to be asked (`PlaceLost`, then `find_place`)
    FENCED_LEADER_EPOCH          there is a newer leader; the controller will say which
    any other error              asked again a little later: mostly the leader has yet to be told that it leads

Source: Kafka's `AbstractFetcherThread`.
"""

from __future__ import annotations

import enum
import logging
from typing import Final

from ottla.broker.replication.fetch_queue import Followed
from ottla.broker.replication.following import FollowingReplica
from ottla.errors import ApiError, CorruptMessage, FencedLeaderEpoch, OffsetOutOfRange, error_of
from ottla.model import NO_PARTITION_LEADER_EPOCH
from ottla.protocol.fetch import FetchPartition
from ottla.protocol.fetch_client import FetchedPartition

log = logging.getLogger(__name__)

# From this one on an error is no passing one, and somebody should look.
WORTH_A_WARNING: Final = 6


class Outcome(enum.Enum):
    """What is to follow."""

    TAKEN = "taken"
    TOO_LATE = "too late"  # the partition has moved on since it was asked for
    LATER = "later"
    DAMAGED = "damaged"  # asked again later
    FENCED = "fenced"
    PLACE_LOST = "place lost"


def take_in(replica: FollowingReplica, followed: Followed, asked: FetchPartition, answer: FetchedPartition) -> Outcome:
    """Brings the replica to where the leader's answer allows."""
    if answer.error_code:
        return _refused(followed, answer.error_code)
    position = replica.fetch_position()
    if (position.fetch_offset, position.current_leader_epoch) != (asked.fetch_offset, asked.current_leader_epoch):
        return Outcome.TOO_LATE
    try:
        if answer.diverging_epoch is not None:
            replica.truncate_for(*answer.diverging_epoch)
            if replica.fetch_position() == position:
                return _failed(followed, f"epoch {answer.diverging_epoch[0]} ends at {answer.diverging_epoch[1]}, and nothing is to be cut")
        else:
            epoch = asked.current_leader_epoch
            if not replica.append_as_follower(answer.records, epoch, answer.high_watermark, answer.log_start_offset):
                return Outcome.TOO_LATE
            followed.leader_high_watermark = answer.high_watermark
    except CorruptMessage as error:
        # Bytes that fail their checksum on the way, or on the leader's disk: the first may pass, the second will be seen.
        log.error("%s: what broker %d sent is damaged: %s", followed.topic_partition, followed.follow.leader.broker_id, error)
        return Outcome.DAMAGED
    except ApiError as error:
        return _failed(followed, str(error))
    except Exception:
        # The other partitions of the answer must not pay for this one.
        log.exception("%s: the answer of broker %d could not be taken in", followed.topic_partition, followed.follow.leader.broker_id)
        return Outcome.LATER
    followed.failures = 0
    return Outcome.TAKEN


def find_place(replica: FollowingReplica, followed: Followed, earliest: int, latest: int) -> Outcome:
    """Goes on from where the leader's log still is: `latest` is its end, `earliest` its beginning.

    An end before ours is that of an unclean leader; a beginning after our end means that all we have is gone there.
    """
    position = replica.fetch_position()
    try:
        if latest < position.fetch_offset:
            replica.truncate_for(NO_PARTITION_LEADER_EPOCH, latest)
        elif earliest > position.fetch_offset:
            replica.restart_at(earliest)
        else:
            return _failed(followed, f"offset {position.fetch_offset} is out of range, and in [{earliest}, {latest}]")
    except ApiError as error:
        return _failed(followed, str(error))
    followed.failures = 0
    return Outcome.TAKEN


def _refused(followed: Followed, code: int) -> Outcome:
    error = error_of(code)
    match error:
        case OffsetOutOfRange():
            return Outcome.PLACE_LOST
        case FencedLeaderEpoch():
            log.info(
                "%s: broker %d knows a newer leader epoch than %d; waiting for the controller",
                followed.topic_partition,
                followed.follow.leader.broker_id,
                followed.follow.leader_epoch,
            )
            return Outcome.FENCED
    return _failed(followed, f"{type(error).__name__} ({code})")


def _failed(followed: Followed, reason: str) -> Outcome:
    """Told once when it lasts; the first times it is what a change of leaders looks like."""
    log.log(
        logging.WARNING if followed.failures + 1 == WORTH_A_WARNING else logging.DEBUG,
        "%s: can not follow broker %d in leader epoch %d: %s",
        followed.topic_partition,
        followed.follow.leader.broker_id,
        followed.follow.leader_epoch,
        reason,
    )
    return Outcome.LATER

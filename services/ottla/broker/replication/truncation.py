"""Where a follower cuts its log so that it is a part of its leader's again (KIP-101, KIP-279, KIP-595).

The leader has compared the epoch of the follower's last record with its own log and said which epoch it has in its
place and where that ends. Two logs that have an epoch in common are the same up to where the shorter one of it ends.

    leader    epoch 1: 0-9   epoch 3: 10-14                  asked for epoch 2 at offset 13: "epoch 1, up to 10"
    follower  epoch 1: 0-9   epoch 2: 10-12                  cuts at 10 and asks again, from epoch 1 on

Pure. Source: Kafka's `AbstractFetcherThread.getOffsetTruncationState`.
"""

from __future__ import annotations

from ottla.model import NO_PARTITION_LEADER_EPOCH
from ottla.storage.leader_epochs import LeaderEpochCache


def truncation_offset(epochs: LeaderEpochCache, log_end_offset: int, diverging_epoch: int, end_offset: int) -> int:
    """The offset from which on nothing here is the leader's.

    Where the epoch that the leader names is not known here, the log is cut where the one before it ends, and the leader
    asked again: it may name an older one.

    Args:
        epochs: the follower's.
        log_end_offset: the follower's.
        diverging_epoch: the largest epoch that the leader has and that is not above the follower's last; -1 when it
            is not known and only the leader's end counts.
        end_offset: where it ends at the leader.
    """
    if diverging_epoch == NO_PARTITION_LEADER_EPOCH:
        return min(end_offset, log_end_offset)
    own_epoch, own_end_offset = epochs.end_offset_for(diverging_epoch, log_end_offset)
    if own_epoch == NO_PARTITION_LEADER_EPOCH:
        return min(end_offset, log_end_offset)
    if own_epoch != diverging_epoch:
        return min(own_end_offset, log_end_offset)
    return min(own_end_offset, end_offset, log_end_offset)

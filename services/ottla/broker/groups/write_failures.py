"""What members are told when something could not be written to the offsets topic. The choices are Kafka's."""

from __future__ import annotations

from ottla.errors import (
    ApiError,
    CoordinatorNotAvailable,
    InvalidCommitOffsetSize,
    KafkaStorageError,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)


def as_group_error(error: ApiError) -> ApiError:
    """What a member is told when the group could not be written."""
    match error:
        case UnknownTopicOrPartition() | NotEnoughReplicas() | NotEnoughReplicasAfterAppend() | RequestTimedOut():
            return CoordinatorNotAvailable(error.message)
        case NotLeaderOrFollower() | KafkaStorageError():
            return NotCoordinator(error.message)
        case MessageTooLarge() | RecordListTooLarge():
            return UnknownServerError(f"the group is too large to be written: {error.message}")
    return error


def as_commit_error(error: ApiError) -> ApiError:
    """What is answered when offsets could not be written."""
    match error:
        case UnknownTopicOrPartition() | NotEnoughReplicas() | NotEnoughReplicasAfterAppend():
            return CoordinatorNotAvailable(error.message)
        case NotLeaderOrFollower() | KafkaStorageError():
            return NotCoordinator(error.message)
        case MessageTooLarge() | RecordListTooLarge():
            return InvalidCommitOffsetSize(error.message)
    return error

"""Kafka's error table: one class per error that Ottla raises, with its wire code.

The same class is raised at the broker and at the client. Codes, retriability and meaning are those of Kafka's
`org.apache.kafka.common.protocol.Errors`; the message of an instance carries the numbers of the case at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

NONE: Final = 0


class OttlaError(Exception):
    """Anything Ottla raises on purpose."""


class PortInUse(OttlaError):
    """Another program listens where a broker is to listen."""


class ConfigurationError(OttlaError):
    """A setting is unknown, malformed or out of its bounds; the message says where and what would be right."""


class ApiError(OttlaError):
    """An error with a place in Kafka's table, so that it can be answered on the wire."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        """What went wrong, with the numbers of the case."""
        return str(self)


class UnknownServerError(ApiError):
    """The server met a condition it did not expect."""

    code, retriable = -1, False


class OffsetOutOfRange(ApiError):
    """The offset lies outside the log; the consumer restarts from its reset policy."""

    code, retriable = 1, False


class CorruptMessage(ApiError):
    """A batch fails its checksum, has an impossible length or is otherwise damaged."""

    code, retriable = 2, True


class UnknownTopicOrPartition(ApiError):
    """This broker hosts no such topic or partition."""

    code, retriable = 3, True


class LeaderNotAvailable(ApiError):
    """The partition has no leader at the moment; the client asks again."""

    code, retriable = 5, True


class NotLeaderOrFollower(ApiError):
    """This broker does not lead the partition (or, for a read by any replica, holds none of it)."""

    code, retriable = 6, True


class RequestTimedOut(ApiError):
    """The request was not done within its timeout."""

    code, retriable = 7, True


class BrokerNotAvailable(ApiError):
    """The named broker is not alive."""

    code, retriable = 8, False


class ReplicaNotAvailable(ApiError):
    """The replica is not on the requested broker."""

    code, retriable = 9, True


class MessageTooLarge(ApiError):
    """The batch is larger than `max.message.bytes` of its topic."""

    code, retriable = 10, False


class StaleControllerEpoch(ApiError):
    """The request is from a controller that has been replaced."""

    code, retriable = 11, False


class OffsetMetadataTooLarge(ApiError):
    """The metadata of a committed offset is longer than `offset.metadata.max.bytes`."""

    code, retriable = 12, False


class NetworkException(ApiError):
    """The connection ended before the answer came."""

    code, retriable = 13, True


class CoordinatorLoadInProgress(ApiError):
    """The coordinator still reads its partition of the internal topic; the client asks again."""

    code, retriable = 14, True


class CoordinatorNotAvailable(ApiError):
    """No coordinator can be named at the moment."""

    code, retriable = 15, True


class NotCoordinator(ApiError):
    """This broker does not coordinate that group or transactional id."""

    code, retriable = 16, True


class InvalidTopic(ApiError):
    """The topic's name is one that Kafka refuses."""

    code, retriable = 17, False


class RecordListTooLarge(ApiError):
    """The record set is larger than a segment may be."""

    code, retriable = 18, False


class NotEnoughReplicas(ApiError):
    """Fewer replicas are in sync than `min.insync.replicas` asks for; nothing was written."""

    code, retriable = 19, True


class NotEnoughReplicasAfterAppend(ApiError):
    """The batch was written, and then the in-sync replicas became too few."""

    code, retriable = 20, True


class InvalidRequiredAcks(ApiError):
    """`acks` is not 0, 1 or all."""

    code, retriable = 21, False


class IllegalGeneration(ApiError):
    """The member speaks of a generation of the group that is not the current one."""

    code, retriable = 22, False


class InconsistentGroupProtocol(ApiError):
    """The member offers no protocol that all others of the group have too."""

    code, retriable = 23, False


class InvalidGroupId(ApiError):
    """The group id is empty or otherwise not allowed."""

    code, retriable = 24, False


class UnknownMemberId(ApiError):
    """The coordinator knows no member of that id in the group."""

    code, retriable = 25, False


class InvalidSessionTimeout(ApiError):
    """The session timeout lies outside `group.min.session.timeout.ms` and `group.max.session.timeout.ms`."""

    code, retriable = 26, False


class RebalanceInProgress(ApiError):
    """The group is rebalancing; the member has to join again."""

    code, retriable = 27, False


class InvalidCommitOffsetSize(ApiError):
    """The committed offset could not be stored for its size."""

    code, retriable = 28, False


class TopicAuthorizationFailed(ApiError):
    """The principal may not do this to the topic."""

    code, retriable = 29, False


class GroupAuthorizationFailed(ApiError):
    """The principal may not do this to the group."""

    code, retriable = 30, False


class ClusterAuthorizationFailed(ApiError):
    """The principal may not do this to the cluster."""

    code, retriable = 31, False


class InvalidTimestamp(ApiError):
    """A record's timestamp is outside what its topic accepts."""

    code, retriable = 32, False


class UnsupportedSaslMechanism(ApiError):
    """The broker does not have the SASL mechanism."""

    code, retriable = 33, False


class IllegalSaslState(ApiError):
    """The request does not belong into this step of the authentication."""

    code, retriable = 34, False


class UnsupportedVersion(ApiError):
    """The API or this version of it is not served."""

    code, retriable = 35, False


class TopicAlreadyExists(ApiError):
    """A topic of that name is there already."""

    code, retriable = 36, False


class InvalidPartitions(ApiError):
    """The number of partitions is not allowed."""

    code, retriable = 37, False


class InvalidReplicationFactor(ApiError):
    """The replication factor is below 1 or above the number of live brokers."""

    code, retriable = 38, False


class InvalidReplicaAssignment(ApiError):
    """The given assignment names unknown brokers, repeats one or leaves partitions out."""

    code, retriable = 39, False


class InvalidConfig(ApiError):
    """A configuration key or value is not acceptable."""

    code, retriable = 40, False


class NotController(ApiError):
    """This broker is not the controller."""

    code, retriable = 41, True


class InvalidRequest(ApiError):
    """The request contradicts itself or cannot be read."""

    code, retriable = 42, False


class UnsupportedForMessageFormat(ApiError):
    """The record format (magic) is one that cannot be stored or does not support the request."""

    code, retriable = 43, False


class PolicyViolation(ApiError):
    """A policy of this cluster forbids it."""

    code, retriable = 44, False


class OutOfOrderSequenceNumber(ApiError):
    """An idempotent producer's sequence has a gap: something before this batch is missing."""

    code, retriable = 45, False


class DuplicateSequenceNumber(ApiError):
    """An idempotent producer's batch is older than those remembered; it was stored before."""

    code, retriable = 46, False


class InvalidProducerEpoch(ApiError):
    """The producer's epoch is older than one already seen."""

    code, retriable = 47, False


class InvalidTransactionState(ApiError):
    """The transactional request does not fit the state of the transaction."""

    code, retriable = 48, False


class InvalidProducerIdMapping(ApiError):
    """The producer id is not the one that the transactional id has now."""

    code, retriable = 49, False


class InvalidTransactionTimeout(ApiError):
    """The transaction timeout is longer than `transaction.max.timeout.ms`."""

    code, retriable = 50, False


class ConcurrentTransactions(ApiError):
    """Another change of the same transaction is under way; the producer asks again."""

    code, retriable = 51, True


class TransactionCoordinatorFenced(ApiError):
    """The markers come from a coordinator that another one has replaced."""

    code, retriable = 52, False


class TransactionalIdAuthorizationFailed(ApiError):
    """The principal may not use that transactional id."""

    code, retriable = 53, False


class SecurityDisabled(ApiError):
    """The broker has no authorizer, so there are no ACLs to describe or change."""

    code, retriable = 54, False


class OperationNotAttempted(ApiError):
    """Another part of the same request failed first."""

    code, retriable = 55, False


class KafkaStorageError(ApiError):
    """The disk under the partition failed or is full."""

    code, retriable = 56, True


class LogDirNotFound(ApiError):
    """The log directory is not one of this broker's."""

    code, retriable = 57, False


class SaslAuthenticationFailed(ApiError):
    """The credentials are wrong, or the other side could not prove that it knows them."""

    code, retriable = 58, False


class UnknownProducerId(ApiError):
    """The broker has no state of that producer id."""

    code, retriable = 59, False


class ReassignmentInProgress(ApiError):
    """The partition is on its way to other brokers already."""

    code, retriable = 60, False


class NonEmptyGroup(ApiError):
    """The group has members, so it cannot be deleted."""

    code, retriable = 68, False


class GroupIdNotFound(ApiError):
    """There is no group of that id."""

    code, retriable = 69, False


class FetchSessionIdNotFound(ApiError):
    """The fetch session is not (or no longer) in the cache; the client starts a new one."""

    code, retriable = 70, True


class InvalidFetchSessionEpoch(ApiError):
    """The fetch session's epoch is not the one that comes next."""

    code, retriable = 71, True


class ListenerNotFound(ApiError):
    """The leader has no listener of the name the client used."""

    code, retriable = 72, True


class TopicDeletionDisabled(ApiError):
    """`delete.topic.enable` is false."""

    code, retriable = 73, False


class FencedLeaderEpoch(ApiError):
    """The client's leader epoch is older than the broker's."""

    code, retriable = 74, True


class UnknownLeaderEpoch(ApiError):
    """The client's leader epoch is newer than the broker's."""

    code, retriable = 75, True


class UnsupportedCompressionType(ApiError):
    """The batch's codec is unknown, or too new for the version of the request."""

    code, retriable = 76, False


class StaleBrokerEpoch(ApiError):
    """The broker that the epoch stands for has registered again since."""

    code, retriable = 77, False


class OffsetNotAvailable(ApiError):
    """A new leader cannot answer yet what the latest offset is (KIP-207), or a follower has not got so far (KIP-392)."""

    code, retriable = 78, True


class MemberIdRequired(ApiError):
    """The member has to join again with the id that it was given (KIP-394)."""

    code, retriable = 79, False


class PreferredLeaderNotAvailable(ApiError):
    """The preferred replica is not in sync or not alive."""

    code, retriable = 80, True


class GroupMaxSizeReached(ApiError):
    """The group has `group.max.size` members."""

    code, retriable = 81, False


class FencedInstanceId(ApiError):
    """Another member has taken the group instance id over (KIP-345)."""

    code, retriable = 82, False


class EligibleLeadersNotAvailable(ApiError):
    """No replica of the partition may lead."""

    code, retriable = 83, True


class ElectionNotNeeded(ApiError):
    """The partition has the leader that the election would give it."""

    code, retriable = 84, True


class NoReassignmentInProgress(ApiError):
    """The partition is on its way nowhere, so there is nothing to cancel."""

    code, retriable = 85, False


class GroupSubscribedToTopic(ApiError):
    """A member of the group is subscribed to the topic, so its offsets cannot be deleted."""

    code, retriable = 86, False


class InvalidRecord(ApiError):
    """A record breaks a rule of its topic or of the format.

    Args:
        record_errors: of the records that do, the index in the batch and what is wrong (KIP-467); empty when the whole batch is.
    """

    code, retriable = 87, False

    def __init__(self, message: str = "", record_errors: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.record_errors = tuple(record_errors)


class UnstableOffsetCommit(ApiError):
    """The offset is part of a transaction that is undecided (KIP-447); the client asks again."""

    code, retriable = 88, True


class ThrottlingQuotaExceeded(ApiError):
    """The client has changed more topics and partitions than its quota lets it at once (KIP-599); it asks again."""

    code, retriable = 89, True


class ProducerFenced(ApiError):
    """A newer producer has the same transactional id."""

    code, retriable = 90, False


class ResourceNotFound(ApiError):
    """The named resource does not exist."""

    code, retriable = 91, False


class InvalidUpdateVersion(ApiError):
    """The state that the request would change is another one by now."""

    code, retriable = 95, False


class UnknownTopicId(ApiError):
    """No topic has that id."""

    code, retriable = 100, True


class BrokerIdNotRegistered(ApiError):
    """No broker of that id is registered."""

    code, retriable = 102, False


class InconsistentTopicId(ApiError):
    """The topic's id is not the one that the partition on disk has."""

    code, retriable = 103, True


class TransactionalIdNotFound(ApiError):
    """There is no transaction of that transactional id."""

    code, retriable = 105, False


class FetchSessionTopicIdError(ApiError):
    """A fetch session changed between topic names and topic ids."""

    code, retriable = 106, True


class IneligibleReplica(ApiError):
    """The replica may not join the ISR: its broker is stopping, fenced or has started again (KIP-841, KIP-903)."""

    code, retriable = 107, False


class NewLeaderElected(ApiError):
    """The request made another replica the leader."""

    code, retriable = 108, False


class FencedMemberEpoch(ApiError):
    """The member speaks of an epoch that is not its current one (KIP-848); it has to join again."""

    code, retriable = 110, False


class UnreleasedInstanceId(ApiError):
    """Another member still has the group instance id (KIP-848)."""

    code, retriable = 111, False


class UnsupportedAssignor(ApiError):
    """The coordinator has no assignor of that name (KIP-848)."""

    code, retriable = 112, False


class StaleMemberEpoch(ApiError):
    """The member's epoch is behind; it asks again with the epoch that the heartbeat gives (KIP-848)."""

    code, retriable = 113, False


class MismatchedEndpointType(ApiError):
    """The request was meant for another kind of endpoint: for a controller, and this is a broker."""

    code, retriable = 114, False


class UnsupportedEndpointType(ApiError):
    """There is no such kind of endpoint."""

    code, retriable = 115, False


class TransactionAbortable(ApiError):
    """The transaction cannot continue; its producer has to abort it, and may continue with another one."""

    code, retriable = 120, False


class InvalidRegularExpression(ApiError):
    """The subscription's regular expression cannot be read (KIP-848)."""

    code, retriable = 128, False


def error_of(code: int, subject: str = "", *, message: str | None = None) -> ApiError:
    """The exception for a wire code.

    Args:
        code: Kafka's error code, other than 0.
        subject: what was refused; the error's name follows it.
        message: what the other side said of it, which stands for both where it said something.
    """
    error = _BY_CODE.get(code, UnknownServerError)
    name = f"{error.__name__} (error code {code})"
    return error(message or (f"{subject}: {name}" if subject else name))


def reason_of(error: BaseException) -> str:
    """An error as text for people: what it says, with the name of one of Kafka's; of one that says nothing, its class."""
    name, text = type(error).__name__, str(error)
    if not text:
        return "timed out" if isinstance(error, TimeoutError) else name
    return f"{name}: {text}" if isinstance(error, ApiError) and name not in text else text


_BY_CODE: Final = {subclass.code: subclass for subclass in ApiError.__subclasses__()}

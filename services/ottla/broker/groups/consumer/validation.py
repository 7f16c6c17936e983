"""May somebody commit offsets of a consumer group, or fetch them? Raises what Kafka answers."""

from __future__ import annotations

from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.member import ConsumerMember
from ottla.errors import IllegalGeneration, StaleMemberEpoch, UnknownMemberId, UnsupportedVersion


def check_consumer_commit(
    group: ConsumerGroup, member_epoch: int, member_id: str, *, knows_epochs: bool = True, transactional: bool = False
) -> None:
    """Whether offsets may be committed. Whoever speaks as no member may when the group has none, or in a transaction.

    Args:
        knows_epochs: whether the request is of a version in which a member says its epoch (v9).

    Raises:
        UnknownMemberId: it is no member.
        StaleMemberEpoch: it is, at another epoch. Members that speak the classic protocol are told IllegalGeneration.
        UnsupportedVersion: members of the consumer protocol have to say their epoch.
    """
    if member_epoch < 0 and (not group.members or (transactional and not member_id)):
        return
    member = group.get(member_id)
    if not knows_epochs and not member.is_classic:
        raise UnsupportedVersion("OffsetCommit version 9 or above must be used by members using the consumer group protocol")
    _check_epoch(member, member_epoch)


def check_consumer_fetch(group: ConsumerGroup, member_id: str | None, member_epoch: int) -> None:
    """Whether offsets may be fetched. Who speaks as no member may always.

    Raises:
        UnknownMemberId, StaleMemberEpoch, IllegalGeneration: as for a commit.
    """
    if member_id is None and member_epoch < 0:
        return
    if member_id is None:
        raise UnknownMemberId(f"group {group.group_id}: an epoch without a member id")
    _check_epoch(group.get(member_id), member_epoch)


def _check_epoch(member: ConsumerMember, epoch: int) -> None:
    expected = member.position.epoch
    if epoch == expected:
        return
    if member.is_classic:
        raise IllegalGeneration(f"The received generation id {epoch} does not match the expected member epoch {expected}.")
    raise StaleMemberEpoch(f"The received member epoch {epoch} does not match the expected member epoch {expected}.")

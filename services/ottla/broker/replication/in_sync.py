"""What the leader of a partition knows of its replicas: how far each has come, who is in sync, and who is to be.

    the controller's word   replicas, ISR, epochs             lead, adopt
    followers' fetches      how far each has come             record_fetch
    a proposal              the ISR that the controller       propose_expansion, propose_shrink
                            was asked for                     altered

`isr` has the decisions, this has the state that they are made of. A `Partition` owns one and tells it where its log
ends; only the partition changes it.
"""

from __future__ import annotations

import logging
from typing import Final
from uuid import UUID

from ottla.broker.replication import isr as decisions
from ottla.broker.replication.follower_progress import LONG_AGO, FollowerProgress
from ottla.broker.replication.isr import Outcome
from ottla.broker.replication.leadership_question import LeadershipQuestion
from ottla.broker.state_changes import state_changes
from ottla.errors import NotLeaderOrFollower, error_of
from ottla.interbroker.calls import AlteredPartition, IsrChange, IsrMember, PartitionAssignment
from ottla.model import BrokerId, TopicPartition

log = logging.getLogger(__name__)


class InSyncReplicas:
    """The replicas of one partition, as their leader sees them. On a follower only what the controller says is kept."""

    __slots__ = (
        "_broker_id",
        "_counted",
        "_proposal",
        "_topic_id",
        "_topic_partition",
        "adding_replicas",
        "eligible",
        "epoch_start_offset",
        "followers",
        "isr",
        "leader_epoch",
        "partition_epoch",
        "question",
        "removing_replicas",
        "replicas",
    )

    def __init__(self, topic_partition: TopicPartition, broker_id: BrokerId) -> None:
        self.isr: tuple[BrokerId, ...] = ()
        self.eligible: tuple[BrokerId, ...] = ()  # who else may lead, by the controller's account
        self.replicas: tuple[BrokerId, ...] = ()
        self.adding_replicas: tuple[BrokerId, ...] = ()  # by a reassignment that continues
        self.removing_replicas: tuple[BrokerId, ...] = ()
        self.leader_epoch = -1
        self.partition_epoch = -1  # the version of the state that the controller keeps
        self.epoch_start_offset = 0  # where the leader's log ended when it began to lead
        self.followers: dict[BrokerId, FollowerProgress] = {}  # all other replicas; empty where another leads
        self.question: LeadershipQuestion | None = None  # whether this broker still leads; the last that was asked
        self._topic_partition: Final = topic_partition
        self._topic_id: UUID | None = None
        self._broker_id: Final = broker_id
        self._proposal: IsrChange | None = None  # on its way to the controller
        self._counted: list[FollowerProgress] = []  # those that the high watermark waits for

    # The controller's word.

    def adopt(self, assignment: PartitionAssignment) -> None:
        """Takes in the controller's state, and knows of no followers before `lead`."""
        state = assignment.state
        if state.leader_epoch > self.leader_epoch or assignment.partition_epoch > self.partition_epoch:
            # A proposal carries the partition epoch that it was made for, so none of ours can come true any more.
            self._proposal = None
        if state.leader_epoch > self.leader_epoch:
            self.forget_question()
        self._topic_id = assignment.topic_id
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = assignment.partition_epoch
        self.isr, self.eligible = state.isr, state.eligible_leader_replicas
        self.replicas = state.replicas
        self.adding_replicas, self.removing_replicas = assignment.adding_replicas, assignment.removing_replicas
        self.followers = {}
        self._recount()
        self._restrict_question()

    def lead(self, former: dict[BrokerId, FollowerProgress], epoch_start_offset: int, now_ms: int) -> None:
        """Looks after followers from now on.

        Args:
            former: what was known of them in this leader epoch until now.
            epoch_start_offset: where the log ended when this broker began to lead in this leader epoch.
        """
        self.epoch_start_offset = epoch_start_offset
        for broker_id in self.replicas:
            if broker_id == self._broker_id:
                continue
            known = former.get(broker_id)
            is_in_sync = broker_id in self.isr
            follower = self.followers[broker_id] = known or FollowerProgress(broker_id)
            if known is None:
                follower.begin_epoch(now_ms, is_in_sync=is_in_sync)
            elif is_in_sync:
                follower.is_joining = False  # also by a change whose answer was lost
            else:
                follower.refuse(LONG_AGO)  # it was taken out: no append waits for it before it has caught up again
        self._recount()

    # Followers.

    def record_fetch(
        self, broker_id: BrokerId, broker_epoch: int, fetch_offset: int, log_start_offset: int, log_end_offset: int, now_ms: int
    ) -> bool:
        """A follower has everything before `fetch_offset`; returns whether it fetched from another offset before.

        Raises:
            NotLeaderOrFollower: it is no replica, or the fetch is from a former life of it (KIP-903).
        """
        follower = self.followers.get(broker_id)
        if follower is None:
            raise NotLeaderOrFollower(f"{self._topic_partition}: broker {broker_id} is no replica that is led here")
        if broker_epoch < follower.broker_epoch:
            if broker_epoch >= 0:
                raise NotLeaderOrFollower(
                    f"{self._topic_partition}: broker {broker_id} fetched with epoch {broker_epoch}, and with {follower.broker_epoch} since"
                )
        else:
            follower.broker_epoch = broker_epoch
        former = follower.log_end_offset
        follower.fetched(fetch_offset, log_start_offset, log_end_offset, now_ms)
        caught_up = now_ms - follower.caught_up_ms <= decisions.PRESENT_MS
        if caught_up and not follower.is_joining and broker_id not in self.isr and follower.may_be_asked(now_ms):
            follower.is_joining = True
            self._recount()
        return former != fetch_offset

    def confirm_epoch(self, broker_id: BrokerId, broker_epoch: int) -> None:
        """The controller names this epoch of a follower: a higher one before it is of a ZooKeeper that has been restored since."""
        follower = self.followers[broker_id]
        follower.broker_epoch = min(follower.broker_epoch, broker_epoch)

    def is_still_there(self, broker_id: int, broker_epoch: int, log_end_offset: int, log_start_offset: int, now_ms: int) -> bool:
        """Whether a follower in the ISR, that has all of the log, has said before all that it says now: then it only lives on."""
        follower = self.followers.get(broker_id)  # type: ignore[call-overload]  # a plain number is found as a BrokerId is
        if (
            follower is None
            or follower.log_end_offset != log_end_offset
            or follower.log_start_offset != log_start_offset
            or follower.broker_epoch != broker_epoch
            or broker_id not in self.isr
        ):
            return False
        follower.leader_end_offset = log_end_offset
        follower.fetched_ms = follower.caught_up_ms = now_ms
        return True

    def committed_offset(self, own_offset: int) -> int:
        """Up to where everybody who counts has the log."""
        committed = own_offset
        for follower in self._counted:
            if follower.log_end_offset < committed:
                committed = follower.log_end_offset
        return committed

    def is_under(self, min_insync_replicas: int) -> bool:
        """Whether too few are in sync; more than there are replicas cannot be asked for (KIP-966).

        The controller may go by another `min.insync.replicas`: of its own `server.properties`, or as it was altered since. Who may lead
        because too few were in sync by that has nothing of what would be committed now.
        """
        return bool(self.eligible) or len(self.isr) < min(min_insync_replicas, len(self.replicas))

    def too_few(self, min_insync_replicas: int) -> str:
        """That and why nothing is committed, for messages."""
        is_enough = len(self.isr) >= min_insync_replicas
        others = f"; by the controller's setting {', '.join(map(str, self.eligible))} may lead as well" if is_enough else ""
        return f"{len(self.isr)} of {len(self.replicas)} replicas are in sync, min.insync.replicas is {min_insync_replicas}{others}"

    @property
    def has_joining(self) -> bool:
        """Whether the high watermark waits for a follower that is not in the ISR."""
        return any(follower.is_joining for follower in self._counted)

    def forget_absent(self, now_ms: int) -> None:
        """Waits no longer for followers that were about to join and fetch no more."""
        for follower in self._counted:
            if follower.is_joining and now_ms - follower.fetched_ms > decisions.PRESENT_MS:
                follower.is_joining = False
        self._recount()

    # Whether this broker still leads.

    def ask(self) -> LeadershipQuestion:
        """Asks those who may have been made the leader."""
        self.question = LeadershipQuestion(self._maximal() - {self._broker_id})
        return self.question

    def forget_question(self) -> None:
        """Leads no more: the questions cannot be answered any more."""
        if self.question is not None:
            self.question.give_up()
            self.question = None

    def _restrict_question(self) -> None:
        if self.question is not None:
            self.question.keep(self._maximal())

    # Proposals.

    def is_proposed(self, change: IsrChange) -> bool:
        """Whether the change still waits for its answer; one that was overtaken does not."""
        return change is self._proposal

    def propose_expansion(self, high_watermark: int, now_ms: int) -> IsrChange | None:
        """The ISR with those who have caught up, to be asked of the controller; None when there is nothing to ask."""
        if self._proposal is not None:
            return None
        needed = max(high_watermark, self.epoch_start_offset)
        joining = [
            follower
            for follower in self.followers.values()
            if follower.broker_id not in self.isr and decisions.may_join(follower, needed, now_ms)
        ]
        if not joining:
            return None
        # Who was refused is asked for alone: a broker that is drained fetches on, and must keep no other out.
        never_refused = [follower for follower in joining if not follower.was_refused]
        wanted = {*self.isr, *(follower.broker_id for follower in never_refused or joining[:1])}
        return self._propose(tuple(replica for replica in self.replicas if replica in wanted))

    def propose_shrink(self, log_end_offset: int, now_ms: int, lag_time_max_ms: int) -> IsrChange | None:
        """The ISR without those who lag, to be asked of the controller; None when there is nothing to ask."""
        if self._proposal is not None:
            return None
        late = [
            follower
            for follower in self.followers.values()
            if follower.broker_id in self.isr and decisions.lags(follower, log_end_offset, now_ms, lag_time_max_ms)
        ]
        if not late:
            return None
        for lagging in late:
            log.info(
                "%s: broker %d lags: at offset %d, log end offset is %d, last caught up %s",
                self._topic_partition,
                lagging.broker_id,
                lagging.log_end_offset,
                log_end_offset,
                "before this broker led" if lagging.caught_up_ms == LONG_AGO else f"{now_ms - lagging.caught_up_ms} ms ago",
            )
        gone = {follower.broker_id for follower in late}
        return self._propose(tuple(replica for replica in self.isr if replica not in gone))

    def altered(self, change: IsrChange, altered: AlteredPartition, now_ms: int) -> bool:
        """The controller's answer to a proposal; says whether it has to be asked again."""
        if change is not self._proposal:
            return False
        outcome, state = decisions.outcome_of(altered.error), altered.state
        if outcome is Outcome.ALTERED and state is not None:
            if state.leader_epoch != self.leader_epoch or altered.partition_epoch < self.partition_epoch:
                return False  # a newer state is on its way, and until then everybody counts
            state_changes.info(
                "%s: ISR %s -> %s, leader epoch %d, partition epoch %d",
                self._topic_partition,
                self.isr,
                state.isr,
                self.leader_epoch,
                altered.partition_epoch,
            )
            self.isr, self.eligible, self.partition_epoch = state.isr, state.eligible_leader_replicas, altered.partition_epoch
            for follower in self.followers.values():
                if follower.broker_id in state.isr:
                    follower.is_joining, follower.refused_until_ms = False, LONG_AGO
        elif outcome is Outcome.REFUSED:
            joining = [self.followers[broker_id] for broker_id in _ids(change) if broker_id in self.followers and broker_id not in self.isr]
            log.log(
                # Told once: one that is drained is refused every second, and may have led thousands of partitions.
                logging.DEBUG if joining and all(follower.was_refused for follower in joining) else logging.INFO,
                "%s: ISR stays %s: the controller refused the change: %s",
                self._topic_partition,
                self.isr,
                error_of(altered.error),
            )
            for follower in joining:
                follower.refuse(now_ms + decisions.REFUSED_MS)
        else:
            log.info(
                "%s: ISR %s -> %s was refused: %s; %s",
                self._topic_partition,
                self.isr,
                _ids(change),
                error_of(altered.error),
                outcome.value,
            )
            return outcome is Outcome.UNKNOWN
        self._proposal = None
        self._recount()
        self._restrict_question()
        return False

    def _propose(self, isr: tuple[BrokerId, ...]) -> IsrChange:
        members = tuple(IsrMember(replica, self.followers[replica].broker_epoch if replica in self.followers else -1) for replica in isr)
        self._proposal = IsrChange(self._topic_partition, self.leader_epoch, self.partition_epoch, members, self._topic_id)
        self._recount()
        return self._proposal

    def _recount(self) -> None:
        """Whom the high watermark waits for: the maximal ISR, and those about to join."""
        maximal = self._maximal()
        self._counted = [follower for follower in self.followers.values() if follower.is_joining or follower.broker_id in maximal]

    def _maximal(self) -> set[BrokerId]:
        """The ISR, and who is in it if the controller has agreed to what was proposed."""
        return {*self.isr, *(() if self._proposal is None else _ids(self._proposal))}


def _ids(change: IsrChange) -> tuple[BrokerId, ...]:
    return tuple(replica.broker_id for replica in change.new_isr)

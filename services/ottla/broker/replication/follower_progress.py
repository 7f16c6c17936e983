"""How far one follower has come, as its leader sees it.

A follower tells its leader with each fetch: everything before the offset that it asks for is in its log. It counts as
caught up if that was the end of the leader's log, or has been since the fetch before. Source: Kafka's `Replica`.

A `Partition` that leads owns its followers' progress; only it changes it. Times are milliseconds of a clock that
never goes back: a jump of the wall clock must not empty an ISR.
"""

from __future__ import annotations

from typing import Final

from ottla.model import BrokerId

UNKNOWN_OFFSET: Final = -1
UNKNOWN_BROKER_EPOCH: Final = -1
LONG_AGO: Final = -(1 << 62)


class FollowerProgress:
    """One follower of a partition that is led here."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "caught_up_ms",
        "fetched_ms",
        "is_joining",
        "leader_end_offset",
        "log_end_offset",
        "log_start_offset",
        "refused_until_ms",
    )

    def __init__(self, broker_id: BrokerId) -> None:
        self.broker_id: Final = broker_id
        self.broker_epoch = UNKNOWN_BROKER_EPOCH  # of the registration that it fetched under
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.leader_end_offset = UNKNOWN_OFFSET  # of the leader's log, at the follower's last fetch
        self.fetched_ms = LONG_AGO
        self.caught_up_ms = LONG_AGO
        # It has caught up and is not in the ISR yet. The high watermark waits for it, or it could never join while
        # producers write.
        self.is_joining = False
        self.refused_until_ms = LONG_AGO  # the controller would not have it; it is not asked again before

    def begin_epoch(self, now_ms: int, *, is_in_sync: bool) -> None:
        """A new leader epoch begins: those in sync have all the time there is to say where they are.

        Where they were is worth nothing, even if the same broker led before: it may have missed an epoch in which
        another led, and the follower cut its log for that one.
        """
        self.log_end_offset = self.log_start_offset = self.leader_end_offset = UNKNOWN_OFFSET
        self.fetched_ms = self.caught_up_ms = now_ms if is_in_sync else LONG_AGO
        self.is_joining = False
        self.refused_until_ms = LONG_AGO

    def fetched(self, fetch_offset: int, log_start_offset: int, leader_end_offset: int, now_ms: int) -> None:
        """The follower has asked for `fetch_offset`, when the leader's log ended at `leader_end_offset`."""
        if fetch_offset >= leader_end_offset:
            self.caught_up_ms = now_ms
        elif fetch_offset >= self.leader_end_offset > UNKNOWN_OFFSET:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.leader_end_offset = leader_end_offset
        self.fetched_ms = now_ms

    @property
    def was_refused(self) -> bool:
        """Whether the controller would not have it in the ISR when it was asked last."""
        return self.refused_until_ms != LONG_AGO

    def may_be_asked(self, now_ms: int) -> bool:
        """Whether the controller may be asked to have it in the ISR."""
        return self.refused_until_ms <= now_ms

    def refuse(self, until_ms: int) -> None:
        """The controller refused it in the ISR: no append waits for it any more."""
        self.is_joining = False
        self.caught_up_ms = LONG_AGO
        self.refused_until_ms = until_ms

    def __repr__(self) -> str:
        return f"FollowerProgress(broker {self.broker_id}, epoch {self.broker_epoch}, log end offset {self.log_end_offset})"

"""Whether a broker still leads a partition: what it has to know before it answers out of its memory.

A broker that is cut off from ZooKeeper and from the controller leads on in its own eyes. Nothing that it appends is committed
then, so that writes are safe; but what it says without a write, a group's offsets or that a transaction has ended already,
would be of the past. So it asks those who may lead in its place: the members of the ISR. All of them fetch from it, and who
leads a newer epoch, or follows in one, does not.

A fetch counts that was sent after the question was asked. A follower sends one when it has the answer to the one before, so
the session's epoch tells (KIP-227): the first fetch that is looked at is answered at once, and the one after that answer
counts. One that lay in a socket while this process was stopped proves nothing. Of a follower that was given no session, as there
are too few of them (`max.incremental.fetch.session.cache.slots`), the second fetch has to do.

It is Raft's ReadIndex (Ongaro, 'Consensus: Bridging Theory and Practice', 6.4), with fetches for heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final, NamedTuple

from ottla.model import BrokerId


class FetchPlace(NamedTuple):
    """Where a fetch stands in the order of its follower's fetches; session 0 is none."""

    session_id: int
    session_epoch: int

    def follows(self, answered: FetchPlace) -> bool:
        """Whether it was sent when the answer to that one was there."""
        return not self.session_id or self == (answered.session_id, answered.session_epoch + 1)


class LeadershipQuestion:
    """One question.

    Args:
        members: who may lead by now in this broker's place.

    Attributes:
        outcome: whether this broker led when it asked; False when that is no longer known. Set here only.
    """

    def __init__(self, members: Collection[BrokerId]) -> None:
        self.outcome: Final[asyncio.Future[bool]] = asyncio.get_running_loop().create_future()
        self._unheard: dict[BrokerId, FetchPlace | None] = dict.fromkeys(members)  # with its fetch that was answered since
        self._decide_if_all_were_heard()

    def fetched(self, broker_id: BrokerId, place: FetchPlace) -> bool:
        """A follower's fetch in the epoch that is led here is looked at; says whether it is to be answered at once."""
        if broker_id not in self._unheard:
            return False
        answered = self._unheard[broker_id]
        if answered is not None and place.follows(answered):
            del self._unheard[broker_id]
            self._decide_if_all_were_heard()
            return False
        self._unheard[broker_id] = place
        return True

    def keep(self, members: Collection[BrokerId]) -> None:
        """The ISR has changed, by a word of the controller to its leader: who is not in it any more need not be heard."""
        self._unheard = {member: place for member, place in self._unheard.items() if member in members}
        self._decide_if_all_were_heard()

    def give_up(self) -> None:
        """This broker leads no more, or in another epoch."""
        if not self.outcome.done():
            self.outcome.set_result(False)

    def _decide_if_all_were_heard(self) -> None:
        if not self._unheard and not self.outcome.done():
            self.outcome.set_result(True)

"""Incremental fetch sessions (KIP-227): a reader of many partitions names them once and then only what changes.

The broker keeps, for each session, the partitions asked for and what it last said of them; an incremental answer
leaves out those of which there is nothing new.

There is room for so many sessions. For a new one the one goes that has not been used for two minutes; else one that is
worth less: a consumer's for a follower's, and of two of a kind the one of fewer partitions, after two minutes of life.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

from ottla.clock import Clock
from ottla.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from ottla.protocol.fetch import FetchAnswer, FetchPartition, FetchRequest

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MAX_EPOCH: Final = (1 << 31) - 1
NO_SESSION: Final = 0
# As in Kafka: a session that was not used for so long goes for any other, and one that is younger for no other of its kind.
EVICTION_SECONDS: Final = 120.0
# A reader that gets no session asks for one with each fetch, and to look through all of them costs as much as a fetch.
_LOOK_AGAIN_SECONDS: Final = 1.0

Key = tuple[str | UUID, int]
Worth = tuple[bool, int]  # whether it is a follower's; how many partitions


class Said(NamedTuple):
    """What the last answer said of a partition."""

    high_watermark: int
    log_start_offset: int


@dataclass(slots=True)
class FetchSession:
    """One reader's session. Only `FetchSessions` changes it."""

    session_id: int
    uses_topic_ids: bool
    is_follower: bool
    epoch: int
    created: float
    last_used: float
    partitions: OrderedDict[Key, FetchPartition]
    said: dict[Key, Said]

    @property
    def worth(self) -> Worth:
        """What it is compared with others by."""
        return self.is_follower, len(self.partitions)


class FetchScope:
    """The partitions that one request is about, and which of their answers are worth sending."""

    __slots__ = ("_session", "partitions", "session_id")

    def __init__(self, partitions: Iterable[tuple[Key, FetchPartition]], session: FetchSession | None, session_id: int) -> None:
        self.partitions = list(partitions)
        self.session_id = session_id
        self._session = session  # None: everything is answered, nothing remembered

    def has_said(self, key: Key, high_watermark: int, log_start_offset: int) -> bool:
        """Whether the last answer of the session said just this of a partition."""
        return self._session is not None and self._session.said.get(key) == (high_watermark, log_start_offset)

    def select(self, answers: list[tuple[Key, FetchAnswer]]) -> list[tuple[Key, FetchAnswer]]:
        """The answers to send, in order; what they say is remembered."""
        session = self._session
        if session is None:
            return answers
        selected = []
        for key, answer in answers:
            said = Said(answer.high_watermark, answer.log_start_offset)
            news = session.said.get(key) != said
            if news or answer.records is not None or answer.error_code or answer.diverging_epoch or answer.preferred_read_replica >= 0:
                selected.append((key, answer))
                # An error is repeated until it is gone, so it is not remembered as said.
                if answer.error_code:
                    session.said.pop(key, None)
                else:
                    session.said[key] = said
            if answer.records is not None and key in session.partitions:
                # Whoever got bytes goes to the end, so that the size limit of an answer starves nobody.
                session.partitions.move_to_end(key)
        return selected


class FetchSessions:
    """The cache of sessions.

    Args:
        slots: how many are kept (`max.incremental.fetch.session.cache.slots`).
        random: where session ids come from.
    """

    def __init__(self, slots: int, clock: Clock, random: Random) -> None:
        self._slots = slots
        self._clock = clock
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first
        self._refused: dict[bool, tuple[float, Worth]] = {}  # of followers or others: until when, and up to which worth

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, uses_topic_ids: bool) -> FetchScope:
        """The scope of a request, with its session made, brought up to date or ended.

        Raises:
            FetchSessionIdNotFound: the session was evicted or never was.
            InvalidFetchSessionEpoch: a request was lost or repeated.
            FetchSessionTopicIdError: the session began with names and goes on with ids, or the reverse.
        """
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            asked = [((topic.topic, each.partition), each) for topic in request.topics for each in topic.partitions]
            if request.session_epoch == FINAL_EPOCH:
                return FetchScope(asked, None, NO_SESSION)
            session = self._create(asked, uses_topic_ids, request.replica_id >= 0)
            return FetchScope(asked, session, session.session_id if session else NO_SESSION)
        return self._continue(request, uses_topic_ids)

    def _create(self, asked: list[tuple[Key, FetchPartition]], uses_topic_ids: bool, is_follower: bool) -> FetchSession | None:
        now = self._clock.monotonic()
        if len(self._sessions) >= self._slots and not self._evict((is_follower, len(asked)), now):
            return None
        session_id = self._random.randrange(1, MAX_EPOCH)
        while session_id in self._sessions:
            session_id = self._random.randrange(1, MAX_EPOCH)
        session = FetchSession(session_id, uses_topic_ids, is_follower, 1, now, now, OrderedDict(asked), {})
        self._sessions[session_id] = session
        return session

    def _evict(self, worth: Worth, now: float) -> bool:
        """Makes room for a session, if there is one that it may have the place of (`FetchSessionCache.tryEvict`)."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now - oldest.last_used >= EVICTION_SECONDS:
            del self._sessions[oldest.session_id]
            return True
        is_follower = worth[0]
        until, refused = self._refused.get(is_follower, (0.0, worth))
        if now < until and worth <= refused:
            return False
        evictable = (each for each in self._sessions.values() if self._may_go(each, is_follower, now))
        least = min(evictable, key=lambda each: each.worth, default=None)
        if least is None or worth <= least.worth:
            self._refused[is_follower] = now + _LOOK_AGAIN_SECONDS, worth if least is None else max(worth, least.worth)
            return False
        del self._sessions[least.session_id]
        return True

    @staticmethod
    def _may_go(session: FetchSession, for_follower: bool, now: float) -> bool:
        return now - session.created >= EVICTION_SECONDS or (for_follower and not session.is_follower)

    def _continue(self, request: FetchRequest, uses_topic_ids: bool) -> FetchScope:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise FetchSessionIdNotFound(f"fetch session {request.session_id} is not known")
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpoch(f"fetch session {request.session_id} is at epoch {session.epoch}, {request.session_epoch} came")
        if session.uses_topic_ids != uses_topic_ids:
            raise FetchSessionTopicIdError(f"fetch session {request.session_id} changed between topic names and topic ids")
        for asked in request.topics:
            for each in asked.partitions:
                session.partitions[(asked.topic, each.partition)] = each
        for topic in request.forgotten:
            for partition in topic.partitions:
                session.partitions.pop((topic.topic, partition), None)
                session.said.pop((topic.topic, partition), None)
        session.epoch = session.epoch + 1 if session.epoch < MAX_EPOCH else 1
        session.last_used = self._clock.monotonic()
        self._sessions.move_to_end(session.session_id)
        return FetchScope(session.partitions.items(), session, session.session_id)

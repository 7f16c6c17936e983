"""Incremental fetch sessions (KIP-227): a reader of many partitions names them once and then only what changes.

The broker keeps, for each session, the partitions asked for and what it last said of them; an incremental answer
leaves out those of which there is nothing new.
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
# As in Kafka: a session that was used within this time is not evicted for a new one.
EVICTION_SECONDS: Final = 120.0

Key = tuple[str | UUID, int]


class Said(NamedTuple):
    """What the last answer said of a partition."""

    high_watermark: int
    log_start_offset: int


@dataclass(slots=True)
class FetchSession:
    """One reader's session. Only `FetchSessions` changes it."""

    session_id: int
    uses_topic_ids: bool
    epoch: int
    last_used: float
    partitions: OrderedDict[Key, FetchPartition]
    said: dict[Key, Said]


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
            session = self._create(asked, uses_topic_ids)
            return FetchScope(asked, session, session.session_id if session else NO_SESSION)
        return self._continue(request, uses_topic_ids)

    def _create(self, asked: list[tuple[Key, FetchPartition]], uses_topic_ids: bool) -> FetchSession | None:
        now = self._clock.monotonic()
        if len(self._sessions) >= self._slots and not self._evict(now):
            return None
        session_id = self._random.randrange(1, MAX_EPOCH)
        while session_id in self._sessions:
            session_id = self._random.randrange(1, MAX_EPOCH)
        session = FetchSession(session_id, uses_topic_ids, 1, now, OrderedDict(asked), {})
        self._sessions[session_id] = session
        return session

    def _evict(self, now: float) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now - oldest.last_used < EVICTION_SECONDS:
            return False
        del self._sessions[oldest.session_id]
        return True

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

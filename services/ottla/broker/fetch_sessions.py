"""Incremental fetch sessions (KIP-227): a reader of many partitions names them once and then only what changes.

The broker keeps, for each session, the partitions asked for and what it last said of them; an incremental answer
leaves out those of which there is nothing new.

A session keeps partitions that exist: of those that do not, more than a few are a mistake or a trick, and get no session or
end theirs, so that their reader names them with each fetch. All sessions together keep a bounded number of partitions.

There is room for so many sessions. For a new one the one goes that has not been used for two minutes; else one that is
worth less: a consumer's for a follower's, and of two of a kind the one of fewer partitions, after two minutes of life.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
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
# Of all sessions: every partition of a large cluster for many readers, in some hundred megabytes.
MAX_PARTITIONS: Final = 400_000
# Topics that were just deleted, or are about to come, in one session.
MAX_UNKNOWN: Final = 100
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
            is_changed = session.said.get(key) != said
            if (
                is_changed
                or answer.records is not None
                or answer.error_code
                or answer.diverging_epoch
                or answer.preferred_read_replica >= 0
            ):
                selected.append((key, answer))
                # An error is repeated until it is gone, so it is not remembered as said.
                if answer.error_code:
                    session.said.pop(key, None)
                else:
                    session.said[key] = said
            if answer.records is not None and key in session.partitions:
                # Anyone who got bytes goes to the end, so that the size limit of an answer starves no partition.
                session.partitions.move_to_end(key)
        return selected


class FetchSessions:
    """The cache of sessions.

    Args:
        slots: how many are kept (`max.incremental.fetch.session.cache.slots`).
        random: where session ids come from.
        exists: whether a partition is on this broker.
        max_partitions: of all sessions.
    """

    def __init__(
        self, slots: int, clock: Clock, random: Random, exists: Callable[[Key], bool], max_partitions: int = MAX_PARTITIONS
    ) -> None:
        self._slots = slots
        self._exists = exists
        self._max_partitions = max_partitions
        self._partition_count = 0
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
            FetchSessionTopicIdError: the session began with names and continues with ids, or the reverse.
        """
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id in self._sessions:
                self._end(request.session_id)
            # One that is named twice is asked for as it is named last, as with Kafka.
            asked = {(topic.topic, partition.partition): partition for topic in request.topics for partition in topic.partitions}
            if request.session_epoch == FINAL_EPOCH:
                return FetchScope(asked.items(), None, NO_SESSION)
            session = self._create(asked, uses_topic_ids, request.replica_id >= 0)
            return FetchScope(asked.items(), session, session.session_id if session else NO_SESSION)
        return self._continue(request, uses_topic_ids)

    def _end(self, session_id: int) -> None:
        self._partition_count -= len(self._sessions.pop(session_id).partitions)

    def _has_too_many_unknown(self, keys: Iterable[Key]) -> bool:
        unknown = (key for key in keys if not self._exists(key))
        return sum(1 for _ in islice(unknown, MAX_UNKNOWN + 1)) > MAX_UNKNOWN

    def _create(self, asked: dict[Key, FetchPartition], uses_topic_ids: bool, is_follower: bool) -> FetchSession | None:
        now = self._clock.monotonic()
        if len(asked) > self._max_partitions or self._has_too_many_unknown(asked):
            return None
        while len(self._sessions) >= self._slots or self._partition_count + len(asked) > self._max_partitions:
            if not self._evict((is_follower, len(asked)), now):
                return None
        session_id = self._random.randrange(1, MAX_EPOCH)
        while session_id in self._sessions:
            session_id = self._random.randrange(1, MAX_EPOCH)
        session = FetchSession(session_id, uses_topic_ids, is_follower, 1, now, now, OrderedDict(asked), {})
        self._sessions[session_id] = session
        self._partition_count += len(asked)
        return session

    def _evict(self, worth: Worth, now: float) -> bool:
        """Makes room for a session, if there is one that it may have the place of (`FetchSessionCache.tryEvict`)."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now - oldest.last_used >= EVICTION_SECONDS:
            self._end(oldest.session_id)
            return True
        is_follower = worth[0]
        until, refused = self._refused.get(is_follower, (0.0, worth))
        if now < until and worth <= refused:
            return False
        evictable = (session for session in self._sessions.values() if self._may_go(session, is_follower, now))
        least = min(evictable, key=lambda session: session.worth, default=None)
        if least is None or worth <= least.worth:
            self._refused[is_follower] = now + _LOOK_AGAIN_SECONDS, worth if least is None else max(worth, least.worth)
            return False
        self._end(least.session_id)
        return True

    @staticmethod
    def _may_go(session: FetchSession, for_follower: bool, now: float) -> bool:
        return now - session.created >= EVICTION_SECONDS or (for_follower and not session.is_follower)

    def _continue(self, request: FetchRequest, uses_topic_ids: bool) -> FetchScope:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise FetchSessionIdNotFound(f"fetch session {request.session_id} is not known")
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpoch(
                f"fetch session {request.session_id} is at epoch {session.epoch}, the request has {request.session_epoch}"
            )
        if session.uses_topic_ids != uses_topic_ids:
            raise FetchSessionTopicIdError(f"fetch session {request.session_id} changed between topic names and topic ids")
        before, added = len(session.partitions), list[Key]()
        for asked in request.topics:
            for requested in asked.partitions:
                key = asked.topic, requested.partition
                if key not in session.partitions:
                    added.append(key)
                session.partitions[key] = requested
        for topic in request.forgotten:
            for partition in topic.partitions:
                session.partitions.pop((topic.topic, partition), None)
                session.said.pop((topic.topic, partition), None)
        self._partition_count += len(session.partitions) - before
        if added and (self._partition_count > self._max_partitions or self._has_too_many_unknown(added)):
            # What it says now is answered; then its reader has to begin again, and gets a session if there is room for it.
            self._end(session.session_id)
            return FetchScope(session.partitions.items(), session, session.session_id)
        session.epoch = session.epoch + 1 if session.epoch < MAX_EPOCH else 1
        session.last_used = self._clock.monotonic()
        self._sessions.move_to_end(session.session_id)
        return FetchScope(session.partitions.items(), session, session.session_id)

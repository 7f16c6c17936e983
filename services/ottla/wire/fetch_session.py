"""The asking side of an incremental fetch session (KIP-227): what a broker knows of what a follower or a consumer wants.

The first request of a session names every partition, each one after it only those that changed, and those to be left out
from now on. The broker answers with what has news. `broker.fetch_sessions` is the other end.

The broker remembers what it has told us of a partition and does not repeat it. So when an answer was not taken in (it came
for a former leader epoch, or was damaged), the partition is forgotten in one request and asked for again in the next:
forgetting wins over asking within one request.

Pure: no I/O, and no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from ottla.protocol.fetch import FetchPartition, FetchTopic, ForgottenTopic

Key = tuple[UUID | str, int]  # topic, by id or (below Fetch 13) by name, and partition

NO_SESSION: Final = 0
FULL: Final = 0  # the session epoch of a request that begins a session
MAX_EPOCH: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What a request says of the session. Those held back are to be asked for in the next one."""

    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]
    held_back: tuple[Key, ...]


class FetchSession:
    """One session, from its first request until it is refused or not needed any more.

    Args:
        former_id: the session before it, which the leader then gives up.
    """

    __slots__ = ("_asked", "_epoch", "_forgotten", "session_id")

    def __init__(self, former_id: int = NO_SESSION) -> None:
        self.session_id = former_id
        self._epoch = FULL
        self._asked: dict[Key, FetchPartition] = {}
        self._forgotten: dict[Key, None] = {}

    @property
    def begins(self) -> bool:
        """Whether the next request has to name every partition."""
        return self._epoch == FULL

    def asked(self, key: Key) -> FetchPartition | None:
        """What the leader was asked last of a partition; None when an answer for it is of no use."""
        return self._asked.get(key)

    def forget(self, key: Key) -> None:
        """The partition is left out from now on, and what is still answered for it is of no use."""
        if self._asked.pop(key, None) is not None:
            self._forgotten[key] = None

    def request(self, wanted: Mapping[Key, FetchPartition]) -> SessionRequest:
        """The next request.

        Args:
            wanted: what changed and what is new; when the session begins, everything.
        """
        if self.begins:
            self._asked = dict(wanted)
            self._forgotten.clear()
            return SessionRequest(self.session_id, self._epoch, _by_topic(wanted.items()), [], ())
        held_back = tuple(key for key in wanted if key in self._forgotten)
        news = {key: each for key, each in wanted.items() if self._asked.get(key) != each and key not in self._forgotten}
        self._asked.update(news)
        forgotten: dict[UUID | str, list[int]] = {}
        for topic, partition in self._forgotten:
            forgotten.setdefault(topic, []).append(partition)
        self._forgotten.clear()
        return SessionRequest(
            self.session_id,
            self._epoch,
            _by_topic(news.items()),
            [ForgottenTopic(topic, partitions) for topic, partitions in forgotten.items()],
            held_back,
        )

    def answered(self, session_id: int) -> None:
        """An answer without an error came, from the session of that id."""
        if self.begins:
            # Without a session (the leader has as many as it keeps) every request names everything.
            self.session_id = session_id
            self._epoch = FULL if session_id == NO_SESSION else 1
        else:
            self._epoch = self._epoch + 1 if self._epoch < MAX_EPOCH else 1


def _by_topic(partitions: Iterable[tuple[Key, FetchPartition]]) -> list[FetchTopic]:
    topics: dict[UUID | str, list[FetchPartition]] = {}
    for (topic, _), each in partitions:
        topics.setdefault(topic, []).append(each)
    return [FetchTopic(topic, asked) for topic, asked in topics.items()]

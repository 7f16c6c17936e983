"""The partitions of one fetcher that no lane asks for at the moment: those that are ready, and those that wait.

A partition waits after an error, or because of a throttle. Each waits by itself: the others are asked for meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.broker.replication.following import Follow
from ottla.model import TopicPartition
from ottla.wire.fetch_session import Key

# An error is mostly that the leader does not know yet that it leads, so the first wait is a 32nd of the longest.
FIRST_WAITS: Final = 5
UNKNOWN: Final = 1 << 63


class PartitionFetchState:
    """One partition that is followed; a new leader epoch makes a new one."""

    __slots__ = ("failures", "follow", "is_given_up", "key", "leader_high_watermark", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, follow: Follow) -> None:
        self.topic_partition: Final = topic_partition
        self.follow = follow
        self.key: Final[Key] = (follow.topic_id, topic_partition.partition)
        self.failures = 0  # without a success in between
        self.is_given_up = False  # until the controller says more
        self.leader_high_watermark = UNKNOWN  # as last received: a follower that has reached it does not lag

    def continues(self, follow: Follow) -> bool:
        """Whether that is the same leadership of the same topic."""
        return (self.follow.leader_epoch, self.follow.topic_id) == (follow.leader_epoch, follow.topic_id)


def wait_seconds(failures: int, longest_ms: int) -> float:
    """How long to wait after so many failures in a row: twice as long each time, up to the longest."""
    return longest_ms / 1000 / (1 << max(FIRST_WAITS - (failures - 1), 0))


class FetchQueue:
    """What the lanes of a fetcher take from, and put back into."""

    def __init__(self) -> None:
        self._ready: dict[PartitionFetchState, None] = {}
        self._waiting: dict[PartitionFetchState, asyncio.TimerHandle] = {}
        self._filled = asyncio.Event()

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def put(self, followed: PartitionFetchState) -> None:
        """To be asked for as soon as a lane is free."""
        self.discard(followed)
        self._ready[followed] = None
        self._filled.set()

    def put_later(self, followed: PartitionFetchState, seconds: float) -> None:
        """To be asked for after a while."""
        self.discard(followed)
        self._waiting[followed] = asyncio.get_running_loop().call_later(seconds, self.put, followed)

    def discard(self, followed: PartitionFetchState) -> None:
        """Not to be asked for any more."""
        self._ready.pop(followed, None)
        timer = self._waiting.pop(followed, None)
        if timer is not None:
            timer.cancel()

    def take(self) -> list[PartitionFetchState]:
        """Everything that is ready."""
        taken = list(self._ready)
        self._ready.clear()
        self._filled.clear()
        return taken

    async def filled(self) -> None:
        """Waits until something is ready."""
        await self._filled.wait()

    def close(self) -> None:
        """Nothing becomes ready any more."""
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        self._ready.clear()

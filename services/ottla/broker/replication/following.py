"""What the parts of follower fetching say to each other and to the replicas: whom to follow, and by what connection.

`Fetchers` gets a `Follow` for each partition whose leader is another broker. It reaches that broker by a
`FetchConnection`, of which `wire.connection` has the real one; the simulation has its own. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from uuid import UUID

from ottla.config.topic import TopicSettings
from ottla.model import BrokerRegistration, Endpoint


@dataclass(frozen=True, slots=True)
class Follow:
    """Whom a partition follows, and since which leader epoch."""

    leader: BrokerRegistration
    leader_epoch: int
    topic_id: UUID


class FetchConnection(Protocol):
    """A connection to a leader: one request at a time."""

    async def exchange(self, request: bytes, timeout_seconds: float) -> memoryview:
        """Sends a frame (header and body, without its length) and gives the frame that answers it, until the next call.

        After any error, cancellation included, the connection is of no more use than to be closed.

        Raises:
            OSError: the connection was lost; TimeoutError is one of these.
            MalformedResponse: what came is no frame that could be an answer.
        """
        ...

    async def close(self) -> None:
        """Ends the connection at once. Closing again does nothing."""
        ...


Connect = Callable[[Endpoint], Awaitable[FetchConnection]]  # raises OSError


class FollowerPosition(NamedTuple):
    """Where a follower's log ends, and what its leader must know to compare the two logs (KIP-595)."""

    fetch_offset: int
    last_fetched_epoch: int
    current_leader_epoch: int
    log_start_offset: int


class FollowingReplica(Protocol):
    """What fetching asks of a partition; `Partition` is one.

    Raises:
        KafkaStorageError: the log's directory has failed.
    """

    @property
    def settings(self) -> TopicSettings: ...

    @property
    def must_checkpoint_truncation(self) -> bool:
        """Whether something has to be on the disk before the next fetch, which tells the leader that it is there."""
        ...

    async def checkpoint_truncation(self) -> None:
        """Waits until it is on the disk."""
        ...

    def fetch_position(self) -> FollowerPosition:
        """From where on to fetch. What `must_checkpoint_truncation` says comes first."""
        ...

    def append_as_follower(self, records: memoryview, leader_epoch: int, high_watermark: int, log_start_offset: int) -> bool:
        """Takes in what the leader of that epoch answered; False when that one is not followed any more, or it has to be asked again.

        Raises:
            CorruptMessage: the records are damaged or do not continue the log.
        """
        ...

    def truncate_for(self, diverging_epoch: int, end_offset: int) -> bool:
        """Drops what the leader does not have: its log has the epoch up to that offset; -1: that is where its log ends.

        False when it did not, and the leader has to be asked again: what `must_checkpoint_truncation` says comes first.
        """
        ...

    def restart_at(self, offset: int) -> bool:
        """Drops everything and continues from the leader's first offset, which lies beyond the end here. False as above."""
        ...

"""The partitions of an internal topic that this broker leads, and so coordinates what belongs to them.

A group or a transactional id belongs to the partition that it hashes to, and its coordinator is that partition's leader. So
it moves with the leadership: the new leader reads the partition and continues where the old one was.

A partition is led in one leader epoch and is never led again in an older one; what was resigned answers NOT_COORDINATOR, what
is being read COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from ottla.broker.metadata import MetadataCache
from ottla.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from ottla.lifecycle import Backoff, Offload, Tasks
from ottla.model import TopicPartition

log: Final = logging.getLogger(__name__)

# Between two attempts to load a partition.
_BACKOFF: Final = Backoff(first_seconds=1.0, longest_seconds=30.0)
_LATE_SECONDS: Final = 0.1
_READING_SECONDS: Final = 1.0


def reading_seconds(late_seconds: float) -> float:
    """For how long a deadline that the loop came to so late waits once more; 0 where the loop has not stood still.

    What clients sent while it did is read first: a member may have been heard, or a transaction ended.
    """
    return min(late_seconds, _READING_SECONDS) if late_seconds > _LATE_SECONDS else 0.0


def as_coordinator_error(error: ApiError) -> ApiError:
    """What is answered when a coordinator could not write: whether to ask it again, or to look for another one."""
    match error:
        case UnknownTopicOrPartition() | NotEnoughReplicas() | NotEnoughReplicasAfterAppend() | RequestTimedOut():
            return CoordinatorNotAvailable(error.message)
        case NotLeaderOrFollower() | KafkaStorageError():
            return NotCoordinator(error.message)
    return error


class StatePartition(Protocol):
    """One partition, for one leader epoch."""

    @property
    def key(self) -> TopicPartition: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def is_loaded(self) -> bool:
        """Whether it has been read, and requests are served."""
        ...

    async def load(self, offload: Offload) -> None:
        """Reads the partition. Raises ApiError when the leadership went meanwhile, or the partition cannot be read."""
        ...

    def close(self) -> None:
        """Another broker leads the partition, or this one stops."""
        ...

    async def ended(self) -> None:
        """Waits until nothing of it runs any more; after `close`."""
        ...


P = TypeVar("P", bound=StatePartition)


class StatePartitions(Generic[P]):
    """Those of one topic.

    Args:
        topic: its name.
        make: the coordinator of a partition, for a leader epoch.
        offload: decodes outside the loop.
        metadata: how many partitions the topic has.
        partition_count: how many it would be created with.
    """

    def __init__(
        self,
        topic: str,
        make: Callable[[TopicPartition, int], P],
        offload: Offload,
        metadata: MetadataCache,
        partition_count: int,
    ) -> None:
        self._topic = topic
        self._make = make
        self._offload = offload
        self._metadata = metadata
        self._partition_count = partition_count
        self._partitions: dict[int, P] = {}
        self._loading: dict[P, asyncio.Task[None]] = {}
        self._ending: Final = Tasks()

    def __iter__(self) -> Iterator[P]:
        return iter(list(self._partitions.values()))

    async def close(self) -> None:
        """Resigns from all."""
        for index in list(self._partitions):
            self.resign(index)
        await asyncio.gather(*self._loading.values(), *self._ending, return_exceptions=True)

    def lead(self, index: int, leader_epoch: int) -> None:
        """This broker leads a partition in this epoch, and begins to read it."""
        known = self._partitions.get(index)
        if known is not None and known.leader_epoch >= leader_epoch:
            return
        self.resign(index)
        partition = self._partitions[index] = self._make(TopicPartition(self._topic, index), leader_epoch)
        task = asyncio.get_running_loop().create_task(loaded_at_last(partition, self._offload), name=f"loading {partition.key}")
        self._loading[partition] = task
        task.add_done_callback(lambda _: self._loading.pop(partition, None))

    def resign(self, index: int) -> None:
        """This broker does not lead the partition any more."""
        partition = self._partitions.pop(index, None)
        if partition is not None:
            loading = self._loading.get(partition)
            if loading is not None:
                loading.cancel()
            partition.close()
            self._ending.begin(partition.ended())

    def get(self, index: int) -> P | None:
        """The partition, if it is led here."""
        return self._partitions.get(index)

    def index_of(self, name: str) -> int:
        """The partition that has what belongs to a group id or a transactional id."""
        return partition_of(name, self._metadata.partition_count(self._topic, self._partition_count))

    def of(self, name: str, kind: str) -> P:
        """The partition that a group id or transactional id belongs to.

        Args:
            kind: of the name, for the message.

        Raises:
            NotCoordinator: another broker coordinates it.
            CoordinatorLoadInProgress: its partition is still being read.
        """
        index = self.index_of(name)
        # Until it is known how many partitions there are, what is written to one of them may belong to another.
        partition = self._partitions.get(index) if self._metadata.topic(self._topic) is not None else None
        if partition is None:
            raise NotCoordinator(f"{kind} {name} belongs to {self._topic}-{index}, which is not led here")
        if not partition.is_loaded:
            raise CoordinatorLoadInProgress(f"{partition.key} is being read")
        return partition

    @property
    def is_loading(self) -> bool:
        """Whether some have not been read yet."""
        return any(not partition.is_loaded for partition in self._partitions.values())

    async def rounds(self, seconds: float, act: Callable[[P], Awaitable[None] | None], failure: str) -> None:
        """Acts on each partition that has been read, in every interval. What fails for one is logged, and tried again in the next."""
        time = asyncio.get_running_loop().time
        while True:
            due = time() + seconds
            await asyncio.sleep(seconds)
            if waits := reading_seconds(time() - due):
                await asyncio.sleep(waits)
            for partition in self:
                if partition.is_loaded:
                    try:
                        acting = act(partition)
                        if acting is not None:
                            await acting
                    except Exception:  # one partition must not stop the rounds of the others
                        log.exception("%s: %s, retrying in the next round", partition.key, failure)
                await asyncio.sleep(0)


async def loaded_at_last(partition: StatePartition, offload: Offload) -> None:
    """Has a coordinator read a partition, again and again until it is read.

    As long as this broker leads the partition no other broker can be asked; a coordinator that resigns cancels this. An
    unexpected error must not make COORDINATOR_LOAD_IN_PROGRESS the answer for ever either.
    """
    unexpected = 0
    while True:
        try:
            await partition.load(offload)
            return
        except NotCoordinator:
            return
        except ApiError as error:
            log.error("%s: loading failed, retrying in %g s: %s", partition.key, _BACKOFF.first_seconds, error)
            await asyncio.sleep(_BACKOFF.first_seconds)
        except Exception:  # see above: the load is repeated
            pause = _BACKOFF.seconds(unexpected)
            log.exception("%s: loading failed, retrying in %g s", partition.key, pause)
            await asyncio.sleep(pause)
            unexpected += 1


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 code units, as a signed 32-bit number."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(encoded), 2):
        value = (31 * value + (encoded[index] << 8 | encoded[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_of(key: str, partition_count: int) -> int:
    """The partition that has what belongs to a group id or a transactional id. Every broker and tool computes the same."""
    hashed = java_hash(key)
    # As Kafka's Utils.abs: the smallest number has no positive counterpart in 32 bits.
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partition_count

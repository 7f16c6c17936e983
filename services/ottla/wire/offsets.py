"""Where partitions begin and end, what offset they had at a time, and where a leader epoch ended: ListOffsets and OffsetForLeaderEpoch.

Many partitions are asked for at once: each leader gets one request with all of its partitions, and only those that it could not
answer for are asked for again, at their leaders of that time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from ottla.config.settings import LONG_MAX
from ottla.errors import NONE, ApiError, OttlaError, UnknownServerError, error_of
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.list_offsets_client import EARLIEST, FIRST_WITH_ISOLATION, LATEST, MAX_VERSION, MIN_VERSION, ListedOffset
from ottla.wire.cluster import Cluster, is_healed_by_time
from ottla.wire.fetching import ask_offsets

K = TypeVar("K")
V = TypeVar("V")
Answers = Mapping[TopicPartition, V | ApiError]

MAX_TIMESTAMP: Final = -3  # KIP-734: of the record with the largest timestamp
FIRST_WITH_MAX_TIMESTAMP: Final = 7
EPOCH_VERSIONS: Final = (2, 4)
CONSUMER: Final = -1  # the replica id of who is none

__all__ = ["EARLIEST", "LATEST", "MAX_TIMESTAMP", "EpochEnd", "ListedOffset", "ask_leaders", "epoch_ends", "list_offsets"]


class EpochEnd(NamedTuple):
    """The largest leader epoch up to the one asked for that a log has, and the offset behind its last record; -1 each for none."""

    leader_epoch: int
    end_offset: int


async def list_offsets(
    cluster: Cluster, asked: Mapping[TopicPartition, int], *, read_committed: bool = False, timeout_seconds: float | None = None
) -> dict[TopicPartition, ListedOffset]:
    """The offsets of partitions at a time: with their record's timestamp and leader epoch, -1 where there are none.

    Args:
        asked: for each partition milliseconds, for the first record that is not older (an offset of -1 says that all are); or
            EARLIEST, LATEST, MAX_TIMESTAMP.
        read_committed: LATEST is where the first open transaction begins.
        timeout_seconds: for all of it; the cluster's `api_timeout_seconds` if None.

    Raises:
        ApiError, OSError: of the first partition that was refused, or that no one could answer for in time.
        ValueError: a time takes more bits than a request has for it.
        UnsupportedVersion: MAX_TIMESTAMP, or `read_committed`, of a broker that does not know it.
    """
    if beyond := [time for time in asked.values() if not -LONG_MAX - 1 <= time <= LONG_MAX]:
        raise ValueError(f"{beyond[0]} is no time in ms")
    first = FIRST_WITH_ISOLATION if read_committed else MIN_VERSION
    if MAX_TIMESTAMP in asked.values():
        first = FIRST_WITH_MAX_TIMESTAMP

    async def ask(leader: BrokerId, some: Mapping[TopicPartition, int]) -> Answers[ListedOffset]:
        connection = await cluster.connection(leader)
        connection.version(ApiKey.LIST_OFFSETS, first, MAX_VERSION)
        answers: dict[TopicPartition, ListedOffset | ApiError] = {}
        for timestamp in set(some.values()):
            found = await ask_offsets(
                connection,
                timestamp,
                [(key, _leader_epoch(cluster, key)) for key, wanted in some.items() if wanted == timestamp],
                read_committed=read_committed,
                timeout_seconds=cluster.settings.request_timeout_seconds,
            )
            for key, listed in found.items():
                is_found = listed.error_code == NONE
                answers[key] = listed if is_found else error_of(listed.error_code, f"the offset of {key} at {timestamp}")
        return answers

    return await ask_leaders(cluster, asked, ask, timeout_seconds)


async def epoch_ends(cluster: Cluster, leader_epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
    """Where leader epochs ended (KIP-320): a reader whose last record is of that epoch and lies behind it has read what is gone.

    Args:
        leader_epochs: of each partition, the epoch of the last record that was read.

    Raises:
        As `list_offsets`.
    """

    async def ask(leader: BrokerId, asked: Mapping[TopicPartition, int]) -> Answers[EpochEnd]:
        def build(api: Any) -> Any:
            def partition(key: TopicPartition) -> Any:
                epoch = _leader_epoch(cluster, key)
                return api.build("OffsetForLeaderPartition", partition=key.partition, current_leader_epoch=epoch, leader_epoch=asked[key])

            topics = [api.build("OffsetForLeaderTopic", topic=topic, partitions=found) for topic, found in by_topic(asked, partition)]
            return api.build("OffsetForLeaderEpochRequest", replica_id=CONSUMER, topics=topics)

        answer = await cluster.ask(leader, ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_VERSIONS, build)
        return {
            key: EpochEnd(found.leader_epoch, found.end_offset)
            if found.error_code == NONE
            else error_of(int(found.error_code), f"end of leader epoch {asked.get(key)} of {key}")
            for topic in answer.topics
            for found in topic.partitions
            for key in [TopicPartition(topic.topic, found.partition)]
        }

    return await ask_leaders(cluster, leader_epochs, ask)


async def ask_leaders(
    cluster: Cluster,
    asked: Mapping[TopicPartition, K],
    ask: Callable[[BrokerId, Mapping[TopicPartition, K]], Awaitable[Answers[V]]],
    timeout_seconds: float | None = None,
) -> dict[TopicPartition, V]:
    """Has each partition's leader asked, once for all of its partitions, and again for those that time may heal.

    Args:
        asked: each partition, and what is asked of it.
        ask: sends one broker what is asked of its partitions, and gives the answer or the error of each. One that is not
            answered for is asked for again.

    Raises:
        As `list_offsets`.
    """
    loop = asyncio.get_running_loop()
    seconds = timeout_seconds or cluster.settings.api_timeout_seconds
    deadline = loop.time() + seconds
    answers: dict[TopicPartition, V] = {}
    left = dict(asked)
    failures = 0
    last: Exception | None = None
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                found = await _ask_once(cluster, left, ask)
        except TimeoutError:
            raise last or TimeoutError(f"{min(left)}: no answer within {seconds:g} s") from None
        for partition, answer in found.items():
            if not isinstance(answer, Exception):
                answers[partition] = answer
                left.pop(partition, None)
            elif cluster.is_closed or not is_healed_by_time(answer):
                raise answer
            else:
                last = answer
        if not left:
            return answers
        last = last or TimeoutError(f"nothing was answered for {min(left)}")
        pause = cluster.pause_seconds(failures)
        failures += 1
        if loop.time() + pause >= deadline:
            raise last
        await asyncio.sleep(pause)
        with suppress(OSError, OttlaError):
            async with asyncio.timeout_at(deadline):
                await cluster.refresh({partition.topic for partition in left})


async def _ask_once(
    cluster: Cluster,
    asked: Mapping[TopicPartition, K],
    ask: Callable[[BrokerId, Mapping[TopicPartition, K]], Awaitable[Answers[V]]],
) -> dict[TopicPartition, V | Exception]:
    """The answer or the error of each partition."""

    async def led(partition: TopicPartition) -> BrokerId | Exception:
        try:
            return await cluster.leader(partition)
        except (OSError, ApiError) as error:
            return error

    async def asked_of(leader: BrokerId, partitions: list[TopicPartition]) -> Mapping[TopicPartition, V | Exception]:
        try:
            found = await ask(leader, {partition: asked[partition] for partition in partitions})
        except (OSError, ApiError) as error:
            return dict.fromkeys(partitions, error)
        return {partition: found[partition] for partition in partitions if partition in found}

    outcomes: dict[TopicPartition, V | Exception] = {}
    by_leader: dict[BrokerId, list[TopicPartition]] = {}
    for partition, leader in zip(asked, await _all(list(map(led, asked))), strict=True):
        if isinstance(leader, Exception):
            outcomes[partition] = leader
        else:
            by_leader.setdefault(leader, []).append(partition)
    for found in await _all([asked_of(leader, partitions) for leader, partitions in by_leader.items()]):
        outcomes.update(found)
    return outcomes


async def _all(work: Sequence[Coroutine[Any, Any, V]]) -> Sequence[V]:
    """What each gives; a single one without a task of its own, as it is for a fetch of one partition after the other."""
    return [await work[0]] if len(work) == 1 else await asyncio.gather(*work)


def by_topic(partitions: Iterable[TopicPartition], build: Callable[[TopicPartition], V]) -> list[tuple[str, list[V]]]:
    """What a request says of each partition, topic by topic."""
    topics: dict[str, list[V]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(build(partition))
    return list(topics.items())


def left_out(partitions: Iterable[TopicPartition], answered: Container[TopicPartition]) -> dict[TopicPartition, ApiError]:
    """The partitions of which an answer does not speak, with an error for each: no one knows what became of them."""
    return {key: unanswered(key) for key in partitions if key not in answered}


def unanswered(what: object) -> UnknownServerError:
    """The error of something that was asked for and that an answer leaves out."""
    return UnknownServerError(f"{what}: the answer does not speak of it")


def _leader_epoch(cluster: Cluster, key: TopicPartition) -> int:
    """The epoch in which the partition is led, as far as it is known: a leader of another one refuses."""
    topic = cluster.metadata.topics.get(key.topic)
    partition = topic.partitions.get(key.partition) if topic is not None else None
    return -1 if partition is None else partition.leader_epoch

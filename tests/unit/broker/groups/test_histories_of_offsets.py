"""Committed offsets over histories: what a coordinator answers is what the committed part of the log says, and so does the next one.

The shard is real. Its log is modelled: the high watermark lags, appends are refused or time out, another broker leads with all that
is committed and some of the rest, and it is compacted. The oracle reads the log by rules of its own. Promised is that an acknowledged
commit is lost only by a deletion, an expiry or a deleted topic, that none is overwritten by an older one, and that no transaction
stays undecided behind its marker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import lru_cache
from itertools import product
from random import Random
from typing import Any, Final, ParamSpec, TypeVar
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.broker.groups.known_topics import KnownTopics
from tests.unit.broker.groups.logs_in_memory import MovingLog
from tests.unit.broker.groups.offsets_log import SETTINGS, shard_of

from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.heartbeat import Heartbeat
from ottla.broker.groups.records import CommittedOffset, OffsetKey, decode_key, decode_offset
from ottla.broker.groups.shard import GroupShard
from ottla.errors import ApiError, NotEnoughReplicas, UnknownTopicOrPartition
from ottla.model import NO_PRODUCER_ID, TopicPartition
from ottla.record.control_records import ControlRecordType
from ottla.testing.clock import ManualClock

GROUPS: Final = ("g", "h")
TOPICS: Final = ("clicks", "views")
PARTITIONS: Final = tuple(TopicPartition(topic, number) for topic in TOPICS for number in range(2))
PRODUCERS: Final = (7, 8)
EVENTS: Final = (
    *("commit",) * 6,
    *("commit in transaction",) * 5,
    *("marker", "marker", "marker is slow"),
    *("advance",) * 8,
    *("time out", "refuse", "topic", "remove", "remove", "delete", "delete offsets", "delete offsets", "expire", "expire", "time", "time"),
    *("member", "member", "lead again", "lead again"),
)
key_of, offset_of = lru_cache(decode_key), lru_cache(decode_offset)
P = ParamSpec("P")
R = TypeVar("R")
Key = tuple[str, TopicPartition]
Entry = tuple[int, int, UUID | None, int]  # where in the log, the offset, of which topic, committed when


class History:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.topics = KnownTopics(clicks=2, views=2)
        self.log, self.clock = MovingLog(), ManualClock()
        self.shard: GroupShard
        self.number = 0
        self.epochs = 0
        self.open: set[int] = set()  # producers with a transaction
        self.ends: dict[int, tuple[int, bool]] = {}  # of markers that are written: where, and how
        self.acknowledged: dict[Key, Entry] = {}
        self.forgotten: dict[Key, set[int]] = {key: set() for key in product(GROUPS, PARTITIONS)}  # where tombstones are
        self.unwaited: set[int] = set()  # those of them that count at once
        self.tasks: set[asyncio.Task[None]] = set()
        self.story: list[str] = []

    async def lead(self) -> None:
        self.epochs += 1
        self.shard = shard_of(self.log, self.clock, self.epochs, topics=self.topics)
        self.shard.topics_known()
        loading = asyncio.ensure_future(self.shard.load(after_a_turn))
        while not loading.done():
            await asyncio.sleep(0)
            if self.random.random() < 0.05:
                self.story.append("while it is read: " + self.topic(self.random.choice(TOPICS)))
            elif self.open and self.random.random() < 0.1:
                producer_id, is_commit = self.open.pop(), self.random.random() < 0.7
                self.log.append_marker(producer_id, _marker(is_commit))
                self.log.commit(self.log.end_offset)
                self.shard.transaction_ended(producer_id, is_commit)
                self.story.append(f"while it is read: marker of {producer_id}: {is_commit}")
        await loading

    # The oracle.

    def entries(self, high_watermark: int) -> tuple[dict[Key, Entry], dict[int, dict[Key, Entry]]]:
        """What the log says up to there, and what is undecided."""
        found: dict[Key, Entry] = {}
        undecided: dict[int, dict[Key, Entry]] = {}
        gone: dict[Key, int] = {}
        for written in self.log.written:
            if written.marker is not None:
                if written.end_offset <= high_watermark:
                    for key, entry in undecided.pop(written.producer_id, {}).items():
                        is_later = entry[0] > max(gone.get(key, -1), found[key][0] if key in found else -1)
                        if written.marker is ControlRecordType.COMMIT and is_later:
                            found[key] = entry
                continue
            for record in written.records:
                decoded = key_of(record.key or b"")
                if not isinstance(decoded, OffsetKey):
                    continue
                key = (decoded.group_id, TopicPartition(decoded.topic, decoded.partition))
                if record.value is None:
                    if written.end_offset <= high_watermark or record.offset in self.unwaited:
                        gone[key] = record.offset
                        found.pop(key, None)
                        for pending in undecided.values():
                            pending.pop(key, None)
                    continue
                stored = offset_of(record.value)
                entry = (record.offset, stored.committed.offset, stored.topic_id, stored.committed.commit_timestamp)
                if written.producer_id != NO_PRODUCER_ID:
                    undecided.setdefault(written.producer_id, {})[key] = entry
                elif written.end_offset <= high_watermark:
                    found[key] = entry
        return found, undecided

    def is_there(self, key: Key, topic_id: UUID | None) -> bool:
        topic = self.topics.topic(key[1].topic)
        return topic is not None and topic.topic_id == topic_id

    def look(self) -> None:
        found, undecided = self.entries(self.log.high_watermark)
        decided = {producer_id for producer_id, (offset, _) in self.ends.items() if offset < self.log.high_watermark}
        assert not decided, self.story
        for group_id in GROUPS:
            try:
                offsets = self.shard.offsets(group_id)
            except ApiError:
                assert self.log.refusal is not None, self.story
                continue
            for partition in PARTITIONS:
                key = (group_id, partition)
                entry = found.get(key)
                expected = entry[1] if entry is not None and self.is_there(key, entry[2]) else None
                told = offsets.get(partition)
                assert (None if told is None else told.offset) == expected, (key, told, entry, self.story)
                unstable = any(key in pending and self.is_there(key, pending[key][2]) for pending in undecided.values())
                assert offsets.is_unstable(partition) == unstable, (key, self.story)
                kept = self.acknowledged.get(key)
                if kept is not None and kept[0] > max(self.forgotten[key], default=-1) and self.is_there(key, kept[2]):
                    assert entry is not None, (key, kept, self.story)
                    assert entry[0] > kept[0] or entry == kept, (key, kept, self.story)

    def forgets(self, first: int, why: str) -> None:
        """Looks at the tombstones from an offset of the log on: whether they may be there."""
        if self.log.end_offset == first:
            return
        entries, undecided = self.entries(first)
        for written in self.log.written:
            for record in written.records if written.end_offset > first else ():
                decoded = key_of(record.key or b"")
                if record.offset < first or record.value is not None or not isinstance(decoded, OffsetKey):
                    continue
                key = (decoded.group_id, TopicPartition(decoded.topic, decoded.partition))
                self.forgotten[key].add(record.offset)
                if why == "offsets deleted":
                    continue
                self.unwaited.add(record.offset)
                if why == "expired":
                    assert self.clock.time_ms() - entries[key][3] >= SETTINGS.retention_ms, (key, self.story)
                    # One of a topic that was deleted since goes with it.
                    waits = any(key in pending and self.is_there(key, pending[key][2]) for pending in undecided.values())
                    assert not waits, (key, self.story)
                elif why == "topics":
                    some = [entries.get(key), *(pending.get(key) for pending in undecided.values())]
                    assert not any(entry is not None and self.is_there(key, entry[2]) for entry in some), (key, self.story)

    # Events.

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.add(asyncio.ensure_future(work))

    async def committing(self, group_id: str, partitions: list[TopicPartition], producer_id: int) -> None:
        first, shard, self.number = self.log.end_offset, self.shard, self.number + 1
        offset = self.number
        committed = CommittedOffset(offset, commit_timestamp=self.clock.time_ms())
        offsets = dict.fromkeys(partitions, committed)
        group = shard.group(group_id)
        epoch, member_id = -1, ""
        ids = {name: topic.topic_id for name in TOPICS if (topic := self.topics.topic(name)) is not None}
        if isinstance(group, ConsumerGroup) and group.members:
            member_id, member = next(iter(group.members.items()))
            epoch = member.position.epoch
        try:
            if producer_id == NO_PRODUCER_ID:
                outcomes = await shard.commit(group_id, epoch, member_id, None, offsets, knows_epochs=True)
            else:
                outcomes = await shard.commit_in_transaction(group_id, producer_id, 0, epoch, member_id, None, offsets)
        except ApiError as error:
            self.story.append(f"  {offset} is refused: {type(error).__name__}")
            return
        accepted = [partition for partition, outcome in outcomes.items() if not isinstance(outcome, UnknownTopicOrPartition)]
        for index, partition in enumerate(accepted):
            outcome, key = outcomes[partition], (group_id, partition)
            assert outcome is None or outcome.retriable, self.story
            if outcome is None and producer_id == NO_PRODUCER_ID:
                entry = (first + index, offset, ids[partition.topic], committed.commit_timestamp)
                self.acknowledged[key] = max(self.acknowledged.get(key, entry), entry, key=lambda each: each[0])

    async def deleting(self, group_id: str, partitions: list[TopicPartition] | None) -> None:
        first = self.log.end_offset
        try:
            if partitions is None:
                work: Coroutine[Any, Any, Any] = self.shard.delete(group_id)
            else:
                work = self.shard.delete_offsets(group_id, partitions)
            task = asyncio.ensure_future(work)
            await asyncio.sleep(0)
            self.forgets(first, "group deleted" if partitions is None else "offsets deleted")
            await task
        except ApiError as error:
            self.story.append(f"  the deletion is refused: {type(error).__name__}")

    async def step(self) -> None:
        random, log = self.random, self.log
        event, group_id = random.choice(EVENTS), random.choice(GROUPS)
        partitions = random.sample(PARTITIONS, random.randint(1, 3))
        if random.random() < 0.3:
            log.refusal = None
        said = event
        match event:
            case "commit":
                said = f"commit of {group_id}: {self.number + 1} {[*map(str, partitions)]}"
                self.begin(self.committing(group_id, partitions, NO_PRODUCER_ID))
            case "commit in transaction":
                producer_id = random.choice(PRODUCERS)
                if producer_id not in self.ends:
                    self.open.add(producer_id)
                    said = f"commit of {group_id} by {producer_id}: {self.number + 1} {[*map(str, partitions)]}"
                    self.begin(self.committing(group_id, partitions, producer_id))
            case "marker" if self.open - self.ends.keys() and log.refusal is None:
                producer_id, is_commit = random.choice(sorted(self.open - self.ends.keys())), random.random() < 0.7
                self.ends[producer_id] = log.append_marker(producer_id, _marker(is_commit)), is_commit
                said = f"marker of {producer_id}: {is_commit}"
            case "marker is slow" if self.ends and log.refusal is None:
                producer_id = random.choice(sorted(self.ends))
                is_commit = self.ends[producer_id][1]
                log.append_marker(producer_id, _marker(is_commit))
                said = f"marker of {producer_id} again"
            case "advance":
                log.commit(random.choice(log.boundaries()))
                said = f"high watermark {log.high_watermark}"
            case "time out":
                log.time_out()
            case "refuse":
                log.refusal = NotEnoughReplicas("1 of 2")
            case "topic":
                said = self.topic(random.choice(TOPICS))
            case "remove":
                await self.remove()
            case "delete":
                said = f"delete {group_id}"
                self.begin(self.deleting(group_id, None))
            case "delete offsets":
                said = f"delete of {group_id} {[*map(str, partitions)]}"
                self.begin(self.deleting(group_id, partitions))
            case "expire":
                first = log.end_offset
                await self.shard.expire()
                self.forgets(first, "expired")
            case "time":
                self.clock.advance(milliseconds=random.choice([1_000, SETTINGS.retention_ms // 2, SETTINGS.retention_ms]))
            case "member":
                said = f"member of {group_id}"
                await self.member(group_id)
            case "lead again":
                said = await self.lead_again()
        await self.settle(said)

    async def settle(self, said: str) -> None:
        self.story.append(said)
        for _ in range(4):
            await asyncio.sleep(0)
        for producer_id, (offset, is_commit) in list(self.ends.items()):
            if offset < self.log.high_watermark:  # as `MarkerWriter`, when its marker is committed
                self.shard.transaction_ended(producer_id, is_commit)
                del self.ends[producer_id]
                self.open.discard(producer_id)
        if self.random.random() < 0.4 or not self.open:
            first = self.log.end_offset
            for group_id in GROUPS:
                with contextlib.suppress(ApiError):
                    self.shard.offsets(group_id)
            self.forgets(first, "topics")
            self.look()
        for task in [task for task in self.tasks if task.done()]:
            task.result()
            self.tasks.discard(task)

    def topic(self, name: str) -> str:
        if self.topics.topic(name) is None:
            self.topics.make(name, 2)
            return f"{name} is made"
        self.topics.delete(name)
        again = self.random.random() < 0.5
        if again:
            self.topics.make(name, 2)
        self.shard.topics_deleted([name])
        return f"{name} is deleted" + (" and made again" if again else "")

    async def remove(self) -> None:
        first = self.log.end_offset
        try:
            await self.shard.remove_offsets_of_deleted_topics()
        except ApiError:
            assert self.log.refusal is not None
        self.forgets(first, "topics")

    async def member(self, group_id: str) -> None:
        """The only member of a consumer group comes, or goes."""
        group = self.shard.group(group_id)
        is_there = isinstance(group, ConsumerGroup) and bool(group.members)
        more: dict[str, Any] = {} if is_there else {"rebalance_timeout_ms": 60_000, "names": frozenset({"views"}), "owned": {}}

        async def beat(shard: GroupShard) -> None:
            try:
                await shard.consumer_heartbeat(group_id, Heartbeat("m", -1 if is_there else 0, **more))
            except ApiError as error:
                self.story.append(f"  the member is refused: {type(error).__name__}")

        self.begin(beat(self.shard))

    async def lead_again(self) -> str:
        random, log = self.random, self.log
        self.shard.close()
        log.refusal = None
        end_offset = random.choice([log.high_watermark, *log.boundaries()])
        for offsets in (self.unwaited, *self.forgotten.values()):
            offsets -= {offset for offset in offsets if offset >= end_offset}
        log.cut(end_offset)
        for producer_id, (offset, is_commit) in list(self.ends.items()):
            if offset >= end_offset:  # it is written at the new leader
                self.ends[producer_id] = log.append_marker(producer_id, _marker(is_commit)), is_commit
        log.high_watermark = log.end_offset
        if random.random() < 0.5:
            log.compact(random)
        if random.random() < 0.3:
            self.topic(random.choice(TOPICS))
        await self.shard.ended()
        for producer_id in list(self.ends):
            del self.ends[producer_id]
            self.open.discard(producer_id)
        await self.lead()
        return f"another leads, from {end_offset} on"

    async def run(self, steps: int) -> None:
        await self.lead()
        for _ in range(steps):
            await self.step()
        self.log.refusal = None
        for producer_id in self.open - self.ends.keys():
            self.ends[producer_id] = self.log.append_marker(producer_id, _marker(True)), True
        self.log.commit(self.log.end_offset)
        await self.settle("the end")
        assert not any(self.shard.offsets(group_id).is_unstable(partition) for group_id in GROUPS for partition in PARTITIONS)
        assert not self.tasks, self.story
        self.shard.close()
        await self.shard.ended()


async def after_a_turn(function: Callable[P, R], /, *arguments: P.args, **keywords: P.kwargs) -> R:
    await asyncio.sleep(0)
    return function(*arguments, **keywords)


def _marker(is_commit: bool) -> ControlRecordType:
    return ControlRecordType.COMMIT if is_commit else ControlRecordType.ABORT


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_offsets_are_what_the_committed_log_says(seed: int) -> None:
    asyncio.run(History(Random(seed)).run(60))

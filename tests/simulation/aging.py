"""Topics of which something goes by itself: by retention, by compaction, by an unclean election. One producer each.

What is promised differs, and so does what is judged at the end, when everything is read from the log's start:

    retention          what was acknowledged is there unless it had to go: with `retention.ms` it is older than that by some
                       broker's clock, with `retention.bytes` as much as that is behind it
    compaction         of each key the last that was acknowledged is there, or something newer
    unclean elections  what is there was sent, once, and is the same on all replicas; anything acknowledged may be lost

Everywhere offsets without transactions and compaction have no gaps, and an offset holds what its producer was told.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from tests.chaos.history import DAMAGED, NO_OFFSET, Outcome, Sends, value_of
from tests.simulation.asking import EARLIEST, NONE, OFFSET_OUT_OF_RANGE
from tests.simulation.producing import VALUE
from tests.simulation.scenes import Stage

from ottla.model import TopicPartition
from ottla.record.records import Record

END_ATTEMPTS: Final = 150
SLACK_MS: Final = 5_000
KEY_COUNT: Final = 5
PARTITION: Final = 0
UNCLEAN_TOPIC: Final = "n"


class _Aging:
    """One topic with one partition, a producer, and a look at everything at the end."""

    def __init__(
        self,
        stage: Stage,
        topic: str,
        settings: Mapping[str, str],
        key_of: Callable[[int], bytes | None] = lambda value: None,
        *,
        is_kept: bool = True,
    ) -> None:
        self.stage: Final = stage
        self.topic: Final = topic
        random = stage.random
        self.settings: Final = {
            "min.insync.replicas": "2",
            "segment.bytes": str(random.choice((1 << 12, 1 << 14))),
            "index.interval.bytes": str(random.choice((64, 512))),
            **settings,
        }
        self._every: Final = random.choice((0.1, 0.3))
        self.sends: Final[list[Sends]] = []
        self._producer: Final = stage.producer(topic, 1, self.sends, self._acknowledged if is_kept else _ignore, key_of, is_judged=is_kept)
        self.start = 0
        self.read: Final[dict[int, int]] = {}
        self.ended_ms = 0

    @property
    def topics(self) -> frozenset[str]:
        return frozenset({self.topic})

    async def begin(self) -> bool:
        for _ in range(20):
            if await self.stage.create(self.topic, 1, self.settings):
                return True
            await asyncio.sleep(1.0)
        return False

    async def run(self) -> None:
        await self._producer.run(self._every)

    def stop(self) -> None:
        self._producer.stop()

    async def after_healing(self) -> None:
        """The topic is never deleted."""

    def _acknowledged(self, partition: int, offset: int) -> None:
        self.stage.acknowledged(TopicPartition(self.topic, partition), offset)

    async def look_at_the_end(self) -> None:
        asker = self.stage.asker(f"reader of {self.topic}")
        position: int | None = None
        attempts = 0
        while attempts < END_ATTEMPTS:
            attempts += 1
            with suppress(OSError):
                if position is None:
                    error, offset = await asker.offset_at(self.topic, PARTITION, EARLIEST)
                    if error:
                        continue
                    position = self.start = offset
                found = await asker.fetch(self.topic, PARTITION, position)
                if found.error == NONE:
                    self._take(found.records)
                    if found.next_offset >= found.high_watermark:
                        break
                    if found.next_offset > position:
                        attempts, position = 0, found.next_offset
                        continue
                elif found.error == OFFSET_OUT_OF_RANGE:
                    # What was read so far has gone meanwhile, and more.
                    position = None
                    self.read.clear()
            await asyncio.sleep(0.2)
        else:
            self.stage.fail(f"{self.topic}: it cannot be read to its end, but to {position}")
        self.ended_ms = self.stage.time_ms()
        asker.view.close()

    def _take(self, records: tuple[Record, ...]) -> None:
        for record in records:
            if record.offset in self.read:
                self.stage.fail(f"{self.topic}: offset {record.offset} was read twice")
            self.read[record.offset] = DAMAGED if record.value is None else VALUE.unpack_from(record.value)[0]

    def acknowledged(self) -> Iterator[tuple[int, int, int]]:
        """Offset, value and when it was sent, of all that was acknowledged with its offset."""
        for sends in self.sends:
            for sequence, (offset, outcome) in enumerate(zip(sends.offsets, sends.outcomes, strict=True)):
                if outcome == Outcome.ACKNOWLEDGED and offset != NO_OFFSET:
                    yield offset, value_of(sends.process, sequence), sends.sent_at[sequence]

    def gaps(self) -> Iterator[str]:
        """Offsets between what was read that hold nothing."""
        offsets = sorted(self.read)
        for before, after in itertools.pairwise(offsets):
            if after != before + 1:
                yield f"{self.topic}: nothing is at the offsets from {before + 1} to {after - 1}"

    def misplaced(self) -> Iterator[str]:
        """Offsets that hold something else than a producer was told."""
        for offset, value, _ in self.acknowledged():
            if self.read.get(offset, value) != value:
                yield f"{self.topic}: {value:#x} was acknowledged at offset {offset}, which holds {self.read[offset]:#x}"

    def strangers(self) -> Iterator[str]:
        """Messages that no one sent, or that are there twice."""
        sent = {value_of(sends.process, sequence) for sends in self.sends for sequence in range(len(sends))}
        seen: dict[int, int] = {}
        for offset, value in sorted(self.read.items()):
            if value not in sent:
                yield f"{self.topic}: offset {offset} holds {value:#x}, which no one sent"
            if value in seen:
                yield f"{self.topic}: {value:#x} is at the offsets {seen[value]} and {offset}"
            seen[value] = offset


def _ignore(partition: int, offset: int) -> None:
    """Nothing follows from an acknowledgement."""


class Retention(_Aging):
    """The scene of topics whose segments go by age or by size."""

    def __init__(self, stage: Stage) -> None:
        self._milliseconds: Final = stage.random.choice((None, 20_000, 60_000))
        self._bytes: Final = None if self._milliseconds is not None else stage.random.choice((1 << 13, 1 << 15))
        settings = {"message.timestamp.type": "LogAppendTime", "segment.ms": str(stage.random.choice((3_000, 600_000)))}
        if self._milliseconds is not None:
            settings["retention.ms"] = str(self._milliseconds)
        if self._bytes is not None:
            settings["retention.bytes"] = str(self._bytes)
        super().__init__(stage, "r", settings)

    def findings(self) -> Iterator[str]:
        yield from self.gaps()
        yield from self.misplaced()
        yield from self.strangers()
        difference_ms = self.stage.cluster.clock_difference_ms + SLACK_MS
        for offset, value, sent_ms in self.acknowledged():
            if offset >= self.start:
                if offset not in self.read:
                    yield f"{self.topic}: {value:#x} was acknowledged at offset {offset}, which holds nothing"
            elif self._milliseconds is not None and self.ended_ms - sent_ms + difference_ms < self._milliseconds:
                yield (
                    f"{self.topic}: the log begins at {self.start}, and offset {offset} was sent {self.ended_ms - sent_ms} ms ago;"
                    f" it is kept for {self._milliseconds} ms"
                )
        if self._bytes is not None and self.start > 0:
            for machine in self.stage.cluster.machines.values():
                replica = machine.replicas.get(TopicPartition(self.topic, PARTITION))
                if replica is not None and replica.is_leader:
                    size = sum(path.stat().st_size for path in replica.log.directory.glob("*.log"))
                    if size < self._bytes:
                        yield f"{self.topic}: the log begins at {self.start} and has {size} bytes; {self._bytes} are kept"


class Compaction(_Aging):
    """The scene of a compacted topic with few keys."""

    def __init__(self, stage: Stage) -> None:
        settings = {"cleanup.policy": "compact", "segment.ms": str(stage.random.choice((1_000, 5_000))), "delete.retention.ms": "1000"}
        super().__init__(stage, "c", settings, _key_of)

    def findings(self) -> Iterator[str]:
        yield from self.misplaced()
        yield from self.strangers()
        last = {_key_of(value): offset for offset, value in sorted(self.read.items())}
        wanted: dict[bytes, int] = {}
        for offset, value, _ in self.acknowledged():
            wanted[_key_of(value)] = max(offset, wanted.get(_key_of(value), NO_OFFSET))
        for key, offset in sorted(wanted.items()):
            if last.get(key, NO_OFFSET) < offset:
                yield f"{self.topic}: of key {key!r} offset {offset} was acknowledged, and the last that is there is {last.get(key)}"


def _key_of(value: int) -> bytes:
    return b"key-%d" % (value % KEY_COUNT)


class UncleanElections(_Aging):
    """The scene of a topic that rather loses what was acknowledged than has no leader."""

    def __init__(self, stage: Stage) -> None:
        settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        super().__init__(stage, UNCLEAN_TOPIC, settings, is_kept=False)

    def findings(self) -> Iterator[str]:
        yield from self.gaps()
        yield from self.strangers()

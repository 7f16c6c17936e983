"""The books of one window of one topic: what each tier had, by partition and host, and how far each tier had come.

Evidence is joined here. A broker sees no contents and a client no batch; where two tiers have the same offsets, what the one knows of their
contents holds for the other. Nothing here does I/O.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ottla.audit_counter.windows import SessionStanding
from ottla.record.audit_records import NO_OFFSETS, NO_PARTITION, Tally
from ottla.record.digests import OffsetSums

PRODUCER: Final = "producer"
BROKER: Final = "broker"
LOG: Final = "log"
CONSUMER: Final = "consumer:"  # before the name of a group
# Before the name of a link: what a mirror has read, in the cluster that it reads; and what it has written, in the other one.
_MIRROR: Final = "mirror:"
_MIRRORED: Final = "mirrored:"


def is_of_ranges(tier: str) -> bool:
    """Whether its records are of ranges of offsets, and one that begins before another one's end takes that one's place."""
    return tier == BROKER or tier.startswith(_MIRROR)


def is_mirrored(tier: str) -> bool:
    """Whether it is a mirror's that writes."""
    return tier.startswith(_MIRRORED)


def is_writer(tier: str) -> bool:
    """Whether messages come from it."""
    return tier == PRODUCER or is_mirrored(tier)


class Moved(NamedTuple):
    """What the headers of batches whose times go back say of a window too much: messages that its log does not have, less those that
    they say of other windows.
    """

    messages: int = 0
    offsets: OffsetSums = NO_OFFSETS


@dataclass(slots=True)
class Books:
    """One window of one topic.

    Attributes:
        tallies: of each tier, by partition and host.
        sessions: of each tier on the topic.
        positions: of each tier, the offset that it counts next, by partition.
        beginnings: of each tier, the first offset that it counted, by partition.
        reporting: tiers that ever said something of the topic.
        repeated: how many records of the log had the content of another one; None unless the log was read.
        moved: of each partition whose log was read and where it is something.
        is_log_gone: the log cannot be read any more, or not all of it.
        is_former: it has messages of a former topic of the name, which was deleted.
        is_mixed: and something was said of it since, of the topic that there is now.
    """

    start_ms: int
    window_ms: int
    tallies: dict[str, dict[tuple[int, str], Tally]] = field(default_factory=dict)
    sessions: Mapping[str, tuple[SessionStanding, ...]] = field(default_factory=dict)
    positions: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    beginnings: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    reporting: frozenset[str] = frozenset()
    repeated: int | None = None
    moved: Mapping[int, Moved] = field(default_factory=dict)
    is_log_gone: bool = False
    is_former: bool = False
    is_mixed: bool = False

    @property
    def end_ms(self) -> int:
        """Where the next window begins."""
        return self.start_ms + self.window_ms

    def add(self, tier: str, partition: int, host: str, tally: Tally) -> None:
        """Enters what a host saw of a partition."""
        self.tallies.setdefault(tier, {}).setdefault((partition, host), Tally()).merge(tally)

    def by_partition(self, tier: str) -> dict[int, Tally]:
        """A tier's counts, hosts added up."""
        found: dict[int, Tally] = {}
        for (partition, _), tally in self.tallies.get(tier, {}).items():
            found.setdefault(partition, Tally()).merge(tally)
        return found

    def hosts(self, tier: str, partition: int) -> tuple[str, ...]:
        """That had something of a partition."""
        return tuple(sorted(host for number, host in self.tallies.get(tier, {}) if number == partition and host))

    def written(self, joined: Mapping[str, Mapping[int, Tally]]) -> dict[int, Tally]:
        """What all writers together have, by partition: no broker can tell which of them a message is from."""
        found: dict[int, Tally] = {}
        for tier in filter(is_writer, joined):
            for partition, tally in joined[tier].items():
                found.setdefault(partition, Tally()).merge(tally)
        return found

    def edges(self, expected: Iterable[str]) -> Iterator[tuple[str, str]]:
        """What is compared: the way of a message from the producer to the broker, and from there to each tier behind.

        A mirror that writes stands in the place of producers, which are then expected no more.

        Args:
            expected: tiers whose silence is said.
        """
        known = self.reporting | frozenset(expected)
        hub = BROKER if BROKER in self.reporting or (BROKER in known and LOG not in self.reporting) else LOG
        if hub not in known:
            hub = PRODUCER
        mirrors = sorted(filter(is_mirrored, known))
        if PRODUCER in (self.reporting if mirrors else known) and hub != PRODUCER:
            yield PRODUCER, hub
        if hub != PRODUCER:
            yield from ((tier, hub) for tier in mirrors)
        if hub == BROKER and self.repeated is not None:
            yield BROKER, LOG
        for tier in sorted(known - {PRODUCER, BROKER, LOG, *mirrors}):
            yield hub, tier

    def joined(self) -> dict[str, dict[int, Tally]]:
        """Each tier's counts by partition, with what another tier knows of the same messages."""
        found = {tier: self.by_partition(tier) for tier in self.tallies}
        for tier in self.reporting if self.moved else ():
            if is_of_ranges(tier) or is_mirrored(tier):
                found[tier] = found.get(tier, {}) | dict(self._by_records(found.get(tier, {}), found.get(LOG, {})))
        brokers = found.get(BROKER, {})
        for partition, tally in brokers.items():
            for tier in (PRODUCER, LOG):  # the nearer to the application first: the log may be what is wrong
                other = found.get(tier, {}).get(partition)
                if tally.placed is None and other is not None and other.placed is not None and has_same_offsets(tally, other):
                    tally = brokers[partition] = dataclasses.replace(tally, placed=other.placed, sketch=other.sketch)
        return found

    def _by_records(self, by_headers: Mapping[int, Tally], in_log: Mapping[int, Tally]) -> Iterator[tuple[int, Tally]]:
        """What a tier that counts by headers has as its log tells it by records, where it has just what the log's headers say."""
        for partition, moved in self.moved.items():
            tally, log = by_headers.get(partition, Tally()), in_log.get(partition, Tally())
            same = log.offsets is not None and tally.offsets == log.offsets.plus(moved.offsets)
            if same and tally.count == log.count + moved.messages:
                first, last = log.first_offset, log.last_offset
                yield partition, dataclasses.replace(tally, count=log.count, offsets=log.offsets, first_offset=first, last_offset=last)


def has_same_offsets(one: Tally, another: Tally) -> bool:
    """Whether two tallies are of the same offsets, as far as their sums tell."""
    return one.count == another.count and one.offsets is not None and one.offsets == another.offsets


def last_offsets(tallies: Mapping[int, Tally]) -> dict[int, int]:
    """The last offset of each partition that has one."""
    return {partition: tally.last_offset for partition, tally in tallies.items() if partition != NO_PARTITION}

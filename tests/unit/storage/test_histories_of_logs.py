"""Logs over histories: they are written, rolled, synced, cut, cleaned and stopped, their files are damaged, and they are opened again.

What is found afterwards is held against what was written, by the simulation's audit. A kill leaves what was written in the page cache;
what only memory had of the indexes is gone.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.simulation.log_audit import findings

from ottla.record.batch import batches
from ottla.record.control_records import EndTransactionMarker, build_marker_batch
from ottla.record.records import Record, build_batch
from ottla.testing import ManualClock

from .cleanings import ABORT, COMMIT, cleaner_of
from .logs import FailingFiles, append, log_maker, truncate

SETTINGS: Final = {"segment_bytes": 2_500, "index_interval_bytes": 300}
EVENTS: Final = (
    *("produce",) * 8,
    *("end", "end", "roll", "sync", "sync", "checkpoint", "cut", "epoch", "restart", "restart", "clean", "start"),
)
SUFFIXES: Final = (".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint")


class History:
    """One log in one directory."""

    def __init__(self, directory: Path, random: Random) -> None:
        self.random = random
        self.clock = ManualClock(1_000_000)
        self.make = log_maker(directory, self.clock, FailingFiles())
        self.is_compacted = random.random() < 0.3
        self.settings: dict[str, Any] = {**SETTINGS, **({"cleanup_policy": ("compact",)} if self.is_compacted else {})}
        self.producers: dict[int, tuple[int, int]] = {}  # the next sequence of each, and how many records its open transaction has
        self.epoch = 0
        self.checkpoint = 0  # the recovery point as the checkpoint has it
        self.start_offset = self.furthest_start = 0
        self.is_over = False  # its records are aside: it ended before its start offset
        self.cleaned_up_to = 0
        self.story: list[str] = []
        self.log = self.make(**self.settings)

    def tell(self, event: str) -> None:
        self.story.append(event)

    def check(self, event: str) -> None:
        self.tell(event)
        found = list(findings(self.log, self.random, looks=6, checks_bytes=True))
        assert found == [], [*self.story, found]

    def produce(self) -> None:
        log, random = self.log, self.random
        producer_id = random.choice((-1, -1, 1, 2, 3))
        count = random.randint(1, 5)
        timestamp = 1_000_000 + random.choice((0, 0, random.randint(-500, 5_000)))
        records = [
            Record(
                log.log_end_offset + number, timestamp + random.randint(0, 9), b"k%d" % random.randint(0, 9), bytes(random.randint(0, 90))
            )
            for number in range(count)
        ]
        sequence, open_records = self.producers.get(producer_id, (0, 0))
        is_transactional = producer_id >= 2
        more: dict[str, Any] = {}
        if producer_id >= 0:
            more = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence, "transactional": is_transactional}
            self.producers[producer_id] = sequence + count, open_records + count * is_transactional
        append(log, build_batch(records, base_offset=log.log_end_offset, leader_epoch=self.epoch, **more))

    def end_transaction(self) -> None:
        for producer_id, (sequence, open_records) in self.producers.items():
            if open_records:
                control = self.random.choice((ABORT, COMMIT))
                append(
                    self.log,
                    build_marker_batch(
                        EndTransactionMarker(control, 3),
                        base_offset=self.log.log_end_offset,
                        timestamp=1_000_000,
                        producer_id=producer_id,
                        producer_epoch=0,
                        leader_epoch=self.epoch,
                    ),
                )
                self.producers[producer_id] = sequence, 0
                return

    async def cut(self) -> None:
        bases = [header.base_offset for batch in self.content() for _, header in batches(batch)]
        later = [offset for offset in bases if offset > self.furthest_start]  # what is committed is not cut
        if not later:
            return
        offset = self.random.choice(later)
        await truncate(self.log, offset)
        self.checkpoint = min(self.checkpoint, self.log.recovery_point)
        self.forget()
        self.check(f"cut to {offset}, ends at {self.log.log_end_offset}")

    def forget(self) -> None:
        """What producers have in the log, after some of it is gone."""
        if self.log.producers_unknown:
            self.log.reload_producers()
        found: dict[int, tuple[int, int]] = {}
        for producer_id in (1, 2, 3):
            state = self.log.producers.get(producer_id)
            if state is not None:
                found[producer_id] = state.next_sequence, int(state.transaction_first_offset >= 0)
        self.producers = found
        self.epoch = max(self.epoch, self.log.leader_epochs.latest_epoch)

    async def restart(self) -> None:
        random, log = self.random, self.log
        content = self.content()
        is_clean = random.random() < 0.5
        if is_clean:
            await log.close()
            self.checkpoint = log.recovery_point
            event = "stopped"
        else:
            await log.abandon()
            event = "killed"
        claims_clean = is_clean and random.random() < 0.8
        damage, cut_at = self.damage(is_walked=not claims_clean) if random.random() < 0.7 else ("", None)
        start_offset = log.log_start_offset if random.random() < 0.7 else self.start_offset
        self.log = self.make(
            clean=claims_clean,
            recovery_point=self.checkpoint,
            log_start_offset=start_offset,
            cleaned_up_to=self.cleaned_up_to,
            **self.settings,
        )
        self.start_offset = start_offset
        after = self.content()
        self.is_over = bool(content) and not after
        how = f"{event}, {'clean' if claims_clean else 'unclean'}, recovery point {self.checkpoint}{damage}"
        self.check(f"{how}, ends at {self.log.log_end_offset}")
        if cut_at is None:
            assert after == content, [*self.story, "it is not what it was"]
        else:
            assert after == content[: len(after)], [*self.story, "it is no prefix"]
            assert not after or sum(map(len, after)) >= cut_at, [*self.story, "sound batches are gone", cut_at]
        self.checkpoint = min(self.checkpoint, self.log.recovery_point)
        if self.log.log_end_offset < self.cleaned_up_to:
            self.cleaned_up_to = 0
        self.forget()

    def content(self) -> list[bytes]:
        """Its batches."""
        whole = b"".join(Path(segment.path()).read_bytes()[: segment.size] for segment in self.log.segments)
        return [whole[at : at + header.size] for at, header in batches(whole)]

    def damage(self, *, is_walked: bool) -> tuple[str, int | None]:
        """Damages a file; gives how many bytes of the log before it are sound, if it is the log's end."""
        random = self.random
        directory = self.make.directory
        files = [path for path in sorted(directory.iterdir()) if path.name.endswith(SUFFIXES)]
        kind = random.choice(("companion", "companion", "companions gone", "tail", "cut", "flip"))
        segments = [Path(segment.path()) for segment in self.log.segments]
        last = segments[-1]
        before = sum(path.stat().st_size for path in segments[:-1])
        if kind == "companions gone":
            # A log without a transaction index had no aborted transactions, unless its other indexes are gone too.
            gone = [path for path in files if random.random() < 0.5 and path.suffix != ".txnindex"]
            if random.random() < 0.3:
                gone = [path for path in files if path.suffix in (".index", ".timeindex", ".txnindex")]
            for path in gone:
                path.unlink()
            return f", gone are {[path.name for path in gone]}", None
        if kind == "companion":
            if not files:
                return "", None
            path = random.choice(files)
            content = path.read_bytes()
            torn = content[: random.randrange(len(content) + 1)]
            match path.suffix:
                case ".txnindex":
                    spoilt = random.randbytes(len(content))  # an empty one says that there were none
                case ".index" | ".timeindex":
                    spoilt = random.choice((b"", random.randbytes(len(content) + 5)))
                case _:
                    zeros = bytes(len(content) - len(torn))
                    spoilt = random.choice((b"", bytes(len(content)), random.randbytes(len(content) + 16), torn + zeros))
            path.write_bytes(spoilt)
            return f", {path.name} is {spoilt.hex() or 'empty'}", None
        content = last.read_bytes()
        if kind == "tail":
            garbage = random.randint(1, 300)
            last.write_bytes(content + random.choice((bytes(garbage), random.randbytes(garbage))))
            return ", a tail", before + len(content)
        found = list(batches(content))
        if not found:
            return "", None
        at, header = random.choice(found[-3:])
        if header.base_offset < self.furthest_start:
            return "", None
        if kind == "cut":
            last.write_bytes(content[: at + random.randrange(header.size)])
            return f", {last.name} cut in the batch at {header.base_offset}", before + at
        if not is_walked or header.base_offset < self.checkpoint:
            return "", None  # a start believes it; readers and the cleaner find it
        flipped = bytearray(content)
        flipped[at + random.randrange(61, header.size)] ^= 1 << random.randrange(8)
        last.write_bytes(flipped)
        return f", {last.name} flipped in the batch at {header.base_offset}", before + at

    async def step(self) -> None:
        match self.random.choice(EVENTS):
            case "produce":
                self.produce()
                self.tell(f"to {self.log.log_end_offset}")
            case "end":
                self.end_transaction()
            case "roll":
                self.log.appender.roll()
                self.tell("rolled")
            case "sync":
                await self.log.flush()
                self.tell("synced")
            case "checkpoint":
                self.checkpoint = self.log.recovery_point
                self.tell(f"checkpoint {self.checkpoint}")
            case "cut" if self.log.log_end_offset > self.log.log_start_offset and not self.is_compacted:
                await self.cut()
            case "epoch":
                self.epoch += 1
            case "restart":
                await self.restart()
            case "clean" if self.is_compacted:
                await self.clean()
            case "start" if not self.is_compacted:
                self.log.advance_log_start_offset(self.random.randint(self.log.log_start_offset, self.log.log_end_offset))
                self.furthest_start = max(self.furthest_start, self.log.log_start_offset)
                self.tell(f"starts at {self.log.log_start_offset}")

    async def clean(self) -> None:
        await self.log.flush()
        await self.log.flusher.flush_sealed()
        cleaner = cleaner_of(self.log, self.clock, log_cleaner_min_cleanable_ratio=0.0)
        await cleaner.clean_filthiest()
        self.cleaned_up_to = self.log.cleaned_up_to
        self.checkpoint = max(self.checkpoint, self.cleaned_up_to)
        self.check(f"cleaned up to {self.cleaned_up_to}")


async def tell_of(seed: int, directory: Path) -> None:
    random = Random(seed)
    history = History(directory, random)
    try:
        for _ in range(random.randint(5, 60)):
            if not history.is_over:
                await history.step()
        if not history.is_over:
            await history.restart()
    finally:
        await history.log.abandon()


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_log_is_what_was_written_whatever_became_of_its_files(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    directory = tmp_path_factory.mktemp("clicks") / "clicks-0"
    asyncio.run(tell_of(seed, directory))
    shutil.rmtree(directory.parent)

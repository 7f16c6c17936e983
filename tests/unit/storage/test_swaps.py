"""A crash at each step of a swap, and what Kafka leaves behind: the next start has the old segments or the new one."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.lifecycle import offload_nothing
from ottla.storage.compaction.job import CleanedSegment, CleaningInterrupted, CleaningJob, CleaningResult
from ottla.storage.compaction.runner import InlineRunner
from ottla.storage.compaction.swap import swap
from ottla.storage.log import Log
from ottla.storage.recovery import sweep
from ottla.testing import ManualClock

from .cleanings import ABORT, COMPACTED, cleaner_of, end_transaction, file_names, put, values_of
from .failing_calls import failing
from .logs import LogMaker


class Crash(BaseException):
    """The process is gone."""


@contextmanager
def crash_at_rename(number: int) -> Iterator[None]:
    """The rename of that number, counted from 0, does not happen, nor does any after it."""
    rename, left = os.rename, number

    def counted(source: str, target: str) -> None:
        nonlocal left
        if left == 0:
            raise Crash
        left -= 1
        rename(source, target)

    os.rename = counted  # type: ignore[assignment]
    try:
        yield
    finally:
        os.rename = rename


class CopyWhatIsCleaned:
    """Takes nothing in, but keeps a copy of the directory as it is when all `.cleaned` files are there."""

    def __init__(self, copy: Path) -> None:
        self._copy = copy
        self.cleaned: list[CleanedSegment] = []

    async def run(self, job: CleaningJob, done: Callable[[CleanedSegment], None]) -> CleaningResult:
        await InlineRunner(offload_nothing).run(job, self.cleaned.append)
        shutil.copytree(job.directory, self._copy)
        raise CleaningInterrupted("for the test")

    async def close(self) -> None:
        """Nothing is open."""


async def three_segments(make_log: LogMaker) -> Log:
    """With indexes that have entries, an aborted transaction, and a tombstone behind its key."""
    log = make_log(**COMPACTED, index_interval_bytes=50, delete_retention_ms=0)
    put(log, ("a", "1"))
    put(log, ("b", "1"))
    put(log, ("c", "old"), ("d", "1"))
    log.appender.roll()
    put(log, ("e", "aborted"), producer_id=3, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, ABORT, 3)
    put(log, ("a", "2"))
    log.appender.roll()
    put(log, ("c", None))
    put(log, ("b", "2"))
    put(log, ("f", "1"))
    log.appender.roll()
    put(log, ("g", "1"))
    await log.flush()
    await log.flusher.flush_sealed()
    return log


REPLACED = [0, 4, 7]
AFTER = {3: ("d", "1"), 6: ("a", "2"), 7: ("c", None), 8: ("b", "2"), 9: ("f", "1"), 10: ("g", "1")}


async def cleaned_copy(make_log: LogMaker, clock: ManualClock, copy: Path) -> Log:
    """The log, and a copy of its directory in which a cleaning has just ended."""
    log = await three_segments(make_log)
    assert [segment.base_offset for segment in log.segments] == [*REPLACED, 10]
    runner = CopyWhatIsCleaned(copy)
    await cleaner_of(log, clock, runner).clean_filthiest()
    assert [cleaned_segment.joined for cleaned_segment in runner.cleaned] == [3]
    return log


def copied(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


async def test_after_a_crash_at_any_rename_nothing_is_lost_and_nothing_comes_back(
    make_log: LogMaker, clock: ManualClock, tmp_path: Path
) -> None:
    """The steps are done up to each one in turn; then the log is loaded, and again from what that has left."""
    log = await cleaned_copy(make_log, clock, tmp_path / "copy")
    before = values_of(log)
    outcomes, number, crashed = set(), 0, True
    while crashed:
        copied(tmp_path / "copy", log.directory)
        with crash_at_rename(number):
            try:
                swap(str(log.directory), 0, REPLACED)
                crashed = False
            except Crash:
                number += 1
        for recovery_point in (0, 10):
            loaded = make_log(index_interval_bytes=50, recovery_point=recovery_point)
            outcomes.add(len(loaded.segments))
            assert values_of(loaded) == (before if len(loaded.segments) == 4 else AFTER)
            assert loaded.log_end_offset == 11
            assert not file_names(log.directory, ".swap", ".cleaned", ".deleted")
            if len(loaded.segments) == 2:
                assert [transaction.first_offset for transaction in loaded.segments[0].transaction_index] == [4]
            assert all(segment.offset_index.entries() for segment in loaded.segments if segment.size > 200)
    assert outcomes == {2, 4}
    assert number == 4 + 14 + 4  # three of the old files that are tried are not there


def touch(directory: Path, *names: str) -> set[str]:
    directory.mkdir(exist_ok=True)
    for name in names:
        (directory / name).write_bytes(b"")
    return set(names)


def left_of(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize(
    ("there", "left"),
    [
        # Step 1 had not ended.
        (("0.log", "0.index", "0.log.cleaned", "0.index.swap"), ["0.index", "0.log"]),
        (("0.log", "0.index", "0.index.swap"), ["0.index", "0.log"]),
        # It had.
        (("0.log", "0.index", "0.log.swap", "0.index.swap"), ["0.index", "0.log"]),
        (("0.log.deleted", "0.index", "0.txnindex", "0.log.swap", "0.index.swap"), ["0.index", "0.log"]),
        # An index whose swap was not done is not one of the new segment.
        (("0.log", "0.index", "0.log.swap"), ["0.log"]),
        # Step 3 had begun.
        (("0.log", "0.index.swap", "0.txnindex.swap"), ["0.index", "0.log", "0.txnindex"]),
        # A later segment was being cleaned meanwhile.
        (("0.log.swap", "5.log", "5.log.cleaned", "5.index.cleaned"), ["0.log", "5.log"]),
        # Kafka splits a segment in two and names the last one first.
        (("0.log", "0.log.cleaned", "5.log.swap", "5.index.swap"), ["0.log"]),
        (("0.index.swap",), []),
    ],
)
def test_what_a_start_makes_of_names(tmp_path: Path, there: tuple[str, ...], left: list[str]) -> None:
    """Names are written without their zeros here."""

    def full(name: str) -> str:
        offset, rest = name.split(".", 1)
        return f"{int(offset):020d}.{rest}"

    touch(tmp_path / "clicks-0", *map(full, there))
    assert sweep(tmp_path / "clicks-0") == set(map(full, left))
    assert left_of(tmp_path / "clicks-0") == sorted(map(full, left))


async def test_a_start_that_crashes_while_it_ends_a_swap_is_done_again(make_log: LogMaker, clock: ManualClock, tmp_path: Path) -> None:
    """A crash in the second step of the swap, then one at each removal and rename of the start."""
    log = await cleaned_copy(make_log, clock, tmp_path / "copy")
    with crash_at_rename(5), contextlib.suppress(Crash):  # the four of the first step, and one file of the second
        swap(str(tmp_path / "copy"), 0, REPLACED)
    number = 0
    while True:
        copied(tmp_path / "copy", log.directory)
        crashed = sweep_and_crash(log.directory, number)
        loaded = make_log(index_interval_bytes=50)
        assert len(loaded.segments) == 2
        assert values_of(loaded) == AFTER
        assert [transaction.first_offset for transaction in loaded.segments[0].transaction_index] == [4]
        number += 1
        if not crashed:
            break
    assert number > 10


def sweep_and_crash(directory: Path, number: int) -> bool:
    """A start that ends before its step of that number; says whether there was one."""
    replace, unlink, left = os.replace, os.unlink, number

    def step() -> None:
        nonlocal left
        if left == 0:
            raise Crash
        left -= 1

    def counted_replace(source: object, target: object) -> None:
        step()
        replace(source, target)  # type: ignore[arg-type]

    def counted_unlink(path: object) -> None:
        step()
        unlink(path)  # type: ignore[arg-type]

    os.replace, os.unlink = counted_replace, counted_unlink  # type: ignore[assignment]
    try:
        sweep(directory)
    except Crash:
        return True
    finally:
        os.replace, os.unlink = replace, unlink
    return False


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("suffix", [".index.cleaned", ".log.cleaned"])
async def test_a_swap_for_whose_names_there_is_no_room_has_not_happened_and_happens_later(
    make_log: LogMaker, clock: ManualClock, number: int, suffix: str
) -> None:
    log = await three_segments(make_log)
    before = values_of(log), file_names(log.directory, "")
    cleaner = cleaner_of(log, clock)
    with failing("rename", lambda path: path.endswith(suffix), number) as failed:
        await cleaner.clean_filthiest()
    assert len(failed) == 1
    assert (make_log.failures, log.is_offline) == ([], False)
    assert (values_of(log), file_names(log.directory, "")) == before
    clock.advance(seconds=3600)
    await cleaner.clean_filthiest()
    assert values_of(log) == AFTER
    assert log.cleaned_up_to == 10


async def test_what_was_cleaned_is_removed_at_once_where_there_is_no_room_for_another_name(make_log: LogMaker, clock: ManualClock) -> None:
    log = await three_segments(make_log)
    with failing("rename", lambda path: path.endswith((".log", ".timeindex", ".txnindex")), errno.ENOSPC, after=1) as failed:
        await cleaner_of(log, clock).clean_filthiest()
    assert len(failed) > 3
    assert (make_log.failures, log.is_offline) == ([], False)
    assert file_names(log.directory, ".log", ".swap", ".cleaned") == [f"{offset:020}.log" for offset in (0, 10)]
    assert file_names(log.directory, ".log.deleted", ".timeindex.deleted") == [f"{0:020}.log.deleted"]
    assert values_of(log) == values_of(make_log(**COMPACTED, recovery_point=11)) == AFTER


@pytest.mark.parametrize(
    ("suffix", "number"), [(".log.swap", errno.ENOSPC), (".log.swap", errno.ENOENT), (".log.cleaned", errno.EIO), (".log", errno.EIO)]
)
async def test_a_swap_that_only_a_start_can_end_takes_the_directory_offline(
    make_log: LogMaker, clock: ManualClock, suffix: str, number: int
) -> None:
    log = await three_segments(make_log)
    before = values_of(log)
    with failing("rename", lambda path: path.endswith(suffix), number):
        await cleaner_of(log, clock).clean_filthiest()
    assert (len(make_log.failures), log.is_offline) == (1, True)
    assert values_of(make_log(**COMPACTED, recovery_point=11)) == (before if suffix == ".log.cleaned" else AFTER)

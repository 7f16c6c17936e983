"""The process that cleans: started when it is needed, used again, killed, dead, silent, and orphaned."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loops import until

from ottla import lifecycle
from ottla.config.settings import LONG_MAX
from ottla.model import TopicPartition
from ottla.storage.batches import CorruptLog
from ottla.storage.compaction.cleaner import LogCleaner
from ottla.storage.compaction.job import (
    CleanedSegment,
    CleaningFailed,
    CleaningInterrupted,
    CleaningJob,
    CleaningResult,
    LastOfProducer,
    OffsetMapTooSmall,
    SourceSegment,
    StillAtWork,
    decode,
    encode,
    error_of,
    failure_of,
)
from ottla.storage.compaction.process import serve
from ottla.storage.compaction.runner import ProcessRunner
from ottla.storage.log import Log
from ottla.testing import ManualClock

from .cleanings import COMPACTED, clean, cleaner_of, file_names, put, values_of
from .logs import PARTITION, LogMaker

JOB = CleaningJob(
    name="clicks-0",
    directory="/nowhere",
    sources=(SourceSegment(0, 10, 100),),
    following=(),
    first_dirty_offset=0,
    committed_offset=10,
    producers=(LastOfProducer(7, 9, 1),),
    epoch_begins=(4, 6),
    now_ms=1_000,
    delete_retention_ms=5,
    segment_bytes=1_000,
    segment_index_bytes=1_000,
    index_interval_bytes=100,
    map_bytes=24_000,
    load_factor=0.9,
    buffer_bytes=4096,
    bytes_per_second=1.7976931348623157e308,
)


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


async def filled(make_log: LogMaker, **settings: Any) -> Log:
    log = make_log(**COMPACTED, **settings)
    for number in range(50):
        put(log, (f"key {number % 5}", f"{number}"))
    log.appender.roll()
    await log.flush()
    return log


offsets = st.integers(-1, (1 << 63) - 1)
segments = st.lists(st.builds(SourceSegment, offsets, offsets, offsets), max_size=3).map(tuple)
messages = st.one_of(
    st.builds(
        CleaningJob,
        name=st.text(),
        directory=st.text(),
        sources=segments,
        following=segments,
        producers=st.lists(st.builds(LastOfProducer, offsets, offsets, offsets), max_size=3).map(tuple),
        bytes_per_second=st.floats(allow_nan=False, allow_infinity=False),
        load_factor=st.floats(0, 1),
    ),
    st.builds(CleanedSegment),
    st.builds(StillAtWork),
    st.builds(CleaningResult),
    st.builds(CleaningFailed),
)


@given(messages)
def test_every_message_is_one_line_and_comes_out_as_it_went_in(message: Any) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[]\n", b'["Nothing",{}]', b'["StillAtWork",{}]', b'["StillAtWork",{"bytes_read":"1"}]', b"\xff"]
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(CleaningInterrupted):
        decode(line)


@pytest.mark.parametrize("error", [CorruptLog("a"), OffsetMapTooSmall("b"), CleaningInterrupted("c")])
def test_an_error_is_told_by_its_name(error: Exception) -> None:
    told = error_of(failure_of(error))
    assert type(told) is type(error)
    assert str(told) == str(error)


def test_a_full_disk_or_memory_passes_and_an_error_that_nobody_thought_of_does_not() -> None:
    assert isinstance(error_of(failure_of(OSError(28, "No space left"))), CleaningInterrupted)
    assert isinstance(error_of(failure_of(MemoryError())), CleaningInterrupted)
    told = error_of(failure_of(ZeroDivisionError("division by zero")))
    assert isinstance(told, CorruptLog)
    assert "ZeroDivisionError" in str(told)


async def test_jobs_are_done_one_after_the_other_until_the_input_ends(make_log: LogMaker, clock: ManualClock) -> None:
    log = await filled(make_log)
    cleaner = cleaner_of(log, clock)
    job = cleaner._job_of(log, (await cleaner.cleanable_logs())[0])
    answers = io.BytesIO()
    missing = replace(job, directory=job.directory + "-gone")
    serve(io.BytesIO(encode(job) + encode(missing) + encode(job)), answers, clock, os.getppid())
    kinds = [decode(line) for line in answers.getvalue().splitlines()]
    assert [type(kind) for kind in kinds] == [CleanedSegment, CleaningResult, CleaningFailed, CleanedSegment, CleaningResult]
    assert isinstance(kinds[1], CleaningResult)
    assert (kinds[1].end_offset, kinds[1].records_before, kinds[1].records_after, kinds[1].keys) == (50, 50, 5, 5)


async def test_a_job_whose_broker_has_died_is_given_up(make_log: LogMaker, clock: ManualClock) -> None:
    log = await filled(make_log)
    cleaner = cleaner_of(log, clock)
    answers = io.BytesIO()
    serve(io.BytesIO(encode(cleaner._job_of(log, (await cleaner.cleanable_logs())[0]))), answers, clock, os.getppid() + 1)
    told = decode(answers.getvalue())
    assert isinstance(told, CleaningFailed)
    assert "has died" in told.message


async def test_a_real_process_cleans_and_is_used_again(make_log: LogMaker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives way to all others: a producer's p99 may not feel it."""
    giving_way: list[int] = []
    monkeypatch.setattr(lifecycle, "_let_give_way", giving_way.append)
    log = await filled(make_log)
    runner = ProcessRunner()
    assert runner.process_ids == []
    await clean(log, clock, runner=runner)
    first = runner.process_ids
    assert len(first) == 1 and giving_way == first
    assert sorted(values_of(log)) == [45, 46, 47, 48, 49]
    put(log, ("key 0", "new"))
    await clean(log, clock, runner=runner)
    assert runner.process_ids == first
    assert sorted(values_of(log)) == [46, 47, 48, 49, 50]
    await runner.close()
    assert not is_alive(first[0])


async def test_a_process_cleans_with_a_buffer_without_a_bound(make_log: LogMaker, clock: ManualClock) -> None:
    """`LogCleaner`: of `log.cleaner.dedupe.buffer.size` it takes what it can use. Each process ended as it set its bound of memory."""
    log = await filled(make_log)
    runner = ProcessRunner()
    await clean(log, clock, runner=runner, log_cleaner_dedupe_buffer_size=LONG_MAX)
    assert sorted(values_of(log)) == [45, 46, 47, 48, 49]
    await runner.close()


@pytest.mark.skipif(sys.platform != "linux", reason="SCHED_IDLE is Linux's")
async def test_after_a_process_that_got_on_with_nothing_the_next_has_a_share_of_the_cpu(
    make_log: LogMaker, clock: ManualClock, children_give_way: None
) -> None:
    """On a full machine each of them was killed before it had said a word, and nothing was ever cleaned."""
    log = await filled(make_log)
    runner = ProcessRunner(silence_seconds=0)
    cleaner = cleaner_of(log, clock, runner)
    assert await cleaner.clean_filthiest() is None
    runner._silence_seconds = 120  # type: ignore[misc]
    process = await runner._take()
    try:
        assert os.getpriority(os.PRIO_PROCESS, process.process_id) == 19
        assert os.sched_getscheduler(process.process_id) == os.SCHED_OTHER
    finally:
        await process.kill()


BROKER = """
import asyncio, os, sys
from ottla.lifecycle import ChildProcess

async def main():
    cleaner = await ChildProcess.start("ottla.storage.compaction.process", str(os.getpid()))
    await cleaner.write(bytes.fromhex(sys.argv[1]))
    await cleaner.read()  # it is there, and has answered
    print(cleaner.process_id, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
async def test_a_cleaner_that_does_not_get_on_ends_when_its_broker_is_killed(make_log: LogMaker, clock: ManualClock) -> None:
    """Minutes later it would begin a file in the place of one that the next broker's cleaner writes."""
    log = await filled(make_log)
    cleaner = cleaner_of(log, clock)
    missing = replace(cleaner._job_of(log, (await cleaner.cleanable_logs())[0]), directory=f"{log.directory}-gone")
    broker = await asyncio.create_subprocess_exec(sys.executable, "-c", BROKER, encode(missing).hex(), stdout=asyncio.subprocess.PIPE)
    assert broker.stdout is not None
    process_id = int(await broker.stdout.readline())
    os.kill(process_id, signal.SIGSTOP)
    broker.kill()
    await broker.wait()
    await until(lambda: not runs(process_id))


def runs(process_id: int) -> bool:
    """Whether it is there, and no zombie that no one has waited for."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:  # it went, before or while it was looked at
        return False


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_process_that_has_died_is_replaced(make_log: LogMaker, clock: ManualClock) -> None:
    log = await filled(make_log)
    runner = ProcessRunner()
    await clean(log, clock, runner=runner)
    dead = runner.process_ids[0]
    os.kill(dead, signal.SIGKILL)
    await runner._waiting[0]._process.wait()
    put(log, ("key 0", "new"))
    await clean(log, clock, runner=runner)
    assert runner.process_ids != [dead]
    assert 50 in values_of(log)
    await runner.close()


# Stands for a cleaner that behaves in a way that ours does not.
STRANGE = {
    "dies": "import sys; sys.stdin.buffer.readline(); sys.exit(3)",
    "says nonsense": "import sys; sys.stdin.buffer.readline(); print('hello', flush=True); sys.stdin.buffer.read()",
    "says nothing": "import sys; sys.stdin.buffer.read()",
    "gives a job": """import sys; print(sys.stdin.buffer.readline().decode(), end="", flush=True); sys.stdin.buffer.read()""",
}


@pytest.mark.parametrize("what", STRANGE)
async def test_a_process_that_goes_astray_is_killed_and_the_log_is_tried_again(
    make_log: LogMaker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    real = asyncio.create_subprocess_exec
    started: list[asyncio.subprocess.Process] = []

    async def strange(*arguments: str, **more: Any) -> asyncio.subprocess.Process:
        started.append(await real(sys.executable, "-c", STRANGE[what], **more))
        return started[-1]

    log = await filled(make_log)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", strange)
    runner = ProcessRunner(silence_seconds=0.5 if what == "says nothing" else 60)
    cleaner = cleaner_of(log, clock, runner)
    assert await cleaner.clean_filthiest() is None
    assert runner.process_ids == []
    assert started[0].returncode is not None
    assert not cleaner.uncleanable
    assert await cleaner.clean_filthiest() is None  # not before log.cleaner.backoff.ms
    assert len(started) == 1
    monkeypatch.setattr(asyncio, "create_subprocess_exec", real)
    runner._silence_seconds = 60  # type: ignore[misc]  # a real one takes its time to start on a busy machine
    clock.advance(seconds=15)
    cleaner._runner = ProcessRunner()  # type: ignore[misc]  # for a process that has a slow machine
    assert await cleaner.clean_filthiest() == PARTITION
    await cleaner.close()


async def test_a_log_that_is_deleted_meanwhile_ends_its_process(
    make_log: LogMaker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a pace of a few bytes a second, so that the process would continue for minutes."""
    monkeypatch.setattr("ottla.storage.compaction.cleaner.WATCHED_EVERY_SECONDS", 0.05)
    log = await filled(make_log)
    runner = ProcessRunner()
    logs = {PARTITION: log}
    cleaner = cleaner_of(log, clock, runner, log_cleaner_io_max_bytes_per_second=10.0)
    cleaner._logs = logs  # type: ignore[misc]
    cleaning = asyncio.ensure_future(cleaner.clean_filthiest())
    async with asyncio.timeout(120):
        while not runner.process_ids:  # noqa: ASYNC110  nothing tells that a process has started
            await asyncio.sleep(0.01)
    process_id = runner.process_ids[0]
    assert cleaner.under_way == (PARTITION,)
    del logs[PARTITION]
    async with asyncio.timeout(120):
        assert await cleaning is None
    assert not is_alive(process_id)
    assert not file_names(log.directory, ".cleaned")
    await cleaner.close()


async def test_a_stop_in_the_middle_of_a_cleaning_leaves_no_process_and_no_file(make_log: LogMaker, clock: ManualClock) -> None:
    log = await filled(make_log)
    runner = ProcessRunner()
    cleaner = cleaner_of(log, clock, runner, log_cleaner_io_max_bytes_per_second=10.0)
    cleaner.start()
    async with asyncio.timeout(120):
        while not runner.process_ids:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    process_id = runner.process_ids[0]
    await cleaner.close()
    assert not is_alive(process_id)
    assert len(values_of(log)) == 50
    assert not file_names(log.directory, ".cleaned")


async def test_two_logs_are_cleaned_at_a_time_with_two_threads(make_log: LogMaker, clock: ManualClock, tmp_path: Path) -> None:
    first = await filled(make_log)
    make_log.directory = tmp_path / "clicks-1"
    second = await filled(make_log)
    second.topic_partition = TopicPartition("clicks", 1)  # type: ignore[misc]
    runner = ProcessRunner()
    one = cleaner_of(first, clock, runner, log_cleaner_threads=2, log_cleaner_backoff_ms=10)
    logs = {partition_log.topic_partition: partition_log for partition_log in (first, second)}
    cleaner = LogCleaner(logs, lambda: dict.fromkeys(logs, 50), one._settings, clock, one._offload, runner)
    cleaner.start()
    async with asyncio.timeout(120):
        while not all(log.cleaned_up_to == 50 for log in logs.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert len(runner.process_ids) == 2
    await cleaner.close()


def test_the_process_imports_the_package_that_the_broker_has() -> None:
    assert lifecycle._environment_of_children()["PYTHONPATH"].split(os.pathsep)[0] == str(Path(lifecycle.__file__).parents[1])

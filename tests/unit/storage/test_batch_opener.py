"""What a batch unpacks to is a process's to pay, and a batch that is too large is opened once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from ottla.errors import InvalidRecord, RequestTimedOut
from ottla.lifecycle import ChildProcess, ThreadOffload, offload_nothing
from ottla.record.batch import read_header
from ottla.record.codecs import GZIP, ZSTD, DecompressedTooLarge, compress
from ottla.record.opening import StoredAs
from ottla.record.records import Record, build_batch, read_records, seal
from ottla.storage import batch_opener, opening_process
from ottla.storage.batch_opener import BatchOpener

SMALL = build_batch([Record(index, 1_000 + index, b"k", b"v") for index in range(3)])
LARGE = build_batch([Record(index, 1_000 + index, b"k", b"v" * 100) for index in range(20_000)], codec=ZSTD)
# Twelve bytes over a million records: length 6, attributes, two deltas, no key, no value, no headers.
BOMB = seal(
    read_header(SMALL)._replace(attributes=ZSTD, record_count=2_000_000, last_offset_delta=1_999_999),
    compress(ZSTD, bytes((12, 0, 0, 0, 1, 1, 0)) * 2_000_000),
)


@contextlib.asynccontextmanager
async def opener_with_process() -> AsyncIterator[BatchOpener]:
    offload = ThreadOffload(1, "test")
    opener = BatchOpener(offload, has_process=True)
    try:
        yield opener
    finally:
        await opener.close()
        offload.close()


async def test_small_batches_are_opened_in_a_thread_and_large_ones_in_a_process(children_give_way: None) -> None:
    async with opener_with_process() as opener:
        assert (await opener.opened(SMALL, StoredAs(has_keys=True))).batch == SMALL
        assert await opener.first_at_or_after(SMALL, 1_001, 0) == (1_001, 1)
        assert await opener.first_at_or_after(SMALL, 9_000, 0) is None
        assert opener._process is None
        again = await opener.opened(LARGE, StoredAs(has_keys=True, codec=GZIP))
        assert [record.value for record in read_records(again.batch)] == [b"v" * 100] * 20_000
        assert await opener.first_at_or_after(LARGE, 15_000, 0) == (15_000, 14_000)
        assert opener._process is not None
        assert os.getpriority(os.PRIO_PROCESS, opener._process.process_id) == 10
        if sys.platform == "linux":
            assert os.sched_getscheduler(opener._process.process_id) == os.sched_getscheduler(0), "or a busy machine would answer nothing"
        with pytest.raises(InvalidRecord):
            await opener.opened(LARGE[:-1], StoredAs(has_keys=True))


def test_a_batch_that_is_too_large_is_named_once_and_not_opened_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with opener_with_process() as opener:
            for _ in range(3):
                with pytest.raises(DecompressedTooLarge):
                    await opener.first_at_or_after(BOMB, 0, 0)
            process = opener._process
            assert process is not None
            await process.kill()
            with pytest.raises(DecompressedTooLarge):
                await opener.first_at_or_after(BOMB, 0, 0)
            assert opener._process is process, "it is known, so no process is asked"
            assert await opener.first_at_or_after(LARGE, 15_000, 0) == (15_000, 14_000), "another one is started for what is not known"

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_a_job_that_a_busy_machine_did_not_get_to_may_be_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of its batch, and the client is to try again."""
    async with opener_with_process() as opener:
        with monkeypatch.context() as patch:
            patch.setattr(batch_opener, "JOB_SECONDS", 0.0)
            with pytest.raises(RequestTimedOut):
                await opener.first_at_or_after(LARGE, 15_000, 0)
        assert await opener.first_at_or_after(LARGE, 15_000, 0) == (15_000, 14_000)


async def test_a_batch_for_which_there_is_no_process_now_may_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the machine has no more processes or descriptors. The batch is sound, and its producer would give it up."""

    async def refused(*_: object, **__: object) -> ChildProcess:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    async with opener_with_process() as opener:
        with monkeypatch.context() as patch:
            patch.setattr(ChildProcess, "start", refused)
            with pytest.raises(RequestTimedOut):
                await opener.opened(LARGE, StoredAs(has_keys=True))
        assert (await opener.opened(LARGE, StoredAs(has_keys=True))).batch == LARGE


async def test_a_job_whose_process_was_killed_is_given_to_another_process() -> None:
    """As by a machine that has no memory left. The batch is sound, and its producer would give it up."""
    async with opener_with_process() as opener:
        await opener.opened(LARGE, StoredAs(has_keys=True))
        process = opener._process
        assert process is not None
        os.kill(process.process_id, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(0.5, os.kill, process.process_id, signal.SIGKILL)
        assert (await opener.opened(LARGE, StoredAs(has_keys=True))).batch == LARGE
        assert opener._process is not process


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
async def test_a_batch_whose_processes_are_ended_each_time_may_be_sent_again(monkeypatch: pytest.MonkeyPatch, ending: int) -> None:
    start, started = ChildProcess.start, []

    async def ended(*arguments: str, **others: int) -> ChildProcess:
        process = await start(*arguments, niceness=others["niceness"])
        os.kill(process.process_id, ending)
        started.append(process)
        return process

    async with opener_with_process() as opener:
        with monkeypatch.context() as patch:
            patch.setattr(ChildProcess, "start", ended)
            with pytest.raises(RequestTimedOut):
                await opener.opened(LARGE, StoredAs(has_keys=True))
        assert [process.exit_code for process in started] == [-ending] * 2
        assert (await opener.opened(LARGE, StoredAs(has_keys=True))).batch == LARGE


async def test_a_batch_that_comes_while_too_many_wait_may_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opener_with_process() as opener:
        with monkeypatch.context() as patch:
            patch.setattr(batch_opener, "MAX_WAITING", 0)
            with pytest.raises(RequestTimedOut):
                await opener.opened(LARGE, StoredAs(has_keys=True))
        assert (await opener.opened(LARGE, StoredAs(has_keys=True))).batch == LARGE


def test_a_batch_that_takes_its_time_to_open_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the process's own CPU time. Method: its answer, made in this process, with a bound that nothing keeps."""
    monkeypatch.setattr(opening_process, "CPU_SECONDS", 0.01)
    count = 500_000
    header = read_header(SMALL)._replace(attributes=ZSTD, record_count=count, last_offset_delta=count - 1)
    slow = seal(header, compress(ZSTD, bytes((12, 0, 0, 0, 1, 1, 0)) * count))
    before = signal.signal(signal.SIGPROF, opening_process._too_long)
    try:
        answer, _ = opening_process._answer({"first": [1 << 60, 0]}, slow)
    finally:
        signal.signal(signal.SIGPROF, before)
    assert answer["error"] == "DecompressedTooLarge"
    assert "to open" in answer["message"]
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


async def test_records_at_offsets_that_their_batch_does_not_have_are_refused() -> None:
    """No cleaner could do with them; Kafka asks as much of a compressed batch (`LogValidator`)."""
    lie = build_batch([Record(0, 1, b"k", b"v"), Record(5, 1, b"k", b"v")])
    with pytest.raises(InvalidRecord, match="record 1 has the offset 5"):
        await BatchOpener(offload_nothing, has_process=False).opened(
            seal(read_header(lie)._replace(last_offset_delta=1), lie[61:]), StoredAs(has_keys=True)
        )

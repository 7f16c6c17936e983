"""A loop in a thread, for callers that block, and the pauses between attempts."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from ottla.lifecycle import Backoff, ChildProcess, Collections, LoopThread, LoopThreadUnusable


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    with LoopThread("test-loop") as running:
        yield running


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def fail(error: Exception) -> None:
    raise error


def test_what_is_called_runs_in_the_loop_and_gives_or_raises(thread: LoopThread) -> None:
    async def where() -> str:
        return threading.current_thread().name

    assert thread.call(where(), 5) == "test-loop"
    assert [thread.call(answer(number), 5) for number in range(3)] == [0, 1, 2]
    with pytest.raises(LookupError, match="lost"):
        thread.call(fail(LookupError("lost")), 5)
    with pytest.raises(TimeoutError, match="its own"):
        thread.call(fail(TimeoutError("its own")), 5)


def test_what_takes_too_long_is_cancelled(thread: LoopThread) -> None:
    cancelled = threading.Event()

    async def dawdle() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()

    with pytest.raises(TimeoutError, match=r"not done after 0\.05 s"):
        thread.call(dawdle(), 0.05)
    assert cancelled.wait(120)


def test_what_is_done_as_its_time_ends_is_given(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes something, as a stream its next messages, would have lost it."""

    def late(future: Future[int], timeout_seconds: float | None = None) -> int:
        found = result(future, 60)
        if timeout_seconds is not None:
            raise TimeoutError
        return found

    result = Future.result
    monkeypatch.setattr(Future, "result", late)
    assert thread.call(answer(7), 0.05) == 7


def test_closing_cancels_what_runs_and_may_be_done_twice() -> None:
    thread = LoopThread("test-loop")
    cancelled = threading.Event()
    begun = threading.Event()

    async def serve() -> None:
        try:
            begun.set()
            await asyncio.sleep(3600)
        finally:
            cancelled.set()

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(serve())

    task = thread.call(begin(), 120)
    assert begun.wait(120)
    thread.close(120)
    thread.close(120)
    assert cancelled.is_set() and task.cancelled()
    with pytest.raises(LoopThreadUnusable, match="test-loop has ended"):
        thread.call(answer(1), 5)


def test_a_call_that_comes_while_the_loop_is_closed_is_told_so_at_once() -> None:
    """As by a thread that reads a stream while another closes its connector. It was neither run nor cancelled, and waited for its time."""
    thread = LoopThread("test-loop")
    is_closing = threading.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            is_closing.set()
            await asyncio.sleep(0.2)

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(slow_to_end())

    kept = thread.call(begin(), 120)
    closing = threading.Thread(target=thread.close, args=(120,))
    closing.start()
    assert is_closing.wait(120)
    with pytest.raises(LoopThreadUnusable, match="test-loop has ended"):
        thread.call(asyncio.sleep(3600), 10)
    closing.join(120)
    assert kept.cancelled()


def test_a_call_that_is_under_way_while_the_loop_is_closed_says_so() -> None:
    """As a consumer's fetch that waits in one thread while another closes it: it raised a CancelledError without a word."""
    thread = LoopThread("test-loop")
    closing = threading.Timer(0.1, thread.close, (120,))
    closing.start()
    with pytest.raises(LoopThreadUnusable, match="test-loop has ended"):
        thread.call(asyncio.sleep(3600), 120)
    closing.join(120)


def test_closing_lets_what_was_cancelled_before_clean_up() -> None:
    """A second cancel would cut that short. So a start of an embedded cluster that was interrupted left threads and locks behind."""
    thread = LoopThread("test-loop")
    begun, is_clean = threading.Event(), False

    async def serve() -> None:
        nonlocal is_clean
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.05)
            is_clean = True

    with pytest.raises(TimeoutError):
        thread.call(serve(), 0.01)
    assert begun.wait(120)  # the loop's thread may come to it later
    thread.close(120)
    assert is_clean


def test_a_call_from_the_loop_itself_is_refused_instead_of_waiting_for_ever(thread: LoopThread) -> None:
    async def nested() -> int:
        return thread.call(answer(1), 5)

    with pytest.raises(LoopThreadUnusable, match="would wait for itself"):
        thread.call(nested(), 5)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_that_the_loop_stayed_behind(thread: LoopThread) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        said = b"nothing"
        try:
            thread.call(answer(1), 5)
        except LoopThreadUnusable as error:
            said = str(error).encode()
            thread.close(120)
        finally:
            os.write(writer, said)
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as said_by_child:
        assert f"runs in process {os.getpid()}, of which this is a forked child" in said_by_child.read().decode()
    assert thread.call(answer(2), 5) == 2


def test_a_pause_doubles_with_each_failure_up_to_its_bound_however_many_there_are() -> None:
    """Kafka's `ExponentialBackoff`, without its chance."""
    backoff = Backoff(first_seconds=0.5, longest_seconds=3.0)
    assert [backoff.seconds(failures) for failures in (0, 1, 2, 3, 10_000)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert Backoff(first_seconds=0.0, longest_seconds=3.0).seconds(5) == 0.0


@pytest.fixture
def collector() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize(("quiet_seconds", "longest_seconds"), [(0.05, 3_600.0), (3_600.0, 0.05)])
async def test_collections_are_put_off_for_a_while(quiet_seconds: float, longest_seconds: float) -> None:
    """Either bound ends it, and it can be done again."""
    collections = Collections(quiet_seconds, longest_seconds)
    for _ in range(2):
        gc.enable()
        collections.put_off()
        collections.put_off()
        assert not gc.isenabled()
        async with asyncio.timeout(120):
            while not gc.isenabled():  # noqa: ASYNC110  (no one tells)
                await asyncio.sleep(0.001)


@pytest.mark.usefixtures("collector")
def test_collections_come_again_in_a_process_that_outlives_its_loop() -> None:
    async def main() -> None:
        gc.enable()
        collections = Collections()
        collections.close()
        collections.put_off()
        assert not gc.isenabled()
        collections.close()

    asyncio.run(main())
    assert gc.isenabled()


@pytest.mark.usefixtures("collector")
async def test_a_collector_that_something_else_has_switched_off_stays_off() -> None:
    gc.disable()
    Collections(quiet_seconds=0).put_off()
    await asyncio.sleep(0.01)
    assert not gc.isenabled()


async def test_a_process_that_gives_way_has_only_the_cpu_that_is_left_over(children_give_way: None) -> None:
    process = await ChildProcess.start("ottla.storage.opening_process", gives_way=True)
    try:
        assert os.getpriority(os.PRIO_PROCESS, process.process_id) == 19
        if sys.platform == "linux":
            assert os.sched_getscheduler(process.process_id) == os.SCHED_IDLE
    finally:
        await process.kill()

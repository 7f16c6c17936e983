"""Starting, stopping, work that must leave the event loop, and work that must get into one.

A broker is one loop; what would block it (fsync, deletes, recovery, bulk decoding, a cold read) is handed to an
`Offload`. It comes in as an argument, so that a simulation can run the same code with no thread at all. A program that has no
loop makes blocking calls to one in a thread, a `LoopThread`. Work that must not take the whole program with it, or
its CPU, runs in a `ChildProcess`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, ParamSpec, Protocol, Self, TypeVar, cast

import ottla
from ottla.errors import OttlaError

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

EXIT_SECONDS: Final = 5.0
LOWEST_PRIORITY: Final = 19
LINE_SIZE: Final = 64 * 1024  # asyncio's own bound

# Whose work this is, for log lines: tasks, callbacks and offloaded functions have it from their starter.
speaking_broker: Final[ContextVar[int | None]] = ContextVar("speaking_broker", default=None)

_CLOSE_SECONDS: Final = 30.0
_CLEAN_UP_SECONDS: Final = 10.0

# Which service this is, likewise; None in a program that embeds one.
speaking_service: Final[ContextVar[str | None]] = ContextVar("speaking_service", default=None)


@contextmanager
def speaking_as(service: str) -> Iterator[None]:
    """What is begun in here is the work of this service."""
    token = speaking_service.set(service)
    try:
        yield
    finally:
        speaking_service.reset(token)


@contextmanager
def speaking(broker_id: int) -> Iterator[None]:
    """Whatever is begun in here is the work of one broker; -1 is one that has yet to find out which it is."""
    token = speaking_broker.set(broker_id if broker_id >= 0 else None)
    try:
        yield
    finally:
        speaking_broker.reset(token)


class Tasks(set[asyncio.Task[Any]]):
    """Tasks that run beside others, kept until they end: the loop itself holds no more than weak references."""

    def begin(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Runs the work in a task, which is forgotten when it has ended."""
        return self.keep(asyncio.ensure_future(work))

    def keep(self, task: asyncio.Task[R]) -> asyncio.Task[R]:
        """A task that was made elsewhere, with a name or a context of its own."""
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    def cancel(self) -> None:
        """Cancels all; they end in later turns of the loop."""
        for task in list(self):
            task.cancel()

    async def wait(self, timeout_seconds: float | None = None) -> None:
        """Waits until those that run now have ended, whether they failed or not, or the time is over."""
        if self:
            await asyncio.wait(set(self), timeout=timeout_seconds)


def look_at_error(done: asyncio.Future[Any]) -> None:
    """For `add_done_callback`: its waiters have the error, and none may be left of them, as after a cancelled `asyncio.shield`."""
    if not done.cancelled():
        done.exception()


def is_cancelled() -> bool:
    """Whether it is the running task that is cancelled, and not only what it waits for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def to_its_end(work: Awaitable[R]) -> R:
    """Waits for what must not be given up, as a thread that opens or closes a file: a cancel meanwhile takes effect at its end."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(look_at_error)  # a second cancel may have given it up
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def all_to_their_end(work: Iterable[Awaitable[R]]) -> list[R]:
    """What each gives; the first error is raised when all have ended, so that none still runs then."""
    answers = await asyncio.gather(*work, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return cast(list[R], answers)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before another attempt: twice as long after each failure in a row, up to a bound. Kafka's ExponentialBackoff."""

    first_seconds: float
    longest_seconds: float

    def seconds(self, failures: int) -> float:
        """The pause before an attempt is repeated that failed `failures` times in a row before: with 0 it is the first pause."""
        return min(self.first_seconds * 2.0 ** min(failures, 32), self.longest_seconds)


class Offload(Protocol):
    """`await offload(function, *arguments)`: runs a blocking function outside the loop and gives its result."""

    def __call__(self, function: Callable[P, R], /, *arguments: P.args, **keywords: P.kwargs) -> Awaitable[R]: ...


class ThreadOffload:
    """An `Offload` with a thread pool of its own, so that `close` can wait for what still runs.

    Args:
        nice: by how much the threads give way to the program's others.
    """

    def __init__(self, threads: int, name: str, nice: int = 0) -> None:
        self._executor = ThreadPoolExecutor(threads, name, os.nice, (nice,))  # to Linux a thread has a niceness of its own

    def __call__(self, function: Callable[P, R], /, *arguments: P.args, **keywords: P.kwargs) -> Awaitable[R]:
        context = copy_context()
        return asyncio.get_running_loop().run_in_executor(self._executor, lambda: context.run(function, *arguments, **keywords))

    def close(self) -> None:
        """Waits for the running functions; those not begun are dropped."""
        self._executor.shutdown(wait=True, cancel_futures=True)


async def offload_nothing(function: Callable[P, R], /, *arguments: P.args, **keywords: P.kwargs) -> R:
    """An `Offload` that runs the function in place: for tests and the simulation."""
    return function(*arguments, **keywords)


class Collections:
    """Puts the garbage collector's full collections off while there is much that is no garbage.

    The objects of a request that names a hundred thousand things go by their reference counts when it is answered. A collection in
    between looks at each of them and takes the whole process 50 to 100 ms, several times for one request.

    Args:
        quiet_seconds: how long there is none after `put_off`.
        longest_seconds: how long there may be none at all, also when it is put off again.
    """

    def __init__(self, quiet_seconds: float = 10.0, longest_seconds: float = 60.0) -> None:
        self._quiet_seconds = quiet_seconds
        self._longest_seconds = longest_seconds
        self._since = self._until = 0.0
        self._resuming: asyncio.TimerHandle | None = None

    def put_off(self) -> None:
        """Much is about to be made. Does nothing where something else has switched the collector off."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._resuming is None:
            if not gc.isenabled():
                return
            gc.disable()
            self._since = now
        self._until = min(now + self._quiet_seconds, self._since + self._longest_seconds)
        if self._resuming is None:
            self._resuming = loop.call_at(self._until, self._resume)

    def close(self) -> None:
        """Has the collector work again at once: a process that outlives this loop would never have it back."""
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
            gc.enable()

    def _resume(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._until:
            self._resuming = loop.call_at(self._until, self._resume)
            return
        self._resuming = None
        gc.enable()


class LoopThreadUnusable(OttlaError):
    """The thread's loop cannot run anything for this caller: it has ended, is the caller's own, or stayed in the parent process."""


class LoopThread:
    """An event loop in a thread of its own, for callers that block. It runs from construction until `close`.

    Any thread may call. What runs in the loop belongs to the loop: make it, use it and close it through `call`.

    Args:
        name: the thread's.
    """

    def __init__(self, name: str) -> None:
        self._process_id = os.getpid()
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Event
        self._calls: set[Future[Any]] = set()
        self._has_ended = False
        is_ready = threading.Event()
        # A daemon: a program that is interrupted before it closes must still be able to end.
        self._thread = threading.Thread(target=self._run, args=(is_ready,), name=name, daemon=True)
        self._thread.start()
        is_ready.wait()

    @property
    def is_here(self) -> bool:
        """Whether this is the process that it runs in, and no forked child of it."""
        return os.getpid() == self._process_id

    def call(self, coroutine: Coroutine[Any, Any, R], timeout_seconds: float) -> R:
        """Runs a coroutine in the loop and gives its result, or raises what it raised. Who is interrupted while waiting cancels it.

        Raises:
            TimeoutError: it was not done in time and is cancelled.
            LoopThreadUnusable: the loop cannot run it, which was not begun, or was closed before it was done.
        """
        waiting = self._unless_closing(coroutine)
        try:
            self._check_usable()
            future = asyncio.run_coroutine_threadsafe(waiting, self._loop)
        except BaseException as error:
            waiting.close()
            coroutine.close()
            if isinstance(error, RuntimeError):  # the loop was closed meanwhile
                raise LoopThreadUnusable(f"{self._thread.name} has ended") from None
            raise
        self._calls.add(future)
        if self._has_ended:
            self._give_up(future)
        try:
            return future.result(timeout_seconds)
        except TimeoutError:
            if not future.cancel():
                return future.result()  # what came as the time ended, or a TimeoutError of its own
            raise TimeoutError(f"it was not done after {timeout_seconds:g} s") from None
        except CancelledError:
            if self._stopped.is_set():
                raise LoopThreadUnusable(f"{self._thread.name} has ended") from None
            raise
        except LoopThreadUnusable:
            waiting.close()
            coroutine.close()
            raise
        finally:
            self._calls.discard(future)
            future.cancel()  # nothing, once it is done

    def close(self, timeout_seconds: float) -> None:
        """Cancels what still runs and waits for the thread to end. It may be closed twice; in a forked child there is nothing to close.

        Raises:
            TimeoutError: something that was cancelled continues.
        """
        if not self.is_here or not self._thread.is_alive():
            return
        with suppress(RuntimeError):  # the loop has been closed and the thread is about to end
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"{self._thread.name} did not end within {timeout_seconds:g} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close(_CLOSE_SECONDS)

    def _run(self, is_ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(is_ready))
        finally:
            self._has_ended = True
            for future in list(self._calls):
                self._give_up(future)

    def _give_up(self, future: Future[Any]) -> None:
        """Ends a call that came too late for the loop to begin it."""
        with suppress(InvalidStateError):  # it is done
            future.set_exception(LoopThreadUnusable(f"{self._thread.name} has ended"))

    async def _unless_closing(self, coroutine: Coroutine[Any, Any, R]) -> R:
        # What is begun while the loop cancels what runs would be neither cancelled nor run to its end.
        if self._stopped.is_set():
            raise LoopThreadUnusable(f"{self._thread.name} has ended")
        return await coroutine

    async def _serve(self, is_ready: threading.Event) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        is_ready.set()
        await self._stopped.wait()
        # What was cancelled before is cleaning up, which a second cancel would cut short.
        if ending := [task for task in asyncio.all_tasks() if task.cancelling()]:
            await asyncio.wait(ending, timeout=_CLEAN_UP_SECONDS)

    def _check_usable(self) -> None:
        if not self.is_here:
            raise LoopThreadUnusable(f"{self._thread.name} runs in process {self._process_id}, of which this is a forked child")
        if threading.current_thread() is self._thread:
            raise LoopThreadUnusable(f"{self._thread.name} would wait for itself: a blocking call came from its own loop")
        if not self._thread.is_alive():
            raise LoopThreadUnusable(f"{self._thread.name} has ended")


class ChildProcess:
    """This Python once more, with one module, that is given a line and answers with lines.

    No fork of a program with its threads, and no second run of whatever program this one is in. The process goes when the pipe to it
    is closed. Its owner ends it when it says nothing, or when the answer is not wanted any more: `kill` waits until it has gone.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process: Final = process
        self._input: Final = process.stdin
        self._output: Final = process.stdout

    @classmethod
    async def start(
        cls, module: str, *arguments: str, niceness: int = 0, gives_way: bool = False, line_size: int = LINE_SIZE
    ) -> ChildProcess:
        """Starts one.

        Args:
            module: its name; run as `python -m` does.
            arguments: what it finds in `sys.argv`.
            niceness: by how much it has less of a CPU that others want too.
            gives_way: anyone else who wants the CPU has it at once. Where a machine is full it gets next to nothing.
            line_size: bound of a line of its answers.

        Raises:
            OSError: there can be no further process.
        """
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments, stdin=pipe, stdout=pipe, env=_environment_of_children(), limit=line_size
        )
        if gives_way:
            _let_give_way(process.pid)
        elif niceness:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
        return cls(process)

    @property
    def process_id(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it went, or None while it is there."""
        return self._process.returncode

    async def write(self, line: bytes) -> None:
        """Gives it a line, with its end.

        Raises:
            OSError: it does not listen.
        """
        self._input.write(line)
        await self._input.drain()

    async def read(self) -> bytes:
        """A line of its answers, or nothing when it has died.

        Raises:
            OSError, ValueError: the pipe is broken, or the line has no end.
        """
        return await self._output.readline()

    async def read_exactly(self, size: int) -> bytes:
        """So many bytes of its answers.

        Raises:
            OSError, EOFError: the pipe is broken, or the process has died.
        """
        return await self._output.readexactly(size)

    async def ended(self) -> int | None:
        """Waits until it has gone whose pipe has broken, and gives its exit code; None where it is still there.

        Before it is killed: a process that ends meanwhile would leave no code.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_SECONDS):
                await self._process.wait()
        return self.exit_code

    async def kill(self) -> None:
        """Ends it, and waits until it has gone: until then it may write."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._input.close()
        try:
            async with asyncio.timeout(EXIT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            log.error("process %d was killed and has not ended", self._process.pid)


def _let_give_way(process_id: int) -> None:
    """Said from here, so that it holds while the process still imports its modules.

    Linux has a policy for that; a low priority alone still takes turns of milliseconds. Where neither may be said it is not.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process_id, LOWEST_PRIORITY)
        if sys.platform == "linux":
            os.sched_setscheduler(process_id, os.SCHED_IDLE, os.sched_param(0))


def _environment_of_children() -> dict[str, str]:
    """This program's own, with the place that this package was imported from first."""
    package = str(Path(ottla.__file__).parent.parent)
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


async def until_stopped() -> str:
    """Waits for SIGINT, SIGTERM or SIGHUP, which a terminal sends that is closed, and gives the signal's name.

    Until the loop is closed SIGTERM does nothing after that: a supervisor may repeat it, and what stops is to stop cleanly. As with Java.
    Another SIGINT interrupts: a person does not want to wait. With `nohup` SIGHUP stays ignored, as with Java too.
    """
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[str] = loop.create_future()

    def stop(name: str) -> None:
        if not stopped.done():
            stopped.set_result(name)

    for wanted in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if wanted != signal.SIGHUP or signal.getsignal(wanted) != signal.SIG_IGN:
            loop.add_signal_handler(wanted, stop, wanted.name)
    try:
        return await stopped
    finally:
        loop.remove_signal_handler(signal.SIGINT)

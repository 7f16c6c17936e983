"""One seed, from its first draw to the verdict: the story, sealed off from everything outside, and judged."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Final

from tests.chaos.checker import Anomaly, check
from tests.simulation.cluster import Cluster
from tests.simulation.disk import Crashed, recording
from tests.simulation.faults import Kind, Plan, draw
from tests.simulation.loop import Stuck, VirtualLoop
from tests.simulation.nodes import Node, current_name
from tests.simulation.story import CLIENT, Story
from tests.simulation.trace import Trace, TraceHandler

from ottla.model import TopicPartition
from ottla.storage.log_manager import LogManager

# No run takes longer than this, whatever waits for whatever.
MOST_SECONDS: Final = 600.0
# Of a process that `bound_process` has bound; a run takes some seconds and 0.3 GB.
MOST_ADDRESS_SPACE_BYTES: Final = 4 << 30
MOST_CPU_SECONDS: Final = 300
# Each kind of failure is told so often.
MOST_TOLD: Final = 20


class Overrun(KeyboardInterrupt):
    """A run takes far too long; neither a task nor the loop keeps it."""


@dataclass(slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    failures: list[str] = field(default_factory=list)
    digest: str = ""
    lines: list[str] = field(default_factory=list)
    seconds: float = 0.0
    callbacks: int = 0
    faults: int = 0
    sent: int = 0
    acknowledged: int = 0
    polled: int = 0
    audits: int = 0  # of one log each
    drawn: Counter[str] = field(default_factory=Counter)  # faults of the plan, by kind
    performed: Counter[str] = field(default_factory=Counter)  # what they came to when their time was there
    failed_calls: Counter[str] = field(default_factory=Counter)  # on disks, by call and error
    paths: Counter[str] = field(default_factory=Counter)  # of recovery

    @property
    def is_sound(self) -> bool:
        return not self.failures


def run_seed(seed: int, *, plan: Plan | None = None, keep_all: bool = False, profile: str | None = None) -> Outcome:
    """Runs a seed in this process.

    Args:
        plan: what is done, instead of what the seed draws.
        profile: which faults are drawn more often (`faults.PROFILES`).
    """
    plan = plan or draw(seed, profile)
    outcome = Outcome(seed)
    directory = Path(tempfile.mkdtemp(prefix="ottla-simulation-", dir=_memory()))
    run = _Run(plan, directory, outcome, keep_all)
    if signal.getsignal(signal.SIGVTALRM) is not signal.SIG_DFL:
        signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_SECONDS, 10)
    try:
        run.run()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


def bound_process() -> None:
    """From now on a seed that wants all of the memory, or stays in one callback, fails as any other does: with its trace."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESS_SPACE_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Overrun(f"{MOST_CPU_SECONDS} s of CPU in one run, at {''.join(traceback.format_stack(frame, 3))}")

    signal.signal(signal.SIGVTALRM, interrupt)


def _memory() -> str | None:
    """Files that are not on a disk, where there are such: what is synced is noted by the simulation, not by the kernel."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class _Run:
    def __init__(self, plan: Plan, directory: Path, outcome: Outcome, keep_all: bool) -> None:
        self.plan = plan
        self.outcome = outcome
        self.random = Random(f"run {plan.seed}")
        self.loop = VirtualLoop(self._unhandled)  # type: ignore[abstract]
        self.trace = Trace(self.loop.time, keep_all, str(directory))
        self.directory = directory
        self.failed_calls: Counter[str] = Counter()
        self.cluster = Cluster(plan, directory, self.loop, self.random, self.trace, self._fail, plan.broker_count)
        self.client = Node(CLIENT)
        self.story = Story(plan, self.loop, self.cluster, self.client, self.random, self.trace, self._fail)

    def run(self) -> None:
        urandom = Random(f"urandom {self.plan.seed}")
        with (
            _quiet(self.trace, self._fail) as handler,
            recording(self.cluster.disks, urandom.randbytes),
            _observed_logs(self.cluster),
        ):
            try:
                with self._sealed():
                    self.loop.run_until_complete(self._whole())
            except (Stuck, Overrun) as error:
                self._fail(f"stuck: {error}")
            except MemoryError:
                self._fail("stuck: it wants more memory than it may have")
            finally:
                for disk in self.cluster.disks:
                    self.failed_calls.update(disk.failed_by_kind)
                self._take_down()
        for finding in self._judge():
            self._fail(finding)
        outcome = self.outcome
        outcome.digest, outcome.lines = self.trace.digest, self.trace.lines
        outcome.faults = self.story.fault_count
        outcome.drawn.update(fault.kind for fault in self.plan.faults)
        outcome.performed = self.story.performed
        outcome.failed_calls, outcome.paths = self.failed_calls, handler.walked.counts
        outcome.audits = self.story.auditor.audits
        outcome.seconds, outcome.callbacks = self.loop.time(), self.loop.callback_count

    @contextmanager
    def _sealed(self) -> Iterator[None]:
        """Nothing is collected while it runs: when a cycle of objects goes would depend on what ran before."""
        gc.collect()
        gc.freeze()  # what is there by now, mostly code, need not be looked through again after the run
        gc.disable()
        try:
            yield
        finally:
            gc.enable()

    def _take_down(self) -> None:
        """Lets go of nodes that never ended; what their `finally` blocks would like to do is not wanted any more."""
        former, sys.unraisablehook = sys.unraisablehook, lambda _: None
        former_level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            self.loop.close()
            for task in list(self.loop.tasks):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    task.get_coro().close()
            self.loop.tasks.clear()
            self.cluster.machines.clear()
            gc.collect()
        finally:
            logging.disable(former_level)
            sys.unraisablehook = former

    def _fail(self, text: str) -> None:
        text = text.replace(str(self.directory), "…")
        self.trace.tell(f"FAILURE {text}")
        if len(self.outcome.failures) < MOST_TOLD:
            self.outcome.failures.append(f"{self.loop.time():.3f} s: {text}")

    def _unhandled(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Crashed):
            return
        self._fail(f"{current_name()}: {context.get('message')}: {error!r}")

    # The story.

    async def _whole(self) -> None:
        task = self.loop.spawn(self.client, self.story.run())
        done, _ = await asyncio.wait([task], timeout=MOST_SECONDS)
        if not done:
            self._fail("it does not end")
            return
        if task.exception() is not None:
            self._fail(f"the simulation itself failed: {task.exception()!r}")

    def _judge(self) -> Iterator[str]:
        verdict = check(self.story.history)
        self.outcome.sent, self.outcome.acknowledged, self.outcome.polled = verdict.sent, verdict.acknowledged, verdict.polled
        # A producer that a clock's step has expired is not known any more, nor what it sends again.
        may_repeat = any(fault.kind is Kind.STEP_CLOCK_FAR for fault in self.story.plan.faults)
        for finding in verdict.findings:
            if may_repeat and finding.anomaly is Anomaly.DUPLICATE:
                continue
            yield f"{finding.anomaly} at {finding.at_ms / 1000:.3f} s: {finding.explanation}"
        is_crowded = len(self.story.plan.faults) > 0.8 * self.story.plan.seconds  # there was never a quorum for long enough
        if verdict.sent and not (verdict.acknowledged or verdict.polled or is_crowded):
            yield "nothing was acknowledged in the whole run, and nothing was read"


@contextmanager
def _quiet(trace: Trace, unexpected: Any) -> Iterator[TraceHandler]:
    """What the brokers log goes to the trace and nowhere else."""
    root = logging.getLogger("ottla")
    handler = TraceHandler(trace, unexpected)
    former = root.level, root.propagate, list(root.handlers)
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    root.propagate = False
    try:
        yield handler
    finally:
        root.setLevel(former[0])
        root.propagate = former[1]
        root.handlers[:] = former[2]


@contextmanager
def _observed_logs(cluster: Cluster) -> Iterator[None]:
    """The cluster hears of logs as soon as they are loaded, before anything is appended or cut, and before one is deleted."""
    start, delete = LogManager.start, LogManager.delete

    async def observed(self: LogManager, cluster_id: str | None = None, *, was_left_by_kafka: bool = False) -> None:
        await start(self, cluster_id, was_left_by_kafka=was_left_by_kafka)
        cluster.logs_loaded(self)

    async def observed_delete(self: LogManager, topic_partition: TopicPartition) -> None:
        cluster.log_leaves(self, topic_partition)
        await delete(self, topic_partition)

    LogManager.start = observed  # type: ignore[method-assign]
    LogManager.delete = observed_delete  # type: ignore[method-assign]
    try:
        yield
    finally:
        LogManager.start = start  # type: ignore[method-assign]
        LogManager.delete = delete  # type: ignore[method-assign]

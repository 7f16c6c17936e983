"""Deaths at steps that are known: a plan names one, and the process that comes to it kills itself or another with SIGKILL.

    plan = Killing(tmp_path)                            # its `environment` is what the processes that may die are started with
    plan.next("a file is closed", nth=3, victim="java")
    ... run the program ...
    plan.struck()                                       # whether a process came so far

Nothing of Ottla knows of this. A `sitecustomize` of the tests' own, which Python imports at its start wherever PYTHONPATH leads to it,
wraps the functions in `_POINTS` when their modules are imported: in a driver as in the Python processes of Spark's executors. `nth`
counts over all of them. With a `delay` the kernel ends the process so much later, wherever it is then, by a timer that nothing handles:
what lies between two steps is met so, such as a commit that `deltalake` has half done.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

_VARIABLE: Final = "OTTLA_KILLING"
_ROOT: Final = Path(__file__).parent.parent.parent
_SITE: Final = "from tests.spark.killing import install\n\ninstall()\n"

SELF, JAVA, DRIVER, DISK, HELD = "self", "java", "driver", "disk", "held"

# Functions, and the step that each begins or ends; None says that it is no step.
_POINTS: Final[Mapping[str, tuple[tuple[str, str | None, str | None], ...]]] = {
    "ottla.spark.table": (
        ("Table.open", None, "the table is open"),
        ("Table.widen", None, "columns are added"),
        ("Table.commit", "the commit begins", "the commit is done"),
        ("ParquetFile.__init__", None, "a file is open"),
        ("ParquetFile.write", None, "rows are written"),
        ("ParquetFile.close", "a file is closed", "a file is on the disk"),
    ),
    "ottla.spark.loading.files": (("WriteTask.run", "a task begins", "a task is done"),),
    "ottla.spark.loading.driver": (
        ("_bounds", None, "the bounds are known"),
        ("_grouped", None, "the ranges are planned"),
        ("_written", None, "the tasks are over"),
        ("check", None, "the files are checked"),
        ("_tell_group", None, "the group knows"),
    ),
    "ottla.spark.sink": (
        ("_Sending.open", None, "a transaction is begun"),
        ("_Sending.write", None, "rows are sent"),
        ("_Sending.finish", None, "a transaction is prepared"),
        ("begin", "a batch begins", "a batch may be written"),
        ("StreamWriter.commit", "all is prepared", "the batch is over"),
    ),
}
# What the sink says of itself, to what is given as its `at`; see `commits.Step`.
_SINK: Final = "ottla.spark.exactly_once", "SinkCommits.__init__"

DRIVERS_STEPS: Final = tuple(
    step
    for module, name in (
        ("ottla.spark.table", "Table.open"),
        ("ottla.spark.loading.driver", "_bounds"),
        ("ottla.spark.loading.driver", "_grouped"),
        ("ottla.spark.loading.driver", "_written"),
        ("ottla.spark.loading.driver", "check"),
        ("ottla.spark.table", "Table.commit"),
        ("ottla.spark.loading.driver", "_tell_group"),
    )
    for of, *steps in _POINTS[module]
    if of == name
    for step in steps
    if step is not None
)
TASKS_STEPS: Final = ("a task begins", "a file is open", "rows are written", "a file is closed", "a file is on the disk", "a task is done")
SINKS_TASK_STEPS: Final = ("a transaction is begun", "rows are sent", "a transaction is prepared")
SINKS_STEPS: Final = (
    "a batch begins",
    "fenced",
    "begun",
    "a batch may be written",
    "all is prepared",
    "verified",
    "decided",
    "ended one",
    "ended",
    "recorded",
    "the batch is over",
)


@dataclass(frozen=True, slots=True)
class _Planned:
    step: str
    nth: int
    victim: str
    delay: float


class Killing:
    """A directory with at most one plan in it.

    Args:
        directory: it is made, and has to be seen by every process.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "site").mkdir(parents=True, exist_ok=True)
        (directory / "site" / "sitecustomize.py").write_text(_SITE, encoding="utf-8")
        self.deaths: list[tuple[str, str]] = []  # step and victim of each that was struck

    @property
    def environment(self) -> dict[str, str]:
        """This process' own, and what the plan takes."""
        path = os.pathsep.join([str(self._directory / "site"), str(_ROOT / "services"), str(_ROOT)])
        return {**os.environ, "PYTHONPATH": path, _VARIABLE: str(self._directory)}

    def next(self, step: str, nth: int = 1, victim: str = SELF, delay: float = 0.0) -> None:
        """Plans a death; one that no process came to is forgotten.

        Args:
            victim: SELF, the process that comes to the step; JAVA, the machine that it works for or has started; DRIVER, who started
                that; or the id of any other process. DISK kills none: from then on no file of the process may grow, which is what it
                finds on a full disk. Nor does HELD: the process waits there until `struck` is called.
        """
        for name in ("struck", "count"):
            (self._directory / name).unlink(missing_ok=True)
        whole = self._directory / "whole"
        whole.write_text(json.dumps(asdict(_Planned(step, nth, victim, delay))), encoding="utf-8")
        whole.rename(self._directory / "plan")

    def wait(self, seconds: float) -> None:
        """Returns when a process has come to the step."""
        deadline = time.monotonic() + seconds
        while not (self._directory / "struck").exists():
            assert time.monotonic() < deadline, "no process came to the step"
            time.sleep(0.01)

    def struck(self) -> bool:
        """Whether the death that was planned has come; it does not come any more."""
        (self._directory / "plan").unlink(missing_ok=True)
        try:
            found = _Planned(**json.loads((self._directory / "struck").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return False
        (self._directory / "struck").unlink()
        self.deaths.append((found.step, found.victim))
        return True


def _come_to(step: str) -> None:
    """What the wrapped functions call."""
    directory = Path(os.environ[_VARIABLE])
    plan = directory / "plan"
    try:
        planned = _Planned(**json.loads(plan.read_text(encoding="utf-8")))
        if planned.step != step:
            return
        with (directory / "count").open("ab") as file:  # one byte for each time, whichever process it is
            file.write(b".")
            file.flush()
            if file.tell() != planned.nth:
                return
        plan.rename(directory / "struck")  # one of several that come at a time
    except FileNotFoundError:
        return
    if planned.victim == DISK:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    elif planned.victim == HELD:
        while (directory / "struck").exists():
            time.sleep(0.01)
    elif planned.delay:
        signal.setitimer(signal.ITIMER_REAL, planned.delay)
    else:
        os.kill(_victim(planned.victim), signal.SIGKILL)


def _victim(kind: str) -> int:
    if kind == SELF or kind.isdecimal():
        return os.getpid() if kind == SELF else int(kind)
    java = next((process for process in [*_ancestors(os.getpid()), *_children(os.getpid())] if _name(process) == "java"), None)
    assert java is not None, "no machine of Java is above this process or below it"
    return java if kind == JAVA else _parent(java)


def _ancestors(process: int) -> list[int]:
    found = []
    while (process := _parent(process)) > 1:
        found.append(process)
    return found


def _children(process: int) -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal() and _parent(int(path.name)) == process]


def _name(process: int) -> str:
    return Path(f"/proc/{process}/comm").read_text(encoding="utf-8").strip()


def _parent(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the others find a module, and wraps its functions when it has been run."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name not in _POINTS and name != _SINK[0]:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def and_wrap(module: ModuleType) -> None:
            run(module)
            for function, before, after in _POINTS.get(name, ()):
                _replace(module, function, functools.partial(_wrapped, before=before, after=after))
            if name == _SINK[0]:
                _replace(module, _SINK[1], _telling)

        spec.loader.exec_module = and_wrap  # type: ignore[method-assign]
        return spec


def _replace(module: ModuleType, function: str, make: Callable[[Any], Any]) -> None:
    *inside, last = function.split(".")
    owner = functools.reduce(getattr, inside, module)
    found = vars(owner)[last]
    setattr(owner, last, classmethod(make(found.__func__)) if isinstance(found, classmethod) else make(found))


def _wrapped(function: Any, before: str | None, after: str | None) -> Any:
    def come(step: str | None) -> None:
        if step is not None:
            _come_to(step)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*arguments: Any, **named: Any) -> Any:
            come(before)
            found = await function(*arguments, **named)
            come(after)
            return found

        return awaited

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        come(before)
        found = function(*arguments, **named)
        come(after)
        return found

    return called


def _telling(function: Any) -> Any:
    @functools.wraps(function)
    def made(self: Any, cluster: Any, name: str, at: Any = None, clock: Any = None) -> None:
        function(self, cluster, name, lambda step: _come_to(step.value), clock)

    return made


def install() -> None:
    """What `sitecustomize` calls: does nothing where no plan can be."""
    if _VARIABLE in os.environ:
        sys.meta_path.insert(0, _Finder())

"""What tests of several folders share: a real ZooKeeper, where the machine has one, and examples that may take their time."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, is_hypothesis_test, settings

from ottla import lifecycle
from ottla.testing.zookeeper import ZooKeeperServer, why_unavailable

# What lasts is no matter of the tests in these folders.
WITHOUT_SYNC: Final = frozenset({"unit", "scenarios", "simulation"})
REAL_SYNC: Final = os.fsync, os.fdatasync
TESTS_RUN: Final = itertools.count(1)
# Where tests take all cores, a process that gives way to all others does not run for minutes.
LET_GIVE_WAY: Final = lifecycle._let_give_way
lifecycle._let_give_way = lambda process_id: None

# How long an example takes says more of the machine, and of who else uses it, than of what is tested.
# A property without a number of its own gets as many examples as `make test` has time for; `make test-long` gives it 50,
# `pytest --hypothesis-profile thorough` 500.
# A failure is told with what repeats it, and without Hypothesis' explanation, which makes examples slower by a tracer.
settings.register_profile(
    "ottla",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=20,
    phases=set(Phase) - {Phase.explain},
    print_blob=True,
)
settings.register_profile("long", settings.get_profile("ottla"), max_examples=50)
settings.register_profile("thorough", settings.get_profile("ottla"), max_examples=500)
settings.load_profile("ottla")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell that runs the tests in the background leaves it; the programs that they start would not hear Ctrl-C either.
    signal.signal(signal.SIGINT, signal.default_int_handler)
SHRINKING_SECONDS: Final = 300  # so long Hypothesis makes a failing example smaller, at most, before it tells of the failure


@pytest.hookimpl(tryfirst=True)  # before `-m` is looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A property that fails may take so much longer: cut while its example is made smaller, it would say nothing but that it hangs.

    What asks for a real ZooKeeper is marked, so that it can be run alone where the rest has been run without Java.
    """
    seconds = float(config.getini("timeout")) + SHRINKING_SECONDS
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if is_hypothesis_test(item.obj):
            item.add_marker(pytest.mark.timeout(seconds))
        if "a_zookeeper_to_start" in item.fixturenames or "[zookeeper" in item.name:  # the first parameter says so
            item.add_marker(pytest.mark.zookeeper)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """There nothing waits for a disk: whether a file was synced only a cut of the power can tell, which the simulation has for itself.

    What asks for it is looked at all the same, and a test may have it fail or count. Brokers in processes of their own wait.
    """
    if next(TESTS_RUN) % 50 == 0:
        gc.collect()
        gc.freeze()
    is_synced = item.path.relative_to(Path(__file__).parent).parts[0] not in WITHOUT_SYNC
    os.fsync, os.fdatasync = REAL_SYNC if is_synced else (_fsync, _fsync)


def _fsync(fd: Any) -> None:
    os.fstat(fd if isinstance(fd, int) else fd.fileno())  # raises EBADF as fsync does


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on a loop of its own. A fixture that is an asynchronous context is entered on that loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def run() -> None:
        async with AsyncExitStack() as stack:
            arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
            for name, value in arguments.items():
                if isinstance(value, AbstractAsyncContextManager):
                    arguments[name] = await stack.enter_async_context(value)
            await pyfuncitem.obj(**arguments)

    asyncio.run(run())
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Takes the tests themselves out of the garbage collector's sight, and it does not look while they are imported.

    There are millions of objects once all tests are imported, and those that ask for a collection paid 0.3 s for each; what pytest
    and Hypothesis keep of each test comes on top of that, so it is done again from time to time. Between, it looks seldom.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 10, 10)
        gc.enable()


@pytest.fixture
def children_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do in production."""
    monkeypatch.setattr(lifecycle, "_let_give_way", LET_GIVE_WAY)


@pytest.fixture(scope="session")
def a_zookeeper_to_start() -> None:
    """Skips, with what there is to install, on a machine without a ZooKeeper. With CI=true its absence is a failure."""
    reason = why_unavailable()
    if reason is not None:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"with CI=true the tests over a real ZooKeeper must run: {reason}")
        pytest.skip(reason)


@pytest.fixture(scope="session")
def zookeeper_server(a_zookeeper_to_start: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One server for this process; each test takes a chroot of its own."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def own_zookeeper_server(a_zookeeper_to_start: None, tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A server that a test may kill, restart and freeze."""
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield server

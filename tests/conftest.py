"""What tests of several folders share: a real ZooKeeper, where the machine has one, and examples that may take their time."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from ottla.testing.zookeeper import ZooKeeperServer, why_unavailable

# How long an example takes says more of the machine, and of who else uses it, than of what is tested.
# A property without a number of its own gets as many examples as keep `make test` under two minutes; `pytest
# --hypothesis-profile thorough` gives each ten times as many.
settings.register_profile("ottla", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=500)
settings.load_profile("ottla")


def pytest_collection_finish() -> None:
    """Takes the tests themselves out of the garbage collector's sight.

    There are millions of objects once all tests are imported, and those that ask for a collection paid 0.3 s for each.
    """
    gc.collect()
    gc.freeze()


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

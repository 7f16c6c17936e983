"""Logs on real files, for the tests of storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.testing import ManualClock

from .logs import FailingFiles, LogMaker, log_maker


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


@pytest.fixture
def make_log(tmp_path: Path, clock: ManualClock, files: FailingFiles) -> LogMaker:
    return log_maker(tmp_path / "clicks-0", clock, files)

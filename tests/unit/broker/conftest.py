"""The broker of a test that is a coroutine, and its controller."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.unit.broker.wired import Wired, wired

from ottla.broker.controller import active


@pytest.fixture
def broker(tmp_path: Path) -> AbstractAsyncContextManager[Wired]:
    return wired(tmp_path)


@pytest.fixture(autouse=True)
def _answers_are_heard_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller answers before all brokers have heard of it where that takes more than a second, as on a machine that is busy."""
    monkeypatch.setattr(active, "_ACKNOWLEDGED_SECONDS", 60.0)

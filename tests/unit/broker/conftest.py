"""The broker of a test that is a coroutine."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.unit.broker.wired import Wired, wired


@pytest.fixture
def broker(tmp_path: Path) -> AbstractAsyncContextManager[Wired]:
    return wired(tmp_path)

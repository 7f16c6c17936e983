"""`service` is an open service of each implementation."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from .implementations import IMPLEMENTATIONS, Implementation, Service


@pytest.fixture(params=IMPLEMENTATIONS, ids=str)
def service(request: pytest.FixtureRequest, tmp_path: Path) -> AbstractAsyncContextManager[Service]:
    implementation: Implementation = request.param
    return implementation.open(tmp_path, request)

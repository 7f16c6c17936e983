"""The cluster of a test that is a coroutine."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from .clusters import Cluster, clustered


@pytest.fixture
def cluster() -> AbstractAsyncContextManager[Cluster]:
    return clustered()

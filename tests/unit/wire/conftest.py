"""What most tests of a client need."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.unit.wire.clusters import one_broker

from ottla.wire.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> AbstractAsyncContextManager[Cluster]:
    """Of one broker."""
    return one_broker(tmp_path)

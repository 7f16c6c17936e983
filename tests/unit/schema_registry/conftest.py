"""What most tests of a registry ask."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest
from tests.unit.schema_registry.registries import Client, asking


@pytest.fixture
def client() -> AbstractAsyncContextManager[Client]:
    """Of a registry that runs on a log of its own."""
    return asking()

"""Scrapes of brokers on a machine that is busy."""

from __future__ import annotations

import pytest

from ottla.serving import freshness


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape waits for all that it has looked up, however long that takes."""
    monkeypatch.setattr(freshness, "PATIENCE_SECONDS", 120.0)

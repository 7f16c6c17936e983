"""Here a counter looks for silent sessions, and tries again what failed, ten times as often."""

from __future__ import annotations

import pytest

from ottla.audit_counter import service


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_POLL_SECONDS", "_HOUSEKEEPING_SECONDS", "_LOG_AGAIN_SECONDS", "_TOPICS_AGAIN_SECONDS"):
        monkeypatch.setattr(service, name, getattr(service, name) / 10)

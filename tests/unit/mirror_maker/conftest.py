"""Here a slot asks its source, and a link looks for what has changed, ten times as often: what a test does in between is seen soon.

A command waits for twelve times as long: its worker shares the machine with two clusters and other tests.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from ottla.cli import mirror
from ottla.mirror_maker import link
from ottla.mirror_maker.merge import slot


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "POLL_SECONDS", slot.POLL_SECONDS / 10)
    monkeypatch.setattr(slot, "FETCH_SETTINGS", replace(slot.FETCH_SETTINGS, max_wait_ms=slot.FETCH_SETTINGS.max_wait_ms // 10))
    monkeypatch.setattr(link, "RETRY_SECONDS", link.RETRY_SECONDS / 10)
    monkeypatch.setattr(mirror, "TIMEOUT_SECONDS", 12 * mirror.TIMEOUT_SECONDS)
    repeat = link.Link._repeat

    def repeat_sooner(one: link.Link, seconds: float, *others: Any) -> Coroutine[Any, Any, None]:
        return repeat(one, seconds / 10, *others)

    monkeypatch.setattr(link.Link, "_repeat", repeat_sooner)

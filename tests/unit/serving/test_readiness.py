"""Readiness as named conditions."""

from __future__ import annotations

import pytest

from ottla.serving.readiness import Conditions


def test_a_service_is_ready_while_each_of_its_conditions_holds() -> None:
    conditions = Conditions("registered", "topics_known")
    assert conditions.status() == (
        False,
        {"status": "not ready", "registered": False, "topics_known": False, "reason": "not registered, not topics known"},
    )
    conditions.set("registered")
    conditions.set("topics_known")
    assert conditions.status() == (True, {"status": "ready", "registered": True, "topics_known": True})
    conditions.set("registered", False)
    assert conditions.status()[1]["reason"] == "not registered"


def test_a_condition_that_a_service_does_not_have_is_a_fault() -> None:
    with pytest.raises(KeyError):
        Conditions("registered").set("loaded")

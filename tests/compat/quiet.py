"""librdkafka without its lines on standard error: brokers come and go in these tests on purpose."""

from __future__ import annotations

from typing import Any


def quiet() -> dict[str, Any]:
    """Settings to add to any of its clients."""
    return {"log_level": 0, "error_cb": lambda error: None}

"""`with_service` runs a coroutine function with an open service of each implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from .implementations import IMPLEMENTATIONS, Implementation, Service

Scenario = Callable[[Service], Awaitable[None]]


@pytest.fixture(params=IMPLEMENTATIONS, ids=str)
def with_service(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    implementation: Implementation = request.param
    opened = implementation.open(tmp_path, request)

    def run(scenario: Scenario) -> None:
        async def main() -> None:
            async with asyncio.timeout(120), opened as service:
                await scenario(service)

        asyncio.run(main())

    return run

"""The follower of a test that is a coroutine."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from .followers import Follower, following


@pytest.fixture
def follower() -> AbstractAsyncContextManager[Follower]:
    return following()

"""What the compatibility tests share. The broker is that of `ottla.testing.plugin`, as any project would have it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

import pytest

# A project of its own, with a pyproject of its own: test_example_project.py runs it the way its owner would.
collect_ignore = ["example_project"]


@pytest.fixture(scope="session")
def ottla_settings() -> Mapping[str, str]:
    return {"num.partitions": "4"}


@pytest.fixture(scope="session")
def kcat() -> str:
    """The program `kcat`. Without it these tests say so and are left out, but never in CI."""
    for name in ("kcat", "kafkacat"):
        if found := shutil.which(name):
            return found
    message = "kcat is not installed: nothing is known about it today (Debian: apt-get install kcat)"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)

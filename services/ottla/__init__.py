"""Ottla: a message log that every Kafka client can talk to, in Python, in layers.

Each sub-package is one layer; ARCHITECTURE.md lists them, and import-linter keeps their order.
"""

from __future__ import annotations


def release() -> str:
    """Which one is installed."""
    from importlib.metadata import PackageNotFoundError, version  # imported late: few ask

    try:
        return version("ottla")
    except PackageNotFoundError:  # run from its sources
        return "unknown"

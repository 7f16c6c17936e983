"""Kafka's names of its errors, as its metrics and tools spell them: NOT_LEADER_OR_FOLLOWER."""

from __future__ import annotations

import functools


@functools.cache
def error_name(code: int) -> str:
    """The name of an error code; of one that Kafka does not have, the number."""
    # Ten milliseconds to import, and asked for only where somebody reads.
    from kio.schema.errors import ErrorCode

    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)

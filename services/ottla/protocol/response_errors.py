"""The error codes in a response, wherever its schema has them.

A reader is put together once for each message of Kafka and looks only into those fields that lead to an error code, so
that asking costs little next to encoding the response.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ottla.protocol.schema_fields import schema_fields

_Reader = Callable[[Any, list[int]], None]


def error_codes(response: Any) -> list[int]:
    """Every error code of a kio response that is not 0, in the order of the fields."""
    found: list[int] = []
    schema: Any = type(response)
    read = _reader(schema)
    if read is not None:
        read(response, found)
    return found


@functools.cache
def _reader(schema: Any) -> _Reader | None:
    """What collects the codes of one message or struct; None when there are none in it."""
    codes = [each.name for each in schema_fields(schema) if each.wire_type == "error_code"]
    nested = [(each.name, each.is_array, _reader(each.struct)) for each in schema_fields(schema) if each.struct is not None]
    readers = [(name, is_array, read) for name, is_array, read in nested if read is not None]
    if not codes and not readers:
        return None

    def collect(message: Any, found: list[int]) -> None:
        for name in codes:
            code = getattr(message, name)
            if code:
                found.append(int(code))
        for name, is_array, read in readers:
            value = getattr(message, name)
            if not is_array:
                if value is not None:
                    read(value, found)
            elif value:
                for each in value:
                    read(each, found)

    return collect

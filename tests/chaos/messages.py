"""What a message of the workload looks like: its value, padding that follows from it, and so a proof that it is whole."""

from __future__ import annotations

import struct
from typing import Final

from tests.chaos.history import DAMAGED

SIZE: Final = 120
_VALUE: Final = struct.Struct(">Q")
_REPEATED: Final = SIZE // _VALUE.size


def encode(value: int) -> bytes:
    """The value over and over: every byte of the message says what it should be."""
    return _VALUE.pack(value) * _REPEATED


def decode(message: bytes | None) -> int:
    """The value of a message, or DAMAGED when it is not as `encode` made it."""
    if message is None or len(message) != SIZE:
        return DAMAGED
    return int(_VALUE.unpack_from(message)[0]) if message == message[: _VALUE.size] * _REPEATED else DAMAGED

"""A UUID as Kafka writes it: its sixteen bytes in URL-safe base64 without padding, 22 characters."""

from __future__ import annotations

import base64
import binascii
from typing import Final
from uuid import UUID

_LENGTH: Final = 22


def format_uuid(value: UUID) -> str:
    """The 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).decode("ascii").rstrip("=")


def parse_uuid(text: str) -> UUID:
    """The UUID of 22 characters.

    Raises:
        ValueError: another length, or characters that base64 does not have.
    """
    if len(text) != _LENGTH:
        raise ValueError(f"{text!r} has {len(text)} characters where a base64 UUID has {_LENGTH}")
    try:
        return UUID(bytes=base64.b64decode(f"{text}==", altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{text!r} is no base64 UUID: {error}") from error

"""The header `ottla-id`, which names a message across systems that change it: the audit knows the message by its sixteen bytes.

Of several that a message has the last one counts, as with Kafka's `lastHeader`; one of another length is a header as any other. It takes
26 bytes of a record. Needs no numpy, as producers put it on messages. Pure.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ottla.record.lists import NO_HEADERS
from ottla.record.records import read_headers
from ottla.record.varints import decode_varint, encode_varint

ID_HEADER: Final = "ottla-id"
ID_BYTES: Final = ID_HEADER.encode()
ID_SIZE: Final = 16
_BEFORE: Final = encode_varint(len(ID_BYTES)) + ID_BYTES + encode_varint(ID_SIZE)


def new_id() -> bytes:
    return os.urandom(ID_SIZE)


def id_of(headers: Iterable[Any]) -> bytes | None:
    """The id that headers say, pairs of a name and a value; None: they say none. What is no pair is left to what encodes it."""
    found = None
    for header in headers:
        match header:
            case (name, bytes() | str() as value) if name == ID_HEADER:
                octets = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
                found = octets if len(octets) == ID_SIZE else found
    return found


def ids_of_sections(sections: Sequence[bytes] | None) -> list[bytes | None] | None:
    """The ids of messages by their encoded headers; None: there is none at all."""
    some = {section for section in sections or () if _BEFORE in section}
    found = {section: message_id for section in some if (message_id := id_of(read_headers(section, 0)[0])) is not None}
    return [found.get(section) for section in sections or ()] if found else None


def with_id(section: bytes | None) -> bytes:
    """Encoded headers, and an id of their own behind them."""
    count, position = decode_varint(section or NO_HEADERS, 0)
    return b"".join((encode_varint(count + 1), (section or NO_HEADERS)[position:], _BEFORE, new_id()))

"""How `ottla consume` prints a message: plain, in columns, by a format like kcat's, or as a line of JSON.

Every renderer turns a message into bytes, newline and all: values are bytes and are printed as they are.
`ottla produce --json` reads what `--json` printed, so a topic is copied by a pipe.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from operator import methodcaller
from typing import Any, Final, NamedTuple

from ottla.cli.errors import CommandFailed, UsageError

CREATE_TIME_TYPE: Final = 1  # librdkafka's numbers, which are not the wire's
APPEND_TIME_TYPE: Final = 2


# The client gives a name that is not UTF-8 as a null pointer, with an exception set. Where a method is called by its name often enough,
# Python does not look for one there, and crashes later; it always does in this way, and raises SystemError.
_HEADERS: Final = methodcaller("headers")


class ReadMessage(NamedTuple):
    """A message as a client read it. A named tuple and not a dataclass: there is one for each message, and it is made faster.

    Its headers are None where the client cannot give them: confluent-kafka reads no name that is not UTF-8, and librdkafka writes any.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    append_time: bool
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] | None

    @classmethod
    def of(cls, message: Any) -> ReadMessage:
        """From a `confluent_kafka.Message`."""
        kind, timestamp = message.timestamp()
        try:
            headers = _HEADERS(message) or ()
        except SystemError:
            headers = None
        return cls(
            message.topic(),
            message.partition(),
            message.offset(),
            timestamp if kind in (CREATE_TIME_TYPE, APPEND_TIME_TYPE) else None,
            kind == APPEND_TIME_TYPE,
            message.key(),
            message.value(),
            headers,
        )

    def known_headers(self) -> Sequence[tuple[str, bytes | None]]:
        """The headers, to be printed. Raises CommandFailed where they are not known."""
        if self.headers is None:
            raise CommandFailed(f"{self.topic}-{self.partition}@{self.offset}: the name of a header is not UTF-8; print it without headers")
        return self.headers


Renderer = Callable[[ReadMessage], bytes]
_Token = Callable[[ReadMessage, bytes], bytes]  # the bytes are those of a null


def time_of(timestamp_ms: int) -> str:
    """A time as ISO 8601; one outside of its years in milliseconds, as clients may stamp any."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return str(timestamp_ms)


def _headers(headers: Sequence[tuple[str, bytes | None]], null: bytes) -> bytes:
    return b",".join(name.encode() + b"=" + (null if value is None else value) for name, value in headers)


def columns(*, position: bool, timestamp: bool, headers: bool, key: bool, null: bytes, separator: bytes = b"\t") -> Renderer:
    """The value, preceded by the columns that were asked for: position, timestamp, headers, key."""

    def render(message: ReadMessage) -> bytes:
        cells: list[bytes] = []
        if position:
            cells.append(b"%s-%d@%d" % (message.topic.encode(), message.partition, message.offset))
        if timestamp:
            cells.append(b"-" if message.timestamp_ms is None else time_of(message.timestamp_ms).encode())
        if headers:
            cells.append(_headers(message.known_headers(), null))
        if key:
            cells.append(null if message.key is None else message.key)
        cells.append(null if message.value is None else message.value)
        return separator.join(cells) + b"\n"

    return render


def _length(part: bytes | None) -> bytes:
    return b"-1" if part is None else b"%d" % len(part)


_TOKENS: Final[dict[str, _Token]] = {
    "t": lambda message, null: message.topic.encode(),
    "p": lambda message, null: b"%d" % message.partition,
    "o": lambda message, null: b"%d" % message.offset,
    "k": lambda message, null: null if message.key is None else message.key,
    "K": lambda message, null: _length(message.key),
    "s": lambda message, null: null if message.value is None else message.value,
    "S": lambda message, null: _length(message.value),
    "T": lambda message, null: b"%d" % (-1 if message.timestamp_ms is None else message.timestamp_ms),
    "h": lambda message, null: _headers(message.known_headers(), null),
    "%": lambda message, null: b"%",
}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def unescaped(text: str) -> str:
    """`\\n`, `\\t`, `\\r`, `\\0` and `\\\\` as the characters that they stand for."""
    pieces: list[str] = []
    letters = iter(text)
    for letter in letters:
        if letter == "\\":
            following = next(letters, "")
            pieces.append(_ESCAPES.get(following, "\\" + following))
        else:
            pieces.append(letter)
    return "".join(pieces)


def by_format(text: str, null: bytes) -> Renderer:
    """kcat's format: %t topic, %p partition, %o offset, %k key, %s value, %K %S their lengths, %T time, %h headers, %%."""
    parts: list[bytes | _Token] = []
    pieces = unescaped(text).split("%")
    parts.append(pieces[0].encode())
    position = 1
    while position < len(pieces):
        piece = pieces[position]
        token = piece[:1] or "%"
        if piece == "" and position + 1 == len(pieces):
            raise UsageError(f"the format {text!r} ends with a lone %")
        if token not in _TOKENS:
            raise UsageError(f"the format has no %{token}; it has {' '.join('%' + known for known in _TOKENS)}")
        parts.append(_TOKENS[token])
        if piece == "":  # `%%`: split left an empty piece between the two, and the text continues in the next
            position += 1
            parts.append(pieces[position].encode())
        else:
            parts.append(piece[1:].encode())
        position += 1

    def render(message: ReadMessage) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message, null) for part in parts)

    return render


def text_or_base64(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def as_json(message: ReadMessage) -> bytes:
    """One line of JSON. What is not UTF-8 is under `key_base64`, `value_base64`; a header is an object of its own."""
    document = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp_ms,
        "timestamp_type": "append" if message.append_time else "create",
        **text_or_base64("key", message.key),
        **text_or_base64("value", message.value),
        "headers": [{"name": name, **text_or_base64("value", value)} for name, value in message.known_headers()],
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"

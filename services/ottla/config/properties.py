"""Java's `.properties` files, which is what every Kafka configuration is written in.

Comments start with `#` or `!`; `=`, `:` or blanks part a name from its value; a backslash at the end of a line
joins the next; `\\t \\n \\r \\f \\uXXXX` are escapes and a backslash before anything else is dropped.
Each value remembers its line. Unlike Java, a name that is given twice is refused: there the last one wins unseen; and a file that is UTF-8
is read as that. Any other is Latin-1, as every file is to Java.

Source: the API documentation of `java.util.Properties.load`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ottla.errors import ConfigurationError

_BLANKS: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_JAAS: Final = re.compile(r"""\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))""")
_PEM: Final = re.compile(r"(-----BEGIN [A-Z0-9 ]+-----)[^\S\n]+([A-Za-z0-9+/=\s]+?)\s*(-----END [A-Z0-9 ]+-----)")
_PEM_LINE: Final = 64


class Properties(Mapping[str, str]):
    """Names and values of one file, and where each stands in it."""

    def __init__(self, values: Mapping[str, str], lines: Mapping[str, int], source: str) -> None:
        self._values = dict(values)
        self._lines = dict(lines)
        self.source = source

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def place_of(self, name: str) -> str:
        """`file:line` of a name."""
        return f"{self.source}:{self._lines[name]}"

    def with_values(self, values: Mapping[str, str]) -> Properties:
        """The same file as if it had these values, at the lines where their names stand."""
        return Properties(values, self._lines, self.source)


def load(path: Path | str) -> Properties:
    """Reads a file; ConfigurationError when it cannot be read or names a setting twice."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error
    try:
        return parse(content.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError:
        return parse(content.decode("latin-1"), str(path))


def parse(text: str, source: str = "<text>") -> Properties:
    """Reads the text of a file; `source` is what error messages call it."""
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    problems: list[str] = []
    for number, line in _logical_lines(text):
        try:
            name, value = _split(line)
        except ValueError as error:
            problems.append(f"{source}:{number}: {error}")
            continue
        if name in values:
            problems.append(f"{source}:{number}: '{name}' was set in line {lines[name]} already")
            continue
        values[name], lines[name] = value, number
    if problems:
        raise ConfigurationError("\n".join(problems))
    return Properties(values, lines, source)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined, each with the number of its first line; no comments, no empty ones."""
    joined: str | None = None
    first = 0
    for number, line in enumerate(_LINE_END.split(text), start=1):
        line = line.lstrip(_BLANKS)
        if joined is None:
            if not line or line[0] in "#!":
                continue
            joined, first = "", number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined += line[:-1]
            continue
        yield first, joined + line
        joined = None
    if joined:
        yield first, joined


def _split(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    name, rest = line[:position], line[position:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    if not name:
        raise ValueError("a value without a name")
    return _unescape(name), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    pieces: list[str] = []
    position = 0
    while position < len(text):
        letter = text[position]
        position += 1
        if letter != "\\" or position == len(text):
            pieces.append(letter)
            continue
        letter = text[position]
        position += 1
        if letter != "u":
            pieces.append(_ESCAPES.get(letter, letter))
            continue
        digits = text[position : position + 4]
        if not re.fullmatch("[0-9a-fA-F]{4}", digits):
            raise ValueError(f"\\u{digits} is not an escape of four hexadecimal digits")
        pieces.append(chr(int(digits, 16)))
        position += 4
    # Java's strings are UTF-16: two escapes may be the halves of one character.
    return "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def jaas_login(jaas: str) -> dict[str, str]:
    """`username` and `password` of a `sasl.jaas.config`, those that are there: in Java's quotes, with its backslashes, or bare."""
    return {name: re.sub(r"\\(.)", r"\1", double or single) or bare for name, double, single, bare in _JAAS.findall(jaas)}


def pem_in_lines(text: str) -> str:
    """PEM whose lines were joined by backslashes at their ends, as Kafka's documentation has it, in lines again: OpenSSL reads no other."""

    def lines(match: re.Match[str]) -> str:
        begin, base64, end = match[1], "".join(match[2].split()), match[3]
        return "\n".join(["", begin, *(base64[at : at + _PEM_LINE] for at in range(0, len(base64), _PEM_LINE)), end, ""])

    return _PEM.sub(lines, text)


def authorities_of(pem: str) -> str | None:
    """Certificates as `cadata` of Python's `ssl`, if there are any: what stands between them says whose they are, and may not be ASCII."""
    return pem.encode("ascii", "replace").decode() or None

"""Reads keys and values of internal topics from their beginning. Whatever does not fit raises InvalidRecord.

Strings are UTF-8 with a 16-bit length; in flexible versions lengths are varints and tagged fields follow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from ottla.errors import InvalidRecord, InvalidRequest
from ottla.protocol.primitives import read_uvarint, skip_tagged_fields

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


class RecordReader:
    """Reads a key or value from its beginning. Flexible from the version on that says so."""

    __slots__ = ("_data", "_flexible", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._flexible = False

    def version(self, highest: int, first_flexible: int) -> int:
        """A value's version, and from there on its encoding."""
        version = self.int16()
        if not 0 <= version <= highest:
            raise InvalidRecord(f"a value of version {version}; 0 to {highest} are known")
        self._flexible = version >= first_flexible
        return version

    def int8(self) -> int:
        return int(self._unpack(_INT8))

    def int16(self) -> int:
        return int(self._unpack(_INT16))

    def int32(self) -> int:
        return int(self._unpack(_INT32))

    def int64(self) -> int:
        return int(self._unpack(_INT64))

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise InvalidRecord(f"a null string ends at byte {self._position}, where one is needed")
        return text

    def nullable_string(self) -> str | None:
        size = self._compact_size() if self._flexible else self.int16()
        if size < 0:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise InvalidRecord(f"a string before byte {self._position} is not UTF-8: {error}") from error

    def byte_string(self) -> bytes:
        return self._take(self._compact_size() if self._flexible else self.int32())

    def nullable_bytes(self) -> bytes | None:
        size = self._compact_size() if self._flexible else self.int32()
        return None if size < 0 else self._take(size)

    def count(self, *, nullable: bool = False) -> int:
        """How many elements follow, a null array having none; no more than bytes are left."""
        count = self._compact_size() if self._flexible else self.int32()
        if nullable and count == -1:
            return 0
        if not 0 <= count <= len(self._data) - self._position:
            raise InvalidRecord(f"{count} elements cannot follow byte {self._position} of {len(self._data)}")
        return count

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(16))

    def tags(self) -> Iterator[tuple[int, RecordReader]]:
        """The tagged fields: each with its number and what reads its bytes."""
        for _ in range(self._unsigned()):
            tag, size = self._unsigned(), self._unsigned()
            field = RecordReader(self._take(size))
            field._flexible = True
            yield tag, field

    def is_there(self) -> bool:
        """Whether a nullable struct follows."""
        return self._unsigned() == 1

    def tagged_fields(self) -> None:
        if self._flexible:
            try:
                self._position = skip_tagged_fields(memoryview(self._data), self._position, len(self._data))
            except (IndexError, InvalidRequest) as error:
                raise InvalidRecord(f"the tagged fields at byte {self._position} of {len(self._data)} are broken: {error}") from error

    def _compact_size(self) -> int:
        return self._unsigned() - 1

    def _unsigned(self) -> int:
        try:
            number, self._position = read_uvarint(memoryview(self._data), self._position)
        except (IndexError, InvalidRequest) as error:
            raise InvalidRecord(f"the number at byte {self._position} of {len(self._data)} is broken: {error}") from error
        return number

    def _unpack(self, layout: struct.Struct) -> int:
        try:
            (value,) = layout.unpack_from(self._data, self._position)
        except struct.error as error:
            raise InvalidRecord(f"the record ends within a number at byte {self._position} of {len(self._data)}") from error
        self._position += layout.size
        return value  # type: ignore[no-any-return]  # struct knows no types

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise InvalidRecord(f"{size} bytes cannot follow byte {self._position} of {len(self._data)}")
        taken = self._data[self._position : end]
        self._position = end
        return taken

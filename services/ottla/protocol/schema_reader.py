"""Reads a message by its kio schema, from bytes that cannot be trusted.

kio's own reader reserves memory for as many elements as an array claims to have: five bytes from anyone end the
process, with no exception to catch. It also refuses unknown tagged fields, which KIP-482 says to skip, and views of
writable buffers. So the schemas are kio's and the reader is ours: a count is believed only as far as the rest of the
frame could hold that many elements, unknown tags are skipped, and everything that is wrong is an InvalidRequest.

The bytes of a frame bound the elements in it, but 100 MiB can hold 50 million empty topics, which would stop the loop for
minutes. So the reader says how many elements a message may have (`ottla.protocol.api.max_elements` of requests).

A reader takes a buffer and a position and gives the value and the position after it. The buffer ends with the message.
What is read is equal to what kio would have read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import make_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from ottla.errors import InvalidRequest
from ottla.protocol.primitives import read_array_length, read_string, read_tag_count, read_uvarint
from ottla.protocol.schema_fields import NOT_TAGGED, SchemaField, schema_fields

Reader = Callable[[memoryview, int], tuple[Any, int]]

_FIXED: Final = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "uint32": struct.Struct(">I"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
    "bool": struct.Struct(">?"),
    "timedelta_i32": struct.Struct(">i"),
    "timedelta_i64": struct.Struct(">q"),
}
_INT32: Final = _FIXED["int32"]
_STRUCT_IS_NULL: Final = 0xFF  # KIP-893: INT8 -1 before a nullable struct
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


# How many elements the message that is being read may still have, in a list of one. Threads have contexts of their own.
_left: Final[ContextVar[list[int]]] = ContextVar("elements left")


class Elements:
    """The bound of elements of one kind of message."""

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        self.most: Final = most

    def begin(self) -> None:
        """A message is about to be read."""
        _left.set([self.most])

    def take(self, count: int, where: str) -> None:
        """Counts elements that are about to be read."""
        left = _left.get()
        left[0] -= count
        if left[0] < 0:
            raise InvalidRequest(f"more than {self.most} elements, the last {count} of them in {where}")


def message_reader(schema: Any, max_elements: int, result: Any = None) -> Reader:
    """The reader of a whole request or response; any thread may use it.

    Args:
        schema: kio's class of the message, in the version that is read.
        max_elements: of all its arrays together; a message of more is refused.
        result: kio's class of a later version, to read older ones into, if not `schema`. What the version that is read does not have
            gets its default; what only that version has is an attribute besides.
    """
    elements = Elements(max_elements)
    read_message = _struct_reader(schema, elements, schema if result is None else result)

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        elements.begin()
        return read_message(buffer, position)

    return read


def _struct_reader(schema: Any, elements: Elements, result: Any) -> Reader:
    flexible: bool = schema.__flexible__
    plain: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    fields, in_result = schema_fields(schema), {field.name: field for field in schema_fields(result)}
    build = _with(result, [field for field in fields if field.name not in in_result])
    sent = {field.name for field in fields if field.tag == NOT_TAGGED}
    defaults = {field.name: field.default for field in (*in_result.values(), *fields) if field.name not in sent}
    for field in fields:
        reader = _field_reader(field, flexible, elements, in_result.get(field.name, field).struct)
        if field.tag == NOT_TAGGED:
            plain.append((field.name, reader))
        else:
            tagged[field.tag] = (field.name, reader)

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        values = defaults.copy()
        for name, read_field in plain:
            values[name], position = read_field(buffer, position)
        if flexible:
            count, position = read_tag_count(buffer, position)
            for _ in range(count):
                tag, position = read_uvarint(buffer, position)
                size, position = read_uvarint(buffer, position)
                stop = position + size
                if stop > len(buffer):
                    raise InvalidRequest(f"tagged field {tag} has {size} bytes and {len(buffer) - position} are left")
                if tag in tagged:
                    name, read_field = tagged[tag]
                    values[name], position = read_field(buffer[:stop], position)
                    if position != stop:
                        raise InvalidRequest(f"tagged field {tag} says {size} bytes and has {size - stop + position}")
                position = stop
        return build(**values), position

    return read


def _with(result: Any, more: list[SchemaField]) -> Any:
    """The class with these fields more."""
    if not more:
        return result
    return make_dataclass(result.__name__, [(field.name, object) for field in more], bases=(result,), frozen=True, slots=True, kw_only=True)


def _field_reader(field: SchemaField, flexible: bool, elements: Elements, result: Any) -> Reader:
    if field.is_array:
        item = _struct_reader(field.struct, elements, result) if field.struct else _primitive_reader(field.wire_type, False, flexible)
        return _array_reader(item, field, flexible, elements)
    # A tagged field is absent rather than null, so its type has no place for null.
    nullable = field.nullable and field.tag == NOT_TAGGED
    if field.struct:
        read_struct = _struct_reader(field.struct, elements, result)
        return _nullable(read_struct) if nullable else read_struct
    return _primitive_reader(field.wire_type, nullable, flexible)


def _array_reader(read_item: Reader, field: SchemaField, flexible: bool, elements: Elements) -> Reader:
    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        # No element is smaller than a byte, so this bounds the count by the frame before anything is built from it.
        count, position = read_array_length(buffer, position, len(buffer), compact=flexible, element_size=1)
        if count < 0:
            if not field.nullable:
                raise InvalidRequest(f"{field.name} is null")
            return None, position
        elements.take(count, field.name)
        items = []
        for _ in range(count):
            item, position = read_item(buffer, position)
            items.append(item)
        return tuple(items), position

    return read


def _nullable(read_struct: Reader) -> Reader:
    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        if buffer[position] == _STRUCT_IS_NULL:
            return None, position + 1
        return read_struct(buffer, position + 1)

    return read


def _primitive_reader(wire_type: str, nullable: bool, flexible: bool) -> Reader:
    match wire_type:
        case "string":
            return _string_reader(nullable, flexible)
        case "bytes" | "records":
            return _bytes_reader(nullable, flexible)
        case "uuid":
            return _read_uuid
        case "error_code":
            return _read_error_code
        case "timedelta_i32" | "timedelta_i64":
            return _milliseconds_reader(_FIXED[wire_type])
        case "datetime_i64":
            return _read_datetime
        case _:
            return _fixed_reader(_FIXED[wire_type])


def _fixed_reader(layout: struct.Struct) -> Reader:
    unpack_from, size = layout.unpack_from, layout.size

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        return unpack_from(buffer, position)[0], position + size

    return read


def _milliseconds_reader(layout: struct.Struct) -> Reader:
    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        milliseconds = layout.unpack_from(buffer, position)[0]
        try:
            return timedelta(milliseconds=milliseconds), position + layout.size
        except OverflowError as error:
            raise InvalidRequest(f"a time span of {milliseconds} ms") from error

    return read


def _string_reader(nullable: bool, flexible: bool) -> Reader:
    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        text, stop = read_string(buffer, position, len(buffer), compact=flexible)
        if text is None and not nullable:
            raise InvalidRequest(f"the string at byte {position} is null")
        return text, stop

    return read


def _bytes_reader(nullable: bool, flexible: bool) -> Reader:
    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        if flexible:
            size, position = read_uvarint(buffer, position)
            size -= 1
        else:
            size = _INT32.unpack_from(buffer, position)[0]
            position += 4
        if size < 0:
            if not nullable:
                raise InvalidRequest(f"the bytes at byte {position} are null")
            return None, position
        stop = position + size
        if stop > len(buffer):
            raise InvalidRequest(f"{size} bytes at byte {position} of {len(buffer)}")
        return bytes(buffer[position:stop]), stop

    return read


def _read_uuid(buffer: memoryview, position: int) -> tuple[Any, int]:
    stop = position + 16
    if stop > len(buffer):
        raise InvalidRequest(f"a UUID at byte {position} of {len(buffer)}")
    encoded = bytes(buffer[position:stop])
    return (UUID(bytes=encoded) if any(encoded) else None), stop


def _read_datetime(buffer: memoryview, position: int) -> tuple[Any, int]:
    milliseconds = _FIXED["int64"].unpack_from(buffer, position)[0]
    if milliseconds == -1:
        return None, position + 8
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds), position + 8
    except OverflowError as error:
        raise InvalidRequest(f"a time {milliseconds} ms after 1970") from error


def _read_error_code(buffer: memoryview, position: int) -> tuple[Any, int]:
    from kio.schema.errors import ErrorCode  # here, because importing this module must not import kio

    code = _FIXED["int16"].unpack_from(buffer, position)[0]
    try:
        return ErrorCode(code), position + 2
    except ValueError:  # a newer broker has errors that are not known here; Kafka's clients take them for this one, too
        return ErrorCode.unknown_server_error, position + 2

"""Kafka's messages read and written by kio's schemas.

kio describes each message as a dataclass whose fields carry their wire type in the metadata. Only those descriptions are used
here, not kio's own reader and writer (docs/decisions says why): `schema_fields` brings them into the form that `message_reader`,
`struct_writer` and `error_codes` are built from.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import struct
import types
import typing
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, make_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from ottla.errors import InvalidRequest
from ottla.protocol.primitives import INT16, INT32, INT64, read_array_length, read_string, read_tagged_fields, read_uvarint, uvarint

# Takes a buffer and a position and gives the value and the position after it. The buffer ends with the message.
Reader = Callable[[memoryview, int], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]
_CodeReader = Callable[[Any, list[int]], None]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NOT_TAGGED: Final = -1

# Of what is no number.
_ZEROS: Final = {"bool": False, "string": "", "bytes": b"", "records": None, "uuid": None, "datetime_i64": None}


@dataclass(frozen=True, slots=True)
class SchemaField:
    """One field of a message.

    `wire_type` is Kafka's name of a primitive; it is empty for a struct, whose class is then `struct`. `default` stands for a field that is
    absent: a tagged one that was not sent, or one that an older version of the message does not have.
    """

    name: str
    wire_type: str
    struct: Any
    is_array: bool
    nullable: bool
    tag: int
    default: Any


def schema_fields(schema: Any) -> list[SchemaField]:
    """The fields of a kio dataclass in wire order."""
    return [_schema_field(field) for field in dataclasses.fields(schema)]


def _schema_field(field: dataclasses.Field[Any]) -> SchemaField:
    declared, nullable = _without_none(field.type)
    is_array = typing.get_origin(declared) is tuple
    if is_array:
        declared, _ = _without_none(typing.get_args(declared)[0])
    tag = field.metadata.get("tag", NOT_TAGGED)
    return SchemaField(
        name=field.name,
        wire_type=field.metadata.get("kafka_type", ""),
        struct=declared if dataclasses.is_dataclass(declared) else None,
        is_array=is_array,
        nullable=nullable,
        tag=tag,
        default=_default(field, declared, is_array),
    )


def _without_none(declared: Any) -> tuple[Any, bool]:
    if typing.get_origin(declared) is not types.UnionType:
        return declared, False
    return next(argument for argument in typing.get_args(declared) if argument is not types.NoneType), True


def _default(field: dataclasses.Field[Any], declared: Any, is_array: bool) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if is_array:
        return ()
    if dataclasses.is_dataclass(declared):
        return declared(**{nested.name: nested.default for nested in schema_fields(declared)})  # type: ignore[operator]  # a dataclass of unknown fields
    return _ZEROS.get(field.metadata["kafka_type"], 0)


# Reading, from bytes that cannot be trusted.
#
# kio's own reader reserves memory for as many elements as an array claims to have: five bytes from anyone end the
# process, with no exception to catch. It also refuses unknown tagged fields, which KIP-482 says to skip, and views of
# writable buffers. So the schemas are kio's and the reader is ours: a count is believed only as far as the rest of the
# frame could hold that many elements, unknown tags are skipped, and everything that is wrong is an InvalidRequest.
# What is read is equal to what kio would have read.
#
# The bytes of a frame bound the elements in it, but 100 MiB can hold 50 million empty topics, which would stop the loop for
# minutes. So the reader says how many elements a message may have (`ottla.protocol.api.max_elements` of requests).

_FORMATS: Final = {
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "bool": "?",
    "error_code": "h",
}
_FIXED: Final = {name: struct.Struct(">" + layout) for name, layout in _FORMATS.items()}
_SPANS: Final = {"timedelta_i32": INT32, "timedelta_i64": INT64}
_STRUCT_IS_NULL: Final = 0xFF  # KIP-893: INT8 -1 before a nullable struct


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
        if flexible and not buffer[position]:
            position += 1
        elif flexible:
            fields_sent, position = read_tagged_fields(buffer, position, len(buffer))
            for tag, start, size in fields_sent:
                if tag in tagged:
                    name, read_field = tagged[tag]
                    values[name], stop = read_field(buffer[: start + size], start)
                    if stop != start + size:
                        raise InvalidRequest(f"tagged field {tag} says {size} bytes and has {stop - start}")
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
        return _nullable_reader(read_struct) if nullable else read_struct
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


def _nullable_reader(read_struct: Reader) -> Reader:
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
            return _milliseconds_reader(_SPANS[wire_type])
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
            size = INT32.unpack_from(buffer, position)[0]
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
    milliseconds = INT64.unpack_from(buffer, position)[0]
    if milliseconds == -1:
        return None, position + 8
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds), position + 8
    except OverflowError as error:
        raise InvalidRequest(f"a time {milliseconds} ms after 1970") from error


def _read_error_code(buffer: memoryview, position: int) -> tuple[Any, int]:
    known, unknown = _error_codes()
    # A newer broker has errors that are not known here; Kafka's clients take them for this one, too.
    return known.get(INT16.unpack_from(buffer, position)[0], unknown), position + 2


@functools.cache
def _error_codes() -> tuple[Mapping[int, Any], Any]:
    from kio.schema.errors import ErrorCode  # here, because importing this module must not import kio

    return {int(code): code for code in ErrorCode}, ErrorCode.unknown_server_error


# Writing.
#
# Neighbouring fields of fixed size go through one `struct.pack`, which is most of why this takes a third of the time of
# kio's own writer; a Metadata response of a thousand partitions is written on the event loop.

_ZERO_UUID: Final = bytes(16)
_MILLISECOND: Final = timedelta(milliseconds=1)


def struct_writer(schema: Any) -> Writer:
    """The writer of a kio class: a whole request or response, or a struct within one."""
    flexible: bool = schema.__flexible__
    fields = schema_fields(schema)
    steps = _steps([field for field in fields if field.tag == NOT_TAGGED], flexible)
    tagged = [
        (field, _field_writer(field, flexible)) for field in sorted(fields, key=operator.attrgetter("tag")) if field.tag != NOT_TAGGED
    ]

    def write(out: bytearray, value: Any) -> None:
        for step in steps:
            step(out, value)
        if flexible:
            if tagged:
                _write_tagged_fields(out, value, tagged)
            else:
                out.append(0)

    return write


def _steps(fields: list[SchemaField], flexible: bool) -> list[Writer]:
    """Writers that each take the whole struct: one for a run of fixed-size fields, one for any other field."""
    steps: list[Writer] = []
    run: list[SchemaField] = []
    for field in fields:
        if field.wire_type in _FORMATS and not field.is_array:
            run.append(field)
            continue
        if run:
            steps.append(_run_writer(run))
            run = []
        steps.append(_attribute_writer(field, flexible))
    if run:
        steps.append(_run_writer(run))
    return steps


def _run_writer(run: list[SchemaField]) -> Writer:
    pack = struct.Struct(">" + "".join(_FORMATS[field.wire_type] for field in run)).pack
    get = operator.attrgetter(*(field.name for field in run))
    if len(run) == 1:

        def write_one(out: bytearray, value: Any) -> None:
            out += pack(get(value))

        return write_one

    def write(out: bytearray, value: Any) -> None:
        out += pack(*get(value))

    return write


def _attribute_writer(field: SchemaField, flexible: bool) -> Writer:
    get, write_field = operator.attrgetter(field.name), _field_writer(field, flexible)

    def write(out: bytearray, value: Any) -> None:
        write_field(out, get(value))

    return write


def _write_tagged_fields(out: bytearray, value: Any, tagged: list[tuple[SchemaField, Writer]]) -> None:
    """Those fields that differ from their default. librdkafka 2.0.2 cannot read a default that is written out."""
    present = [(field, write, item) for field, write in tagged if (item := getattr(value, field.name)) != field.default]
    out += uvarint(len(present))
    for field, write, item in present:
        encoded = bytearray()
        write(encoded, item)
        out += uvarint(field.tag) + uvarint(len(encoded)) + encoded


def _field_writer(field: SchemaField, flexible: bool) -> Writer:
    if field.is_array:
        item = struct_writer(field.struct) if field.struct else _primitive_writer(field.wire_type, flexible)
        return _array_writer(item, flexible)
    if field.struct:
        write_struct = struct_writer(field.struct)
        return _nullable_writer(write_struct) if field.nullable and field.tag == NOT_TAGGED else write_struct
    return _primitive_writer(field.wire_type, flexible)


def _nullable_writer(write_struct: Writer) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            write_struct(out, value)

    return write


def _array_writer(write_item: Writer, flexible: bool) -> Writer:
    def write(out: bytearray, items: Any) -> None:
        count = -1 if items is None else len(items)
        out += uvarint(count + 1) if flexible else INT32.pack(count)
        for item in items or ():
            write_item(out, item)

    return write


def _primitive_writer(wire_type: str, flexible: bool) -> Writer:
    match wire_type:
        case "string":
            return _write_compact_string if flexible else _write_string
        case "bytes" | "records":
            return _write_compact_bytes if flexible else _write_bytes
        case "uuid":
            return _write_uuid
        case "timedelta_i32" | "timedelta_i64":
            return _milliseconds_writer(_SPANS[wire_type])
        case "datetime_i64":
            return _write_datetime
        case _:
            return _fixed_writer(_FIXED[wire_type])


def _fixed_writer(layout: struct.Struct) -> Writer:
    pack = layout.pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def _milliseconds_writer(layout: struct.Struct) -> Writer:
    pack = layout.pack

    def write(out: bytearray, value: Any) -> None:
        # Whole numbers all the way: total_seconds() is a float and loses the last digits of large spans.
        out += pack(value // _MILLISECOND)

    return write


def _write_datetime(out: bytearray, value: Any) -> None:
    out += INT64.pack(-1 if value is None else (value - _EPOCH) // _MILLISECOND)


def _write_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out += b"\xff\xff"
        return
    encoded = text.encode()
    out += INT16.pack(len(encoded))
    out += encoded


def _write_compact_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    encoded = text.encode()
    out += uvarint(len(encoded) + 1)
    out += encoded


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
        return
    out += INT32.pack(len(value))
    out += value


def _write_compact_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(0)
        return
    out += uvarint(len(value) + 1)
    out += value


def _write_uuid(out: bytearray, value: Any) -> None:
    out += value.bytes if value is not None else _ZERO_UUID


# The error codes in a response, wherever its schema has them.
#
# A reader is put together once for each message of Kafka and looks only into those fields that lead to an error code, so
# that asking costs little next to encoding the response.


def error_codes(response: Any) -> list[int]:
    """Every error code of a kio response that is not 0, in the order of the fields."""
    found: list[int] = []
    schema: Any = type(response)
    read = _code_reader(schema)
    if read is not None:
        read(response, found)
    return found


@functools.cache
def _code_reader(schema: Any) -> _CodeReader | None:
    """What collects the codes of one message or struct; None when there are none in it."""
    codes = [field.name for field in schema_fields(schema) if field.wire_type == "error_code"]
    nested = [(field.name, field.is_array, _code_reader(field.struct)) for field in schema_fields(schema) if field.struct is not None]
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
                for element in value:
                    read(element, found)

    return collect

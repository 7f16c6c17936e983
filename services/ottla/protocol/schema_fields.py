"""What a kio schema class says of its fields, in the form that our reader and writer are built from.

kio describes each message of Kafka as a dataclass whose fields carry their wire type in the metadata. Only those
descriptions are used here, not kio's own reader and writer (docs/decisions says why).
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

NOT_TAGGED: Final = -1

# Of what is no number.
_ZEROS: Final = {"bool": False, "string": "", "bytes": b"", "records": None, "uuid": None, "datetime_i64": None}

_Reader = Callable[[Any, list[int]], None]


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
    """The declared default, else Kafka's zero of its type."""
    if field.default is not dataclasses.MISSING:
        return field.default
    if is_array:
        return ()
    if dataclasses.is_dataclass(declared):
        return declared(**{nested.name: nested.default for nested in schema_fields(declared)})  # type: ignore[operator]  # a dataclass of unknown fields
    return _ZEROS.get(field.metadata["kafka_type"], 0)


# The error codes in a response, wherever its schema has them.
#
# A reader is put together once for each message of Kafka and looks only into those fields that lead to an error code, so
# that asking costs little next to encoding the response.


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
    codes = [field.name for field in schema_fields(schema) if field.wire_type == "error_code"]
    nested = [(field.name, field.is_array, _reader(field.struct)) for field in schema_fields(schema) if field.struct is not None]
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

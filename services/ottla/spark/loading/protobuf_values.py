"""Protobuf messages as Arrow, with the types of their descriptor, which the registry gives compiled (`format=serialized`): no protoc here.

Behind the schema's id stands which of its messages a value is, as Confluent's serializers write it. `int32` is 32 bits, `uint32` and all
of 64 bits are int64, but `uint64` and `fixed64` are decimal(20, 0); enums are strings; `repeated` and `map` are lists and maps; Timestamp
is a timestamp, and the wrappers are what they wrap. A message that holds itself, Struct and its like are strings with their JSON. A field
that tells whether it is there is null where it is not; others have their default. Fields that the schema does not know are left out.

Each message is a Python object here, so this has about a twentieth of the speed of Avro. Pure: no I/O.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np

from ottla.record.columnar import ByteColumn
from ottla.spark.loading.avro import Flags, Group, SchemaUnusable, check_names, count_types

_MOST_INDEXES: Final = 64
_LONGEST_VARINT: Final = 10
_JSON: Final = frozenset({"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"})
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_INT64: Final = 1 << 63
# What many files import for options that say nothing of a value.
_WITHOUT_TYPES: Final = frozenset({"confluent/meta.proto"})


@dataclass(frozen=True, slots=True)
class _Value:
    """What becomes of a field: its `pyarrow.DataType`, a value of it as Arrow takes it, and how many types it is (`avro.count_types`)."""

    kind: Any
    convert: Callable[[Any], Any]
    types: int = 1


class ProtobufSchema:
    """A file's messages."""

    def __init__(self, file: Any) -> None:
        # A file of which nothing is but one public import stands for that: Confluent's serializers count the messages there.
        is_empty = not (file.message_types_by_name or file.enum_types_by_name or file.services_by_name or file.extensions_by_name)
        stands_for_another = is_empty and len(file.dependencies) == len(file.public_dependencies) == 1
        self._file = file.public_dependencies[0] if stands_for_another else file
        self._readers: dict[tuple[int, ...], tuple[Any, dict[str, tuple[Any, _Value]]] | SchemaUnusable] = {}

    def decode(self, values: ByteColumn, skip: int = 0) -> tuple[list[Group], Flags]:
        """As `avro.AvroType.decode`; a group for each kind of message."""
        import pyarrow
        from google.protobuf.message import DecodeError

        is_bad = np.zeros(len(values), np.bool_)
        rows: dict[tuple[int, ...], list[int]] = {}
        found: dict[tuple[int, ...], list[dict[str, Any]]] = {}
        for number, octets in enumerate(values.to_list()):
            try:
                path, start = _path(octets or b"", skip)
                message, fields = self._reader(path)
                read = message.FromString((octets or b"")[start:])
                row = {name: _get(read, field, value) for name, (field, value) in fields.items()}
            except (DecodeError, ValueError, OverflowError, IndexError, SchemaUnusable):
                is_bad[number] = True
                continue
            rows.setdefault(path, []).append(number)
            found.setdefault(path, []).append(row)
        groups = []
        for path, of_it in found.items():
            _, fields = self._reader(path)
            columns = {name: pyarrow.array([row[name] for row in of_it], value.kind) for name, (_, value) in fields.items()}
            groups.append((np.array(rows[path]), columns))
        return groups, is_bad

    def _reader(self, path: tuple[int, ...]) -> tuple[Any, dict[str, tuple[Any, _Value]]]:
        """Raises: IndexError, SchemaUnusable: the file has no such message, or it has too many columns."""
        if path not in self._readers:
            from google.protobuf.message_factory import GetMessageClass

            described = list(self._file.message_types_by_name.values())[path[0]]
            for index in path[1:]:
                described = described.nested_types[index]
            try:
                self._readers[path] = GetMessageClass(described), _fields(described, ())
            except SchemaUnusable as error:  # each value of it asks
                self._readers[path] = error
        found = self._readers[path]
        if isinstance(found, SchemaUnusable):
            raise found
        return found


def read_protobuf_schema(encoded: str, referenced: Mapping[str, str]) -> ProtobufSchema:
    """Reads a file's descriptor, in base64.

    Args:
        referenced: those of the files that it imports, by the names that it imports them by; those first that others of them import.

    Raises:
        SchemaUnusable
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError

    pool, there = DescriptorPool(), set[str]()

    def add(file: Any) -> None:
        for name in file.dependency:
            if name not in there and name in _WITHOUT_TYPES:
                add(FileDescriptorProto(name=name))
            elif name not in there:
                add(_well_known(name))
        if file.name not in there:
            pool.AddSerializedFile(file.SerializeToString())
            there.add(file.name)

    try:
        for name, text in referenced.items():
            file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
            file.name = name
            add(file)
        own = FileDescriptorProto.FromString(base64.b64decode(encoded, validate=True))
        add(own)
        schema = ProtobufSchema(pool.FindFileByName(own.name))
        if schema._file.message_types_by_name:
            schema._reader((0,))
    except (DecodeError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise SchemaUnusable(f"this is no Protobuf schema: {type(error).__name__}: {error}") from error
    return schema


def _well_known(name: str) -> Any:
    """Google's own files, which every compiler has."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    if name.startswith("google/") and name.endswith(".proto"):
        try:
            module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        except ModuleNotFoundError:
            pass
        else:
            return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    raise SchemaUnusable(f"it imports {name}, which the registry does not give")


def _path(octets: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """Which message, and where it begins: a count and indexes, zigzag; a count of 0 is the first message.

    Raises:
        ValueError
    """
    count, at = _varint(octets, start)
    if not count:
        return (0,), at
    if not 0 < count <= _MOST_INDEXES:
        raise ValueError(f"{count} indexes")
    path = []
    for _ in range(count):
        index, at = _varint(octets, at)
        if index < 0:
            raise ValueError(f"an index of {index}")
        path.append(index)
    return tuple(path), at


def _varint(octets: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number, octet in enumerate(octets[at : at + _LONGEST_VARINT]):
        value |= (octet & 0x7F) << 7 * number
        if octet < 0x80:
            return value >> 1 ^ -(value & 1), at + number + 1
    raise ValueError("a number that does not end")


def _fields(described: Any, above: tuple[str, ...]) -> dict[str, tuple[Any, _Value]]:
    """The fields that have a column. All but messages without fields do."""
    found = {field.name: (field, _value(field, (*above, described.full_name))) for field in described.fields}
    there = {name: (field, value) for name, (field, value) in found.items() if value is not None}
    count_types(value.types for _, value in there.values())
    check_names(there)
    return there


def _get(message: Any, field: Any, value: _Value) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    return value.convert(getattr(message, field.name))


def _value(field: Any, above: tuple[str, ...]) -> _Value | None:
    import pyarrow

    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, inner = (_single(field.message_type.fields_by_name[name], above) for name in ("key", "value"))
        if key is None or inner is None:
            return None
        to_key, to_inner = key.convert, inner.convert
        return _Value(
            pyarrow.map_(key.kind, inner.kind), lambda items: [(to_key(name), to_inner(items[name])) for name in sorted(items)], inner.types
        )
    single = _single(field, above)
    if single is None or not field.is_repeated:
        return single
    convert = single.convert
    return _Value(pyarrow.list_(single.kind), lambda items: [convert(item) for item in items], single.types)


def _single(field: Any, above: tuple[str, ...]) -> _Value | None:
    """Of one value of a field."""
    import pyarrow

    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}  # of aliases the first, as in Java
        return _Value(pyarrow.string(), lambda number: names.get(number) or str(number))
    if field.message_type is not None:
        return _message(field.message_type, above)
    if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64):
        return _Value(pyarrow.decimal128(20, 0), Decimal)
    if field.type == field.TYPE_STRING:
        return _Value(pyarrow.string(), _text)
    kinds = {
        field.CPPTYPE_INT32: pyarrow.int32(),
        field.CPPTYPE_INT64: pyarrow.int64(),
        field.CPPTYPE_UINT32: pyarrow.int64(),
        field.CPPTYPE_DOUBLE: pyarrow.float64(),
        field.CPPTYPE_FLOAT: pyarrow.float32(),
        field.CPPTYPE_BOOL: pyarrow.bool_(),
    }
    return _Value(pyarrow.binary() if field.type == field.TYPE_BYTES else kinds[field.cpp_type], _as_it_is)


def _as_it_is(value: Any) -> Any:
    return value


def _text(value: Any) -> Any:
    """Raises: ValueError: it is no UTF-8, which messages of proto2 are not checked for when they are read."""
    if isinstance(value, bytes):
        raise ValueError("a string that is no UTF-8")
    return value


def _message(described: Any, above: tuple[str, ...]) -> _Value | None:
    import pyarrow

    name = described.full_name
    if name == _TIMESTAMP:
        return _Value(pyarrow.timestamp("us", tz="UTC"), _microseconds)
    if name in _JSON or name in above:
        return _Value(pyarrow.string(), _json)
    fields = _fields(described, above)
    if not fields:
        return None
    if described.file.name == "google/protobuf/wrappers.proto":
        wrapped = fields["value"][1]
        return _Value(wrapped.kind, lambda message: wrapped.convert(message.value))
    return _Value(
        pyarrow.struct([(name, value.kind) for name, (_, value) in fields.items()]),
        lambda message: {name: _get(message, field, value) for name, (field, value) in fields.items()},
        count_types(value.types for _, value in fields.values()),
    )


def _json(message: Any) -> str:
    """Raises: ValueError: it has none, such as a packed message of a type that is not known."""
    from google.protobuf.json_format import Error, MessageToJson

    try:
        return str(MessageToJson(message, preserving_proto_field_name=True, indent=None))
    except (Error, TypeError) as error:
        raise ValueError(str(error)) from error


def _microseconds(timestamp: Any) -> int:
    """Raises: OverflowError: it is outside of what a column can have."""
    found = int(timestamp.seconds) * 1_000_000 + int(timestamp.nanos) // 1000
    if not -_INT64 <= found < _INT64:
        raise OverflowError(f"{timestamp.seconds} s")
    return found

"""Which Protobuf message reads what another wrote: the rules that Confluent's registry publishes, under its names.

Fields are compared by number. A name may change, a field may come and go, a number may become another of the same wire type, and
messages may be reordered, for the bytes name them by an index of the schema that wrote them. What may not: another package, a message
that is missing, a required field that comes or goes, a member taken out of a oneof that stays, fields that exclude one another and
did not before, another wire type.

Types of imported files are compared as the file's own, once for each pair. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto

from ottla.schema_registry.formats.interface import Budget, Incompatibility, Limits

F: Final = FieldDescriptorProto
# Types that have the same bytes for the same small values (protobuf.dev, "Updating a message type").
KINDS: Final[Mapping[int, str]] = {
    **dict.fromkeys((F.TYPE_INT32, F.TYPE_INT64, F.TYPE_UINT32, F.TYPE_UINT64, F.TYPE_BOOL, F.TYPE_ENUM), "varint"),
    **dict.fromkeys((F.TYPE_SINT32, F.TYPE_SINT64), "zigzag"),
    **dict.fromkeys((F.TYPE_STRING, F.TYPE_BYTES), "string or bytes"),
    **dict.fromkeys((F.TYPE_FIXED32, F.TYPE_SFIXED32), "fixed 32"),
    **dict.fromkeys((F.TYPE_FIXED64, F.TYPE_SFIXED64), "fixed 64"),
    F.TYPE_FLOAT: "float",
    F.TYPE_DOUBLE: "double",
}

SENTENCES: Final[Mapping[str, tuple[str, str]]] = {
    "PACKAGE_CHANGED": (
        "the package of the {reader} schema is not that of the {writer} schema",
        "keep the package, or register the schema under another subject",
    ),
    "MESSAGE_REMOVED": ("the {reader} schema has no message '{path}', which the {writer} schema has", "keep the message"),
    "FIELD_KIND_CHANGED": (
        "the field '{path}' is a number, a message or a map in the {reader} schema, and another of these in the {writer} schema",
        "keep the type, and give the new one a new number",
    ),
    "FIELD_SCALAR_KIND_CHANGED": (
        "the field '{path}' has another encoding in the {reader} schema than in the {writer} schema",
        "keep a type of the same encoding, and give the new one a new number",
    ),
    "FIELD_NAMED_TYPE_CHANGED": (
        "the field '{path}' has a message in the {reader} schema that is not that of the {writer} schema, or does not read it",
        "keep the message's name and make its change compatible, or give the new one a new number",
    ),
    "FIELD_NUMERIC_LABEL_CHANGED": (
        "the number '{path}' is repeated, optional or required in the {reader} schema, and another of these in the {writer} schema",
        "keep the label: repeated numbers are packed",
    ),
    "REQUIRED_FIELD_ADDED": ("the {reader} schema requires '{path}', which the {writer} schema has not", "make the field optional"),
    "REQUIRED_FIELD_REMOVED": ("the {writer} schema requires '{path}', which the {reader} schema has not", "keep the field"),
    "ONEOF_FIELD_REMOVED": (
        "the oneof of the {reader} schema has no member '{path}', which the {writer} schema may have set",
        "keep the member",
    ),
    "MULTIPLE_FIELDS_MOVED_TO_ONEOF": (
        "fields of the {writer} schema, of which several may be set, exclude one another in the oneof '{path}' of the {reader} schema",
        "move no more than one of them into a new oneof",
    ),
    "FIELD_MOVED_TO_EXISTING_ONEOF": (
        "a field of the {writer} schema has become a member of the oneof '{path}' in the {reader} schema, beside others of before",
        "leave the field outside the oneof",
    ),
}


@dataclass(frozen=True, slots=True)
class _Type:
    """A message or an enum, and where it is from."""

    descriptor: DescriptorProto | EnumDescriptorProto
    name: str  # without the package
    file: str


class Types:
    """All types of a file and what it imports, by full name with a dot before it."""

    def __init__(self, files: Sequence[FileDescriptorProto]) -> None:
        self.main: Final = files[-1]
        self._types: Final[dict[str, _Type]] = {}
        for file in files:
            prefix = f".{file.package}." if file.package else "."
            for enum in file.enum_type:
                self._types[prefix + enum.name] = _Type(enum, enum.name, file.name)
            for name, message in messages_of(file.message_type):
                self._types[prefix + name] = _Type(message, name, file.name)
                for enum in message.enum_type:
                    self._types[f"{prefix}{name}.{enum.name}"] = _Type(enum, f"{name}.{enum.name}", file.name)

    def of(self, field: FieldDescriptorProto) -> _Type:
        """The type that a field names."""
        return self._types[field.type_name]


def messages_of(messages: Iterable[DescriptorProto], outer: str = "") -> Iterator[tuple[str, DescriptorProto]]:
    """Messages and those nested in them, by their names without the package, in the order of the text."""
    for message in messages:
        yield outer + message.name, message
        yield from messages_of(message.nested_type, f"{outer}{message.name}.")


def compare_files(reader: Types, writer: Types, limits: Limits) -> list[Incompatibility]:
    """Why messages of one file may not read what those of another wrote; empty when they do.

    Raises:
        InvalidSchema: the two are too complex together.
    """
    comparison = _Comparison(reader, writer, Budget(limits))
    if reader.main.package != writer.main.package:
        comparison.add("PACKAGE_CHANGED", ())
    comparison.messages(reader.main.message_type, writer.main.message_type, ())
    return comparison.found


Path = tuple[str | int, ...]


class _Comparison:
    """What is found in two files."""

    def __init__(self, reader: Types, writer: Types, budget: Budget) -> None:
        self.found: list[Incompatibility] = []
        self._reader: Final = reader
        self._writer: Final = writer
        self._budget: Final = budget
        self._imported: Final[dict[tuple[str, str], bool]] = {}  # pairs of imported messages: whether compatible

    def add(self, rule: str, path: Path) -> None:
        """A reason at a place."""
        self._budget.spend(steps=3)
        self.found.append(Incompatibility(rule, "#/" + "/".join(map(str, path)), *SENTENCES[rule]))

    def messages(self, readers: Iterable[DescriptorProto], writers: Iterable[DescriptorProto], path: Path) -> None:
        """Messages of one place, by name."""
        new = {message.name: message for message in readers if not message.options.map_entry}
        for old in writers:
            self._budget.spend()
            if old.options.map_entry:
                continue
            if old.name not in new:
                self.add("MESSAGE_REMOVED", (*path, old.name))
            else:
                self._message(new[old.name], old, (*path, old.name))

    def _message(self, reader: DescriptorProto, writer: DescriptorProto, path: Path) -> None:
        self._fields(reader, writer, path)
        self.messages(reader.nested_type, writer.nested_type, path)

    def _fields(self, reader: DescriptorProto, writer: DescriptorProto, path: Path) -> None:
        new = {field.number: field for field in reader.field}
        old = {field.number: field for field in writer.field}
        self._exclusions(reader, writer, old, path)
        kept = {decl.name for decl in reader.oneof_decl}
        kept |= {_oneof(writer, field) or "" for number, field in old.items() if number in new}
        for number in sorted({*new, *old}):
            self._budget.spend()
            if number not in new:
                oneof = _oneof(writer, old[number])
                if oneof is None and old[number].label == F.LABEL_REQUIRED:
                    self.add("REQUIRED_FIELD_REMOVED", (*path, number))
                elif oneof is not None and oneof in kept:  # a oneof that goes with all its members may go
                    self.add("ONEOF_FIELD_REMOVED", (*path, oneof, number))
            elif number not in old:
                if new[number].label == F.LABEL_REQUIRED:
                    self.add("REQUIRED_FIELD_ADDED", (*path, number))
            else:
                oneof = _oneof(reader, new[number])
                place = (*path, number) if oneof is None else (*path, oneof, number)
                self._field(reader, writer, new[number], old[number], place)

    def _exclusions(self, reader: DescriptorProto, writer: DescriptorProto, old: Mapping[int, FieldDescriptorProto], path: Path) -> None:
        """Fields that exclude one another now must have done so before."""
        members: dict[str, list[int]] = {}
        for field in reader.field:
            if (oneof := _oneof(reader, field)) is not None and field.number in old:
                members.setdefault(oneof, []).append(field.number)
        for name, numbers in members.items():
            groups = [_oneof(writer, old[number]) for number in numbers]
            from_outside = groups.count(None)
            if from_outside + len({group for group in groups if group is not None}) > 1:
                self.add("MULTIPLE_FIELDS_MOVED_TO_ONEOF" if from_outside > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF", (*path, name))

    def _field(
        self,
        reader: DescriptorProto,
        writer: DescriptorProto,
        new: FieldDescriptorProto,
        old: FieldDescriptorProto,
        path: Path,
    ) -> None:
        new_entry, old_entry = self._entry(self._reader, new), self._entry(self._writer, old)
        if (new_entry is None) != (old_entry is None) or (new.type in KINDS) != (old.type in KINDS):
            self.add("FIELD_KIND_CHANGED", path)
        elif new_entry is not None and old_entry is not None:
            for new_part, old_part in zip(_by_number(new_entry), _by_number(old_entry), strict=True):
                self._field(new_entry, old_entry, new_part, old_part, path)
        elif new.type in KINDS:
            if KINDS[new.type] != KINDS[old.type]:
                self.add("FIELD_SCALAR_KIND_CHANGED", path)
            elif KINDS[new.type] != "string or bytes" and not (reader.options.map_entry or writer.options.map_entry):
                new_label, old_label = self._label(self._reader, new), self._label(self._writer, old)
                if new_label is not None and old_label is not None and new_label != old_label:
                    self.add("FIELD_NUMERIC_LABEL_CHANGED", path)
        else:
            self._message_field(new, old, path)

    def _message_field(self, new: FieldDescriptorProto, old: FieldDescriptorProto, path: Path) -> None:
        reader, writer = self._reader.of(new), self._writer.of(old)
        if reader.name != writer.name or new.type != old.type:
            self.add("FIELD_NAMED_TYPE_CHANGED", path)
            return
        if reader.file == self._reader.main.name and writer.file == self._writer.main.name:
            return  # compared where it stands
        pair = new.type_name, old.type_name
        if pair not in self._imported:
            self._imported[pair] = True
            before = len(self.found)
            assert isinstance(reader.descriptor, DescriptorProto)
            assert isinstance(writer.descriptor, DescriptorProto)
            self._message(reader.descriptor, writer.descriptor, tuple(reader.name.split(".")))
            self._imported[pair] = len(self.found) == before
        if not self._imported[pair]:
            self.add("FIELD_NAMED_TYPE_CHANGED", path)

    def _entry(self, types: Types, field: FieldDescriptorProto) -> DescriptorProto | None:
        """What a map has for each key; None if the field is no map."""
        if field.type != F.TYPE_MESSAGE:
            return None
        entry = types.of(field).descriptor
        return entry if isinstance(entry, DescriptorProto) and entry.options.map_entry else None

    def _label(self, types: Types, field: FieldDescriptorProto) -> int | None:
        """The label that the text has; without one, as in proto3, a field may get any."""
        in_oneof = field.HasField("oneof_index") and not field.proto3_optional
        unlabelled = types.main.syntax in ("proto3", "editions") and field.label == F.LABEL_OPTIONAL and not field.proto3_optional
        return None if in_oneof or unlabelled else field.label


def _by_number(message: DescriptorProto) -> list[FieldDescriptorProto]:
    return sorted(message.field, key=lambda field: field.number)


def _oneof(message: DescriptorProto, field: FieldDescriptorProto) -> str | None:
    """The oneof that a field is a member of; that of an optional field of proto3 is none."""
    return message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") and not field.proto3_optional else None

"""Writing a Protobuf file's descriptor as text, in the order and the layout of Confluent's canonical form.

Syntax, package, imports, options, messages, enums, extensions, services; within a message reserved, options, fields, oneofs, groups,
extension ranges, extensions, nested messages, nested enums. No comments. Options stand as in the text. A type is named as the text named
it, or by its full name with a dot before it where there is no text or `normalize` is asked for; that also sorts what has no meaning by its
order: imports, fields and values by number, oneofs by their first field, reserved ranges, options by name; and leaves out the line of
proto2. The order of messages has a meaning, for the bytes of a record name a message by its index.

Options are read with the classes of the file's own pool, so that those which a schema has defined itself have their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    EnumValueDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

INDENT: Final = "  "
# One beyond the last number of a message's fields, and the last of an enum's values: both are written "max".
FIELD_NUMBER_END: Final = 536_870_912
ENUM_NUMBER_MAX: Final = 2_147_483_647

F: Final = FieldDescriptorProto
SCALARS: Final[Mapping[int, str]] = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in FieldDescriptorProto.Type.items()
    if number not in (F.TYPE_MESSAGE, F.TYPE_ENUM, F.TYPE_GROUP)
}
LABELS: Final[Mapping[int, str]] = {F.LABEL_OPTIONAL: "optional ", F.LABEL_REQUIRED: "required ", F.LABEL_REPEATED: "repeated "}

NO_ENTRIES: Final[Mapping[str, DescriptorProto]] = {}

_ESCAPES: Final = str.maketrans(dict(zip("\\\"'\a\b\f\n\r\t\v", (f"\\{letter}" for letter in "\\\"'abfnrtv"), strict=True)))


class _Members(NamedTuple):
    """What a message or a oneof has, by number: fields, and groups, which stand behind them."""

    fields: list[tuple[int, list[str]]]
    groups: list[tuple[int, list[str]]]


class Writer:
    """Writes one file.

    Args:
        file: its descriptor.
        pool: has it and what it imports.
        text: what it was read from, or nothing.
        normalize: sorts, and gives types their full names.
        extensions: whether those are written that others' messages are given, and options that are such.
    """

    def __init__(
        self, file: FileDescriptorProto, pool: DescriptorPool, text: str = "", normalize: bool = False, extensions: bool = True
    ) -> None:
        self._file: Final = file
        self._pool: Final = pool
        self._normalize: Final = normalize
        self._extensions: Final = extensions
        self._spellings: Final = {} if normalize else dict(_spellings(file, text))
        self._sequence: Final = {} if normalize or not text else _sequence(file)
        self._json_names: Final = _given_json_names(file) if text else frozenset[tuple[int, ...]]()

    def write(self) -> str:
        """The text."""
        file = self._file
        blocks = [self._head()]
        imports = [*file.dependency]
        weak_or_public = {*file.public_dependency}
        plain = [name for index, name in enumerate(imports) if index not in weak_or_public]
        public = [name for index, name in enumerate(imports) if index in weak_or_public]
        if self._normalize:
            plain, public = sorted(set(plain)), sorted(set(public))
        blocks.append([*(f'import "{_escaped(name)}";' for name in plain), *(f'import public "{_escaped(name)}";' for name in public)])
        blocks.append(self._option_lines(file.options, (8,)))
        groups = _groups_of(file.extension)
        messages = [
            line
            for index, message in enumerate(file.message_type)
            if message.name not in groups
            for line in self._message(message, (4, index), f".{file.package}.{message.name}" if file.package else f".{message.name}")
        ]
        blocks.append([*messages, *(line for index, enum in enumerate(file.enum_type) for line in self._enum(enum, (5, index)))])
        blocks.append(self._extends(file.extension, (7,)) if self._extensions else [])
        blocks.append([line for index in range(len(file.service)) for line in self._service(index)])
        return "\n".join("".join(f"{line}\n" for line in block) for index, block in enumerate(blocks) if block or index == 0)

    def _head(self) -> list[str]:
        file = self._file
        lines: list[str] = []
        if file.syntax == "editions":
            lines.append(f'edition = "{descriptor_pb2.Edition.Name(file.edition).removeprefix("EDITION_")}";')
        elif file.syntax == "proto3" or (not self._normalize and (file.syntax or not self._sequence or (12,) in self._sequence)):
            # A text of proto2 may have no such line, and its normal form has none.
            lines.append(f'syntax = "{file.syntax or "proto2"}";')
        return lines + ([f"package {file.package};"] if file.package else [])

    # Messages

    def _message(self, message: DescriptorProto, place: tuple[int, ...], full_name: str) -> list[str]:
        groups = _groups_of(message.field) | _groups_of(message.extension)
        nested = [
            line
            for index, inner in enumerate(message.nested_type)
            if not inner.options.map_entry and inner.name not in groups
            for line in self._message(inner, (*place, 3, index), f"{full_name}.{inner.name}")
        ]
        nested += [line for index, enum in enumerate(message.enum_type) for line in self._enum(enum, (*place, 4, index))]
        return _block(f"message {message.name}", [*self._body(message, place, full_name), nested])

    def _body(self, message: DescriptorProto, place: tuple[int, ...], full_name: str) -> list[list[str]]:
        numbers = [(reserved.start, reserved.end - 1) for reserved in message.reserved_range]
        maps = [inner for inner in message.nested_type if inner.options.map_entry and len(inner.field) == 2]
        entries = {f"{full_name}.{inner.name}": inner for inner in maps}  # another message may have an OrderEntry too
        own = _Members([], [])
        oneofs: dict[int, _Members] = {}
        for index, field in enumerate(message.field):
            is_in_oneof = field.HasField("oneof_index") and not field.proto3_optional
            members = oneofs.setdefault(field.oneof_index, _Members([], [])) if is_in_oneof else own
            lines = self._field(field, (*place, 2, index), message, entries)
            (members.groups if field.type == F.TYPE_GROUP else members.fields).append((field.number, lines))
        written = [(self._ordered(members.fields or members.groups)[0][0], index) for index, members in oneofs.items()]
        blocks = [
            _block(
                f"oneof {message.oneof_decl[index].name}",
                [
                    self._option_lines(message.oneof_decl[index].options, (*place, 8, index, 2)),
                    _joined(self._ordered(oneofs[index].fields)),
                    _joined(self._ordered(oneofs[index].groups)),
                ],
            )
            for _, index in (sorted(written) if self._normalize else written)
        ]
        return [
            self._reserved(numbers, message.reserved_name, FIELD_NUMBER_END - 1),
            self._option_lines(message.options, (*place, 7)),
            _joined(self._ordered(own.fields)),
            [line for block in blocks for line in block],
            _joined(self._ordered(own.groups)),
            self._ranges(message, place) if self._extensions else [],
            self._extends(message.extension, (*place, 6), message) if self._extensions else [],
        ]

    def _ordered(self, numbered: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
        return sorted(numbered, key=lambda pair: pair[0]) if self._normalize else numbered

    def _reserved(self, ranges: Sequence[tuple[int, int]], names: Iterable[str], maximum: int) -> list[str]:
        lines = [f"reserved {_range(first, last, maximum)};" for first, last in (sorted(ranges) if self._normalize else ranges)]
        quoted = [name if self._file.syntax == "editions" else f'"{_escaped(name)}"' for name in names]
        return lines + [f"reserved {name};" for name in (sorted(quoted) if self._normalize else quoted)]

    def _ranges(self, message: DescriptorProto, place: tuple[int, ...]) -> list[str]:
        ranges = sorted(message.extension_range, key=lambda each: each.start) if self._normalize else message.extension_range
        lines: list[str] = []
        for index, extensions in enumerate(ranges):
            numbers = _range(extensions.start, extensions.end - 1, FIELD_NUMBER_END - 1)
            lines += _with_options(f"extensions {numbers}", self._options(extensions.options, (*place, 5, index, 3)))
        return lines

    def _extends(self, fields: Sequence[FieldDescriptorProto], place: tuple[int, ...], parent: DescriptorProto | None = None) -> list[str]:
        extended: dict[str, list[tuple[int, list[str]]]] = {}
        for index, field in enumerate(fields):
            name = self._spelling((*place, index, 2), field.extendee)
            extended.setdefault(name, []).append((field.number, self._field(field, (*place, index), parent)))
        return [line for name, members in extended.items() for line in _block(f"extend {name}", [_joined(self._ordered(members))])]

    def _field(
        self,
        field: FieldDescriptorProto,
        place: tuple[int, ...],
        parent: DescriptorProto | None,
        entries: Mapping[str, DescriptorProto] = NO_ENTRIES,
    ) -> list[str]:
        label = self._label(field)
        if field.type == F.TYPE_GROUP:
            return self._group(field, label, place, parent)
        entry = None if field.type != F.TYPE_MESSAGE else entries.get(field.type_name)
        if entry is not None:
            label = ""
            key, value = sorted(entry.field, key=lambda member: member.number)
            type_ = f"map<{SCALARS[key.type]}, {self._value_type(value, (*place, 6))}>"
        else:
            type_ = SCALARS.get(field.type) or self._spelling((*place, 6), field.type_name)
        options = self._options(field.options, (*place, 8))
        if field.HasField("default_value"):
            quoted = {F.TYPE_STRING: f'"{_escaped(field.default_value)}"', F.TYPE_BYTES: f'"{field.default_value}"'}
            options.append(("default", [quoted.get(field.type, field.default_value)]))
        if field.HasField("json_name") and (place in self._json_names or field.json_name != _json_name(field.name)):
            options.append(("json_name", [f'"{_escaped(field.json_name)}"']))
        in_order = sorted(options, key=lambda option: option[0]) if self._normalize else options
        return _with_options(f"{label}{type_} {field.name} = {field.number}", in_order)

    def _label(self, field: FieldDescriptorProto) -> str:
        if field.label == F.LABEL_OPTIONAL:
            in_oneof = field.HasField("oneof_index") and not field.proto3_optional
            has_no_word = self._file.syntax == "editions" or (self._file.syntax == "proto3" and not field.proto3_optional)
            return "" if in_oneof or has_no_word else "optional "
        return LABELS[field.label]

    def _group(self, field: FieldDescriptorProto, label: str, place: tuple[int, ...], parent: DescriptorProto | None) -> list[str]:
        name = field.type_name.rpartition(".")[2]
        candidates = list(enumerate(parent.nested_type if parent is not None else self._file.message_type))
        index, group = next((index, message) for index, message in candidates if message.name == name)
        below = (*place[:-2], 3, index) if parent is not None else (4, index)
        return _block(f"{label}group {name} = {field.number}", self._body(group, below, field.type_name))

    def _value_type(self, value: FieldDescriptorProto, place: tuple[int, ...]) -> str:
        if value.type in SCALARS:
            return SCALARS[value.type]
        spelled = self._spellings.get(place, "")  # of the whole: map<string, Order>
        return spelled.rpartition(",")[2].strip(" >\t\r\n") if "," in spelled else value.type_name

    def _spelling(self, place: tuple[int, ...], full_name: str) -> str:
        return self._spellings.get(place, full_name)

    # Enums and services

    def _enum(self, enum: EnumDescriptorProto, place: tuple[int, ...]) -> list[str]:
        numbers = [(reserved.start, reserved.end) for reserved in enum.reserved_range]
        values: Iterable[tuple[int, EnumValueDescriptorProto]] = enumerate(enum.value)
        if self._normalize:
            is_open = self._file.syntax != "proto2" and enum.value[0].number == 0  # zero stays the first, before negative numbers too
            values = sorted(values, key=lambda pair: (is_open and pair[1].number != 0, pair[1].number, pair[1].name))
        lines = [
            line
            for index, value in values
            for line in _with_options(f"{value.name} = {value.number}", self._options(value.options, (*place, 2, index, 3)))
        ]
        reserved = self._reserved(numbers, enum.reserved_name, ENUM_NUMBER_MAX)
        return _block(f"enum {enum.name}", [[*reserved, *self._option_lines(enum.options, (*place, 3)), *lines]])

    def _service(self, index: int) -> list[str]:
        service = self._file.service[index]
        calls: list[str] = []
        for number, call in enumerate(service.method):
            place = (6, index, 2, number)
            asked = ("stream " if call.client_streaming else "") + self._spelling((*place, 2), call.input_type)
            answered = ("stream " if call.server_streaming else "") + self._spelling((*place, 3), call.output_type)
            head = f"rpc {call.name} ({asked}) returns ({answered})"
            options = self._option_lines(call.options, (*place, 4))
            calls += [f"{head} {{", *(INDENT + line for line in options), "};"] if options else [f"{head};"]
        return _block(f"service {service.name}", [self._option_lines(service.options, (6, index, 3)), calls])

    # Options

    def _option_lines(self, options: Message, place: tuple[int, ...]) -> list[str]:
        lines: list[str] = []
        for name, value in self._options(options, place):
            lines += [f"option {name} = {value[0]}", *value[1:]]
            lines[-1] += ";"
        return lines

    def _options(self, options: Message, place: tuple[int, ...]) -> list[tuple[str, list[str]]]:
        """Names and values, each value as lines, in the order of the text; those that it does not have come last."""
        found: list[tuple[str, list[str]]] = []
        if not options.ByteSize():
            return found
        listed = own_options(self._pool, options).ListFields()
        for field, value in sorted(listed, key=lambda pair: self._sequence.get((*place, pair[0].number), len(self._sequence))):
            if field.name == "map_entry" and not field.is_extension:
                continue
            if field.is_extension and not self._extensions:
                continue
            name = f"({field.full_name})" if field.is_extension else field.name
            if field.is_repeated:
                found += [(name, _value(field, item, self._normalize)) for item in value]
            else:
                found.append((name, _value(field, value, self._normalize)))
        return sorted(found, key=lambda pair: pair[0]) if self._normalize else found


def own_options(pool: DescriptorPool, options: Message) -> Message:
    """Options as a message of the pool's own class, which knows the extensions that its files define."""
    try:
        kind = pool.FindMessageTypeByName(options.DESCRIPTOR.full_name)
    except KeyError:  # the file is a descriptor.proto without them
        return options
    return message_factory.GetMessageClass(kind).FromString(options.SerializeToString())


def pool_of(files: Iterable[FileDescriptorProto]) -> DescriptorPool:
    """A pool with some files, each after those that it imports.

    Raises:
        TypeError: they do not fit together.
    """
    pool = DescriptorPool()
    known = {file.name: file for file in files}
    own = FileDescriptorProto.FromString(descriptor_pb2.DESCRIPTOR.serialized_pb)
    for file in ([] if any(map(_is_own, known.values())) else [own]) + [*known.values()]:
        pool.Add(file)
    return pool


def _is_own(file: FileDescriptorProto) -> bool:
    """Whether a file is descriptor.proto, be it as a schema, which has another name: clients that do not skip known types register it."""
    own = descriptor_pb2.DESCRIPTOR
    return file.package == own.package and any(message.name in own.message_types_by_name for message in file.message_type)


def _spellings(file: FileDescriptorProto, text: str) -> Iterator[tuple[tuple[int, ...], str]]:
    """What the text has at the places of types' names: (message, field, type name) and so on, by numbers of descriptor.proto."""
    lines = [line.expandtabs(8) for line in text.encode().split(b"\n")]  # as the compiler counts columns
    for location in file.source_code_info.location:
        place = tuple(location.path)
        # Field numbers in descriptor.proto: a field's type_name is 6 and its extendee 2, a method's input 2 and output 3.
        if len(place) % 2 == 0 or len(place) < 3 or place[-1] not in (2, 3, 6) or len(location.span) != 3:
            continue
        line, begin, end = location.span
        spelled = lines[line][begin:end].decode("utf-8", "replace") if line < len(lines) else ""
        if spelled and all(letter.isalnum() or letter in "._<>, " for letter in spelled):
            yield place, spelled


def _sequence(file: FileDescriptorProto) -> dict[tuple[int, ...], int]:
    """Places in the order in which the text has them first. An option's has up to three numbers behind its own."""
    found: dict[tuple[int, ...], int] = {}
    for location in file.source_code_info.location:
        path = tuple(location.path)
        for end in range(max(len(path) - 3, 0), len(path) + 1):
            found.setdefault(path[:end], len(found))
    return found


def _given_json_names(file: FileDescriptorProto) -> frozenset[tuple[int, ...]]:
    """The places of fields whose text has a name in JSON, which may be the one that they have anyway."""
    number = F.DESCRIPTOR.fields_by_name["json_name"].number
    return frozenset(tuple(location.path[:-1]) for location in file.source_code_info.location if location.path[-1:] == [number])


def _value(field: FieldDescriptor, value: Any, normalize: bool) -> list[str]:
    """An option's value, as lines."""
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return [f'"{_escaped(value)}"']
        case FieldDescriptor.TYPE_BYTES:
            return [f'"{_octal(value)}"']
        case FieldDescriptor.TYPE_BOOL:
            return ["true" if value else "false"]
        case FieldDescriptor.TYPE_ENUM:
            named = None if field.enum_type is None else field.enum_type.values_by_number.get(value)
            return [str(value) if named is None else named.name]
        case FieldDescriptor.TYPE_MESSAGE | FieldDescriptor.TYPE_GROUP:
            return _aggregate(value, normalize)
    return [repr(int(value) if normalize and value == value // 1 and abs(value) < 1 << 53 else value)]


def _aggregate(message: Message, normalize: bool) -> list[str]:
    entries: list[list[str]] = []
    for field, value in message.ListFields():
        name = f"[{field.full_name}]" if field.is_extension else field.name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entry_class = message_factory.GetMessageClass(field.message_type)
            items = [_value(field, entry_class(key=key, value=item), normalize) for key, item in sorted(value.items())]
        else:
            items = [_value(field, item, normalize) for item in (value if field.is_repeated else [value])]
        if field.is_repeated and not (normalize and len(items) == 1):
            items = [["[", *_listed(items), "]"]]
        entries.append([f"{name}: {items[0][0]}", *items[0][1:]])
    return ["{", *_listed(sorted(entries, key=lambda entry: entry[0].partition(":")[0]) if normalize else entries), "}"]


def _listed(items: Sequence[list[str]]) -> list[str]:
    """Items below one another, indented, with commas between."""
    lines: list[str] = []
    for index, item in enumerate(items):
        comma = "" if index == len(items) - 1 else ","
        lines += [INDENT + line for line in [*item[:-1], item[-1] + comma]]
    return lines


def _with_options(head: str, options: Sequence[tuple[str, list[str]]]) -> list[str]:
    if not options:
        return [f"{head};"]
    items = [[f"{name} = {value[0]}", *value[1:]] for name, value in options]
    if len(items) == 1:
        first, *others = items[0]
        return [f"{head} [{first}];"] if not others else [f"{head} [{first}", *others[:-1], f"{others[-1]}];"]
    return [f"{head} [", *_listed(items), "];"]


def _block(head: str, parts: Iterable[list[str]]) -> list[str]:
    """Parts with an empty line between them, in braces. An empty line of a part is indented with it, as by Confluent's."""
    lines: list[str] = []
    for part in parts:
        if part:
            lines += ([""] if lines else []) + [INDENT + line for line in part]
    return [f"{head} {{", *lines, "}"] if lines else [f"{head} {{}}"]


def _groups_of(fields: Iterable[FieldDescriptorProto]) -> set[str]:
    """The names of messages that are written where their field is."""
    return {field.type_name.rpartition(".")[2] for field in fields if field.type == F.TYPE_GROUP}


def _joined(numbered: Iterable[tuple[int, list[str]]]) -> list[str]:
    return [line for _, lines in numbered for line in lines]


def _range(first: int, last: int, maximum: int) -> str:
    return str(first) if first == last else f"{first} to {'max' if last >= maximum else last}"


def _json_name(name: str) -> str:
    """The name in JSON that the compiler gives a field."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def _octal(content: bytes) -> str:
    return "".join(f"\\{byte:03o}" if byte < 32 or byte > 126 or byte in b'"\\' else chr(byte) for byte in content)


def _escaped(text: str | bytes) -> str:
    if isinstance(text, bytes):  # a string of proto2 that is no UTF-8
        return _octal(text)
    return "".join(f"\\{ord(letter):03o}" if ord(letter) < 32 or ord(letter) == 127 else letter for letter in text.translate(_ESCAPES))

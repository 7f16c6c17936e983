"""Protobuf schemas: text, or a base64 FileDescriptorProto as Confluent's Python serializer sends it, to a file's descriptor.

What a text means is said by `protoc` (`protobuf_compiler.py`); how it is written by `protobuf_text.py`; who reads whom by
`protobuf_rules.py`. A reference's name is the path by which files import it. Answers are text, whatever came.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError, Message

from ottla.schema_registry.formats.interface import (
    Budget,
    CompatibilityPolicy,
    EntityType,
    Incompatibility,
    InvalidSchema,
    Json,
    Limits,
    ParsedSchema,
    SchemaEntity,
    SchemaType,
    Tags,
    changed_tags,
)
from ottla.schema_registry.formats.protobuf_compiler import META, Compiler, checked_path, compile_files
from ottla.schema_registry.formats.protobuf_rules import Types, compare_files, messages_of
from ottla.schema_registry.formats.protobuf_text import Writer, own_options, pool_of

# Under which the compiler has a schema, and the name in its descriptor, which is Confluent's.
FILE_NAME: Final = "default.proto"
DESCRIPTOR_NAME: Final = "default"
META_NAME: Final = "confluent/meta.proto"
META_NUMBER: Final = 1088


class ProtobufSchema:
    """A parsed schema; see `ParsedSchema`."""

    schema_type: Final = SchemaType.PROTOBUF

    def __init__(self, files: Sequence[FileDescriptorProto], text: str, limits: Limits, is_normal: bool = False) -> None:
        self.file: Final = files[-1]
        self._files: Final = files
        self._text: Final = text
        self._is_normal: Final = is_normal
        self._limits: Final = limits
        self._pool: Final = pool_of(files)

    @property
    def _with_types(self) -> FileDescriptorProto:
        """The file, or that which it publicly imports where it has nothing else in it: then it stands for that, as at Confluent's."""
        file = self.file
        if file.message_type or file.enum_type or file.service or file.extension or len(file.dependency) != 1 or not file.public_dependency:
            return file
        return next(other for other in self._files if other.name == file.dependency[0])

    def _messages(self) -> list[tuple[str, DescriptorProto]]:
        return [(name, message) for name, message in messages_of(self.file.message_type) if not message.options.map_entry]

    @cached_property
    def canonical(self) -> str:
        """In Confluent's layout."""
        return self._text if self._is_normal else Writer(self.file, self._pool, self._text).write()

    @cached_property
    def normalized(self) -> str:
        """The same with full names, and in order where that has no meaning."""
        return Writer(self.file, self._pool, self._text, normalize=True).write()

    def formatted(self, form: str) -> str:
        """The canonical text; for "serialized" the descriptor in base64, for "ignore_extensions" without these."""
        match form.lower():
            case "serialized":
                return base64.b64encode(self.descriptor.SerializeToString(deterministic=True)).decode()
            case "ignore_extensions":
                return Writer(self.file, self._pool, self._text, extensions=False).write()
        return self.canonical

    @cached_property
    def descriptor(self) -> FileDescriptorProto:
        """As clients get it: without places in a text, and under Confluent's name."""
        descriptor = FileDescriptorProto()
        descriptor.CopyFrom(self.file)
        descriptor.ClearField("source_code_info")
        descriptor.name = DESCRIPTOR_NAME
        return descriptor

    def equivalent(self, other: ParsedSchema) -> bool:
        """Whether both are the same file but for order and notation."""
        return isinstance(other, ProtobufSchema) and self._of_descriptor == other._of_descriptor

    @cached_property
    def _of_descriptor(self) -> str:
        return Writer(self.file, self._pool, normalize=True).write()

    def has_top_level_field(self, name: str) -> bool:
        """Whether one of the messages that are in no other has it."""
        return any(field.name == name for message in self._with_types.message_type for field in message.field)

    @cached_property
    def tagged_entities(self) -> Tags:
        """The tags in `confluent.message_meta` and `confluent.field_meta`; paths have no package."""
        tagged: dict[SchemaEntity, Sequence[str]] = {}
        for entity, described in self._entities(self.file).items():
            meta = _meta(own_options(self._pool, described.options))
            if meta is not None and meta.tags:
                tagged[entity] = [*dict.fromkeys(meta.tags)]
        return tagged

    def _entities(self, file: FileDescriptorProto) -> dict[SchemaEntity, DescriptorProto | FieldDescriptorProto]:
        entities: dict[SchemaEntity, DescriptorProto | FieldDescriptorProto] = {}
        for name, message in messages_of(file.message_type):
            if not message.options.map_entry:
                entities[SchemaEntity(name, EntityType.RECORD)] = message
                entities |= {SchemaEntity(f"{name}.{field.name}", EntityType.FIELD): field for field in message.field}
        return entities

    def _in_oneofs(self, file: FileDescriptorProto) -> dict[SchemaEntity, DescriptorProto | FieldDescriptorProto]:
        return {
            SchemaEntity(f"{name}.{message.oneof_decl[field.oneof_index].name}.{field.name}", EntityType.FIELD): field
            for name, message in messages_of(file.message_type)
            for field in message.field
            if field.HasField("oneof_index") and not field.proto3_optional
        }

    def with_tags(self, add: Tags, remove: Tags) -> str:
        """The canonical text with other tags; what they are is imported if it was not. The name of a oneof may stand before a field's."""
        file = FileDescriptorProto()
        file.CopyFrom(self.file)
        files = [*self._files[:-1]]
        if META_NAME not in file.dependency:
            file.dependency.append(META_NAME)
        if META_NAME not in {known.name for known in files}:
            known = {other.name for other in files}
            compiled = FileDescriptorSet.FromString(compile_files(META_NAME, {META_NAME: META}))
            files += [other for other in compiled.file if other.name not in known]
        pool = pool_of([*files, file])
        entities = self._in_oneofs(file) | self._entities(file)
        for entity in dict.fromkeys([*add, *remove]):
            if entity not in entities:
                raise InvalidSchema(f"the schema has no {entity.type.value} {entity.path}", entity.path)
            described = entities[entity]
            options: Any = own_options(pool, described.options)
            extension = pool.FindExtensionByNumber(options.DESCRIPTOR, META_NUMBER)
            meta = options.Extensions[extension]
            meta.tags[:] = changed_tags(meta.tags, add.get(entity, ()), remove.get(entity, ()))
            if not meta.ByteSize():
                options.ClearExtension(extension)
            described.options.ParseFromString(options.SerializeToString())
        return Writer(file, pool, self._text).write()

    def incompatibilities_as_reader(self, writer: ParsedSchema, policy: CompatibilityPolicy) -> Sequence[Incompatibility]:
        """By the rules that Confluent publishes for Protobuf; the policy is for JSON Schema."""
        assert isinstance(writer, ProtobufSchema)
        return compare_files(Types(self._files), Types(writer._files), self._limits)

    @cached_property
    def outline(self) -> Json:
        """Messages with their fields by number, and enums with their values."""
        messages: dict[str, Json] = {name: {"fields": _fields(message)} for name, message in self._messages()}
        outer = [("", self.file.enum_type), *((f"{name}.", message.enum_type) for name, message in self._messages())]
        enums: dict[str, Json] = {
            prefix + enum.name: {str(value.number): value.name for value in enum.value} for prefix, group in outer for enum in group
        }
        return {"package": self.file.package, "imports": [*self.file.dependency], "messages": messages, "enums": enums}


def _fields(message: DescriptorProto) -> dict[str, Json]:
    fields: dict[str, Json] = {}
    for field in sorted(message.field, key=lambda each: each.number):
        kind = field.type_name.lstrip(".") or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
        facts: dict[str, Json] = {"name": field.name, "type": kind}
        facts["label"] = FieldDescriptorProto.Label.Name(field.label).removeprefix("LABEL_").lower()
        if field.HasField("oneof_index") and not field.proto3_optional:
            facts["oneof"] = message.oneof_decl[field.oneof_index].name
        if field.HasField("default_value"):
            facts["default"] = field.default_value
        fields[str(field.number)] = facts
    return fields


def _meta(options: Message) -> Any:
    for field, value in options.ListFields():
        if field.is_extension and field.number == META_NUMBER and field.message_type is not None:
            return value if field.message_type.full_name == "confluent.Meta" else None
    return None


async def parse(text: str, references: Mapping[str, str], limits: Limits, compiler: Compiler, *, is_normal: bool = False) -> ProtobufSchema:
    """Reads a schema together with those that it references.

    Args:
        text: of a file, or a FileDescriptorProto in base64.
        references: the same for imported files, by the path of the import; each after those that it imports.
        limits: bounds.
        compiler: says what the texts mean.
        is_normal: the text is the normal form of another one, and stays as it is; the canonical form has defaults behind other options.

    Raises:
        InvalidSchema: one of them is wrong; `place` is a line and a column.
    """
    limits.check(text, references)
    files: dict[str, str] = {}
    for name, referenced in references.items():
        if name != descriptor_pb2.DESCRIPTOR.name:  # the compiler takes its own, and does not survive one of before editions
            files[checked_path(name)] = await _as_text(referenced, files, compiler)
    text = await _as_text(text, files, compiler)
    main = FILE_NAME
    while main in files:
        main = f"_{main}"
    compiled = FileDescriptorSet.FromString(await compiler.compile(main, {**files, main: text}))
    Budget(limits).spend(
        steps=sum(len(file.source_code_info.location) for file in compiled.file if file.name == main or file.name in files)
    )
    try:
        return ProtobufSchema([*compiled.file], text, limits, is_normal)
    except (TypeError, DecodeError, UnicodeDecodeError) as error:
        raise InvalidSchema(f"the descriptor is not taken: {error}") from None


async def _as_text(text: str, files: Mapping[str, str], compiler: Compiler) -> str:
    """A text as it is, and a descriptor as text."""
    descriptor = _descriptor(text)
    if descriptor is None:
        return text
    # A file that only imports the same: the descriptor's own options cannot be read without their definitions.
    imports = "".join(f'import "{checked_path(name)}";\n' for name in descriptor.dependency).replace("\\", "")
    importer = f'syntax = "proto3";\n{imports}'
    compiled = FileDescriptorSet.FromString(await compiler.compile("_imports.proto", {**files, "_imports.proto": importer}))
    try:
        descriptor.name = FILE_NAME
        return Writer(descriptor, pool_of([*compiled.file[:-1], descriptor])).write()
    except (TypeError, KeyError, ValueError, DecodeError, StopIteration) as error:
        raise InvalidSchema(f"the FileDescriptorProto does not fit together: {error}") from None


def _descriptor(text: str) -> FileDescriptorProto | None:
    """What base64 has in it, if the text is that: no file's text is, for it has spaces, braces and semicolons."""
    try:
        return FileDescriptorProto.FromString(base64.b64decode("".join(text.split()), validate=True)) if text.strip() else None
    except (binascii.Error, ValueError, DecodeError):
        return None

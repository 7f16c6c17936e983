"""Protobuf schemas: what is read, how it is written, who reads whom, and the compiler's process.

Sources: protobuf.dev, "Language Guide" and "Updating A Message Type"; Confluent's documentation, "Protobuf compatibility rules", and the
names in its registry's verbose answers. Messages of the package protobuf, which this project did not write, judge by parsing.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, message_factory, timestamp_pb2, unknown_fields
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from hypothesis import event, given, note, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.schema_registry.formats import (
    CompatibilityLevel,
    EntityType,
    Formats,
    InlineCompiler,
    InvalidSchema,
    Limits,
    SchemaEntity,
    SchemaTooLarge,
    SchemaType,
    changes_between,
    check_compatibility,
    protobuf_compiler,
    protobuf_process,
)
from ottla.schema_registry.formats.protobuf import ProtobufSchema, parse
from ottla.schema_registry.formats.protobuf_compiler import ProcessCompiler, compile_files
from ottla.schema_registry.formats.protobuf_rules import messages_of
from ottla.schema_registry.formats.protobuf_text import pool_of


def parsed(text: str, references: dict[str, str] | None = None) -> ProtobufSchema:
    """Of a text, or of base64."""
    return asyncio.run(parse(text, references or {}, Limits(), InlineCompiler()))


def proto3(*lines: str) -> str:
    """A file of proto3 in the package a.b."""
    return "\n".join(['syntax = "proto3";', "package a.b;", *lines])


def proto2(*lines: str) -> str:
    """The same of proto2."""
    return "\n".join(['syntax = "proto2";', "package a.b;", *lines])


def rules(reader: str, writer: str, references: dict[str, str] | None = None, old_references: dict[str, str] | None = None) -> list[str]:
    """Why a reader does not read."""
    new, old = parsed(reader, references), parsed(writer, old_references if old_references is not None else references)
    return [f"{reason.rule} {reason.path}" for reason in check_compatibility(new, old, CompatibilityLevel.BACKWARD)]


RICH = """// says nothing
syntax = "proto2"; package a.b;
import "google/protobuf/timestamp.proto"; import "confluent/meta.proto";
import public "confluent/type/decimal.proto";
option java_package = "x\\"y"; option (confluent.file_meta) = { doc: "d", tags: ["A", "B"], params: {key: "k", value: "v"} };
message M {
  reserved 5, 7 to 9, 100 to max; reserved "x";
  option deprecated = true;
  required int32 z = 3 [default = -4, deprecated = true, (confluent.field_meta).tags = "PII"];
  optional google.protobuf.Timestamp a = 1;
  repeated Inner inner = 2 [json_name = "foo"];
  map<string, Inner> m = 4; map<int32, .a.b.M.E> m2 = 20;
  optional string s = 30 [default = "q\\"\\n\\\\e"];
  optional bytes by = 31 [default = "\\001\\"x"];
  oneof choice { string c1 = 12; Inner c2 = 11; group Gr = 13 { optional int32 q = 1; } }
  optional group Grp = 40 { optional Inner i = 1; }
  message Inner { optional double d = 1 [default = inf]; extensions 10 to 20; }
  enum E { option allow_alias = true; A = 0; B = 1; C = 1 [deprecated = true]; }
  extend Inner { optional int32 e1 = 10; }
}
message Empty {}
extend M.Inner { repeated E2 e2 = 11; }
enum E2 { reserved 5 to 6; X = 0; }
service S { option deprecated = true; rpc Do (M) returns (stream M.Inner); rpc Do2 (stream M) returns (M) { option deprecated = true; } }
"""


# The written forms


def test_the_canonical_form_has_confluents_order_and_no_comments() -> None:
    """Syntax, package, imports, options, messages, enums, extensions, services; in a message fields before oneofs before what is nested."""
    text = proto3(
        'import "google/protobuf/any.proto";',
        "enum Kind { NONE = 0; } // a comment",
        "message Order { message Line { int32 count = 1; } oneof of { string one = 3; Kind two = 4; }",
        '  repeated Line lines = 2 [deprecated = true, json_name = "l"]; optional string id = 1; reserved 7, 9 to 10; reserved "x";',
        "  map<string, google.protobuf.Any> all = 5; }",
    )
    assert parsed(text).canonical == (
        'syntax = "proto3";\npackage a.b;\n\nimport "google/protobuf/any.proto";\n\n'
        'message Order {\n  reserved 7;\n  reserved 9 to 10;\n  reserved "x";\n\n'
        '  repeated Line lines = 2 [\n    deprecated = true,\n    json_name = "l"\n  ];\n  optional string id = 1;\n'
        "  map<string, google.protobuf.Any> all = 5;\n\n"
        "  oneof of {\n    string one = 3;\n    Kind two = 4;\n  }\n\n  message Line {\n    int32 count = 1;\n  }\n}\n"
        "enum Kind {\n  NONE = 0;\n}\n"
    )


def test_an_empty_line_within_a_message_is_indented_as_the_others_are() -> None:
    """By `ProtobufSchemaUtils.appendIndented`: `RestApiTest.testCustomOption`, `ProtobufSchemaTest.testNormalizationWithExtensions`."""
    text = (
        'syntax = "proto3";\n\nmessage A {\n  int32 a = 1;\n\n  message B {\n    int32 b = 1;\n  \n'
        "    oneof o {\n      int32 c = 2;\n    }\n  \n"
        "    message C {\n      int32 d = 1;\n    \n      enum E {\n        Z = 0;\n      }\n    }\n  }\n}\n"
    )
    schema = parsed(text)
    assert schema.canonical == schema.normalized == text
    assert schema.equivalent(parsed(text.replace("  \n", "\n")))  # as earlier releases have stored it


def test_texts_are_escaped_as_confluent_escapes_them() -> None:
    """`ProtobufSchemaTest.testOptionEscape`, of an option, a text in one, a default and a name in JSON."""
    text = r"""syntax = "proto2";

import "confluent/meta.proto";

option java_package = "a\\a \" \' \a\b\f\n\r\t\v é ?";

message A {
  option (confluent.message_meta) = {
    doc: "what\'s"
  };

  optional string s = 1 [
    default = "\'",
    json_name = "s\'"
  ];
}
"""
    schema = parsed(text)
    assert schema.canonical == text
    assert parsed(text.replace(r"\'", "'")).canonical == text
    assert schema.equivalent(parsed(text.replace(r"\'", "'")))  # as earlier releases have stored it


def test_a_text_of_proto2_that_is_no_utf_8_is_written_by_its_bytes() -> None:
    """The registration was answered with 50001, Internal Server Error."""
    text = r"""syntax = "proto2";

import "google/protobuf/descriptor.proto";

message A {
  option (own) = "\377\042\134";

  optional string s = 1 [default = "\377\001"];
}

extend google.protobuf.MessageOptions {
  optional string own = 50001;
}
"""
    assert parsed(text).canonical == text
    assert parsed(text).equivalent(parsed(parsed(text).normalized))


def test_a_name_in_json_that_the_text_gives_is_written_though_it_is_the_usual_one() -> None:
    """`ProtobufSchemaTest.testNormalization`; among options in the normal form."""
    field = "int64 other_id = 1 [\n    jstype = JS_STRING,\n    {}\n  ];\n"
    text = f'syntax = "proto3";\n\nmessage A {{\n  {field}  int64 more_id = 2;\n}}\n'.replace("{}", 'json_name = "otherId"')
    schema = parsed(text)
    assert schema.canonical == text
    assert '[\n    json_name = "otherId",\n    jstype = JS_STRING\n  ]' in schema.normalized
    assert parsed(schema.normalized).normalized == schema.normalized
    default = parsed('syntax = "proto2"; message A { optional int32 a = 1 [default = 1, deprecated = true]; }')
    assert (
        default.canonical.count("deprecated = true,\n    default = 1\n")
        == default.normalized.count("default = 1,\n    deprecated = true\n")
        == 1
    )
    normal = asyncio.run(Formats(compiler=InlineCompiler()).parse(SchemaType.PROTOBUF, text, {}, normalize=True))
    assert normal.canonical == normal.normalized == schema.normalized  # as `normalize()` has it, and not in the canonical order again
    stored = parsed(text.replace(',\n    json_name = "otherId"', ""))  # by earlier releases
    assert "json_name" not in stored.canonical + stored.normalized
    assert schema.equivalent(stored) and stored.equivalent(schema)


def test_groups_stand_behind_fields_and_oneofs() -> None:
    """By `ProtobufSchemaUtils`, of a message and of a oneof."""
    text = """syntax = "proto2";

message A {
  optional int32 x = 9;

  oneof o {
    int32 y = 8;

    group H = 1 {
      optional int32 z = 1;
    }
  }

  repeated group G = 2 {
    optional int32 z = 1;
  }

  message N {}
}
"""
    text = text.replace("\n\n    group", "\n  \n    group").replace("\n\n    optional", "\n  \n    optional")
    parts = "oneof o { group H = 1 { optional int32 z = 1; } int32 y = 8; } optional int32 x = 9; message N {}"
    schema = parsed(f'syntax = "proto2"; message A {{ repeated group G = 2 {{ optional int32 z = 1; }} {parts} }}')
    assert schema.canonical == text
    assert schema.normalized == text.removeprefix('syntax = "proto2";\n')
    assert parsed(text).canonical == text


def test_the_normal_form_has_options_in_one_order_and_no_syntax_but_proto3() -> None:
    """By `ProtobufSchemaTest`: `testRanges`, `testComplexCustomOptions2`, `testNormalizationWithNestedComplexCustomOptions`."""
    ranges = 'message A {\n  extensions 100 to 200 [(e) = { z: 1024.0, lists: [2, 1], list: "a", half: 0.5, in: { y: 1, b: 2 } }];\n}\n'
    text = f"""syntax = "proto2";
import "google/protobuf/descriptor.proto";
message O {{
  optional double z = 1; repeated int32 lists = 2; repeated string list = 3; optional float half = 4; optional O in = 5;
  optional int32 y = 6; optional int32 b = 7;
}}
extend google.protobuf.ExtensionRangeOptions {{ optional O e = 5000; }}
{ranges}"""
    aggregate = """(e) = {
    half: 0.5,
    in: {
      b: 2,
      y: 1
    },
    list: "a",
    lists: [
      2,
      1
    ],
    z: 1024
  }"""
    schema = parsed(text)
    assert schema.canonical.startswith('syntax = "proto2";\n\nimport')
    assert schema.normalized.startswith('\nimport "google/protobuf/descriptor.proto";\n\n')
    written = "\n".join(line.strip() for line in schema.normalized.split("\n"))
    assert "\n".join(line.strip() for line in aggregate.split("\n")) in written
    assert parsed(schema.normalized).normalized == schema.normalized
    earlier = schema.normalized.replace("z: 1024", "z: 1024.0").replace('list: "a"', 'list: ["a"]')
    assert schema.equivalent(parsed(f'syntax = "proto2";\n{earlier}'))  # as earlier releases have stored it
    assert parsed("message A { optional int32 a = 1; }").canonical == "\nmessage A {\n  optional int32 a = 1;\n}\n"
    assert parsed('edition = "2023"; message A {}').normalized == 'edition = "2023";\n\nmessage A {}\n'


def test_options_and_syntax_stand_as_in_the_text() -> None:
    """Or the text, and so the guid, would not be Confluent's (`protobuf/rest/RestApiTest.testSchemaReferencesPkg`)."""
    text = (
        'syntax = "proto2";\npackage a;\n\nimport "google/protobuf/descriptor.proto";\n\n'
        'option go_package = "x";\noption java_multiple_files = true;\noption (a.fs) = "F";\noption java_package = "j";\n\n'
        'message M {\n  option (a.ms) = "1";\n  option deprecated = true;\n\n'
        '  optional string f = 1 [\n    (a.fo) = {\n      f: "1"\n    },\n    deprecated = true,\n    ctype = CORD\n  ];\n\n'
        '  oneof o {\n    option (a.oo) = "1";\n  \n    string q = 4;\n  }\n\n'
        "  enum E {\n    option deprecated = true;\n    option allow_alias = true;\n"
        '    A = 0 [\n      (a.eo) = "1",\n      deprecated = true\n    ];\n    B = 0;\n  }\n}\n\n'
        + "".join(
            f"extend google.protobuf.{kind}Options {{\n  optional {type_} {name} = 50001;\n}}\n"
            for kind, type_, name in (
                *(("File", "string", "fs"), ("Message", "string", "ms"), ("Field", "M", "fo")),
                *(("Oneof", "string", "oo"), ("EnumValue", "string", "eo")),
            )
        )
        + "\nservice S {\n  rpc R (M) returns (M) {\n    option idempotency_level = IDEMPOTENT;\n    option deprecated = true;\n  };\n}\n"
    )
    schema = parsed(text)
    assert schema.canonical == text
    assert schema.equivalent(
        parsed(text.replace('option go_package = "x";\n', "").replace("\nmessage", '\noption go_package = "x";\nmessage'))
    )


def test_what_is_written_means_the_same() -> None:
    """Everything of proto2 with options of its own: read, written and read, in both forms, it is the same file but for order."""
    schema = parsed(RICH)
    for text in (schema.canonical, schema.normalized):
        again = parsed(text)
        assert again.normalized == schema.normalized
        assert again.equivalent(schema)
    assert parsed(schema.canonical).canonical == schema.canonical
    assert parsed(schema.normalized).normalized == schema.normalized
    assert "map<string, Inner> m = 4;" in schema.canonical
    assert "map<string, .a.b.M.Inner> m = 4;" in schema.normalized


@pytest.mark.parametrize(
    "text",
    [
        proto3("message Other { message FooEntry { string z = 1; } }", "message M { map<string, int32> foo = 1; Other.FooEntry x = 2; }"),
        proto2("message F { extensions 1 to 10; }", "extend F { optional group Bar = 1 { optional int32 a = 1; } }", "message Last {}"),
        proto2("message F { extensions 1 to 10; message In { extend F { repeated group Bar = 1 { optional int32 a = 1; } } } }"),
        proto3("message M { Kind kind = 1; }", "enum Kind { ZERO = 0; LESS = -3; MORE = 2; }"),
    ],
)
def test_what_is_written_has_the_same_types(text: str) -> None:
    """A message that is called as the entry of another one's map; groups of extensions; an open enum, which begins with its zero."""

    def types(schema: ProtobufSchema) -> list[tuple[str, int, int, str]]:
        found = [(name, message.field) for name, message in messages_of(schema.file.message_type)]
        return sorted((name, field.number, field.type, field.type_name) for name, fields in found for field in fields)

    schema = parsed(text)
    for written in (schema.canonical, schema.normalized):
        assert types(parsed(written)) == types(schema)


def test_normalising_makes_one_text_of_files_that_differ_in_order() -> None:
    """Fields by number, imports by name, types by their full names; the order of messages stays, for the bytes name them by it."""
    one = proto3("message A { B b = 2; string s = 1; }", "message B {}")
    other = proto3("message A {", "string s = 1;", "  a.b.B b = 2; }", "message B { /* nothing */ }")
    assert parsed(one).canonical != parsed(other).canonical
    assert parsed(one).normalized == parsed(other).normalized
    assert parsed(one).equivalent(parsed(other))
    assert not parsed(one).equivalent(parsed(proto3("message B {}", "message A { string s = 1; B b = 2; }")))


@pytest.mark.parametrize("references", [{}, {"r.proto": 'syntax = "proto3"; package r; message R { int32 x = 1; }'}])
def test_a_descriptor_in_base64_is_the_file_it_describes(references: dict[str, str]) -> None:
    """Confluent's Python serializer sends a FileDescriptorProto, and asks for one by `format=serialized`; both mean the text."""
    imports = "".join(f'import "{name}";\n' for name in references)
    schema = parsed(proto3(imports, "message A { B b = 2; optional string s = 1; }", "message B {}"), references)
    serialized = schema.formatted("serialized")
    from_base64 = parsed(serialized, references)
    assert from_base64.equivalent(schema)
    assert from_base64.canonical.startswith('syntax = "proto3";')
    descriptor = FileDescriptorProto.FromString(base64.b64decode(from_base64.formatted("serialized")))
    assert descriptor == FileDescriptorProto.FromString(base64.b64decode(serialized))
    assert descriptor.name == "default"
    assert not descriptor.HasField("source_code_info")


def test_a_descriptor_of_options_and_extensions_comes_back_whole() -> None:
    """Also when its references are descriptors, as a registry that was filled by one would have them."""
    schema = parsed(RICH)
    assert parsed(schema.formatted("serialized")).equivalent(schema)
    imported = parsed(proto3("message R {}")).formatted("serialized")
    text = 'syntax = "proto3"; import "r.proto"; message M { a.b.R r = 1; }'
    assert parsed(text, {"r.proto": imported}).has_top_level_field("r")


def test_well_known_types_are_built_in() -> None:
    """`google/protobuf`, `google/type`, `confluent/meta.proto` and Confluent's logical types need no reference."""
    names = ["google/protobuf/wrappers.proto", "google/type/money.proto", *protobuf_compiler.BUILT_IN]
    names.remove("confluent/types/decimal.proto")  # the same message as confluent/type/decimal.proto
    imports = "".join(f'import "{name}";\n' for name in names)
    message = "message M { google.type.Money m = 1; confluent.type.Decimal d = 2; confluent.type.Variant v = 3; }"
    assert parsed(proto3(imports, message)).has_top_level_field("m")


async def test_descriptor_proto_is_a_schema_and_a_reference_also_one_of_before_editions() -> None:
    """Serializers with `skip.known.types=false` register it as any import (RestApiSerializerTest, testDependency), as it is there."""
    before_editions = 'syntax = "proto2"; package google.protobuf; message FileDescriptorSet { optional int32 a = 1 [deprecated = true]; }'
    name = descriptor_pb2.DESCRIPTOR.name
    extension = "extend google.protobuf.FieldOptions { string unit = 5000; }"
    user = proto3(f'import "{name}";', extension, "message M { int32 a = 1 [(unit) = 's']; }")
    formats = Formats()
    for text in (base64.b64encode(descriptor_pb2.DESCRIPTOR.serialized_pb).decode(), before_editions):
        registered = await formats.parse(SchemaType.PROTOBUF, text, {})
        assert registered.has_top_level_field("file" if text is not before_editions else "a")
        assert (await formats.parse(SchemaType.PROTOBUF, registered.canonical, {})).canonical == registered.canonical
        schema = await formats.parse(SchemaType.PROTOBUF, user, {name: text})
        assert '(a.b.unit) = "s"' in schema.canonical
    await formats.close()


def test_extensions_can_be_left_out() -> None:
    """`format=ignore_extensions` is for readers that do not know a schema's own options."""
    text = parsed(RICH).formatted("ignore_extensions")
    assert "extend" not in text
    assert "confluent.file_meta" not in text
    assert 'java_package = "x\\"y"' in text


def test_an_edition_is_written_as_one() -> None:
    """Editions come in the place of proto2 and proto3; labels are features there."""
    field = "  int32 id = 1 [features = {\n    field_presence: IMPLICIT\n  }];\n"
    text = f'edition = "2023";\npackage a.b;\n\nmessage M {{\n  reserved x;\n\n{field}}}\n'
    assert parsed(text).canonical == text


def test_top_level_fields() -> None:
    schema = parsed(proto3("message A { message B { int32 x = 1; } int32 y = 1; map<string, B> m = 2; }", "message C { int32 z = 1; }"))
    assert [schema.has_top_level_field(name) for name in "xyz"] == [False, True, True]  # of any message, as `hasTopLevelField` has it


def test_a_file_with_a_public_import_and_nothing_else_stands_for_what_it_imports() -> None:
    """`ProtobufSchemaTest`: `testNameFallsThroughToPublicImport` and those behind it."""
    leaf = {"leaf.proto": proto3("message Foo { string id = 1; }")}

    def has_its_field(*lines: str) -> bool:
        return parsed(proto3(*lines), leaf).has_top_level_field("id")

    assert has_its_field('import public "leaf.proto";')
    assert not has_its_field('import "leaf.proto";')
    assert not has_its_field('import public "leaf.proto";', "message Local { int32 n = 1; }")
    assert not has_its_field('import public "leaf.proto"; import "google/protobuf/any.proto";')
    assert parsed(proto3('import public "google/protobuf/timestamp.proto";')).has_top_level_field("nanos")


def test_tags_are_found_and_changed_where_they_stand() -> None:
    """`confluent.field_meta` and `confluent.message_meta` (Confluent, "Data contracts"); the import comes with them."""
    schema = parsed(proto3("message A { message B { string ssn = 1; } }"))
    ssn, inner = SchemaEntity("A.B.ssn", EntityType.FIELD), SchemaEntity("A.B", EntityType.RECORD)
    tagged = parsed(schema.with_tags({ssn: ["X", "PII"], inner: ["Y"]}, {}))
    assert tagged.tagged_entities == {inner: ["Y"], ssn: ["X", "PII"]}
    changed = parsed(tagged.with_tags({ssn: ["Z", "A"]}, {ssn: ["X"], inner: ["Y"]}))
    assert changed.tagged_entities == {ssn: ["PII", "Z", "A"]}
    with pytest.raises(InvalidSchema, match=r"A\.none"):
        schema.with_tags({SchemaEntity("A.none", EntityType.FIELD): ["T"]}, {})


def test_the_path_of_a_tagged_field_may_have_the_name_of_its_oneof() -> None:
    """`ProtobufSchemaTest.testOptionalOneOfFieldName`, `testInvalidPath`."""
    schema = parsed(proto3("message A { oneof choice { string one = 1; int32 two = 2; } optional string sure = 3; }"))

    def tagged(*paths: str) -> dict[str, list[str]]:
        added = schema.with_tags({SchemaEntity(path, EntityType.FIELD): [f"T{index}"] for index, path in enumerate(paths)}, {})
        return {entity.path: [*tags] for entity, tags in parsed(added).tagged_entities.items()}

    assert tagged("A.one", "A.choice.one", "A.choice.two") == {"A.one": ["T0", "T1"], "A.two": ["T2"]}
    for wrong in ("A", "A.other.one", "A._sure.sure", "A.choice.one.x"):
        with pytest.raises(InvalidSchema, match="the schema has no"):
            tagged(wrong)


# What is refused


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", ""),
        ("message", "line 1 column 8"),
        (proto3("message A {", "  B b = 1; }"), "line 4 column 3"),
        (proto3("message A { int32 a = 1; int32 b = 1; }"), "line 3 column 36"),
        (proto3("message A {}", "message A {}"), "line 4 column 9"),
        (proto3('import "none.proto";'), ""),
        (base64.b64encode(b"no descriptor").decode(), "line 1 column 1"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(text: str, place: str) -> None:
    """The compiler's words, and the first place, counted from 1."""
    if not text:
        assert parsed(text).file.syntax == ""  # an empty file is one of proto2
        return
    with pytest.raises(InvalidSchema) as refused:
        parsed(text)
    assert refused.value.code == 42201
    assert refused.value.place == place or place == ""


def test_a_place_in_a_reference_names_its_file() -> None:
    """An import that is wrong is told as such."""
    with pytest.raises(InvalidSchema) as refused:
        parsed('syntax = "proto3"; import "r.proto";', {"r.proto": "nonsense"})
    assert refused.value.place.startswith("r.proto")


@pytest.mark.parametrize("name", ["../x.proto", "/etc/x.proto", "a/../../x.proto", "", "a\0b", "x" * 300, "a\\b", "."])
def test_a_references_name_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    """Files are written for the compiler, under the names that strangers give."""
    with pytest.raises(InvalidSchema, match="cannot be the name"):
        parsed('syntax = "proto3";', {name: 'syntax = "proto3";'})


@pytest.mark.parametrize(
    "descriptor",
    [
        FileDescriptorProto(name="x", syntax="proto3", dependency=["none.proto"]),
        FileDescriptorProto(name="x", syntax="proto3", dependency=['a"; import "b']),
        FileDescriptorProto(name="x", syntax="proto3", package="a; message B {"),
        FileDescriptorProto(
            name="x",
            syntax="proto3",
            message_type=[
                DescriptorProto(name="A", field=[FieldDescriptorProto(name="f", number=1, type=FieldDescriptorProto.TYPE_MESSAGE)])
            ],
        ),
    ],
)
def test_a_descriptor_that_does_not_fit_together_is_refused(descriptor: FileDescriptorProto) -> None:
    """Base64 has been through no compiler yet."""
    with pytest.raises(InvalidSchema):
        parsed(base64.b64encode(descriptor.SerializeToString()).decode())


def test_two_references_of_one_path_are_refused() -> None:
    """One name cannot be a file and a directory."""
    with pytest.raises(InvalidSchema, match="cannot be written"):
        parsed('syntax = "proto3";', {"a": 'syntax = "proto3";', "a/b": 'syntax = "proto3";'})


def test_deep_nesting_and_size_are_bounded() -> None:
    """The compiler has a bound of its own for nesting."""
    with pytest.raises(InvalidSchema):
        parsed(proto3("message A {" * 5000 + "}" * 5000))
    with pytest.raises(SchemaTooLarge):
        parsed(proto3("//" + "x" * (1 << 20)))


# Compatibility


SCALARS = {
    "varint": ["int32", "int64", "uint32", "uint64", "bool", "E"],
    "zigzag": ["sint32", "sint64"],
    "string": ["string", "bytes"],
    "fixed32": ["fixed32", "sfixed32"],
    "fixed64": ["fixed64", "sfixed64"],
    "float": ["float"],
    "double": ["double"],
}


def test_numbers_may_change_within_a_wire_type() -> None:
    """protobuf.dev, "Updating A Message Type": every pair of scalar types, an enum among them."""
    kinds = {type_: kind for kind, types in SCALARS.items() for type_ in types}
    files = {type_: parsed(proto3(f"message M {{ {type_} a = 1; }}", "enum E { X = 0; }")) for type_ in kinds}
    for reader, new in files.items():
        for writer, old in files.items():
            found = [reason.rule for reason in check_compatibility(new, old, CompatibilityLevel.BACKWARD)]
            assert found == ([] if kinds[reader] == kinds[writer] else ["FIELD_SCALAR_KIND_CHANGED"]), (reader, writer)


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        (proto3("message M {}"), 'syntax = "proto3"; package other; message M {}', ["PACKAGE_CHANGED #/"]),
        (proto3("message N {}"), proto3("message M {}"), ["MESSAGE_REMOVED #/M"]),
        (proto3("message M {}", "message N {}"), proto3("message N {}", "message M {}"), []),
        (proto3("message M {}"), proto3("message M { message I {} }"), ["MESSAGE_REMOVED #/M/I"]),
        (proto3("message M {}"), proto3("message M {} enum E { X = 0; }"), []),
        # fields
        (proto3("message M { int32 b = 2; }"), proto3("message M { int32 a = 1; }"), []),
        (proto3("message M { int32 renamed = 1; }"), proto3("message M { int32 a = 1; }"), []),
        (proto2("message M { required int32 a = 1; }"), proto2("message M {}"), ["REQUIRED_FIELD_ADDED #/M/1"]),
        (proto2("message M {}"), proto2("message M { required int32 a = 1; }"), ["REQUIRED_FIELD_REMOVED #/M/1"]),
        (
            proto2("message M { optional int32 a = 1; }"),
            proto2("message M { repeated int32 a = 1; }"),
            ["FIELD_NUMERIC_LABEL_CHANGED #/M/1"],
        ),
        (proto2("message M { optional string a = 1; }"), proto2("message M { repeated string a = 1; }"), []),
        (proto3("message M { optional int32 a = 1; }"), proto3("message M { int32 a = 1; }"), []),
        (
            proto3("message M { int32 a = 1; }"),
            proto3("message M { I a = 1; } message I {}"),
            ["FIELD_KIND_CHANGED #/M/1", "MESSAGE_REMOVED #/I"],
        ),
        (
            proto3("message M { J a = 1; } message I {} message J {}"),
            proto3("message M { I a = 1; } message I {} message J {}"),
            ["FIELD_NAMED_TYPE_CHANGED #/M/1"],
        ),
        # maps
        (proto3("message M { map<string, int64> a = 1; }"), proto3("message M { map<string, int32> a = 1; }"), []),
        (
            proto3("message M { map<string, string> a = 1; }"),
            proto3("message M { map<string, int32> a = 1; }"),
            ["FIELD_SCALAR_KIND_CHANGED #/M/1"],
        ),
        (proto3("message M { string a = 1; }"), proto3("message M { map<string, int32> a = 1; }"), ["FIELD_KIND_CHANGED #/M/1"]),
        (proto3("message M { map<string, int32> renamed = 1; }"), proto3("message M { map<string, int32> a = 1; }"), []),
        # oneofs
        (proto3("message M { oneof o { int32 a = 1; int32 b = 2; } }"), proto3("message M { oneof o { int32 a = 1; } }"), []),
        (
            proto3("message M { oneof o { int32 a = 1; } }"),
            proto3("message M { oneof o { int32 a = 1; int32 b = 2; } }"),
            ["ONEOF_FIELD_REMOVED #/M/o/2"],
        ),
        (proto3("message M {}"), proto3("message M { oneof o { int32 a = 1; } }"), []),
        (proto3("message M { int32 a = 1; }"), proto3("message M { oneof o { int32 a = 1; } }"), []),
        (
            proto3("message M { int32 a = 1; }"),
            proto3("message M { oneof o { int32 a = 1; int32 b = 2; } }"),
            ["ONEOF_FIELD_REMOVED #/M/o/2"],
        ),
        (proto3("message M { oneof o { int32 a = 1; } }"), proto3("message M { int32 a = 1; }"), []),
        (proto3("message M { oneof o { int32 a = 1; int32 c = 3; } }"), proto3("message M { int32 a = 1; }"), []),
        (
            proto3("message M { oneof o { int32 a = 1; int32 b = 2; } }"),
            proto3("message M { int32 a = 1; int32 b = 2; }"),
            ["MULTIPLE_FIELDS_MOVED_TO_ONEOF #/M/o"],
        ),
        (
            proto3("message M { oneof o { int32 a = 1; int32 b = 2; } }"),
            proto3("message M { int32 a = 1; oneof o { int32 b = 2; } }"),
            ["FIELD_MOVED_TO_EXISTING_ONEOF #/M/o"],
        ),
        (
            proto3("message M { oneof o { int32 a = 1; int32 b = 2; } }"),
            proto3("message M { oneof p { int32 a = 1; } oneof q { int32 b = 2; } }"),
            ["FIELD_MOVED_TO_EXISTING_ONEOF #/M/o"],
        ),
        (
            proto3("message M { oneof o { string a = 1; } }"),
            proto3("message M { oneof o { int32 a = 1; } }"),
            ["FIELD_SCALAR_KIND_CHANGED #/M/o/1"],
        ),
    ],
)
def test_compatibility_rules(reader: str, writer: str, expected: list[str]) -> None:
    """Rule by rule as Confluent publishes them."""
    assert rules(reader, writer) == expected


def test_imported_messages_are_compared_too() -> None:
    """A reference may go to another version; also one that leads back to itself."""

    def remote(type_: str) -> dict[str, str]:
        return {"r.proto": f'syntax = "proto3"; package r; message R {{ {type_} x = 1; R next = 2; }}'}

    text = 'syntax = "proto3"; import "r.proto"; message M { r.R one = 1; r.R two = 2; }'
    assert rules(text, text, remote("int64"), remote("int32")) == []
    assert rules(text, text, remote("string"), remote("int32")) == [
        "FIELD_SCALAR_KIND_CHANGED #/R/1",
        "FIELD_NAMED_TYPE_CHANGED #/M/1",
        "FIELD_NAMED_TYPE_CHANGED #/M/2",
    ]


def test_each_reason_has_a_sentence_and_a_remedy() -> None:
    """Verbose answers say what to do."""
    old, new = parsed(proto3("message M {}")), parsed(proto3("message N {}"))
    (reason,) = check_compatibility(new, old, CompatibilityLevel.BACKWARD)
    assert reason.message == (
        "{errorType:'MESSAGE_REMOVED', path:'#/M', description:'the new schema has no message '#/M', which the old schema has', "
        "remedy:'keep the message'}"
    )


def test_changes_are_found_by_number_and_name() -> None:
    """For a page and a command."""
    old = parsed(proto3("message M { int32 a = 1; string b = 2; }"))
    new = parsed(proto3("message M { int64 a = 1; oneof o { string c = 3; } }", "enum E { X = 0; }"))
    assert [(change.kind.value, change.path) for change in changes_between(old, new)] == [
        ("changed", "/messages/M/fields/1/type"),
        ("removed", "/messages/M/fields/2"),
        ("added", "/messages/M/fields/3"),
        ("added", "/enums/E"),
    ]


# The compiler's process


async def test_the_process_says_what_the_compiler_in_place_says() -> None:
    """One process for all, and it is gone after `close`."""
    compiler = ProcessCompiler()
    formats = Formats(compiler=compiler)
    schema = await formats.parse(SchemaType.PROTOBUF, RICH, {})
    inline = await parse(RICH, {}, Limits(), InlineCompiler())
    process_id = compiler.process_id
    assert process_id is not None
    assert schema.canonical == inline.canonical
    with pytest.raises(InvalidSchema) as refused:
        await formats.parse(SchemaType.PROTOBUF, proto3("message A {", "  B b = 1; }"), {})
    assert refused.value.place == "line 4 column 3"
    normalized = await formats.parse(SchemaType.PROTOBUF, RICH, {}, normalize=True)
    assert normalized.normalized == inline.normalized
    assert compiler.process_id == process_id
    os.kill(process_id, signal.SIGKILL)  # another is started for the next schema, if need be after an error
    for _ in range(2):
        try:
            await formats.parse(SchemaType.PROTOBUF, proto3("message A {}"), {})
        except InvalidSchema as error:
            assert "did not survive" in str(error)
    assert compiler.process_id not in (None, process_id)
    await formats.close()
    assert compiler.process_id is None


STRANGE = "import sys\nfor line in sys.stdin:\n  print('{}', flush=True) if 'directory' in line else "


@pytest.mark.parametrize(
    ("program", "seconds", "reason"),
    [(STRANGE + "sys.stdin.read()", 0.2, "did not end within"), (STRANGE + "sys.exit(1)", 120.0, "did not survive")],
)
def test_a_compiler_that_takes_too_long_or_dies_costs_one_schema(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, seconds: float, reason: str
) -> None:
    """The process is killed and the schema refused; nothing waits for it."""
    (tmp_path / "strange_compiler.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(protobuf_compiler, "MODULE", "strange_compiler")

    async def scene() -> None:
        compiler = ProcessCompiler(seconds)
        with pytest.raises(InvalidSchema, match=reason):
            await parse('syntax = "proto3";', {}, Limits(), compiler)
        assert compiler.process_id is None
        await compiler.close()

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asyncio.run(scene())
    assert not [*tmp_path.glob("ottla-protobuf-*")]


def test_what_a_cleaner_of_temporary_files_takes_away_is_there_again(tmp_path: Path) -> None:
    """systemd-tmpfiles does so after ten days without use: every Protobuf schema was refused until the registry was started again."""
    files = {"a.proto": proto3('import "confluent/meta.proto";')}
    for taken in ("built-in/confluent/meta.proto", "built-in", "schemas", "."):
        compile_files("a.proto", files, tmp_path / "own")
        place = tmp_path / "own" / taken
        place.unlink() if place.is_file() else shutil.rmtree(place)
        assert compile_files("a.proto", files, tmp_path / "own")


async def test_the_process_has_a_bound_of_memory(tmp_path: Path) -> None:
    """A schema that makes the compiler take more is refused, in that process."""
    asked = protobuf_process.answer_to({"name": "a.proto", "files": {"a.proto": "nonsense"}}, tmp_path)
    assert asked["place"] == "line 1 column 1"
    compiler = ProcessCompiler()
    await compiler.compile("a.proto", {"a.proto": proto3("message A {}")})
    assert compiler.process_id is not None
    if sys.platform == "linux":
        assert resource.prlimit(compiler.process_id, resource.RLIMIT_AS)[0] < 4 * 1024**3
    await compiler.close()


# Compatible means that the reader reads what the writer wrote


class Generator:
    """Files and messages by a seed; labels of numbers stay, for Confluent's rules say nothing of them in proto3."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def fields(self) -> dict[int, tuple[str, str]]:
        """Type and oneof by number."""
        return {number: self.field(number) for number in self.random.sample(range(1, 9), self.random.randint(1, 6))}

    def field(self, number: int) -> tuple[str, str]:
        """By chance; even numbers are repeated when they are no members."""
        scalar = self.random.choice([type_ for types in SCALARS.values() for type_ in types])
        kind = self.random.choice([scalar, scalar, "I", f"map<string, {scalar}>"])
        return kind, self.random.choice(["o", "p"]) if number % 2 and "map" not in kind and self.random.random() < 0.4 else ""

    def changed(self, fields: dict[int, tuple[str, str]]) -> dict[int, tuple[str, str]]:
        """A later version."""
        made = {number: field for number, field in fields.items() if self.random.random() < 0.9}
        for number, (kind, oneof) in made.items():
            same = next((types for types in SCALARS.values() if kind in types), [kind])
            chance = self.random.random()
            moved = self.random.choice(["", "o"]) if chance < 0.1 and number % 2 and "map" not in kind else oneof
            made[number] = (self.random.choice(same) if chance < 0.8 else self.field(2)[0] if not oneof else kind, moved)
        return {**made, 9: self.field(9)} if self.random.random() < 0.3 else made

    def text(self, fields: dict[int, tuple[str, str]]) -> str:
        """The file."""
        lines: dict[str, list[str]] = {"": [], "o": [], "p": []}
        for number, (kind, oneof) in fields.items():
            moved = "" if "map" in kind else oneof
            label = "repeated " if number % 2 == 0 and not moved and "map" not in kind else ""
            lines[moved].append(f"{label}{kind} f{number} = {number};")
        oneofs = [f"oneof {name} {{ {' '.join(lines[name])} }}" for name in ("o", "p") if lines[name]]
        return proto3("message M {", *lines[""], *oneofs, "}", "message I { int32 x = 1; }", "enum E { ZERO = 0; ONE = 1; }")


VALUES: dict[str, Any] = {"E": 1, "bool": True, "string": "x", "bytes": b"x", "float": 0.5, "double": 0.5}


def message_class(text: str) -> Any:
    """Of M in a file."""
    schema = parsed(text)
    return message_factory.GetMessageClass(pool_of(schema._files).FindMessageTypeByName("a.b.M"))


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_compatible_means_that_the_reader_reads_what_the_writer_wrote(seed: int) -> None:
    """What both know by a number is no unknown field to the reader, and a value of the same type comes back."""
    generator = Generator(seed)
    fields = generator.fields()
    later = generator.changed(fields)
    writer, reader = generator.text(fields), generator.text(later)
    note(f"{writer}\n->\n{reader}")
    if rules(reader, writer):
        event("not compatible")
        return
    event("compatible")
    written = message_class(writer)()
    for number, (kind, _) in fields.items():
        field = written.DESCRIPTOR.fields_by_number[number]
        if kind == "I" or field.message_type is not None:
            entry = getattr(written, field.name)
            if "map" in kind:
                entry["k"] = VALUES.get(kind[12:-1], 1)
            else:
                (entry.add() if field.is_repeated else entry).x = 7
        elif field.is_repeated:
            getattr(written, field.name).extend([VALUES.get(kind, 1)] * 2)
        else:
            setattr(written, field.name, VALUES.get(kind, 1))
    read = message_class(reader).FromString(written.SerializeToString())
    fields_left: Any = unknown_fields.UnknownFieldSet(read)
    unknown = {field.field_number for field in fields_left}
    assert not unknown & later.keys()
    for number in fields.keys() & later.keys():
        name = f"f{number}"
        if fields[number][0] == later[number][0] and "map" not in fields[number][0] and fields[number][0] != "I":
            assert getattr(read, name) == getattr(written, name)


def test_the_descriptor_set_has_imports_first() -> None:
    """As `Compiler` promises; descriptors of well-known types are those of the package protobuf."""
    compiled = compile_files("a.proto", {"a.proto": proto3('import "google/protobuf/timestamp.proto";')})
    assert timestamp_pb2.DESCRIPTOR.name.encode() in compiled

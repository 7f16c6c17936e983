"""JSON Schema of drafts 4, 6, 7, 2019-09 and 2020-12: reading a document and what it references into a graph of nodes.

A node is what Confluent's rules compare (`json_schema_rules.py`): keywords for strings, numbers, arrays or objects, an enumeration, a
constant, a negation, a condition, or a combination of such. A schema with keywords of several kinds is a combination by `allOf`, one
with several types by `anyOf`, as in the libraries that Confluent's registry reads with. A `$ref` is replaced by what it refers to, so
the graph may lead back to itself. Without `$schema` a document is of draft 7, as there.

References are resolved by `referencing` among the document, the given texts and the meta-schemas; nothing is fetched. Keywords are
checked here while they are read, and not against the meta-schema: that takes time without a bound.

The canonical form is the document without white space; the normalised form sorts the keys of all objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Final
from urllib.parse import urldefrag, urljoin

import re2
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # has no types
from referencing import Registry, Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT4, DRAFT6, DRAFT7, DRAFT201909, DRAFT202012

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
    change_tags,
    pointer_token,
    tags_in,
)
from ottla.schema_registry.formats.json_schema_rules import Node, compare_schemas, compiled_pattern
from ottla.schema_registry.formats.json_text import as_value, ordered, read_json, write_json

if TYPE_CHECKING:
    from referencing._core import Resolver

MODERN: Final = frozenset({DRAFT201909, DRAFT202012})
TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
COMBINATIONS: Final = ("allOf", "anyOf", "oneOf")

# Which keywords make a schema without "type" one of a kind, and which of them are numbers.
COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "object": ("minProperties", "maxProperties"),
    "array": ("minItems", "maxItems", "minContains", "maxContains"),
    "string": ("minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
KEYWORDS: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset(
        {
            *COUNTS["object"],
            *("properties", "required", "dependencies", "dependentRequired", "dependentSchemas", "patternProperties"),
            *("additionalProperties", "propertyNames", "unevaluatedProperties"),
        }
    ),
    "array": frozenset({*COUNTS["array"], "items", "additionalItems", "prefixItems", "uniqueItems", "contains", "unevaluatedItems"}),
    "number": frozenset(COUNTS["number"]),
    "string": frozenset({*COUNTS["string"], "pattern", "format"}),
}
# What makes a schema more than the reference that it has; from 2019-09 on `format` only says something of it.
ASSERTIONS: Final = frozenset({"type", "enum", "const", "not", "if", *COMBINATIONS}).union(*KEYWORDS.values()) - {"format"}

# Under http and https, as Confluent has them, whichever of the two a draft says.
META_SCHEMAS: Final[Registry[Json]] = REGISTRY.with_resources(
    (f"{scheme}:{uri.partition(':')[2]}", resource) for uri, resource in REGISTRY.items() for scheme in ("http", "https")
)
_DRAFT: Final = re.compile(r"draft-0?(4|6|7)\b|draft/(2019-09|2020-12)\b")
_SPECIFICATIONS: Final = {"4": DRAFT4, "6": DRAFT6, "7": DRAFT7, "2019-09": DRAFT201909, "2020-12": DRAFT202012}
# What RE2 says of an expression that no dialect takes; others it may only not know, such as a look-ahead.
_BROKEN_PATTERN: Final = ("missing", "unexpected )", "no argument for repetition", "invalid character class range", "trailing")


class JsonSchema:
    """A parsed schema; see `ParsedSchema`."""

    schema_type: Final = SchemaType.JSON

    def __init__(self, document: Json, root: Node, limits: Limits) -> None:
        self.document: Final = document
        self.root: Final = root
        self._limits: Final = limits

    @cached_property
    def canonical(self) -> str:
        """Without white space."""
        return write_json(self.document)

    @cached_property
    def normalized(self) -> str:
        """With keys in order besides."""
        return write_json(ordered(self.document))

    def formatted(self, form: str) -> str:
        """Confluent's registry has no other form of JSON Schema."""
        return self.canonical

    def equivalent(self, other: ParsedSchema) -> bool:
        """Whether both are the same document; the order of keys is no difference."""
        return (
            isinstance(other, JsonSchema) and self.document == other.document and _comparable(self.document) == _comparable(other.document)
        )

    def has_top_level_field(self, name: str) -> bool:
        """Whether the document's own "properties" have it."""
        properties = self.document.get("properties") if isinstance(self.document, dict) else None
        return isinstance(properties, dict) and name in properties

    @cached_property
    def tagged_entities(self) -> Tags:
        """The keyword `confluent:tags` of objects and properties."""
        return {entity: tags for entity, place in _entities(self.document, self._limits) if (tags := tags_in(place))}

    def with_tags(self, add: Tags, remove: Tags) -> str:
        """The canonical text with other tags."""
        document = read_json(self.canonical, self._limits)
        places = dict(_entities(document, self._limits, is_plain=True)) | dict(_entities(document, self._limits))
        change_tags(places, add, remove)
        return write_json(document)

    def incompatibilities_as_reader(self, writer: ParsedSchema, policy: CompatibilityPolicy) -> Sequence[Incompatibility]:
        """By the rules that Confluent publishes for JSON Schema."""
        assert isinstance(writer, JsonSchema)
        return compare_schemas(self.root, writer.root, policy, self._limits)

    @property
    def outline(self) -> Json:
        """The document."""
        return self.document


def parse(text: str, references: Mapping[str, str], limits: Limits) -> JsonSchema:
    """Reads a schema together with those that it references.

    Args:
        text: the schema.
        references: texts by the name that a `$ref` has for them.
        limits: bounds.

    Raises:
        InvalidSchema: one of them is wrong; `place` is a JSON pointer.
    """
    limits.check(text, references)
    document = read_json(text, limits)
    if not isinstance(document, dict | bool):
        raise InvalidSchema("a JSON schema is an object, true or false")
    documents: dict[str, Json] = {}
    for name, referenced in references.items():
        try:
            documents[name] = read_json(referenced, limits)
        except InvalidSchema as error:
            raise InvalidSchema(f"reference {name}: {error.reason}", error.place) from None
    reader = _Reader(document, documents, limits)
    return JsonSchema(document, reader.root, limits)


def _specification(document: Json) -> Specification[Json]:
    dialect = document.get("$schema") if isinstance(document, dict) else None
    found = _DRAFT.search(dialect) if isinstance(dialect, str) else None
    return _SPECIFICATIONS[found.group(1) or found.group(2)] if found else DRAFT7


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a schema stands: its JSON, what resolves references from there, its draft, a JSON pointer for errors, and its base URI."""

    contents: Json
    resolver: Resolver[Json]
    draft: Specification[Json]
    pointer: str
    base: str

    def keyword(self, key: str) -> Json:
        """The value of a keyword; the schema is an object."""
        assert isinstance(self.contents, dict)
        return self.contents.get(key)

    def below(self, *keys: str | int) -> _Place:
        """A place further in."""
        contents = self.contents
        for key in keys:
            contents = contents[key]  # type: ignore[index]  # the keys come from what was parsed
        resolver, base = self.resolver, self.base
        if isinstance(contents, dict) and ("$id" in contents or "id" in contents):
            with suppress(AttributeError, TypeError, ValueError):  # an id that is none, such as a property of this name
                resource = self.draft.create_resource(contents)
                resolver, base = resolver.in_subresource(resource), urljoin(base, resource.id() or "")
        pointer = "".join(f"/{pointer_token(str(key))}" for key in keys)
        return _Place(contents, resolver, self.draft, self.pointer + pointer, base)


class _Reader:
    """Nodes by the place in the documents; a list of those that are still to be filled stands for a stack."""

    def __init__(self, document: Json, documents: Mapping[str, Json], limits: Limits) -> None:
        self._names: Final[set[str]] = set()  # of references: the URIs under which they are found
        self._budget: Final = Budget(limits)
        self._nodes: Final[dict[int, Node]] = {}  # by the identity of a schema's JSON, which the documents keep alive
        self._patterns: Final[set[str]] = set()  # that have been looked at
        self._waiting: Final[list[tuple[Node, _Place]]] = []
        for read in (document, *documents.values()):
            self._budget.spend(steps=_cost_of_looking(read) // 100)
        draft = _specification(document)
        resource = draft.create_resource(document)
        registry: Registry[Json] = META_SCHEMAS
        try:
            base = resource.id() or ""
            registry = registry.with_resource(base, resource)
            for name, referenced in documents.items():
                for uri in {name, urljoin(base, name)}:
                    self._names.add(uri)
                    registry = registry.with_resource(uri, _specification(referenced).create_resource(referenced))
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidSchema(f"an id or the name of a reference is no URI: {error}") from None
        with suppress(AttributeError, TypeError, ValueError, LookupError):  # a keyword of the wrong kind, which is found below
            registry = registry.crawl()  # once: a look-up would do it again each time
        self._resolver: Final = registry.resolver_with_root(resource)
        self.root: Final = self._node(_Place(document, self._resolver, draft, "", base))
        while self._waiting:
            self._fill(*self._waiting.pop())

    def _node(self, place: _Place) -> Node:
        """The node of a schema, or of what it refers to and adds nothing to."""
        # A place that waits keeps both, and a URI is taken apart at each reference.
        self._budget.spend(steps=len(place.pointer) // 1_000 + len(place.base) // 200)
        seen: set[int] = set()
        while isinstance(place.contents, dict) and (key := _reference(place)) is not None:
            self._budget.spend()
            if id(place.contents) in seen:
                raise InvalidSchema("the reference leads back to itself", place.pointer)
            seen.add(id(place.contents))
            place = self._referred(place, key)
        if isinstance(place.contents, bool):
            return Node("empty" if place.contents else "false", key=str(place.contents))
        if not isinstance(place.contents, dict):
            raise InvalidSchema("a schema is an object, true or false", place.pointer)
        node = self._nodes.get(id(place.contents))
        if node is None:
            node = self._nodes[id(place.contents)] = Node()
            self._waiting.append((node, place))
        return node

    def _referred(self, place: _Place, key: str) -> _Place:
        reference = place.keyword(key)
        if not isinstance(reference, str):
            raise InvalidSchema(f"{key} is a string", place.pointer)
        named = urldefrag(reference).url in self._names
        for candidate, resolver, base in (
            *((spelling, place.resolver, place.base) for spelling in _spellings(reference)),
            *([(reference, self._resolver, "")] if named else []),  # by its name, whatever the id of the schema around it
        ):
            try:
                resolved = resolver.lookup(candidate)
                uri = urldefrag(urljoin(base, candidate)).url
            except (Unresolvable, AttributeError, TypeError, ValueError, LookupError):
                continue
            contents = resolved.contents
            draft = _specification(contents) if isinstance(contents, dict) and "$schema" in contents else place.draft
            pointer = reference if reference.startswith("#") else f"{reference} "
            return _Place(contents, resolved.resolver, draft, pointer, uri)
        raise InvalidSchema(f"{key} {reference} is neither in the schema nor among its references", place.pointer)

    def _fill(self, node: Node, place: _Place) -> None:
        self._budget.spend()
        parts = list(self._parts(place))
        if len(parts) == 1:
            for name in (slot for slot in Node.__slots__ if slot != "key"):
                setattr(node, name, getattr(parts[0], name))
        elif parts:
            node.kind, node.parts = "allOf", parts
        node.is_connect_bytes = place.keyword("connect.type") == "bytes"

    def _parts(self, place: _Place) -> Iterator[Node]:
        """One for each kind of assertion that a schema makes."""
        assert isinstance(place.contents, dict)
        keywords = place.contents
        if place.draft in MODERN:
            for key in ("$ref", "$dynamicRef", "$recursiveRef"):
                if key in keywords:
                    yield self._node(self._referred(place, key))
        if "enum" in keywords:
            yield Node("enum", values=frozenset(map(_comparable, _list(place, "enum"))), key="enum")
        for combination in COMBINATIONS:
            if combination in keywords:
                yield self._combination(combination, place)
        if "not" in keywords:
            yield Node("not", negated=self._node(place.below("not")), key="not")
        if "const" in keywords and place.draft is not DRAFT4:
            yield Node("const", values=frozenset({_comparable(keywords["const"])}), key="const")
        if "if" in keywords and place.draft not in (DRAFT4, DRAFT6):
            for key in ("if", "then", "else"):
                if key in keywords:
                    self._node(place.below(key))
            yield Node("conditional", key="conditional")
        yield from self._types(place, keywords)

    def _combination(self, kind: str, place: _Place) -> Node:
        parts: list[Node] = []
        for index in range(len(_list(place, kind))):
            member = place.below(kind, index)
            part = self._node(member)
            if not part.key:
                part.key = _comparable(member.contents)
                self._budget.spend(steps=1 + len(part.key) // 100)
            parts.append(part)
        return Node(kind, parts=parts, key=kind)

    def _types(self, place: _Place, keywords: Mapping[str, Json]) -> Iterator[Node]:
        types = keywords.get("type")
        if types is None and "type" not in keywords:
            for kind, sniffed in KEYWORDS.items():
                if (sniffed - {"format"} if place.draft in MODERN else sniffed) & keywords.keys():
                    yield self._typed(kind, place)
        elif isinstance(types, list):
            names = dict.fromkeys(_type_name(name, place) for name in types)
            yield Node("anyOf", parts=[self._typed(name, place) for name in names], key="anyOf type")
        else:
            yield self._typed(_type_name(types, place), place)

    def _typed(self, name: str, place: _Place) -> Node:
        node = Node("number" if name == "integer" else name, is_integer=name == "integer", key=name)
        for key in COUNTS.get(node.kind, ()):
            self._count(node, key, place)
        match node.kind:
            case "object":
                self._fill_object(node, place)
            case "array":
                self._fill_array(node, place)
            case "string":
                pattern = place.keyword("pattern")
                if pattern is not None:
                    node.pattern = self._pattern(pattern, f"{place.pointer}/pattern")
        return node

    def _count(self, node: Node, key: str, place: _Place) -> None:
        value = place.keyword(key)
        if value is None:
            return
        if isinstance(value, bool) and key.startswith("exclusive") and place.draft is DRAFT4:
            limit = place.keyword("maximum" if key == "exclusiveMaximum" else "minimum")
            if value and isinstance(limit, int | Decimal):
                node.counts[key] = _count_of(limit)
            return
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            raise InvalidSchema(f"{key} is a number", f"{place.pointer}/{key}")
        if (node.kind != "number" and (value < 0 or value != int(value))) or (key == "multipleOf" and value <= 0):
            raise InvalidSchema(f"{key} cannot be {value}", f"{place.pointer}/{key}")
        node.counts[key] = _count_of(value)

    def _fill_object(self, node: Node, place: _Place) -> None:
        node.properties = self._schemas(place, "properties")
        declared = place.keyword("properties")
        if isinstance(declared, dict):
            node.with_default = frozenset(name for name, schema in declared.items() if isinstance(schema, dict) and "default" in schema)
        node.patterns = self._schemas(place, "patternProperties")
        for pattern in node.patterns:
            self._pattern(pattern, f"{place.pointer}/patternProperties/{pointer_token(pattern)}")
        if not (place.draft is DRAFT4 and isinstance(place.keyword("required"), bool)):  # a boolean is draft 3's, and is ignored
            node.required = _strings(place, "required")
        node.additional = self._optional(place, "additionalProperties")
        self._optional(place, "propertyNames")
        if place.draft in MODERN:
            node.unevaluated = self._optional(place, "unevaluatedProperties")
        for key in ("dependencies", "dependentRequired", "dependentSchemas"):
            dependencies = place.keyword(key)
            if dependencies is not None and not isinstance(dependencies, dict):
                raise InvalidSchema(f"{key} is an object", f"{place.pointer}/{key}")
            for name, dependency in (dependencies or {}).items():
                if isinstance(dependency, list):
                    node.needed[name] = _strings(place.below(key), name)
                else:
                    node.dependent[name] = self._node(place.below(key, name))

    def _fill_array(self, node: Node, place: _Place) -> None:
        unique = place.keyword("uniqueItems")
        if unique is not None and not isinstance(unique, bool):
            raise InvalidSchema("uniqueItems is true or false", f"{place.pointer}/uniqueItems")
        node.is_unique = bool(unique)
        contains = self._optional(place, "contains")
        if contains is not None and place.draft in MODERN:
            node.counts.setdefault("minContains", Decimal(1))
        prefix = "prefixItems" if place.draft is DRAFT202012 and place.keyword("prefixItems") is not None else "items"
        if isinstance(place.keyword(prefix), list):
            node.items = [self._node(place.below(prefix, index)) for index in range(len(_list(place, prefix)))]
            node.additional = self._optional(place, "items" if prefix == "prefixItems" else "additionalItems")
        else:
            node.all_items = self._optional(place, "items")
            node.additional = self._optional(place, "additionalItems")
            if node.all_items is not None and node.all_items.kind == "false" and place.draft in MODERN:
                node.all_items, node.additional = None, node.all_items
        if place.draft in MODERN:
            node.unevaluated = self._optional(place, "unevaluatedItems")

    def _pattern(self, pattern: Json, place: str) -> str:
        if not isinstance(pattern, str):
            raise InvalidSchema("a pattern is a string", place)
        if pattern in self._patterns:
            return pattern
        try:
            compiled_pattern(pattern, self._budget)
        except re2.error as error:
            reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
            if reason.startswith(_BROKEN_PATTERN):
                raise InvalidSchema(f"{pattern} is no regular expression: {reason}", place) from None
        self._patterns.add(pattern)
        return pattern

    def _optional(self, place: _Place, key: str) -> Node | None:
        assert isinstance(place.contents, dict)
        return self._node(place.below(key)) if key in place.contents else None

    def _schemas(self, place: _Place, key: str) -> dict[str, Node]:
        schemas = place.keyword(key)
        if schemas is None:
            return {}
        if not isinstance(schemas, dict):
            raise InvalidSchema(f"{key} is an object", f"{place.pointer}/{key}")
        return {name: self._node(place.below(key, name)) for name in schemas}


def _cost_of_looking(document: Json) -> int:
    """In hundredths of a step: of all objects, in which `referencing` looks for ids, and of the ids as URIs.

    Each of these may begin with all that are around it.
    """
    total = 0
    waiting: list[tuple[Json, int]] = [(document, 0)]
    while waiting:
        node, length = waiting.pop()
        if isinstance(node, dict):
            total += 25
            for key in ("$id", "id"):
                if isinstance(own := node.get(key), str):
                    length += len(own)
                    total += length
        inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        waiting += [(child, length) for child in inner if isinstance(child, dict | list)]
    return total


def _comparable(value: Json) -> str:
    return write_json(ordered(value), as_value)


def _count_of(value: int | Decimal) -> Decimal:
    """With a double's digits at most: a stranger may have written a million."""
    return Decimal(as_value(value)) if isinstance(value, Decimal) else Decimal(value)


def _reference(place: _Place) -> str | None:
    """The keyword by which a schema is nothing but what it refers to; before 2019-09 that ignores all others beside it."""
    assert isinstance(place.contents, dict)
    if place.draft not in MODERN:
        return "$ref" if "$ref" in place.contents else None
    keys = [key for key in ("$ref", "$dynamicRef", "$recursiveRef") if key in place.contents]
    return keys[0] if len(keys) == 1 and not ASSERTIONS & place.contents.keys() else None


def _spellings(reference: str) -> Iterator[str]:
    """A reference, and the same without ./ and with the other name that definitions have had in the drafts."""
    yield reference
    if reference.startswith("./"):
        yield reference.removeprefix("./")
    for one, other in (("#/$defs/", "#/definitions/"), ("#/definitions/", "#/$defs/")):
        if one in reference:
            yield reference.replace(one, other, 1)


def _type_name(name: Json, place: _Place) -> str:
    if not isinstance(name, str) or name not in TYPES:
        raise InvalidSchema(f"{write_json(name)} is no type; there are {', '.join(TYPES)}", f"{place.pointer}/type")
    return name


def _list(place: _Place, key: str) -> list[Json]:
    value = place.keyword(key)
    if not isinstance(value, list):
        raise InvalidSchema(f"{key} is an array", f"{place.pointer}/{key}")
    return value


def _strings(place: _Place, key: str) -> frozenset[str]:
    value = place.keyword(key)
    if value is None:
        return frozenset()
    texts = frozenset(text for text in _list(place, key) if isinstance(text, str))
    if len(texts) < len(set(map(write_json, _list(place, key)))):
        raise InvalidSchema(f"{key} is an array of strings", f"{place.pointer}/{key}")
    return texts


# Tags


def _entities(document: Json, limits: Limits, *, is_plain: bool = False) -> Iterator[tuple[SchemaEntity, dict[str, Json]]]:
    """Objects and properties under the paths that Confluent gives them, such as `object.address.object.street`.

    With several types an object is a part of an `anyof`, beside conditions it is one of an `allof`; a plain path leaves both out.
    """
    budget = Budget(limits)
    waiting: list[tuple[str, Json, bool]] = [("", document, False)]
    while waiting:
        scope, schema, is_field = waiting.pop()
        if not isinstance(schema, dict):
            continue
        budget.spend(steps=len(scope) * (1 + sum(len(inner) for inner in schema.values() if isinstance(inner, dict | list))) // 100)
        for kind in COMBINATIONS:
            parts = schema.get(kind)
            ranked = sorted(parts, key=_rank) if isinstance(parts, list) else []
            waiting += [(f"{scope}{kind.lower()}.{index}.", part, False) for index, part in enumerate(ranked)]
        waiting += [(f"{scope}not.", schema["not"], False)] if "not" in schema else []
        properties, types = schema.get("properties"), schema.get("type")
        parts_of_types = sorted(map(_kind, types)) if isinstance(types, list) and "anyOf" not in schema and not is_plain else []
        conditions = [key for key in ("if", "then", "else") if key in schema]
        outer = f"{scope}conditional."
        if conditions and (types is not None or properties is not None) and "allOf" not in schema and not is_plain:
            # Parts are in the order of their kinds: several types are "combined", which is before "conditional".
            outer, scope = f"{scope}allof.{int(bool(parts_of_types))}.conditional.", f"{scope}allof.{int(not parts_of_types)}."
        waiting += [(f"{outer}{key}.", schema[key], False) for key in conditions]
        places = {kind: f"{scope}anyof.{parts_of_types.index(kind)}." if kind in parts_of_types else scope for kind in ("array", "object")}
        waiting += [(f"{places['array']}array.", schema["items"], False)] if "items" in schema else []
        if not isinstance(properties, dict) and types != "object":
            continue
        scope = f"{places['object']}object"
        if not is_field:
            yield SchemaEntity(scope, EntityType.RECORD), schema
        for name, member in properties.items() if isinstance(properties, dict) else ():
            if isinstance(member, dict):
                yield SchemaEntity(f"{scope}.{name}", EntityType.FIELD), member
                waiting.append((f"{scope}.{name}.", member, True))
        for key in ("definitions", "$defs"):
            definitions = schema.get(key)
            for name, definition in definitions.items() if isinstance(definitions, dict) else ():
                waiting.append((f"{scope}.{key}.{name}.", definition, False))


def _kind(name: Json) -> str:
    return {"$ref": "reference", "integer": "number"}.get(str(name), str(name))


def _rank(schema: Json) -> tuple[str, str, str]:
    """How Confluent sorts the parts of a combination before it counts them."""
    if not isinstance(schema, dict):
        return "empty" if schema else "false", "", ""
    kinds: list[Json] = [key for key in ("$ref", "const", "enum", "not", *COMBINATIONS) if key in schema] + ["conditional"] * (
        "if" in schema
    )
    if "$ref" not in schema and ("type" in schema or not kinds):
        kinds.append(schema.get("type", "object"))
    is_combined = "$ref" not in schema and (len(kinds) > 1 or isinstance(kinds[0], list) or kinds[0] in COMBINATIONS)
    return "combined" if is_combined else _kind(kinds[0]), str(schema.get("title", "")), str(schema.get("description", ""))

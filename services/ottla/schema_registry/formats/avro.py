"""Avro schemas: parsing, the two written forms, and which reader reads which writer (Avro's specification, "Schema Resolution").

The text is parsed here and not by fastavro, which keeps no order of attributes, no places of errors and no bounds; its part is that
of the judge in the tests. The canonical form is that of Avro's Java library, which Confluent stores: no white space, attributes in
the library's order, types of references by name. The normalised form sorts properties and aliases besides.

Names of rules are those of Avro's `SchemaCompatibility`. As there, logical types do not matter, a reader's union may read a writer's
type by any of its branches, and names are compared without their namespace unless an alias says otherwise.

Nothing here reads data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as attribute
from decimal import Decimal
from functools import cached_property
from typing import Final

from ottla.schema_registry.formats.comparison import Found, Steps, compare_graphs
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
    tags_in,
)
from ottla.schema_registry.formats.json_text import as_double, ordered, read_json, write_json

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
RECORDS: Final = frozenset({"record", "error"})
NAMED: Final = RECORDS | {"enum", "fixed"}
COMPLEX: Final = NAMED | {"array", "map"}
# What a type or a field has of its own; every other attribute is a property, which is kept as it came.
TYPE_ATTRIBUTES: Final = frozenset({"doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases"})
FIELD_ATTRIBUTES: Final = frozenset({"default", "doc", "name", "order", "type", "aliases"})
ORDERS: Final = frozenset({"ascending", "descending", "ignore"})
NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")  # JSON has no numbers for these

# The specification's table of promotions: a reader of the first reads what a writer of one of the others wrote.
PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}

_NO_DEFAULT: Final[Json] = {"": "no default"}  # compared by identity


@dataclass(slots=True, eq=False)
class Field:
    """A record's field."""

    name: str
    type: Type
    doc: str | None
    default: Json
    order: str
    aliases: list[str]
    properties: dict[str, Json]

    @property
    def has_default(self) -> bool:
        """Whether the schema gives one; null is one."""
        return self.default is not _NO_DEFAULT


@dataclass(slots=True, eq=False)
class Type:
    """A node of the graph of types: the same object wherever a name stands for it. Filled by the parser, never changed after."""

    kind: str = ""  # empty for a name that has yet to be defined
    name: str = ""  # full
    doc: str | None = None
    aliases: list[str] = attribute(default_factory=list)
    fields: list[Field] = attribute(default_factory=list)
    symbols: list[str] = attribute(default_factory=list)
    enum_default: str | None = None
    size: int = 0
    inner: Type | None = None  # items, values
    branches: list[Type] = attribute(default_factory=list)
    properties: dict[str, Json] = attribute(default_factory=dict)

    @property
    def label(self) -> str:
        """As Avro's messages write a type: INT, RECORD, UNION."""
        return "RECORD" if self.kind == "error" else self.kind.upper()

    @property
    def content(self) -> Type:
        """The type of an array's items or a map's values."""
        assert self.inner is not None
        return self.inner


# A primitive without properties is the same object everywhere.
_PLAIN: Final = {kind: Type(kind) for kind in PRIMITIVES}


class AvroSchema:
    """A parsed schema; see `ParsedSchema`."""

    schema_type: Final = SchemaType.AVRO

    def __init__(self, root: Type, parser: _Parser, references: Mapping[str, str], limits: Limits) -> None:
        self.root: Final = root
        self._references: Final = references
        self._limits: Final = limits
        self._of_references: Final = parser.of_references

    @cached_property
    def canonical(self) -> str:
        """As Avro's Java library writes it."""
        return _written(self.root, set(self._of_references), None, normalize=False)

    @cached_property
    def normalized(self) -> str:
        """The same with properties and aliases in order, and without empty documentation."""
        return _written(self.root, set(self._of_references), None, normalize=True)

    def formatted(self, form: str) -> str:
        """The canonical text; for "resolved" with the types of references where they are first used."""
        if form.lower() != "resolved":
            return self.canonical
        return _written(self.root, set(), None, normalize=False)

    def equivalent(self, other: ParsedSchema) -> bool:
        """Whether both are the same types with the same attributes, whatever came by references."""
        return isinstance(other, AvroSchema) and (self.root is other.root or self._resolved == other._resolved)

    @cached_property
    def _resolved(self) -> str:
        return _written(self.root, set(), None, normalize=True)

    def has_top_level_field(self, name: str) -> bool:
        """Whether it is a record with this field."""
        return any(field.name == name for field in self.root.fields)

    @cached_property
    def tagged_entities(self) -> Tags:
        """The property `confluent:tags` of records and fields."""
        tagged: dict[SchemaEntity, Sequence[str]] = {}
        for type_ in _reachable(self.root):
            if type_.kind not in RECORDS:
                continue
            if tags := tags_in(type_.properties):
                tagged[SchemaEntity(type_.name, EntityType.RECORD)] = tags
            for field in type_.fields:
                if tags := tags_in(field.properties):
                    tagged[SchemaEntity(f"{type_.name}.{field.name}", EntityType.FIELD)] = tags
        return tagged

    def with_tags(self, add: Tags, remove: Tags) -> str:
        """The canonical text with other tags."""
        changed = parse(self.canonical, self._references, self._limits, is_new=False)
        places: dict[SchemaEntity, dict[str, Json]] = {}
        for type_ in _reachable(changed.root):
            if type_.kind in RECORDS and type_.name not in self._of_references:
                places[SchemaEntity(type_.name, EntityType.RECORD)] = type_.properties
                for field in type_.fields:
                    places[SchemaEntity(f"{type_.name}.{field.name}", EntityType.FIELD)] = field.properties
        change_tags(places, add, remove)
        return changed.canonical

    def incompatibilities_as_reader(self, writer: ParsedSchema, policy: CompatibilityPolicy) -> Found:
        """By the table of the specification; the policy is for JSON Schema."""
        assert isinstance(writer, AvroSchema)
        found = compare_graphs(self.root, writer.root, _compare, self._limits)
        return [reason if reason.path else _at_root(reason) for reason in found]

    @cached_property
    def outline(self) -> Json:
        """Records with their fields by name; a type that was met before is its name."""
        return _outline(self.root, set())


def _at_root(reason: Incompatibility) -> Incompatibility:
    return Incompatibility(reason.rule, "/", reason.description, reason.remedy, reason.detail)


def parse(text: str, references: Mapping[str, str], limits: Limits, is_new: bool) -> AvroSchema:
    """Reads a schema together with those that it references.

    Args:
        text: the schema.
        references: texts by the name of the reference, each after those that it needs.
        limits: bounds.
        is_new: whether default values must fit their fields; in what stands in a registry they may not.

    Raises:
        InvalidSchema: one of them is wrong; `place` is a JSON pointer.
    """
    limits.check(text, references)
    parser = _Parser(limits)
    for name, referenced in references.items():
        try:
            parser.parse(read_json(referenced, limits))
        except InvalidSchema as error:
            raise InvalidSchema(f"reference {name}: {error.reason}", error.place) from None
        parser.of_references.update(parser.types)
    schema = AvroSchema(parser.parse(read_json(text, limits), checks_defaults=is_new), parser, references, limits)
    if is_new and parser.has_moved:  # a type is written where it is first used, which may be too deep to be read again
        parse(schema.canonical, references, limits, is_new=False)
    return schema


class _Parser:
    """Named types, as they become known over several texts."""

    def __init__(self, limits: Limits) -> None:
        self.types: Final[dict[str, Type]] = {}
        self.of_references: Final[set[str]] = set()  # names of types
        self.has_moved = False  # whether a type was used before it was defined
        self._budget: Final = Budget(limits)
        self._undefined: dict[str, tuple[Type, str]] = {}  # used before they are defined, and where
        self._unions: list[tuple[Type, str]] = []
        self._defaults: list[tuple[Field, str]] = []

    def parse(self, document: Json, checks_defaults: bool = False) -> Type:
        """A document's type; what could not be said of its parts is checked at the end."""
        root = self._type(document, None, "", 0)
        for type_name, (_, place) in self._undefined.items():
            raise InvalidSchema(f"{type_name} is no type: neither defined here nor in a reference", place)
        for union, place in self._unions:
            _check_union(union, place)
        for field, place in self._defaults if checks_defaults else ():
            if not self._fits(field.type, field.default):
                kind = "one of its union's" if field.type.kind == "union" else f"a {field.type.kind}"
                raise InvalidSchema(f"the default {write_json(field.default)} of field {field.name} is not {kind}", place)
        self._unions.clear()
        self._defaults.clear()
        return root

    def _type(self, node: Json, namespace: str | None, place: str, depth: int) -> Type:
        self._budget.spend(depth)
        if isinstance(node, str):
            return self._named(node, namespace, place)
        if isinstance(node, list):
            union = Type("union")
            union.branches = [self._type(branch, namespace, f"{place}/{index}", depth + 1) for index, branch in enumerate(node)]
            self._unions.append((union, place))
            return union
        if not isinstance(node, dict):
            raise InvalidSchema(f"{write_json(node)} is no type", place)
        kind = node.get("type")
        if not isinstance(kind, str):
            raise InvalidSchema('a type needs "type" with a name in it; a type inside stands without {"type": …} around it', place)
        if kind in PRIMITIVES:
            return Type(kind, properties=_properties(node, TYPE_ATTRIBUTES))
        if kind in NAMED:
            return self._define(kind, node, namespace, place, depth)
        if kind not in COMPLEX:
            return self._named(kind, namespace, f"{place}/type")
        key = "items" if kind == "array" else "values"
        if key not in node:
            raise InvalidSchema(f'the {kind} has no "{key}"', place)
        inner = self._type(node[key], namespace, f"{place}/{key}", depth + 1)
        return Type(kind, inner=inner, properties=_properties(node, TYPE_ATTRIBUTES))

    def _named(self, name: str, namespace: str | None, place: str) -> Type:
        if name in _PLAIN:
            return _PLAIN[name]
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        self._budget.spend(steps=len(full) // 100)
        known = self.types.get(full) or self.types.get(name)
        if known is not None:
            return known
        if full not in self._undefined:
            self._undefined[full] = Type(name=full), place
        return self._undefined[full][0]

    def _define(self, kind: str, node: dict[str, Json], namespace: str | None, place: str, depth: int) -> Type:
        full, own_namespace = _full_name(node, namespace, place)
        if full in self.types:
            raise InvalidSchema(f"{full} is defined twice", f"{place}/name")
        self.has_moved |= full in self._undefined
        type_, _ = self._undefined.pop(full, (Type(), ""))
        type_.kind, type_.name = kind, full
        self.types[full] = type_
        named = [names for key in ("fields", "aliases") if isinstance(names := node.get(key), list)]
        self._budget.spend(steps=len(full) * (1 + sum(map(len, named))) // 100)  # these get names or paths that are as long
        type_.doc = _text(node, "doc")
        type_.aliases = [alias if "." in alias or not own_namespace else f"{own_namespace}.{alias}" for alias in _aliases(node, place)]
        type_.properties = _properties(node, TYPE_ATTRIBUTES | {"default"} if kind == "enum" else TYPE_ATTRIBUTES)
        match kind:
            case "enum":
                self._fill_enum(type_, node, place)
            case "fixed":
                size = node.get("size")
                if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**31:
                    raise InvalidSchema(f"the size of {full} is no number from 0 to 2147483647", f"{place}/size")
                type_.size = size
            case _:
                self._fill_record(type_, node, own_namespace, place, depth)
        return type_

    def _fill_enum(self, type_: Type, node: dict[str, Json], place: str) -> None:
        symbols = node.get("symbols")
        if not isinstance(symbols, list):
            raise InvalidSchema(f'the enum {type_.name} has no "symbols"', place)
        for index, symbol in enumerate(symbols):
            self._budget.spend()
            type_.symbols.append(_checked_name(symbol, f"{place}/symbols/{index}"))
        if len(set(type_.symbols)) < len(type_.symbols):
            raise InvalidSchema(f"the enum {type_.name} has a symbol twice", f"{place}/symbols")
        type_.enum_default = _text(node, "default")
        if type_.enum_default is not None and type_.enum_default not in type_.symbols:
            raise InvalidSchema(f"the default {type_.enum_default} is no symbol of {type_.name}", f"{place}/default")

    def _fill_record(self, type_: Type, node: dict[str, Json], namespace: str | None, place: str, depth: int) -> None:
        nodes = node.get("fields")
        if not isinstance(nodes, list):
            raise InvalidSchema(f'the record {type_.name} has no "fields"', place)
        fields, seen, plain = type_.fields, set[str](), 0
        for index, field_node in enumerate(nodes):
            field = None
            if isinstance(field_node, dict) and len(field_node) == 2:  # a name and a primitive, as most fields are
                name, kind = field_node.get("name"), field_node.get("type")
                if isinstance(name, str) and isinstance(kind, str) and kind in _PLAIN and _is_name(name):
                    field = Field(name, _PLAIN[kind], None, _NO_DEFAULT, "ascending", [], {})
                    plain += 1
            if field is None:
                field = self._field(field_node, namespace, f"{place}/fields/{index}", depth)
            if field.name in seen:
                raise InvalidSchema(f"the record {type_.name} has the field {field.name} twice", f"{place}/fields/{index}/name")
            seen.add(field.name)
            fields.append(field)
        if plain:
            self._budget.spend(depth + 1, plain)

    def _field(self, node: Json, namespace: str | None, place: str, depth: int) -> Field:
        if not isinstance(node, dict):
            raise InvalidSchema("a field is an object", place)
        name = _checked_name(node.get("name"), f"{place}/name")
        if "type" not in node:
            raise InvalidSchema(f"the field {name} has no type", place)
        type_ = self._type(node["type"], namespace, f"{place}/type", depth + 1)
        order = node.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in ORDERS:
            raise InvalidSchema(f"the order of field {name} is none of {', '.join(sorted(ORDERS))}", f"{place}/order")
        default = node.get("default", _NO_DEFAULT)
        if isinstance(default, str) and type_.kind in ("float", "double"):  # Java's library takes a number in quotes
            try:
                number = default if default in NOT_FINITE else Decimal(repr(float(default)))
            except ValueError:
                number = None
            if number is None or (isinstance(number, Decimal) and not number.is_finite()):  # "nan", "1e999": JSON has no such number
                raise InvalidSchema(f"the default {default} of field {name} is no number", f"{place}/default")
            default = number
        found = Field(name, type_, _text(node, "doc"), default, order.lower(), _aliases(node, place), _properties(node, FIELD_ATTRIBUTES))
        if found.has_default:
            self._defaults.append((found, f"{place}/default"))
        return found

    def _fits(self, type_: Type, value: Json, depth: int = 0) -> bool:
        """Whether a default value is one of a type; of a union any branch may take it (Avro 1.12)."""
        self._budget.spend(depth)
        match type_.kind:
            case "string" | "bytes" | "enum" | "fixed":
                return isinstance(value, str)
            case "int":
                return isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31
            case "long":
                return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
            case "float" | "double":
                return (isinstance(value, int | Decimal) and not isinstance(value, bool)) or value in NOT_FINITE
            case "boolean":
                return isinstance(value, bool)
            case "null":
                return value is None
            case "array":
                return isinstance(value, list) and all(self._fits(type_.content, item, depth + 1) for item in value)
            case "map":
                return isinstance(value, dict) and all(self._fits(type_.content, item, depth + 1) for item in value.values())
            case "union":
                return any(self._fits(branch, value, depth + 1) for branch in type_.branches)
            case _:
                return isinstance(value, dict) and all(self._field_fits(field, value, depth) for field in type_.fields)

    def _field_fits(self, field: Field, record: dict[str, Json], depth: int) -> bool:
        if field.name not in record:
            # A default of its own is checked where it stands; looked at from here it could lead in a circle.
            return field.has_default
        return self._fits(field.type, record[field.name], depth + 1)


def _check_union(union: Type, place: str) -> None:
    """A union has no union in it, and each unnamed type once."""
    seen: set[str] = set()
    for index, branch in enumerate(union.branches):
        if branch.kind == "union":
            raise InvalidSchema("a union stands in a union", f"{place}/{index}")
        key = branch.name or branch.kind
        if key in seen:
            raise InvalidSchema(f"the union has {key} twice", f"{place}/{index}")
        seen.add(key)


def _full_name(node: dict[str, Json], namespace: str | None, place: str) -> tuple[str, str | None]:
    """Java's library looks at the name and not at its namespace, and registries are full of such as `my-service.events`."""
    name = node.get("name")
    if not isinstance(name, str):
        raise InvalidSchema("a type has no name", place)
    own = _text(node, "namespace")
    space = namespace if own is None else own
    if "." in name:
        space, _, name = name.rpartition(".")
    _checked_name(name, f"{place}/name")
    full = f"{space}.{name}" if space else name
    if full in PRIMITIVES:
        raise InvalidSchema(f"{full} is the name of a primitive type", f"{place}/name")
    return full, space or None


def _is_name(text: str) -> bool:
    """By the rule of Java's library, which knows all letters; the specification has those of ASCII."""
    if text.isascii():
        return text.isidentifier()
    return not text[0].isdecimal() and all(letter.isalpha() or letter.isdecimal() or letter == "_" for letter in text)


def _checked_name(name: Json, place: str) -> str:
    if not isinstance(name, str) or not _is_name(name):
        raise InvalidSchema(f"{write_json(name)} is no name: it needs a letter or _, then letters, digits and _", place)
    return name


def _text(node: dict[str, Json], key: str) -> str | None:
    value = node.get(key)
    return value if isinstance(value, str) else None


def _aliases(node: dict[str, Json], place: str) -> list[str]:
    if "aliases" not in node:
        return []
    aliases = node["aliases"]
    if not isinstance(aliases, list):
        raise InvalidSchema("aliases are an array", f"{place}/aliases")
    texts = [alias for alias in aliases if isinstance(alias, str)]
    if len(texts) < len(aliases):
        raise InvalidSchema("an alias is a string", f"{place}/aliases")
    return list(dict.fromkeys(texts))


def _properties(node: dict[str, Json], attributes: frozenset[str]) -> dict[str, Json]:
    return {} if node.keys() <= attributes else {key: value for key, value in node.items() if key not in attributes}


def _reachable(root: Type) -> Iterator[Type]:
    """All types below one, each once, in the order of the text."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        type_ = waiting.pop()
        if id(type_) in seen:
            continue
        seen.add(id(type_))
        yield type_
        inner = [] if type_.inner is None else [type_.inner]
        waiting += reversed([*(field.type for field in type_.fields), *inner, *type_.branches])


# Writing


def _written(type_: Type, known: set[str], namespace: str | None, normalize: bool) -> str:
    """A type as Avro's Java library writes it: a name that is known by its name, in the namespace around it without that.

    Names need no escapes, namespaces may.
    """
    kind = type_.kind
    if kind == "union":
        return f"[{','.join([_written(branch, known, namespace, normalize) for branch in type_.branches])}]"
    properties = _members(_ordered_properties(type_.properties) if normalize else type_.properties)
    if kind in PRIMITIVES:
        return f'{{"type":"{kind}"{properties}}}' if properties else f'"{kind}"'
    if type_.inner is not None:
        key = "items" if kind == "array" else "values"
        return f'{{"type":"{kind}","{key}":{_written(type_.inner, known, namespace, normalize)}{properties}}}'
    if type_.name in known:
        return write_json(_qualified(type_.name, namespace))
    known.add(type_.name)
    space, _, name = type_.name.rpartition(".")
    parts = [f'{{"type":"{kind}","name":"{name}"']
    if space != (namespace or ""):
        parts.append(f',"namespace":{write_json(space)}')
    if type_.doc or (type_.doc is not None and not normalize):
        parts.append(f',"doc":{write_json(type_.doc)}')
    match kind:
        case "enum":
            parts.append(f',"symbols":{write_json([*type_.symbols])}')
            if type_.enum_default is not None:
                parts.append(f',"default":"{type_.enum_default}"')
        case "fixed":
            parts.append(f',"size":{type_.size}')
        case _:
            fields = [_written_field(field, known, space or None, normalize) for field in type_.fields]
            parts.append(f',"fields":[{",".join(fields)}]')
    parts.append(properties)
    if type_.aliases:
        aliases = sorted(type_.aliases) if normalize else type_.aliases
        parts.append(f',"aliases":{write_json([_qualified(alias, space or None) for alias in aliases])}')
    parts.append("}")
    return "".join(parts)


def _written_field(field: Field, known: set[str], namespace: str | None, normalize: bool) -> str:
    type_ = field.type
    if type_.kind in PRIMITIVES and not type_.properties:
        written = f'{{"name":"{field.name}","type":"{type_.kind}"'
    else:
        written = f'{{"name":"{field.name}","type":{_written(type_, known, namespace, normalize)}'
    if field.doc is not None:
        written += f',"doc":{write_json(field.doc)}'
    if field.has_default:
        written += f',"default":{write_json(ordered(field.default) if normalize else field.default, as_double)}'
    if field.order != "ascending":
        written += f',"order":"{field.order}"'
    if field.aliases:
        written += f',"aliases":{write_json([*(sorted(field.aliases) if normalize else field.aliases)])}'
    if field.properties:
        written += _members(_ordered_properties(field.properties) if normalize else field.properties)
    return written + "}"


def _members(properties: Mapping[str, Json]) -> str:
    """As they stand in an object, behind others."""
    return f",{write_json(dict(properties), as_double)[1:-1]}" if properties else ""


def _qualified(full: str, namespace: str | None) -> str:
    """A name without its namespace, if that is the one around it and the rest is not taken for a type of Avro's."""
    space, _, name = full.rpartition(".")
    return name if space and space == namespace and name not in PRIMITIVES | COMPLEX | {"union"} else full


def _ordered_properties(properties: Mapping[str, Json]) -> dict[str, Json]:
    """In alphabetical order, behind those of a logical type."""
    logical = ("logicalType", "precision", "scale") if properties.get("logicalType") == "decimal" else ("logicalType",)
    keys = [key for key in logical if key in properties]
    return {key: ordered(properties[key]) for key in [*keys, *sorted(set(properties) - set(keys))]}


def _outline(type_: Type, known: set[str]) -> Json:
    if type_.kind == "union":
        return {"type": "union", "branches": {branch.name or branch.kind: _outline(branch, known) for branch in type_.branches}}
    if type_.name and type_.name in known:
        return type_.name
    known.add(type_.name)
    outline: dict[str, Json] = {"type": type_.kind}
    if type_.name:
        outline["name"] = type_.name
    if type_.inner is not None:
        outline["items" if type_.kind == "array" else "values"] = _outline(type_.inner, known)
    if type_.fields:
        outline["fields"] = {field.name: _outline_of_field(field, known) for field in type_.fields}
    facts: dict[str, Json] = {
        "doc": type_.doc,
        "symbols": [*type_.symbols] or None,
        "default": type_.enum_default,
        "size": type_.size if type_.kind == "fixed" else None,
        "aliases": [*type_.aliases] or None,
    }
    outline |= {key: value for key, value in facts.items() if value is not None} | type_.properties
    return type_.kind if outline == {"type": type_.kind} else outline


def _outline_of_field(field: Field, known: set[str]) -> Json:
    outline: dict[str, Json] = {"type": _outline(field.type, known)}
    if field.has_default:
        outline["default"] = field.default
    facts: dict[str, Json] = {"doc": field.doc, "aliases": [*field.aliases] or None}
    facts["order"] = None if field.order == "ascending" else field.order
    return outline | {key: value for key, value in facts.items() if value is not None} | field.properties


# Compatibility


def _compare(reader: Type, writer: Type, budget: Budget) -> Steps[Type]:
    """The specification's rules for one pair; the first that fits holds."""
    if writer.kind == "union":
        return (yield from _compare_writer_union(reader, writer))
    if reader.kind == "union":
        for branch in reader.branches:
            budget.spend()
            if _may_read(branch, writer) and not (yield branch, writer, ""):
                return ()
        return [_missing_branch(writer, "")]
    if reader.label != writer.label:
        if writer.kind in PROMOTIONS.get(reader.kind, ()):
            return ()
        return [_type_mismatch(reader, writer)]
    match reader.label:
        case "ARRAY":
            return (yield reader.content, writer.content, "/items")
        case "MAP":
            return (yield reader.content, writer.content, "/values")
        case "FIXED":
            return [*_compare_names(reader, writer), *_compare_sizes(reader, writer)]
        case "ENUM":
            return [*_compare_names(reader, writer), *_compare_symbols(reader, writer)]
        case "RECORD":
            return [*_compare_names(reader, writer), *(yield from _compare_fields(reader, writer))]
        case _:
            return ()


def _may_read(reader: Type, writer: Type) -> bool:
    """Whether a look at kind and name leaves it open; most branches of a union are refused by that."""
    if reader.label != writer.label:
        return writer.kind in PROMOTIONS.get(reader.kind, ())
    return _same_name(reader, writer)


def _compare_writer_union(reader: Type, writer: Type) -> Steps[Type]:
    """Every branch that a writer may have chosen must be read."""
    found: list[Incompatibility] = []
    for index, branch in enumerate(writer.branches):
        reasons = yield reader, branch, f"/{index}"
        if reasons and reader.kind == "union":
            found.append(_missing_branch(branch, f"/{index}"))
        else:
            found += reasons
    return found


def _missing_branch(writer: Type, path: str) -> Incompatibility:
    return Incompatibility(
        "MISSING_UNION_BRANCH",
        path,
        "the {writer} schema may write a type at '{path}' for which no branch of the {reader} schema's union stands",
        f"add a branch for {writer.name or writer.kind} to the union of the {{reader}} schema",
        f"reader union lacking writer type: {writer.label}",
    )


def _type_mismatch(reader: Type, writer: Type) -> Incompatibility:
    return Incompatibility(
        "TYPE_MISMATCH",
        "",
        "the type at '{path}' in the {reader} schema does not read that of the {writer} schema",
        f"keep {writer.kind}, or make it a union of {writer.kind} and {reader.kind} in the {{reader}} schema",
        f"reader type: {reader.label} not compatible with writer type: {writer.label}",
    )


def _same_name(reader: Type, writer: Type) -> bool:
    return reader.name.rpartition(".")[2] == writer.name.rpartition(".")[2] or writer.name in reader.aliases


def _compare_names(reader: Type, writer: Type) -> Found:
    if _same_name(reader, writer):
        return ()
    return [
        Incompatibility(
            "NAME_MISMATCH",
            "/name",
            "the type at '{path}' has another name in the {reader} schema than in the {writer} schema",
            f"keep the name {writer.name}, or give the type of the {{reader}} schema the alias {writer.name}",
            f"expected: {writer.name}",
        )
    ]


def _compare_sizes(reader: Type, writer: Type) -> Found:
    if reader.size == writer.size:
        return ()
    return [
        Incompatibility(
            "FIXED_SIZE_MISMATCH",
            "/size",
            "the fixed type at '{path}' has another size in the {reader} schema than in the {writer} schema",
            f"keep the size {writer.size}, or define another fixed type beside it in a union",
            f"expected: {writer.size}, found: {reader.size}",
        )
    ]


def _compare_symbols(reader: Type, writer: Type) -> Found:
    missing = sorted(set(writer.symbols) - set(reader.symbols))
    if not missing or reader.enum_default is not None:
        return ()
    symbols = f"[{', '.join(missing)}]"
    return [
        Incompatibility(
            "MISSING_ENUM_SYMBOLS",
            "/symbols",
            f"the {{writer}} schema has symbols at '{{path}}' that the {{reader}} schema has not: {', '.join(missing)}",
            f"give the enum {reader.name} of the {{reader}} schema these symbols, or a default symbol",
            symbols,
        )
    ]


def _compare_fields(reader: Type, writer: Type) -> Steps[Type]:
    """Every field of the reader is found in the writer, by its name or an alias, or has a default."""
    found: list[Incompatibility] = []
    written = {field.name: field for field in writer.fields}
    for index, field in enumerate(reader.fields):
        sources = [written[name] for name in dict.fromkeys([field.name, *field.aliases]) if name in written]
        if len(sources) == 1:
            found += yield field.type, sources[0].type, f"/fields/{index}/type"
        elif sources:
            found.append(_ambiguous(field, [source.name for source in sources], index))
        elif not field.has_default:
            found.append(_missing_default(field, index))
    return found


def _ambiguous(field: Field, names: Sequence[str], index: int) -> Incompatibility:
    return Incompatibility(
        "AMBIGUOUS_FIELD_ALIASES",
        f"/fields/{index}/aliases",
        f"the field {field.name} at '{{path}}' in the {{reader}} schema could be any of several fields of the {{writer}} schema",
        f"take away all aliases of {field.name} but the one that is meant",
        f"[{', '.join(names)}]",
    )


def _missing_default(field: Field, index: int) -> Incompatibility:
    return Incompatibility(
        "READER_FIELD_MISSING_DEFAULT_VALUE",
        f"/fields/{index}",
        f"the {{writer}} schema has no field {field.name}, and at '{{path}}' in the {{reader}} schema it has no default",
        f"give the field {field.name} of the {{reader}} schema a default, or an alias that is a field of the {{writer}} schema",
        field.name,
    )

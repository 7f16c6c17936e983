"""What every format of schemas offers, and what is the same for all: levels, bounds, errors and differences.

Compatibility has one question, "does this reader read what that writer wrote?", which a format answers for two schemas
(`ParsedSchema.incompatibilities_as_reader`). The seven levels only choose who reads and how far back to look. Names of rules are
those that Confluent's registry gives in its verbose answers, so that a user finds them in its documentation; a path and a remedy
come with each.

Text comes from strangers. Its size, its depth and the steps that work on it may take are bounded (`Limits`, `Budget`), and
what is beyond is an `InvalidSchema` as any other error in it. Steps are counted, not timed: the same schema is refused on
every machine.

Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from typing import ClassVar, Final, Protocol, TypeAlias

from ottla.errors import OttlaError

MIB: Final = 1024 * 1024
_TAGS: Final = "confluent:tags"

# A JSON document: schemas are such, and what differs between two schemas is found in such. A number is kept as it was written.
Json = None | bool | int | Decimal | str | list["Json"] | dict[str, "Json"]


class SchemaType(StrEnum):
    """The formats, under the names that `schemaType` has in a request."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


class CompatibilityLevel(StrEnum):
    """Who must read whom when a version is added."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        """Whether all former versions are asked, not only the latest."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def new_reads_old(self) -> bool:
        """Whether the new schema must read what older ones wrote."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def old_reads_new(self) -> bool:
        """Whether older schemas must read what the new one writes."""
        return self.value.startswith(("FORWARD", "FULL"))


class CompatibilityPolicy(StrEnum):
    """How strict JSON Schema's rules are with open content models (`compatibilityPolicy` of a config)."""

    STRICT = "STRICT"
    LENIENT = "LENIENT"


class EntityType(StrEnum):
    """What a tag stands at."""

    RECORD = "sr_record"
    FIELD = "sr_field"


class InvalidSchema(OttlaError):
    """A schema cannot be read; the message says why, `place` where: a path in it, or a line and a column."""

    code: ClassVar[int] = 42201

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(f"{reason} (at {place})" if place else reason)
        self.reason: Final = reason
        self.place: Final = place


class SchemaTooLarge(InvalidSchema):
    """A schema, alone or with what it references, has more bytes than the registry takes."""

    code: ClassVar[int] = 42209


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what is taken from strangers.

    Args:
        size: bytes of a schema's text, and ten times as many of it with everything that it references.
        depth: how deep types, schemas and messages are nested, in the text or by references of one to another.
        steps: nodes that one parse or one comparison looks at; some microseconds each.
        reference_count: schemas that one references, directly or not.
    """

    size: int = MIB
    depth: int = 100
    steps: int = 100_000
    reference_count: int = 1_000

    def check(self, text: str, references: Mapping[str, str]) -> None:
        """Compares the text's size, and its size with references, with the bounds.

        Raises:
            SchemaTooLarge: it has more bytes.
            InvalidSchema: it references too many.
        """
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if size > self.size:
            raise SchemaTooLarge(f"the schema has {size} bytes, more than {self.size}")
        if len(references) > self.reference_count:
            raise InvalidSchema(f"the schema references {len(references)} others, more than {self.reference_count}")
        total = size + sum(len(reference) for reference in references.values())
        if total > 10 * self.size:
            raise SchemaTooLarge(f"the schema and what it references have {total} bytes, more than {10 * self.size}")


class Budget:
    """The steps that are left for one piece of work."""

    def __init__(self, limits: Limits) -> None:
        self._limits: Final = limits
        self._left = limits.steps

    def spend(self, depth: int = 0, steps: int = 1) -> None:
        """Takes steps, and checks how deep the work has gone.

        Raises:
            InvalidSchema: none are left, or it is too deep.
        """
        self._left -= steps
        if self._left < 0:
            raise InvalidSchema(f"the schema is too complex: more than {self._limits.steps} steps")
        if depth > self._limits.depth:
            raise InvalidSchema(f"the schema is nested more than {self._limits.depth} deep")


@dataclass(frozen=True, slots=True)
class SchemaEntity:
    """A record or a field, by its path: `com.example.Order` or `com.example.Order.id`; JSON Schema and Protobuf have paths of their own."""

    path: str
    type: EntityType


Tags: TypeAlias = Mapping[SchemaEntity, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """One reason why a reader may not read what a writer wrote.

    Args:
        rule: its name at Confluent's or in Avro, such as READER_FIELD_MISSING_DEFAULT_VALUE.
        path: where in the reader's schema, in the format's notation: `/fields/1`, `#/properties/id`, `#/Order/2`.
        description: a sentence with `{path}`, and `{reader}` and `{writer}` where it says "new" and "old" once a level has chosen.
        remedy: what a user can do about it.
        detail: Avro's additional information, such as the field's name.
    """

    rule: str
    path: str
    description: str
    remedy: str
    detail: str | None = None

    def seen_from(self, reader: str, writer: str) -> Incompatibility:
        """With the two names ("new", "old") in its sentences."""

        def named(sentence: str) -> str:
            return sentence.replace("{reader}", reader).replace("{writer}", writer).replace("{path}", self.path)

        return replace(self, description=named(self.description), remedy=named(self.remedy))

    @property
    def message(self) -> str:
        """As verbose answers have it: Confluent's notation, and the remedy behind."""
        detail = "" if self.detail is None else f", additionalInfo:'{self.detail}'"
        return f"{{errorType:'{self.rule}', path:'{self.path}', description:'{self.description}'{detail}, remedy:'{self.remedy}'}}"


class ChangeKind(StrEnum):
    """What happened to a place of a schema."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Change:
    """A place where two schemas differ; `before` is None where it was added, `after` where it was removed."""

    kind: ChangeKind
    path: str
    before: Json = None
    after: Json = None


class ParsedSchema(Protocol):
    """A schema that has been read together with its references. Immutable, and safe to keep for as long as its text."""

    @property
    def schema_type(self) -> SchemaType:
        """Its format."""
        ...

    @property
    def canonical(self) -> str:
        """The text as it is stored and answered."""
        ...

    @property
    def normalized(self) -> str:
        """The text that `normalize=true` stores: equal for schemas that differ in order and notation only."""
        ...

    def formatted(self, form: str) -> str:
        """The text in the form that `?format=` asks for.

        Args:
            form: "" or "default"; "resolved" (Avro: with the types of references), "serialized" (Protobuf: base64 of a
                FileDescriptorProto), "ignore_extensions" (Protobuf). Any other is the canonical text, as at Confluent's.
        """
        ...

    def equivalent(self, other: ParsedSchema) -> bool:
        """Whether it is the same schema for the purpose of finding it again: order of keys and white space do not matter."""
        ...

    def has_top_level_field(self, field: str) -> bool:
        """Whether its record or object, or a message that is in no other, has a field of this name."""
        ...

    @property
    def tagged_entities(self) -> Tags:
        """Tags within the text (`confluent:tags`, `confluent.field_meta`), by where they stand.

        Raises:
            InvalidSchema: the places have too long paths together.
        """
        ...

    def with_tags(self, add: Tags, remove: Tags) -> str:
        """The canonical text with tags added behind those that are there, then others removed.

        Raises:
            InvalidSchema: there is no such record or field.
        """
        ...

    def incompatibilities_as_reader(self, writer: ParsedSchema, policy: CompatibilityPolicy) -> Sequence[Incompatibility]:
        """Why this schema may not read what was written with another of its format; empty when it can.

        Raises:
            InvalidSchema: the two are too complex to be compared.
        """
        ...

    @property
    def outline(self) -> Json:
        """The schema as a tree in which fields, messages and definitions are found by name: what `changes_between` compares."""
        ...


def check_compatibility(
    new: ParsedSchema, old: ParsedSchema, level: CompatibilityLevel, policy: CompatibilityPolicy = CompatibilityPolicy.STRICT
) -> list[Incompatibility]:
    """Why a schema cannot follow another at this level; empty when it can.

    Args:
        new: the schema to be added.
        old: a former version. How many of these are asked is the caller's affair.
        level: who must read whom.
        policy: for JSON Schema.

    Raises:
        InvalidSchema: two schemas are too complex to be compared.
    """
    if level is CompatibilityLevel.NONE:
        return []
    if old.schema_type != new.schema_type:
        return [_different_type(new, old)]
    found: list[Incompatibility] = []
    try:
        if level.old_reads_new:
            found += [reason.seen_from("old", "new") for reason in old.incompatibilities_as_reader(new, policy)]
        if level.new_reads_old:
            found += [reason.seen_from("new", "old") for reason in new.incompatibilities_as_reader(old, policy)]
    except RecursionError:  # messages of imported files that lead to one another, hundreds deep
        raise InvalidSchema("the schemas are nested too deep to be compared") from None
    return found


def _different_type(new: ParsedSchema, old: ParsedSchema) -> Incompatibility:
    return Incompatibility(
        rule="SCHEMA_TYPE_CHANGED",
        path="/",
        description=f"Incompatible because of different schema type: {old.schema_type} became {new.schema_type}",
        remedy="register the schema under another subject, or set the compatibility of this one to NONE",
    )


def changes_between(old: ParsedSchema, new: ParsedSchema) -> list[Change]:
    """Where two schemas differ, in the order of the old one's outline and then the new one's: for people, not for decisions."""
    return list(_changes("", old.outline, new.outline))


def _changes(path: str, old: Json, new: Json) -> Iterator[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key, before in old.items():
            place = f"{path}/{pointer_token(key)}"
            if key in new:
                yield from _changes(place, before, new[key])
            else:
                yield Change(ChangeKind.REMOVED, place, before=before)
        for key, after in new.items():
            if key not in old:
                yield Change(ChangeKind.ADDED, f"{path}/{pointer_token(key)}", after=after)
    elif type(old) is not type(new) or old != new:
        yield Change(ChangeKind.CHANGED, path or "/", before=old, after=new)


def changed_tags(tags: Iterable[str], add: Iterable[str], remove: Iterable[str]) -> list[str]:
    """Those that stand at a place, each once, those that are added behind them, and none of those that are removed."""
    removed = frozenset(remove)
    return [tag for tag in dict.fromkeys([*tags, *add]) if tag not in removed]


def tags_in(node: Mapping[str, Json]) -> list[str]:
    """The tags that stand at a node of a schema written in JSON."""
    tags = node.get(_TAGS)
    return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []


def change_tags(nodes: Mapping[SchemaEntity, dict[str, Json]], add: Tags, remove: Tags) -> None:
    """Adds tags to those of a schema written in JSON, and removes others, as `ParsedSchema.with_tags` says it.

    Raises:
        InvalidSchema: there is no such record or field.
    """
    for entity in dict.fromkeys([*add, *remove]):
        if entity not in nodes:
            raise InvalidSchema(f"the schema has no {entity.type.value} {entity.path}", entity.path)
        tags = changed_tags(tags_in(nodes[entity]), add.get(entity, ()), remove.get(entity, ()))
        if tags:
            nodes[entity][_TAGS] = [*tags]
        else:
            nodes[entity].pop(_TAGS, None)


def pointer_token(key: str) -> str:
    """A key as RFC 6901 writes it in a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")

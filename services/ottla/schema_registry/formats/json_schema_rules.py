"""Which JSON schema reads what another allowed: the rules that Confluent's registry publishes, under its names.

An object or an array is open when it takes properties or items that it does not name, closed when it takes none, and partially open
when such must fit a schema. A property that is added to an open object is no extension: what was written under its name may be
anything. The policy LENIENT lets that pass.

As at Confluent's, these keywords do not matter: `format`, `if`, `then`, `else`, `propertyNames`, the schema of `contains`, the schemas
of `patternProperties`, and `required` for properties that are not declared. A default makes a required property compatible, though it
is no part of the data. So a reader may refuse data of a writer that these rules call compatible; see docs/decisions/0025.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Final

import re2

from ottla.schema_registry.formats.comparison import Found, Steps, compare_graphs
from ottla.schema_registry.formats.interface import Budget, CompatibilityPolicy, Incompatibility, Limits, pointer_token


@dataclass(slots=True, eq=False)
class Node:
    """A schema within a document, the same object wherever a reference leads to it. Filled by the reader, never changed after.

    Args:
        kind: string, number, boolean, null, array, object, enum, const, not, conditional, empty (anything), false, or one of
            allOf, anyOf, oneOf.
        counts: the numbers of `COUNTS`.
        additional: what further properties or items must be; None where they may be anything, a false node where there are none.
        key: what makes two parts of a combination the same.
    """

    kind: str = "empty"
    parts: list[Node] = field(default_factory=list)
    counts: dict[str, Decimal] = field(default_factory=dict)
    is_integer: bool = False
    pattern: str | None = None
    values: frozenset[str] = frozenset()
    properties: dict[str, Node] = field(default_factory=dict)
    with_default: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    patterns: dict[str, Node] = field(default_factory=dict)
    needed: dict[str, frozenset[str]] = field(default_factory=dict)
    dependent: dict[str, Node] = field(default_factory=dict)
    additional: Node | None = None
    unevaluated: Node | None = None
    all_items: Node | None = None
    items: list[Node] = field(default_factory=list)
    is_unique: bool = False
    negated: Node | None = None
    is_connect_bytes: bool = False
    key: str = ""


# Of a regular expression: a few characters of it, such as \pL{1000}, compile to megabytes.
PATTERN_SIZE: Final = 1024 * 1024
_STEPS_OF_A_LARGE_PATTERN: Final = 5_000


def compiled_pattern(pattern: str, budget: Budget) -> re2._Regexp[str]:
    """A regular expression in linear time, which costs as many steps as it is long when it is compiled.

    Raises:
        re2.error: it is none, or has what linear time does not allow, such as a look-ahead, or is too large.
        InvalidSchema: no steps are left.
    """
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_SIZE
    try:
        found = re2.compile(pattern, options)
    except re2.error as error:
        budget.spend(steps=_STEPS_OF_A_LARGE_PATTERN if "too large" in str(error.args[0]) else 10)
        raise
    budget.spend(steps=10 + found.programsize // 10)
    return found


class _Patterns:
    """The regular expressions of one comparison, each compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[str, re2._Regexp[str] | None] = {}

    def schema_of(self, node: Node, name: str, budget: Budget) -> Node | None:
        """The schema of the first pattern that a property's name fits."""
        for pattern, schema in node.patterns.items():
            if pattern not in self._compiled:
                try:
                    self._compiled[pattern] = compiled_pattern(pattern, budget)
                except re2.error:  # not for linear time: it covers nothing then
                    self._compiled[pattern] = None
            compiled = self._compiled[pattern]
            budget.spend(steps=1 if compiled is None else 1 + compiled.programsize * len(name) // 1_000)
            if compiled is not None and compiled.search(name):
                return schema
        return None


SUMS: Final = frozenset({"anyOf", "oneOf"})
COMBINED: Final = SUMS | {"allOf"}

# What LENIENT allows besides.
LENIENT: Final = frozenset(
    {
        "ADDITIONAL_PROPERTIES_NARROWED",
        "ADDITIONAL_PROPERTIES_REMOVED",
        "UNEVALUATED_PROPERTIES_NARROWED",
        "UNEVALUATED_PROPERTIES_REMOVED",
        "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL",
        "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
        "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
        "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    }
)

# The keyword of a bound, the beginning of its rules' names, and which change of it refuses what was allowed.
BOUNDS: Final[Sequence[tuple[str, str, str]]] = (
    ("maxLength", "MAX_LENGTH", "DECREASED"),
    ("minLength", "MIN_LENGTH", "INCREASED"),
    ("maximum", "MAXIMUM", "DECREASED"),
    ("minimum", "MINIMUM", "INCREASED"),
    ("exclusiveMaximum", "EXCLUSIVE_MAXIMUM", "DECREASED"),
    ("exclusiveMinimum", "EXCLUSIVE_MINIMUM", "INCREASED"),
    ("maxProperties", "MAX_PROPERTIES", "DECREASED"),
    ("minProperties", "MIN_PROPERTIES", "INCREASED"),
    ("maxItems", "MAX_ITEMS", "DECREASED"),
    ("minItems", "MIN_ITEMS", "INCREASED"),
    ("maxContains", "MAX_CONTAINS", "DECREASED"),
    ("minContains", "MIN_CONTAINS", "INCREASED"),
)

_TYPE: Final = (
    "the {reader} schema has another type at '{path}' than the {writer} schema",
    "keep the type, or allow both by anyOf",
)
_FEWER: Final = (
    "the {reader} schema allows fewer alternatives at '{path}' than the {writer} schema",
    "keep every alternative that the {writer} schema has",
)
_MORE: Final = (
    "the {reader} schema demands more at '{path}' than the {writer} schema",
    "take the further demand away",
)
_OPEN: Final = (
    "the {writer} schema is open, so what it allows under the name at '{path}' may be anything; the {reader} schema demands something",
    "close the {writer} schema with additionalProperties false before names are added, or set compatibilityPolicy to LENIENT",
)
_CLOSED: Final = (
    "the {writer} schema names what stands at '{path}', and the {reader} schema, which is closed, does not allow it",
    "keep it, or open the {reader} schema with additionalProperties or additionalItems",
)
_UNCOVERED: Final = (
    "what stands at '{path}' in one schema does not fit what the other demands of further properties or items",
    "give it a schema that both allow",
)
_REQUIRED: Final = (
    "the {reader} schema requires what stands at '{path}', and the {writer} schema does not",
    "do not require it, or give it a default",
)
_FURTHER: Final = (
    "the {reader} schema restricts further properties or items at '{path}', which the {writer} schema does not",
    "allow further ones as before",
)
_BOUND: Final = (
    "the bound at '{path}' in the {reader} schema refuses values that the {writer} schema allows",
    "take the bound away, or make it as wide as it was",
)
SENTENCES: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(("TYPE_CHANGED", "TYPE_NARROWED", "COMBINED_TYPE_CHANGED", "COMBINED_TYPE_SUBSCHEMAS_CHANGED", "SCHEMA_ADDED"), _TYPE),
    **dict.fromkeys(("SUM_TYPE_NARROWED", "ENUM_ARRAY_NARROWED", "ENUM_ARRAY_CHANGED"), _FEWER),
    **dict.fromkeys(("PRODUCT_TYPE_EXTENDED", "NOT_TYPE_EXTENDED", "DEPENDENCY_SCHEMA_ADDED", "UNIQUE_ITEMS_ADDED"), _MORE),
    **dict.fromkeys(("DEPENDENCY_ARRAY_ADDED", "DEPENDENCY_ARRAY_EXTENDED", "DEPENDENCY_ARRAY_CHANGED"), _MORE),
    **dict.fromkeys(("OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", "ITEM_ADDED_TO_OPEN_CONTENT_MODEL"), _OPEN),
    "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL": _OPEN,
    **dict.fromkeys(("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL"), _CLOSED),
    **dict.fromkeys(
        (
            f"{what}_{change}_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
            for what in ("PROPERTY", "ITEM")
            for change in ("ADDED", "REMOVED")
        ),
        _UNCOVERED,
    ),
    **dict.fromkeys(("REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"), _REQUIRED),
    "REQUIRED_ATTRIBUTE_ADDED": _REQUIRED,
    **dict.fromkeys(
        (
            f"{what}_{change}"
            for what in ("ADDITIONAL_PROPERTIES", "UNEVALUATED_PROPERTIES", "ADDITIONAL_ITEMS", "UNEVALUATED_ITEMS")
            for change in ("REMOVED", "NARROWED")
        ),
        _FURTHER,
    ),
}


# Yields pairs as `Steps` does, and adds what it finds to the reasons that it was given.
Pairs = Generator[tuple[Node, Node, str], Found, None]


def compare_schemas(reader: Node, writer: Node, policy: CompatibilityPolicy, limits: Limits) -> Found:
    """Why a schema may refuse what another allows; empty when it does not.

    Raises:
        InvalidSchema: the two are too complex together.
    """
    found = compare_graphs(reader, writer, partial(_compare, policy, _Patterns()), limits)
    return [replace(reason, path=f"#{reason.path or '/'}") for reason in found]


class _Reasons(list[Incompatibility]):
    """What is found in one pair, without what the policy allows."""

    def __init__(self, policy: CompatibilityPolicy) -> None:
        super().__init__()
        self._lenient: Final = policy is CompatibilityPolicy.LENIENT

    def add(self, rule: str, *keys: str | int) -> None:
        """A reason at a place below the pair."""
        if self._lenient and rule in LENIENT:
            return
        self.append(Incompatibility(rule, path_of(*keys), *SENTENCES.get(rule, _BOUND)))


def path_of(*keys: str | int) -> str:
    """As a JSON pointer."""
    return "".join(f"/{pointer_token(str(key))}" for key in keys)


def is_any(node: Node | None) -> bool:
    """Whether a schema, or that there is none, allows everything."""
    return node is None or node.kind == "empty"


def _compare(policy: CompatibilityPolicy, patterns: _Patterns, reader: Node, writer: Node, budget: Budget) -> Steps[Node]:
    """One pair; what Confluent calls the update is the reader."""
    if reader is writer or is_any(reader) or writer.kind == "false":
        return ()
    if (yield from _is_member(reader, writer)):
        return ()
    reasons = _Reasons(policy)
    if reader.kind in COMBINED and writer.kind in COMBINED:
        yield from _compare_combinations(reasons, reader, writer, budget)
    elif reader.kind != writer.kind:
        if not (reader.is_connect_bytes and writer.is_connect_bytes):  # Connect's converter has written decimals as both
            reasons.add("TYPE_CHANGED")
    else:
        _compare_bounds(reasons, reader, writer)
        match reader.kind:
            case "number":
                _compare_numbers(reasons, reader, writer)
            case "string":
                _compare_patterns(reasons, reader, writer)
            case "enum" | "const":
                _compare_values(reasons, reader, writer)
            case "not":
                assert reader.negated is not None
                assert writer.negated is not None
                if (yield writer.negated, reader.negated, ""):
                    reasons.add("NOT_TYPE_EXTENDED", "not")
            case "object":
                budget.spend(steps=(len(reader.properties) + len(writer.properties)) // 8)  # what is not compared is looked at, too
                yield from _compare_objects(reasons, reader, writer, partial(patterns.schema_of, budget=budget))
            case "array":
                yield from _compare_arrays(reasons, reader, writer)
    return reasons


def _is_member(reader: Node, writer: Node) -> Generator[tuple[Node, Node, str], Found, bool]:
    """Whether one of a combination's parts alone makes the pair compatible."""
    if reader.kind in COMBINED and writer.kind not in COMBINED:
        if len(reader.parts) == 1 or reader.kind in SUMS:
            for part in reader.parts:
                if not (yield part, writer, ""):
                    return True
    elif writer.kind in COMBINED and reader.kind not in COMBINED and (len(writer.parts) == 1 or writer.kind == "allOf"):
        for part in writer.parts:
            if not (yield reader, part, ""):
                return True
    return False


def _compare_combinations(reasons: _Reasons, reader: Node, writer: Node, budget: Budget) -> Pairs:
    """Parts are matched one to one; a sum may gain parts, a product may lose some."""
    single_reader, single_writer = len(reader.parts) == 1, len(writer.parts) == 1
    if reader.kind != writer.kind and not (
        reader.kind == "anyOf"
        or (single_reader and single_writer)
        or (single_writer and reader.kind == "oneOf")
        or (single_reader and writer.kind == "allOf")
    ):
        reasons.add("COMBINED_TYPE_CHANGED")
        return
    readers = list({part.key: part for part in reader.parts}.values())
    writers = list({part.key: part for part in writer.parts}.values())
    if len(readers) > len(writers) and reader.kind == "allOf":
        reasons.add("PRODUCT_TYPE_EXTENDED")
    elif len(readers) < len(writers) and writer.kind in SUMS:
        reasons.add("SUM_TYPE_NARROWED")
    edges: list[list[int]] = []
    for writer_part in writers:
        edges.append([])
        for index, reader_part in enumerate(readers):
            if not (yield reader_part, writer_part, ""):
                edges[-1].append(index)
    if matching_size(edges, budget) < min(len(readers), len(writers)):
        reasons.add("COMBINED_TYPE_SUBSCHEMAS_CHANGED")


def matching_size(edges: Sequence[Sequence[int]], budget: Budget) -> int:
    """How many on the left can each have one of their own on the right (Kuhn's algorithm: a chain of changes for each).

    Args:
        edges: for each on the left those that it can have.
        budget: pays for each edge that is looked at.
    """
    holder: dict[int, int] = {}
    for start in range(len(edges)):
        came_from: dict[int, int] = {}  # who on the left has led to one on the right
        waiting = [start]
        while waiting:
            left = waiting.pop()
            for right in edges[left]:
                budget.spend()
                if right in came_from:
                    continue
                came_from[right] = left
                if right not in holder:
                    _give(right, came_from, holder, start)
                    waiting.clear()
                    break
                waiting.append(holder[right])
    return len(holder)


def _give(right: int, came_from: Mapping[int, int], holder: dict[int, int], start: int) -> None:
    held = {left: taken for taken, left in holder.items()}
    while True:
        left = came_from[right]
        holder[right] = left
        if left == start:
            return
        right = held[left]


def _compare_bounds(reasons: _Reasons, reader: Node, writer: Node) -> None:
    if not reader.counts:
        return
    for keyword, name, refusing in BOUNDS:
        new, old = reader.counts.get(keyword), writer.counts.get(keyword)
        if new is None or new == old:
            continue
        if old is None:
            reasons.add(f"{name}_ADDED", keyword)
        elif (new < old) == (refusing == "DECREASED"):
            reasons.add(f"{name}_{refusing}", keyword)


def _compare_numbers(reasons: _Reasons, reader: Node, writer: Node) -> None:
    new, old = reader.counts.get("multipleOf"), writer.counts.get("multipleOf")
    if new is not None and new != old:
        if old is None:
            reasons.add("MULTIPLE_OF_ADDED", "multipleOf")
        elif _divides(old, new):
            reasons.add("MULTIPLE_OF_EXPANDED", "multipleOf")
        elif not _divides(new, old):
            reasons.add("MULTIPLE_OF_CHANGED", "multipleOf")
    if reader.is_integer and not writer.is_integer:
        reasons.add("TYPE_NARROWED")


def _divides(part: Decimal, whole: Decimal) -> bool:
    return Fraction(whole) % Fraction(part) == 0


def _compare_patterns(reasons: _Reasons, reader: Node, writer: Node) -> None:
    if reader.pattern is not None and reader.pattern != writer.pattern:
        reasons.add("PATTERN_ADDED" if writer.pattern is None else "PATTERN_CHANGED", "pattern")


def _compare_values(reasons: _Reasons, reader: Node, writer: Node) -> None:
    if not writer.values <= reader.values:
        narrowed = reader.kind == "enum" and reader.values < writer.values
        reasons.add("ENUM_ARRAY_NARROWED" if narrowed else "ENUM_ARRAY_CHANGED", reader.kind)


def _compare_objects(reasons: _Reasons, reader: Node, writer: Node, by_pattern: Callable[[Node, str], Node | None]) -> Pairs:
    for name in writer.properties:
        if name in reader.properties and name in reader.required and name not in writer.required and name not in reader.with_default:
            reasons.add("REQUIRED_ATTRIBUTE_ADDED", "required", name)
    for name in {**writer.properties, **reader.properties}:
        place = ("properties", name)
        old, new = writer.properties.get(name), reader.properties.get(name)
        if old is not None and new is not None:
            reasons += yield new, old, path_of(*place)
        elif old is not None:
            cover = _cover(reader, by_pattern(reader, name))
            yield from _compare_removed(reasons, "PROPERTY", reader, old, cover, place)
        elif new is not None:
            yield from _compare_added_property(reasons, reader, writer, name, new, by_pattern)
    for name, needed in reader.needed.items():
        before = writer.needed.get(name)
        if before is None:
            reasons.add("DEPENDENCY_ARRAY_ADDED", "dependencies", name)
        elif not needed <= before:
            reasons.add("DEPENDENCY_ARRAY_EXTENDED" if before < needed else "DEPENDENCY_ARRAY_CHANGED", "dependencies", name)
    for name, schema in reader.dependent.items():
        if name not in writer.dependent:
            reasons.add("DEPENDENCY_SCHEMA_ADDED", "dependencies", name)
        else:
            reasons += yield schema, writer.dependent[name], path_of("dependencies", name)
    yield from _compare_further(reasons, "ADDITIONAL_PROPERTIES", "additionalProperties", reader.additional, writer.additional)
    yield from _compare_further(reasons, "UNEVALUATED_PROPERTIES", "unevaluatedProperties", reader.unevaluated, writer.unevaluated)


def _compare_added_property(
    reasons: _Reasons, reader: Node, writer: Node, name: str, new: Node, by_pattern: Callable[[Node, str], Node | None]
) -> Pairs:
    place = ("properties", name)
    if _is_open(writer):
        if is_any(new):
            return
        if name not in reader.required:
            reasons.add("OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", *place)
        elif name in reader.with_default:
            reasons.add("REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL", *place)
        else:
            reasons.add("REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", *place)
        return
    cover = _cover(writer, by_pattern(writer, name))
    if cover is not None:
        found = yield new, cover, path_of(*place)
        reasons += found
        if found:
            reasons.add("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", *place)
    if name in reader.required and name not in reader.with_default:
        reasons.add("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", *place)


def _compare_removed(reasons: _Reasons, what: str, reader: Node, old: Node, cover: Node | None, place: tuple[str, str | int]) -> Pairs:
    """What the writer names and the reader does not."""
    if _is_open(reader):
        return
    if cover is not None:
        found = yield cover, old, path_of(*place)
        reasons += found
        if found:
            reasons.add(f"{what}_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", *place)
    elif old.kind != "false":
        reasons.add(f"{what}_REMOVED_FROM_CLOSED_CONTENT_MODEL", *place)


def _compare_further(reasons: _Reasons, name: str, keyword: str, reader: Node | None, writer: Node | None) -> Pairs:
    """What may stand beside that which is named."""
    if is_any(reader):
        return
    assert reader is not None
    if reader.kind == "false":
        if writer is None or writer.kind != "false":
            reasons.add(f"{name}_REMOVED", keyword)
    elif writer is None or is_any(writer):
        reasons.add(f"{name}_NARROWED", keyword)
    elif writer.kind != "false":
        reasons += yield reader, writer, path_of(keyword)


def _is_open(node: Node) -> bool:
    return is_any(node.additional) and is_any(node.unevaluated) and not node.patterns


def _cover(node: Node, by_pattern: Node | None = None) -> Node | None:
    """The schema that something without a schema of its own must fit, if it is not refused altogether."""
    for further in (by_pattern, node.additional, node.unevaluated):
        if further is not None and further.kind == "false":
            return None
        if not is_any(further):
            return further
    return None


def _compare_arrays(reasons: _Reasons, reader: Node, writer: Node) -> Pairs:
    if reader.all_items is not None and not is_any(reader.all_items):
        if writer.all_items is None:
            reasons.add("SCHEMA_ADDED", "items")
        else:
            reasons += yield reader.all_items, writer.all_items, "/items"
    for index, (new, old) in enumerate(zip(reader.items, writer.items, strict=False)):
        reasons += yield new, old, path_of("items", index)
    for index, old in enumerate(writer.items[len(reader.items) :], len(reader.items)):
        yield from _compare_removed(reasons, "ITEM", reader, old, _cover(reader), ("items", index))
    for index, new in enumerate(reader.items[len(writer.items) :], len(writer.items)):
        if _is_open(writer):
            if not is_any(new):
                reasons.add("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", "items", index)
        elif (cover := _cover(writer)) is not None:
            found = yield new, cover, path_of("items", index)
            reasons += found
            if found:
                reasons.add("ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", "items", index)
    yield from _compare_further(reasons, "ADDITIONAL_ITEMS", "additionalItems", reader.additional, writer.additional)
    yield from _compare_further(reasons, "UNEVALUATED_ITEMS", "unevaluatedItems", reader.unevaluated, writer.unevaluated)
    if reader.is_unique and not writer.is_unique:
        reasons.add("UNIQUE_ITEMS_ADDED", "uniqueItems")

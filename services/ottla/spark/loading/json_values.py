"""JSON as Arrow, with the types that a JSON Schema gives: the columns are the schema's, whatever the values are.

    boolean, integer (64 bits), number (double), string, array of one type, object with properties, object of one type (a map)

What is none of these (several types, properties beside those of another schema, a type that holds itself, one that is referred to by an
anchor, nothing said) is a string with the JSON text. Null is null wherever it stands. Properties that the schema does not name are left
out. A value of another type than its schema's cannot be decoded; no other rule of the schema is checked. Each value is a Python object
here, so this has about a twentieth of the speed of Avro. Pure: no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import numpy as np

from ottla.record.columnar import ByteColumn
from ottla.spark.loading.avro import Flags, Group, SchemaUnusable, count_types

_DEPTH: Final = 64
_INT64: Final = 1 << 63
_COMBINED: Final = frozenset({"$ref", "oneOf", "anyOf", "allOf"})
_SCALARS: Final = frozenset({"boolean", "integer", "number", "string"})
# Delta allows none of these in a column's name.
_NOT_IN_NAMES: Final = str.maketrans(" ,;{}()\n\t=", "__________")


@dataclass(frozen=True, slots=True)
class JsonType:
    """A type.

    Attributes:
        name: a scalar's, `array`, `object`, `map` or `text`.
        parts: the properties of an object, the items of an array, the values of a map.
        keys: the names of properties.
        types: as `avro.count_types`.
    """

    name: str
    parts: tuple[JsonType, ...] = ()
    keys: tuple[str, ...] = ()
    types: int = field(init=False, compare=False, default=1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", count_types(part.types for part in self.parts))

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of properties as columns have them."""
        return tuple(key.translate(_NOT_IN_NAMES) for key in self.keys)

    def arrow(self) -> Any:
        """The `pyarrow.DataType`."""
        import pyarrow

        match self.name:
            case "array":
                return pyarrow.list_(self.parts[0].arrow())
            case "map":
                return pyarrow.map_(pyarrow.string(), self.parts[0].arrow())
            case "object":
                return pyarrow.struct([(label, part.arrow()) for label, part in zip(self.labels, self.parts, strict=True)])
        types = {"boolean": pyarrow.bool_(), "integer": pyarrow.int64(), "number": pyarrow.float64()}
        return types.get(self.name, pyarrow.string())

    def decode(self, values: ByteColumn, skip: int = 0) -> tuple[list[Group], Flags]:
        """As `avro.AvroType.decode`."""
        is_bad = np.zeros(len(values), np.bool_)
        found: list[Any] = []
        for number, octets in enumerate(values.to_list()):
            try:
                found.append(_DECODER.decode((octets or b"")[skip:].decode()))
            except (ValueError, RecursionError):
                found.append(None)
                is_bad[number] = True
        columns = {"": _column(self, found, is_bad)} if self.name != "object" else _columns(self, found, is_bad)
        return [(np.arange(len(values)), columns)], is_bad


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)
_EXACT: Final[dict[str, frozenset[type]]] = {
    "boolean": frozenset({bool, type(None)}),
    "integer": frozenset({int, type(None)}),
    "number": frozenset({int, float, type(None)}),
    "string": frozenset({str, type(None)}),
}


def _columns(kind: JsonType, found: list[Any], is_bad: Flags) -> dict[str, Any]:
    """A column for each property of objects; what is no object, nor null, is damaged."""
    if not set(map(type, found)) <= {dict, type(None)}:
        is_bad |= np.array([not isinstance(value, dict | None) for value in found], np.bool_)
    rows = [value if isinstance(value, dict) else {} for value in found]
    return {
        label: _column(part, [row.get(key) for row in rows], is_bad)
        for key, label, part in zip(kind.keys, kind.labels, kind.parts, strict=True)
    }


def _column(kind: JsonType, found: list[Any], is_bad: Flags) -> Any:
    """One value of each record as an array. They are looked at one by one only where one at least is not what it should be, or nests."""
    import pyarrow

    if kind.name == "object":
        children = _columns(kind, found, is_bad)
        is_null = np.array([not isinstance(value, dict) for value in found], np.bool_)
        return pyarrow.StructArray.from_arrays(list(children.values()), fields=list(kind.arrow()), mask=pyarrow.array(is_null))
    if set(map(type, found)) <= _EXACT.get(kind.name, frozenset()):
        try:
            return pyarrow.array(found, kind.arrow())
        except (ValueError, OverflowError):
            pass
    fitted: list[Any] = []
    for number, value in enumerate(found):
        try:
            fitted.append(_fit(kind, value))
        except (ValueError, OverflowError, RecursionError):
            fitted.append(None)
            is_bad[number] = True
    return pyarrow.array(fitted, kind.arrow())


def _fit(kind: JsonType, value: Any) -> Any:
    """A value as Arrow takes it.

    Raises:
        ValueError, OverflowError: it has another type.
    """
    if value is None:
        return None
    match kind.name, value:
        case "text", _:
            return json.dumps(value, ensure_ascii=False).encode().decode()
        case ("boolean", bool()) | ("string", str()):
            if isinstance(value, str):
                value.encode()  # half a surrogate pair can be escaped in JSON, and is no text
            return value
        case ("boolean", _) | (_, bool()):
            pass
        case "integer", int() | float():
            whole = int(value)
            if whole == value and -_INT64 <= whole < _INT64:
                return whole
        case "number", int() | float():
            return float(value)
        case "array", list():
            return [_fit(kind.parts[0], item) for item in value]
        case "map", dict():
            return [(_fit(_STRING, key), _fit(kind.parts[0], item)) for key, item in value.items()]
        case "object", dict():
            return {label: _fit(part, value.get(key)) for key, label, part in zip(kind.keys, kind.labels, kind.parts, strict=True)}
    raise ValueError(f"{kind.name} is wanted, and not {type(value).__name__}")


_STRING: Final = JsonType("string")
_TEXT: Final = JsonType("text")


def read_json_schema(text: str, referenced: Mapping[str, str]) -> JsonType:
    """Reads a schema.

    Args:
        referenced: schemas by the names that it refers to them by.

    Raises:
        SchemaUnusable
    """
    try:
        roots = {name: json.loads(other) for name, other in referenced.items()}
        return _read(json.loads(text), json.loads(text), roots, ())
    except SchemaUnusable:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise SchemaUnusable(f"this is no JSON Schema: {type(error).__name__}: {error}") from error


def _read(said: Any, root: Any, roots: Mapping[str, Any], above: tuple[str, ...]) -> JsonType:
    """Args: above: the references that are being read, so that a type that holds itself is seen."""
    if not isinstance(said, dict) or len(above) > _DEPTH:
        return _TEXT
    if "properties" in said and not _COMBINED.isdisjoint(said):  # its own ones, and another schema's
        return _TEXT
    if "$ref" in said:
        return _referred(str(said["$ref"]), root, roots, above)
    for many in ("oneOf", "anyOf", "allOf"):
        if many in said:
            # With a title from Confluent's serializer: it writes so of each field of a class that may be null.
            branches = [branch for branch in said[many] if not isinstance(branch, dict) or branch.get("type") != "null"]
            return _read(branches[0], root, roots, (*above, "")) if len(branches) == 1 else _TEXT
    types = said.get("type", _implied(said))
    names = [name for name in (types if isinstance(types, list) else [types]) if name != "null"]
    if sorted(map(str, names)) == ["integer", "number"]:
        names = ["number"]
    if len(names) != 1:
        return _TEXT
    name = names[0]
    if name in _SCALARS:
        return JsonType(name)
    if name == "array" and isinstance(said.get("items"), dict):
        return JsonType("array", (_read(said["items"], root, roots, (*above, "")),))
    properties = said.get("properties", {})
    if name == "object" and properties:
        kind = JsonType("object", tuple(_read(part, root, roots, (*above, "")) for part in properties.values()), tuple(properties))
        if len({label.lower() for label in kind.labels}) < len(properties):
            raise SchemaUnusable(f"two properties would be one column: {', '.join(sorted(properties))}")
        return kind
    if name == "object" and isinstance(said.get("additionalProperties"), dict):
        return JsonType("map", (_read(said["additionalProperties"], root, roots, (*above, "")),))
    return _TEXT


def _implied(said: Mapping[str, Any]) -> str:
    """The type of a schema that names none."""
    if "properties" in said:
        return "object"
    values: Sequence[Any] = said["enum"] if "enum" in said else [said["const"]] if "const" in said else ()
    return "string" if values and all(isinstance(value, str) for value in values) else ""


def _referred(reference: str, root: Any, roots: Mapping[str, Any], above: tuple[str, ...]) -> JsonType:
    name, _, pointer = reference.partition("#")
    whole = f"{name}#{pointer}" if name in roots or not name else reference
    if whole in above:
        return _TEXT
    document = roots.get(name, None if name else root)
    if document is None:
        raise SchemaUnusable(f"it refers to {reference}, which the registry does not give")
    if pointer and not pointer.startswith("/"):  # the name of a place, and not the way to it
        return _TEXT
    found = document
    for part in unquote(pointer).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        found = found[int(part)] if isinstance(found, list) else found[part]
    return _read(found, document, roots, (*above, whole))

"""Avro's binary encoding as Arrow, a whole column of records at a time: no record and no field of one is a Python object.

All records of one schema are decoded side by side. A field is read from every record at once, by numpy, at the place where each
record has come to; then the next field. What varies from record to record (the branch of a union, the number of an array's items) makes
the vectors shorter, and not the way another one.

A record that is damaged costs no one else anything: it is marked, its cursor stops, and the caller says what is done about it. Every length
and count is compared with the bytes that are left. Pure: no I/O.

Types: as Spark's `from_avro`, with `int` as int32. Logical types that are known: date, timestamp-millis, timestamp-micros, decimal; others
are what they are made of, as Avro says. A union of several types is a struct `member0`, `member1`, or null. A field that is only null has
no column.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ottla.errors import OttlaError
from ottla.record.columnar import ByteColumn, Integers

_DEPTH: Final = 64
_MOST_TYPES: Final = 10_000
_PRECISION: Final = 38
_DECIMAL_BYTES: Final = 16
_MILLISECONDS: Final = (1 << 63) // 1000 - 1
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})

Flags = NDArray[np.bool_]
Group = tuple[Integers, dict[str, Any]]  # numbers of records, and the columns of those


class SchemaUnusable(OttlaError):
    """A schema that is no Avro schema, or that has no columns, such as a type that holds itself."""


def count_types(parts: Iterable[int]) -> int:
    """How many types a type is, with its parts: one that is used at two places is two, as it has its columns at both.

    Args:
        parts: how many each of its parts is.

    Raises:
        SchemaUnusable: more than a table can have. With types that hold others twice, a small schema has more than any memory.
    """
    types = 1 + sum(parts)
    if types > _MOST_TYPES:
        raise SchemaUnusable(f"the schema has more than {_MOST_TYPES} types, where each is counted at every place that it is used at")
    return types


def check_names(names: Collection[str]) -> None:
    """Looks whether fields can be columns next to each other.

    Raises:
        SchemaUnusable: some differ in upper and lower case alone, of which no table can have but one, at any depth.
    """
    if len({name.lower() for name in names}) < len(names):
        raise SchemaUnusable(f"two fields would be one column: {', '.join(sorted(names))}")


@dataclass(frozen=True, slots=True)
class AvroType:
    """A type, with the names in it resolved.

    Attributes:
        name: `record`, `array`, `map`, `enum`, `fixed`, `union`, or a primitive's.
        parts: the fields of a record, the branches of a union, an array's items, a map's values.
        labels: the names of fields, or an enum's symbols.
        size: of a fixed.
        logical: a logical type that has an effect; a decimal has its precision and scale too.
        types: as `count_types`.
    """

    name: str
    parts: tuple[AvroType, ...] = ()
    labels: tuple[str, ...] = ()
    size: int = 0
    logical: tuple[Any, ...] = ()
    types: int = field(init=False, compare=False, default=1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", count_types(part.types for part in self.parts))

    def decode(self, values: ByteColumn, skip: int = 0) -> tuple[list[Group], Flags]:
        """The columns of records by groups that have the same ones, and which of the records are damaged. See `decode`."""
        columns, is_bad = decode(self, values, skip)
        return [(np.arange(len(values)), columns)], is_bad


def read_schema(text: str, referenced: Sequence[str] = ()) -> AvroType:
    """Reads a schema.

    Args:
        referenced: the schemas whose names it uses, those first that others of them use.

    Raises:
        SchemaUnusable
    """
    names: dict[str, Any] = {}
    try:
        for other in referenced:
            _read(json.loads(other), "", names, 0)
        return _read(json.loads(text), "", names, 0)
    except SchemaUnusable:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SchemaUnusable(f"this is no Avro schema: {type(error).__name__}: {error}") from error


def _read(said: Any, namespace: str, names: dict[str, AvroType | None], depth: int) -> AvroType:
    if depth > _DEPTH:
        raise SchemaUnusable(f"the schema is deeper than {_DEPTH} levels")
    if isinstance(said, list):
        return AvroType("union", tuple(_read(branch, namespace, names, depth + 1) for branch in said))
    if isinstance(said, str):
        if said in _PRIMITIVES:
            return AvroType(said)
        found = _full_name(said, namespace)
        found = found if found in names else said
        if names[found] is None:
            raise SchemaUnusable(f"the type {found} holds itself, which no column can")
        return names[found]  # type: ignore[return-value]
    kind = said["type"]
    if kind not in ("record", "error", "enum", "fixed", "array", "map"):
        inner = _read(kind, namespace, names, depth + 1)
        # A type that is referred to by its name has the logical type of its definition.
        return AvroType(kind, logical=_logical(said, kind)) if isinstance(kind, str) and kind in _PRIMITIVES else inner
    if kind in ("array", "map"):
        part = _read(said["items" if kind == "array" else "values"], namespace, names, depth + 1)
        if not _has_column(part):
            raise SchemaUnusable(f"{'an array' if kind == 'array' else 'a map'} of nothing but null has no column")
        return AvroType(kind, (part,))
    name = _full_name(said["name"], said.get("namespace", namespace))
    if kind == "enum":
        names[name] = AvroType("enum", labels=tuple(said["symbols"]))
    elif kind == "fixed":
        names[name] = AvroType("fixed", size=int(said["size"]), logical=_logical(said, "fixed"))
    else:
        names[name] = None
        inside = name.rpartition(".")[0]
        parts = tuple(_read(field["type"], inside, names, depth + 1) for field in said["fields"])
        labels = tuple(field["name"] for field in said["fields"])
        check_names([label for label, part in zip(labels, parts, strict=True) if _has_column(part)])
        names[name] = AvroType("record", parts, labels)
    return names[name]  # type: ignore[return-value]


def _has_column(kind: AvroType) -> bool:
    return any(map(_has_column, kind.parts)) if kind.name in ("record", "union") else kind.name != "null"


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _logical(said: Mapping[str, Any], base: str) -> tuple[Any, ...]:
    logical = said.get("logicalType")
    if (logical, base) in (("date", "int"), ("timestamp-millis", "long"), ("timestamp-micros", "long")):
        return (logical,)
    if logical == "decimal" and base in ("bytes", "fixed"):
        precision, scale = said.get("precision"), said.get("scale", 0)
        # One that is not valid is ignored, as the specification has it.
        if type(precision) is type(scale) is int and 0 < precision <= _PRECISION and 0 <= scale <= precision:
            return (logical, precision, scale)
    return ()


def decode(schema: AvroType, values: ByteColumn, skip: int = 0) -> tuple[dict[str, Any], Flags]:
    """The columns of records, and which of the records are damaged: those have no meaning in the columns.

    Args:
        values: none of them null.
        skip: bytes before each record.

    Returns:
        Arrays by field; by "" for a schema that is no record.
    """
    decoder = _Decoder(values, skip)
    rows = np.arange(len(values))
    if schema.name == "record":
        found = dict(zip(schema.labels, [decoder.read(part, rows) for part in schema.parts], strict=True))
    else:
        found = {"": decoder.read(schema, rows)}
    decoder.is_bad |= decoder.at != decoder.ends
    return {name: column for name, column in found.items() if column is not None}, decoder.is_bad


class _Decoder:
    """Records side by side, and where each has come to.

    `rows` are numbers of records; one that is damaged stays among them, stops where it is, and reads as whatever lies there.
    """

    def __init__(self, values: ByteColumn, skip: int) -> None:
        self.data = values.data if len(values.data) else np.zeros(1, np.uint8)
        self.at = values.starts + np.minimum(skip, values.lengths)
        self.ends = values.starts + values.lengths
        self.is_bad = values.lengths < skip

    def read(self, kind: AvroType, rows: Integers) -> Any:
        """The next value of each, as an array; None where there is nothing but null."""
        import pyarrow

        readers: dict[str, Callable[[AvroType, Integers], Any]] = {
            "null": lambda *_: None,
            "boolean": self._boolean,
            "int": self._int,
            "long": self._long,
            "float": lambda _, rows: pyarrow.array(self._fixed_numbers(rows, "<f4")),
            "double": lambda _, rows: pyarrow.array(self._fixed_numbers(rows, "<f8")),
            "bytes": lambda kind, rows: self._octets(kind, rows, self._varints(rows)),
            "fixed": lambda kind, rows: self._octets(kind, rows, np.full(len(rows), kind.size)),
            "string": self._string,
            "enum": self._enum,
            "record": self._record,
            "array": self._array,
            "map": self._map,
            "union": self._union,
        }
        return readers[kind.name](kind, rows)

    # Numbers.

    def _fail(self, rows: Integers, is_wrong: Flags) -> None:
        self.is_bad[rows[is_wrong]] = True

    def _varints(self, rows: Integers) -> Integers:
        at = self.at[rows]
        last = len(self.data) - 1
        octets = self.data[np.minimum(at, last)]
        values = (octets & 0x7F).astype(np.uint64)
        at += 1
        more = np.flatnonzero(octets & 0x80)
        shift = 7
        while len(more) and shift < 70:
            octets = self.data[np.minimum(at[more], last)]
            values[more] |= (octets & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[more] += 1
            more = more[(octets & 0x80) != 0]
            shift += 7
        is_wrong = at > self.ends[rows]
        is_wrong[more] = True
        self._move(rows, at, is_wrong)
        found = (values >> np.uint64(1)).astype(np.int64) ^ -(values & np.uint64(1)).astype(np.int64)
        return np.where(self.is_bad[rows], 0, found)

    def _move(self, rows: Integers, at: Integers, is_wrong: Flags) -> None:
        self._fail(rows, is_wrong)
        self.at[rows] = np.where(self.is_bad[rows], self.at[rows], at)

    def _taken(self, rows: Integers, lengths: Integers) -> tuple[Integers, Integers]:
        """Where the next bytes of each begin, and how many they are: none where so many are not there."""
        starts = self.at[rows]
        is_wrong = (lengths < 0) | (lengths > self.ends[rows] - starts)
        self._fail(rows, is_wrong)
        lengths = np.where(self.is_bad[rows], 0, lengths)
        self.at[rows] = starts + lengths
        return starts, lengths

    def _fixed_numbers(self, rows: Integers, form: str) -> NDArray[Any]:
        width = np.dtype(form).itemsize
        starts, _ = self._taken(rows, np.full(len(rows), width))
        places = np.minimum(starts[:, None] + np.arange(width), len(self.data) - 1)
        return self.data[places].view(form).reshape(len(rows))

    def _boolean(self, _: AvroType, rows: Integers) -> Any:
        import pyarrow

        octets = self._fixed_numbers(rows, "u1")
        self._fail(rows, octets > 1)
        return pyarrow.array(octets == 1)

    def _int(self, kind: AvroType, rows: Integers) -> Any:
        import pyarrow

        values = self._varints(rows)
        narrow = values.astype(np.int32)
        self._fail(rows, narrow != values)
        return pyarrow.array(narrow, pyarrow.date32() if kind.logical else None)

    def _long(self, kind: AvroType, rows: Integers) -> Any:
        import pyarrow

        values = self._varints(rows)
        if kind.logical == ("timestamp-millis",):
            is_wrong = (values > _MILLISECONDS) | (values < -_MILLISECONDS)  # the lowest number is its own absolute value
            self._fail(rows, is_wrong)
            values = np.where(is_wrong, 0, values) * 1000
        return pyarrow.array(values, pyarrow.timestamp("us", tz="UTC") if kind.logical else None)

    # Bytes.

    def _octets(self, kind: AvroType, rows: Integers, lengths: Integers) -> Any:
        starts, lengths = self._taken(rows, lengths)
        return self._decimals(kind, rows, starts, lengths) if kind.logical else ByteColumn(self.data, starts, lengths).to_arrow()

    def _decimals(self, kind: AvroType, rows: Integers, starts: Integers, lengths: Integers) -> Any:
        """Two's complement, the highest byte first: 16 bytes of each, the lowest first."""
        import pyarrow

        is_wrong = lengths > _DECIMAL_BYTES
        for number in np.flatnonzero(is_wrong):  # a fixed may be longer than its digits need: what is too much only repeats the sign
            ahead = self.data[starts[number] : starts[number] + lengths[number] - _DECIMAL_BYTES + 1]
            is_wrong[number] = (ahead[:-1] != (0xFF if ahead[-1] >= 0x80 else 0)).any()
        self._fail(rows, is_wrong)
        starts, lengths = starts + np.maximum(lengths - _DECIMAL_BYTES, 0), np.minimum(lengths, _DECIMAL_BYTES)
        last = len(self.data) - 1
        sign = np.where((lengths > 0) & (self.data[np.minimum(starts, last)] >= 0x80), 0xFF, 0).astype(np.uint8)
        back = np.arange(_DECIMAL_BYTES)
        octets = self.data[np.clip(starts[:, None] + lengths[:, None] - 1 - back, 0, last)]
        octets = np.ascontiguousarray(np.where(back < lengths[:, None], octets, sign[:, None]))
        _, precision, scale = kind.logical
        found = pyarrow.Array.from_buffers(pyarrow.decimal128(_PRECISION, scale), len(rows), [None, pyarrow.py_buffer(octets)])
        return self._within(found, rows, precision, scale)

    def _within(self, found: Any, rows: Integers, precision: int, scale: int) -> Any:
        import pyarrow

        kind = pyarrow.decimal128(precision, scale)
        try:
            whole = found.cast(kind)
            whole.validate(full=True)
        except pyarrow.ArrowInvalid:
            # Only here, where one at least has too many digits.
            limit = 10**precision
            octets = np.frombuffer(found.buffers()[1], np.uint8).reshape(len(rows), _DECIMAL_BYTES)
            is_wrong = np.array([abs(int.from_bytes(one.tobytes(), "little", signed=True)) >= limit for one in octets], np.bool_)
            self._fail(rows, is_wrong)
            zeroed = np.where(is_wrong[:, None], 0, octets).astype(np.uint8)
            whole = pyarrow.Array.from_buffers(kind, len(rows), [None, pyarrow.py_buffer(np.ascontiguousarray(zeroed))])
        return whole

    def _string(self, _: AvroType, rows: Integers) -> Any:
        import pyarrow

        starts, lengths = self._taken(rows, self._varints(rows))
        try:
            return ByteColumn(self.data, starts, lengths).to_arrow().cast(pyarrow.string())
        except pyarrow.ArrowInvalid:
            # Only here, where one at least is no UTF-8.
            is_wrong = np.array([_is_no_text(self.data[start : start + length]) for start, length in zip(starts, lengths, strict=True)])
            self._fail(rows, is_wrong)
            return ByteColumn(self.data, starts, np.where(is_wrong, 0, lengths)).to_arrow().cast(pyarrow.string())

    def _enum(self, kind: AvroType, rows: Integers) -> Any:
        import pyarrow

        numbers = self._varints(rows)
        is_wrong = (numbers < 0) | (numbers >= len(kind.labels))
        self._fail(rows, is_wrong)
        return pyarrow.array(kind.labels, pyarrow.string()).take(pyarrow.array(np.where(is_wrong, 0, numbers), mask=is_wrong))

    # Types of types.

    def _record(self, kind: AvroType, rows: Integers) -> Any:
        import pyarrow

        found = [(label, self.read(part, rows)) for label, part in zip(kind.labels, kind.parts, strict=True)]
        there = [(label, column) for label, column in found if column is not None]
        if not there:
            return None
        return pyarrow.StructArray.from_arrays([column for _, column in there], names=[label for label, _ in there])

    def _union(self, kind: AvroType, rows: Integers) -> Any:
        import pyarrow

        branches = self._varints(rows)
        self._fail(rows, (branches < 0) | (branches >= len(kind.parts)))
        members = []
        is_null = np.ones(len(rows), np.bool_)
        for number, part in enumerate(kind.parts):
            is_it = branches == number
            found = self.read(part, rows[is_it])
            if found is not None:
                members.append(_scattered(found, is_it))
                is_null &= ~is_it
        if len(members) < 2:
            return members[0] if members else None
        names = [f"member{number}" for number in range(len(members))]
        return pyarrow.StructArray.from_arrays(members, names=names, mask=pyarrow.array(is_null))

    def _array(self, kind: AvroType, rows: Integers) -> Any:
        import pyarrow

        offsets, (items,) = self._items(rows, [kind.parts[0]])
        return pyarrow.ListArray.from_arrays(offsets, items)

    def _map(self, kind: AvroType, rows: Integers) -> Any:
        import pyarrow

        offsets, (keys, items) = self._items(rows, [AvroType("string"), kind.parts[0]])
        return pyarrow.MapArray.from_arrays(offsets, keys, items)

    def _items(self, rows: Integers, kinds: Sequence[AvroType]) -> tuple[Any, list[Any]]:
        """The first item of each that has one, then the second ones; and at the end each one's items next to each other."""
        import pyarrow

        places = np.arange(len(rows))  # of those that go on, in `rows`
        left = np.zeros(len(rows), np.int64)
        owners: list[Integers] = []
        rounds: list[list[Any]] = []
        while len(places):
            begins = np.flatnonzero(left[places] == 0)  # of a block
            if len(begins):
                at = places[begins]
                counts = self._varints(rows[at])
                sized = np.flatnonzero(counts < 0)
                self._varints(rows[at[sized]])
                counts = np.abs(counts)
                # An item takes a byte at least; what takes none is refused above.
                wrong = (counts > self.ends[rows[at]] - self.at[rows[at]]) | (counts < 0)
                self._fail(rows[at], wrong)
                left[at] = counts
            places = places[(left[places] > 0) & ~self.is_bad[rows[places]]]
            if not len(places):
                break
            owners.append(places)
            rounds.append([self.read(kind, rows[places]) for kind in kinds])
            left[places] -= 1
        if not rounds:
            rounds, owners = [[self.read(kind, rows[:0]) for kind in kinds]], [places]
        owner = np.concatenate(owners)
        order = pyarrow.array(np.argsort(owner, kind="stable"))
        offsets = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(np.bincount(owner, minlength=len(rows)), out=offsets[1:])
        columns = [pyarrow.concat_arrays([found[number] for found in rounds]).take(order) for number in range(len(kinds))]
        return pyarrow.array(offsets), columns


def _scattered(found: Any, is_there: Flags) -> Any:
    """An array as long as the mask: what was found where it is true, null elsewhere."""
    import pyarrow

    if is_there.all():
        return found
    places = np.cumsum(is_there) - 1
    return found.take(pyarrow.array(np.maximum(places, 0), mask=~is_there))


def _is_no_text(octets: NDArray[np.uint8]) -> bool:
    try:
        octets.tobytes().decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False

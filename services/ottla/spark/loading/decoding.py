"""Values as columns: Confluent's frame (a zero byte and a schema's id of four), then what the schema says.

The fields of a record, of an object or of a message are columns by their own names; one that is named as a column of every table has
`value_` before its name. What is no record is the column `value`. `schemaId` says with which schema a value was written: null where the
value is null.

A column that a value does not have is null. One that the table does not have is a schema change, and so is one of another type, unless
every value of it fits the table's: int into long or double, float into double.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ottla.errors import OttlaError
from ottla.model import TopicPartition
from ottla.record.columnar import ByteColumn, Columns, Integers
from ottla.spark.loading.schemas import Decoding, Schemas

SCHEMA_ID: Final = "schemaId"
OURS: Final = ("key", "partition", "offset", "timestamp", "timestampType", "headers", SCHEMA_ID, "topic", "day")
_OURS_LOWER: Final = frozenset(name.lower() for name in OURS)
_FRAME_BYTES: Final = 5

ColumnTypes = Mapping[str, Any]  # `pyarrow.DataType` of each


class SchemaChanged(OttlaError):
    """A value has a column that the table does not have, or not with that type, and `onSchemaChange` does not allow it."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of some records.

    Attributes:
        columns: of all records, those that cannot be decoded too: they have no meaning there.
        is_bad: which cannot.
        why: of each that cannot, by its number.
    """

    columns: ColumnTypes
    is_bad: NDArray[np.bool_]
    why: Mapping[int, str]


def fits(narrow: Any, wide: Any) -> bool:
    """Whether every value of one type is one of the other."""
    from pyarrow import types

    if narrow == wide:
        return True
    if types.is_int32(narrow):
        return bool(types.is_int64(wide) or types.is_float64(wide))
    return bool(types.is_float32(narrow) and types.is_float64(wide))


def merged(known: ColumnTypes, found: Sequence[ColumnTypes], decoding: Decoding) -> tuple[dict[str, Any], bool]:
    """The columns of a table after tasks that each began with those it had, and whether what they wrote has those types.

    Where it has not, the tasks have to run again, with these columns to begin with: then each of them says what does not fit, and where.
    """
    union = dict(known)
    is_whole = True
    for columns in found:
        is_closed = bool(union) and decoding.on_schema_change == "fail"
        for name, kind in columns.items():
            there = union.get(name)
            if there is None and is_closed:
                is_whole = False
            elif there is None:
                union[name] = kind
            elif there != kind:
                is_whole = False
                union[name] = kind if fits(there, kind) else there
    if len({name.lower() for name in union}) < len(union):
        raise SchemaChanged(f"columns differ in upper and lower case alone, which no table can have: {', '.join(sorted(union))}")
    return union, is_whole


class Decoder:
    """Decodes values, and knows which columns there are by now: those of the table, and what came since.

    Args:
        known: the decoded columns of the table.

    Attributes:
        is_stale: whether a column that the table does not have became wider after some of it was given away.
    """

    def __init__(self, decoding: Decoding, known: ColumnTypes) -> None:
        self._schemas = Schemas(decoding)
        self._on_change = decoding.on_schema_change
        self._may_add = not known or self._on_change != "fail"
        self._known = known
        self.columns: dict[str, Any] = dict(known)
        self.is_stale = False

    def decode(self, records: Columns, partition: TopicPartition) -> Decoded:
        """The columns of records.

        Raises:
            SchemaChanged: with the first offset that has what is not allowed.
            RegistryUnavailable
        """
        import pyarrow

        values = records.values
        is_null = values.is_null
        ids, is_bad = _ids(values)
        why = dict.fromkeys(np.flatnonzero(is_bad).tolist(), "it does not begin with a zero byte and the id of a schema")
        pieces: dict[str, list[tuple[Integers, Any]]] = {}
        for schema_id in np.unique(ids[~is_null & ~is_bad]).tolist():
            rows = np.flatnonzero((ids == schema_id) & ~is_null & ~is_bad)
            schema = self._schemas.get(schema_id)
            if isinstance(schema, str):
                is_bad[rows] = True
                why.update(dict.fromkeys(rows.tolist(), schema))
                continue
            groups, is_wrong = schema.decode(ByteColumn(values.data, values.starts[rows], values.lengths[rows]), _FRAME_BYTES)
            is_bad[rows[is_wrong]] = True
            why.update(dict.fromkeys(rows[is_wrong].tolist(), f"it is not what schema {schema_id} says"))
            for of_it, found in groups:
                if is_wrong[of_it].all():
                    continue  # no value is in its columns
                where = f"{partition} at offset {int(records.offsets[rows[of_it[0]]])}, schema {schema_id}"
                for name, array in self._placed(found, where):
                    pieces.setdefault(name, []).append((rows[of_it], array))
        ids_column = pyarrow.array(ids.astype(np.int32), mask=is_null | is_bad)
        columns = {name: _assembled(pieces.get(name, []), kind, len(records)) for name, kind in self.columns.items()}
        return Decoded({SCHEMA_ID: ids_column, **columns}, is_bad, why)

    def _placed(self, found: Mapping[str, Any], where: str) -> list[tuple[str, Any]]:
        """Arrays under the names and with the types that they have in the table."""
        placed: dict[str, Any] = {}
        for label, array in found.items():
            name = self._place(_name_of(label), array.type, where)
            if name in placed:
                raise SchemaChanged(f"{where}: two fields would be the column {name}")
            placed[name] = array if array.type == self.columns[name] else array.cast(self.columns[name])
        self._may_add = self._on_change != "fail"
        return list(placed.items())

    def _place(self, name: str, kind: Any, where: str) -> str:
        there = self.columns.get(name)
        if there is None:
            same = [other for other in self.columns if other.lower() == name.lower()]
            if same:
                raise SchemaChanged(f"{where}: the column {name} differs from {same[0]} in upper and lower case alone")
            if not self._may_add:
                raise SchemaChanged(f"{where}: the table has no column {name} ({kind}), and onSchemaChange is fail")
            self.columns[name] = kind
        elif name not in self._known and self._may_add and fits(there, kind) and there != kind:
            self.columns[name] = kind
            self.is_stale = True
        elif not fits(kind, there):
            if self._on_change != "new":
                raise SchemaChanged(f"{where}: the column {name} is {there} in the table and {kind} here; see onSchemaChange")
            return self._place(f"{name}_{_word_of(kind)}", kind, where)
        return name


def _name_of(label: str) -> str:
    return f"value_{label}" if label.lower() in _OURS_LOWER else label or "value"


def _word_of(kind: Any) -> str:
    """A name for a type, the same wherever it is asked for."""
    text = str(kind)
    return text if text.isalnum() else f"{text.partition('<')[0].partition('[')[0]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _ids(values: ByteColumn) -> tuple[Integers, NDArray[np.bool_]]:
    """The id of each, and which have none although they are not null."""
    last = max(len(values.data) - 1, 0)
    octets = (values.data if len(values.data) else np.zeros(1, np.uint8))[
        np.minimum(values.starts[:, None] + np.arange(_FRAME_BYTES), last)
    ].astype(np.int64)
    ids = (octets[:, 1] << 24) | (octets[:, 2] << 16) | (octets[:, 3] << 8) | octets[:, 4]
    is_framed = (values.lengths >= _FRAME_BYTES) & (octets[:, 0] == 0) & (ids < 1 << 31)
    return np.where(is_framed, ids, 0), ~is_framed & ~values.is_null


def _assembled(pieces: Sequence[tuple[Integers, Any]], kind: Any, count: int) -> Any:
    """One column of all records; null where no piece has it."""
    import pyarrow

    if not pieces:
        return pyarrow.nulls(count, kind)
    if len(pieces) == 1 and len(pieces[0][0]) == count:
        return pieces[0][1].cast(kind)
    places = np.full(count, -1, np.int64)
    start = 0
    for rows, array in pieces:
        places[rows] = np.arange(start, start + len(array))
        start += len(array)
    return pyarrow.concat_arrays([array.cast(kind) for _, array in pieces]).take(pyarrow.array(np.maximum(places, 0), mask=places < 0))

"""JSON as schemas are written in: read with bounds, written without white space.

Only what RFC 8259 allows is read, so no NaN and no half of a surrogate pair: what one registry stores every client must be able to
read. Of a key that comes twice the last counts, as in Jackson.

A number with a point or an exponent is part of a schema's text, and so of its guid: Jackson writes it as Java's BigDecimal has it, which
Decimal does too, or as Java has a double.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from math import isfinite
from typing import Final, NoReturn

from ottla.schema_registry.formats.interface import InvalidSchema, Json, Limits

# Brackets for each level of a type: an Avro record has three of them around the type of a field.
BRACKETS_PER_LEVEL: Final = 3


def read_json(text: str, limits: Limits) -> Json:
    """The document of a text.

    Raises:
        InvalidSchema: it is no JSON, or nested too deep; with line and column.
    """
    try:
        document: Json = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidSchema(f"no JSON: {error.msg}", f"line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise InvalidSchema("the JSON is nested too deep") from None
    except ValueError as error:
        raise InvalidSchema(f"no JSON: {error}") from None
    deepest = limits.depth * BRACKETS_PER_LEVEL
    if text.count("{") + text.count("[") > deepest:  # nothing is nested deeper than there are brackets
        _check_depth(document, deepest)
    try:
        text.encode()
        if "\\u" in text:
            write_json(document).encode()
    except UnicodeEncodeError:
        raise InvalidSchema("half of a surrogate pair stands alone") from None
    return document


def write_json(document: Json, number: Callable[[Decimal], str] = str) -> str:
    """The text of a document, with no white space and keys in their order.

    Args:
        number: how numbers with a point or an exponent are written.
    """
    try:
        return _ENCODER.encode(document)
    except TypeError:  # a Decimal, which few schemas have
        return _written(document, number)


def _written(node: Json, number: Callable[[Decimal], str]) -> str:
    match node:
        case Decimal():
            return number(node)
        case list():
            return f"[{','.join([_written(item, number) for item in node])}]"
        case dict():
            return f"{{{','.join([f'{_ENCODER.encode(key)}:{_written(value, number)}' for key, value in node.items()])}}}"
    return _ENCODER.encode(node)


def as_double(number: Decimal) -> str:
    """As `Double.toString` of Java has it: 1.0E-4, 0.001, 1.0E7."""
    value = float(number)
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits, _, exponent = f"{Decimal(repr(value)).normalize():E}".partition("E")
    return f"{digits if '.' in digits else f'{digits}.0'}E{int(exponent)}"


def as_value(number: Decimal) -> str:
    """The same for 0.50, 0.5 and 5e-1: to compare."""
    return repr(float(number))


def ordered(document: Json) -> Json:
    """With the keys of every object in alphabetical order."""
    if isinstance(document, dict):
        return {key: ordered(document[key]) for key in sorted(document)}
    if isinstance(document, list):
        return [ordered(item) for item in document]
    return document


def _finite(number: str) -> Decimal:
    if not isfinite(float(number)):
        raise ValueError(f"{number} is too large")
    try:
        return Decimal(number)
    except ArithmeticError:
        raise ValueError(f"the exponent of {number} is too large") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number in JSON")


# Making one costs as much as reading a small schema.
_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _check_depth(document: Json, limit: int) -> None:
    level: list[Json] = [document]
    for _ in range(limit + 1):
        inner: list[Json] = []
        for node in level:
            if isinstance(node, dict):
                inner.extend(node.values())
            elif isinstance(node, list):
                inner.extend(node)
        if not inner:
            return
        level = inner
    raise InvalidSchema(f"the JSON is nested more than {limit} deep")

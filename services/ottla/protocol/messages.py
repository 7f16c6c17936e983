"""Kafka's messages as objects: kio's schema classes, loaded one (API, version) at a time on first use.

All of kio takes 0.7 s to import and a broker needs a few versions of a few APIs, so nothing of it is imported before
a request asks for it. Produce and Fetch do not come this way: they are read and written by hand.
"""

from __future__ import annotations

import functools
import importlib
import struct
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any, Final

from ottla.errors import InvalidRequest
from ottla.protocol.api import ApiKey, response_header_size
from ottla.protocol.schema_fields import schema_fields
from ottla.protocol.schema_reader import message_reader
from ottla.protocol.schema_writer import Writer, struct_writer

_SIZE_AND_CORRELATION: Final = struct.Struct(">ii")


@functools.cache
def request_reader(api_key: int, version: int) -> Callable[[memoryview], Any]:
    """The function that reads the body of a request: a view of exactly what follows the request header.

    The function raises InvalidRequest when the body is cut short or contradicts itself; nothing else, whatever the bytes
    are. What follows the message is passed over, as Kafka does: librdkafka's Metadata request for all topics, v9 and
    later, has three bytes too many.

    Raises:
        LookupError: Kafka has no such API or version.
    """
    key = ApiKey(api_key)
    read = message_reader(_message(key, version, "request"))
    name = f"{key.api_name} v{version}"

    def read_request(body: memoryview) -> Any:
        try:
            return read(body, 0)[0]
        except (struct.error, IndexError) as error:
            raise InvalidRequest(f"{name}: the body of {len(body)} bytes ends inside a field") from error
        except InvalidRequest as error:
            raise InvalidRequest(f"{name}: {error}") from error

    return read_request


class ResponseSchema:
    """Builds the response of one (API, version), and the structs within it, from plain values.

    `schema("CreatableTopicResult", name="a", error_code=0, …)`: a field that this version lacks is dropped, so that a
    handler is written once for all versions. A struct that this version lacks is None. Error codes, spans and
    times (both in milliseconds) are given as ints, arrays as any sequence.
    """

    __slots__ = ("_builders", "_module", "version")

    def __init__(self, module: ModuleType, version: int) -> None:
        self.version = version
        self._module = module
        self._builders: dict[str, Callable[[dict[str, Any]], Any]] = {}

    def __call__(self, class_name: str, /, **fields: Any) -> Any:
        builder = self._builders.get(class_name)
        if builder is None:
            builder = self._builders[class_name] = _builder(getattr(self._module, class_name, None))
        return builder(fields)


@functools.cache
def response_schema(api_key: int, version: int) -> ResponseSchema:
    """The builder of responses to this version of the API."""
    return ResponseSchema(sys.modules[_message(ApiKey(api_key), version, "response").__module__], version)


def encode_response(api_key: int, version: int, correlation_id: int, response: Any) -> bytes:
    """The framed response: length, the header that this version has, body."""
    write, header_size = _response_writer(api_key, version)
    out = bytearray(4 + header_size)
    write(out, response)
    _SIZE_AND_CORRELATION.pack_into(out, 0, len(out) - 4, correlation_id)
    return bytes(out)


@functools.cache
def _response_writer(api_key: int, version: int) -> tuple[Writer, int]:
    key = ApiKey(api_key)
    return struct_writer(_message(key, version, "response")), response_header_size(key, version)


def _message(key: ApiKey, version: int, direction: str) -> Any:
    name = f"kio.schema.{key.name.lower()}.v{version}.{direction}"
    try:
        module = _import_without_hypothesis(name)
    except ModuleNotFoundError as error:
        raise LookupError(f"{key.api_name} has no version {version}") from error
    return getattr(module, f"{key.api_name}{direction.capitalize()}")


def _import_without_hypothesis(name: str) -> ModuleType:
    """Imports a module of kio, which would import hypothesis when that is installed: 200 ms that only tests of kio need."""
    if "hypothesis" in sys.modules:
        return importlib.import_module(name)
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # the documented way to make an import fail
    try:
        return importlib.import_module(name)
    finally:
        del sys.modules["hypothesis"]


def _builder(schema: Any) -> Callable[[dict[str, Any]], Any]:
    if schema is None:
        return lambda fields: None
    known: dict[str, Callable[[Any], Any]] = {}
    for field in schema_fields(schema):
        if field.is_array:
            known[field.name] = _as_tuple
        elif field.wire_type == "error_code":
            known[field.name] = _error_code
        elif field.wire_type.startswith("timedelta"):
            known[field.name] = _milliseconds
        elif field.wire_type == "datetime_i64":
            known[field.name] = _timestamp
        else:
            known[field.name] = _as_it_is
    return lambda fields: schema(**{name: known[name](value) for name, value in fields.items() if name in known})


def _as_it_is(value: Any) -> Any:
    return value


def _as_tuple(values: Any) -> Any:
    return None if values is None else tuple(values)


def _milliseconds(value: Any) -> Any:
    return value if isinstance(value, timedelta) else timedelta(milliseconds=value)


def _timestamp(value: Any) -> Any:
    return None if value == -1 else datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=value)


def _error_code(value: int) -> Any:
    from kio.schema.errors import ErrorCode

    return ErrorCode(value)

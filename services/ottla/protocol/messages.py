"""Kafka's messages as objects: kio's schema classes, loaded one (API, version) at a time on first use.

A broker reads requests (`request_reader`) and writes responses (`response_schema`, `encode_response`); a client does the
reverse by a `Message`. All of kio takes 0.7 s to import and a broker needs a few versions of a few APIs, so nothing of it is
imported before a request asks for it. Produce and Fetch do not come this way where speed counts: they are read and written by hand.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import struct
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any, Final

from ottla.errors import InvalidRequest
from ottla.protocol.api import ApiKey, is_flexible, max_elements, response_header_size
from ottla.protocol.fetch_client import MalformedResponse
from ottla.protocol.primitives import REQUEST_HEADER, skip_tagged_fields
from ottla.protocol.schemas import Writer, message_reader, schema_fields, struct_writer

# Letters of an error's message, which may have what a client sent in it; older versions have 16 bits for its length.
MAX_MESSAGE: Final = 1_000

# Elements of an answer that a client of ours reads: of every partition of a cluster, several.
MAX_ANSWERED: Final = 1_000_000

# A version that kio does not have, and the one whose response is the same.
_SAME_RESPONSE: Final = {(ApiKey.OFFSET_COMMIT, 1): 2}

_Builder = Callable[[dict[str, Any]], Any]
_SIZE = _CORRELATION = struct.Struct(">i")
_SIZE_AND_CORRELATION: Final = struct.Struct(">ii")
_PHANTOM: Final = "kio.static._phantom"


@functools.cache
def request_reader(api_key: int, version: int, read_as: int | None = None) -> Callable[[memoryview], Any]:
    """The function that reads the body of a request: a view of exactly what follows the request header.

    The function raises InvalidRequest when the body is cut short or contradicts itself; nothing else, whatever the bytes
    are. What follows the message is skipped, as Kafka does: librdkafka's Metadata request for all topics, v9 and
    later, has three bytes too many.

    Args:
        api_key: which API.
        version: of the body.
        read_as: a later version, whose class the request is read into, so that what handles it has one class for all versions;
            see `schemas.message_reader`.

    Raises:
        LookupError: Kafka has no such API or version.
    """
    key = ApiKey(api_key)
    result = _message(key, version if read_as is None else read_as, "request")
    read = message_reader(_message(key, version, "request"), max_elements(key), result)
    name = f"{key.api_name} v{version}"

    def read_request(body: memoryview) -> Any:
        try:
            return read(body, 0)[0]
        except (struct.error, IndexError) as error:
            raise InvalidRequest(f"{name}: the body of {len(body)} bytes ends inside a field") from error
        except InvalidRequest as error:
            raise InvalidRequest(f"{name}: {error}") from error

    return read_request


class MessageSchema:
    """Builds the request or response of one (API, version), and the structs within it, from plain values.

    `schema("CreatableTopicResult", name="a", error_code=0, …)`: a field that is not in this version is dropped, so that a
    handler, or a client, is written once for all versions. A struct that is not in this version is None. Error codes, spans and
    times (both in milliseconds) are given as ints, arrays as any sequence.
    """

    __slots__ = ("_builders", "_module")

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._builders: dict[str, _Builder] = {}

    def __call__(self, class_name: str, /, **fields: Any) -> Any:
        builder = self._builders.get(class_name)
        if builder is None:
            builder = self._builders[class_name] = _builder(getattr(self._module, class_name, None))
        return builder(fields)


@functools.cache
def response_schema(api_key: int, version: int) -> MessageSchema:
    return MessageSchema(sys.modules[_message(ApiKey(api_key), version, "response").__module__])


def encode_response(api_key: int, version: int, correlation_id: int, response: Any) -> bytes:
    """The framed response: length, the header that this version has, body."""
    write, header_size = _response_writer(api_key, version)
    out = bytearray(4 + header_size)
    write(out, response)
    _SIZE_AND_CORRELATION.pack_into(out, 0, len(out) - 4, correlation_id)
    return bytes(out)


def has_more_elements_than(count: int, response: Any) -> bool:
    """Whether all the arrays of a response have more than so many elements together; looks no further than needed."""
    found = 0
    structs = [response]
    for looked_into in structs:  # which grows
        for name, is_array in _looked_into(looked_into.__class__):
            value = getattr(looked_into, name)
            if not value:
                continue
            if not is_array:
                structs.append(value)
                continue
            found += len(value)
            if found > count:
                return True
            if _looked_into(value[0].__class__):
                structs.extend(value)
    return False


@functools.cache
def _looked_into(schema: Any) -> tuple[tuple[str, bool], ...]:
    """The fields of a kio class that are arrays or structs, and whether each is an array; none of what is no such class."""
    if not is_dataclass(schema):
        return ()
    return tuple((field.name, field.is_array) for field in schema_fields(schema) if field.is_array or field.struct)


@functools.cache
def _response_writer(api_key: int, version: int) -> tuple[Writer, int]:
    key = ApiKey(api_key)
    return struct_writer(_message(key, version, "response")), response_header_size(key, version)


class Message:
    """One version of one API as a client has it: builds and writes requests, reads responses. `message` gives it.

    `request` is kio's module of the request's classes; `build` makes the same objects from plain values, without what this
    version does not have, which is for callers that speak several versions.
    """

    __slots__ = ("_header_size", "_is_flexible", "_read", "_write", "build", "key", "request", "version")

    def __init__(self, key: ApiKey, version: int) -> None:
        request = _message(key, version, "request")
        self.key: Final = key
        self.version: Final = version
        self.request: Final[Any] = sys.modules[request.__module__]
        self.build: Final = MessageSchema(self.request)
        self._write = struct_writer(request)
        self._read = message_reader(_message(key, version, "response"), MAX_ANSWERED)
        self._is_flexible = is_flexible(key, version)
        self._header_size = response_header_size(key, version)

    def encode(self, correlation_id: int, client_id: bytes, body: Any) -> bytes:
        """The request's frame, with its size in front.

        Args:
            body: the request, an object of `request` or made by `build`.
        """
        out = bytearray(4)
        out += REQUEST_HEADER.pack(self.key, self.version, correlation_id, len(client_id)) + client_id
        if self._is_flexible:
            out.append(0)  # no tagged fields
        self._write(out, body)
        _SIZE.pack_into(out, 0, len(out) - 4)
        return bytes(out)

    def decode(self, frame: bytes | bytearray | memoryview, correlation_id: int) -> Any:
        """What a frame without its size says. Nothing in it refers to the frame.

        Raises:
            MalformedResponse: it answers another request, is cut short, contradicts itself, or continues behind its end.
        """
        view = memoryview(frame)
        name = f"{self.key.api_name} v{self.version}"
        try:
            answered = _CORRELATION.unpack_from(view)[0]
            if answered != correlation_id:
                raise MalformedResponse(f"{name}: the answer to request {answered} came, {correlation_id} was sent")
            response, position = self._read(view, skip_tagged_fields(view, 4, len(view)) if self._header_size > 4 else 4)
        except (struct.error, IndexError) as error:
            raise MalformedResponse(f"{name}: an answer of {len(view)} bytes ends inside a field") from error
        except InvalidRequest as error:
            raise MalformedResponse(f"{name}: {error}") from error
        if position != len(view):
            raise MalformedResponse(f"{name}: {len(view) - position} bytes follow an answer of {position} bytes")
        return response


@functools.cache
def message(key: ApiKey, version: int) -> Message:
    """A client's view of this version of the API.

    Raises:
        LookupError: Kafka has no such version.
    """
    return Message(key, version)


def _message(key: ApiKey, version: int, direction: str) -> Any:
    known = _SAME_RESPONSE.get((key, version), version) if direction == "response" else version
    name = f"kio.schema.{key.name.lower()}.v{known}.{direction}"
    try:
        _load_phantom()
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise LookupError(f"{key.api_name} has no version {version}") from error
    return getattr(module, f"{key.api_name}{direction.capitalize()}")


def _load_phantom() -> None:
    """Loads the module of kio that imports hypothesis where that is installed, without it: 200 ms that only tests of kio need.

    By an `__import__` of its own: no other thread, which may import hypothesis just now, sees anything of it.
    """
    if _PHANTOM in sys.modules or "hypothesis" in sys.modules:
        return
    spec = importlib.util.find_spec(_PHANTOM)
    if spec is None or spec.loader is None:
        return  # it is kio's own: another release may have it elsewhere
    module = importlib.util.module_from_spec(spec)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import_but_hypothesis}
    spec.loader.exec_module(module)
    sys.modules.setdefault(_PHANTOM, module)


def _import_but_hypothesis(name: str, *arguments: Any, **keywords: Any) -> Any:
    if name.partition(".")[0] == "hypothesis":
        raise ImportError(f"{name} is not wanted here")
    return builtins.__import__(name, *arguments, **keywords)


def _builder(schema: Any) -> _Builder:
    if schema is None:
        return lambda fields: None
    known: dict[str, Callable[[Any], Any]] = {}
    for field in schema_fields(schema):
        if field.is_array:
            known[field.name] = _as_tuple
        elif field.name == "error_message":
            known[field.name] = _shortened
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


def _shortened(message: str | None) -> str | None:
    return message if message is None or len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"


def _as_tuple(values: Any) -> Any:
    return None if values is None else tuple(values)


def _milliseconds(value: Any) -> Any:
    return value if isinstance(value, timedelta) else timedelta(milliseconds=value)


def _timestamp(value: Any) -> Any:
    return None if value == -1 else datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=value)


def _error_code(value: int) -> Any:
    from kio.schema.errors import ErrorCode

    return ErrorCode(value)

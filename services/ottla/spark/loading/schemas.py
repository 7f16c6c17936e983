"""Schemas by their ids, from a registry that speaks Confluent's API: Avro, JSON Schema and Protobuf.

Each id is asked for once, and at most `CACHED` are remembered. An id that the registry does not know, or whose schema has no columns, is an
answer, with its reason; a registry that does not answer is an error, after `timeout_seconds` and with its address.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Literal, Protocol, get_args
from urllib.parse import quote, urlsplit

from ottla.errors import ConfigurationError, OttlaError, reason_of
from ottla.network.registry_http import ask_registry, without_user_info
from ottla.record.columnar import ByteColumn
from ottla.spark.loading.avro import Flags, Group, SchemaUnusable, read_schema
from ottla.spark.loading.json_values import read_json_schema
from ottla.spark.loading.protobuf_values import read_protobuf_schema

CACHED: Final = 1000
_ANSWER_BYTES: Final = 16 * 1024 * 1024
_REFERENCES: Final = 200
_COMPILED: Final = "format=serialized"  # Protobuf as a descriptor in base64
_UNKNOWN: Final = frozenset({40403, 40401, 40402})  # of an id, a subject, a version

OnSchemaChange = Literal["fail", "merge", "new"]


class RegistryUnavailable(OttlaError):
    """No registry answers, or with what is no answer."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How values become columns.

    Attributes:
        registry: `http://host:port`; several with commas between them are tried one after the other.
        user: `name:password`.
        on_schema_change: what a column does that the table does not have, or has with another type. fail: ends the load. merge: a new
            column is added, another type ends the load. new: a column with another type is added under a name of its own too.
    """

    registry: str
    user: str | None = field(default=None, repr=False)
    on_schema_change: OnSchemaChange = "fail"
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        for url in self.urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ConfigurationError(f"a registry is http://host:port, and {url!r} is not")
        if self.on_schema_change not in get_args(OnSchemaChange):
            raise ConfigurationError(f"onSchemaChange is fail, merge or new, and not {self.on_schema_change!r}")

    @property
    def urls(self) -> list[str]:
        return [url.strip().rstrip("/") for url in self.registry.split(",")]


class Schema(Protocol):
    """What values of a schema become."""

    def decode(self, values: ByteColumn, skip: int) -> tuple[list[Group], Flags]:
        """The columns of records, and which are damaged; see `avro.AvroType.decode`."""
        ...


class Schemas:
    """What is known of ids. For one thread."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self._known: dict[int, Schema | str] = {}

    def get(self, schema_id: int) -> Schema | str:
        """The schema, or a sentence that says why there is none.

        Raises:
            RegistryUnavailable
        """
        if schema_id not in self._known:
            if len(self._known) >= CACHED:
                del self._known[next(iter(self._known))]
            self._known[schema_id] = self._fetch(schema_id)
        return self._known[schema_id]

    def _fetch(self, schema_id: int) -> Schema | str:
        path = f"/schemas/ids/{schema_id}"
        found = self._ask(path)
        if found is None:
            return f"the registry does not know schema {schema_id}"
        kind = found.get("schemaType") or "AVRO"
        try:
            if kind == "AVRO":
                return read_schema(found["schema"], list(self._referenced(found, {}).values()))
            if kind == "JSON":
                return read_json_schema(found["schema"], self._referenced(found, {}))
            if kind == "PROTOBUF":
                compiled = self._ask(f"{path}?{_COMPILED}") or found
                return read_protobuf_schema(compiled["schema"], self._referenced(found, {}, f"&{_COMPILED}"))
        except SchemaUnusable as error:
            return f"schema {schema_id}: {error}"
        return f"schema {schema_id} is {kind}, which is not decoded"

    def _referenced(self, found: dict[str, Any], texts: dict[str, str], form: str = "") -> dict[str, str]:
        """The schemas that one refers to by the names that it has for them, those first that others refer to."""
        for reference in found.get("references") or ():
            name, subject, version = reference["name"], str(reference["subject"]), int(reference["version"])
            if name in texts:
                continue
            # Softly deleted, it is still what the schema refers to, as that one has its id still.
            other = self._ask(f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true{form}")
            if other is None:
                raise SchemaUnusable(f"the registry does not have {subject}, version {version}, which it refers to")
            if len(texts) >= _REFERENCES:
                raise SchemaUnusable(f"it refers to more than {_REFERENCES} schemas")
            self._referenced(other, texts, form)
            texts[name] = other["schema"]
        return texts

    def _ask(self, path: str) -> dict[str, Any] | None:
        failures = []
        for url in self._decoding.urls:
            try:
                return self._ask_one(url, path)
            except (OSError, ValueError) as error:
                failures.append(f"{without_user_info(url)}: {reason_of(error)}")
        raise RegistryUnavailable(f"no schema registry answers: {'; '.join(failures)}")

    def _ask_one(self, url: str, path: str) -> dict[str, Any] | None:
        decoding = self._decoding
        answer = ask_registry(url, path, user_info=decoding.user, timeout_seconds=decoding.timeout_seconds, most_bytes=_ANSWER_BYTES)
        try:
            said = json.loads(answer.body)
        except ValueError:
            said = None
        if answer.status == HTTPStatus.OK and isinstance(said, dict) and isinstance(said.get("schema"), str):
            return said
        if answer.status == HTTPStatus.NOT_FOUND and isinstance(said, dict) and said.get("error_code") in _UNKNOWN:
            return None
        raise ValueError(f"it answers {answer.status} {answer.reason} to {path}, and no schema")

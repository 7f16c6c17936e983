"""The records of `_schemas`, in Confluent's bytes.

    {"keytype":"SCHEMA","subject":"s","version":1,"magic":1}  {"subject":"s","version":1,"id":7,"schema":"\\"int\\"","deleted":false}
    {"keytype":"CONFIG","subject":"s","magic":0}              {"subject":"s","compatibilityLevel":"FULL"}
    {"keytype":"MODE","magic":0}                              {"mode":"IMPORT"}
    {"keytype":"CONTEXT","tenant":"default","context":".c","magic":0}  {"tenant":"default","context":".c"}
    {"keytype":"DELETE_SUBJECT","subject":"s","magic":0}      {"subject":"s","version":2}: all versions up to that one, softly
    {"keytype":"CLEAR_SUBJECT","subject":":.c:","magic":0}    {"subject":":.c:"}: what is softly deleted in there is gone
    {"keytype":"NOOP","magic":0}                              nothing

A key is compared byte by byte when the topic is compacted, so fields stand in Confluent's order and without blanks. A null as value
removes what the key stands for. The top scope has no subject in its key; keys of older releases have a null there and are read too.

Source: `SchemaKey.java` and the classes beside it in confluentinc/schema-registry.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ottla.errors import OttlaError
from ottla.schema_registry.formats import CompatibilityLevel
from ottla.schema_registry.state import names
from ottla.schema_registry.state.schemas import (
    AVRO,
    CONFIG_FIELDS,
    MODES,
    Json,
    Schema,
    Version,
    config_of,
    metadata_of,
    references_of,
    rule_set_of,
)

HIGHEST_ID: Final = 2**31 - 1
TENANT: Final = "default"
_MAGIC: Final = {"SCHEMA": (0, 1)}  # others: 0


class UnreadableRecord(OttlaError):
    """A record of the topic is not one that a registry writes; it says why."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as bytes; no value is a tombstone.

    Attributes:
        known: the version that `decode` makes of it again, but for the timestamp, where that is known.
    """

    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    known: Version | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PutVersion:
    """A version of a subject is there, or is softly deleted, or not any more.

    Attributes:
        is_new: whether all of it came with a request. A record may bring a fingerprint of its own, which is not written again.
    """

    version: Version
    is_new: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class RemoveVersion:
    """A version of a subject is gone for good."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class PutConfig:
    """The config of a scope; None: it has none."""

    scope: str
    config: Json | None


@dataclass(frozen=True, slots=True)
class PutMode:
    """The mode of a scope; None: it has none."""

    scope: str
    mode: str | None


@dataclass(frozen=True, slots=True)
class PutContext:
    """A context is there, or is gone."""

    context: str
    is_there: bool


@dataclass(frozen=True, slots=True)
class DeleteSubject:
    """The versions of a subject up to one are softly deleted."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class ClearSubjects:
    """What is softly deleted in a scope is gone for good."""

    scope: str


@dataclass(frozen=True, slots=True)
class Noop:
    """Nothing; it is written so that someone can see it arrive."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A record of something that this registry does not have (associations), or the tombstone of a marker."""

    key: bytes


Change: TypeAlias = PutVersion | RemoveVersion | PutConfig | PutMode | PutContext | DeleteSubject | ClearSubjects | Noop | Ignored

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_DECODER: Final = json.JSONDecoder()
NOOP_KEY: Final = b'{"keytype":"NOOP","magic":0}'
SCHEMA_KEY_BEGIN: Final = b'{"keytype":"SCHEMA",'


def _dumped(value: Json) -> bytes:
    return _ENCODER.encode(value).encode()


def _quoted(text: str) -> str:
    return _ENCODER.encode(text)  # a text alone costs a fifth of an object with it


def encode(change: Change) -> Record:
    """A change as a record.

    Raises:
        AssertionError: of what is only read.
    """
    match change:
        case PutVersion(version, is_new):
            known = version if is_new else None
            return Record(_schema_key(version.subject, version.version), _schema_value(version), known=known)
        case RemoveVersion(subject, number):
            return Record(_schema_key(subject, number), None)
        case PutConfig(scope, config):
            return Record(_scope_key("CONFIG", scope), None if config is None else _dumped(_scoped(scope) | dict(config)))
        case PutMode(scope, mode):
            return Record(_scope_key("MODE", scope), None if mode is None else _dumped(_scoped(scope) | {"mode": mode}))
        case PutContext(context, is_there):
            value = {"tenant": TENANT, "context": context}
            return Record(_dumped({"keytype": "CONTEXT", **value, "magic": 0}), _dumped(value) if is_there else None)
        case DeleteSubject(subject, number):
            return Record(_scope_key("DELETE_SUBJECT", subject), _dumped({"subject": subject, "version": number}))
        case ClearSubjects(scope):
            return Record(_scope_key("CLEAR_SUBJECT", scope), _dumped(_scoped(scope)))
        case Noop():
            return Record(NOOP_KEY, None)
    raise AssertionError(change)


def key_of(change: Change) -> bytes | None:
    """The key that a change of a version, config or mode is written with; None of any other."""
    match change:
        case PutVersion(Version(subject, number)) | RemoveVersion(subject, number):
            return _schema_key(subject, number)
        case PutConfig(scope):
            return _scope_key("CONFIG", scope)
        case PutMode(scope):
            return _scope_key("MODE", scope)
    return None


def _schema_key(subject: str, version: int) -> bytes:
    return f'{{"keytype":"SCHEMA","subject":{_quoted(subject)},"version":{version},"magic":1}}'.encode()


def _scope_key(keytype: str, scope: str) -> bytes:
    return _dumped({"keytype": keytype, **_scoped(scope), "magic": 0})


def _scoped(scope: str) -> dict[str, Any]:
    return {} if scope == names.TOP else {"subject": scope}


def _schema_value(version: Version) -> bytes:
    schema = version.schema
    more: dict[str, Any] = {}
    if schema.schema_type != AVRO:  # as in 7.x: a schema without a type is Avro
        more["schemaType"] = schema.schema_type
    if schema.references:
        more["references"] = [reference.as_json() for reference in schema.references]
    if schema.metadata is not None:
        more["metadata"] = schema.metadata
    if schema.rule_set is not None:
        more["ruleSet"] = schema.rule_set
    members = f"{_ENCODER.encode(more)[1:-1]}," if more else ""
    where = f'"subject":{_quoted(version.subject)},"version":{version.version},"id":{version.id}'
    return f'{{{where},{members}"schema":{_quoted(schema.text)},"deleted":{"true" if version.is_deleted else "false"}}}'.encode()


def decode(key: bytes | None, value: bytes | None, timestamp_ms: int) -> Change:
    """What a record says.

    Raises:
        UnreadableRecord: nothing that could be understood.
    """
    try:
        fields = _object(key)
        return _decoded(fields, key or b"", value, timestamp_ms)
    except Exception as error:  # anyone may have written it: nesting, numbers and types of all kinds
        raise UnreadableRecord(f"key {(key or b'')[:200]!r}: {error!r}") from error


def decode_version(value: bytes, timestamp_ms: int) -> Version:
    """The version of a record that `encode` has made, by its value alone.

    Raises:
        ValueError, KeyError, TypeError: `encode` has not.
    """
    fields = _object(value)
    return _version_of(fields["subject"], fields["version"], fields, timestamp_ms)


def _object(text: bytes | None) -> Json:
    found = _DECODER.decode((text or b"").decode())
    if not isinstance(found, dict):
        raise ValueError("not an object")
    if text is not None and (b"\\ud" in text or b"\\uD" in text):
        _dumped(found)  # half of a surrogate pair could not be written again
    return found


def _decoded(key: Json, key_bytes: bytes, value: bytes | None, timestamp_ms: int) -> Change:
    keytype = key["keytype"]
    if key["magic"] not in _MAGIC.get(keytype, (0,)):
        raise ValueError(f"magic {key['magic']}")
    if keytype == "NOOP":
        return Noop()
    scope = key.get("subject") or names.TOP
    if not isinstance(scope, str):
        raise ValueError(f"subject {scope!r}")
    match keytype:
        case "SCHEMA":
            subject, version = str(key["subject"]), int(key["version"])
            return (
                RemoveVersion(subject, version)
                if value is None
                else PutVersion(_version_of(subject, version, _object(value), timestamp_ms))
            )
        case "CONFIG":
            return PutConfig(scope, None if value is None else _config_of(_object(value)))
        case "MODE":
            mode = None if value is None else _object(value)["mode"]
            if mode is not None and mode not in MODES:
                raise ValueError(f"mode {mode!r}")
            return PutMode(scope, mode)
        case "CONTEXT":
            return PutContext(str(key["context"]), value is not None)
    if value is not None and keytype == "DELETE_SUBJECT":
        return DeleteSubject(str(key["subject"]), int(_object(value)["version"]))
    if value is not None and keytype == "CLEAR_SUBJECT":
        return ClearSubjects(scope)
    if keytype in ("ASSOC", "DELETE_SUBJECT", "CLEAR_SUBJECT"):
        return Ignored(key_bytes)
    raise ValueError(f"keytype {keytype!r}")


def _config_of(value: Json) -> Json:
    config = config_of(value, is_new=False)
    if config.get("compatibilityLevel") not in (None, *CompatibilityLevel):
        raise ValueError(f"compatibilityLevel {config['compatibilityLevel']!r}")
    return {field: config[field] for field in CONFIG_FIELDS if config.get(field) is not None}


def _version_of(subject: str, number: int, value: Json, timestamp_ms: int) -> Version:
    fingerprint = value.get("md5")
    schema = Schema.of(
        str(value.get("schemaType") or AVRO),
        str(value["schema"]),
        references_of(value.get("references")),
        metadata_of(value.get("metadata")),
        rule_set_of(value.get("ruleSet"), is_new=False),
        base64.b64decode(fingerprint) if fingerprint else None,
    )
    schema_id = int(value["id"])
    if not 0 <= schema_id <= HIGHEST_ID or not 0 <= number <= HIGHEST_ID:
        raise ValueError(f"version {number} with id {schema_id}")
    return Version(subject, number, schema_id, schema, bool(value.get("deleted")), timestamp_ms)

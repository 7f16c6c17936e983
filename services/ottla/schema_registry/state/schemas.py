"""The data of the registry: schemas, their versions under subjects, metadata, rule sets and configs.

Metadata, rule sets and configs are JSON as it is read and written, brought into one form when it comes in (`metadata_of`,
`rule_set_of`, `config_of`) and never altered after that.

A schema's identity is Confluent's guid: MD5 over its text, references, metadata and rule set. It is no safeguard against an attacker.
Source: `Schema.java`, `MD5.java`, `Metadata.java`, `RuleSet.java`, `Rule.java` in confluentinc/schema-registry.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ottla.schema_registry.state.errors import InvalidRuleSet, MalformedRequest

# A JSON object in its one form, not to be altered.
Json: TypeAlias = Mapping[str, Any]

AVRO: Final = "AVRO"
READWRITE, READONLY, READONLY_OVERRIDE, IMPORT, FORWARD = "READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD"
MODES: Final = (READWRITE, READONLY, READONLY_OVERRIDE, IMPORT, FORWARD)
CONFLUENT_VERSION: Final = "confluent:version"

_RULE_NAME: Final = re.compile(r"[^\W\d][\w-]{0,255}\Z")
_RULE_FIELDS: Final = ("name", "doc", "kind", "mode", "type", "tags", "params", "expr", "onSuccess", "onFailure", "disabled")
_RULE_LISTS: Final = ("migrationRules", "domainRules", "encodingRules")
_MIGRATION_MODES: Final = ("UPGRADE", "DOWNGRADE", "UPDOWN")
_DOMAIN_MODES: Final = ("WRITE", "READ", "WRITEREAD")
_MODES_WITH_TWO_ACTIONS: Final = ("UPDOWN", "WRITEREAD")
_RULE_KINDS: Final = ("TRANSFORM", "CONDITION")
_RULE_DEFAULTS: Final = {"kind": "TRANSFORM", "mode": "WRITEREAD"}  # part of the guid
_INT32: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """That a schema uses another one, under a name of its own."""

    name: str
    subject: str
    version: int

    def as_json(self) -> Json:
        """As the topic and the API have it."""
        return {"name": self.name, "subject": self.subject, "version": self.version}


@dataclass(frozen=True, slots=True)
class Schema:
    """What an id stands for.

    Attributes:
        schema_type: AVRO, JSON or PROTOBUF.
        text: the schema in its canonical form.
        fingerprint: MD5 of everything but the type.
    """

    schema_type: str
    text: str
    references: tuple[Reference, ...]
    metadata: Json | None
    rule_set: Json | None
    fingerprint: bytes

    @classmethod
    def of(
        cls,
        schema_type: str,
        text: str,
        references: Sequence[Reference] = (),
        metadata: Json | None = None,
        rule_set: Json | None = None,
        fingerprint: bytes | None = None,
    ) -> Schema:
        """With its fingerprint, unless a record brings one (of metadata that is encrypted there)."""
        references = tuple(references)
        return cls(schema_type, text, references, metadata, rule_set, fingerprint or fingerprint_of(text, references, metadata, rule_set))

    @property
    def guid(self) -> str:
        """The fingerprint as Confluent shows it."""
        digits = self.fingerprint.hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    @property
    def identity(self) -> tuple[str, bytes]:
        """Two schemas of one context that have the same are one schema and have one id."""
        return self.schema_type, self.fingerprint

    def is_same_definition(self, other: Schema) -> bool:
        """Whether type, text and references are the same, whatever metadata and rules are."""
        return (self.text, self.schema_type, self.references) == (other.text, other.schema_type, other.references)


@dataclass(frozen=True, slots=True)
class Version:
    """A schema under a subject: one record of the topic.

    Attributes:
        is_deleted: softly; it can still be read by id.
        timestamp_ms: of the record.
    """

    subject: str
    version: int
    id: int
    schema: Schema
    is_deleted: bool
    timestamp_ms: int


def fingerprint_of(text: str, references: Sequence[Reference], metadata: Json | None, rule_set: Json | None) -> bytes:
    """Confluent's MD5 of a schema; nothing separates the parts, as there."""
    digest = hashlib.md5(text.encode(), usedforsecurity=False)
    for reference in references:
        digest.update(reference.name.encode() + reference.subject.encode() + _INT32.pack(reference.version))
    for part, pieces in ((metadata, _pieces_of_metadata), (rule_set, _pieces_of_rule_set)):
        if part is not None:
            digest.update(b"\x01")
            for piece in pieces(part):
                digest.update(piece.encode())
    return digest.digest()


def _pieces_of_metadata(metadata: Json) -> Iterator[str]:
    for key, values in metadata.get("tags", {}).items():
        yield from (key, *values)
    for key, value in metadata.get("properties", {}).items():
        yield from (key, value)
    yield from metadata.get("sensitive", ())


def _pieces_of_rule_set(rule_set: Json) -> Iterator[str]:
    for rules in _RULE_LISTS:
        for rule in rule_set.get(rules, ()):
            yield from (rule[field] for field in ("name", "doc", "kind", "mode", "type") if field in rule)
            yield from rule.get("tags", ())
            for key, value in rule.get("params", {}).items():
                yield from (key, value)
            yield from (rule[field] for field in ("expr", "onSuccess", "onFailure") if field in rule)
            if rule.get("disabled"):
                yield "\x01"
    if "enableAt" in rule_set:
        yield rule_set["enableAt"]


def references_of(value: object) -> tuple[Reference, ...]:
    """References as a body or a record has them.

    Raises:
        MalformedRequest: they are not.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise MalformedRequest("references is not a list")
    found = []
    for reference in value:
        match reference:
            case {"name": str(name), "subject": str(subject), "version": version}:
                number = integer_of(version, "a reference's version", at_least=-1)
                found.append(Reference(_whole(name, "a reference's name"), _whole(subject, "a reference's subject"), number))
            case _:
                raise MalformedRequest("a reference is an object of name, subject and version")
    return tuple(found)


def metadata_of(value: object) -> Json | None:
    """Metadata in its one form: tags, properties and what is sensitive, each sorted, and nothing that is empty.

    Raises:
        MalformedRequest: it is not metadata.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise MalformedRequest("metadata is not an object")
    tags, properties, sensitive = value.get("tags") or {}, value.get("properties") or {}, value.get("sensitive") or []
    if not (isinstance(tags, dict) and isinstance(properties, dict) and isinstance(sensitive, list)):
        raise MalformedRequest("metadata has tags and properties, which are objects, and sensitive, which is a list")
    found = {
        "tags": {_whole(key, "metadata.tags"): _sorted_texts(tags[key], "metadata.tags") for key in sorted(tags)},
        "properties": {_whole(key, "metadata.properties"): _text(properties[key], "metadata.properties") for key in sorted(properties)},
        "sensitive": _sorted_texts(sensitive, "metadata.sensitive"),
    }
    return {key: part for key, part in found.items() if part}


def rule_set_of(value: object, *, is_new: bool = True) -> Json | None:
    """A rule set in its one form.

    Args:
        is_new: whether rules are checked; those of the topic are taken as they are.

    Raises:
        MalformedRequest: it is no rule set.
        InvalidRuleSet: a rule is not one that could be run.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise MalformedRequest("ruleSet is not an object")
    found: dict[str, Any] = {}
    names: set[str] = set()
    for field in _RULE_LISTS:
        rules = value.get(field) or []
        if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
            raise MalformedRequest(f"ruleSet.{field} is not a list of rules")
        rules = [_rule_of(rule) for rule in rules]
        if is_new:
            for rule in rules:
                _check_rule(rule, field, names)
        if rules:
            found[field] = rules
    if value.get("enableAt"):
        found["enableAt"] = _text(value["enableAt"], "ruleSet.enableAt")
    return found


def _rule_of(rule: Mapping[str, Any]) -> Json:
    found: dict[str, Any] = {}
    for field in _RULE_FIELDS:
        value = rule.get(field)
        value = _RULE_DEFAULTS.get(field) if value is None else value
        if field == "disabled":
            found[field] = value is not None and _flag(value, "a rule's disabled")
        elif value is None or value in ([], {}):
            continue
        elif field == "tags":
            found[field] = _sorted_texts(value, "a rule's tags")
        elif field == "params":
            if not isinstance(value, dict):
                raise MalformedRequest("a rule's params are not an object")
            found[field] = {_whole(key, "a rule's params"): _text(value[key], "a rule's params") for key in sorted(value)}
        else:
            found[field] = _text(value, f"a rule's {field}")
    return found


def _check_rule(rule: Json, field: str, names: set[str]) -> None:
    name = rule.get("name", "")
    if not _RULE_NAME.match(name):
        raise InvalidRuleSet(f"a rule's name has letters, digits, _ and -, begins with no digit and has at most 256 characters: '{name}'")
    if name in names:
        raise InvalidRuleSet(f"Found rule with duplicate name '{name}'")
    names.add(name)
    if "type" not in rule:
        raise InvalidRuleSet(f"rule '{name}': Missing rule type")
    if rule["kind"] not in _RULE_KINDS:
        raise MalformedRequest(f"rule '{name}': kind is one of {', '.join(_RULE_KINDS)}, not {rule['kind'][:40]}")
    mode = rule["mode"]
    allowed = _MIGRATION_MODES if field == "migrationRules" else _DOMAIN_MODES
    if mode not in allowed:
        raise InvalidRuleSet(f"rule '{name}': {field} can only be {', '.join(allowed)}")
    if mode not in _MODES_WITH_TWO_ACTIONS and any("," in rule.get(action, "") for action in ("onSuccess", "onFailure")):
        raise InvalidRuleSet(f"rule '{name}': Multiple actions only valid with WRITEREAD and UPDOWN")


def integer_of(value: object, what: str, *, at_least: int = -(2**31)) -> int:
    """A number; a text is taken for the number in it, as Jackson takes it.

    Raises:
        MalformedRequest: it is none, or not one of 32 bits, or lower.
    """
    number = value
    if isinstance(value, str):
        with suppress(ValueError):
            number = int(value)
    if isinstance(number, bool) or not isinstance(number, int) or not at_least <= number < 2**31:
        raise MalformedRequest(f"{what} is not a number from {at_least} to {2**31 - 1}")
    return number


def _text(value: object, what: str) -> str:
    """A text; a number or a truth value is taken for its text, as Jackson takes it."""
    if isinstance(value, str):
        return _whole(value, what)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    raise MalformedRequest(f"{what}: not a text")


def _whole(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MalformedRequest(f"{what}: half of a surrogate pair stands alone") from None
    return text


def _sorted_texts(value: object, what: str) -> list[str]:
    if not isinstance(value, list):
        raise MalformedRequest(f"{what}: not a list")
    return sorted({_text(text, what) for text in value})


def merged_metadata(older: Json | None, newer: Json | None) -> Json | None:
    """The newer one over the older one, key by key."""
    if older is None or newer is None:
        return older if newer is None else newer
    merged: dict[str, Any] = {}
    for field in ("tags", "properties"):
        part = {**older.get(field, {}), **newer.get(field, {})}
        if part:
            merged[field] = {key: part[key] for key in sorted(part)}
    if sensitive := sorted({*older.get("sensitive", ()), *newer.get("sensitive", ())}):
        merged["sensitive"] = sensitive
    return merged


def with_confluent_version(metadata: Json | None, version: int | None) -> Json | None:
    """The metadata with the property `confluent:version` set, or with none of it."""
    properties = {key: value for key, value in (metadata or {}).get("properties", {}).items() if key != CONFLUENT_VERSION}
    if version is not None:
        properties[CONFLUENT_VERSION] = str(version)
    found: dict[str, Any] = {"properties": {key: properties[key] for key in sorted(properties)}} if properties else {}
    found |= {key: value for key, value in (metadata or {}).items() if key != "properties"}
    return {key: found[key] for key in ("tags", "properties", "sensitive") if key in found} or (None if version is None else {})


def merged_rule_sets(older: Json | None, newer: Json | None) -> Json | None:
    """The rules of both; of the same name the newer one."""
    if older is None or newer is None:
        return older if newer is None else newer
    merged: dict[str, Any] = {}
    for field in _RULE_LISTS:
        replaced = {rule.get("name") for rule in newer.get(field, ())}
        rules = [*(rule for rule in older.get(field, ()) if rule.get("name") not in replaced), *newer.get(field, ())]
        if rules:
            merged[field] = rules
    if enable_at := newer.get("enableAt") or older.get("enableAt"):
        merged["enableAt"] = enable_at
    return merged


def without_rules(rule_set: Json | None, names: Sequence[str]) -> Json | None:
    """The rule set without the rules of these names."""
    if rule_set is None:
        return None
    found: dict[str, Any] = {}
    for field, value in rule_set.items():
        found[field] = [rule for rule in value if rule.get("name") not in names] if field in _RULE_LISTS else value
    return {field: value for field, value in found.items() if value}


def has_rule_of_type(rule_set: Json | None, rule_type: str) -> bool:
    """Whether one of its rules is of that type."""
    return rule_set is not None and any(rule.get("type") == rule_type for field in _RULE_LISTS for rule in rule_set.get(field, ()))


# Configs. In the order of Confluent's record.

_CONFIG_TEXTS: Final = ("alias", "aliasForDeks", "compatibilityGroup")
_CONFIG_FLAGS: Final = ("normalize", "validateFields", "validateNewSchemas", "validateRules")
CONFIG_FIELDS: Final = (
    "alias",
    "aliasForDeks",
    *_CONFIG_FLAGS,
    "compatibilityLevel",
    "compatibilityPolicy",
    "compatibilityGroup",
    "defaultMetadata",
    "overrideMetadata",
    "defaultRuleSet",
    "overrideRuleSet",
)
# These come all from the nearest scope that has a config.
_OF_ONE_SCOPE: Final = ("defaultMetadata", "overrideMetadata", "defaultRuleSet", "overrideRuleSet")


def config_of(value: Mapping[str, Any], *, is_new: bool = True) -> dict[str, Any]:
    """The fields of a config that a body or a record has, in one form; a null stays one, and takes a field away.

    Args:
        is_new: whether rules are checked.

    Raises:
        MalformedRequest: a field is not of its kind.
    """
    found: dict[str, Any] = {}
    for field in CONFIG_FIELDS:
        if field not in value:
            continue
        given = value[field]
        if given is None:
            found[field] = None
        elif field in _CONFIG_FLAGS:
            found[field] = _flag(given, field)
        elif field in _CONFIG_TEXTS:
            found[field] = _text(given, field)
        elif field in ("compatibilityLevel", "compatibilityPolicy"):
            found[field] = _text(given, field).upper()
        elif field.endswith("Metadata"):
            found[field] = metadata_of(given)
        else:
            found[field] = rule_set_of(given, is_new=is_new)
    return found


def _flag(value: object, what: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise MalformedRequest(f"{what}: neither true nor false")


def updated_config(config: Json | None, update: Json) -> Json:
    """A config after an update: what the update names is replaced, or taken away by a null."""
    merged = {**(config or {}), **update}
    return {field: merged[field] for field in CONFIG_FIELDS if merged.get(field) is not None}


def config_in_scope(configs: Sequence[Json]) -> Json:
    """What holds, of the configs of a subject and of wider and wider scopes; an empty one is none.

    Unlike Confluent: a subject with a config that says no compatibility level has that of the next scope, not the server's default.
    """
    nearest = next((config for config in configs if config), {})
    merged = {field: nearest[field] for field in _OF_ONE_SCOPE if field in nearest}
    for index, config in enumerate(configs):
        for field, value in config.items():
            if field not in _OF_ONE_SCOPE and (index == 0 or field not in ("alias", "aliasForDeks")):
                merged.setdefault(field, value)
    return merged

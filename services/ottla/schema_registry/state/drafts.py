"""What is found out about a schema before it is decided on: its canonical text, what it is equal to, why it is incompatible.

The only part of the state that waits, as Protobuf is read in another process. What it finds is good for as long as the subject is as it
was seen; `decisions` compare.

References are followed through the state, depth first, and handed to `formats` as texts: formats know neither subjects nor versions.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ottla.schema_registry.formats import (
    CompatibilityLevel,
    CompatibilityPolicy,
    Formats,
    ParsedSchema,
    SchemaType,
    check_compatibility,
)
from ottla.schema_registry.formats import InvalidSchema as UnreadableSchema
from ottla.schema_registry.formats import SchemaTooLarge as UnreadablyLarge
from ottla.schema_registry.state import names
from ottla.schema_registry.state.decisions import (
    Draft,
    Registration,
    check_register_mode,
    compared_versions,
    drafted,
    existing,
    is_validated,
    missing_reference,
    with_metadata_of,
)
from ottla.schema_registry.state.errors import InvalidSchema, RegistryError, SchemaTooLarge
from ottla.schema_registry.state.replay import State
from ottla.schema_registry.state.schemas import (
    CONFLUENT_VERSION,
    FORWARD,
    IMPORT,
    Json,
    Reference,
    Schema,
    Version,
    with_confluent_version,
)

PARSED_KEPT: Final = 2_000
REFERENCES_DEEP: Final = 100
RESERVED: Final = "confluent:reserved"
_OLD_SCHEMA_CHARACTERS: Final = 10_240


def refused(error: UnreadableSchema) -> RegistryError:
    """What is answered for a schema that cannot be read."""
    return SchemaTooLarge(str(error)) if isinstance(error, UnreadablyLarge) else InvalidSchema(f"Invalid schema, details: {error}")


class Drafts:
    """Reads schemas and keeps those that were read last.

    Args:
        formats: reads them.
        kept: how many parsed schemas are kept.
    """

    def __init__(self, formats: Formats, kept: int = PARSED_KEPT) -> None:
        self._formats = formats
        self._kept = kept
        self._parsed: OrderedDict[tuple[str, str, bytes], ParsedSchema] = OrderedDict()
        self._removals = (0, 0)

    async def parsed(self, state: State, subject: str, schema: Schema) -> ParsedSchema:
        """A schema that stands in the topic.

        Raises:
            InvalidSchema: it cannot be read after all, or what it refers to is gone.
        """
        if self._removals != (id(state), state.removals):  # what a reference means may have changed
            self._removals = id(state), state.removals
            self._parsed.clear()
        key = names.context_of(subject), *schema.identity
        found = self._parsed.get(key)
        if found is None:
            found = await self._parse(state, subject, schema.schema_type, schema.text, schema.references, is_new=False)
            await asyncio.sleep(0)  # of a subject hundreds may be read, and others have their turn in between
            if self._removals != (id(state), state.removals):  # meanwhile
                return found
            self._parsed[key] = found
            while len(self._parsed) > self._kept:
                self._parsed.popitem(last=False)
        else:
            self._parsed.move_to_end(key)
        return found

    async def _parse(
        self,
        state: State,
        subject: str,
        schema_type: str,
        text: str,
        references: Sequence[Reference],
        *,
        is_new: bool,
        normalize: bool = False,
    ) -> ParsedSchema:
        kind = SchemaType.__members__.get(schema_type)
        if kind is None:
            raise InvalidSchema(f"Invalid schema type {schema_type}")
        resolved: dict[str, str] = {}
        _resolve(state, subject, references, resolved, set(), with_deleted=not is_new)
        try:
            return await self._formats.parse(kind, text, resolved, is_new=is_new, normalize=normalize)
        except UnreadableSchema as error:
            raise refused(error) from error

    async def draft(self, state: State, request: Registration) -> Draft:
        """A registration, ready to be decided.

        Raises:
            OperationNotPermitted, InvalidSchema, SchemaTooLarge: it is refused whatever happens meanwhile.
        """
        subject = request.subject
        seen, config = state.versions(subject), state.config_in_scope(subject)
        is_import = state.mode_in_scope(subject) in (IMPORT, FORWARD)
        is_new = is_validated(state, subject, config)
        normalize = not is_import and (request.normalize or bool(config.get("normalize")))
        try:
            first, parsed = await self._first_draft(state, request, seen, config, is_new=is_new, normalize=normalize)
        except InvalidSchema:
            if not (seen and is_new) or _adds_metadata(config):
                raise
            # A producer registers its schema at each start, and one that is there already may be of a time with fewer rules.
            first, parsed = await self._first_draft(state, request, seen, config, is_new=False, normalize=normalize)
            if existing(state, first) is None:
                raise
        if existing(state, first) is not None and not _adds_metadata(config):
            return first  # registered already, whatever the mode is
        check_register_mode(state, request)
        filled = drafted(state, request)
        draft = first
        if filled is not request:
            draft, parsed = await self._first_draft(state, filled, seen, config, is_new=is_new, normalize=normalize)
        if is_import or existing(state, draft) is not None:
            return draft
        assert parsed is not None, "a draft without a text is filled in, or refused"
        messages = await self._messages(state, draft, parsed, [version for version in seen if not version.is_deleted])
        return replace(draft, messages=tuple(messages)) if messages else draft

    async def _first_draft(
        self, state: State, request: Registration, seen: tuple[Version, ...], config: Json, *, is_new: bool, normalize: bool
    ) -> tuple[Draft, ParsedSchema | None]:
        if not (request.text or "").strip():
            return Draft(request, Schema.of(request.schema_type, ""), seen, config), None
        parsed, schema = await self._candidate(state, request, is_new=is_new, normalize=normalize)
        draft = Draft(request, schema, seen, config)
        if existing(state, draft) is None:
            live = [version for version in seen if not version.is_deleted]
            equal = await self._equal(state, request.subject, parsed, schema, live[-1:] if request.version == -1 else live)
            draft = draft if equal is None else replace(draft, equal=equal)
        return draft, parsed

    async def _candidate(
        self, state: State, request: Registration, *, is_new: bool, normalize: bool = False
    ) -> tuple[ParsedSchema, Schema]:
        references = _pinned(state, request.subject, request.references)
        references = tuple(sorted(set(references))) if normalize else references
        text = request.text or ""
        parsed = await self._parse(state, request.subject, request.schema_type, text, references, is_new=is_new, normalize=normalize)
        if not parsed.canonical.strip():  # of Protobuf: nothing but comments. What has it could not be registered again, as by an import
            raise InvalidSchema("Empty schema")
        return parsed, Schema.of(request.schema_type, parsed.canonical, references, request.metadata, request.rule_set)

    async def _equal(self, state: State, subject: str, parsed: ParsedSchema, schema: Schema, versions: Sequence[Version]) -> Version | None:
        """The latest version with an equal schema: in another notation, or with a `confluent:version` that only one of them has."""
        for version in reversed(versions):
            other = version.schema
            if other.schema_type != schema.schema_type or other.rule_set != schema.rule_set:
                continue
            references = _pinned(state, subject, other.references)
            if not _is_same_metadata(version, schema.metadata) or (schema.references and sorted(references) != sorted(schema.references)):
                continue
            known = await self.parsed(state, subject, other)
            if parsed.equivalent(known) if schema.references == references else parsed.canonical == known.formatted("resolved"):
                return version
        return None

    async def found(self, state: State, request: Registration, *, with_deleted: bool) -> Version | None:
        """The version of a subject that has this schema, for a lookup."""
        versions = [version for version in state.versions(request.subject) if with_deleted or not version.is_deleted]
        if not versions:
            return None
        normalize = request.normalize or bool(state.config_in_scope(request.subject).get("normalize"))
        filled = with_metadata_of(state, request, state.latest(request.subject), None)
        for attempt in (request, filled) if filled != request else (request,):
            parsed, schema = await self._candidate(state, attempt, is_new=False, normalize=normalize)
            same = next((version for version in reversed(versions) if version.schema.identity == schema.identity), None)
            found = same or await self._equal(state, request.subject, parsed, schema, versions)
            if found is not None:
                return found
        return None

    async def check(self, state: State, request: Registration, versions: Sequence[Version]) -> list[str]:
        """Why a schema is incompatible with some versions of its subject; empty when it is not.

        Raises:
            InvalidSchema: it cannot be read.
        """
        if not (request.text or "").strip():  # of Protobuf it could be read
            raise InvalidSchema("Empty schema")
        subject, config = request.subject, state.config_in_scope(request.subject)
        normalize = request.normalize or bool(config.get("normalize"))
        is_new = config.get("validateNewSchemas") is not False
        parsed, schema = await self._candidate(state, request, is_new=is_new, normalize=normalize)
        return await self._messages(state, Draft(request, schema, state.versions(subject), config), parsed, versions)

    async def _messages(self, state: State, draft: Draft, new: ParsedSchema, versions: Sequence[Version]) -> list[str]:
        subject, schema, config = draft.request.subject, draft.schema, draft.config
        latest = versions[-1].schema if versions else None
        versions = compared_versions(versions, config, schema.metadata)
        if not versions and not config.get("validateFields"):
            return []
        level = CompatibilityLevel(config["compatibilityLevel"])
        if level is CompatibilityLevel.NONE and not config.get("validateFields"):
            return []
        if not level.transitive:
            versions = versions[-1:]
        former = [await self.parsed(state, subject, version.schema) for version in versions]
        messages = _reserved_fields(new, schema, latest) if config.get("validateFields") else []
        policy = (
            CompatibilityPolicy.LENIENT if config.get("compatibilityPolicy") == CompatibilityPolicy.LENIENT else CompatibilityPolicy.STRICT
        )
        # As at Confluent's: the latest version is asked first, and the first that objects ends the search.
        for old, parsed in zip(reversed(versions), reversed(former), strict=True):
            try:
                reasons = check_compatibility(new, parsed, level, policy)
            except UnreadableSchema as error:
                raise refused(error) from error
            await asyncio.sleep(0)
            if not reasons:
                continue
            messages += [reason.message for reason in reasons]
            messages.append(f"{{oldSchemaVersion: {old.version}}}")
            messages.append(f"{{oldSchema: '{old.schema.text[:_OLD_SCHEMA_CHARACTERS]}'}}")
            break
        if messages:
            validates = str(bool(config.get("validateFields"))).lower()
            messages.append(f"{{validateFields: '{validates}', compatibility: '{level}'}}")
        return messages


def _adds_metadata(config: Json) -> bool:
    return any(field in config for field in ("defaultMetadata", "overrideMetadata", "defaultRuleSet", "overrideRuleSet"))


def _is_same_metadata(version: Version, metadata: Json | None) -> bool:
    """Whether a version has these metadata, but for a `confluent:version` that only one has; one that is asked for is its number."""
    known = version.schema.metadata
    asked, has = ((found or {}).get("properties", {}).get(CONFLUENT_VERSION) for found in (metadata, known))
    if (asked is None) is (has is None):
        return known == metadata
    if asked not in (None, str(version.version)):
        return False
    return (with_confluent_version(metadata, None) or {}) == (with_confluent_version(known, None) or {})


def _reserved_fields(parsed: ParsedSchema, schema: Schema, former: Schema | None) -> list[str]:
    reserved, before = _reserved_by(schema), _reserved_by(former)
    messages = [f"The new schema has reserved field {field} removed from its metadata" for field in sorted(before - reserved)]
    conflicting = [field for field in sorted(reserved) if parsed.has_top_level_field(field)]
    return messages + [f"The new schema has field that conflicts with the reserved field {field}" for field in conflicting]


def _reserved_by(schema: Schema | None) -> set[str]:
    text = (schema.metadata or {}).get("properties", {}).get(RESERVED, "") if schema is not None else ""
    return {field.strip() for field in text.split(",") if field.strip()}


def _pinned(state: State, subject: str, references: Sequence[Reference]) -> tuple[Reference, ...]:
    """References to the latest version as ones to its number: what an id stands for does not change with what comes later."""
    found = [(reference, state.referenced(subject, reference) if reference.version == -1 else None) for reference in references]
    return tuple(reference if version is None else replace(reference, version=version.version) for reference, version in found)


def _resolve(
    state: State,
    subject: str,
    references: Sequence[Reference],
    resolved: dict[str, str],
    visited: set[str],
    depth: int = 0,
    *,
    with_deleted: bool,
) -> None:
    if depth > REFERENCES_DEEP:
        raise InvalidSchema(f"references are more than {REFERENCES_DEEP} deep")
    for reference in references:
        if reference.name in visited:
            continue
        visited.add(reference.name)
        version = state.referenced(subject, reference, with_deleted=with_deleted)
        if version is None:
            raise missing_reference(reference)
        _resolve(state, version.subject, version.schema.references, resolved, visited, depth + 1, with_deleted=with_deleted)
        resolved.setdefault(reference.name, version.schema.text)

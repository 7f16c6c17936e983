"""What a command writes: records for the topic, or the error that it is refused with.

A decision sees the state as it is and changes nothing; its records are written, come back by the replay, and then the command is
answered. Several registrations may be decided before the first of them has come back (`Batch`): each sees the ids that those before it
were given. All other commands are decided one at a time.

What takes time, reading a schema and comparing it with earlier ones, was done before, against what could be seen then (`Draft`). If that
is no longer what there is, the decision says `Stale`, and the schema is looked at once more.

Source: `KafkaSchemaRegistry.java` in confluentinc/schema-registry: register, deleteSchemaVersion, deleteSubject, setMode, updateConfig.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ottla.errors import OttlaError
from ottla.schema_registry.state import names
from ottla.schema_registry.state.errors import (
    ContextNotEmpty,
    Incompatible,
    InvalidMode,
    InvalidSchema,
    MalformedRequest,
    OperationNotPermitted,
    ReferenceExists,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    VersionNotSoftDeleted,
    VersionSoftDeleted,
    schema_not_found,
    subject_not_found,
    version_not_found,
)
from ottla.schema_registry.state.records import (
    HIGHEST_ID,
    Change,
    ClearSubjects,
    DeleteSubject,
    Noop,
    PutConfig,
    PutContext,
    PutMode,
    PutVersion,
    Record,
    RemoveVersion,
    encode,
)
from ottla.schema_registry.state.replay import HIGHEST_IDS_HEADER, OTHER_CONTEXTS, State
from ottla.schema_registry.state.schemas import (
    CONFLUENT_VERSION,
    FORWARD,
    IMPORT,
    MODES,
    READONLY,
    READONLY_OVERRIDE,
    READWRITE,
    Json,
    Reference,
    Schema,
    Version,
    merged_metadata,
    merged_rule_sets,
    updated_config,
    with_confluent_version,
)

HIGHEST_IDS_BYTES: Final = 256 * 1024
MOST_DIGITS: Final = 12  # of an id, with the signs around it


class Stale(OttlaError):
    """What a draft was made of is no longer there; it is to be made once more."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A request to register a schema, or to find it.

    Attributes:
        text: None: that of the latest version.
        metadata: None: that of the latest version.
        schema_id, version: for a subject in IMPORT mode; a version of -1 asks for the property `confluent:version`.
        normalize: whether the normal form of the schema is registered.
        force: whether it may be incompatible.
        is_dry_run: whether nothing is written.
    """

    subject: str
    schema_type: str = "AVRO"
    text: str | None = None
    references: tuple[Reference, ...] = ()
    metadata: Json | None = None
    rule_set: Json | None = None
    schema_id: int | None = None
    version: int = 0
    normalize: bool = False
    force: bool = False
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """A registration with all that could be found out before it is decided.

    Attributes:
        schema: as it is to be registered; its text is canonical.
        seen: the subject's versions that it was made of and compared with.
        config: that held then.
        messages: why it is incompatible.
        equal: the version that has an equal schema although not the same text, if one has.
    """

    request: Registration
    schema: Schema
    seen: tuple[Version, ...]
    config: Json
    messages: tuple[str, ...] = ()
    equal: Version | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """The outcome of a registration."""

    version: Version
    changes: tuple[Change, ...] = ()


@dataclass(slots=True)
class Batch:
    """What registrations decided a moment ago are going to write."""

    subjects: set[str] = field(default_factory=set)
    ids: dict[tuple[str, tuple[str, bytes]], int] = field(default_factory=dict)
    holders: dict[tuple[str, int], tuple[str, bytes]] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)

    def note(self, state: State, registered: Registered) -> None:
        """Remembers one."""
        version = registered.version
        context = names.context_of(version.subject)
        self.subjects.add(version.subject)
        self.ids[context, version.schema.identity] = version.id
        self.holders[context, version.id] = version.schema.identity
        self.highest[context] = max(version.id, self.highest.get(context, state.context(context).highest_id))


def schema_of(request: Registration) -> Schema:
    """A request's schema as it came."""
    return Schema.of(request.schema_type, request.text or "", request.references, request.metadata, request.rule_set)


# Registering.


def check_register_mode(state: State, request: Registration) -> None:
    """Raises OperationNotPermitted where the subject's mode does not let the request register."""
    subject, mode = request.subject, state.mode_in_scope(request.subject)
    if mode == READWRITE and request.schema_id is None:
        return
    place = f"Subject {subject} in context {names.parse(subject).scope}"
    if mode in (READONLY, READONLY_OVERRIDE):
        raise OperationNotPermitted(f"{place} is in read-only mode")
    if request.schema_id is None:
        raise OperationNotPermitted(f"{place} is not in read-write mode")
    if mode not in (IMPORT, FORWARD):
        raise OperationNotPermitted(f"{place} is not in import mode")


def is_validated(state: State, subject: str, config: Json) -> bool:
    """Whether defaults must fit and what is referred to must not be deleted: not for what is imported, nor where it is switched off."""
    return state.mode_in_scope(subject) not in (IMPORT, FORWARD) and config.get("validateNewSchemas") is not False


def drafted(state: State, request: Registration) -> Registration:
    """The request with what it leaves out: text, metadata and rules of the latest version, defaults and overrides of the config.

    Raises:
        InvalidSchema: it has no schema, and there is no version to take one of.
    """
    if state.mode_in_scope(request.subject) in (IMPORT, FORWARD):
        if not (request.text or "").strip():
            raise InvalidSchema("Empty schema")
        return request
    latest = state.latest(request.subject)
    if not (request.text or "").strip():
        if latest is None:
            raise InvalidSchema("Empty schema")
        schema = latest.schema
        request = replace(request, schema_type=schema.schema_type, text=schema.text, references=schema.references)
    return with_metadata_of(state, request, latest, next_version(state.versions(request.subject)))


def with_metadata_of(state: State, request: Registration, latest: Version | None, number: int | None) -> Registration:
    """The request with the metadata and the rules that it leaves out.

    Args:
        number: the version that it is going to be, for the property `confluent:version`; None leaves that alone.
    """
    config = state.config_in_scope(request.subject)
    metadata, rule_set = request.metadata, request.rule_set
    if latest is not None:
        metadata = latest.schema.metadata if metadata is None else metadata
        rule_set = latest.schema.rule_set if rule_set is None else rule_set
    metadata = merged_metadata(merged_metadata(config.get("defaultMetadata"), metadata), config.get("overrideMetadata"))
    rule_set = merged_rule_sets(merged_rule_sets(config.get("defaultRuleSet"), rule_set), config.get("overrideRuleSet"))
    if number is not None and (request.version or CONFLUENT_VERSION in (metadata or {}).get("properties", {})):
        metadata = with_confluent_version(metadata, number)
    if metadata is request.metadata and rule_set is request.rule_set:
        return request
    return replace(request, metadata=metadata, rule_set=rule_set)


def next_version(versions: Sequence[Version]) -> int:
    """The number after the highest; it continues after versions that are softly deleted."""
    return versions[-1].version + 1 if versions else 1


def existing(state: State, draft: Draft) -> Version | None:
    """The version that has this schema already, so that nothing is written: the same id, and the same version if one was asked for.

    Where -1 was asked for it is the latest, or none.
    """
    request = draft.request
    wanted = request.schema_id
    for version in reversed(state.versions(request.subject)):
        if version.is_deleted or (wanted is not None and wanted != version.id):
            continue
        if request.version > 0 and request.version != version.version:
            continue
        if version.schema.identity == draft.schema.identity or version == draft.equal:
            return version
        if request.version == -1:
            break
    return None


def compared_versions(versions: Sequence[Version], config: Json, metadata: Json | None) -> Sequence[Version]:
    """Those of the versions that a new one is to be compatible with: of its compatibility group, if there are groups."""
    group = config.get("compatibilityGroup")

    def group_of(found: Json | None) -> str | None:
        value: str | None = (found or {}).get("properties", {}).get(group)
        return value

    return versions if group is None else [version for version in versions if group_of(version.schema.metadata) == group_of(metadata)]


def register(state: State, draft: Draft, batch: Batch) -> Registered:
    """Decides a registration.

    Raises:
        Stale: the draft is to be made once more; or the subject, or the id, is part of the batch, and this one is decided after that.
        Incompatible, OperationNotPermitted, InvalidSchema: it is refused.
    """
    request, schema = draft.request, draft.schema
    subject = request.subject
    if subject in batch.subjects or state.versions(subject) is not draft.seen or state.config_in_scope(subject) != draft.config:
        raise Stale(f"{subject} has changed")
    found = existing(state, draft)
    if found is not None:
        return Registered(found)
    check_register_mode(state, request)
    _check_references(state, subject, schema, with_deleted=not is_validated(state, subject, draft.config))
    is_import = state.mode_in_scope(subject) in (IMPORT, FORWARD)
    if draft.messages and not is_import and not request.force:
        details = ", ".join(draft.messages)
        raise Incompatible(f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: [{details}]')
    number = next_version(draft.seen)
    if request.version > 0:
        if request.version != number and not is_import:
            raise InvalidSchema("Version is not one more than previous version")
        number = request.version
    if number > HIGHEST_ID:
        raise OperationNotPermitted(f"all {HIGHEST_ID} versions of subject {subject} are given")
    context = names.context_of(subject)
    schema_id = request.schema_id
    if schema_id is None:
        schema_id = _known_id(state, batch, context, schema) or _next_id(state, batch, context)
    elif (holder := state.context(context).schemas.get(schema_id)) is not None and holder != schema:
        raise OperationNotPermitted(f"Overwrite new schema with id {schema_id} in context {names.parse(subject).scope} is not permitted.")
    elif batch.holders.get((context, schema_id), schema.identity) != schema.identity:
        raise Stale(f"id {schema_id} is about to be given to another schema")
    version = Version(subject, number, schema_id, schema, False, 0)
    changes: list[Change] = []
    if context != names.DEFAULT_CONTEXT and not state.is_named(context) and context not in batch.highest:
        changes.append(PutContext(context, True))
    # One record of an id and a subject is enough, unless someone refers to the older one by its number.
    older = [version for version in draft.seen if version.is_deleted and version.id == schema_id and version.version < number]
    changes += [RemoveVersion(subject, old.version) for old in older if not state.referrers(subject, old.version)]
    return Registered(version, (*changes, PutVersion(version, is_new=True)))


def _known_id(state: State, batch: Batch, context: str, schema: Schema) -> int | None:
    known = state.find_id(context, schema)
    return batch.ids.get((context, schema.identity)) if known is None else known


def _next_id(state: State, batch: Batch, context: str) -> int:
    found = batch.highest.get(context, state.context(context).highest_id) + 1
    if found > HIGHEST_ID:
        raise OperationNotPermitted(f"all {HIGHEST_ID} ids of context {context} are given")
    return found


def _check_references(state: State, subject: str, schema: Schema, *, with_deleted: bool) -> None:
    for reference in schema.references:
        if state.referenced(subject, reference, with_deleted=with_deleted) is None:
            raise missing_reference(reference)


def missing_reference(reference: Reference) -> InvalidSchema:
    """As Confluent words it."""
    return InvalidSchema(f'No schema reference found for subject "{reference.subject}" and version {reference.version}')


# Deleting, and taking it back.


def _check_writable(state: State, scope: str) -> None:
    if state.mode_in_scope(scope) in (READONLY, READONLY_OVERRIDE):
        raise OperationNotPermitted(f"Subject {scope} in context {names.parse(scope).scope} is in read-only mode")


def version_meant(state: State, subject: str, number: int) -> Version:
    """A version, or the latest for -1, be it softly deleted.

    Raises:
        SubjectNotFound, VersionNotFound: there is none.
    """
    found = state.latest(subject) if number == -1 else state.version(subject, number)
    if found is None:
        raise subject_not_found(subject) if not state.versions(subject) else version_not_found(number)
    return found


def delete_version(state: State, subject: str, number: int, *, is_permanent: bool) -> tuple[int, list[Change]]:
    """Deletes a version; gives its number."""
    version = version_meant(state, subject, number)
    if version.is_deleted and not is_permanent:
        raise VersionSoftDeleted(f"Subject '{subject}' Version {version.version} was soft deleted.Set permanent=true to delete permanently")
    _check_writable(state, subject)
    _check_unreferenced(state, version, with_deleted=is_permanent)
    if not is_permanent:
        return version.version, [PutVersion(replace(version, is_deleted=True))]
    if not version.is_deleted:
        raise VersionNotSoftDeleted(f"Subject '{subject}' Version {version.version} was not deleted first before being permanently deleted")
    is_last = len(state.versions(subject)) == 1
    return version.version, [RemoveVersion(subject, version.version), *(_remove_settings(state, subject) if is_last else ())]


def delete_subject(state: State, subject: str, *, is_permanent: bool) -> tuple[list[int], list[Change]]:
    """Deletes a subject; gives the numbers of the versions that are deleted by it."""
    versions = state.versions(subject)
    if not versions:
        raise subject_not_found(subject)
    live = [version for version in versions if not version.is_deleted]
    if not live and not is_permanent:
        raise SubjectSoftDeleted(f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently")
    _check_writable(state, subject)
    for version in versions if is_permanent else live:
        _check_unreferenced(state, version, with_deleted=is_permanent, but_by=subject)
    if not is_permanent:
        return [version.version for version in live], [DeleteSubject(subject, versions[-1].version)]
    if live:
        raise SubjectNotSoftDeleted(f"Subject '{subject}' was not deleted first before being permanently deleted")
    removed: list[Change] = [RemoveVersion(subject, version.version) for version in reversed(versions)]
    return [version.version for version in versions], [*removed, *_remove_settings(state, subject)]


def _check_unreferenced(state: State, version: Version, *, with_deleted: bool, but_by: str | None = None) -> None:
    for referrer in state.referrers(version.subject, version.version):
        if referrer.subject != but_by and (with_deleted or not referrer.is_deleted):
            key = f"{{magic=1,keytype=SCHEMA,subject={version.subject},version={version.version}}}"
            raise ReferenceExists(f"One or more references exist to the schema {key}.")


def _remove_settings(state: State, subject: str) -> list[Change]:
    changes: list[Change] = []
    if state.mode(subject) is not None:
        changes.append(PutMode(subject, None))
    if state.config(subject) is not None:
        changes.append(PutConfig(subject, None))
    return changes


def undelete(state: State, subject: str, number: int | None) -> tuple[list[int], list[Change]]:
    """Takes the soft deletion of a version, or of all of a subject's, back; gives their numbers. Ottla's own."""
    versions = state.versions(subject) if number is None else (version_meant(state, subject, number),)
    if not versions:
        raise subject_not_found(subject)
    _check_writable(state, subject)
    deleted = [version for version in versions if version.is_deleted]
    if number is not None and not deleted:
        raise VersionNotSoftDeleted(f"Subject '{subject}' Version {versions[0].version} is not soft deleted")
    for version in deleted:
        for target, target_number in state.targets(version):
            if (state.latest(target) if target_number == -1 else state.version(target, target_number)) is None:
                raise schema_not_found(f"{target}/{target_number}, which {subject}/{version.version} refers to,")
    return [version.version for version in deleted], [PutVersion(replace(version, is_deleted=False)) for version in deleted]


# Config, mode, contexts.


def put_config(state: State, scope: str, update: Json) -> tuple[Json, list[Change]]:
    """Updates the config of a scope; gives what it is then."""
    _check_writable(state, scope)
    config = updated_config(state.config(scope), update)
    return config, [PutConfig(scope, config)]


def delete_config(state: State, scope: str) -> tuple[Json, list[Change]]:
    """Takes the config of a scope away; gives what it was."""
    former = state.config(scope)
    if former is None and scope not in (names.TOP, names.GLOBAL_SCOPE):
        raise subject_not_found(scope)
    _check_writable(state, scope)
    return {"compatibilityLevel": state.defaults["compatibilityLevel"], **(former or {})}, [PutConfig(scope, None)]


def put_mode(state: State, scope: str, mode: str | None, *, force: bool, may_change: bool) -> tuple[None, list[Change]]:
    """Sets the mode of a scope, or takes it away (None). IMPORT needs a scope without subjects, unless it is forced."""
    if not may_change:
        raise OperationNotPermitted("Mode changes are not allowed")
    if mode == FORWARD and scope != names.GLOBAL_SCOPE:
        raise InvalidMode("Forward mode only supported on global level")
    changes: list[Change] = []
    if mode == IMPORT and state.mode_in_scope(scope) != IMPORT and not force:
        if state.has_subjects(scope, with_deleted=False):
            raise OperationNotPermitted("Cannot import since found existing subjects")
        deleted = list(state.versions_in(scope))
        for version in deleted:
            _check_unreferenced(state, version, with_deleted=True)
        changes = [RemoveVersion(version.subject, version.version) for version in deleted]
        if deleted:
            changes.append(ClearSubjects(scope))
    return None, [*changes, PutMode(scope, mode)]


def delete_mode(state: State, scope: str, *, is_recursive: bool, may_change: bool) -> tuple[str | None, list[Change]]:
    """Takes the mode of a scope away, of a context's subjects too if it is recursive; gives what it was."""
    if not may_change:
        raise OperationNotPermitted("Mode changes are not allowed")
    former = state.mode(scope)
    is_top = scope in (names.TOP, names.GLOBAL_SCOPE)
    if former is None and not is_top and not is_recursive:
        raise subject_not_found(scope)
    name = names.parse(scope)
    below = [
        other
        for other in state.scopes_with_mode()
        if is_recursive and not name.subject and other != scope and names.context_of(other) == name.context
    ]
    changes: list[Change] = [PutMode(cleared, None) for cleared in (scope, *below)]
    return former or (READWRITE if is_top else None), changes


def delete_context(state: State, context: str) -> tuple[None, list[Change]]:
    """Takes a context away that has no subjects."""
    scope = names.Name(context, "").scope
    if context == names.DEFAULT_CONTEXT or state.has_subjects(scope, with_deleted=True):
        raise ContextNotEmpty(f"The specified context '{scope or '.'}' is not empty.")
    return None, [PutContext(context, False)]


# Records.


def records_of(state: State, changes: Sequence[Change]) -> list[Record]:
    """The records of changes.

    Where a version goes for good a NOOP comes with them, whose header keeps the highest ids: of all NOOPs compaction leaves the last.
    What stands under another key than ours gets a tombstone of its own: compaction knows keys only, and would leave it and drop ours.
    """
    records: list[Record] = []
    for change in changes:
        record = encode(change)
        records.append(record)
        if record.value is None:
            records += [Record(key, None) for key in state.other_keys.get(record.key, ())]
    return [*records, noop(state)] if any(_gives_up_an_id(state, change) for change in changes) else records


def _gives_up_an_id(state: State, change: Change) -> bool:
    match change:
        case PutVersion(version):
            former = state.version(version.subject, version.version)
            return former is not None and former.id != version.id
    return isinstance(change, (RemoveVersion, ClearSubjects))


def noop(state: State) -> Record:
    """A NOOP that says which ids were given; of contexts that are too many for a record only the highest id of all that are left out."""
    highest: dict[str, int] = {}
    size = 0
    for context, number in sorted(state.highest_ids.items(), key=lambda entry: -entry[1]):
        size += len(json.dumps(context)) + MOST_DIGITS
        if size > HIGHEST_IDS_BYTES:
            highest.setdefault(OTHER_CONTEXTS, number)
            break
        highest[context] = number
    return replace(encode(Noop()), headers=((HIGHEST_IDS_HEADER, json.dumps(highest, separators=(",", ":")).encode()),))


def mode_named(value: object) -> str | None:
    """The mode of a request; None takes a scope's mode away.

    Raises:
        MalformedRequest, InvalidMode: there is no such mode.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise MalformedRequest("mode is not a text")
    mode = value.upper()
    if mode not in MODES:
        raise InvalidMode(f"Invalid mode. Valid values are {', '.join(MODES)}")
    return mode

"""What each route answers, from the state; what a route writes is handed to the registry.

A method is named as its route. It gives what is answered as JSON, a `Text`, or None for nothing; one that has to wait is a coroutine.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeVar

from ottla.schema_registry.formats import (
    CompatibilityLevel,
    CompatibilityPolicy,
    EntityType,
    SchemaEntity,
    SchemaType,
    Tags,
    changes_between,
)
from ottla.schema_registry.formats import InvalidSchema as UnreadableSchema
from ottla.schema_registry.rest.routes import Route
from ottla.schema_registry.state import decisions, names, records
from ottla.schema_registry.state.decisions import Batch, Registration, Stale
from ottla.schema_registry.state.drafts import refused
from ottla.schema_registry.state.errors import (
    InvalidCompatibilityLevel,
    InvalidRuleSet,
    InvalidSchema,
    InvalidSubject,
    InvalidVersion,
    MalformedRequest,
    NotFound,
    StoreTimedOut,
    SubjectConfigNotFound,
    SubjectModeNotFound,
    schema_not_found,
    subject_not_found,
    version_not_found,
)
from ottla.schema_registry.state.replay import State, target_of
from ottla.schema_registry.state.schemas import (
    READONLY_OVERRIDE,
    Json,
    Version,
    config_of,
    has_rule_of_type,
    integer_of,
    merged_rule_sets,
    metadata_of,
    references_of,
    rule_set_of,
    with_confluent_version,
    without_rules,
)
from ottla.schema_registry.store.replaying import Store

T = TypeVar("T")

HIGHEST_ID: Final = records.HIGHEST_ID
ATTEMPTS: Final = 10
Answer: TypeAlias = Json | Awaitable[Json]


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many entries a page has, by default and at most (`schema.search.…` and others)."""

    schemas: tuple[int, int] = (1_000, 1_000)
    versions: tuple[int, int] = (HIGHEST_ID, HIGHEST_ID)
    subjects: tuple[int, int] = (HIGHEST_ID, HIGHEST_ID)
    contexts: tuple[int, int] = (HIGHEST_ID, HIGHEST_ID)


@dataclass(frozen=True, slots=True)
class Identity:
    """What `/v1/metadata` says."""

    cluster_id: str = ""
    group: str = "schema-registry"
    version: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """An answer that is a text as it stands, and no JSON of ours."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A request, taken apart by its route."""

    route: Route
    values: Mapping[str, str]
    query: Mapping[str, Sequence[str]]
    body: Mapping[str, Any]
    context: str  # names.DEFAULT_CONTEXT unless the path began with /contexts/{context}
    names_context: bool = False  # whether it began so, be it with the default one

    def texts(self, name: str) -> Sequence[str]:
        """All values of a parameter; none if the route does not have it."""
        if not self.query:
            return ()
        known = next(((parameter.name, *parameter.aliases) for parameter in self.route.parameters if parameter.name == name), ())
        return next((self.query[given] for given in known if given in self.query), ())

    def text(self, name: str) -> str:
        """A parameter's value."""
        given = self.texts(name)
        return given[0] if given else ""

    def flag(self, name: str) -> bool:
        """A parameter that is `true`, in any letters: Python's clients send True."""
        return self.text(name).lower() == "true"

    def page(self, found: Iterable[T], bounds: tuple[int, int]) -> list[T]:
        """The entries that offset and limit ask for."""
        offset, limit = min(max(0, self._number("offset", 0)), HIGHEST_ID), self._number("limit", -1)
        wanted = limit if 0 < limit <= bounds[1] else bounds[0]
        return list(itertools.islice(found, offset, offset + wanted))

    def _number(self, name: str, default: int) -> int:
        text = self.text(name)
        if not text:
            return default
        try:
            return int(text)
        except ValueError:
            raise MalformedRequest(f"{name}: '{text[:40]}' is no number") from None


class Api:
    """Answers calls.

    Args:
        store: state and writes.
        bounds: of pages.
        identity: for `/v1/metadata`.
        may_change_mode: `mode.mutability`.
        may_be_empty: whether a subject may be called nothing or `*`, unless `schema.reject.empty.subject`.
        document: OpenAPI.
    """

    def __init__(
        self,
        store: Store,
        bounds: Bounds | None = None,
        identity: Identity | None = None,
        *,
        may_change_mode: bool = True,
        may_be_empty: bool = True,
        document: Json | None = None,
    ) -> None:
        self._store = store
        self._bounds = bounds or Bounds()
        self._identity = identity or Identity()
        self._may_change_mode = may_change_mode
        self._may_be_empty = may_be_empty
        self._document = document or {}

    @property
    def _state(self) -> State:
        return self._store.state

    # Names.

    def subject(self, call: Call) -> str:
        """The subject of the path, in its context, and what it is an alias of."""
        return self._state.replace_alias(names.normal(names.within(call.context, call.values["subject"])))

    @staticmethod
    def _new_subject(call: Call, *, may_be_empty: bool = True) -> None:
        if not names.is_valid(names.within(call.context, call.values["subject"]), may_be_empty=may_be_empty):
            raise InvalidSubject(f"The specified subject '{call.values['subject'][:200]}' is not a valid.")

    @staticmethod
    def scope(call: Call) -> str:
        """The scope of config and mode that the path means."""
        if "subject" not in call.values:
            return names.Name(call.context, "").scope
        text = names.within(call.context, call.values["subject"])
        if call.route.writes and not names.is_valid(text, is_scope=True):
            raise InvalidSubject(f"The specified subject '{call.values['subject'][:200]}' is not a valid.")
        return names.normal(text)

    @staticmethod
    def _number(call: Call, name: str = "version") -> int:
        text = call.values[name].strip()
        if text.lower() == "latest":
            return -1
        try:
            number = int(text)
        except ValueError:
            number = 0
        if number != -1 and not 0 < number <= HIGHEST_ID:
            raise InvalidVersion(
                f"The specified version '{call.values[name][:40]}' is not a valid version id. Allowed values are between [1, 2^31-1] and "
                'the string "latest"'
            )
        return number

    def _version(self, call: Call, *, with_deleted: bool, name: str = "version") -> Version:
        subject, number = self.subject(call), self._number(call, name)
        for candidate in self._candidates(subject):
            found = self._state.latest(candidate) if number == -1 else self._state.version(candidate, number)
            if found is not None and (with_deleted or not found.is_deleted):
                return found
        if not self._state.has_subjects(subject, with_deleted=with_deleted):
            raise subject_not_found(subject)
        raise version_not_found(number)

    def _candidates(self, subject: str) -> Iterator[str]:
        """A subject, and those of the same name in other contexts where it names none."""
        yield subject
        name = names.parse(subject)
        if name.context == names.DEFAULT_CONTEXT:
            yield from (names.Name(context, name.subject).qualified for context in self._state.contexts[1:])

    # Schemas as JSON.

    async def _formatted(self, version: Version, call: Call) -> str:
        form = call.text("format").strip()
        if not form:
            return version.schema.text
        parsed = await self._store.drafts.parsed(self._state, version.subject, version.schema)
        return parsed.formatted(form)

    def _described(self, version: Version, call: Call, found: dict[str, Any]) -> Answer:
        """A schema as it is asked for, which may take reading it."""
        return self._detailed(version, call, found) if call.text("format").strip() or call.texts("findTags") else found

    async def _detailed(self, version: Version, call: Call, found: dict[str, Any]) -> Json:
        found["schema"] = await self._formatted(version, call)
        wanted = set(call.texts("findTags"))
        if wanted:
            tags = [
                {"schemaEntity": {"entityPath": entity.path, "entityType": str(entity.type)}, "tags": [*tags]}
                for entity, tags in (await self._tags_in(version)).items()
                if "*" in wanted or wanted.intersection(tags)
            ]
            found |= {"schemaTags": tags} if tags else {}
        return found

    async def _tags_in(self, version: Version) -> Tags:
        parsed = await self._store.drafts.parsed(self._state, version.subject, version.schema)
        try:
            return parsed.tagged_entities
        except UnreadableSchema as error:
            raise refused(error) from error

    def _text(self, version: Version, call: Call) -> Text | Awaitable[Text]:
        return self._formatted_text(version, call) if call.text("format").strip() else Text(version.schema.text)

    async def _formatted_text(self, version: Version, call: Call) -> Text:
        return Text(await self._formatted(version, call))

    # Routes.

    def root(self, _: Call) -> Json:
        return {}

    def openapi(self, _: Call) -> Json:
        return self._document

    def schema_types(self, _: Call) -> list[str]:
        return ["JSON", "PROTOBUF", "AVRO"]

    def schemas(self, call: Call) -> list[Json]:
        state = self._state
        prefix = names.within(call.context, call.text("subjectPrefix"))
        with_deleted, latest_only, rule_type = call.flag("deleted"), call.flag("latestOnly"), call.text("ruleType")
        aliases: dict[str, list[str]] = {}
        for subject, called in state.aliases().items() if call.flag("aliases") else ():
            if named := [alias for alias in called if names.has_prefix(alias, prefix)]:
                aliases[subject] = named
        subjects = sorted({*state.subjects_with_prefix(prefix), *aliases})

        def found() -> Iterator[Version]:
            for subject in subjects:
                versions = [version for version in state.versions(subject) if with_deleted or not version.is_deleted]
                for version in versions[-1:] if latest_only else versions:
                    if not rule_type or has_rule_of_type(version.schema.rule_set, rule_type):
                        yield version

        page = call.page(found(), self._bounds.schemas)
        return [version_json(version) | ({"aliases": aliases[version.subject]} if version.subject in aliases else {}) for version in page]

    def _by_id(self, call: Call) -> tuple[int, Version | None]:
        text = call.values["id"]
        if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) <= HIGHEST_ID):
            raise NotFound("HTTP 404 Not Found")
        subject = names.normal(names.within(call.context, call.text("subject")))
        return int(text), self._state.version_by_id(int(text), self._state.replace_alias(subject))

    def is_of_asked_subject(self, call: Call) -> bool:
        """Whether an id is answered for the subject that was asked for, if one was: else another schema may be, once the subject has it."""
        asked = names.parse(self._state.replace_alias(names.normal(names.within(call.context, call.text("subject")))))
        if not asked.subject:
            return True
        _, version = self._by_id(call)
        return version is not None and version.subject == asked.qualified

    def schema_by_id(self, call: Call) -> Answer:
        schema_id, version = self._by_id(call)
        if version is None:
            raise schema_not_found(schema_id)
        has_subject = bool(call.text("subject")) or call.context != names.DEFAULT_CONTEXT
        found = schema_json(version, has_subject=has_subject, is_qualified=call.text("referenceFormat") == "qualified")
        if call.flag("fetchMaxId"):
            found["maxId"] = self._state.context(names.context_of(version.subject)).highest_id
        return self._described(version, call, found)

    def schema_text_by_id(self, call: Call) -> Text | Awaitable[Text]:
        schema_id, version = self._by_id(call)
        if version is None:
            raise schema_not_found(schema_id)
        return self._text(version, call)

    def _users(self, call: Call) -> list[Version]:
        _, version = self._by_id(call)
        if version is None:
            raise schema_not_found()
        return [user for user in self._state.users_of(version) if call.flag("deleted") or not user.is_deleted]

    def subjects_by_id(self, call: Call) -> list[str]:
        return call.page(dict.fromkeys(version.subject for version in self._users(call)), self._bounds.subjects)

    def versions_by_id(self, call: Call) -> list[Json]:
        found = [{"subject": version.subject, "version": version.version} for version in self._users(call)]
        return call.page(found, self._bounds.versions)

    def _by_guid(self, call: Call) -> list[tuple[str, int]]:
        try:
            return self._state.by_guid(uuid.UUID(call.values["guid"]).bytes)
        except ValueError:
            return []

    def schema_by_guid(self, call: Call) -> Answer:
        found = self._by_guid(call)
        version = self._state.version_by_id(found[0][1], names.Name(found[0][0], "").qualified) if found else None
        if version is None:
            raise schema_not_found(call.values["guid"][:80])
        return self._described(version, call, schema_json(version, has_subject=False))

    def ids_by_guid(self, call: Call) -> list[Json]:
        return [{"context": context, "id": schema_id} for context, schema_id in self._by_guid(call)]

    def subjects(self, call: Call) -> list[str]:
        given = call.texts("subjectPrefix")
        prefix = given[0] if given else "" if call.names_context else names.ANY_CONTEXT
        found = self._state.subjects_with_prefix(names.within(call.context, prefix))
        if call.flag("deletedOnly"):
            listed = [subject for subject in found if not self._state.has_subjects(subject, with_deleted=False)]
        elif call.flag("deleted"):
            listed = list(found)
        else:
            listed = [subject for subject in found if any(not version.is_deleted for version in self._state.versions(subject))]
        return call.page(listed, self._bounds.subjects)

    async def look_up(self, call: Call) -> Json:
        subject = self.subject(call)
        request = self._registration(call, subject)
        with_deleted = call.flag("deleted")
        found = None
        for candidate in self._candidates(subject):
            try:
                found = await self._store.drafts.found(self._state, replace(request, subject=candidate), with_deleted=with_deleted)
            except InvalidSchema:
                if candidate == subject:
                    raise
            if found is not None:
                return await self._detailed(found, call, version_json(found))
        if not self._state.has_subjects(subject, with_deleted=with_deleted):
            await self._store.drafts.check(self._state, request, ())  # a schema that cannot be read comes first
            raise subject_not_found(subject)
        raise schema_not_found()

    async def latest_with_metadata(self, call: Call) -> Json:
        subject, with_deleted = self.subject(call), call.flag("deleted")
        wanted = dict(zip(call.texts("key"), call.texts("value"), strict=False)).items()
        for version in reversed(self._state.versions(subject)):
            metadata = version.schema.metadata
            if (with_deleted or not version.is_deleted) and metadata is not None and wanted <= metadata.get("properties", {}).items():
                return await self._detailed(version, call, version_json(version))
        if not self._state.has_subjects(subject, with_deleted=with_deleted):
            raise subject_not_found(subject)
        raise schema_not_found()

    def versions(self, call: Call) -> list[int]:
        subject, only, negative = self.subject(call), call.flag("deletedOnly"), call.flag("deletedAsNegative")
        with_deleted = call.flag("deleted") or only
        if not self._state.has_subjects(subject, with_deleted=with_deleted):
            raise subject_not_found(subject)
        versions = self._state.versions(subject)
        if negative:
            numbers = [-version.version if version.is_deleted else version.version for version in versions]
        else:
            numbers = [version.version for version in versions if (version.is_deleted if only else with_deleted or not version.is_deleted)]
        return call.page(numbers, self._bounds.versions)

    def version(self, call: Call) -> Answer:
        found = self._version(call, with_deleted=call.flag("deleted"))
        return self._described(found, call, version_json(found, is_qualified=call.text("referenceFormat") == "qualified"))

    def version_text(self, call: Call) -> Text | Awaitable[Text]:
        return self._text(self._version(call, with_deleted=call.flag("deleted")), call)

    def referenced_by(self, call: Call) -> list[int]:
        version = self._version(call, with_deleted=True)
        referrers = self._state.referrers(version.subject, version.version)
        found = {
            (names.context_of(referrer.subject), referrer.id) for referrer in referrers if call.flag("deleted") or not referrer.is_deleted
        }
        return call.page([schema_id for _, schema_id in sorted(found)], self._bounds.schemas)

    async def diff(self, call: Call) -> list[Json]:
        old, new = self._version(call, with_deleted=True), self._version(call, with_deleted=True, name="other")
        drafts = self._store.drafts
        before = await drafts.parsed(self._state, old.subject, old.schema)
        after = await drafts.parsed(self._state, new.subject, new.schema)
        if before.schema_type != after.schema_type:
            return [{"kind": "changed", "path": "/", "before": str(before.schema_type), "after": str(after.schema_type)}]
        return [
            {"kind": str(change.kind), "path": change.path, "before": change.before, "after": change.after}
            for change in changes_between(before, after)
        ]

    # Registering.

    def _registration(self, call: Call, subject: str, *, is_new: bool = False) -> Registration:
        body = call.body
        text, schema_type = body.get("schema"), body.get("schemaType") or "AVRO"
        if (text is not None and not isinstance(text, str)) or not isinstance(schema_type, str):
            raise MalformedRequest("schema and schemaType are texts")
        if schema_type.upper() not in SchemaType.__members__:
            raise InvalidSchema(f"Invalid schema type {schema_type[:40]}")
        schema_id, version = _integer(body, "id"), _integer(body, "version")
        return Registration(
            subject,
            schema_type.upper(),
            text,
            references_of(body.get("references")),
            metadata_of(body.get("metadata")),
            rule_set_of(body.get("ruleSet"), is_new=is_new),
            None if schema_id is None or schema_id < 0 else schema_id,
            version or 0,
            normalize=call.flag("normalize"),
            force=call.flag("force"),
            is_dry_run=call.flag("dryRun"),
        )

    async def new_registration(self, call: Call) -> Registration:
        """The registration that a call asks for, with the tags that it adds to the schema or takes from it."""
        self._new_subject(call, may_be_empty=self._may_be_empty)
        subject = self.subject(call)
        request = self._registration(call, subject, is_new=True)
        add, remove = _tags_of(call.body, "schemaTagsToAdd"), _tags_of(call.body, "schemaTagsToRemove")
        if add or remove:
            text = await self._tagged(request, add, remove)
            request = replace(request, text=text, version=request.version or -1)
        latest = self._state.latest(subject)
        if call.body.get("propagateSchemaTags") is True and latest is not None and (request.text or "").strip():
            tags = await self._tags_in(latest)
            if tags:
                request = replace(request, text=await self._tagged(request, tags, {}))
        return request

    async def _tagged(self, request: Registration, add: Tags, remove: Tags) -> str:
        try:
            schema = decisions.schema_of(request)
        except UnicodeEncodeError:
            raise InvalidSchema("Invalid schema, details: half of a surrogate pair stands alone") from None
        parsed = await self._store.drafts.parsed(self._state, request.subject, schema)
        try:
            return parsed.with_tags(add, remove)
        except UnreadableSchema as error:
            raise refused(error) from error

    async def find_registered(self, call: Call) -> Json | None:
        """The answer to a registration that writes nothing, which a follower gives too: it is there already, or it is a dry run."""
        request = await self.new_registration(call)
        version = await self._registered_without_writing(request)
        return None if version is None else await self._registration_answer(version, call)

    async def _registered_without_writing(self, request: Registration) -> Version | None:
        for _ in range(ATTEMPTS):
            draft = await self._store.drafts.draft(self._state, request)
            try:
                registered = decisions.register(self._state, draft, Batch())
            except Stale:
                continue
            return registered.version if request.is_dry_run or not registered.changes else None
        raise StoreTimedOut(f"{request.subject} changes too often to be looked at")

    async def _registration_answer(self, version: Version, call: Call) -> Json:
        found = {"version": version.version, "id": version.id, **schema_json(version, has_subject=False)}
        if call.query:
            await self._detailed(version, call, found)
        if _is_descriptor(call.body):
            del found["schema"]
        return found

    async def register(self, call: Call) -> Json:
        request = await self.new_registration(call)
        if request.is_dry_run:
            version = await self._registered_without_writing(request)
            assert version is not None, "a dry run writes nothing"
        else:
            version = await self._store.register(request)
        return await self._registration_answer(version, call)

    async def modify_tags(self, call: Call) -> Json:
        self._new_subject(call)
        version = self._version(call, with_deleted=False)
        body, subject = call.body, self.subject(call)
        new_version = _integer(body, "newVersion") or 0
        to_merge, to_remove = rule_set_of(body.get("rulesToMerge")), body.get("rulesToRemove")
        rule_set = rule_set_of(body.get("ruleSet"))
        if to_merge is not None or to_remove is not None:
            if rule_set is not None:
                raise InvalidRuleSet("ruleSet should be omitted if specifying rulesToMerge or rulesToRemove")
            if to_remove is not None and not (isinstance(to_remove, list) and all(isinstance(name, str) for name in to_remove)):
                raise MalformedRequest("rulesToRemove is not a list of names")
            before = self._state.version(subject, new_version - 1) if new_version else self._state.latest(subject)
            rule_set = without_rules(merged_rule_sets(before.schema.rule_set if before is not None else None, to_merge), to_remove or ())
        metadata = metadata_of(body.get("metadata"))
        number = new_version or decisions.next_version(self._state.versions(subject))
        request = Registration(
            subject,
            version.schema.schema_type,
            version.schema.text,
            version.schema.references,
            with_confluent_version(version.schema.metadata if metadata is None else metadata, number),
            rule_set,
            version=new_version,
        )
        add, remove = _tags_of(body, "tagsToAdd"), _tags_of(body, "tagsToRemove")
        if add or remove:
            request = replace(request, text=await self._tagged(request, add, remove))
        return await self._registration_answer(await self._store.register(request), call)

    async def check_all(self, call: Call) -> Json:
        subject = self.subject(call)
        live = [version for version in self._state.versions(subject) if not version.is_deleted]
        return await self._check(call, self._registration(call, subject), live)

    async def check_one(self, call: Call) -> Json:
        subject, number = self.subject(call), self._number(call)
        version = self._state.latest(subject) if number == -1 else self._state.version(subject, number)
        if version is not None and version.is_deleted:
            version = None
        if version is None and number != -1:
            raise version_not_found(number)
        return await self._check(call, self._registration(call, subject), [version] if version is not None else [])

    async def _check(self, call: Call, request: Registration, versions: Sequence[Version]) -> Json:
        is_verbose = call.flag("verbose")
        try:
            messages = await self._store.drafts.check(self._state, request, versions)
        except InvalidSchema as error:
            if not is_verbose:
                raise
            messages = [error.message]
        return {"is_compatible": not messages} | ({"messages": messages} if is_verbose else {})

    # Deleting.

    async def delete_subject(self, call: Call) -> list[int]:
        subject, permanent = self.subject(call), call.flag("permanent")
        return await self._store.change(lambda state: decisions.delete_subject(state, subject, is_permanent=permanent))

    async def delete_version(self, call: Call) -> int:
        subject, number, permanent = self.subject(call), self._number(call), call.flag("permanent")
        return await self._store.change(lambda state: decisions.delete_version(state, subject, number, is_permanent=permanent))

    async def undelete_subject(self, call: Call) -> list[int]:
        subject = self.subject(call)
        return await self._store.change(lambda state: decisions.undelete(state, subject, None))

    async def undelete_version(self, call: Call) -> int:
        subject, number = self.subject(call), self._number(call)
        return (await self._store.change(lambda state: decisions.undelete(state, subject, number)))[0]

    # Config and mode.

    def config(self, call: Call) -> Json:
        scope = self.scope(call)
        if call.flag("defaultToGlobal"):
            return self._state.config_in_scope(scope)
        found = self._state.config(scope)
        if found is None and scope not in (names.TOP, names.GLOBAL_SCOPE):
            raise SubjectConfigNotFound(f"Subject '{scope}' does not have subject-level compatibility configured")
        return {"compatibilityLevel": self._state.config_in_scope(scope)["compatibilityLevel"], **(found or {})}

    async def put_config(self, call: Call) -> Json:
        body = dict(call.body)
        if "compatibility" in body:
            body["compatibilityLevel"] = body["compatibility"]
        update = config_of(body)
        level, policy = update.get("compatibilityLevel"), update.get("compatibilityPolicy")
        if level is not None and level not in CompatibilityLevel.__members__:
            raise InvalidCompatibilityLevel(f"Invalid compatibility level. Valid values are {', '.join(CompatibilityLevel).lower()}")
        if policy is not None and policy not in CompatibilityPolicy.__members__:
            raise InvalidCompatibilityLevel(f"compatibilityPolicy: one of {', '.join(CompatibilityPolicy)}, not {policy[:40]}")
        scope = self.scope(call)
        config = await self._store.change(lambda state: decisions.put_config(state, scope, update))
        return {"compatibility" if field == "compatibilityLevel" else field: value for field, value in config.items()}

    async def delete_config(self, call: Call) -> Json:
        scope = self.scope(call)
        return await self._store.change(lambda state: decisions.delete_config(state, scope))

    def mode(self, call: Call) -> Json:
        scope = self.scope(call)
        found = READONLY_OVERRIDE if self._state.mode(names.TOP) == READONLY_OVERRIDE else self._state.mode(scope)
        if found is None and (call.flag("defaultToGlobal") or scope in (names.TOP, names.GLOBAL_SCOPE)):
            found = self._state.mode_in_scope(scope)
        if found is None:
            raise SubjectModeNotFound(f"Subject '{scope}' does not have subject-level mode configured")
        return {"mode": found}

    async def put_mode(self, call: Call) -> Json:
        mode = decisions.mode_named(call.body.get("mode"))
        scope, force, may = self.scope(call), call.flag("force"), self._may_change_mode
        await self._store.change(lambda state: decisions.put_mode(state, scope, mode, force=force, may_change=may))
        return {"mode": mode}

    async def delete_mode(self, call: Call) -> Json:
        scope, recursive, may = self.scope(call), call.flag("recursive"), self._may_change_mode
        former = await self._store.change(lambda state: decisions.delete_mode(state, scope, is_recursive=recursive, may_change=may))
        return {} if former is None else {"mode": former}

    # Routes of their own, whose paths have no subject: `scope` makes the difference.
    top_config, put_top_config, delete_top_config = config, put_config, delete_config
    top_mode, put_top_mode, delete_top_mode = mode, put_mode, delete_mode

    # Contexts and the cluster.

    def contexts(self, call: Call) -> list[str]:
        prefix = call.text("contextPrefix")
        return call.page([context for context in self._state.contexts if context.startswith(prefix)], self._bounds.contexts)

    async def delete_context(self, call: Call) -> None:
        context = _context(call.values["context"])
        await self._store.change(lambda state: decisions.delete_context(state, context))

    def cluster_id(self, _: Call) -> Json:
        identity = self._identity
        clusters = {"kafka-cluster": identity.cluster_id, "schema-registry-cluster": identity.group}
        return {"id": "", "scope": {"path": [], "clusters": clusters}}

    def server_version(self, _: Call) -> Json:
        return {"version": self._identity.version, "commitId": "ottla"}

    def deployment(self, _: Call) -> Json:
        return {"attributes": ["ottla"]}


def version_json(version: Version, *, is_qualified: bool = False) -> dict[str, Any]:
    """A version as `/subjects/…` answers it; what is empty is left out."""
    found = schema_json(version, has_subject=False, is_qualified=is_qualified)
    return {"subject": version.subject, "version": version.version, "id": version.id} | found


def schema_json(version: Version, *, has_subject: bool, is_qualified: bool = False) -> dict[str, Any]:
    """A schema as `/schemas/…` answers it; what is empty is left out."""
    schema = version.schema
    found: dict[str, Any] = {"subject": version.subject, "version": version.version} if has_subject else {}
    found |= {"guid": schema.guid, "schemaType": schema.schema_type}
    if schema.references:
        references = schema.references
        if is_qualified:
            references = tuple(replace(reference, subject=target_of(version.subject, reference)) for reference in references)
        found["references"] = [reference.as_json() for reference in references]
    if schema.metadata:
        found["metadata"] = schema.metadata
    if schema.rule_set:
        found["ruleSet"] = schema.rule_set
    found["schema"] = schema.text
    if version.timestamp_ms:
        found["ts"] = version.timestamp_ms
    if version.is_deleted:
        found["deleted"] = True
    return found


def _is_descriptor(body: Mapping[str, Any]) -> bool:
    """Whether a body has a Protobuf schema in base64. confluent-kafka keeps what it is answered in the place of what it sent, and could
    not read the text then.
    """
    text = body.get("schema")
    return body.get("schemaType") == SchemaType.PROTOBUF and isinstance(text, str) and not {"{", ";"} & set(text)


def _integer(body: Mapping[str, Any], field: str) -> int | None:
    value = body.get(field)
    return None if value is None else integer_of(value, field)


def _tags_of(body: Mapping[str, Any], field: str) -> Tags:
    given = body.get(field)
    if given is None:
        return {}
    found: dict[SchemaEntity, list[str]] = {}
    for entry in given if isinstance(given, list) else [None]:
        match entry:
            case {"schemaEntity": {"entityPath": str(path), "entityType": str(kind)}, "tags": list(tags)} if kind in (*EntityType,) and all(
                isinstance(tag, str) for tag in tags
            ):
                entity = SchemaEntity(path.removeprefix("."), EntityType(kind))
                found[entity] = [*found.get(entity, ()), *tags]
            case _:
                raise MalformedRequest(f"{field}: a list of schemaEntity (entityPath, entityType sr_record or sr_field) and tags")
    return found


def _context(text: str) -> str:
    try:
        return names.context_named(text)
    except ValueError:
        raise MalformedRequest(f"Context name '{text[:80]}' cannot contain a colon") from None


def context_of_path(text: str | None) -> str:
    """The context that a path begins with.

    Raises:
        MalformedRequest: no context is called so.
    """
    return names.DEFAULT_CONTEXT if text is None else _context(text)

"""What the records of `_schemas` add up to.

Each record is applied in the order of the topic, and only then can it be seen: on the leader too, which answers a write after its own
replay has taken it. So all nodes that have come as far say the same.

Three things are kept that a plain replay would lose:
- An id belongs to the first schema that had it. A record that gives it to another one is a conflict: it is not applied, it is counted,
  and `conflicts` says what it was.
- A record of a lower epoch than one before it was written by a former leader, and is dropped.
- The highest id of a context ever given: it comes back from the header of the last NOOP, as ids of what was deleted for good are in no
  other record.
"""

from __future__ import annotations

import itertools
import json
import logging
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ottla.schema_registry.state import names
from ottla.schema_registry.state.records import (
    HIGHEST_ID,
    Change,
    ClearSubjects,
    DeleteSubject,
    PutConfig,
    PutContext,
    PutMode,
    PutVersion,
    RemoveVersion,
    UnreadableRecord,
    decode,
    key_of,
)
from ottla.schema_registry.state.schemas import READONLY_OVERRIDE, READWRITE, Json, Reference, Schema, Version, config_in_scope

log: Final = logging.getLogger(__name__)

EPOCH_HEADER: Final = "ottla.epoch"
HIGHEST_IDS_HEADER: Final = "ottla.highest.ids"
OTHER_CONTEXTS: Final = "*"  # in that: those that it does not name

CONFLICTS_KEPT: Final = 1_000
DEFAULTS: Final[Json] = {"compatibilityLevel": "BACKWARD"}


@dataclass(frozen=True, slots=True)
class Conflict:
    """A record that was not applied, as its id belongs to another schema.

    Attributes:
        offset: of the record.
        holder: the first version that had the id.
    """

    offset: int
    version: Version
    holder: str


@dataclass(frozen=True, slots=True)
class Image:
    """All of a state at one moment, which does not change with it: for a snapshot."""

    next_offset: int
    epoch: int
    highest_ids: Mapping[str, int]
    contexts: tuple[str, ...]
    subjects: tuple[tuple[Version, ...], ...]
    configs: Mapping[str, Json]
    modes: Mapping[str, str]
    conflicts: tuple[Conflict, ...]
    other_keys: Mapping[bytes, tuple[bytes, ...]]


class Context:
    """The ids of one context."""

    __slots__ = ("_several", "highest_id", "ids", "schemas", "users")

    def __init__(self, highest_id: int) -> None:
        self.highest_id = highest_id
        self.schemas: dict[int, Schema] = {}
        self.ids: dict[tuple[str, bytes], int] = {}  # the lowest, where a schema was brought under several
        self.users: dict[int, list[tuple[str, int]]] = {}  # subject and version, sorted
        self._several: dict[tuple[str, bytes], set[int]] = {}

    def note_id(self, identity: tuple[str, bytes], number: int) -> None:
        """A schema has this id, and maybe others."""
        known = self.ids.setdefault(identity, number)
        if known != number:
            several = self._several.setdefault(identity, {known})
            several.add(number)
            self.ids[identity] = min(several)

    def forget_id(self, identity: tuple[str, bytes], number: int) -> None:
        """A schema has this id no more."""
        several = self._several.get(identity, {self.ids.get(identity, number)})
        several.discard(number)
        if several:
            self.ids[identity] = min(several)
        else:
            self.ids.pop(identity, None)
        if len(several) < 2:
            self._several.pop(identity, None)


class State:
    """What the topic says.

    Attributes:
        defaults: the config that holds where none is set.
        next_offset: of the record that has not been applied yet.
        epoch: the highest that a record had.
        removals: how often something that had an id was deleted, or is there again, or an alias changed: until then an id can be answered
            from a cache.
        conflict_count, dropped_count, unreadable_count: records that were not applied, since the start.
        other_keys: by the key that ours have, other ones of the same meaning: of older releases, with other blanks.
    """

    def __init__(self, defaults: Json = DEFAULTS) -> None:
        self.defaults: Final = defaults
        self.next_offset = 0
        self.epoch = 0
        self.removals = 0
        self.conflict_count = self.dropped_count = self.unreadable_count = 0
        self.conflicts: deque[Conflict] = deque(maxlen=CONFLICTS_KEPT)
        self.other_keys: dict[bytes, tuple[bytes, ...]] = {}
        self._contexts: dict[str, Context] = {names.DEFAULT_CONTEXT: Context(0)}
        self._highest_elsewhere = 0  # that may have been given in contexts which no record names any more
        self._named: set[str] = set()  # contexts that have a record
        self._subjects: dict[str, tuple[Version, ...]] = {}
        self._sorted_subjects: list[names.Name] = []
        self._referrers: dict[tuple[str, int], set[tuple[str, int]]] = {}  # by version, the versions that refer to it
        self._configs: dict[str, Json] = {}
        self._modes: dict[str, str] = {}
        self._in_scope: dict[tuple[bool, tuple[str, ...]], Json] = {}  # what `config_in_scope` gave since the last change of a config

    # Records.

    def apply(
        self,
        offset: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Mapping[str, bytes],
        known: Version | None = None,
    ) -> None:
        """Takes one record in. Nothing that a record holds makes it fail.

        Args:
            known: the version that the record says, but for its timestamp, where this node has written it.
        """
        self.next_offset = offset + 1
        epoch = _epoch_of(headers)
        if epoch is not None:
            if epoch < self.epoch:
                self.dropped_count += 1
                log.warning("offset %d: dropped, as its epoch %d is lower than %d, which came before", offset, epoch, self.epoch)
                return
            self.epoch = epoch
        if known is not None:
            self.put(Version(known.subject, known.version, known.id, known.schema, known.is_deleted, timestamp_ms), offset)
            return
        try:
            change = decode(key, value, timestamp_ms)
        except UnreadableRecord as error:
            self.unreadable_count += 1
            log.error("offset %d: not a record of a schema registry, skipped: %s", offset, error)
            return
        self._raise_highest_ids(headers.get(HIGHEST_IDS_HEADER))
        own_key = key_of(change)
        if own_key is not None and key is not None and key != own_key:
            self.note_other_key(own_key, key, is_there=value is not None)
        self._take(change, offset)

    def note_other_key(self, own_key: bytes, key: bytes, *, is_there: bool) -> None:
        """Remembers that a record stands under another key than ours, or does no more."""
        keys = {*self.other_keys.get(own_key, ())}
        (keys.add if is_there else keys.discard)(key)
        if keys:
            self.other_keys[own_key] = tuple(sorted(keys))
        else:
            self.other_keys.pop(own_key, None)

    def _take(self, change: Change, offset: int) -> None:
        match change:
            case PutVersion(version):
                self.put(version, offset)
            case RemoveVersion(subject, number):
                self._remove(subject, number)
            case DeleteSubject(subject, number):
                for version in self._subjects.get(subject, ()):
                    if version.version <= number and not version.is_deleted:
                        self._replace(version, replace(version, is_deleted=True))
            case ClearSubjects(scope):
                for version in list(self.versions_in(scope)):
                    if version.is_deleted:
                        self._remove(version.subject, version.version)
            case PutConfig(scope, config):
                self.removals += (config or {}).get("alias") != self._configs.get(scope, {}).get("alias")
                _set(self._configs, scope, config)
                self._in_scope.clear()
            case PutMode(scope, mode):
                _set(self._modes, scope, mode)
            case PutContext(context, is_there):
                (self._named.add if is_there else self._named.discard)(context)

    def put(self, version: Version, offset: int) -> None:
        """Takes a version in, unless its id belongs to another schema."""
        context = self._context(version.subject)
        context.highest_id = max(context.highest_id, version.id)
        holder = context.schemas.get(version.id)
        if holder is not None and not holder.is_same_definition(version.schema):
            first = "/".join(map(str, context.users[version.id][0]))
            self.add_conflict(Conflict(offset, version, first))
            log.error(
                "offset %d: id %d of %s/%d belongs to another schema, of %s; the record is not applied: `ottla schema doctor` has more",
                *(offset, version.id, version.subject, version.version, first),
            )
            return
        former = self.version(version.subject, version.version)
        if former is not None and former.id == version.id:
            self._replace(former, version)
            return
        if former is not None:
            self._remove(former.subject, former.version)
        schema = context.schemas.setdefault(version.id, version.schema)
        context.note_id(version.schema.identity, version.id)
        if schema is not version.schema and schema == version.schema:  # shared by all versions
            version = replace(version, schema=schema)
        insort(context.users.setdefault(version.id, []), (version.subject, version.version))
        for target in self.targets(version):
            self._referrers.setdefault(target, set()).add((version.subject, version.version))
        versions = self._subjects.get(version.subject)
        if versions is None:
            insort(self._sorted_subjects, names.parse(version.subject))
            versions = ()
        self._subjects[version.subject] = tuple(sorted((*versions, version), key=_number)) if versions else (version,)

    def add_conflict(self, conflict: Conflict) -> None:
        """Counts and remembers a record that is not applied."""
        self.conflict_count += 1
        self.conflicts.append(conflict)

    def _replace(self, former: Version, version: Version) -> None:
        versions = self._subjects[former.subject]
        self._subjects[former.subject] = tuple(version if known is former else known for known in versions)
        self.removals += version.is_deleted != former.is_deleted

    def _remove(self, subject: str, number: int) -> None:
        version = self.version(subject, number)
        if version is None:
            return
        left = tuple(known for known in self._subjects[subject] if known is not version)
        if left:
            self._subjects[subject] = left
        else:
            del self._subjects[subject]
            del self._sorted_subjects[bisect_left(self._sorted_subjects, names.parse(subject))]
        context = self._context(subject)
        users = context.users[version.id]
        users.remove((subject, number))
        self.removals += 1
        if not users:
            del context.users[version.id]
            schema = context.schemas.pop(version.id)
            context.forget_id(schema.identity, version.id)
        for target in self.targets(version):
            referrers = self._referrers.get(target, set())
            referrers.discard((subject, number))
            if not referrers:
                self._referrers.pop(target, None)

    def _raise_highest_ids(self, header: bytes | None) -> None:
        if header is None:
            return
        try:
            highest = json.loads(header)
            for context, number in highest.items():
                if not isinstance(number, int) or not 0 <= number <= HIGHEST_ID:
                    continue
                if context == OTHER_CONTEXTS:
                    self._highest_elsewhere = max(self._highest_elsewhere, number)
                for found in self._contexts.values() if context == OTHER_CONTEXTS else [self._context_named(context)]:
                    found.highest_id = max(found.highest_id, number)
        except (ValueError, AttributeError, RecursionError):
            log.error("a header %s cannot be read: %r", HIGHEST_IDS_HEADER, header[:200])

    def image(self) -> Image:
        """What it is now."""
        return Image(
            self.next_offset,
            self.epoch,
            self.highest_ids,
            tuple(sorted(self._named)),
            tuple(self._subjects.values()),
            dict(self._configs),
            dict(self._modes),
            tuple(self.conflicts),
            dict(self.other_keys),
        )

    # Contexts.

    def _context(self, subject: str) -> Context:
        return self._context_named(names.context_of(subject))

    def _context_named(self, name: str) -> Context:
        context = self._contexts.get(name)
        if context is None:
            context = self._contexts[name] = Context(self._highest_elsewhere)
        return context

    def context(self, name: str) -> Context:
        """The ids of a context; of one that is not there an empty one."""
        return self._contexts.get(name) or Context(self._highest_elsewhere)

    @property
    def contexts(self) -> list[str]:
        """The names of the contexts, the default one first."""
        return [names.DEFAULT_CONTEXT, *sorted({*self._named, *self._contexts_with_subjects()} - {names.DEFAULT_CONTEXT})]

    def _contexts_with_subjects(self) -> list[str]:
        return [name for name, context in self._contexts.items() if context.users]

    def is_named(self, context: str) -> bool:
        """Whether a context has a record of its own."""
        return context in self._named

    @property
    def highest_ids(self) -> Mapping[str, int]:
        """By context, the highest id that was ever given; and of `OTHER_CONTEXTS`, if one was."""
        found = {name: context.highest_id for name, context in sorted(self._contexts.items()) if context.highest_id}
        return found | ({OTHER_CONTEXTS: self._highest_elsewhere} if self._highest_elsewhere else {})

    # Subjects and versions.

    def versions(self, subject: str) -> tuple[Version, ...]:
        """All versions of a subject in their order, softly deleted ones too. The same object until one of them changes."""
        return self._subjects.get(subject, ())

    def version(self, subject: str, number: int) -> Version | None:
        """One version, be it softly deleted."""
        versions = self._subjects.get(subject, ())
        position = bisect_left(versions, number, key=_number)
        return versions[position] if position < len(versions) and versions[position].version == number else None

    def latest(self, subject: str) -> Version | None:
        """The latest version that is not deleted."""
        return next((version for version in reversed(self.versions(subject)) if not version.is_deleted), None)

    def referenced(self, subject: str, reference: Reference, *, with_deleted: bool = True) -> Version | None:
        """The version that a reference of a subject's schema means; -1 is the latest, which is never a deleted one."""
        target = target_of(subject, reference)
        found = self.latest(target) if reference.version == -1 else self.version(target, reference.version)
        return None if found is None or (found.is_deleted and not with_deleted) else found

    def subjects_with_prefix(self, prefix: str) -> Iterator[str]:
        """Qualified names in alphabetical order, as Confluent lists them; `:*:` before a prefix looks in every context."""
        wanted = names.parse(prefix)
        if wanted.context != "*":
            return self._subjects_in(wanted.context, wanted.subject)
        contexts = self._contexts_with_subjects()
        return iter(sorted(subject for context in contexts for subject in self._subjects_in(context, wanted.subject)))

    def _subjects_in(self, context: str, prefix: str) -> Iterator[str]:
        for name in itertools.islice(self._sorted_subjects, bisect_left(self._sorted_subjects, names.Name(context, prefix)), None):
            if name.context != context or not name.subject.startswith(prefix):
                break
            yield name.qualified

    def versions_in(self, scope: str) -> Iterator[Version]:
        """The versions of a subject, or of all subjects of a context; of `:.__GLOBAL:` all there are."""
        name = names.parse(scope)
        if name.subject:
            subjects: Iterator[str] = iter([name.qualified])
        elif name.context == names.GLOBAL_CONTEXT:
            subjects = self.subjects_with_prefix(names.ANY_CONTEXT)
        else:
            subjects = self.subjects_with_prefix(name.scope)
        for subject in subjects:
            yield from self.versions(subject)

    def has_subjects(self, scope: str, *, with_deleted: bool) -> bool:
        """Whether a subject, or any in a context, has a version."""
        return any(with_deleted or not version.is_deleted for version in self.versions_in(scope))

    @property
    def subject_count(self) -> int:
        """Subjects, softly deleted ones too."""
        return len(self._subjects)

    @property
    def schema_counts(self) -> Mapping[str, int]:
        """Ids by the type of their schemas."""
        counts: dict[str, int] = {}
        for context in self._contexts.values():
            for schema in context.schemas.values():
                counts[schema.schema_type] = counts.get(schema.schema_type, 0) + 1
        return counts

    def find_id(self, context: str, schema: Schema) -> int | None:
        """The id that a schema has in a context."""
        return self.context(context).ids.get(schema.identity)

    def version_by_id(self, schema_id: int, subject: str = "") -> Version | None:
        """A version with this id: of that subject, which may be in any context if it names none; else of the context.

        As at Confluent a subject that does not have the id is no reason to find nothing.
        """
        name = names.parse(subject)
        context = self.context(name.context)
        users = context.users.get(schema_id, ())
        of_subject = [user for user in users if user[0] == name.qualified] if name.subject else []
        if not of_subject and name.subject and name.context == names.DEFAULT_CONTEXT:
            for other in self.contexts[1:]:
                qualified = names.Name(other, name.subject).qualified
                of_subject = [user for user in self.context(other).users.get(schema_id, ()) if user[0] == qualified]
                if of_subject:
                    break
        if name.subject and name.context != names.DEFAULT_CONTEXT and not of_subject:
            return None
        found = of_subject[-1] if of_subject else users[0] if users else None
        return None if found is None else self.version(*found)

    def users_of(self, version: Version) -> list[Version]:
        """The versions of the context that have the same id, softly deleted ones too."""
        users = self._context(version.subject).users.get(version.id, ())
        return [found for user in users if (found := self.version(*user)) is not None]

    def by_guid(self, fingerprint: bytes) -> list[tuple[str, int]]:
        """The contexts in which a schema has an id, and the id; the default context first."""
        found = []
        for name in [names.DEFAULT_CONTEXT, *sorted(set(self._contexts) - {names.DEFAULT_CONTEXT})]:
            ids = self._contexts[name].ids
            found += [(name, ids[kind, fingerprint]) for kind in ("AVRO", "JSON", "PROTOBUF") if (kind, fingerprint) in ids]
        return found

    def targets(self, version: Version) -> list[tuple[str, int]]:
        """The versions that a version refers to; a reference without a context is to one of the subject's own."""
        if not version.schema.references:
            return []
        return [(target_of(version.subject, reference), reference.version) for reference in version.schema.references]

    def referrers(self, subject: str, number: int) -> list[Version]:
        """The versions that refer to a version, softly deleted ones too."""
        users = sorted(self._referrers.get((subject, number), ()))
        return [version for user in users if (version := self.version(*user)) is not None]

    # Config and mode.

    def config(self, scope: str) -> Json | None:
        """What is configured for a scope itself."""
        return self._configs.get(scope)

    def config_in_scope(self, scope: str) -> Json:
        """What holds in a scope."""
        if not self._configs and self._in_scope:  # as nearly always
            return self._in_scope[False, ()]
        chain = names.scopes(scope)
        given = tuple([wider for wider in chain if wider in self._configs])
        key = given[:1] == chain[:1], given  # most subjects have no config of their own, and share what holds
        found = self._in_scope.get(key)
        if found is None:
            own = config_in_scope([self._configs.get(wider, {}) for wider in chain])
            found = self._in_scope[key] = {**self.defaults, **own}
        return found

    def mode(self, scope: str) -> str | None:
        """The mode that is set for a scope itself."""
        return self._modes.get(scope)

    def mode_in_scope(self, scope: str) -> str:
        """The mode that holds in a scope; READONLY_OVERRIDE of the default context holds in all."""
        if not self._modes:
            return READWRITE
        if self._modes.get(names.TOP, self._modes.get(names.GLOBAL_SCOPE)) == READONLY_OVERRIDE:
            return READONLY_OVERRIDE
        return next((self._modes[wider] for wider in names.scopes(scope) if wider in self._modes), READWRITE)

    def scopes_with_mode(self) -> list[str]:
        """The scopes that have a mode of their own."""
        return sorted(self._modes)

    def replace_alias(self, subject: str) -> str:
        """The subject that a name stands for: another one, where its config has an alias."""
        alias = self._configs.get(names.normal(subject), {}).get("alias")
        return names.normal(names.within(names.context_of(subject), alias)) if alias else subject

    def aliases(self) -> Mapping[str, Sequence[str]]:
        """By subject, the names that stand for it."""
        found: dict[str, list[str]] = {}
        for scope, config in sorted(self._configs.items()):
            if config.get("alias"):
                found.setdefault(self.replace_alias(scope), []).append(scope)
        return found


def target_of(subject: str, reference: Reference) -> str:
    """The qualified subject that a reference of a subject's schema means."""
    return names.normal(names.within(names.context_of(subject), reference.subject))


def _number(version: Version) -> int:
    return version.version


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


def _epoch_of(headers: Mapping[str, bytes]) -> int | None:
    text = headers.get(EPOCH_HEADER)
    return int(text) if text is not None and text.isdigit() and len(text) < 19 else None

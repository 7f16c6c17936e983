"""Schemas: what the source's registry has and the target's has not is registered there, under the ids that messages carry.

A subject of a copied topic, `clicks-value`, is called as the topic is called in the target; all others keep their names. A version keeps
its number and its id, which a registry takes for a subject that is in IMPORT mode; so each subject is set to that, and back. The mode that
it had is noted in the map before: after a kill between the two the next worker puts it back, as clients could register nothing there.

A number or an id that stands for another schema in the target is left as it is there, and told: two registries that both give ids
cannot become one. Nothing is deleted in the target. Registries are Ottla's, or any with Confluent's API.

Blocking, for a thread: one worker of a link does this, now and then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from ottla.errors import OttlaError, reason_of
from ottla.mirror_maker.naming import NameFilter
from ottla.network.registry_http import ask_registry, without_user_info

log: Final = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0  # for each step of a connection
PAGE: Final = 1000  # versions; what registries give at most unless asked otherwise
SMALL_PAGE: Final = 50  # where an answer was too large, or took too long: of versions as large as a record of Kafka may be
MOST_BYTES: Final = 64 * 1024 * 1024  # of an answer
# All versions of two registries are asked for once in so many passes, where nothing seems to be new: there may be 100 MB of them.
WHOLE_PASSES: Final = 12
_IMPORT: Final = "IMPORT"
_OVERRIDE: Final = "READONLY_OVERRIDE"
_SIDES: Final = ("-key", "-value")

Version = Mapping[str, Any]


class RegistryRefused(OttlaError):
    """A registry answered with an error of its own."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class RegistryFailed(ConnectionError):
    """A registry answered that it could not do it."""


@dataclass(frozen=True, slots=True)
class Registry:
    """A schema registry.

    Attributes:
        urls: of its nodes; the first that answers is asked.
        user_info: `name:password`, where it asks for one.
    """

    urls: Sequence[str]
    user_info: str | None = None

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer's JSON.

        Raises:
            RegistryRefused: it says no.
            RegistryFailed: it fails; no other node of it does better.
            OSError: no one answers, or what does is no registry.
        """
        failure = ConnectionError("there is no registry")
        for url in self.urls:
            try:
                return self._answer(url, method, path, body)
            except RegistryFailed as error:
                failure = RegistryFailed(f"the schema registry at {without_user_info(url)} fails: {error}")
            except (OSError, ValueError) as error:
                if not isinstance(failure, RegistryFailed):
                    failure = ConnectionError(f"no schema registry answers at {without_user_info(url)}: {reason_of(error)}")
        raise failure

    def _answer(self, url: str, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        answer = ask_registry(
            url,
            path,
            method=method,
            body=content,
            user_info=self.user_info,
            timeout_seconds=ANSWER_SECONDS,
            most_bytes=MOST_BYTES,
        )
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise RegistryFailed(f"{answer.status} with {len(answer.body)} bytes")
        found = json.loads(answer.body)
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            said = found.get("message") if isinstance(found, dict) else None
            raise RegistryRefused(answer.status, f"{said or answer.reason} ({answer.status})")
        return found

    def versions(self) -> list[Version]:
        """All versions of the default context that are not deleted, by id.

        Raises:
            RegistryRefused, OSError: as `ask`.
        """
        try:
            return self._versions(PAGE)
        except OSError:
            return self._versions(SMALL_PAGE)

    def mark(self, known_id: int) -> object:
        """What a new id or subject changes, at the cost of two questions; None where the registry does not say it.

        Raises:
            RegistryRefused, OSError: as `ask`.
        """
        try:
            highest = self.ask("GET", f"/schemas/ids/{known_id}?fetchMaxId=true").get("maxId")
        except RegistryRefused:
            return None
        return None if highest is None else (highest, self.ask("GET", "/subjects?subjectPrefix="))

    def _versions(self, limit: int) -> list[Version]:
        found: dict[tuple[str, int], Version] = {}
        while True:
            page = self.ask("GET", f"/schemas?offset={len(found)}&limit={limit}")
            try:
                new = {(str(version["subject"]), int(version["version"])): version for version in page}
                if new.keys() <= found.keys():  # nothing more; or it gives no pages, and has given all
                    return sorted(found.values(), key=lambda version: int(version["id"]))
            except (TypeError, KeyError, ValueError) as error:
                raise ConnectionError(f"what comes are no versions: {error!r}") from error
            found |= new


@dataclass(slots=True)
class SchemaCopier:
    """The schemas of one link.

    Attributes:
        refused: what could not be registered, and why.
        is_ended: set from outside: what is under way ends before the next version, with the modes put back.
        former_modes: of subjects that are in IMPORT mode for us, by their paths.
        keep_modes: notes these where the link's next worker finds them; called before one is set, and once it is put back.
    """

    source: Registry
    target: Registry
    subjects: NameFilter
    refused: dict[str, str] = field(default_factory=dict)
    is_ended: bool = False
    former_modes: dict[str, str | None] = field(default_factory=dict)
    keep_modes: Callable[[Mapping[str, str | None]], object] = dict
    _seen: object = None  # with which there was nothing more to do
    _rests_at: object = None  # the source's mark then, and the topics
    _has_failed: bool = False
    _passes: int = 0  # since all was asked for
    _known_id: int = 0

    def copy(self, topics: Mapping[str, str], others: Collection[str]) -> int:
        """Registers what is missing; gives how many versions that were.

        Args:
            topics: that are copied, and what each is called in the target.
            others: topics of the source that are not copied, and whose subjects are not either.

        Raises:
            RegistryRefused, OSError: a registry cannot be asked.
        """
        for path in list(self.former_modes):  # the target was away when it was to be put back, or a worker was killed before
            self._put_back(path)
        # A topic may be made long after its subject, which is called another name from then on.
        called = dict(topics), frozenset(others)
        mark = self.source.mark(self._known_id) if self._known_id else None
        self._passes += 1
        if mark is not None and (mark, called) == self._rests_at and self._passes < WHOLE_PASSES:
            return 0
        self._rests_at, self._passes = None, 0
        seen = self.source.versions(), self.target.versions(), called
        self._known_id = int(seen[0][-1]["id"]) if seen[0] else 0
        if seen == self._seen:
            self._rests_at = mark, called
            return 0
        there = {(version["subject"], version["version"]): version["id"] for version in seen[1]}
        missing: dict[str, list[Version]] = {}
        refused: dict[str, str] = {}
        for version in seen[0]:
            subject = subject_in_target(version["subject"], topics, others)
            if subject is None or version["subject"] not in self.subjects:
                continue
            held = there.get((subject, version["version"]))
            if held is None:
                missing.setdefault(subject, []).append(version)
            elif held != version["id"]:
                refused[f"{subject}, version {version['version']}"] = f"it has id {held} in the target, and {version['id']} in the source"
        count, self._has_failed = 0, False
        for subject, versions in _in_order(missing):
            if self.is_ended:
                return count
            count += self._register(subject, versions, topics, others, refused)
        for what, why in refused.items():
            if self.refused.get(what) != why:
                log.warning("the schema %s is not copied: %s", what, why)
        self.refused = refused
        # What was refused is tried again once one of the registries says something else; what one failed at, when all is asked for.
        self._seen = seen if not (count or self._has_failed) else None
        self._rests_at = (mark, called) if self._has_failed and not count else None
        return count

    def _register(
        self, subject: str, versions: Sequence[Version], topics: Mapping[str, str], others: Collection[str], refused: dict[str, str]
    ) -> int:
        path = f"/{quote(subject, safe=':')}"
        former = self._own_mode(path)
        if former == _IMPORT:
            log.warning("the subject %s is in IMPORT mode already and stays in it: clients cannot register versions of their own", subject)
        self.former_modes[path] = former
        self.keep_modes(self.former_modes)
        count = 0
        try:
            self.target.ask("PUT", f"/mode{path}?force=true", {"mode": _IMPORT})
            for version in versions:
                if self.is_ended:
                    break
                body = {name: value for name, value in version.items() if name not in ("subject", "deleted", "guid", "ts")}
                body["references"] = [
                    {**reference, "subject": subject_in_target(reference["subject"], topics, others) or reference["subject"]}
                    for reference in version.get("references") or ()
                ]
                try:
                    self.target.ask("POST", f"/subjects{path}/versions", body)
                    count += 1
                except (RegistryRefused, RegistryFailed) as error:
                    refused[f"{subject}, version {version['version']}"] = str(error)
                    self._has_failed |= isinstance(error, RegistryFailed)
        finally:
            self._put_back(path)
        return count

    def _put_back(self, path: str) -> None:
        former = self.former_modes[path]
        if former != _IMPORT and self._own_mode(path) == _IMPORT:  # else an operator has set another one meanwhile
            if former is None:
                self.target.ask("DELETE", f"/mode{path}")
            else:
                self.target.ask("PUT", f"/mode{path}?force=true", {"mode": former})
        del self.former_modes[path]
        self.keep_modes(self.former_modes)

    def _own_mode(self, path: str) -> str | None:
        """The mode that is set for the subject itself.

        Raises:
            RegistryRefused: as `ask`; or it is hidden by that of the whole registry, in which nothing can be registered.
        """
        try:
            found: str | None = self.target.ask("GET", f"/mode{path}").get("mode")
        except RegistryRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return None
        if found == _OVERRIDE and self.target.ask("GET", "/mode").get("mode") == _OVERRIDE:
            raise RegistryRefused(HTTPStatus.UNPROCESSABLE_ENTITY, f"the target's schema registry is in {_OVERRIDE} mode")
        return found


def subject_in_target(subject: str, topics: Mapping[str, str], others: Collection[str]) -> str | None:
    """What a subject is called in the target; None for one of a topic that is not copied."""
    for side in _SIDES:
        topic = subject.removesuffix(side)
        if topic != subject and topic in topics:
            return topics[topic] + side
        if topic != subject and topic in others:
            return None
    return subject


def _in_order(missing: Mapping[str, Sequence[Version]]) -> Iterator[tuple[str, Sequence[Version]]]:
    """Subjects in the order of their first ids: what is referred to was registered before. What was not comes with the next pass."""
    yield from sorted(missing.items(), key=lambda item: int(item[1][0]["id"]))

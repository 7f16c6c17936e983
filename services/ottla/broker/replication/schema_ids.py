"""Whether the schema ids in records are registered, as any schema registry with Confluent's API says.

An id never changes what it stands for, so what fitted once is kept; what did not is asked again after a second, as a subject may have
got the id since. The registry is asked by blocking HTTP in threads of its own: one that does not answer holds up those who wait for an
id that is not known here, and nothing else.

What is asked is `/schemas/ids/{id}/versions`, which Confluent's, Karapace, Apicurio's and Ottla's registries have; for the other framing
`/schemas/guids/{guid}/ids` before it. Of the contexts only the default one is looked at.

Source: Confluent, "Validate schema ids on brokers". Unlike there a record's name is not read out of its schema: with
RecordNameStrategy an id has to be registered anywhere, with TopicRecordNameStrategy under a subject that begins with the topic.

Nothing here is called for a topic that does not ask for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from ottla.broker.replication.schema_claims import Claim, Claims, refusal_of_records
from ottla.clock import Clock, SystemClock
from ottla.config.topic import TopicSettings
from ottla.errors import InvalidRecord, RequestTimedOut, reason_of
from ottla.lifecycle import ThreadOffload, look_at_error
from ottla.network.registry_http import ask_registry, without_user_info

log: Final = logging.getLogger(__name__)

CACHED_IDS: Final = 10_000
ASKED_AGAIN_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 3.0  # for each step of a connection
LOOK_UP_SECONDS: Final = 8.0  # for all registries
ANSWER_BYTES: Final = 4 * 1024 * 1024
THREADS: Final = 2
_GUID_FRAME: Final = 1


@dataclass(frozen=True, slots=True)
class _Known:
    """The subjects of an id, and when the registry said so."""

    subjects: frozenset[str]
    asked_at: float


class SchemaIds:
    """What is known of ids, and the registries that know more.

    Args:
        urls: of registries with the same schemas (`confluent.schema.registry.url`); the first that answers is asked.
        user_info: `user:password`, where they ask for one.
        clock: for how long something is not asked again.
    """

    def __init__(self, urls: Sequence[str] = (), user_info: str | None = None, clock: Clock | None = None) -> None:
        self._urls = list(urls)
        self._user_info = user_info
        self._clock = clock or SystemClock()
        self._offload = ThreadOffload(THREADS, "ottla-schema-ids")  # its threads begin with the first question
        self._known: dict[bytes, _Known] = {}
        self._asking: dict[bytes, asyncio.Task[_Known]] = {}
        self._is_away = False

    def fit(self, keys: AbstractSet[bytes | None], values: AbstractSet[bytes | None], topic: str, settings: TopicSettings) -> bool:
        """Whether the ids of a batch, as `plain_frames` gives them, are known here and fit the topic. If not, `check` has to say."""
        sides = (settings.confluent_key_schema_validation, True, keys), (settings.confluent_value_schema_validation, False, values)
        for is_validated, is_key, frames in sides:
            for frame in frames - {b""} if is_validated else ():
                known = self._known.get(frame) if frame else None
                if frame is None or known is None or not any(map(_rule(Claim(is_key, frame), topic, settings)[0], known.subjects)):
                    return False
        return bool(self._urls)

    async def check(self, claims: Claims, topic: str, settings: TopicSettings) -> None:
        """Takes records whose ids fit the topic.

        Args:
            claims: of one batch.

        Raises:
            InvalidRecord: an id is not registered as the topic's strategy asks for; names the records.
            RequestTimedOut: no registry answered, and an id is not known here.
        """
        if not self._urls:
            raise InvalidRecord(f"{topic} has its schema ids validated, and confluent.schema.registry.url is not set at this broker")
        wrong: list[tuple[int, str]] = []
        for claim, indexes in claims.items():
            fits, wanted = _rule(claim, topic, settings)
            known = self._known.get(claim.frame)
            if known is None or not (any(map(fits, known.subjects)) or self._clock.monotonic() - known.asked_at < ASKED_AGAIN_SECONDS):
                known = await self._ask(claim.frame)
            if not any(map(fits, known.subjects)):
                side = "key" if claim.is_key else "value"
                wrong += [
                    (index, f"the schema id {text_of(claim.frame)} of the {side} is not registered under {wanted}") for index in indexes
                ]
        if wrong:
            raise refusal_of_records(sorted(wrong))

    async def _ask(self, frame: bytes) -> _Known:
        asking = self._asking.get(frame)
        if asking is None:
            asking = self._asking[frame] = asyncio.ensure_future(self._looked_up(frame))
            asking.add_done_callback(lambda _: self._asking.pop(frame, None))
            asking.add_done_callback(look_at_error)  # it may fail when no one waits any more
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS):
                known = await asyncio.shield(asking)
        except (OSError, ValueError) as error:
            if not self._is_away:
                shown = ", ".join(map(without_user_info, self._urls))
                log.warning("no schema registry of %s answers, unknown schema ids are refused: %s", shown, reason_of(error))
            self._is_away = True
            raise RequestTimedOut(f"no schema registry answers, and the schema id {text_of(frame)} is not known here") from error
        if self._is_away:
            log.info("a schema registry answers again")
            self._is_away = False
        return known

    async def _looked_up(self, frame: bytes) -> _Known:
        asked_at = self._clock.monotonic()
        subjects = await self._offload(self._subjects, frame)
        self._known.pop(frame, None)
        if len(self._known) >= CACHED_IDS:
            del self._known[next(iter(self._known))]
        known = self._known[frame] = _Known(subjects, asked_at)
        return known

    def _subjects(self, frame: bytes) -> frozenset[str]:
        """The subjects that have an id, asked in a thread. Raises OSError, and ValueError for no JSON."""
        if frame[0] != _GUID_FRAME:
            return self._subjects_of(text_of(frame))
        ids = self._answer(f"/schemas/guids/{text_of(frame)}/ids", "id")
        found = {int(entry["id"]) for entry in ids or () if entry.get("context", ".") in ("", ".")}
        return frozenset[str]().union(*(self._subjects_of(str(number)) for number in found))

    def _subjects_of(self, number: str) -> frozenset[str]:
        return frozenset(str(entry["subject"]) for entry in self._answer(f"/schemas/ids/{number}/versions", "subject") or ())

    def _answer(self, path: str, field: str) -> Any:
        """The JSON of the first registry that answers with entries that have the field; None where it knows nothing of that."""
        failure: Exception = ConnectionError("there is no registry")
        for url in list(self._urls):
            try:
                found = self._answer_of(url, path, field)
            except (OSError, ValueError) as error:
                failure = error
                continue
            if self._urls[0] != url:  # the next one is asked there first
                self._urls.remove(url)
                self._urls.insert(0, url)
            return found
        raise failure

    def _answer_of(self, url: str, path: str, field: str) -> Any:
        answer = ask_registry(url, path, user_info=self._user_info, timeout_seconds=ANSWER_SECONDS, most_bytes=ANSWER_BYTES)
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if answer.status != HTTPStatus.OK:
            raise ConnectionError(f"{without_user_info(url)} answers {answer.status} with {len(answer.body)} bytes")
        found = json.loads(answer.body)
        if not isinstance(found, list) or not all(isinstance(entry, dict) and isinstance(entry.get(field), int | str) for entry in found):
            raise ValueError(f"{without_user_info(url)} answers what is no list of entries with a {field}")
        return found

    def close(self) -> None:
        """Waits for questions that are on their way."""
        for asking in list(self._asking.values()):
            asking.cancel()
        self._offload.close()


def text_of(frame: bytes) -> str:
    """An id as people know it."""
    return str(uuid.UUID(bytes=frame[1:])) if frame[0] == _GUID_FRAME else str(int.from_bytes(frame[1:], "big", signed=True))


def _rule(claim: Claim, topic: str, settings: TopicSettings) -> tuple[Callable[[str], bool], str]:
    """Which subjects an id may be registered under, as a predicate and in words."""
    strategy = settings.confluent_key_subject_name_strategy if claim.is_key else settings.confluent_value_subject_name_strategy
    match strategy.rpartition(".")[2]:
        case "RecordNameStrategy":
            return bool, "any subject"
        case "TopicRecordNameStrategy":
            return lambda subject: subject.startswith(f"{topic}-"), f"a subject {topic}-…"
        case _:
            wanted = f"{topic}-{'key' if claim.is_key else 'value'}"
            return lambda subject: subject == wanted, f"the subject {wanted}"

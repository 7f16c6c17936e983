"""The id of the audit records' schema in a schema registry, for those who write to `__audit` and have one.

Audit does not depend on the registry: while none answers there is no id, records are framed in Avro's single-object form, and the
registry is asked again a minute later. An id that was given stays. Blocking, for a thread; `get` returns within some seconds.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from ottla.clock import Clock
from ottla.errors import reason_of
from ottla.network.registry_http import ask_registry, without_user_info
from ottla.record.audit_records import SCHEMA, TOPIC

log: Final = logging.getLogger(__name__)

PATH: Final = f"/subjects/{TOPIC}-value/versions"
AGAIN_SECONDS: Final = 60.0
_ANSWER_SECONDS: Final = 2.0
_MOST_BYTES: Final = 64 * 1024


class AuditSchemaId:
    """The id, once a registry has given one.

    Args:
        urls: of the registry's nodes, `http://host:port`; of none there is never an id.
        user_info: `name:password`, where they ask for one.
    """

    def __init__(self, urls: Sequence[str], clock: Clock, user_info: str | None = None) -> None:
        self._urls = tuple(urls)
        self._clock = clock
        self._user_info = user_info
        self._id: int | None = None
        self._ask_at = 0.0

    def get(self) -> int | None:
        """The id; None without one for now."""
        if self._id is not None or not self._urls or self._clock.monotonic() < self._ask_at:
            return self._id
        failures = []
        for url in self._urls:
            try:
                self._id = self._registered(url)
                return self._id
            except (OSError, ValueError) as error:
                failures.append(f"{without_user_info(url)}: {reason_of(error)}")
        self._ask_at = self._clock.monotonic() + AGAIN_SECONDS
        log.warning("audit records are framed without a schema registry's id, as there is none: %s", "; ".join(failures))
        return None

    def _registered(self, url: str) -> int:
        body = json.dumps({"schema": json.dumps(SCHEMA)}).encode()
        answer = ask_registry(
            url, PATH, method="POST", body=body, user_info=self._user_info, timeout_seconds=_ANSWER_SECONDS, most_bytes=_MOST_BYTES
        )
        if answer.status != HTTPStatus.OK:
            raise ValueError(f"{answer.status} {answer.reason}")
        said = json.loads(answer.body)
        found = said.get("id") if isinstance(said, dict) else None
        if not isinstance(found, int) or not 0 < found < 1 << 31:
            raise ValueError(f"{found!r} is no id")
        return found

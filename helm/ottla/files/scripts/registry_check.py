"""`helm test`: a schema is registered through the Service, read by its id at every node, and deleted for good.

registry_check.py SERVICE_URL SECONDS NODE_URL ...

Where the registry asks for a password, that each node does is all that is looked at.
"""

# ruff: noqa: T201  (what it prints is the pod's log)
from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
import uuid
from contextlib import suppress
from typing import Any

ANSWER_SECONDS = 10.0
PAUSE_SECONDS = 1.0
OFFSET = "X-Registry-Offset"
MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class PasswordAsked(Exception):
    """By a registry with `authentication.method`; the check has none."""


def ask(method: str, url: str, body: Any = None, offset: str = "0") -> tuple[Any, str]:
    """The answer, and the offset up to which the node knew the topic; a node that is asked with one waits until it knows as much."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": MEDIA_TYPE, OFFSET: offset}, method=method)
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        return json.load(answer), answer.headers.get(OFFSET, offset)


def until_answered(deadline: float, method: str, url: str, body: Any) -> tuple[Any, str]:
    """The first answer that is no failure of the registry's; right after an installation no one may lead yet. Raises PasswordAsked."""
    while True:
        try:
            return ask(method, url, body)
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError) and error.code == 401:
                raise PasswordAsked from error
            is_refusal = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if is_refusal or time.monotonic() > deadline:
                raise SystemExit(f"{method} {url}: {error}") from error
            print(f"{method} {url}: {error}", flush=True)
            time.sleep(PAUSE_SECONDS)


def check(service: str, seconds: float, nodes: list[str]) -> None:
    """There and back."""
    subject = f"ottla-check-{uuid.uuid4().hex[:8]}-value"
    schema = json.dumps({"type": "record", "name": subject.replace("-", "_"), "fields": [{"name": "number", "type": "long"}]})
    deadline = time.monotonic() + seconds
    try:
        registered, offset = until_answered(deadline, "POST", f"{service}/subjects/{subject}/versions", {"schema": schema})
    except PasswordAsked:
        for node in nodes:
            with suppress(PasswordAsked):
                until_answered(deadline, "GET", f"{node}/subjects", None)
            print(f"{node} asks for a password, and so it answers", flush=True)
        return
    identifier = registered["id"]
    print(f"{subject} is registered under the id {identifier}", flush=True)
    try:
        for node in nodes:
            found, _ = ask("GET", f"{node}/schemas/ids/{identifier}", offset=offset)
            if json.loads(found["schema"]) != json.loads(schema):
                raise SystemExit(f"{node} has another schema under the id {identifier}: {found['schema']}")
            print(f"{node} has it", flush=True)
    finally:
        for query in ("", "?permanent=true"):
            _, offset = ask("DELETE", f"{service}/subjects/{subject}{query}", offset=offset)


def main() -> None:
    """The check's command."""
    service, seconds, *nodes = sys.argv[1:]
    try:
        check(service, float(seconds), nodes)
    except OSError as error:
        raise SystemExit(f"{service}: {error}") from error


if __name__ == "__main__":
    main()

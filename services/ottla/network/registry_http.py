"""One question to a schema registry by HTTP, and its answer: for the broker that checks ids, the mirror maker that copies
schemas and the load that decodes by them.

Blocking, for a thread. What an answer means is the caller's affair.
"""

from __future__ import annotations

import base64
import ssl
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from ottla.errors import reason_of

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"


class RegistryAnswer(NamedTuple):
    """What came back, whatever its status."""

    status: int
    reason: str
    body: bytes


def without_user_info(url: str) -> str:
    """A registry's address as it may be logged: `http://user:password@host` has a secret."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def ask_registry(
    url: str,
    path: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    user_info: str | None = None,
    timeout_seconds: float,
    most_bytes: int,
) -> RegistryAnswer:
    """Asks one registry, by a connection of its own.

    Args:
        url: `http://host:port` or `https://…`, with a path before the registry's own or without.
        path: behind that, quoted, with its query.
        user_info: `name:password`, where it asks for one. None: what the URL has before its host, quoted, as Confluent's clients.
        timeout_seconds: for each step of the connection.
        most_bytes: of an answer.

    Raises:
        OSError: no answer in time, one that is not HTTP, or one that is larger.
    """
    import http.client  # at a cost that only those pay who have a registry

    parts = urlsplit(url)
    host, headers = parts.hostname or "", {"Accept": f"{MEDIA_TYPE}, application/json"}
    if body is not None:
        headers["Content-Type"] = MEDIA_TYPE
    user_info = user_info or unquote(parts.netloc.rpartition("@")[0])
    if user_info:
        headers["Authorization"] = "Basic " + base64.b64encode(user_info.encode()).decode()
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        tls = ssl.create_default_context()
        connection = http.client.HTTPSConnection(host, parts.port or 443, timeout=timeout_seconds, context=tls)
    else:
        connection = http.client.HTTPConnection(host, parts.port or 80, timeout=timeout_seconds)
    try:
        connection.request(method, parts.path.rstrip("/") + path, body, headers)
        response = connection.getresponse()
        answer = response.read(most_bytes + 1)
    except http.client.HTTPException as error:
        raise ConnectionError(f"{without_user_info(url)} answers what is no HTTP: {reason_of(error)}") from error
    finally:
        connection.close()
    if len(answer) > most_bytes:
        raise ConnectionError(f"{without_user_info(url)} answers {response.status} with more than {most_bytes} bytes")
    return RegistryAnswer(response.status, response.reason, answer)

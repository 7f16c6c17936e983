"""The API's description, as OpenAPI 3.1; a test compares its paths with the routes."""

from __future__ import annotations

from typing import Any, Final

_FROM_TO: Final = [
    {"name": name, "in": "query", "schema": {"type": "string"}, "description": "Milliseconds since the epoch, or ISO 8601."}
    for name in ("from", "to")
]
_TOPIC: Final = {"name": "topic", "in": "path", "required": True, "schema": {"type": "string"}}
_WAIT: Final = {"name": "wait", "in": "query", "schema": {"type": "number"}, "description": "Seconds; 15 at most."}
_PATHS: Final[dict[str, tuple[str, list[dict[str, Any]]]]] = {
    "/v1/status": ("Where the counter stands; once it has read all that is there now, or `wait` seconds are over.", [_WAIT]),
    "/v1/topics": ("Every topic with its verdicts and messages.", []),
    "/v1/topics/{topic}/windows": (
        "What each tier had, by window.",
        [_TOPIC, *_FROM_TO, {"name": "tier", "in": "query", "schema": {"type": "string"}}],
    ),
    "/v1/topics/{topic}/partitions": ("What each tier had of each partition, all windows of the span added up.", [_TOPIC, *_FROM_TO]),
    "/v1/topics/{topic}/edges": (
        "What is said of each edge, by window; `window_ms` is how long it is, as the windows of an hour that is past are folded into one.",
        [_TOPIC, *_FROM_TO],
    ),
    "/v1/topics/{topic}/missing": (
        "The messages that differ on an edge in a window.",
        [_TOPIC, *({"name": name, "in": "query", "required": True, "schema": {"type": "string"}} for name in ("window", "edge"))],
    ),
    "/v1/topics/{topic}/verify": (
        "The worst of all verdicts, once they are known or `wait` seconds are over.",
        [_TOPIC, *_FROM_TO, {"name": "tiers", "in": "query", "schema": {"type": "string"}}, _WAIT],
    ),
    "/v1/sessions": ("Who reports.", []),
    "/v1/canary": ("The canary of this counter, by partition; an active counter has one where `audit.canary.enable` is true.", []),
    "/v1/events": (
        "Verdicts as they change, as server-sent events; none is sent again to who was away.",
        [{"name": "topic", "in": "query", "schema": {"type": "string"}}],
    ),
    "/v1/openapi.json": ("This.", []),
}
_PROBLEM: Final = {"description": "A problem (RFC 9457).", "content": {"application/problem+json": {"schema": {"type": "object"}}}}


def openapi() -> dict[str, Any]:
    """The whole description."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ottla audit counter", "version": "1"},
        "paths": {
            path: {
                "get": {
                    "summary": summary,
                    "parameters": parameters,
                    "responses": {"200": {"description": "As asked."}, **{str(code): _PROBLEM for code in (400, 404, 409, 503)}},
                }
            }
            for path, (summary, parameters) in _PATHS.items()
        },
    }

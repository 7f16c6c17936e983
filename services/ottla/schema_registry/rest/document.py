"""OpenAPI and the tables of docs/schema-registry.md, made from the routes.

`python -m ottla.schema_registry.rest.document docs/schema-registry.md` writes the tables between their marks; a test compares.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ottla.schema_registry.rest.routes import BODIES, ROUTES, Parameter, Route
from ottla.schema_registry.state.errors import BY_CODE, RegistryError

BEGIN, END = "<!-- made from ottla.schema_registry.rest.routes: begin -->", "<!-- made from ottla.schema_registry.rest.routes: end -->"
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"


def openapi(version: str) -> dict[str, Any]:
    """The API as an OpenAPI 3.0 document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        operation: dict[str, Any] = {
            "operationId": f"{route.name}_{route.method.lower()}" if route.name == "root" else route.name,
            "summary": route.summary,
            "parameters": [*_of_path(route), *map(_of_query, route.parameters)],
            "responses": {str(route.status): {"description": route.answer}, **_responses(route)},
        }
        if route.body:
            operation["requestBody"] = {
                "required": True,
                "content": {_MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{route.body}"}}},
            }
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    schemas = {
        name: {"type": "object", "properties": {field: _typed(kind) for field, kind in fields.items()}} for name, fields in BODIES.items()
    }
    schemas["error"] = {"type": "object", "properties": {"error_code": {"type": "integer"}, "message": {"type": "string"}}}
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "Ottla schema registry",
            "version": version,
            "description": "Confluent's API; each path is behind /contexts/{context} too.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _typed(kind: str) -> dict[str, Any]:
    return {"type": "array", "items": {}} if kind == "array" else {"type": kind}


def _of_path(route: Route) -> Iterator[dict[str, Any]]:
    for segment in route.segments:
        if segment.startswith("{"):
            kind = "integer" if segment == "{id}" else "string"
            yield {"name": segment[1:-1], "in": "path", "required": True, "schema": {"type": kind}}


def _of_query(parameter: Parameter) -> dict[str, Any]:
    kind = {"type": "array", "items": {"type": "string"}} if parameter.kind == "list" else {"type": parameter.kind}
    return {"name": parameter.name, "in": "query", "description": parameter.doc, "schema": kind}


def _responses(route: Route) -> dict[str, Any]:
    by_status: dict[int, list[int]] = {}
    for error in route.errors:
        by_status.setdefault(_status(error), []).append(error.code)
    content = {_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/error"}}}
    return {
        str(status): {"description": f"error_code {', '.join(map(str, sorted(codes)))}", "content": content}
        for status, codes in sorted(by_status.items())
    }


def _status(error: type[RegistryError]) -> int:
    return error("").status


def tables() -> str:
    """The routes and the errors, for the page."""
    lines = ["| path | method | what | query | answer | errors |", "|---|---|---|---|---|---|"]
    for route in ROUTES:
        query = ", ".join(f"`{parameter.name}`" for parameter in route.parameters)
        codes = ", ".join(str(error.code) for error in sorted(route.errors, key=lambda error: error.code))
        lines.append(f"| `{route.path}` | {route.method} | {_cell(route.summary)} | {query} | {_cell(route.answer)} | {codes} |")
    lines += ["", "Parameters:", "", "| parameter | meaning |", "|---|---|"]
    parameters = {(parameter.name, parameter.doc): parameter for route in ROUTES for parameter in route.parameters}
    lines += [f"| `{name}` | {_cell(doc)} |" for name, doc in sorted(parameters)]
    lines += ["", "Errors:", "", "| HTTP | `error_code` | meaning |", "|---|---|---|"]
    lines += [
        f"| {_status(error)} | {code} | {_cell(error.__doc__ or '')} |"
        for code, error in sorted(BY_CODE.items(), key=lambda each: (_status(each[1]), each[0]))
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def page(text: str) -> str:
    """The page with its tables as they are now."""
    return re.sub(rf"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n\n{tables()}\n\n{END}", text, flags=re.DOTALL)


def main() -> None:
    """Writes the page."""
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

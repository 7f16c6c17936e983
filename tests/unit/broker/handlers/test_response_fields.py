"""A response schema drops fields that its version lacks, so a misspelt one would go unseen; this test sees it."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.index import load_response_schema
from kio.schema.index import api_key_map, schema_name_map

from ottla.broker import handlers
from ottla.broker.handlers.registry import APIS
from ottla.protocol.schemas import schema_fields

handlers.load()
MODULES = sorted({api.handle.__module__ for api in APIS.values()} - {"ottla.broker.handlers.fetch"})  # which is written by hand


def fields_of_every_version(module: str) -> dict[str, set[str]]:
    """Each class of the responses of a module's APIs, with the fields that it has in any version."""
    found: dict[str, set[str]] = {}
    for key, api in APIS.items():
        for version in schema_name_map[api_key_map[key]] if api.handle.__module__ == module else ():
            classes = importlib.import_module(load_response_schema(key, version).__module__)
            for name, schema in vars(classes).items():
                if getattr(schema, "__module__", "") == classes.__name__:
                    found.setdefault(name, set()).update(field.name for field in schema_fields(schema))
    return found


def calls_of_schema(module: str) -> Iterator[tuple[str, ast.Call]]:
    """We read the handler's source: each call `schema("Class", field=…)`."""
    for call in ast.walk(ast.parse(Path(importlib.import_module(module).__file__ or "").read_text())):
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant):
            called = call.func.func if isinstance(call.func, ast.Call) else call.func
            if (getattr(called, "id", "") or getattr(called, "attr", "")).endswith("schema"):
                yield str(call.args[0].value), call


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.rpartition(".")[2])
def test_every_class_and_field_that_a_handler_gives_exists_in_some_version(module: str) -> None:
    known, given = fields_of_every_version(module), list(calls_of_schema(module))
    assert any(name.endswith("Response") for name, _ in given)
    for name, call in given:
        assert {keyword.arg for keyword in call.keywords if keyword.arg} <= known[name], f"{name} at line {call.lineno}"

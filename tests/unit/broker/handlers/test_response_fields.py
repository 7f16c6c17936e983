"""A response schema drops fields that its version lacks, so a misspelt one would go unseen; this test sees it."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
from kio.index import load_response_schema
from kio.schema.index import api_key_map, schema_name_map

from ottla.broker import handlers
from ottla.broker.handlers.registry import APIS
from ottla.protocol.api import ApiKey
from ottla.protocol.schemas import schema_fields

handlers.load()
BUILT_WITH_A_SCHEMA = [
    ApiKey.METADATA,
    ApiKey.LIST_OFFSETS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.DELETE_RECORDS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.DESCRIBE_CLUSTER,
]


def fields_of_every_version(key: ApiKey) -> dict[str, set[str]]:
    """Each class of the API's responses, with the fields that it has in any version."""
    found: dict[str, set[str]] = {}
    for version in schema_name_map[api_key_map[key]]:
        module = importlib.import_module(load_response_schema(key, version).__module__)
        for name, schema in vars(module).items():
            if getattr(schema, "__module__", "") == module.__name__:
                found.setdefault(name, set()).update(field.name for field in schema_fields(schema))
    return found


@pytest.mark.parametrize("key", BUILT_WITH_A_SCHEMA, ids=lambda key: key.api_name)
def test_every_field_that_a_handler_gives_exists_in_some_version(key: ApiKey) -> None:
    """We read the handler's source: each call `schema("Class", field=…)`."""
    source = Path(importlib.import_module(APIS[key].handle.__module__).__file__ or "").read_text()
    known = fields_of_every_version(key)
    calls = [
        call
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value in known
    ]
    assert any(call.args[0].value == f"{key.api_name}Response" for call in calls)  # type: ignore[attr-defined]
    for call in calls:
        name = call.args[0].value  # type: ignore[attr-defined]
        assert {keyword.arg for keyword in call.keywords if keyword.arg} <= known[name], f"{name} at line {call.lineno}"


@pytest.mark.parametrize("key", BUILT_WITH_A_SCHEMA, ids=lambda key: key.api_name)
def test_every_class_that_a_handler_names_exists_in_some_version(key: ApiKey) -> None:
    source = Path(importlib.import_module(APIS[key].handle.__module__).__file__ or "").read_text()
    named = {
        call.args[0].value
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and isinstance(call.func, (ast.Name, ast.Attribute))
        and (call.func.id if isinstance(call.func, ast.Name) else call.func.attr).endswith("schema")
        and call.args
        and isinstance(call.args[0], ast.Constant)
    }
    assert named <= set(fields_of_every_version(key))

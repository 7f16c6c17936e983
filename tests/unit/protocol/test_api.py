"""Our tables of names and flexible versions against kio's schemas, which are generated from Kafka's definitions."""

from __future__ import annotations

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map

from ottla.protocol.api import ApiKey, is_flexible, response_header_size


@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.api_name)
def test_every_api_has_kafkas_name_and_its_flexible_versions(key: ApiKey) -> None:
    """KIP-482: request header 2 and response header 1 go with a flexible version."""
    for version in schema_name_map[api_key_map[key]]:
        schema = load_request_schema(key, version)
        assert schema.__name__ == f"{key.api_name}Request"
        assert is_flexible(key, version) == schema.__flexible__


@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.api_name)
def test_the_response_header_has_the_size_of_kafkas(key: ApiKey) -> None:
    """ApiVersions answers with header 0 at every version (KIP-511), so that any client can read it."""
    for version in schema_name_map[api_key_map[key]]:
        has_tags = load_response_schema(key, version).__header_schema__.__version__ == 1
        assert response_header_size(key, version) == (5 if has_tags else 4)

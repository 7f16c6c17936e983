"""ApiVersions: what the table of handlers has, in each version, in bytes that old clients can read."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from ottla.broker.handlers import api_versions
from ottla.broker.handlers.registry import APIS
from ottla.protocol import produce
from ottla.protocol.api import ApiKey

from ..wired import Wired, encode, framed, schema, wired

VERSIONS = range(api_versions.MIN_VERSION, api_versions.MAX_VERSION + 1)


def request(version: int, name: str = "librdkafka", software_version: str = "2.0.2") -> bytes:
    made = schema(ApiKey.API_VERSIONS, version, "request").ApiVersionsRequest
    named = {"client_software_name": name, "client_software_version": software_version} if version >= 3 else {}
    return framed(ApiKey.API_VERSIONS, version, 7, encode(made(**named)))


@pytest.fixture
def broker(tmp_path: Path) -> AbstractAsyncContextManager[Wired]:
    """One that clients connect to."""
    return wired(tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_handler_is_listed_with_its_versions(broker: Wired, version: int) -> None:
    """Produce from 0, though 0 to 2 are refused: librdkafka turns compression off otherwise (KAFKA-18659)."""
    client = await broker.connect()
    client.write(request(version))
    correlation_id, response = await client.answer(ApiKey.API_VERSIONS, version)
    assert (correlation_id, int(response.error_code)) == (7, 0)
    found = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    served = {key: each for key, each in APIS.items() if each.is_served(broker.parts.settings)}
    assert ApiKey.CONSUMER_GROUP_HEARTBEAT not in served, "clients infer Kafka 4.0 from it"
    wanted = {key: (each.min_version, each.max_version) for key, each in served.items()}
    assert found == {**wanted, 0: (0, produce.MAX_VERSION)}
    assert list(found) == sorted(found)


@pytest.mark.parametrize("named", [("", "1"), ("client", ""), ("-a", "1"), ("a", "1."), ("a b", "1"), ("a", "1_2"), ("a", "1\n")])
async def test_a_client_whose_name_or_version_is_none_is_refused(broker: Wired, named: tuple[str, str]) -> None:
    """As by Kafka (KIP-511), so that who writes a client notices before it meets one."""
    client = await broker.connect()
    client.write(request(3, *named))
    _, response = await client.answer(ApiKey.API_VERSIONS, 3)
    assert (int(response.error_code), response.api_keys) == (42, ())
    client.write(request(3, "c", "1.0-rc1"))
    _, response = await client.answer(ApiKey.API_VERSIONS, 3)
    assert int(response.error_code) == 0


@pytest.mark.parametrize("version", [3, 4])
async def test_tagged_fields_that_hold_their_default_are_left_out(broker: Wired, version: int) -> None:
    """librdkafka 2.0.2, Debian's, cannot read them. The last byte is the count of tagged fields."""
    client = await broker.connect()
    client.write(request(version))
    frame = await client.frame()
    # correlation id, error code, count + 1, then key, min, max, no tags each; throttle time; no tags
    served = sum(api.is_served(broker.parts.settings) for api in APIS.values())
    assert len(frame) == 4 + 2 + 1 + 7 * (1 + served) + 4 + 1
    assert frame[-1] == 0

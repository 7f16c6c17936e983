"""Where metrics and health are asked for."""

from __future__ import annotations

import pytest

from ottla.config.broker import BrokerSettings
from ottla.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "host", "port"), [("127.0.0.1:9404", "127.0.0.1", 9404), (":9404", "", 9404), ("[::1]:0", "::1", 0), (" here:1 ", "here", 1)]
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    address = BrokerSettings.from_properties({"http.listener": text}).http_address
    assert address is not None and (address.host, address.port) == (host, port)


def test_unset_is_nowhere_and_partitions_have_no_series_of_their_own() -> None:
    settings = BrokerSettings.from_properties({})
    assert settings.http_address is None and not settings.metrics_partition_enabled


@pytest.mark.parametrize("text", ["9404", "http://:9404", ":70000", "a:1,b:2", "a,b:2", ":", "a..b:1", f"{'a' * 64}:1"])
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"http\.listener") as refused:
        BrokerSettings.from_properties({"http.listener": text})
    assert "NAME" not in str(refused.value) and "HTTP" not in str(refused.value)

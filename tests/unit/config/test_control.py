"""Where brokers call each other: what is set, what is told to the others, and what is refused."""

from __future__ import annotations

import pytest

from ottla.config.broker import BrokerSettings
from ottla.errors import ConfigurationError

SSL = {"control.security.protocol": "SSL"}


@pytest.mark.parametrize(
    ("listeners", "control", "advertised", "address", "endpoint"),
    [
        ("PLAINTEXT://:9092", None, None, ("", 0), "here:4000"),
        ("PLAINTEXT://127.0.0.1:9092", None, None, ("127.0.0.1", 0), "127.0.0.1:4000"),
        ("PLAINTEXT://[::1]:9092", None, None, ("::1", 0), "[::1]:4000"),
        ("PLAINTEXT://:9092", ":9095", None, ("", 9095), "here:4000"),
        ("PLAINTEXT://:9092", "0.0.0.0:9095", "broker-1.cluster:80", ("0.0.0.0", 9095), "broker-1.cluster:80"),
        ("PLAINTEXT://:9092", None, "[2001:db8::1]:80", ("", 0), "[2001:db8::1]:80"),
    ],
)
def test_what_is_not_said_follows_from_the_inter_broker_listener(
    listeners: str, control: str | None, advertised: str | None, address: tuple[str, int], endpoint: str
) -> None:
    given = {"listeners": listeners, "control.listener": control, "control.advertised.listener": advertised}
    read = BrokerSettings.from_properties({name: value for name, value in given.items() if value is not None})
    assert (read.control_address.host, read.control_address.port) == address
    assert not read.control_address.is_tls
    assert read.advertised_control_endpoint("here", 4000) == endpoint


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"control.listener": "SSL://:9095"}, "goes in brackets); control.security.protocol says what is spoken"),
        ({"control.listener": "9095"}, "control.listener = '9095': is not host:port"),
        ({"control.listener": ":70000"}, "port 70000 is not in"),
        ({"control.advertised.listener": ":9095"}, "brokers cannot call"),
        ({"control.advertised.listener": "broker-1:0"}, "brokers cannot call"),
        ({"control.security.protocol": "SASL_SSL"}, "must be one of PLAINTEXT, SSL"),
        (SSL, "set ssl.keystore.location"),
        ({**SSL, "ssl.keystore.location": "a.pem"}, "set ssl.truststore.location"),
        (
            {**SSL, "ssl.keystore.location": "a.pem", "ssl.truststore.location": "b.pem", "ssl.key.password": "secret"},
            "a private key that is not encrypted only",
        ),
    ],
)
def test_what_brokers_could_not_be_called_at_is_refused(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        BrokerSettings.from_properties(given)
    assert complaint in str(refused.value)
    assert "secret" not in str(refused.value)


def test_tls_of_control_can_be_set_apart_from_that_of_clients() -> None:
    """A cluster's own authority for its brokers, another for its clients."""
    read = BrokerSettings.from_properties(
        {
            **SSL,
            "listener.name.control.ssl.keystore.location": "control.pem",
            "listener.name.control.ssl.truststore.location": "brokers.pem",
        }
    )
    assert read.control_address.is_tls
    assert read.for_listener("CONTROL").ssl_keystore_location == "control.pem"
    assert read.ssl_keystore_location is None

"""Where operators ask a service by gRPC: the same means with the same names at each of the three, and nothing by half."""

from __future__ import annotations

import pytest

from ottla.config.audit import AuditSettings
from ottla.config.environment import from_environment
from ottla.config.mirror import MirrorSettings
from ottla.config.registry import RegistrySettings
from ottla.config.rpc import RpcClientSettings, RpcSettings
from ottla.errors import ConfigurationError

NEEDED = {
    AuditSettings: {},
    RegistrySettings: {"kafkastore.bootstrap.servers": "a:9092"},
    MirrorSettings: {"clusters": "A,B", "A.bootstrap.servers": "a:9092", "B.bootstrap.servers": "b:9092"},
}
SERVICES = pytest.mark.parametrize("service", list(NEEDED))
SSL = {"rpc.listener": ":9095", "rpc.security.protocol": "SSL"}
STORES = {"listener.name.rpc.ssl.keystore.location": "own.pem", "listener.name.rpc.ssl.truststore.location": "operators.pem"}


def read(service: type[RpcSettings], given: dict[str, str]) -> RpcSettings:
    return service.from_properties({**NEEDED[service], **given})


@SERVICES
def test_a_service_speaks_tls_with_stores_that_are_its_gRPC_listeners_alone(service: type[RpcSettings]) -> None:
    settings = read(service, {**SSL, **STORES, "rpc.allowed.principals": "ann, bob"})
    assert settings.rpc_address is not None and settings.rpc_address.is_tls
    assert (settings.for_rpc().ssl_keystore_location, settings.for_rpc().ssl_truststore_location) == ("own.pem", "operators.pem")
    assert settings.value_of("ssl.keystore.location") is None
    assert settings.rpc_allowed_principals == ("ann", "bob")


@SERVICES
@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (SSL, "rpc.listener: set ssl.keystore.location"),
        ({**SSL, "listener.name.rpc.ssl.keystore.location": "own.pem"}, "rpc.listener: set ssl.truststore.location"),
        ({**SSL, **STORES, "listener.name.rpc.ssl.key.password": "secret"}, "a private key that is not encrypted only"),
        ({**STORES, "rpc.security.protocol": "SSL"}, "rpc.security.protocol = SSL: rpc.listener is not set"),
        ({"rpc.listener": ":9095", **STORES}, "listener.name.rpc.ssl.keystore.location is set, and rpc.security.protocol is PLAINTEXT"),
        (
            {"rpc.listener": ":9095", "rpc.allowed.principals": "ann"},
            "rpc.allowed.principals is set, and rpc.security.protocol is PLAINTEXT",
        ),
        ({"rpc.listener": ":9095", "rpc.security.protocol": "SASL_SSL"}, "must be one of PLAINTEXT, SSL"),
    ],
)
def test_what_is_secured_by_half_is_refused(service: type[RpcSettings], given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(service, given)
    assert complaint in str(refused.value)
    assert "secret" not in str(refused.value)


@SERVICES
def test_variables_say_it_too(service: type[RpcSettings]) -> None:
    variables = {
        "OTTLA_SETTING_RPC_LISTENER": ":9095",
        "OTTLA_SETTING_RPC_SECURITY_PROTOCOL": "SSL",
        "OTTLA_SETTING_LISTENER_NAME_RPC_SSL_KEYSTORE_LOCATION": "own.pem",
        "OTTLA_SETTING_LISTENER_NAME_RPC_SSL_TRUSTSTORE_LOCATION": "operators.pem",
    }
    settings = read(service, dict(from_environment(service, variables, NEEDED[service])))
    assert settings.for_rpc().ssl_truststore_location == "operators.pem"


def test_a_registrys_gRPC_shows_what_its_api_shows_unless_it_has_its_own() -> None:
    settings = read(RegistrySettings, {**SSL, "ssl.keystore.location": "api.pem", "ssl.truststore.location": "all.pem"})
    assert settings.for_rpc().ssl_keystore_location == "api.pem"


def test_a_mirror_maker_is_not_left_to_guess_whose_store_it_is() -> None:
    with pytest.raises(ConfigurationError, match=r"A\.ssl\.keystore\.location or B\.ssl\.keystore\.location, or listener\.name\.rpc\."):
        read(MirrorSettings, {"ssl.keystore.location": "own.pem"})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"security.protocol": "SSL", "ssl.truststore.location": "a.pem"}, "set ssl.keystore.location"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "a.pem"}, "set ssl.truststore.location"),
        ({"ssl.keystore.location": "a.pem"}, "security.protocol is PLAINTEXT"),
        (
            {
                "security.protocol": "SSL",
                "ssl.keystore.location": "a.pem",
                "ssl.truststore.location": "b.pem",
                "ssl.endpoint.identification.algorithm": "",
            },
            "gRPC always checks",
        ),
        ({"bootstrap.servers": "a:9092"}, "unknown setting 'bootstrap.servers'"),
    ],
)
def test_a_commands_file_that_says_it_by_half_is_refused(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RpcClientSettings.from_properties(given)
    assert complaint in str(refused.value)

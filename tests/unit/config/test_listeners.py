"""Listeners: Kafka's `NAME://host:port` lists, checked before a socket is opened."""

from __future__ import annotations

import contextlib

import pytest

from ottla.config import properties
from ottla.config.broker import BrokerSettings
from ottla.config.listeners import Listener, parse_listeners, parse_protocol_map
from ottla.errors import ConfigurationError
from ottla.model import Endpoint
from ottla.network.tls import TlsSettings, check_between_brokers
from ottla.rpc.tls import tls_of
from ottla.testing.certificates import Authority

PROTOCOLS = parse_protocol_map("PLAINTEXT:PLAINTEXT,SSL:SSL,internal:plaintext")
MAP = "listener.security.protocol.map"


def test_hosts_may_be_missing_names_or_addresses_of_both_families() -> None:
    text = "PLAINTEXT://:9092, ssl://broker-1.example.org:9093, INTERNAL://[::1]:0"
    assert parse_listeners("listeners", text, PROTOCOLS) == (
        Listener("PLAINTEXT", "", 9092, "PLAINTEXT"),
        Listener("SSL", "broker-1.example.org", 9093, "SSL"),
        Listener("INTERNAL", "::1", 0, "PLAINTEXT"),
    )


@pytest.mark.parametrize("zone", ["3", "eth0", "br-1.100"])
def test_an_address_of_one_link_has_its_interface_behind_it(zone: str) -> None:
    """SocketServerConfigsTest.testAnotherListenerListToEndPointsWithIpV6; Linux takes an interface by its name too."""
    (listener,) = parse_listeners("listeners", f"SSL://[fe80::b1da:69ca:57f7:63d8%{zone}]:9092", PROTOCOLS)
    assert listener == Listener("SSL", f"fe80::b1da:69ca:57f7:63d8%{zone}", 9092, "SSL")


def test_a_listener_is_shown_as_it_is_written() -> None:
    assert str(Listener("INTERNAL", "::1", 9092, "PLAINTEXT")) == "INTERNAL://[::1]:9092"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "at least one listener is needed"),
        ("localhost:9092", "'localhost:9092' is not NAME://host:port"),
        ("PLAINTEXT://localhost", "is not NAME://host:port"),
        ("PLAINTEXT://::1:9092", "an IPv6 address goes in brackets"),
        ("PLAINTEXT://:70000", "port 70000 is not in [0, 65535]"),
        ("PLAINTEXT://:-1", "port -1 is not in [0, 65535]"),
        ("PLAINTEXT://a..b:1", "'a..b' is not the name of a host"),
        ("PLAINTEXT://:1,PLAINTEXT://:2", "PLAINTEXT is there twice"),
        ("PLAINTEXT://:1,SSL://:1", "two listeners at :1"),
        ("PLAINTXT://:1", "does not have PLAINTXT; did you mean 'PLAINTEXT'?"),
        ("a b://:1", "letters, digits, - and _"),
    ],
)
def test_a_listener_that_could_not_be_opened_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_listeners("listeners", text, PROTOCOLS)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("A", "'A' is not NAME:PROTOCOL"), ("A:TLS", "'TLS' is not one of"), ("A:SSL,a:PLAINTEXT", "A is there twice")],
)
def test_a_protocol_map_that_says_nothing_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        parse_protocol_map(text)


def test_clients_are_told_the_advertised_address_of_the_listener_they_use() -> None:
    settings = BrokerSettings.from_properties(
        {
            "listeners": "INTERNAL://:9092,EXTERNAL://0.0.0.0:9093",
            "advertised.listeners": "INTERNAL://broker-1:9092,EXTERNAL://kafka.example.org:443",
            MAP: "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
        }
    )
    assert settings.advertised_endpoints() == (
        Endpoint("INTERNAL", "broker-1", 9092),
        Endpoint("EXTERNAL", "kafka.example.org", 443),
    )


def test_without_advertised_listeners_clients_are_told_this_host_and_the_port_that_was_bound() -> None:
    settings = BrokerSettings.from_properties({"listeners": "PLAINTEXT://:0"})
    assert settings.advertised_endpoints("this-host", {"PLAINTEXT": 40123}) == (Endpoint("PLAINTEXT", "this-host", 40123),)


@pytest.mark.parametrize(
    ("advertised", "complaint"),
    [("SSL://host:1", "has no counterpart in listeners"), ("PLAINTEXT://0.0.0.0:1", "clients cannot connect")],
)
def test_an_address_that_no_client_could_use_is_not_advertised(advertised: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        BrokerSettings.from_properties({"listeners": "PLAINTEXT://:9092", "advertised.listeners": advertised})


def test_the_listener_that_brokers_use_has_to_be_advertised() -> None:
    """Kafka refuses it too: no other broker would find this one."""
    given = {"listeners": "IN://:1,OUT://:2", MAP: "IN:PLAINTEXT,OUT:PLAINTEXT", "inter.broker.listener.name": "IN"}
    with pytest.raises(ConfigurationError, match="IN is missing, by which other brokers reach this one"):
        BrokerSettings.from_properties({**given, "advertised.listeners": "OUT://kafka.example.org:2"})
    BrokerSettings.from_properties({**given, "advertised.listeners": "OUT://kafka.example.org:2,IN://broker-1:1"})


def test_sasl_listeners_are_refused_and_not_served_without_sasl() -> None:
    with pytest.raises(ConfigurationError, match="this release serves PLAINTEXT and SSL only"):
        BrokerSettings.from_properties({"listeners": "PLAINTEXT://:1,SASL_PLAINTEXT://:9092"})


def test_the_inter_broker_listener_is_the_one_named_or_the_one_of_the_protocol() -> None:
    names = {"listeners": "A://:1,B://:2", MAP: "A:PLAINTEXT,B:PLAINTEXT"}
    assert BrokerSettings.from_properties(names).inter_broker_listener.name == "A"
    assert BrokerSettings.from_properties({**names, "inter.broker.listener.name": "b"}).inter_broker_listener.name == "B"
    with pytest.raises(ConfigurationError, match="C is not one of listeners"):
        BrokerSettings.from_properties({**names, "inter.broker.listener.name": "C"})


def test_the_inter_broker_listener_is_kafkas() -> None:
    """Without a name it is the one that is called as the protocol; `KafkaConfigTest.testInterBrokerListenerNameAndSecurityProtocolSet`."""
    names = {"listeners": "OUT://:1,PLAINTEXT://:2", MAP: "OUT:PLAINTEXT,PLAINTEXT:PLAINTEXT"}
    assert BrokerSettings.from_properties(names).inter_broker_listener.name == "PLAINTEXT"
    with pytest.raises(ConfigurationError, match=r"security\.inter\.broker\.protocol is set too"):
        BrokerSettings.from_properties({**names, "inter.broker.listener.name": "OUT", "security.inter.broker.protocol": "SSL"})


@pytest.mark.parametrize(
    ("first", "second", "is_refused"),
    [
        ("", "0.0.0.0", True),
        ("127.0.0.1", "", True),
        ("[::]", "[::1]", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("", "[::1]", False),
        ("[::]", "0.0.0.0", False),
    ],
)
def test_two_listeners_that_cannot_be_bound_are_refused_at_once(first: str, second: str, is_refused: bool) -> None:
    """`KafkaConfigTest.testIPv4AndIPv6SamePortListeners`; a broker became the controller before it found out.

    Unlike Kafka: two addresses of one family may do.
    """
    given = {"listeners": f"A://{first}:9092,B://{second}:9092", MAP: "A:PLAINTEXT,B:PLAINTEXT"}
    with pytest.raises(ConfigurationError, match="two listeners at") if is_refused else contextlib.nullcontext():
        BrokerSettings.from_properties(given)


TLS = {"listeners": "SSL://:9093", "security.inter.broker.protocol": "SSL"}


@pytest.mark.parametrize(
    ("others", "complaint"),
    [
        ({}, "ssl.keystore.type is JKS, and only PEM is read"),
        ({"ssl.keystore.type": "PEM"}, "set ssl.keystore.location, or both"),
        ({"ssl.keystore.type": "PEM", "ssl.keystore.key": "k"}, "set ssl.keystore.location, or both"),
        ({"ssl.keystore.type": "PEM", "ssl.keystore.location": "f", "ssl.client.auth": "required"}, "set ssl.truststore.location"),
    ],
)
def test_a_tls_listener_needs_a_key_that_can_be_read(others: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        BrokerSettings.from_properties({**TLS, **others})


def test_pem_stands_in_a_file_as_lines_that_end_in_backslashes() -> None:
    """Kafka's page "SSL key and certificates in PEM format", and the `PemParser` of its `DefaultSslEngineFactory`."""
    authority = Authority("an authority")
    key, begin, chain = authority.issue("broker").decode().partition("-----BEGIN CERTIFICATE-----")
    given = {
        "keystore.key": f"a comment\n{key}",
        "keystore.certificate.chain": begin + chain,
        "truststore.certificates": authority.pem.decode() * 2,
    }
    text = "".join(f"ssl.{name}=" + " \\\n".join(pem.splitlines()) + "\n" for name, pem in given.items())
    settings = BrokerSettings.from_properties(properties.parse(f"{text}ssl.client.auth=required\nssl.keystore.type=PEM\n"))
    check_between_brokers(TlsSettings.of(settings))
    assert b"a comment" not in tls_of(settings).private_key


def test_a_listener_can_have_a_key_of_its_own() -> None:
    settings = BrokerSettings.from_properties(
        {
            "listeners": "PLAINTEXT://:1,OUTSIDE://:2",
            MAP: "PLAINTEXT:PLAINTEXT,OUTSIDE:SSL",
            "listener.name.outside.ssl.keystore.type": "PEM",
            "listener.name.outside.ssl.keystore.location": "outside.pem",
        }
    )
    assert settings.for_listener("OUTSIDE").ssl_keystore_location == "outside.pem"
    assert settings.for_listener("PLAINTEXT").ssl_keystore_location is None
    assert settings.ssl_keystore_location is None


def test_what_is_one_for_all_listeners_can_not_be_set_for_one() -> None:
    with pytest.raises(ConfigurationError, match=r"only ssl\.… can be set for one"):
        BrokerSettings.from_properties({"listener.name.outside.max.connections": "3"})


@pytest.mark.parametrize(
    ("text", "host", "port"), [("127.0.0.1:9404", "127.0.0.1", 9404), (":9404", "", 9404), ("[::1]:0", "::1", 0), (" here:1 ", "here", 1)]
)
def test_the_address_of_metrics_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    address = BrokerSettings.from_properties({"http.listener": text}).http_address
    assert address is not None and (address.host, address.port) == (host, port)


def test_an_unset_address_is_nowhere_and_partitions_have_no_series_of_their_own() -> None:
    settings = BrokerSettings.from_properties({})
    assert settings.http_address is None and not settings.metrics_partition_enabled


@pytest.mark.parametrize("text", ["9404", "http://:9404", ":70000", "a:1,b:2", "a,b:2", ":", "a..b:1", f"{'a' * 64}:1"])
def test_what_is_no_address_of_metrics_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"http\.listener") as refused:
        BrokerSettings.from_properties({"http.listener": text})
    assert "NAME" not in str(refused.value) and "HTTP" not in str(refused.value)

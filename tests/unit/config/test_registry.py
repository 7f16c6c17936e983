"""The settings of the schema registry: a file of Confluent's loads, and what cannot be honoured is refused with its line."""

from __future__ import annotations

import pytest

from ottla.config.properties import parse
from ottla.config.registry import PARTS, RegistrySettings
from ottla.errors import ConfigurationError

# As etc/schema-registry/schema-registry.properties of a release of Confluent's has it, with more of what people set.
CONFLUENTS = """
listeners=http://0.0.0.0:8081,https://0.0.0.0:8443
host.name=registry-1
kafkastore.bootstrap.servers=PLAINTEXT://broker-1:9092,SSL://broker-1:9093,broker-2:9092
kafkastore.topic=_schemas
kafkastore.topic.replication.factor=3
kafkastore.timeout.ms=500
kafkastore.init.timeout.ms=60000
kafkastore.security.protocol=PLAINTEXT
leader.eligibility=true
schema.compatibility.level=full_transitive
mode.mutability=true
schema.reject.empty.subject=false
access.control.allow.methods=GET,POST,PUT,OPTIONS
access.control.allow.origin=*
access.control.allow.headers=Content-Type
authentication.method=NONE
inter.instance.listener.name=https
inter.instance.protocol=http
response.http.headers.config=add X-XSS-Protection: 1; mode=block, "set X-Frame-Options: DENY"
schema.registry.group.id=prod
schema.validate.new.schemas=true
kafkagroup.session.timeout.ms=10000
debug=false
ssl.keystore.location=/etc/ottla/registry.pem
ssl.keystore.type=PEM
"""


def settings(text: str) -> RegistrySettings:
    return RegistrySettings.from_properties(parse(text, "schema-registry.properties"))


def test_a_file_of_confluents_loads() -> None:
    found = settings(CONFLUENTS)
    assert [(listener.name, listener.host, listener.port, listener.is_tls) for listener in found.api_listeners] == [
        ("HTTP", "0.0.0.0", 8081, False),
        ("HTTPS", "0.0.0.0", 8443, True),
    ]
    assert found.inter_instance_listener.port == 8443 and found.advertised_host("machine") == "registry-1"
    assert found.bootstrap_servers == "broker-1:9092,broker-2:9092"
    assert found.response_headers == {"x-xss-protection": "1; mode=block", "x-frame-options": "DENY"}
    assert found.schema_compatibility_level == "FULL_TRANSITIVE" and found.access_control_allow_origin == ("*",)
    assert found.without_effect(found.given).keys() == {"kafkagroup.session.timeout.ms", "debug"}


def test_a_header_with_commas_stands_in_quotation_marks() -> None:
    """The example of Confluent's documentation."""
    found = settings(
        'kafkastore.bootstrap.servers=b:1\nresponse.http.headers.config="add Cache-Control: no-cache, no-store, must-revalidate", '
        "add X-XSS-Protection: 1; mode=block, add Strict-Transport-Security: max-age=31536000; includeSubDomains, "
        "add X-Content-Type-Options: nosniff\n"
    )
    assert found.response_headers == {
        "cache-control": "no-cache, no-store, must-revalidate",
        "x-xss-protection": "1; mode=block",
        "strict-transport-security": "max-age=31536000; includeSubDomains",
        "x-content-type-options": "nosniff",
    }


def test_clients_are_asked_for_certificates_by_confluents_name_of_the_setting() -> None:
    """`RestConfig.java` in confluentinc/rest-utils: `ssl.client.auth` is the former name."""
    found = settings("kafkastore.bootstrap.servers=b:1\nlisteners=IN://:8081,OUT://:8082\nlistener.protocol.map=IN:https,OUT:https\n"
                     "ssl.client.authentication=REQUIRED\nlistener.name.out.ssl.client.authentication=NONE\n")  # fmt: skip
    assert [found.for_listener(name).ssl_client_auth for name in ("IN", "OUT")] == ["required", "none"]
    assert settings("kafkastore.bootstrap.servers=b:1\nssl.client.auth=requested\n").for_listener("HTTP").ssl_client_auth == "requested"


def test_listeners_may_have_names() -> None:
    found = settings("kafkastore.bootstrap.servers=b:1\nlisteners=IN://:8081,OUT://[::1]:8082\nlistener.protocol.map=IN:http,OUT:https\n"
                     "inter.instance.listener.name=in\n")  # fmt: skip
    assert [(listener.name, listener.host, listener.is_tls) for listener in found.api_listeners] == [
        ("IN", "", False),
        ("OUT", "::1", True),
    ]
    assert found.inter_instance_listener.name == "IN" and found.advertised_host("machine") == "machine"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("kafkastore.connection.url=zk:2181", "zookeeper.connect"),
        ("kafkastore.sasl.mechanism=PLAIN", "SASL"),
        ("resource.extension.class=io.confluent.X", "Java"),
        ("schema.registry.resource.extension.class=io.confluent.X", "Java"),
        ("metadata.encoder.secret=abc", "not encrypted"),
        ("kafkastore.topic.config.min.insync.replicas=2", "make it with more before"),
        ("kafkastore.ssl.enabled.protocols=TLSv1.3", "TLS 1.2 and 1.3"),
        ("schema.providers.avro.validate.defaults=true", "defaults have to fit"),
        ("associations.enable=false", "no associations"),
        ("leader.read.timeout.ms=1", "request.timeout.ms"),
        ("confluent.license=abc", "licensed"),
        ("metric.reporters=x", "Java"),
        ("listeners=8081", "is not http://host:port"),
        ("listeners=ftp://:8081", "neither http nor https"),
        ("listeners=http://:99999", "port 99999"),
        ("listeners=http://a..b:8081", "'a..b' is not the name of a host"),
        (f"listeners=http://:{'9' * 5000}", "is not http://host:port"),
        ("listener.protocol.map=IN", "NAME:http"),
        ("inter.instance.listener.name=nowhere", "none of listeners"),
        ("schema.compatibility.level=SOMETIMES", "must be one of"),
        ("incompatible.schema.error.code=400", "40901"),
        ("authentication.method=BASIC", "authentication.file"),
        ("response.http.headers.config=drop X: y", "add Name: value"),
        ("response.http.headers.config=add X Y: y", "no header"),
        ("response.http.headers.config=add X-Y: Схемы", "no header"),
        ("authentication.realm=Схемы", "no header"),
        ('authentication.realm=our "schemas"', "no header"),
        ("schema.registry.group.id=a/b", "letters, digits"),
        ("kafkastore.topik=x", "did you mean 'kafkastore.topic'"),
        ("rpc.listener=http://x", "rpc.listener"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_line(line: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        settings(f"kafkastore.bootstrap.servers=b:1\n{line}\n")
    assert complaint in str(refused.value) and "schema-registry.properties" in str(refused.value)


def test_brokers_must_be_named() -> None:
    with pytest.raises(ConfigurationError, match="kafkastore.bootstrap.servers"):  # noqa: RUF043
        settings("listeners=http://:8081")
    with pytest.raises(ConfigurationError, match="no broker that speaks SSL"):
        settings("kafkastore.bootstrap.servers=PLAINTEXT://b:1\nkafkastore.security.protocol=SSL")


def test_every_setting_says_what_it_is() -> None:
    for part in PARTS.values():
        for definition in part.definitions().values():
            assert definition.doc.endswith((".", "`")) or definition.without_effect, definition.name

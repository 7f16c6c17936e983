"""MirrorMaker 2's properties load, and what Ottla cannot do is said with the line."""

from __future__ import annotations

import pytest

from ottla.config.environment import from_environment, layered
from ottla.config.mirror import IDENTITY_POLICY, MirrorSettings
from ottla.config.properties import parse
from ottla.errors import ConfigurationError

# As the example of Kafka's distribution, config/connect-mirror-maker.properties, has it.
EXAMPLE = """
clusters = A, B
A.bootstrap.servers = A_host1:9092, A_host2:9092
B.bootstrap.servers = B_host1:9092
A->B.enabled = true
A->B.topics = foo-.*, bar
B->A.enabled = true
B->A.topics = .*
replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1
"""


def read(text: str) -> MirrorSettings:
    return MirrorSettings.from_properties(parse(text, "mm2.properties"))


def test_the_example_of_mirror_maker_2_loads() -> None:
    settings = read(EXAMPLE)
    assert {link.name: (link.topics, link.replication_factor) for link in settings.links} == {
        "A-B": (("foo-.*", "bar"), 1),
        "B-A": ((".*",), 1),
    }
    assert settings.sides["A"].bootstrap_servers == "A_host1:9092, A_host2:9092"
    assert "offset.storage.replication.factor" in MirrorSettings.without_effect(settings.given)


def test_what_kafkas_page_of_geo_replication_sets_loads_and_says_what_has_no_effect() -> None:
    """https://kafka.apache.org/documentation/#georeplication, but for what tunes Java's clients; and every setting of its connectors."""
    settings = read("""
clusters = us-west, us-east
us-west.bootstrap.servers = broker3-west:9092
us-east.bootstrap.servers = broker5-east:9092
topics = .*
us-west->us-east.enabled = true
us-west->us-east.topics = foo.*, bar.*
us-west->us-east.topics.exclude = foo-old
groups.exclude = connect-.*
tasks.max = 5
us-west->us-east.offset-syncs.topic.location = target
us-west.offset.storage.topic = my-mirrormaker-offsets
us-east.offset.storage.replication.factor = 3
us-east.exactly.once.source.support = enabled
us-east.group.id = mm2
us-east.ssl.enabled.protocols = TLSv1.2
dedicated.mode.enable.internal.rest = true
listeners = http://localhost:8080
us-west->us-east.replication.policy.separator = __
replication.policy.internal.topic.separator.enabled = false
emit.heartbeats.enabled = true
emit.heartbeats.interval.seconds = 5
heartbeats.replication.enabled = false
emit.offset-syncs.enabled = false
sync.topic.configs.interval.seconds = 60
sync.topic.acls.enabled = false
sync.topic.acls.interval.seconds = 60
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 60
refresh.topics.interval.seconds = 60
refresh.groups.interval.seconds = 60
offset.lag.max = 100
offset.flush.timeout.ms = 10000
admin.timeout.ms = 60000
consumer.poll.timeout.ms = 1000
use.defaults.from = target
add.source.alias.to.metrics = true
topic.filter.class = org.apache.kafka.connect.mirror.DefaultTopicFilter
group.filter.class = org.apache.kafka.connect.mirror.DefaultGroupFilter
config.property.filter.class = org.apache.kafka.connect.mirror.DefaultConfigPropertyFilter
forwarding.admin.class = org.apache.kafka.clients.admin.ForwardingAdmin
key.converter = org.apache.kafka.connect.converters.ByteArrayConverter
value.converter = org.apache.kafka.connect.converters.ByteArrayConverter
""")
    (link,) = settings.links
    assert (link.topics_exclude, link.groups_exclude, link.replication_policy_separator) == (("foo-old",), ("connect-.*",), "__")
    assert (link.translation_seconds, link.sync_topic_configs_interval_seconds) == (60, 60)
    said = settings.all_without_effect()
    assert {"tasks.max", "us-west.offset.storage.topic", "us-east.exactly.once.source.support"} <= said.keys()
    assert "us-west->us-east.offset-syncs.topic.location" in said
    assert "us-east.ssl.enabled.protocols" in said
    assert not said.keys() & {"emit.offset-syncs.enabled", "topics", "us-west->us-east.offset.lag.max"}


def test_a_links_own_setting_is_over_the_common_one() -> None:
    settings = read(
        EXAMPLE + f"slots=4\nA->B.slots=8\nreplication.policy.class={IDENTITY_POLICY}\nA->B.naming=prefix\ntopics.blacklist=x\n"
    )
    there, back = settings.links
    assert (there.slots, there.naming_policy, there.topics_exclude) == (8, "prefix", ("x",))
    assert (back.slots, back.naming_policy) == (4, "identity")


def test_enabled_without_a_link_before_it_enables_each_link_that_does_not_say_otherwise() -> None:
    """MirrorMaker 2's `MirrorMakerConfig.connectorBaseConfig`."""
    three = "clusters=A,B,C\nA.bootstrap.servers=a:1\nB.bootstrap.servers=b:1\nC.bootstrap.servers=c:1\nenabled=true\n"
    assert {link.name for link in read(three + "A->B.enabled=false").links} == {"B-A", "A-C", "C-A", "B-C", "C-B"}
    with pytest.raises(ConfigurationError, match=r"naming\.replacement"):
        read(three + r"naming.replacement=\\2")


def test_what_connect_reads_of_the_file_has_no_effect() -> None:
    """Kafka Connect's `WorkerConfig`, `DistributedConfig`, `RestServerConfig` and `ConnectorConfig`."""
    of_connect = {
        "plugin.path": "/usr/share/java",
        "plugin.discovery": "hybrid_warn",
        "connector.client.config.override.policy": "All",
        "connect.protocol": "sessioned",
        "scheduled.rebalance.max.delay.ms": "300000",
        "session.timeout.ms": "10000",
        "heartbeat.interval.ms": "3000",
        "rebalance.timeout.ms": "60000",
        "worker.sync.timeout.ms": "3000",
        "worker.unsync.backoff.ms": "300000",
        "inter.worker.key.generation.algorithm": "HmacSHA256",
        "inter.worker.key.size": "256",
        "inter.worker.key.ttl.ms": "3600000",
        "inter.worker.signature.algorithm": "HmacSHA256",
        "inter.worker.verification.algorithms": "HmacSHA256",
        "rest.advertised.host.name": "mirror-1",
        "rest.advertised.port": "8083",
        "rest.advertised.listener": "https",
        "access.control.allow.origin": "*",
        "access.control.allow.methods": "GET",
        "admin.listeners": "http://localhost:8084",
        "task.shutdown.graceful.timeout.ms": "5000",
        "tasks.max.enforce": "true",
        "config.action.reload": "restart",
        "topic.tracking.enable": "true",
        "topic.tracking.allow.reset": "true",
        "errors.retry.timeout": "0",
        "errors.retry.delay.max.ms": "60000",
        "errors.tolerance": "all",
        "errors.log.enable": "true",
        "errors.log.include.messages": "false",
    }
    settings = read(EXAMPLE + "".join(f"{name} = {value}\n" for name, value in of_connect.items()))
    assert settings.all_without_effect().keys() >= of_connect.keys()


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 5),
        ({"emit.checkpoints": 10}, 10),
        ({"sync.group.offsets": 60}, 60),
        ({"emit.checkpoints": 10, "sync.group.offsets": 60}, 10),
        ({"emit.checkpoints": 60, "sync.group.offsets": 10}, 10),
    ],
)
def test_checkpoints_and_offsets_of_groups_have_an_interval_each(given: dict[str, int], seconds: int) -> None:
    """MirrorMaker 2's `MirrorCheckpointConfig`: two settings, which many files have both."""
    lines = "".join(f"{name}.interval.seconds = {value}\n" for name, value in given.items())
    assert [link.translation_seconds for link in read(EXAMPLE + lines).links] == [seconds] * 2


def test_what_is_spoken_may_be_said_of_all_clusters_at_once() -> None:
    """MirrorMaker 2's `MirrorMakerConfig.clusterProps`: a cluster's own goes before what has no alias.

    In any letters (`MirrorMakerConfigTest.testCaseInsensitiveSecurityProtocol`).
    """
    jaas = 'sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="b";'
    settings = read(EXAMPLE + f"security.protocol=sasl_ssl\nsasl.mechanism=SCRAM-SHA-512\n{jaas}\nB.security.protocol=SSL\n")
    assert [(side.security_protocol, side.sasl_mechanism) for side in settings.sides.values()] == [
        ("SASL_SSL", "SCRAM-SHA-512"),
        ("SSL", "SCRAM-SHA-512"),
    ]
    assert settings.sides["A"].credentials == ("me", "b") and settings.sides["B"].credentials is None
    given = from_environment(MirrorSettings, {"OTTLA_SETTING_CLUSTERS": "A,B", "OTTLA_SETTING_SECURITY_PROTOCOL": "SSL"})
    assert given["security.protocol"] == "SSL"


def test_a_password_is_read_of_java_s_line_and_shown_to_nobody() -> None:
    jaas = r'A.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="a\\"b";'
    settings = read(EXAMPLE + f"A.security.protocol=SASL_PLAINTEXT\n{jaas}\n")
    assert settings.sides["A"].credentials == ("me", 'a"b')
    assert 'a"b' not in repr(settings)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("A->B.topcis = x", r"mm2.properties:16 \(A->B.\): unknown setting 'topcis'; did you mean 'topics'"),
        ("A->B.slots = 0", "slots = '0': must be at least 1"),
        ("A->A.enabled = true", "A->A.enabled: a cluster is not copied to itself"),
        ("A.producer.acks = 1", r"mm2.properties:16 \(A.\): producer.acks cannot be set: it tunes a Java client"),
        ("A->B.source.consumer.isolation.level = read_committed", "it tunes a Java client"),
        ("consumer.auto.offset.reset = latest", "it tunes a Java client"),
        ("transforms = HoistField", "transforms cannot be set: records are copied as they are"),
        ("A->B.transforms.HoistField.type = x", "transforms.HoistField.type cannot be set: records are copied as they are"),
        ("rest.extension.classes = x.Y", "Java classes cannot be loaded"),
        ("A.ssl.truststore.password = x", "PEM files are read"),
        ("A.sasl.kerberos.service.name = kafka", "PLAIN and SCRAM are spoken"),
        ("A.zookeeper.connect = x:2181", "A.bootstrap.servers, A.zookeeper.connect: one of the two is needed, and not both"),
        ("A.zookeeper.connect = x:port/y", r"mm2.properties:16 \(A.\): zookeeper.connect = 'x:port/y': 'x:port' is not host:port"),
        ("A->B.zookeeper.connect = x:2181", r"zookeeper.connect cannot be set: it is of a cluster, A.zookeeper.connect"),
        ("config.providers = file", "Java classes cannot be loaded"),
        ("topic.filter.class = com.example.Mine", "must be one of org.apache.kafka.connect.mirror.DefaultTopicFilter"),
        ("groups = [", r"mm2.properties:16: groups = '\[': no pattern: unterminated character set"),
        ("B->A.topics.exclude = (", r"\(B->A.\): topics.exclude = '\(': no pattern"),
        (r"A->B.naming.replacement = \\2", r"naming.replacement = .* invalid group reference 2 .* in '\(\.\*\)'"),
        ("replication.policy.separator =", "replication.policy.separator = ''"),
        ("replication.factor = 0", "must be at least 1, or -1"),
        ("A.security.protocol = SASL_SSL", "A.sasl.jaas.config: username="),
        ("replication.policy.class = com.example.Mine", "must be one of"),
        ("nonsense = 1", "mm2.properties:16: unknown setting 'nonsense'"),
        ("C->B.enabled = true", "mm2.properties:16: C->B.enabled: clusters does not name C and B"),
        ("C.bootstrap.servers = c:9092", "mm2.properties:16: C.bootstrap.servers: clusters does not name C"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(line: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        read(EXAMPLE.replace("\nreplication.factor=1\n", "\n\n") + line + "\n")


@pytest.mark.parametrize("clusters", ["", "A", "A, A", "A, b.c"])
def test_clusters_are_two_or_more_with_plain_names(clusters: str) -> None:
    with pytest.raises(ConfigurationError, match="clusters = "):
        read(EXAMPLE.replace("clusters = A, B", f"clusters = {clusters}"))


def test_a_cluster_without_brokers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"B\.bootstrap\.servers, B\.zookeeper\.connect: one of the two is needed"):
        read(EXAMPLE.replace("B.bootstrap.servers = B_host1:9092", ""))


def test_a_cluster_is_found_in_its_zookeeper_which_is_not_where_workers_meet() -> None:
    settings = read(EXAMPLE.replace("A.bootstrap.servers = A_host1:9092, A_host2:9092", "A.zookeeper.connect = z1,z2:2182/a"))
    assert (settings.sides["A"].zookeeper_connect, settings.zookeeper_connect) == ("z1,z2:2182/a", None)


def from_variables(variables: dict[str, str], file: str = "") -> MirrorSettings:
    given = {f"OTTLA_SETTING_{name}": value for name, value in variables.items()}
    properties = parse(file, "mm2.properties")
    return MirrorSettings.from_properties(layered(MirrorSettings, [properties, from_environment(MirrorSettings, given, properties)]))


def test_clusters_and_links_are_said_by_variables_too() -> None:
    settings = from_variables(
        {
            "CLUSTERS": "far-away, here",
            "FAR_AWAY_BOOTSTRAP_SERVERS": "far:9092",
            "HERE_BOOTSTRAP_SERVERS": "near:9092",
            "FAR_AWAY_TO_HERE_ENABLED": "true",
            "FAR_AWAY_TO_HERE_TOPICS": "clicks",
            "SLOTS": "2",
        }
    )
    (link,) = settings.links
    assert (link.name, link.topics, link.slots) == ("far-away-here", ("clicks",), 2)
    assert settings.sides["far-away"].bootstrap_servers == "far:9092"


def test_a_variable_goes_over_the_file_that_names_the_clusters() -> None:
    settings = from_variables({"A_TO_B_SLOTS": "3", "A_BOOTSTRAP_SERVERS": "elsewhere:9092"}, EXAMPLE)
    assert settings.links[0].slots == 3
    assert settings.sides["A"].bootstrap_servers == "elsewhere:9092"


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"CLUSTERS": "A, B", "A_TO_B_ENABELD": "true"}, "OTTLA_SETTING_A_TO_B_ENABELD: there is no such setting; did you mean"),
        ({"CLUSTERS": "A, B", "C_BOOTSTRAP_SERVERS": "x:1"}, "OTTLA_SETTING_C_BOOTSTRAP_SERVERS: there is no such setting"),
        ({"CLUSTERS": "a, A", "A_TASKS_MAX": "1"}, "a.tasks.max and A.tasks.max would be one variable, A_TASKS_MAX"),
    ],
)
def test_a_variable_that_stands_for_nothing_or_for_two_is_refused(variables: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        from_variables(variables)


def test_clusters_whose_variables_would_be_the_same_are_taken_from_a_file() -> None:
    """To MirrorMaker 2 these are two aliases; what could be said of either by a variable is not said by any."""
    file = "clusters = dc-1, dc_1\ndc-1.bootstrap.servers = one:9092\ndc_1.bootstrap.servers = other:9092\ndc-1->dc_1.enabled = true\n"
    settings = from_variables({"SLOTS": "2"}, file)
    assert [(link.source, link.target, link.slots) for link in settings.links] == [("dc-1", "dc_1", 2)]


@pytest.mark.parametrize("variables", [{}, {"A_BOOTSTRAP_SERVERS": "elsewhere:9092"}])
def test_a_cluster_that_is_listed_twice_is_said_to_be(variables: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="clusters = 'A, A': two or more, each once"):
        from_variables(variables, EXAMPLE.replace("clusters = A, B", "clusters = A, A"))

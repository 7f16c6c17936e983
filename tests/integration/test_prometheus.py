"""Prometheus scrapes the cluster, and its rules and the dashboards' panels find there what they ask for."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import confluent_kafka
import pytest
import yaml
from deploy.grafana.generate import BOARDS
from tests.compat.quiet import quiet
from tests.integration.containers import BROKERS, Containers, broker, wait_until
from tests.integration.docker import ROOT, run
from tests.integration.prometheus import Prometheus
from tests.integration.view import View
from tests.unit.deploy.expressions import RULE_TESTS, in_grafanas_place, panel_expressions, rules

# Of $__rate_interval: four scrapes and more.
RATE_INTERVAL: Final = "10s"
DATA_SECONDS: Final = 180.0

# What a machine that does other things too, or a disk that others fill, makes of a cluster that is well.
OF_THE_MACHINE: Final = {"EventLoopLagHigh", "EventLoopBusy", "ZooKeeperSlow", "RunningOutOfSpace", "DiskFullIn4h"}

# What strimzi-kafka.json, the dashboard that most people have, asks for (strimzi-kafka-operator, examples/metrics). Not: figures of the
# container and of the Java machine; kafka_log_log_size, which is per partition; kafka_server_kafkaserver_linux_disk_…
OF_STRIMZI: Final = (
    "kafka_server_replicamanager_leadercount",
    "kafka_server_replicamanager_partitioncount",
    "kafka_server_replicamanager_underreplicatedpartitions",
    "kafka_controller_kafkacontroller_activecontrollercount",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "kafka_cluster_partition_atminisr",
    "kafka_cluster_partition_underminisr",
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    'kafka_server_brokertopicmetrics_bytesin_total{topic!=""}',
    'kafka_server_brokertopicmetrics_bytesout_total{topic!=""}',
    'kafka_server_brokertopicmetrics_messagesin_total{topic!=""}',
    'kafka_server_brokertopicmetrics_totalproducerequests_total{topic!=""}',
    'kafka_server_brokertopicmetrics_totalfetchrequests_total{topic!=""}',
    'kafka_server_socket_server_metrics_connection_count{listener!=""}',
    "process_open_fds",
)
# And grafana/jsonnet-libs' kafka-observ-lib with kafka_exporter's figures of groups.
OF_OTHERS: Final = (
    "kafka_server_kafkaserver_brokerstate",
    "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
    "kafka_server_replicamanager_isrshrinks_total",
    "kafka_server_replicamanager_isrexpands_total",
    'kafka_network_requestmetrics_totaltimems{request="Produce", quantile="0.99"}',
    'kafka_network_requestmetrics_totaltimems{request="FetchConsumer", quantile="0.99"}',
    'kafka_server_delayedoperationpurgatory_purgatorysize{delayedOperation="Fetch"}',
    'kafka_consumergroup_lag{consumergroup!="", topic!=""}',
    "kafka_consumergroup_members",
    "kafka_brokers",
)


@pytest.fixture
def prometheus(prometheus_url: str) -> Prometheus:
    return Prometheus(prometheus_url)


def write_and_read(addresses: str, topic: str, is_over: threading.Event) -> None:
    """Producer, transactional producer and a group, which read and write a little all the time."""
    producer = confluent_kafka.Producer({"bootstrap.servers": addresses, "linger.ms": 5, **quiet()})
    transactional = confluent_kafka.Producer({"bootstrap.servers": addresses, "transactional.id": f"{topic}-writer", **quiet()})
    transactional.init_transactions(30)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": addresses, "group.id": f"{topic}-group", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 500}
        | quiet()
    )
    consumer.subscribe([topic])
    try:
        for number in itertools.count():
            producer.produce(topic, key=str(number), value=b"x" * 100)
            if number % 20 == 0:
                transactional.begin_transaction()
                transactional.produce(topic, value=b"in a transaction")
                transactional.commit_transaction(30)
            producer.poll(0)
            consumer.poll(0.02)
            if is_over.is_set():
                return
    finally:
        producer.flush(10)
        consumer.close()


@pytest.fixture
def used_cluster(view: View, new_topic: Callable[[], str]) -> Iterator[str]:
    """A topic that is written to and read for as long as the test lasts."""
    topic = view.create_topic(new_topic(), partitions=3)
    is_over = threading.Event()
    using = threading.Thread(target=write_and_read, args=(view.addresses, topic, is_over), daemon=True)
    using.start()
    yield topic
    assert using.is_alive(), "the clients have failed"
    is_over.set()
    using.join(40)


def test_every_target_is_up(prometheus: Prometheus, containers: Containers) -> None:
    def all_up() -> bool:
        return all(target["health"] == "up" for target in prometheus.targets())

    wait_until("every target is up", all_up, 180.0, prometheus.targets)
    found = sorted((target["labels"]["job"], target["labels"]["instance"]) for target in prometheus.targets())
    brokers = [broker(broker_id) for broker_id in BROKERS]
    others = [("ottla", "schema-registry"), ("ottla", "audit-counter"), ("prometheus", "localhost:9090")]
    assert found == sorted([(job, instance) for job in ("ottla", "ottla-kafka-names") for instance in brokers] + others)


def test_the_configuration_in_the_image_is_sound(containers: Containers) -> None:
    assert "SUCCESS" in containers.execute("prometheus", "promtool", "check", "config", "/prometheus/prometheus.yml")


def test_alerts_fire_and_hold_still_as_their_tests_say(images: None) -> None:
    """`make rules`: promtool, if need be the one in the image."""
    said = run(["sh", "deploy/prometheus/check.sh"], seconds=240)
    assert said.count("SUCCESS") >= 2 * len(list(RULE_TESTS))


def test_prometheus_can_look_at_every_rule_and_has_all_of_them(prometheus: Prometheus, containers: Containers) -> None:
    found = prometheus.rules()
    assert sorted(rule["name"] for rule in found) == sorted(rule.name for rule in rules())
    wait_until("every rule was looked at", lambda: all(rule["health"] == "ok" for rule in prometheus.rules()), 180.0, prometheus.rules)


def test_every_panel_and_every_rule_is_answered_and_has_data_where_there_must_be_some(prometheus: Prometheus, used_cluster: str) -> None:
    """As Grafana would ask, with everything chosen. A panel that may be empty in a healthy cluster says why in its declaration."""
    for rule in rules():
        prometheus.query(rule.expression)
    for _, expression in panel_expressions():
        prometheus.query(expression)
    wanted = [
        (f"{board.name}: {panel.title}", in_grafanas_place(expression, interval=RATE_INTERVAL), panel.empty_because)
        for board in BOARDS
        for panel in board.panels
        for expression, _ in panel.queries
    ]

    def without_data() -> list[str]:
        return [f"{where}: {asked}" for where, asked, empty_because in wanted if not empty_because and not prometheus.has_data(asked)]

    def has_data() -> bool:
        return not without_data()

    wait_until("every panel has data", has_data, DATA_SECONDS, lambda: "Nothing for " + "; ".join(without_data()))


def test_a_healthy_cluster_in_use_has_no_alert(prometheus: Prometheus, used_cluster: str) -> None:
    """Pending ones neither: a restart in another test may have begun one, which must be gone soon."""

    def pending() -> set[str]:
        return {sample["metric"]["alertname"] for sample in prometheus.query('ALERTS{service="ottla"}')} - OF_THE_MACHINE

    wait_until("no alert is pending", lambda: not pending(), 180.0, pending)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        assert not pending()
        time.sleep(0.5)


def test_figures_are_those_of_the_cluster(prometheus: Prometheus, containers: Containers, view: View, used_cluster: str) -> None:
    """What clients are told and what Prometheus knows: brokers, controller, topics, a group that keeps up."""
    controller = f'ottla_controller_active{{instance="{broker(view.controller())}"}}'
    wait_until("the controller is the one", lambda: prometheus.value(controller) == 1.0, 180.0)
    assert prometheus.value("sum(ottla_controller_active)") == 1
    assert prometheus.value("max(ottla_controller_alive_brokers)") == len(BROKERS)
    assert prometheus.value('count(ottla_ready{component="broker"} == 1)') == len(BROKERS)

    def partitions() -> int:
        """The clients may yet be having the internal topics made."""
        metadata = view.metadata()
        return sum(len(topic.partitions) for topic in metadata.topics.values()) if metadata is not None else -1

    wait_until("leaders are counted", lambda: prometheus.value("sum(ottla_broker_leaders)") == partitions(), 180.0)
    received = f'sum(rate(ottla_broker_messages_received_total{{topic="{used_cluster}"}}[10s]))'
    wait_until("messages are counted", lambda: (prometheus.value(received) or 0) > 5, 180.0)
    lag = f'namespace_job_group_topic:ottla_group_lag_seconds:max{{group="{used_cluster}-group"}}'
    wait_until("the group's lag is known", lambda: prometheus.value(lag) is not None, 180.0)
    wait_until("the group keeps up", lambda: (prometheus.value(lag) or 0) < 5, 180.0, lambda: prometheus.value(lag))


@pytest.mark.parametrize("of", [OF_STRIMZI, OF_OTHERS], ids=["strimzi", "others"])
def test_dashboards_that_were_made_for_kafka_find_their_names(prometheus: Prometheus, used_cluster: str, of: tuple[str, ...]) -> None:
    def missing() -> list[str]:
        return [name for name in of if not prometheus.query(of_kafka(name))]

    wait_until("every name is there", lambda: not missing(), DATA_SECONDS, missing)


def of_kafka(selector: str) -> str:
    """A selector of the job that scrapes /metrics/kafka."""
    name, brace, labels = selector.partition("{")
    return f'{name}{{job="ottla-kafka-names"{", " + labels if brace else "}"}'


def test_targets_beside_the_brokers_have_their_place(containers: Containers) -> None:
    """A file there is read without a restart; what is in the repository is only how (targets/README.md)."""
    listed = containers.execute("prometheus", "ls", "/etc/prometheus/targets").split()
    assert listed == ["README.md", "audit-counter.yml", "mirror", "registries", "schema-registry.yml", "spark"]
    text = (ROOT / "deploy" / "prometheus" / "targets" / "README.md").read_text(encoding="utf-8")
    example = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    (target,) = yaml.safe_load(example)
    assert {"job", "component"} <= target["labels"].keys()

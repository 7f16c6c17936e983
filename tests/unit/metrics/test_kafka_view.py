"""`/metrics/kafka`: what dashboards that were made for Kafka's brokers behind the JMX exporter read."""

from __future__ import annotations

import pytest
from tests.unit.metrics.collectors import Given, parsed, registry_of, rendered, sample, samples, text_of

from ottla.metrics import broker, controller, groups, log, network, replica, requests, service
from ottla.metrics.cells import Histogram
from ottla.metrics.family import Family, single
from ottla.metrics.kafka_view import QUANTILES, WINDOW_SECONDS
from ottla.metrics.registry import Registry
from ottla.metrics.table import METRICS
from ottla.testing.clock import ManualClock

# What the queries of Strimzi's dashboard of brokers name (strimzi-kafka.json), but for those of the JVM and of Linux' disks,
# and what its alerts do (prometheus-kafka-rules.yaml).
STRIMZI = {
    "kafka_cluster_partition_atminisr",
    "kafka_cluster_partition_underminisr",
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "kafka_controller_kafkacontroller_activecontrollercount",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "kafka_log_log_size",
    "kafka_log_logmanager_offlinelogdirectorycount",
    "kafka_network_requestmetrics_totaltimems",
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    "kafka_server_brokertopicmetrics_bytesin_total",
    "kafka_server_brokertopicmetrics_bytesout_total",
    "kafka_server_brokertopicmetrics_failedfetchrequests_total",
    "kafka_server_brokertopicmetrics_failedproducerequests_total",
    "kafka_server_brokertopicmetrics_messagesin_total",
    "kafka_server_brokertopicmetrics_totalfetchrequests_total",
    "kafka_server_brokertopicmetrics_totalproducerequests_total",
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    "kafka_server_replicamanager_leadercount",
    "kafka_server_replicamanager_partitioncount",
    "kafka_server_replicamanager_underminisrpartitioncount",
    "kafka_server_replicamanager_underreplicatedpartitions",
    "kafka_server_socket_server_metrics_connection_count",
    "process_open_fds",
}


def observed(count: int, seconds: float) -> Histogram:
    cell = Histogram()
    cell.observe_many(seconds, count)
    return cell


def test_everything_that_strimzis_dashboard_and_alerts_ask_for_is_there() -> None:
    assert not STRIMZI - {name.name for metric in METRICS for name in metric.kafka}


def test_no_two_metrics_have_the_same_name_there() -> None:
    """Prometheus refuses a page that has a family twice."""
    names = [name.name for metric in METRICS for name in metric.kafka]
    assert len(names) == len(set(names))


def test_names_follow_the_exporters_rules() -> None:
    """`lowercaseOutputName`; counters of `…PerSec` end in `_total`, and nothing else does (kafka-2_0_0.yml)."""
    for metric in METRICS:
        for name in metric.kafka:
            assert name.name == name.name.lower()
            assert name.name.endswith("_total") == (metric.kind == "counter"), name.name


def test_a_gauge_is_the_same_under_kafkas_name() -> None:
    text = rendered(single(replica.UNDER_REPLICATED, 3), names="kafka")
    assert samples(text) == {("kafka_server_replicamanager_underreplicatedpartitions", frozenset()): 3}


def test_what_kafka_does_not_have_is_left_out() -> None:
    assert rendered(single(service.READY, 1), names="kafka") == ""


def test_idle_is_what_is_not_busy() -> None:
    """There is one loop where Kafka has two pools of threads, so both percents (0 to 1 with Kafka too) are its."""
    text = rendered(single(service.EVENT_LOOP_BUSY, 0.25), names="kafka")
    assert sample(text, "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent") == 0.75
    assert sample(text, "kafka_network_socketserver_networkprocessoravgidle_percent") == 0.75


def test_bytes_are_there_for_each_topic_and_for_all_together() -> None:
    """Kafka's BrokerTopicMetrics has a bean for each topic and one without a topic."""
    text = rendered(Family(requests.RECEIVED_BYTES, [(("clicks",), 17), (("views",), 4)]), names="kafka")
    name = "kafka_server_brokertopicmetrics_bytesin_total"
    assert sample(text, name, topic="clicks") == 17 and sample(text, name, topic="views") == 4 and sample(text, name) == 21


def test_what_all_topics_have_counted_never_falls() -> None:
    """Kafka's `allTopicsStats` outlives its topics. A counter that falls has begun again, to Prometheus: a topic less was a peak."""
    given = Given()
    registry = registry_of(given)
    sums = []
    for topics in ({"clicks": 17, "views": 4}, {"views": 5}, {"views": 5, "clicks": 1}, {"views": 2, "clicks": 1}, {}):
        given.families = (Family(requests.RECEIVED_BYTES, [((topic,), count) for topic, count in topics.items()]),)
        sums.append(sample(text_of(registry, names="kafka"), "kafka_server_brokertopicmetrics_bytesin_total"))
    assert sums == [21, 22, 23, 25, 25]


def test_times_are_quantiles_in_milliseconds_with_a_count() -> None:
    text = rendered(Family(requests.SECONDS, [(("Produce", "total"), observed(100, 0.002).snapshot())]), names="kafka")
    name = "kafka_network_requestmetrics_totaltimems"
    assert parsed(text)[name].type == "summary"
    for quantile in QUANTILES:
        assert 1.0 <= sample(text, name, request="Produce", quantile=quantile) <= 2.5
    assert sample(text, f"{name}_count", request="Produce") == 100
    assert "kafka_network_requestmetrics_localtimems{" not in text, "a stage that was not given has no samples"


def test_stages_are_families_of_their_own() -> None:
    stages = {"total": 0.3, "queue": 0.002, "local": 0.004, "remote": 0.2, "send": 0.04}
    text = rendered(
        Family(requests.SECONDS, [(("Produce", stage), observed(10, seconds).snapshot()) for stage, seconds in stages.items()]),
        names="kafka",
    )
    found = {
        name: sample(text, f"kafka_network_requestmetrics_{name}", request="Produce", quantile="0.99")
        for name in ("totaltimems", "requestqueuetimems", "localtimems", "remotetimems", "responsesendtimems")
    }
    assert found == {
        "totaltimems": pytest.approx(497.5),
        "requestqueuetimems": pytest.approx(2.485),
        "localtimems": pytest.approx(4.975),
        "remotetimems": pytest.approx(248.5),
        "responsesendtimems": pytest.approx(49.75),
    }


def test_a_consumers_fetches_are_there_under_both_of_kafkas_names() -> None:
    """RequestMetrics: Fetch, and FetchConsumer or FetchFollower."""
    text = rendered(Family(requests.REQUESTS, [(("Fetch", "12"), 5), (("FetchFollower", "17"), 7)]), names="kafka")
    name = "kafka_network_requestmetrics_requests_total"
    assert sample(text, name, request="Fetch", version="12") == sample(text, name, request="FetchConsumer", version="12") == 5
    assert sample(text, name, request="FetchFollower", version="17") == 7


def test_the_lag_of_followers_is_the_largest_of_all_leaders() -> None:
    text = rendered(Family(replica.FETCHER_LAG, [(("2",), 5), (("3",), 70)]), names="kafka")
    assert samples(text) == {("kafka_server_replicafetchermanager_maxlag", frozenset({("clientId", "Replica")})): 70}


def test_labels_have_kafkas_names_and_values() -> None:
    text = rendered(Family(requests.PURGATORY, [(("produce",), 2), (("fetch",), 9)]), names="kafka")
    assert sample(text, "kafka_server_delayedoperationpurgatory_purgatorysize", delayedOperation="Produce") == 2
    assert sample(text, "kafka_server_delayedoperationpurgatory_purgatorysize", delayedOperation="Fetch") == 9


def test_connections_closed_for_whatever_reason_are_one_count() -> None:
    text = rendered(Family(network.CONNECTIONS_CLOSED, [(("PLAINTEXT", "client"), 2), (("PLAINTEXT", "idle"), 3)]), names="kafka")
    name = "kafka_server_socket_server_metrics_connection_close_total"
    assert sample(text, name, listener="PLAINTEXT", networkProcessor="0") == 5


def test_the_state_of_a_broker_is_kafkas_number_for_it() -> None:
    """kafka.server.BrokerState"""
    text = [rendered(single(broker.STATE, state), names="kafka") for state in range(5)]
    assert [sample(page, "kafka_server_kafkaserver_brokerstate") for page in text] == [1, 2, 3, 6, 7]


def test_groups_are_counted_in_all_and_by_state() -> None:
    text = rendered(Family(groups.GROUPS, [(("Stable",), 4), (("Empty",), 2)]), names="kafka")
    assert sample(text, "kafka_coordinator_group_groupmetadatamanager_numgroups") == 6
    assert sample(text, "kafka_coordinator_group_groupmetadatamanager_numgroupsstable") == 4
    assert sample(text, "kafka_coordinator_group_groupmetadatamanager_numgroupsempty") == 2


def test_lag_has_the_names_of_the_exporters_that_people_use() -> None:
    text = rendered(Family(groups.LAG_MESSAGES, [(("loaders", "clicks"), 12)]), names="kafka")
    assert sample(text, "kafka_consumergroup_lag", consumergroup="loaders", topic="clicks") == 12
    assert sample(text, "kminion_kafka_consumer_group_topic_lag", group_id="loaders", topic_name="clicks") == 12


def test_a_dirty_ratio_is_a_percentage() -> None:
    assert sample(rendered(single(log.MAX_DIRTY_RATIO, 0.5), names="kafka"), "kafka_log_logcleanermanager_max_dirty_percent") == 50


def test_quantiles_are_of_the_last_minutes_and_not_of_all_times() -> None:
    """Kafka's are of a reservoir that forgets over about five minutes; a slow hour last week must not stay in the picture."""
    clock = ManualClock()
    cell = observed(1000, 20.0)

    class Elections:
        def collect(self) -> object:
            yield single(controller.ELECTION_SECONDS, cell.snapshot())

    registry = Registry([Elections()], clock)  # type: ignore[list-item]
    name = "kafka_controller_controllerstats_leaderelectionrateandtimems"

    def p99() -> float:
        return sample(text_of(registry, names="kafka"), name, quantile="0.99")

    assert p99() > 10_000
    for _ in range(int(2 * WINDOW_SECONDS / 30)):
        clock.advance(seconds=30)
        cell.observe_many(0.002, 10)
        last = p99()
    assert last < 2.6
    assert sample(text_of(registry, names="kafka"), f"{name}_count") == cell.snapshot().count


def test_everything_can_be_shown_under_kafkas_names_at_once() -> None:
    """A sample of every metric there is: the page is one that a parser takes."""
    families = [
        Family(metric, [(tuple("1" for _ in metric.labels), observed(3, 0.01).snapshot() if metric.kind == "histogram" else 1)])
        for metric in METRICS
    ]
    for accept in ("", "application/openmetrics-text"):
        found = parsed(rendered(*families, names="kafka", accept=accept))
        assert len(found) > 60
        assert len(parsed(rendered(*families, accept=accept))) == len(METRICS)
    assert Given(*families).families

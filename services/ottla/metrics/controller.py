"""Metrics of the controller; all but the first are there only on the broker that is it."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import KafkaName, Metric

ACTIVE: Final = Metric(
    "ottla_controller_active",
    "gauge",
    "1 on the broker that is the controller, otherwise 0.",
    (),
    (KafkaName("kafka_controller_kafkacontroller_activecontrollercount"),),
)
EPOCH: Final = Metric("ottla_controller_epoch", "gauge", "The controller's epoch: one more with each election.")
OFFLINE_PARTITIONS: Final = Metric(
    "ottla_controller_offline_partitions",
    "gauge",
    "Partitions that have no leader.",
    (),
    (KafkaName("kafka_controller_kafkacontroller_offlinepartitionscount"),),
)
PREFERRED_LEADER_IMBALANCE: Final = Metric(
    "ottla_controller_preferred_leader_imbalance",
    "gauge",
    "Partitions that are not led by the first of their replicas.",
    (),
    (KafkaName("kafka_controller_kafkacontroller_preferredreplicaimbalancecount"),),
)
PARTITIONS: Final = Metric(
    "ottla_controller_partitions",
    "gauge",
    "Partitions in the cluster.",
    (),
    (KafkaName("kafka_controller_kafkacontroller_globalpartitioncount"),),
)
TOPICS: Final = Metric(
    "ottla_controller_topics",
    "gauge",
    "Topics in the cluster.",
    (),
    (KafkaName("kafka_controller_kafkacontroller_globaltopiccount"),),
)
ALIVE_BROKERS: Final = Metric(
    "ottla_controller_alive_brokers",
    "gauge",
    "Brokers that are registered.",
    (),
    (KafkaName("kafka_controller_kafkacontroller_activebrokercount"), KafkaName("kafka_brokers")),
)
ELECTIONS: Final = Metric("ottla_controller_elections_total", "counter", "Leaders of partitions that the controller has chosen.")
UNCLEAN_ELECTIONS: Final = Metric(
    "ottla_controller_unclean_elections_total",
    "counter",
    "Leaders that were chosen out of sync: records were lost (unclean.leader.election.enable).",
    (),
    (KafkaName("kafka_controller_controllerstats_uncleanleaderelections_total"),),
)
ELECTION_SECONDS: Final = Metric(
    "ottla_controller_election_seconds",
    "histogram",
    "Time from when leaders are needed until the chosen ones are written.",
    (),
    (KafkaName("kafka_controller_controllerstats_leaderelectionrateandtimems"),),
)
EVENT_QUEUE_LENGTH: Final = Metric(
    "ottla_controller_event_queue_length",
    "gauge",
    "Events in the controller's queue, and the one that is being processed.",
    (),
    (KafkaName("kafka_controller_controllereventmanager_eventqueuesize"),),
)
EVENTS: Final = Metric("ottla_controller_events_total", "counter", "Events that the controller has processed.", ("event",))

METRICS: Final = (
    ACTIVE,
    EPOCH,
    OFFLINE_PARTITIONS,
    PREFERRED_LEADER_IMBALANCE,
    PARTITIONS,
    TOPICS,
    ALIVE_BROKERS,
    ELECTIONS,
    UNCLEAN_ELECTIONS,
    ELECTION_SECONDS,
    EVENT_QUEUE_LENGTH,
    EVENTS,
)

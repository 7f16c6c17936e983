"""Metrics of the session with ZooKeeper, as this broker sees it."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import KafkaName, Metric

SESSION_STATE: Final = Metric(
    "ottla_zookeeper_session_state", "gauge", "The session with ZooKeeper: 0 closed, 1 connecting, 2 connected, 3 expired."
)
EXPIRATIONS: Final = Metric(
    "ottla_zookeeper_session_expirations_total",
    "counter",
    "Sessions that ZooKeeper has ended: the broker was taken for dead and has registered again.",
    (),
    (KafkaName("kafka_server_sessionexpirelistener_zookeeperexpires_total"),),
)
DISCONNECTIONS: Final = Metric(
    "ottla_zookeeper_disconnections_total",
    "counter",
    "How often the connection to ZooKeeper broke.",
    (),
    (KafkaName("kafka_server_sessionexpirelistener_zookeeperdisconnects_total"),),
)
REQUEST_SECONDS: Final = Metric(
    "ottla_zookeeper_request_seconds",
    "histogram",
    "Time until ZooKeeper had answered a request.",
    (),
    (KafkaName("kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms"),),
)

METRICS: Final = (SESSION_STATE, EXPIRATIONS, DISCONNECTIONS, REQUEST_SECONDS)

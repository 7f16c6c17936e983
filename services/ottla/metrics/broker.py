"""Metrics of the broker as a whole: who it is, and what state it is in."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import KafkaName, Metric

# kafka.server.BrokerState: 1 starting, 2 recovering, 3 running, 6 pending controlled shutdown, 7 shutting down.
_KAFKA_STATES: Final = (1, 2, 3, 6, 7)


def _kafka_state(state: float) -> float:
    return float(_KAFKA_STATES[int(state)])


IDENTITY: Final = Metric("ottla_broker_info", "info", "Which broker this is.", ("broker_id", "rack", "cluster_id"))
START_TIME: Final = Metric("ottla_broker_start_time_seconds", "gauge", "When the broker was started, in seconds since 1970.")
STATE: Final = Metric(
    "ottla_broker_state",
    "gauge",
    "What the broker does: 0 starting, 1 recovering logs, 2 running, 3 draining (handing over what it leads), 4 stopping.",
    (),
    (KafkaName("kafka_server_kafkaserver_brokerstate", value=_kafka_state),),
)

METRICS: Final = (IDENTITY, START_TIME, STATE)

"""Metrics of the broker as a whole: who it is, what state it is in, and whether its event loop keeps up."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import KafkaName, Metric

# kafka.server.BrokerState: 1 starting, 2 recovering, 3 running, 6 pending controlled shutdown, 7 shutting down.
_KAFKA_STATES: Final = (1, 2, 3, 6, 7)


def _idle(busy: float) -> float:
    return 1.0 - busy


def _kafka_state(state: float) -> float:
    return float(_KAFKA_STATES[int(state)])


BUILD: Final = Metric("ottla_build_info", "info", "What runs here.", ("version", "python"))
IDENTITY: Final = Metric("ottla_broker_info", "info", "Which broker this is.", ("broker_id", "rack", "cluster_id"))
START_TIME: Final = Metric("ottla_broker_start_time_seconds", "gauge", "When the broker was started, in seconds since 1970.")
STATE: Final = Metric(
    "ottla_broker_state",
    "gauge",
    "What the broker does: 0 starting, 1 recovering logs, 2 running, 3 draining (handing over what it leads), 4 stopping.",
    (),
    (KafkaName("kafka_server_kafkaserver_brokerstate", value=_kafka_state),),
)
READY: Final = Metric("ottla_ready", "gauge", "1 when /readyz says so, otherwise 0.")
EVENT_LOOP_BUSY: Final = Metric(
    "ottla_event_loop_busy_ratio",
    "gauge",
    "The share of the last seconds in which the event loop did something rather than wait: 1 is all that one core can do.",
    (),
    (
        KafkaName("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", value=_idle),
        KafkaName("kafka_network_socketserver_networkprocessoravgidle_percent", value=_idle),
    ),
)
EVENT_LOOP_LAG: Final = Metric(
    "ottla_event_loop_lag_seconds",
    "histogram",
    "How much later than asked for the event loop called back, probed every 100 ms.",
)

SCRAPE_SECONDS: Final = Metric(
    "ottla_scrape_seconds", "gauge", "Time that the scrape before this one took, with what the event loop did for others meanwhile."
)
SCRAPE_LONGEST_SLICE: Final = Metric(
    "ottla_scrape_longest_slice_seconds", "gauge", "The longest time for which the scrape before this one kept the event loop."
)

METRICS: Final = (BUILD, IDENTITY, START_TIME, STATE, READY, EVENT_LOOP_BUSY, EVENT_LOOP_LAG, SCRAPE_SECONDS, SCRAPE_LONGEST_SLICE)

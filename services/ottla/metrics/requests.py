"""Metrics of requests: how many, how long in each stage, how many failed, what waits, and the bytes by topic."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import KafkaName, Metric

# What the stages are called by Kafka. There is no queue between our handlers and the network, so none of that name.
_STAGES: Final = {
    "total": "totaltimems",
    "queue": "requestqueuetimems",
    "local": "localtimems",
    "remote": "remotetimems",
    "send": "responsesendtimems",
}
# Kafka keeps a consumer's fetches apart from a follower's and also gives both as Fetch.
_ALSO: Final = {"Fetch": "FetchConsumer"}

SECONDS: Final = Metric(
    "ottla_request_seconds",
    "histogram",
    "Time that requests took. queue: received and held back by those before it; local: in the handler; remote: waiting for other brokers, "
    "for bytes or for the disk; send: handing the answer to the socket; total: all of it. Followers' fetches are the api FetchFollower.",
    ("api", "stage"),
    tuple(
        KafkaName(f"kafka_network_requestmetrics_{name}", where={"stage": stage}, labels={"api": "request"}, also_as=_ALSO)
        for stage, name in _STAGES.items()
    ),
)
REQUESTS: Final = Metric(
    "ottla_requests_total",
    "counter",
    "Requests that were taken on.",
    ("api", "version"),
    (KafkaName("kafka_network_requestmetrics_requests_total", labels={"api": "request"}, also_as=_ALSO),),
)
FAILED: Final = Metric(
    "ottla_broker_requests_failed_total",
    "counter",
    "Errors in answers, by their name in Kafka's table; of Produce and Fetch one for each partition.",
    ("api", "error"),
    (KafkaName("kafka_network_requestmetrics_errors_total", labels={"api": "request"}, also_as=_ALSO),),
)
QUEUE_LENGTH: Final = Metric(
    "ottla_request_queue_length",
    "gauge",
    "Requests that are worked on by tasks, and connections that wait for their turn (queued.max.requests).",
    (),
    (KafkaName("kafka_network_requestchannel_requestqueuesize"),),
)
PURGATORY: Final = Metric(
    "ottla_purgatory_requests",
    "gauge",
    "Requests that wait: produce for the high watermark, fetch for enough bytes.",
    ("operation",),
    (
        KafkaName(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            labels={"operation": "delayedOperation"},
            values={"produce": "Produce", "fetch": "Fetch"},
        ),
        KafkaName(
            "kafka_server_delayedoperationpurgatory_numdelayedoperations",
            labels={"operation": "delayedOperation"},
            values={"produce": "Produce", "fetch": "Fetch"},
        ),
    ),
)
RECEIVED_BYTES: Final = Metric(
    "ottla_broker_received_bytes_total",
    "counter",
    "Bytes of record batches that producers wrote to partitions led here.",
    ("topic",),
    (KafkaName("kafka_server_brokertopicmetrics_bytesin_total", with_sum=True),),
)
SENT_BYTES: Final = Metric(
    "ottla_broker_sent_bytes_total",
    "counter",
    "Bytes of record batches that consumers were given.",
    ("topic",),
    (KafkaName("kafka_server_brokertopicmetrics_bytesout_total", with_sum=True),),
)
MESSAGES_RECEIVED: Final = Metric(
    "ottla_broker_messages_received_total",
    "counter",
    "Records that producers wrote to partitions led here.",
    ("topic",),
    (KafkaName("kafka_server_brokertopicmetrics_messagesin_total", with_sum=True),),
)
PRODUCES: Final = Metric(
    "ottla_broker_produces_total",
    "counter",
    "Parts of Produce requests, one for each partition.",
    ("topic",),
    (KafkaName("kafka_server_brokertopicmetrics_totalproducerequests_total", with_sum=True),),
)
FETCHES: Final = Metric(
    "ottla_broker_fetches_total",
    "counter",
    "Parts of consumers' Fetch requests that were answered, one for each partition.",
    ("topic",),
    (KafkaName("kafka_server_brokertopicmetrics_totalfetchrequests_total", with_sum=True),),
)
PRODUCE_FAILURES: Final = Metric(
    "ottla_broker_produce_failures_total",
    "counter",
    "Parts of Produce requests, one for each partition, that were answered with an error.",
    ("topic",),
    (KafkaName("kafka_server_brokertopicmetrics_failedproducerequests_total", with_sum=True),),
)
FETCH_FAILURES: Final = Metric(
    "ottla_broker_fetch_failures_total",
    "counter",
    "Parts of consumers' Fetch requests, one for each partition, that were answered with an error.",
    ("topic",),
    (KafkaName("kafka_server_brokertopicmetrics_failedfetchrequests_total", with_sum=True),),
)

METRICS: Final = (
    SECONDS,
    REQUESTS,
    FAILED,
    QUEUE_LENGTH,
    PURGATORY,
    RECEIVED_BYTES,
    SENT_BYTES,
    MESSAGES_RECEIVED,
    PRODUCES,
    FETCHES,
    PRODUCE_FAILURES,
    FETCH_FAILURES,
)

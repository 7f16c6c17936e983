"""Metrics of sockets: connections, bytes on the wire, reads that had to wait."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import KafkaName, Metric

CONNECTIONS: Final = Metric(
    "ottla_connections",
    "gauge",
    "Open client connections.",
    ("listener",),
    (KafkaName("kafka_server_socket_server_metrics_connection_count", constant={"networkProcessor": "0"}),),
)
CONNECTIONS_OPENED: Final = Metric(
    "ottla_connections_opened_total",
    "counter",
    "Connections that were accepted.",
    ("listener",),
    (KafkaName("kafka_server_socket_server_metrics_connection_creation_total", constant={"networkProcessor": "0"}),),
)
CONNECTIONS_CLOSED: Final = Metric(
    "ottla_connections_closed_total",
    "counter",
    "Connections that ended: by the client, idle (connections.max.idle.ms), stalled (took nothing of an answer), refused (one too many), "
    "or for an error of the client's or ours.",
    ("listener", "reason"),
    (KafkaName("kafka_server_socket_server_metrics_connection_close_total", drop=("reason",), constant={"networkProcessor": "0"}),),
)
RECEIVED_BYTES: Final = Metric(
    "ottla_network_received_bytes_total",
    "counter",
    "Bytes received from clients and followers, with all that surrounds the records; with TLS after decryption.",
    ("listener",),
    (KafkaName("kafka_server_socket_server_metrics_incoming_byte_total", constant={"networkProcessor": "0"}),),
)
SENT_BYTES: Final = Metric(
    "ottla_network_sent_bytes_total",
    "counter",
    "Bytes of answers handed to the network; with TLS before encryption.",
    ("listener",),
    (KafkaName("kafka_server_socket_server_metrics_outgoing_byte_total", constant={"networkProcessor": "0"}),),
)
SENDFILE_BYTES: Final = Metric(
    "ottla_sendfile_bytes_total",
    "counter",
    "Bytes that went from the page cache to a socket without passing through the process.",
)
PAUSED_READS: Final = Metric(
    "ottla_network_paused_reads_total",
    "counter",
    "How often a connection was not read on: an answer had to come first, the peer did not take its answers, or memory was short.",
)
COLD_READS: Final = Metric(
    "ottla_network_cold_reads_total",
    "counter",
    "Stretches of at most 1 MiB that were read from the disk, outside the event loop, before they could be sent.",
)
CERTIFICATE_EXPIRY: Final = Metric(
    "ottla_tls_certificate_expiry_timestamp_seconds",
    "gauge",
    "When the first certificate of a listener's chain to expire does; of a service that is no broker, also what it shows to brokers.",
    ("listener",),
)

METRICS: Final = (
    CONNECTIONS,
    CONNECTIONS_OPENED,
    CONNECTIONS_CLOSED,
    RECEIVED_BYTES,
    SENT_BYTES,
    SENDFILE_BYTES,
    PAUSED_READS,
    COLD_READS,
    CERTIFICATE_EXPIRY,
)

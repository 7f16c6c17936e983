"""Metrics of replication: what this broker leads and follows, and who is in sync."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import KafkaName, Metric

PARTITIONS: Final = Metric(
    "ottla_broker_partitions",
    "gauge",
    "Partitions that have a replica here.",
    (),
    (KafkaName("kafka_server_replicamanager_partitioncount"),),
)
LEADERS: Final = Metric(
    "ottla_broker_leaders",
    "gauge",
    "Partitions that are led here.",
    (),
    (KafkaName("kafka_server_replicamanager_leadercount"),),
)
UNDER_REPLICATED: Final = Metric(
    "ottla_replica_under_replicated_partitions",
    "gauge",
    "Partitions led here that have replicas out of sync.",
    (),
    (KafkaName("kafka_server_replicamanager_underreplicatedpartitions"),),
)
UNDER_MIN_ISR: Final = Metric(
    "ottla_replica_under_min_isr_partitions",
    "gauge",
    "Partitions led here with fewer replicas in sync than min.insync.replicas: acks=all is refused.",
    (),
    (KafkaName("kafka_server_replicamanager_underminisrpartitioncount"), KafkaName("kafka_cluster_partition_underminisr")),
)
AT_MIN_ISR: Final = Metric(
    "ottla_replica_at_min_isr_partitions",
    "gauge",
    "Partitions led here with just min.insync.replicas in sync: one fewer and acks=all is refused.",
    (),
    (KafkaName("kafka_server_replicamanager_atminisrpartitioncount"), KafkaName("kafka_cluster_partition_atminisr")),
)
OFFLINE: Final = Metric(
    "ottla_replica_offline",
    "gauge",
    "Replicas here that are in a log directory that has failed.",
    (),
    (KafkaName("kafka_server_replicamanager_offlinereplicacount"),),
)
REASSIGNING: Final = Metric(
    "ottla_replica_reassigning_partitions",
    "gauge",
    "Partitions led here whose replicas are being moved.",
    (),
    (KafkaName("kafka_server_replicamanager_reassigningpartitions"),),
)
ISR_SHRINKS: Final = Metric(
    "ottla_replica_isr_shrinks_total",
    "counter",
    "How often the ISR of a partition led here shrank.",
    (),
    (KafkaName("kafka_server_replicamanager_isrshrinks_total"),),
)
ISR_EXPANDS: Final = Metric(
    "ottla_replica_isr_expands_total",
    "counter",
    "How often a replica of a partition led here came into sync.",
    (),
    (KafkaName("kafka_server_replicamanager_isrexpands_total"),),
)
FAILED_ISR_UPDATES: Final = Metric(
    "ottla_replica_failed_isr_updates_total",
    "counter",
    "Changes of an ISR that the controller refused.",
    (),
    (KafkaName("kafka_server_replicamanager_failedisrupdates_total"),),
)
FETCHER_LAG: Final = Metric(
    "ottla_replica_fetcher_lag_messages",
    "gauge",
    "Records by which this broker is behind in the partition where it is furthest behind, of those it follows of each leader.",
    ("leader",),
    (KafkaName("kafka_server_replicafetchermanager_maxlag", drop=("leader",), drop_by="max", constant={"clientId": "Replica"}),),
)
FETCHER_FAILURES: Final = Metric(
    "ottla_replica_fetcher_failures_total",
    "counter",
    "Fetches from leaders that failed as a whole: the connection or the answer was not usable.",
)
CRC_ERRORS: Final = Metric(
    "ottla_replica_crc_errors_total",
    "counter",
    "Batches from leaders that did not match their checksum and were not written.",
)
RECEIVED_BYTES: Final = Metric(
    "ottla_replica_received_bytes_total",
    "counter",
    "Bytes of record batches that this broker, as a follower, has fetched from leaders.",
    (),
    (KafkaName("kafka_server_brokertopicmetrics_replicationbytesin_total"),),
)
SENT_BYTES: Final = Metric(
    "ottla_replica_sent_bytes_total",
    "counter",
    "Bytes of record batches that followers were given.",
    (),
    (KafkaName("kafka_server_brokertopicmetrics_replicationbytesout_total"),),
)
HIGH_WATERMARK: Final = Metric(
    "ottla_partition_high_watermark",
    "gauge",
    "The offset below which everything is committed.",
    ("topic", "partition"),
    per_partition=True,
)
PARTITION_UNDER_REPLICATED: Final = Metric(
    "ottla_partition_under_replicated",
    "gauge",
    "1 for a partition led here that has replicas out of sync, otherwise 0.",
    ("topic", "partition"),
    (KafkaName("kafka_cluster_partition_underreplicated"),),
    per_partition=True,
)

METRICS: Final = (
    PARTITIONS,
    LEADERS,
    UNDER_REPLICATED,
    UNDER_MIN_ISR,
    AT_MIN_ISR,
    OFFLINE,
    REASSIGNING,
    ISR_SHRINKS,
    ISR_EXPANDS,
    FAILED_ISR_UPDATES,
    FETCHER_LAG,
    FETCHER_FAILURES,
    CRC_ERRORS,
    RECEIVED_BYTES,
    SENT_BYTES,
    HIGH_WATERMARK,
    PARTITION_UNDER_REPLICATED,
)

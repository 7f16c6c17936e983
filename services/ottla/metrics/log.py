"""Metrics of logs: their sizes, the directories they are in, flushing, recovery, and the cleaner."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import KafkaName, Metric


def _percent(ratio: float) -> float:
    return 100.0 * ratio


SIZE_BYTES: Final = Metric(
    "ottla_log_size_bytes",
    "gauge",
    "Bytes of a partition's segments.",
    ("topic", "partition"),
    (KafkaName("kafka_log_log_size"),),
    per_partition=True,
)
START_OFFSET: Final = Metric(
    "ottla_log_start_offset",
    "gauge",
    "The first offset that can be read.",
    ("topic", "partition"),
    (KafkaName("kafka_log_log_logstartoffset"),),
    per_partition=True,
)
END_OFFSET: Final = Metric(
    "ottla_log_end_offset",
    "gauge",
    "The offset that the next record gets.",
    ("topic", "partition"),
    (KafkaName("kafka_log_log_logendoffset"),),
    per_partition=True,
)
SEGMENTS: Final = Metric("ottla_log_segments", "gauge", "Segments of all logs together.", (), (KafkaName("kafka_log_log_numlogsegments"),))
DIRECTORY_SIZE: Final = Metric("ottla_log_directory_size_bytes", "gauge", "Bytes of the segments in a log directory.", ("directory",))
DIRECTORY_FREE: Final = Metric(
    "ottla_log_directory_free_bytes", "gauge", "Bytes that are free on a log directory's file system.", ("directory",)
)
DIRECTORY_TOTAL: Final = Metric("ottla_log_directory_total_bytes", "gauge", "Bytes of a log directory's file system.", ("directory",))
DIRECTORIES_OFFLINE: Final = Metric(
    "ottla_log_dirs_offline",
    "gauge",
    "Log directories that have failed.",
    (),
    (KafkaName("kafka_log_logmanager_offlinelogdirectorycount"),),
)
DIRECTORIES_FULL: Final = Metric(
    "ottla_log_dirs_full", "gauge", "Log directories in which nothing can be written for want of room, by the disk or by a quota."
)
FLUSH_SECONDS: Final = Metric(
    "ottla_log_flush_seconds",
    "histogram",
    "Time that flushes of a log to the disk took, outside the event loop.",
    (),
    (KafkaName("kafka_log_logflushstats_logflushrateandtimems"),),
)
CRC_ERRORS: Final = Metric(
    "ottla_log_crc_errors_total", "counter", "Batches on the disk that did not match their checksum when they were read."
)
RECOVERY_SECONDS: Final = Metric(
    "ottla_log_recovery_seconds", "gauge", "Time that loading the logs at the start took, with reading what was not closed cleanly."
)
RECOVERED_BYTES: Final = Metric(
    "ottla_log_recovered_bytes_total",
    "counter",
    "Bytes of segments that were read through at the start, not having been closed cleanly.",
)
CLEANED_BYTES: Final = Metric("ottla_cleaner_bytes_cleaned_total", "counter", "Bytes of compacted topics that the cleaner has read.")
MAX_DIRTY_RATIO: Final = Metric(
    "ottla_cleaner_max_dirty_ratio",
    "gauge",
    "The largest share of a compacted log that is yet to be cleaned.",
    (),
    (KafkaName("kafka_log_logcleanermanager_max_dirty_percent", value=_percent),),
)
UNCLEANABLE: Final = Metric(
    "ottla_cleaner_uncleanable_partitions",
    "gauge",
    "Compacted partitions that the cleaner has given up, after an error.",
    (),
    (KafkaName("kafka_log_logcleanermanager_uncleanable_partitions_count"),),
)
CLEANER_RUN_SECONDS: Final = Metric("ottla_cleaner_run_seconds", "histogram", "Time that cleaning one log took, outside the event loop.")

METRICS: Final = (
    SIZE_BYTES,
    START_OFFSET,
    END_OFFSET,
    SEGMENTS,
    DIRECTORY_SIZE,
    DIRECTORY_FREE,
    DIRECTORY_TOTAL,
    DIRECTORIES_OFFLINE,
    DIRECTORIES_FULL,
    FLUSH_SECONDS,
    CRC_ERRORS,
    RECOVERY_SECONDS,
    RECOVERED_BYTES,
    CLEANED_BYTES,
    MAX_DIRTY_RATIO,
    UNCLEANABLE,
    CLEANER_RUN_SECONDS,
)

"""The broker's settings of log compaction."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.config.settings import DAY_MS, KIB, LONG_MAX, MIB, Settings, setting


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class CleanerSettings(Settings):
    """`log.cleaner.*`; those that a topic can override are its defaults."""

    log_cleaner_enable: bool = setting(
        "log.cleaner.enable", "boolean", default=True, doc="Compact the topics whose cleanup policy asks for it."
    )
    log_cleaner_threads: int = setting(
        "log.cleaner.threads",
        "int",
        default=1,
        at_least=1,
        dynamic="cluster-wide",
        doc="How many logs are compacted at a time.",
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        "log.cleaner.io.max.bytes.per.second",
        "double",
        default=1.7976931348623157e308,
        dynamic="cluster-wide",
        doc="How fast compaction may read and write.",
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        "log.cleaner.dedupe.buffer.size",
        "long",
        default=128 * MIB,
        dynamic="cluster-wide",
        doc="Memory for the offset maps of all compactions: at least a MiB for each.",
    )
    log_cleaner_io_buffer_size: int = setting(
        "log.cleaner.io.buffer.size",
        "int",
        default=512 * KIB,
        at_least=0,
        dynamic="cluster-wide",
        doc="Memory for the reads and writes of all compactions.",
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        "log.cleaner.io.buffer.load.factor",
        "double",
        default=0.9,
        dynamic="cluster-wide",
        doc="How full an offset map may become.",
    )
    log_cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms",
        "long",
        default=15_000,
        at_least=0,
        dynamic="cluster-wide",
        doc="How long to wait when there was nothing to compact.",
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        "log.cleaner.min.cleanable.ratio",
        "double",
        default=0.5,
        at_least=0,
        at_most=1,
        dynamic="cluster-wide",
        doc="Compact a log when this share of it was not compacted yet.",
    )
    log_cleaner_delete_retention_ms: int = setting(
        "log.cleaner.delete.retention.ms",
        "long",
        default=DAY_MS,
        at_least=0,
        dynamic="cluster-wide",
        doc="How long a compacted topic keeps a tombstone.",
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        "log.cleaner.min.compaction.lag.ms",
        "long",
        default=0,
        at_least=0,
        dynamic="cluster-wide",
        doc="Leave records that are younger than this uncompacted.",
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        "log.cleaner.max.compaction.lag.ms",
        "long",
        default=LONG_MAX,
        at_least=1,
        dynamic="cluster-wide",
        doc="Compact a log when a record in it has waited this long.",
    )

"""Metrics of a mirror maker: what it copies, how far behind it is, and what it cannot copy."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import Metric

_LINK: Final = ("link",)

RECORDS: Final = Metric("ottla_mirror_records_total", "counter", "Records that were copied.", _LINK)
BYTES: Final = Metric("ottla_mirror_bytes_total", "counter", "Bytes of batches that were copied, compressed as they are.", _LINK)
BATCHES: Final = Metric("ottla_mirror_batches_total", "counter", "Batches that were written.", _LINK)
OPENED: Final = Metric("ottla_mirror_opened_batches_total", "counter", "Batches of the source that could not be copied as they are.", _LINK)
JOINED: Final = Metric(
    "ottla_mirror_joined_batches_total", "counter", "Batches of the source that are in the target within a larger one.", _LINK
)
CUT: Final = Metric("ottla_mirror_cut_batches_total", "counter", "Batches that had come from the target, and were not copied back.", _LINK)
TRANSACTIONS: Final = Metric("ottla_mirror_transactions_total", "counter", "Transactions that were committed.", _LINK)
FAILED_TRANSACTIONS: Final = Metric("ottla_mirror_failed_transactions_total", "counter", "Times that a slot was opened again.", _LINK)
GAPS: Final = Metric("ottla_mirror_gaps_total", "counter", "Gaps that were accepted and are in the map.", _LINK)
PARTITIONS: Final = Metric("ottla_mirror_partitions", "gauge", "Partitions of the slots that are held here.", ("link", "state"))
LAG: Final = Metric("ottla_mirror_lag_messages", "gauge", "Offsets of the source that are not copied yet.", _LINK)
LAG_SECONDS: Final = Metric(
    "ottla_mirror_lag_seconds",
    "gauge",
    "How old the last copied record is, where more is to come, or since when one waits for the first; of all partitions the oldest.",
    _LINK,
)
RECORD_AGE: Final = Metric(
    "ottla_mirror_record_age_seconds",
    "histogram",
    "Age of the last record of each partition that a transaction copies, when that is committed: by the clocks of source and worker.",
    _LINK,
)
LAG_BYTES: Final = Metric(
    "ottla_mirror_lag_bytes", "gauge", "Bytes that are not copied yet, as far as copied records say how large one is.", _LINK
)
SLOTS: Final = Metric(
    "ottla_mirror_slots", "gauge", "Slots that are held here and open: no one else can write, and the map is read.", _LINK
)
LINK_SLOTS: Final = Metric("ottla_mirror_link_slots", "gauge", "Slots that the link has; together its workers should hold as many.", _LINK)
PAUSED: Final = Metric("ottla_mirror_link_paused", "gauge", "1 while an operator has paused the whole link, otherwise 0.", _LINK)
FAILED: Final = Metric("ottla_mirror_link_failed", "gauge", "1 while nothing of the link can be copied, otherwise 0.", _LINK)
SCHEMAS: Final = Metric("ottla_mirror_schemas_total", "counter", "Versions of schemas that were registered in the target.", _LINK)
REFUSED_SCHEMAS: Final = Metric(
    "ottla_mirror_refused_schemas",
    "gauge",
    "Versions of schemas that the target's registry does not take, above all as their id is another schema's there.",
    _LINK,
)

METRICS: Final = (
    RECORDS,
    BYTES,
    BATCHES,
    OPENED,
    JOINED,
    CUT,
    TRANSACTIONS,
    FAILED_TRANSACTIONS,
    GAPS,
    PARTITIONS,
    LAG,
    LAG_SECONDS,
    RECORD_AGE,
    LAG_BYTES,
    SLOTS,
    LINK_SLOTS,
    PAUSED,
    FAILED,
    SCHEMAS,
    REFUSED_SCHEMAS,
)

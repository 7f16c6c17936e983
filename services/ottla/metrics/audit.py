"""Metrics of the audit counter: what it says of topics, and how it is. No label has a value that a stranger chose, but for topics and
for the groups, links and jobs of tiers and edges."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import Metric

_EDGE: Final = ("topic", "edge")

MESSAGES: Final = Metric("ottla_audit_messages", "gauge", "Messages in the windows that are kept.", ("tier", "topic"))
MISSING: Final = Metric(
    "ottla_audit_missing_messages", "gauge", "Messages that the tier behind does not have, in the windows of which that is known.", _EDGE
)
DUPLICATE: Final = Metric(
    "ottla_audit_duplicate_messages", "gauge", "Messages that the tier behind has too often, in the windows of which that is known.", _EDGE
)
WINDOWS: Final = Metric("ottla_audit_windows", "gauge", "Windows that are kept, by what is said of them.", ("topic", "edge", "verdict"))
COMPLETENESS: Final = Metric(
    "ottla_audit_window_completeness_ratio", "gauge", "The share of the known windows that are COMPLETE or LATE.", _EDGE
)
OLDEST_INCOMPLETE: Final = Metric(
    "ottla_audit_oldest_incomplete_window_seconds", "gauge", "The age of the oldest window that is PENDING, 0 without one.", _EDGE
)
LATENCY: Final = Metric(
    "ottla_audit_latency_seconds",
    "histogram",
    "Time from a message to the tier that had it, and at producers to its acknowledgement, of what was counted.",
    ("tier",),
)
SESSIONS: Final = Metric("ottla_audit_sessions", "gauge", "Sessions that report, by tier.", ("tier",))
SESSION_GAPS: Final = Metric("ottla_audit_session_gaps_total", "counter", "Gaps in what sessions said: audit data that is missing.")
RECORDS: Final = Metric("ottla_audit_records_total", "counter", "Audit records that were counted.")
REPEATED: Final = Metric("ottla_audit_repeated_records_total", "counter", "Audit records that were counted before.")
QUARANTINED: Final = Metric("ottla_audit_quarantined_records_total", "counter", "Records of `__audit` that are none.")
REFUSED: Final = Metric("ottla_audit_refused_windows_total", "counter", "Windows too far ahead, past the retention, or of another length.")
LAG: Final = Metric("ottla_audit_lag_records", "gauge", "Records of `__audit` that are still to be read.")
VERDICT_SECONDS: Final = Metric("ottla_audit_verdict_seconds", "histogram", "Time from audit records that were read to verdicts.")
LOGS_READ: Final = Metric("ottla_audit_logs_read_total", "counter", "Windows whose logs were read.")
LOG_RECORDS: Final = Metric("ottla_audit_log_records_total", "counter", "Records that were read for that.")
LOG_FAILURES: Final = Metric("ottla_audit_log_failures_total", "counter", "Windows whose logs could not be read.")
IS_ACTIVE: Final = Metric("ottla_audit_is_active", "gauge", "1 at the counter that writes verdicts, 0 at a standby.")

_PARTITION: Final = ("partition",)

CANARY_RUNS: Final = Metric("ottla_audit_canary_runs", "gauge", "1 while the canary sends; not given where it is off, or by a standby.")
CANARY_UNLED: Final = Metric("ottla_audit_canary_brokers_without_partition", "gauge", "Brokers that lead no partition of `__canary`.")
CANARY_MESSAGES: Final = Metric(
    "ottla_audit_canary_messages_total",
    "counter",
    "Messages of the canary that were attempted, acknowledged, failed, consumed, lost and doubled.",
    ("partition", "outcome"),
)
CANARY_PRODUCE: Final = Metric(
    "ottla_audit_canary_produce_availability_ratio",
    "gauge",
    "The share of the last minute's messages that were acknowledged in time.",
    _PARTITION,
)
CANARY_CONSUME: Final = Metric(
    "ottla_audit_canary_consume_availability_ratio",
    "gauge",
    "The share of the last minute's acknowledged messages that were consumed in time.",
    _PARTITION,
)
CANARY_PRODUCE_SECONDS: Final = Metric(
    "ottla_audit_canary_produce_seconds", "histogram", "Time from a message to its acknowledgement.", _PARTITION
)
CANARY_END_TO_END: Final = Metric(
    "ottla_audit_canary_end_to_end_seconds", "histogram", "Time from a message to its consumption.", _PARTITION
)
CANARY_COMMIT: Final = Metric(
    "ottla_audit_canary_commit_seconds", "histogram", "Time of the transactions that commit the canary's offsets with its report."
)
CANARY_COMMIT_FAILURES: Final = Metric("ottla_audit_canary_commit_failures_total", "counter", "Such transactions that failed.")

METRICS: Final = (
    MESSAGES,
    MISSING,
    DUPLICATE,
    WINDOWS,
    COMPLETENESS,
    OLDEST_INCOMPLETE,
    LATENCY,
    SESSIONS,
    SESSION_GAPS,
    RECORDS,
    REPEATED,
    QUARANTINED,
    REFUSED,
    LAG,
    VERDICT_SECONDS,
    LOGS_READ,
    LOG_RECORDS,
    LOG_FAILURES,
    IS_ACTIVE,
    CANARY_RUNS,
    CANARY_UNLED,
    CANARY_MESSAGES,
    CANARY_PRODUCE,
    CANARY_CONSUME,
    CANARY_PRODUCE_SECONDS,
    CANARY_END_TO_END,
    CANARY_COMMIT,
    CANARY_COMMIT_FAILURES,
)

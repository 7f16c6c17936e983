"""Metrics of a load: what it has put into its table, when it last succeeded, and how far behind it is."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import Metric

_LOAD: Final = ("load",)

ROWS: Final = Metric("ottla_load_rows_total", "counter", "Rows that were committed.", _LOAD)
BYTES: Final = Metric("ottla_load_bytes_total", "counter", "Bytes of the files that were committed.", _LOAD)
FILES: Final = Metric("ottla_load_files_total", "counter", "Files that were committed.", _LOAD)
COMMITS: Final = Metric("ottla_load_commits_total", "counter", "Commits of the table.", _LOAD)
LOST: Final = Metric("ottla_load_lost_messages_total", "counter", "Offsets that retention was faster with, and that were given up.", _LOAD)
QUARANTINED: Final = Metric("ottla_load_quarantined_messages_total", "counter", "Offsets of damaged batches that are in quarantine.", _LOAD)
FAILURES: Final = Metric("ottla_load_failures_total", "counter", "Loads that failed, of which nothing was committed.", _LOAD)
SECONDS: Final = Metric("ottla_load_duration_seconds", "gauge", "Time that the last load with a commit took.", _LOAD)
LAG: Final = Metric("ottla_load_lag_messages", "gauge", "Offsets that the last load has left for the next one.", _LOAD)
LAST_SUCCESS: Final = Metric(
    "ottla_load_last_success_timestamp_seconds", "gauge", "When a load last came to its end, with a commit or without; 0: none has.", _LOAD
)
STALE_AFTER: Final = Metric(
    "ottla_load_stale_after_seconds", "gauge", "How old the last success may become before LoadStale fires: `--stale-after`.", _LOAD
)

METRICS: Final = (ROWS, BYTES, FILES, COMMITS, LOST, QUARANTINED, FAILURES, SECONDS, LAG, LAST_SUCCESS, STALE_AFTER)

"""Metrics of transactions, given by the broker that coordinates them."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import Metric

TRANSACTIONS: Final = Metric("ottla_transactions", "gauge", "Transactional ids that this broker coordinates, by their state.", ("state",))
ENDED: Final = Metric("ottla_transactions_ended_total", "counter", "Transactions that have ended: committed or aborted.", ("outcome",))
OLDEST_OPEN: Final = Metric(
    "ottla_transactions_oldest_open_seconds", "gauge", "How long the oldest open transaction has been open; 0 when none is."
)
RECORDS_CORRUPT: Final = Metric(
    "ottla_transaction_records_corrupt_total",
    "counter",
    "Records of __transaction_state that were skipped because they cannot be decoded.",
)

METRICS: Final = (TRANSACTIONS, ENDED, OLDEST_OPEN, RECORDS_CORRUPT)

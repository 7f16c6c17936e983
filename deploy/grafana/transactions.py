"""Transactions, and the cleaner of compacted topics."""

from __future__ import annotations

from typing import Final

from deploy.grafana.board import Board, Panel

_HERE: Final = 'job="$job", instance=~"$broker"'

TRANSACTIONS: Final = Board(
    "transactions",
    "Ottla / Transactions and cleaner",
    "Transactions by state and outcome; how the cleaner keeps up with compacted topics.",
    (
        (
            "Transactions",
            (
                Panel(
                    "Transactional ids by state",
                    "short",
                    "Many in PrepareCommit or PrepareAbort: markers are not written, look at the brokers that lead those partitions.",
                    ((f"sum by (state) (ottla_transactions{{{_HERE}}})", "{{state}}"),),
                    stacked=True,
                ),
                Panel(
                    "Transactions ended",
                    "cps",
                    "Commits and aborts; aborts by the coordinator, after the producer's timeout, are among them.",
                    ((f"sum by (outcome) (rate(ottla_transactions_ended_total{{{_HERE}}}[$__rate_interval]))", "{{outcome}}"),),
                ),
                Panel(
                    "Oldest open transaction",
                    "s",
                    "Readers with read_committed do not get past it. Alert: TransactionOpenTooLong.",
                    ((f"ottla_transactions_oldest_open_seconds{{{_HERE}}}", "{{instance}}"),),
                ),
                Panel(
                    "Records that no one can read",
                    "short",
                    "Records of __transaction_state that were passed over. Alert: CorruptRecords.",
                    ((f"ottla_transaction_records_corrupt_total{{{_HERE}}}", "{{instance}}"),),
                ),
            ),
        ),
        (
            "The cleaner",
            (
                Panel(
                    "Dirty share",
                    "percentunit",
                    "The largest share of a compacted log that is yet to be cleaned. Stays high: the cleaner does not keep up.",
                    ((f"ottla_cleaner_max_dirty_ratio{{{_HERE}}}", "{{instance}}"),),
                    highest=1,
                ),
                Panel(
                    "Partitions given up",
                    "short",
                    "Compacted partitions that could not be cleaned. Alert: UncleanablePartitions.",
                    ((f"ottla_cleaner_uncleanable_partitions{{{_HERE}}}", "{{instance}}"),),
                ),
                Panel(
                    "Bytes cleaned",
                    "Bps",
                    "Bytes of compacted topics that the cleaner reads; log.cleaner.io.max.bytes.per.second bounds it.",
                    ((f"rate(ottla_cleaner_bytes_cleaned_total{{{_HERE}}}[$__rate_interval])", "{{instance}}"),),
                ),
                Panel(
                    "Cleaning a log, 99 of 100 within",
                    "s",
                    "Time for one log, beside the event loop.",
                    (
                        (
                            "histogram_quantile(0.99, sum by (instance, le) "
                            f"(rate(ottla_cleaner_run_seconds_bucket{{{_HERE}}}[$__rate_interval])))",
                            "{{instance}}",
                        ),
                    ),
                    empty_because="nothing needs cleaning",
                ),
            ),
        ),
    ),
)

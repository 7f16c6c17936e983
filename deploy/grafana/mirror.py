"""The mirror maker: what is copied, how far behind it is, and who copies it."""

from __future__ import annotations

from typing import Final

from deploy.grafana.board import Board, Panel

_HERE: Final = 'job="$job"'
_NONE: Final = "no mirror maker runs"


def _rate(name: str, by: str = "link") -> str:
    return f"sum by ({by}) (rate(ottla_mirror_{name}{{{_HERE}}}[$__rate_interval]))"


def _highest(name: str, by: str = "link") -> str:
    return f"max by ({by}) (ottla_mirror_{name}{{{_HERE}}})"


MIRROR: Final = Board(
    "mirror",
    "Ottla / Mirror maker",
    "What links copy, how far they are behind, and who holds their slots.",
    (
        (
            "State",
            (
                Panel(
                    "Failed partitions",
                    "short",
                    "Partitions that are not copied any more; ottla mirror describe says why. Alert: MirrorPartitionFailed.",
                    ((f'sum(ottla_mirror_partitions{{{_HERE}, state="FAILED"}})', "failed"),),
                    kind="number",
                    bad_from=1,
                    empty_because=_NONE,
                ),
                Panel(
                    "Failed links",
                    "short",
                    "Links whose source is another cluster than it was, or the target itself.",
                    ((f"sum({_highest('link_failed')})", "failed"),),
                    kind="number",
                    bad_from=1,
                    empty_because=_NONE,
                ),
                Panel(
                    "Slots without a worker",
                    "short",
                    "No one copies what stands there; for a session after a worker was killed. Alert: MirrorWorkersGone.",
                    ((f"sum({_highest('link_slots')}) - sum(ottla_mirror_slots{{{_HERE}}})", "slots"),),
                    kind="number",
                    bad_from=1,
                    empty_because=_NONE,
                ),
                Panel(
                    "Partitions by state",
                    "short",
                    "Each partition stands once, at the worker that has its slot. Alert for what is paused: MirrorLinkPaused.",
                    ((f"sum by (link, state) (ottla_mirror_partitions{{{_HERE}}}) > 0", "{{link}} {{state}}"),),
                    stacked=True,
                    empty_because=_NONE,
                ),
                Panel(
                    "Slots",
                    "short",
                    "Slots that each worker has open; they move one at a time, by what there is to copy.",
                    ((f"ottla_mirror_slots{{{_HERE}}}", "{{link}} {{instance}}"),),
                    stacked=True,
                    empty_because=_NONE,
                ),
                Panel(
                    "Gaps",
                    "short",
                    "Ranges that the source had lost before they were copied, and that someone has accepted; the map has each.",
                    ((f"sum by (link) (ottla_mirror_gaps_total{{{_HERE}}})", "{{link}}"),),
                    empty_because=_NONE,
                ),
            ),
        ),
        (
            "Lag",
            (
                Panel(
                    "Behind, in seconds",
                    "s",
                    "The age of the last copied record where more is to come; the worst partition. Alert: MirrorLagSeconds.",
                    ((_highest("lag_seconds"), "{{link}}"),),
                    empty_because=_NONE,
                ),
                Panel(
                    "Age of records when they are copied",
                    "s",
                    "99 % are younger: of the last record of each partition in a transaction, by the clocks of source and worker.",
                    ((f"histogram_quantile(0.99, {_rate('record_age_seconds_bucket', 'link, le')})", "{{link}}"),),
                    empty_because=_NONE,
                ),
                Panel(
                    "Behind, in messages",
                    "short",
                    "Offsets of the source that are not copied yet.",
                    ((f"sum by (link) (ottla_mirror_lag_messages{{{_HERE}}})", "{{link}}"),),
                    empty_because=_NONE,
                ),
                Panel(
                    "Behind, in bytes",
                    "bytes",
                    "The same, by the size that copied records have had.",
                    ((f"sum by (link) (ottla_mirror_lag_bytes{{{_HERE}}})", "{{link}}"),),
                    empty_because=_NONE,
                ),
            ),
        ),
        (
            "Copying",
            (
                Panel("Copied", "Bps", "Batches as they are, compressed.", ((_rate("bytes_total"), "{{link}}"),), empty_because=_NONE),
                Panel("Records", "cps", "Records in these batches.", ((_rate("records_total"), "{{link}}"),), empty_because=_NONE),
                Panel(
                    "Batches",
                    "cps",
                    "Written; opened, which costs a core much more; and cut, as they had come from the target.",
                    (
                        (_rate("batches_total"), "{{link}} written"),
                        (_rate("opened_batches_total"), "{{link}} opened"),
                        (_rate("cut_batches_total"), "{{link}} cut"),
                    ),
                    empty_because=_NONE,
                ),
                Panel(
                    "Transactions",
                    "cps",
                    "Committed, and slots that were opened again after something failed.",
                    ((_rate("transactions_total"), "{{link}}"), (_rate("failed_transactions_total"), "{{link}} failed")),
                    empty_because=_NONE,
                ),
            ),
        ),
    ),
)

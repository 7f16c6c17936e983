"""The audit: whether every message arrived, what is not known, and the counter itself."""

from __future__ import annotations

from typing import Final

from deploy.grafana.board import Board, Panel

_HERE: Final = 'job="$job"'
_NOTHING: Final = "no topic is audited"
_NO_CANARY: Final = "audit.canary.enable is false"


def _windows(verdicts: str) -> str:
    """Windows with these verdicts; a standby has the same, so the highest counts."""
    return f'sum(max by (topic, edge, verdict) (ottla_audit_windows{{{_HERE}, verdict=~"{verdicts}"}})) or vector(0)'


def _p99(name: str, *labels: str) -> str:
    return f"histogram_quantile(0.99, sum by ({', '.join((*labels, 'le'))}) (rate({name}_bucket{{{_HERE}}}[$__rate_interval])))"


def _outcomes(names: str) -> str:
    return f'sum by (outcome) (increase(ottla_audit_canary_messages_total{{{_HERE}, outcome=~"{names}"}}[5m]))'


AUDIT: Final = Board(
    "audit",
    "Ottla / Audit",
    "Whether every message arrived, what is not known yet, and the counter itself.",
    (
        (
            "Verdicts",
            (
                Panel(
                    "Windows with a loss",
                    "short",
                    "A tier lacks messages that the tier before it had, or has others. Alert: AuditLoss.",
                    ((_windows("LOSS|COMPENSATED"), "windows"),),
                    kind="number",
                    bad_from=1,
                ),
                Panel(
                    "Windows with duplicates",
                    "short",
                    "A tier has messages more often than the tier before it. Alert: AuditDuplicate.",
                    ((_windows("DUPLICATE"), "windows"),),
                    kind="number",
                    bad_from=1,
                ),
                Panel(
                    "Active counters",
                    "short",
                    "Counters that write verdicts; one, and none for the length of a session after it was killed.",
                    ((f"sum(ottla_audit_is_active{{{_HERE}}})", "active"),),
                    kind="number",
                    good_from=1,
                ),
                Panel(
                    "Counters that do not answer",
                    "short",
                    "Audit counters that Prometheus cannot scrape. Alert: AuditCounterDown.",
                    ((f'count(up{{{_HERE}, component="audit-counter"}}) - sum(up{{{_HERE}, component="audit-counter"}})', "down"),),
                    kind="number",
                    bad_from=1,
                ),
                Panel(
                    "Windows by verdict",
                    "short",
                    "All windows that are kept. What is neither COMPLETE nor LATE is not known, in doubt, or wrong.",
                    ((f"sum by (verdict) (max by (topic, edge, verdict) (ottla_audit_windows{{{_HERE}}}))", "{{verdict}}"),),
                    stacked=True,
                    empty_because=_NOTHING,
                ),
                Panel(
                    "Completeness",
                    "percentunit",
                    "The share of the known windows in which every message arrived.",
                    ((f"min by (topic, edge) (ottla_audit_window_completeness_ratio{{{_HERE}}})", "{{topic}} {{edge}}"),),
                    empty_because=_NOTHING,
                ),
                Panel(
                    "Missing messages",
                    "short",
                    "Messages that the tier behind lacks, in the windows that are kept.",
                    ((f"max by (topic, edge) (ottla_audit_missing_messages{{{_HERE}}})", "{{topic}} {{edge}}"),),
                    empty_because=_NOTHING,
                ),
                Panel(
                    "Messages too many",
                    "short",
                    "Messages that the tier behind has more often than the tier before it.",
                    ((f"max by (topic, edge) (ottla_audit_duplicate_messages{{{_HERE}}})", "{{topic}} {{edge}}"),),
                    empty_because=_NOTHING,
                ),
            ),
        ),
        (
            "The books",
            (
                Panel(
                    "Messages by tier",
                    "short",
                    "Messages in the windows that are kept. Lines that part are messages on their way, or lost.",
                    ((f"sum by (tier) (max by (tier, topic) (ottla_audit_messages{{{_HERE}}}))", "{{tier}}"),),
                    empty_because=_NOTHING,
                ),
                Panel(
                    "Oldest window that is not known",
                    "s",
                    "A line that climbs is a tier that stands still. Alert: AuditWindowStuck.",
                    ((f"max by (topic, edge) (ottla_audit_oldest_incomplete_window_seconds{{{_HERE}}})", "{{topic}} {{edge}}"),),
                    empty_because=_NOTHING,
                ),
                Panel(
                    "Latency",
                    "s",
                    "p99 from a message to the tier that had it; at producers to its acknowledgement.",
                    ((_p99("ottla_audit_latency_seconds", "tier"), "{{tier}}"),),
                    empty_because=_NOTHING,
                ),
                Panel(
                    "Sessions",
                    "short",
                    "Processes that report, by tier.",
                    ((f"max by (tier) (ottla_audit_sessions{{{_HERE}}})", "{{tier}}"),),
                    empty_because=_NOTHING,
                ),
                Panel(
                    "Audit data that is missing",
                    "short",
                    "Gaps in what sessions said, in 5 minutes. Alert: AuditSessionGap.",
                    ((f"increase(ottla_audit_session_gaps_total{{{_HERE}}}[5m])", "{{instance}}"),),
                ),
            ),
        ),
        (
            "The canary",
            (
                Panel(
                    "Availability",
                    "percentunit",
                    "The share of a minute's messages that were acknowledged, and given back, in time. Alert: AuditCanaryUnavailable.",
                    (
                        (f"min by (partition) (ottla_audit_canary_produce_availability_ratio{{{_HERE}}})", "produce {{partition}}"),
                        (f"min by (partition) (ottla_audit_canary_consume_availability_ratio{{{_HERE}}})", "consume {{partition}}"),
                    ),
                    empty_because=_NO_CANARY,
                ),
                Panel(
                    "Latency",
                    "s",
                    "p99 from a message to its acknowledgement, and until it is given back.",
                    (
                        (_p99("ottla_audit_canary_produce_seconds", "partition"), "produce {{partition}}"),
                        (_p99("ottla_audit_canary_end_to_end_seconds", "partition"), "end to end {{partition}}"),
                        (_p99("ottla_audit_canary_commit_seconds"), "commit"),
                    ),
                    empty_because=_NO_CANARY,
                ),
                Panel(
                    "Failed, lost, doubled",
                    "short",
                    "Messages in 5 minutes. What failed may have arrived; what is lost was acknowledged.",
                    (
                        (_outcomes("failed|lost|doubled"), "{{outcome}}"),
                        (f"sum(increase(ottla_audit_canary_commit_failures_total{{{_HERE}}}[5m]))", "commits failed"),
                    ),
                    empty_because=_NO_CANARY,
                ),
                Panel(
                    "Where it runs",
                    "short",
                    "Canaries that send, and brokers that lead no partition of __canary. Alert: AuditCanaryDown.",
                    (
                        (f"sum(ottla_audit_canary_runs{{{_HERE}}})", "sending"),
                        (f"max(ottla_audit_canary_brokers_without_partition{{{_HERE}}})", "brokers without partition"),
                    ),
                    empty_because=_NO_CANARY,
                ),
            ),
        ),
        (
            "The counter",
            (
                Panel(
                    "Audit records",
                    "cps",
                    "Records that were counted, that had come before, and that are none.",
                    (
                        (f"rate(ottla_audit_records_total{{{_HERE}}}[$__rate_interval])", "{{instance}}"),
                        (f"rate(ottla_audit_repeated_records_total{{{_HERE}}}[$__rate_interval])", "{{instance}} again"),
                        (f"rate(ottla_audit_quarantined_records_total{{{_HERE}}}[$__rate_interval])", "{{instance}} quarantined"),
                        (f"rate(ottla_audit_refused_windows_total{{{_HERE}}}[$__rate_interval])", "{{instance}} windows refused"),
                    ),
                ),
                Panel(
                    "To read",
                    "short",
                    "Records of __audit that are still to be read.",
                    ((f"ottla_audit_lag_records{{{_HERE}}}", "{{instance}}"),),
                ),
                Panel(
                    "99 of 100 verdicts within",
                    "s",
                    "From audit records that were read to verdicts.",
                    (
                        (
                            "histogram_quantile(0.99, sum by (instance, le) (rate("
                            f"ottla_audit_verdict_seconds_bucket{{{_HERE}}}[$__rate_interval])))",
                            "{{instance}}",
                        ),
                    ),
                    empty_because=_NOTHING,
                ),
                Panel(
                    "Logs read",
                    "cps",
                    "Records of topics that were read for verification, windows of which that was, and windows that could not be read.",
                    (
                        (f"rate(ottla_audit_log_records_total{{{_HERE}}}[$__rate_interval])", "{{instance}} records"),
                        (f"rate(ottla_audit_logs_read_total{{{_HERE}}}[$__rate_interval])", "{{instance}} windows"),
                        (f"rate(ottla_audit_log_failures_total{{{_HERE}}}[$__rate_interval])", "{{instance}} failures"),
                    ),
                ),
            ),
        ),
    ),
)

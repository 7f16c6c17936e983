"""One broker, or some: where a request's time goes, the loop, the network, the disk."""

from __future__ import annotations

from typing import Final

from deploy.grafana.board import Board, Panel, Variable

_HERE: Final = 'job="$job", instance=~"$broker"'
_STATES: Final = (
    (0, "starting", "yellow"),
    (1, "recovering logs", "yellow"),
    (2, "running", "green"),
    (3, "draining", "blue"),
    (4, "stopping", "blue"),
)


def _quantile(share: float, metric: str, labels: str = "", by: str = "") -> str:
    also = f"{by}, " if by else ""
    return f"histogram_quantile({share}, sum by ({also}le) (rate({metric}_bucket{{{_HERE}{labels}}}[$__rate_interval])))"


_STATE: Final = (
    Panel(
        "State",
        "short",
        "What each broker does.",
        ((f"ottla_broker_state{{{_HERE}}}", "{{instance}}"),),
        kind="number",
        names=_STATES,
    ),
    Panel(
        "Ready",
        "short",
        "What /readyz says: registered, the controller known, its own replicas in sync (once since the start). Alert: BrokerNotReady.",
        ((f"ottla_ready{{{_HERE}}}", "{{instance}}"),),
        kind="number",
        names=((0, "no", "red"), (1, "yes", "green")),
    ),
    Panel(
        "Running for",
        "s",
        "Time since each broker's start. Alert: BrokerRestartsOften.",
        ((f"time() - ottla_broker_start_time_seconds{{{_HERE}}}", "{{instance}}"),),
        kind="number",
    ),
)

_REQUESTS: Final = (
    Panel(
        "Requests",
        "reqps",
        "Requests taken on, by API.",
        ((f"sum by (api) (rate(ottla_requests_total{{{_HERE}}}[$__rate_interval]))", "{{api}}"),),
        stacked=True,
    ),
    Panel(
        "$api: where the time goes, 99 of 100",
        "s",
        "queue: held back by requests before it; local: in the handler; remote: waiting for replicas or for records; send: until the "
        "answer was taken. What grows says what to look at: queue the loop, local the disk, remote the followers, send the client.",
        ((_quantile(0.99, "ottla_request_seconds", ', api=~"$api"', "stage"), "{{stage}}"),),
    ),
    Panel(
        "$api: whole time",
        "s",
        "Half, 99 of 100 and 999 of 1,000 requests take no longer.",
        tuple(
            (_quantile(share, "ottla_request_seconds", ', api=~"$api", stage="total"'), f"p{share * 100:g}") for share in (0.5, 0.99, 0.999)
        ),
    ),
    Panel(
        "$api: every request",
        "s",
        "How many requests took how long: two bands say that there are two kinds of requests, which an average hides.",
        ((f'sum by (le) (increase(ottla_request_seconds_bucket{{{_HERE}, api=~"$api", stage="total"}}[$__rate_interval]))', "{{le}}"),),
        kind="heat",
    ),
    Panel(
        "Errors",
        "cps",
        "Errors in answers, by API and error.",
        ((f"sum by (api, error) (rate(ottla_broker_requests_failed_total{{{_HERE}}}[$__rate_interval]))", "{{api}} {{error}}"),),
        empty_because="nothing fails",
    ),
    Panel(
        "Requests that wait",
        "short",
        "In the purgatory: produce for the high watermark, fetch for records; and requests in progress beside the loop, which "
        "queued.max.requests bounds.",
        (
            (f"sum by (operation) (ottla_purgatory_requests{{{_HERE}}})", "{{operation}}"),
            (f"sum(ottla_request_queue_length{{{_HERE}}})", "in progress"),
        ),
    ),
)

_LOOP: Final = (
    Panel(
        "Event loop, busy",
        "percentunit",
        "The share of the time that the loop is at work. One core is 1. Alert: EventLoopBusy.",
        ((f"ottla_event_loop_busy_ratio{{{_HERE}}}", "{{instance}}"),),
        highest=1,
    ),
    Panel(
        "Event loop, late",
        "s",
        "How late a turn of the loop comes that was due, 99 of 100: every request waits at least that long. Alert: EventLoopLagHigh.",
        ((_quantile(0.99, "ottla_event_loop_lag_seconds", "", "instance"), "{{instance}}"),),
    ),
    Panel(
        "CPU",
        "percentunit",
        "Cores that the process uses; above the busy ratio are the threads that read cold records, flush and compact.",
        ((f"rate(process_cpu_seconds_total{{{_HERE}}}[$__rate_interval])", "{{instance}}"),),
    ),
    Panel(
        "Memory",
        "bytes",
        "Resident memory of the process. The page cache, which serves readers, is not in it.",
        ((f"process_resident_memory_bytes{{{_HERE}}}", "{{instance}}"),),
    ),
    Panel(
        "Open files",
        "percentunit",
        "Share of the files that the process may open: connections, and about one for each partition that is written to.",
        ((f"process_open_fds{{{_HERE}}} / process_max_fds{{{_HERE}}}", "{{instance}}"),),
        highest=1,
    ),
    Panel(
        "Being scraped",
        "s",
        "What Prometheus itself costs: how long a scrape takes, in pieces between which the loop works for others, and the longest piece.",
        (
            (f"ottla_scrape_seconds{{{_HERE}}}", "whole {{instance}}"),
            (f"ottla_scrape_longest_slice_seconds{{{_HERE}}}", "longest piece {{instance}}"),
        ),
    ),
    Panel(
        "Garbage collections",
        "cps",
        "Runs of Python's collector, by generation. Generation 2 stops the loop for longest.",
        (
            (
                f"sum by (instance, generation) (rate(python_gc_collections_total{{{_HERE}}}[$__rate_interval]))",
                "{{instance}} {{generation}}",
            ),
        ),
    ),
)

_NETWORK: Final = (
    Panel(
        "Connections",
        "short",
        "Open connections by listener.",
        ((f"sum by (instance, listener) (ottla_connections{{{_HERE}}})", "{{instance}} {{listener}}"),),
    ),
    Panel(
        "Connections opened and closed",
        "cps",
        "Many a second: clients that do not keep theirs. Reasons: by the client, idle, stalled, refused …",
        (
            (f"sum(rate(ottla_connections_opened_total{{{_HERE}}}[$__rate_interval]))", "opened"),
            (f"sum by (reason) (rate(ottla_connections_closed_total{{{_HERE}}}[$__rate_interval]))", "closed: {{reason}}"),
        ),
    ),
    Panel(
        "Bytes in and out",
        "Bps",
        "Everything on the wire, by listener. sendfile: went from the page cache to the socket and not through Python.",
        (
            (f"sum by (listener) (rate(ottla_network_received_bytes_total{{{_HERE}}}[$__rate_interval]))", "in {{listener}}"),
            (f"sum by (listener) (rate(ottla_network_sent_bytes_total{{{_HERE}}}[$__rate_interval]))", "out {{listener}}"),
            (f"sum(rate(ottla_sendfile_bytes_total{{{_HERE}}}[$__rate_interval]))", "sendfile"),
        ),
    ),
    Panel(
        "Reads that were held back",
        "cps",
        "paused: a client that does not take its answers, or too much in progress. cold: records that were on the disk only.",
        (
            (f"sum by (instance) (rate(ottla_network_paused_reads_total{{{_HERE}}}[$__rate_interval]))", "paused {{instance}}"),
            (f"sum by (instance) (rate(ottla_network_cold_reads_total{{{_HERE}}}[$__rate_interval]))", "cold {{instance}}"),
        ),
    ),
    Panel(
        "Certificates end in",
        "s",
        "Time until the first certificate of a listener's chain ends. Alert: CertificateExpiry.",
        ((f"ottla_tls_certificate_expiry_timestamp_seconds{{{_HERE}}} - time()", "{{instance}} {{listener}}"),),
        below_zero=True,
        empty_because="no listener speaks TLS",
    ),
)

_DISK: Final = (
    Panel(
        "Logs",
        "bytes",
        "Bytes of all segments, by log directory.",
        ((f"ottla_log_directory_size_bytes{{{_HERE}}}", "{{instance}} {{directory}}"),),
    ),
    Panel(
        "Free space",
        "bytes",
        "What is free, and what would be in 4 hours at the pace of the last one. Alerts: RunningOutOfSpace, DiskFullIn4h.",
        (
            (f"ottla_log_directory_free_bytes{{{_HERE}}}", "{{instance}} {{directory}}"),
            (f"predict_linear(ottla_log_directory_free_bytes{{{_HERE}}}[1h], 4 * 3600)", "{{instance}} {{directory}} in 4 h"),
        ),
    ),
    Panel(
        "Flushes, 99 of 100 within",
        "s",
        "Time that fsync takes, beside the loop. Answers wait for it where flush.messages is set.",
        ((_quantile(0.99, "ottla_log_flush_seconds", "", "instance"), "{{instance}}"),),
        empty_because="nothing is flushed before a segment is full, if flush.messages and flush.ms do not say so",
    ),
    Panel(
        "Segments",
        "short",
        "Segments of all logs: each has an offset and a time index, and is deleted or compacted as a whole.",
        ((f"ottla_log_segments{{{_HERE}}}", "{{instance}}"),),
    ),
    Panel(
        "Recovery at the last start",
        "s",
        "How long loading the logs took; long after a kill, short after a clean stop.",
        ((f"ottla_log_recovery_seconds{{{_HERE}}}", "{{instance}}"),),
        kind="number",
    ),
    Panel(
        "Failed disks and broken batches",
        "short",
        "Full and offline log directories, and batches that failed their check within an hour. Alerts: FullLogDirectory,"
        " OfflineLogDirectory, CorruptRecords.",
        (
            (f"sum(ottla_log_dirs_full{{{_HERE}}})", "full directories"),
            (f"sum(ottla_log_dirs_offline{{{_HERE}}})", "offline directories"),
            (f"sum(increase(ottla_log_crc_errors_total{{{_HERE}}}[1h]))", "broken on disk"),
            (f"sum(increase(ottla_replica_crc_errors_total{{{_HERE}}}[1h]))", "broken on the way"),
        ),
        kind="number",
        bad_from=1,
    ),
)

BROKERS: Final = Board(
    "brokers",
    "Ottla / Brokers",
    "One broker, or some: requests by stage, the event loop, the network, the disk.",
    (("State", _STATE), ("Requests", _REQUESTS), ("The event loop", _LOOP), ("The network", _NETWORK), ("The disk", _DISK)),
    (Variable("api", "API", 'ottla_request_seconds_count{job="$job"}', "api"),),
)

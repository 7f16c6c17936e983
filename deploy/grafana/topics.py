"""What goes through which topic, and what it takes on disk."""

from __future__ import annotations

from typing import Final

from deploy.grafana.board import Board, Panel, Variable

_HERE: Final = 'job="$job", instance=~"$broker", topic=~"$topic"'
_PER_PARTITION: Final = "metrics.partition.enabled is off by default"

TOPICS: Final = Board(
    "topics",
    "Ottla / Topics",
    "What goes through which topic. The second row needs metrics.partition.enabled=true on the brokers.",
    (
        (
            "Topics",
            (
                Panel(
                    "Messages in",
                    "cps",
                    "Records that producers wrote. A topic that falls silent: alert NoMessageForTooLong.",
                    ((f"sum by (topic) (rate(ottla_broker_messages_received_total{{{_HERE}}}[$__rate_interval]))", "{{topic}}"),),
                ),
                Panel(
                    "Bytes in",
                    "Bps",
                    "Record batches that producers wrote, as they came.",
                    ((f"sum by (topic) (rate(ottla_broker_received_bytes_total{{{_HERE}}}[$__rate_interval]))", "{{topic}}"),),
                ),
                Panel(
                    "Bytes out",
                    "Bps",
                    "Record batches that consumers were given; every group counts.",
                    ((f"sum by (topic) (rate(ottla_broker_sent_bytes_total{{{_HERE}}}[$__rate_interval]))", "{{topic}}"),),
                ),
                Panel(
                    "Bytes of a message",
                    "bytes",
                    "On average, as it is stored: falls where producers compress or send larger batches.",
                    (
                        (
                            f"sum by (topic) (rate(ottla_broker_received_bytes_total{{{_HERE}}}[$__rate_interval])) / "
                            f"(sum by (topic) (rate(ottla_broker_messages_received_total{{{_HERE}}}[$__rate_interval])) > 0)",
                            "{{topic}}",
                        ),
                    ),
                ),
                Panel(
                    "Writes and reads",
                    "reqps",
                    "Parts of produce and of consumers' fetch requests, one for each partition. Many for few messages: let producers wait.",
                    (
                        (f"sum by (topic) (rate(ottla_broker_produces_total{{{_HERE}}}[$__rate_interval]))", "writes {{topic}}"),
                        (f"sum by (topic) (rate(ottla_broker_fetches_total{{{_HERE}}}[$__rate_interval]))", "reads {{topic}}"),
                    ),
                ),
                Panel(
                    "Writes that failed",
                    "cps",
                    "Parts of produce requests that were answered with an error, by topic.",
                    ((f"sum by (topic) (rate(ottla_broker_produce_failures_total{{{_HERE}}}[$__rate_interval]))", "{{topic}}"),),
                    empty_because="nothing fails",
                ),
                Panel(
                    "Reads that failed",
                    "cps",
                    "Parts of consumers' fetch requests that were answered with an error, by topic.",
                    ((f"sum by (topic) (rate(ottla_broker_fetch_failures_total{{{_HERE}}}[$__rate_interval]))", "{{topic}}"),),
                    empty_because="nothing fails",
                ),
                Panel(
                    "Share of each broker",
                    "Bps",
                    "Bytes in by broker: uneven where leaders are, or where few partitions take most.",
                    ((f"sum by (instance) (rate(ottla_broker_received_bytes_total{{{_HERE}}}[$__rate_interval]))", "{{instance}}"),),
                    stacked=True,
                ),
            ),
        ),
        (
            "Partitions (metrics.partition.enabled)",
            (
                Panel(
                    "Size",
                    "bytes",
                    "Bytes of the segments of one replica, the largest 20 partitions.",
                    ((f"topk(20, max by (topic, partition) (ottla_log_size_bytes{{{_HERE}}}))", "{{topic}}-{{partition}}"),),
                    empty_because=_PER_PARTITION,
                ),
                Panel(
                    "Records kept",
                    "short",
                    "From the first offset that can be read to the end, the largest 20 partitions.",
                    (
                        (
                            f"topk(20, max by (topic, partition) (ottla_log_end_offset{{{_HERE}}} - ottla_log_start_offset{{{_HERE}}}))",
                            "{{topic}}-{{partition}}",
                        ),
                    ),
                    empty_because=_PER_PARTITION,
                ),
                Panel(
                    "Not committed yet",
                    "short",
                    "From the high watermark to the end at the leader: what consumers do not see yet.",
                    (
                        (
                            "topk(20, max by (topic, partition) "
                            f"(ottla_log_end_offset{{{_HERE}}} - ottla_partition_high_watermark{{{_HERE}}}))",
                            "{{topic}}-{{partition}}",
                        ),
                    ),
                    empty_because=_PER_PARTITION,
                ),
                Panel(
                    "Under-replicated",
                    "short",
                    "1 for each partition that has replicas out of sync.",
                    ((f"max by (topic, partition) (ottla_partition_under_replicated{{{_HERE}}}) > 0", "{{topic}}-{{partition}}"),),
                    stacked=True,
                    empty_because=_PER_PARTITION,
                ),
                Panel(
                    "Pace",
                    "cps",
                    "Offsets given a second, the fastest 20 partitions: far apart, the keys are uneven.",
                    (
                        (
                            f"topk(20, max by (topic, partition) (rate(ottla_log_end_offset{{{_HERE}}}[$__rate_interval])))",
                            "{{topic}}-{{partition}}",
                        ),
                    ),
                    empty_because=_PER_PARTITION,
                ),
            ),
        ),
    ),
    (Variable("topic", "Topic", 'ottla_broker_messages_received_total{job="$job"}', "topic"),),
)

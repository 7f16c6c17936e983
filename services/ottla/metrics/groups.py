"""Metrics of consumer groups, given by the broker that coordinates a group."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import KafkaName, Metric

# kafka_exporter's label for what is `group` here.
_EXPORTER: Final = {"group": "consumergroup"}

_STATES: Final = {
    "PreparingRebalance": "preparingrebalance",
    "CompletingRebalance": "completingrebalance",
    "Stable": "stable",
    "Dead": "dead",
    "Empty": "empty",
}

GROUPS: Final = Metric(
    "ottla_groups",
    "gauge",
    "Groups that this broker coordinates, by their state.",
    ("state",),
    (
        KafkaName("kafka_coordinator_group_groupmetadatamanager_numgroups", drop=("state",)),
        *(
            KafkaName(f"kafka_coordinator_group_groupmetadatamanager_numgroups{name}", where={"state": state})
            for state, name in _STATES.items()
        ),
    ),
)
MEMBERS: Final = Metric(
    "ottla_group_members",
    "gauge",
    "Members of a group.",
    ("group",),
    (KafkaName("kafka_consumergroup_members", labels=_EXPORTER),),
)
STATE: Final = Metric("ottla_group_state", "gauge", "1 for the state that a group is in.", ("group", "state"))
LAG_MESSAGES: Final = Metric(
    "ottla_group_lag_messages",
    "gauge",
    "Records of a topic that a group has not committed yet, in the partitions whose end this broker knows.",
    ("group", "topic"),
    (
        KafkaName("kafka_consumergroup_lag", labels=_EXPORTER),
        KafkaName("kafka_consumergroup_lag_sum", labels=_EXPORTER),
        KafkaName("kminion_kafka_consumer_group_topic_lag", labels={"group": "group_id", "topic": "topic_name"}),
    ),
)
LAG_SECONDS: Final = Metric(
    "ottla_group_lag_seconds",
    "gauge",
    "How long the oldest record that a group has not committed yet has been in the topic.",
    ("group", "topic"),
)
COMMITTED_OFFSET: Final = Metric(
    "ottla_group_committed_offset",
    "gauge",
    "The offset that a group has committed.",
    ("group", "topic", "partition"),
    (KafkaName("kafka_consumergroup_current_offset", labels=_EXPORTER),),
    per_partition=True,
)
COMMITS: Final = Metric("ottla_group_commits_total", "counter", "Offsets of partitions that groups have committed.")
REBALANCES: Final = Metric("ottla_group_rebalances_total", "counter", "Rebalances of groups that were begun.")
RECORDS_CORRUPT: Final = Metric(
    "ottla_group_records_corrupt_total", "counter", "Records of __consumer_offsets that were skipped because they cannot be decoded."
)

METRICS: Final = (GROUPS, MEMBERS, STATE, LAG_MESSAGES, LAG_SECONDS, COMMITTED_OFFSET, COMMITS, REBALANCES, RECORDS_CORRUPT)

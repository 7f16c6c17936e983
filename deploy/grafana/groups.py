"""Consumer groups: who is behind, by how much, and since when."""

from __future__ import annotations

from typing import Final

from deploy.grafana.board import Board, Panel, Variable

_OF_GROUP: Final = 'job="$job", group=~"$group"'
_NOBODY: Final = "no group has committed anything"

GROUPS: Final = Board(
    "groups",
    "Ottla / Consumer groups",
    "Who is behind, by how much, and since when. Counted by the coordinators.",
    (
        (
            "Lag",
            (
                Panel(
                    "Oldest unread message",
                    "s",
                    "How long the oldest record that a group has not committed has been in the topic. Rising by a second a second: nothing "
                    "is committed. Alerts: GroupStuck, GroupLagHigh, GroupLagKeepsIncreasing.",
                    ((f"namespace_job_group_topic:ottla_group_lag_seconds:max{{{_OF_GROUP}}}", "{{group}}: {{topic}}"),),
                    width=12,
                    empty_because=_NOBODY,
                ),
                Panel(
                    "Unread messages",
                    "short",
                    "Records that a group has not committed, over all partitions of a topic.",
                    ((f"namespace_job_group_topic:ottla_group_lag_messages:max{{{_OF_GROUP}}}", "{{group}}: {{topic}}"),),
                    width=12,
                    empty_because=_NOBODY,
                ),
                Panel(
                    "Unread messages, change",
                    "cps",
                    "Above zero a group falls behind, below it catches up.",
                    ((f"deriv(namespace_job_group_topic:ottla_group_lag_messages:max{{{_OF_GROUP}}}[5m])", "{{group}}: {{topic}}"),),
                    width=12,
                    below_zero=True,
                    empty_because=_NOBODY,
                ),
                Panel(
                    "Read by a group (metrics.partition.enabled)",
                    "cps",
                    "Offsets that a group has committed a second.",
                    (
                        (
                            f"sum by (group, topic) (rate(ottla_group_committed_offset{{{_OF_GROUP}}}[$__rate_interval]))",
                            "{{group}}: {{topic}}",
                        ),
                    ),
                    width=12,
                    empty_because="metrics.partition.enabled is off by default",
                ),
            ),
        ),
        (
            "Members",
            (
                Panel(
                    "Members",
                    "short",
                    "Members of each group. Falls to 0 where a service is down; saws where members are thrown out for being slow.",
                    ((f"max by (group) (ottla_group_members{{{_OF_GROUP}}})", "{{group}}"),),
                    empty_because=_NOBODY,
                ),
                Panel(
                    "States",
                    "short",
                    "Which group is in which state; long in PreparingRebalance: a member does not come back.",
                    ((f"max by (group, state) (ottla_group_state{{{_OF_GROUP}}}) > 0", "{{group}} {{state}}"),),
                    stacked=True,
                    empty_because=_NOBODY,
                ),
                Panel(
                    "Groups by state",
                    "short",
                    "All groups of the cluster.",
                    (('sum by (state) (ottla_groups{job="$job"})', "{{state}}"),),
                    stacked=True,
                ),
            ),
        ),
        (
            "Coordinators",
            (
                Panel(
                    "Commits",
                    "cps",
                    "Offsets of partitions that groups commit, by coordinator.",
                    (('rate(ottla_group_commits_total{job="$job", instance=~"$broker"}[$__rate_interval])', "{{instance}}"),),
                ),
                Panel(
                    "Rebalances",
                    "cps",
                    "Rebalances that were begun. All the time: members time out (max.poll.interval.ms), or restart without an instance id.",
                    (('rate(ottla_group_rebalances_total{job="$job", instance=~"$broker"}[$__rate_interval])', "{{instance}}"),),
                ),
                Panel(
                    "Records that no one can read",
                    "short",
                    "Records of __consumer_offsets that were passed over. Alert: CorruptRecords.",
                    (('ottla_group_records_corrupt_total{job="$job", instance=~"$broker"}', "{{instance}}"),),
                ),
            ),
        ),
    ),
    (Variable("group", "Group", 'ottla_group_members{job="$job"}', "group"),),
)

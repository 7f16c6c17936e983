"""The schema registry: who leads, what it holds, how fast it answers."""

from __future__ import annotations

from typing import Final

from deploy.grafana.board import Board, Panel

_HERE: Final = 'job="$job"'
_UNUSED: Final = "no one has asked for a schema"
_ALONE: Final = "a registry that leads forwards nothing"


def _quantile(name: str, share: float) -> str:
    return f"histogram_quantile({share}, sum by (instance, le) (rate(ottla_registry_{name}_seconds_bucket{{{_HERE}}}[$__rate_interval])))"


def _rate(name: str, by: str = "instance") -> str:
    return f"sum by ({by}) (rate(ottla_registry_{name}{{{_HERE}}}[$__rate_interval]))"


REGISTRY: Final = Board(
    "registry",
    "Ottla / Schema registry",
    "Who leads, what the registry holds, and how fast it answers.",
    (
        (
            "Lead",
            (
                Panel(
                    "Leaders",
                    "short",
                    "Nodes that write; one, and none for the length of a session after it was killed. Alert: RegistryNoLeader.",
                    ((f"sum(ottla_registry_is_leader{{{_HERE}}})", "leaders"),),
                    kind="number",
                    good_from=1,
                ),
                Panel(
                    "Nodes that do not answer",
                    "short",
                    "Registries that Prometheus cannot scrape. Alert: RegistryDown.",
                    ((f'count(up{{{_HERE}, component="schema-registry"}}) - sum(up{{{_HERE}, component="schema-registry"}})', "down"),),
                    kind="number",
                    bad_from=1,
                ),
                Panel(
                    "Conflicts of ids",
                    "short",
                    "Records that gave an id to a second schema; ottla schema doctor shows them. Alert: RegistryIdConflict.",
                    ((f"max(ottla_registry_conflicts_total{{{_HERE}}})", "conflicts"),),
                    kind="number",
                    bad_from=1,
                ),
                Panel(
                    "Topics at fault",
                    "short",
                    "Nodes whose topic was deleted, made again or cut: they write nothing any more, and no one leads.",
                    ((f"sum(ottla_registry_fault{{{_HERE}}})", "nodes"),),
                    kind="number",
                    bad_from=1,
                ),
                Panel(
                    "Epoch",
                    "short",
                    "How often a leader has begun to write since the topic was made.",
                    ((f"max(ottla_registry_epoch{{{_HERE}}})", "epoch"),),
                    kind="number",
                ),
                Panel(
                    "Nodes that know the leader",
                    "short",
                    "The others cannot forward what is to be written.",
                    ((f"sum(ottla_registry_leader_known{{{_HERE}}})", "nodes"),),
                    kind="number",
                    good_from=1,
                ),
                Panel(
                    "Who leads",
                    "short",
                    "1 at the node that writes.",
                    ((f"ottla_registry_is_leader{{{_HERE}}}", "{{instance}}"),),
                    stacked=True,
                ),
                Panel(
                    "Terms begun in 5 minutes",
                    "short",
                    "Elections that a node won. Again and again: sessions with ZooKeeper end, or the topic cannot be written.",
                    ((f"increase(ottla_registry_terms_total{{{_HERE}}}[5m])", "{{instance}}"),),
                ),
                Panel(
                    "Next offset",
                    "short",
                    "How far each node has read the topic, and its snapshot goes; a line that stays behind is a node with old schemas.",
                    (
                        (f"ottla_registry_next_offset{{{_HERE}}}", "{{instance}}"),
                        (f"ottla_registry_snapshot_offset{{{_HERE}}}", "{{instance}} snapshot"),
                    ),
                ),
            ),
        ),
        (
            "Requests",
            (
                Panel(
                    "Requests",
                    "reqps",
                    "Answers by route; those from the cache of ids apart.",
                    ((_rate("requests_total", "route"), "{{route}}"), (_rate("cached_answers_total"), "{{instance}} from the cache")),
                    stacked=True,
                    empty_because=_UNUSED,
                ),
                Panel(
                    "Refusals",
                    "reqps",
                    "Answers that are no success, by status: 409 incompatible, 404 not there, 5xx trouble of ours.",
                    (
                        (
                            f'sum by (status) (rate(ottla_registry_requests_total{{{_HERE}, status=~"[45].."}}[$__rate_interval]))',
                            "{{status}}",
                        ),
                    ),
                    stacked=True,
                    empty_because="nothing was refused",
                ),
                Panel(
                    "99 of 100 requests that waited within",
                    "s",
                    "Registrations, forwarded requests, and reads that waited for a record.",
                    ((_quantile("request", 0.99), "{{instance}}"),),
                    empty_because=_UNUSED,
                ),
                Panel(
                    "99 of 100 writes within",
                    "s",
                    "From a batch to the topic until it has been read back.",
                    ((_quantile("write", 0.99), "{{instance}}"),),
                    empty_because="nothing was registered",
                ),
                Panel(
                    "Written",
                    "cps",
                    "Records and batches that the leader writes; what comes in one turn is one batch.",
                    ((_rate("written_records_total"), "{{instance}} records"), (_rate("written_batches_total"), "{{instance}} batches")),
                ),
                Panel(
                    "Forwarded to the leader",
                    "reqps",
                    "Writes that came to another node, and those that the leader did not answer.",
                    ((_rate("forwarded_requests_total"), "{{instance}}"), (_rate("forward_failures_total"), "{{instance}} failed")),
                    empty_because=_ALONE,
                ),
                Panel(
                    "Connections",
                    "short",
                    "Open connections of the API; connections.max is the end.",
                    ((f"ottla_registry_connections{{{_HERE}}}", "{{instance}}"),),
                ),
            ),
        ),
        (
            "Schemas",
            (
                Panel(
                    "Subjects", "short", "Subjects, softly deleted ones too.", ((f"max(ottla_registry_subjects{{{_HERE}}})", "subjects"),)
                ),
                Panel(
                    "Schemas",
                    "short",
                    "Ids that stand for a schema, by type.",
                    ((f"max by (type) (ottla_registry_schemas{{{_HERE}}})", "{{type}}"),),
                    stacked=True,
                    empty_because="nothing was registered",
                ),
                Panel(
                    "Records that were left out",
                    "short",
                    "Of former leaders, and those that are none of a registry's.",
                    (
                        (f"ottla_registry_dropped_records_total{{{_HERE}}}", "{{instance}} dropped"),
                        (f"ottla_registry_unreadable_records_total{{{_HERE}}}", "{{instance}} unreadable"),
                    ),
                ),
            ),
        ),
    ),
)

"""`ottla cluster`: the brokers, the controller, and what is not as it should be, at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from ottla.cli.cluster_facts import ClusterFacts, Placed, gather_cluster
from ottla.cli.connection import DEFAULT_BOOTSTRAP_SERVER, BootstrapServer, ClientProperty, CommandConfig, connection
from ottla.cli.errors import CommandFailed
from ottla.cli.output import count_of, say, say_json, table

# A glance: after a broker has gone, thousands of partitions have the same to say.
SHOWN: Final = 20


def cluster(
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 when something is wrong, for scripts.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts; with every partition in question.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    command_config: CommandConfig = None,
    properties: ClientProperty = None,
) -> None:
    """Show the brokers, the controller, and partitions that are offline, under min.insync.replicas or under-replicated.

    Any broker answers for all. With `--check` the command fails when something is wrong: no controller, a broker that has
    replicas and does not live, a partition in question, or a log directory that is offline or whose disk is full.

    Examples:

    - `ottla cluster`
    - `until ottla cluster --check; do sleep 1; done`
    """
    facts = gather_cluster(connection(bootstrap_server, command_config, properties))
    if as_json:
        say_json(facts.as_json())
    else:
        say(described(facts))
    if check and facts.complaints:
        raise CommandFailed("; ".join(facts.complaints))


def described(facts: ClusterFacts) -> str:
    """The cluster as a person reads it."""
    controller = "no controller" if facts.controller_id is None else f"controller {facts.controller_id}"
    rows: list[tuple[object, ...]] = [
        (str(each.broker_id), f"{each.host}:{each.port}", each.rack, each.leader_count, each.replica_count, each.in_sync_count)
        for each in facts.brokers
    ]
    rows += [(str(each), "is missing", None, None, count, None) for each, count in facts.missing_brokers.items()]
    lines = [
        f"Cluster {facts.cluster_id}: {count_of(len(facts.brokers), 'broker')}, {controller}",
        table(("broker", "address", "rack", "leads", "replicas", "in sync"), rows),
        "",
    ]
    content = f"{count_of(facts.topic_count, 'topic')}, {count_of(len(facts.partitions), 'partition')}"
    if not facts.complaints:
        return "\n".join([*lines, f"{content}: every replica is in sync." if facts.partitions else f"{content}."])
    lines.append(f"{content}: {'; '.join(facts.complaints)}.")
    groups = (
        ("Offline", facts.offline),
        ("Under min.insync.replicas", facts.under_min_isr),
        ("Under-replicated", facts.under_replicated),
    )
    for title, partitions in groups:
        if partitions:
            lines += ["", f"{title}:", partitions_table(partitions[:SHOWN])]
        if len(partitions) > SHOWN:
            lines.append(f"… and {len(partitions) - SHOWN:,} more; --json has them all.")
    return "\n".join(lines)


def partitions_table(partitions: Sequence[Placed]) -> str:
    """Partitions with who leads, has and follows them."""
    rows = [(str(each.topic_partition), each.leader, each.replicas, each.isr, each.min_insync_replicas) for each in partitions]
    return table(("partition", "leader", "replicas", "isr", "min isr"), rows)

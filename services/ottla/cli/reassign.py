"""`ottla reassign`: moves partitions to other brokers, as kafka-reassign-partitions does, and waits for them.

The plan is Kafka's file. What is under way goes on without this command: it can be left and looked at again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.connection import DEFAULT_BOOTSTRAP_SERVER, BootstrapServer, ClientProperty, CommandConfig, connection
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.output import count_of, note, say, say_json, table
from ottla.cli.reassignment_cluster import ReassigningCluster
from ottla.cli.reassignment_plan import Plan, complaints, even_plan, moving_brokers, parsed_plan, plan_text, throttled
from ottla.cli.reassignment_requests import Ongoing, alter_reassignments
from ottla.cli.replication_throttle import parsed_rate, throttle, unthrottle
from ottla.cli.topic_facts import cluster_metadata_has
from ottla.model import TopicPartition

app = typer.Typer(
    help="Move partitions to other brokers.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

PlanFile = Annotated[str, typer.Argument(metavar="PLAN", help="A plan's file, as `generate` makes it; `-` reads standard input.")]
Topics = Annotated[
    list[str] | None, typer.Option("--topics", "-t", metavar="NAME,…", help="The topics to move, with commas; may be repeated.")
]
ToBrokers = Annotated[
    str | None, typer.Option("--to-brokers", metavar="ID,…", help="The brokers that are to have them, with commas.", show_default=False)
]
ReplicationFactor = Annotated[
    int | None, typer.Option("--replication-factor", "-r", min=1, help="Another number of copies of each partition.", show_default=False)
]
IgnoreRacks = Annotated[bool, typer.Option("--ignore-racks", help="Do not spread the copies of a partition over racks.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


@app.command()
def generate(
    topics: Topics = None,
    to_brokers: ToBrokers = None,
    replication_factor: ReplicationFactor = None,
    ignore_racks: IgnoreRacks = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    command_config: CommandConfig = None,
    properties: ClientProperty = None,
) -> None:
    """Print a plan that spreads topics evenly over brokers and moves as little as it can; nothing is changed.

    Only the partitions that move are in it. Leaders are spread evenly too.

    Example: `ottla reassign generate --topics clicks,views --to-brokers 1,2,3 > plan.json`
    """
    cluster = ReassigningCluster(connection(bootstrap_server, command_config, properties))
    plan = _generated(cluster, topics, to_brokers, replication_factor, ignore_racks)
    note(_summary(plan, cluster.replicas))
    say(plan_text(plan))


@app.command()
def execute(
    plan_file: Annotated[str | None, typer.Argument(metavar="[PLAN]", help="A plan's file; `-` reads standard input.")] = None,
    topics: Topics = None,
    to_brokers: ToBrokers = None,
    replication_factor: ReplicationFactor = None,
    ignore_racks: IgnoreRacks = False,
    rate: Annotated[
        str | None,
        typer.Option(
            "--throttle", metavar="BYTES", help="Copy at most so much a second to and from each broker: 50MiB.", show_default=False
        ),
    ] = None,
    rollback: Annotated[
        Path | None,
        typer.Option("--rollback", metavar="FILE", help="First write a plan that leads back.", show_default=False),
    ] = None,
    additional: Annotated[bool, typer.Option("--additional", help="Also while other partitions are on their way.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all partitions are where they are to be.")] = True,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    command_config: CommandConfig = None,
    properties: ClientProperty = None,
) -> None:
    """Carry out a plan, or the plan that `generate` would print, and wait until it is done.

    The throttle is removed at the end. Ctrl-C ends the waiting and not the reassignment; then, as after `--no-wait`, it is
    `ottla reassign status PLAN` that removes the throttle once all is done.

    Examples:

    - `ottla reassign execute plan.json --throttle 50MiB --rollback back.json`
    - `ottla reassign execute --topics clicks --to-brokers 1,2,3`
    """
    if (plan_file is None) == (not topics):
        raise UsageError("say what to move: either a PLAN, or --topics and --to-brokers")
    bytes_per_second = None if rate is None else parsed_rate(rate)
    given = None if plan_file is None else _read(plan_file)
    cluster = ReassigningCluster(connection(bootstrap_server, command_config, properties))
    plan = given if given is not None else _generated(cluster, topics, to_brokers, replication_factor, ignore_racks)
    if wrong := complaints(plan, cluster.replicas, cluster.broker_ids):
        raise CommandFailed(f"the plan can not be carried out: {'; '.join(wrong)}")
    if not additional and (ongoing := cluster.ongoing()):
        raise CommandFailed(f"{count_of(len(ongoing), 'partition is', 'partitions are')} on their way already; --additional moves more")
    say(_summary(plan, cluster.replicas))
    if rollback is not None:
        rollback.write_text(plan_text({each: cluster.replicas[each] for each in plan}) + "\n", encoding="utf-8")
        say(f"The way back: ottla reassign execute {rollback}")
    if bytes_per_second is not None:
        brokers, replicas = moving_brokers(plan, cluster.replicas), throttled(plan, cluster.replicas)
        throttle(cluster.admin, cluster.where, bytes_per_second, brokers, replicas)
    refused = alter_reassignments(cluster.where, cluster.address, plan) if plan else {}
    begun = {each: replicas for each, replicas in plan.items() if each not in refused}
    try:
        if begun and wait:
            _wait(cluster, begun)
    except KeyboardInterrupt:
        note("The reassignment goes on; `ottla reassign list` shows it.")
        raise
    if bytes_per_second is not None and (wait or not begun) and not _end_throttle(cluster, plan):
        note("Other partitions are on their way, so the throttle stays; `ottla reassign status` removes it later.")
    if refused:
        raise CommandFailed(_refusals(refused))
    if not wait and begun:
        say(f"{count_of(len(begun), 'partition is', 'partitions are')} on the way; `ottla reassign status PLAN` tells when all are there.")
        return
    if differing := cluster.settled(begun):
        found = (f"{each} is on {_shown(replicas)}, not {_shown(begun[each])}" for each, replicas in differing.items())
        raise CommandFailed(f"not where the plan wants it: {'; '.join(found)}")
    say("Every partition is where the plan wants it.")


@app.command("list")
def list_ongoing(
    as_json: Json = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    command_config: CommandConfig = None,
    properties: ClientProperty = None,
) -> None:
    """List the partitions that are on their way to other brokers."""
    cluster = ReassigningCluster(connection(bootstrap_server, command_config, properties))
    ongoing = cluster.ongoing()
    if as_json:
        say_json([_ongoing_json(each, found) for each, found in ongoing.items()])
    elif ongoing:
        rows = [(str(each), found.replicas, found.adding or None, found.removing or None) for each, found in ongoing.items()]
        say(table(("partition", "replicas", "adding", "removing"), rows))
    else:
        say(f"No partition is on its way on {bootstrap_server}.")


@app.command()
def status(
    plan_file: PlanFile,
    keep_throttle: Annotated[bool, typer.Option("--keep-throttle", help="Leave the throttle in place, also when all is done.")] = False,
    as_json: Json = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    command_config: CommandConfig = None,
    properties: ClientProperty = None,
) -> None:
    """Compare a plan with where its partitions are, and remove the throttle when nothing is on its way any more.

    Exit code 1 until every partition is where the plan wants it.
    """
    plan = _read(plan_file)
    cluster = ReassigningCluster(connection(bootstrap_server, command_config, properties))
    ongoing = cluster.ongoing()
    states = {each: _state(each, replicas, ongoing, cluster.replicas) for each, replicas in sorted(plan.items())}
    if as_json:
        say_json([_state_json(each, state, plan[each], cluster.replicas.get(each)) for each, state in states.items()])
    else:
        rows = [(str(each), plan[each], cluster.replicas.get(each), state) for each, state in states.items()]
        say(table(("partition", "wanted", "replicas", "state"), rows))
    if not ongoing and not keep_throttle:
        _end_throttle(cluster, plan)
    unfinished = [each for each, state in states.items() if state != "done"]
    if unfinished:
        raise CommandFailed(f"{len(unfinished):,} of {count_of(len(plan), 'partition')} not where the plan wants it")


@app.command()
def cancel(
    plan_file: Annotated[str | None, typer.Argument(metavar="[PLAN]", help="Only the partitions of this plan.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Whatever is on its way.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    command_config: CommandConfig = None,
    properties: ClientProperty = None,
) -> None:
    """Take reassignments back: partitions stay where they were, and what was copied is deleted."""
    if (plan_file is None) != everything:
        raise UsageError("say what to cancel: a PLAN, or --all")
    plan = None if plan_file is None else _read(plan_file)
    cluster = ReassigningCluster(connection(bootstrap_server, command_config, properties))
    ongoing = cluster.ongoing()
    chosen = [each for each in ongoing if plan is None or each in plan]
    if not chosen:
        say(f"No partition{'' if plan is None else ' of the plan'} is on its way.")
        return
    refused = alter_reassignments(cluster.where, cluster.address, dict.fromkeys(chosen))
    if len(chosen) == len(ongoing) and not refused:
        _end_throttle(cluster, chosen)
    say(f"Cancelled the reassignment of {count_of(len(chosen) - len(refused), 'partition')}.")
    if refused:
        raise CommandFailed(_refusals(refused))


def _generated(
    cluster: ReassigningCluster, topics: Sequence[str] | None, to_brokers: str | None, replication_factor: int | None, ignore_racks: bool
) -> Plan:
    names = [name.strip() for each in topics or () for name in each.split(",") if name.strip()]
    if not names or to_brokers is None:
        raise UsageError("say what to move and where: --topics and --to-brokers")
    for name in names:
        cluster_metadata_has(cluster.metadata, name, cluster.where.bootstrap_server)
    try:
        brokers = [int(each) for each in to_brokers.split(",")]
    except ValueError:
        raise UsageError(f"--to-brokers takes numbers with commas, and not {to_brokers!r}") from None
    if missing := sorted(set(brokers) - set(cluster.broker_ids)):
        there = ", ".join(map(str, cluster.broker_ids))
        raise CommandFailed(f"broker {', '.join(map(str, missing))} is not there; there are {there}")
    racks = dict.fromkeys(brokers) if ignore_racks else cluster.racks(brokers)
    current = {each: replicas for each, replicas in cluster.replicas.items() if each.topic in names}
    plan = even_plan(current, racks, replication_factor)
    return {each: replicas for each, replicas in plan.items() if replicas != current[each]}


def _read(plan_file: str) -> Plan:
    if plan_file == "-":
        return parsed_plan(sys.stdin.read(), "standard input")
    try:
        return parsed_plan(Path(plan_file).read_text(encoding="utf-8"), plan_file)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{plan_file} can not be read: {error}") from None


def _summary(plan: Plan, current: Mapping[TopicPartition, tuple[int, ...]]) -> str:
    copies = sum(len(set(replicas) - set(current[each])) for each, replicas in plan.items())
    leaders = sum(replicas[0] != current[each][0] for each, replicas in plan.items())
    if not plan:
        return "Nothing is to be moved."
    return f"{count_of(len(plan), 'partition')}: {count_of(copies, 'replica')} to copy, {count_of(leaders, 'other preferred leader')}."


def _refusals(refused: Mapping[TopicPartition, str]) -> str:
    return "refused: " + "; ".join(f"{each}: {reason}" for each, reason in refused.items())


def _state(
    partition: TopicPartition,
    wanted: tuple[int, ...],
    ongoing: Mapping[TopicPartition, Ongoing],
    current: Mapping[TopicPartition, tuple[int, ...]],
) -> str:
    if partition not in current:
        return "does not exist"
    if partition in ongoing:
        return "on its way"
    return "done" if current[partition] == wanted else "elsewhere"


def _state_json(partition: TopicPartition, state: str, wanted: Sequence[int], replicas: Sequence[int] | None) -> dict[str, object]:
    return {"topic": partition.topic, "partition": partition.partition, "state": state, "wanted": wanted, "replicas": replicas}


def _ongoing_json(partition: TopicPartition, ongoing: Ongoing) -> dict[str, object]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "replicas": ongoing.replicas,
        "adding": ongoing.adding,
        "removing": ongoing.removing,
    }


def _wait(cluster: ReassigningCluster, plan: Plan) -> None:
    from ottla.cli.reassignment_progress import wait_for

    wait_for(cluster.where, cluster.metadata, plan, cluster.replicas, lambda: cluster.ongoing_of(plan))


def _end_throttle(cluster: ReassigningCluster, plan: Iterable[TopicPartition]) -> bool:
    """Removes what `--throttle` set, unless others are on their way, which may count on it; whether it did."""
    if cluster.ongoing_of(cluster.replicas):
        return False
    topics = sorted({each.topic for each in plan} & set(cluster.metadata.topics))
    unthrottle(cluster.admin, cluster.where, cluster.broker_ids, topics)
    return True


def _shown(replicas: Sequence[int] | None) -> str:
    return "none" if replicas is None else ",".join(map(str, replicas))

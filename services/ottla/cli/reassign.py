"""`ottla reassign`: moves partitions to other brokers, as kafka-reassign-partitions does, and waits for them.

The plan is Kafka's file. What is under way continues without this command: it can be left and looked at again.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ottla.cli.connection import ANSWER_SECONDS, Connection, Json, commands, connects, told_plainly
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.log_directories import replicas_on_disk
from ottla.cli.output import bytes_of, count_of, note, say, say_json, table
from ottla.cli.reassignment_plan import (
    Directories,
    Plan,
    Throttled,
    complaints,
    even_plan,
    moving_brokers,
    parsed_plan,
    plan_text,
    throttled,
)
from ottla.cli.reassignment_requests import Ongoing, ReassigningCluster, alter_reassignments
from ottla.cli.topic_facts import cluster_metadata_has
from ottla.config.settings import LONG_MAX
from ottla.model import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigEntry

app = commands("Move partitions to other brokers.")

KeepThrottle = Annotated[bool, typer.Option("--keep-throttle", help="Leave the throttle in place, also when all is done.")]
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

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"
_UNITS: Final = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}

_POLL_SECONDS: Final = 0.5


@app.command()
@connects
def generate(
    where: Connection,
    topics: Topics = None,
    to_brokers: ToBrokers = None,
    replication_factor: ReplicationFactor = None,
    ignore_racks: IgnoreRacks = False,
) -> None:
    """Print a plan that spreads topics evenly over brokers and moves as little as it can; nothing is changed.

    Only the partitions that move are in it. Leaders are spread evenly too.

    Example: `ottla reassign generate --topics clicks,views --to-brokers 1,2,3 > plan.json`
    """
    cluster = ReassigningCluster(where)
    plan = _generated(cluster, topics, to_brokers, replication_factor, ignore_racks)
    note(_summary(plan, cluster.replicas))
    say(plan_text(plan))


@app.command()
@connects
def execute(
    where: Connection,
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
        typer.Option("--rollback", metavar="FILE", help="First write a plan that leads back, into a new file.", show_default=False),
    ] = None,
    additional: Annotated[bool, typer.Option("--additional", help="Also while other partitions are on their way.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all partitions are where they are to be.")] = True,
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
    if plan_file is not None and (to_brokers is not None or replication_factor is not None or ignore_racks):
        raise UsageError("a PLAN says where: --to-brokers, --replication-factor and --ignore-racks go with --topics")
    bytes_per_second = None if rate is None else parsed_rate(rate)
    given = None if plan_file is None else _read(plan_file)
    cluster = ReassigningCluster(where)
    plan, directories = given or (_generated(cluster, topics, to_brokers, replication_factor, ignore_racks), {})
    if wrong := complaints(plan, cluster.replicas, cluster.broker_ids) or cluster.complaints_of_directories(directories):
        raise CommandFailed(f"the plan cannot be carried out: {'; '.join(wrong)}")
    ongoing = cluster.ongoing()
    if ongoing and not additional:
        raise CommandFailed(f"{count_of(len(ongoing), 'partition is', 'partitions are')} on their way already; --additional moves more")
    before = {partition: _without(replicas, ongoing.get(partition)) for partition, replicas in cluster.replicas.items()}
    moves = {key: found.directory for key, found in cluster.in_other_directories(directories).items()}
    say(_summary(plan, before, len(moves)))
    if rollback is not None:
        _write_new(rollback, plan_text({partition: before[partition] for partition in plan}, moves))
        say(f"The way back: ottla reassign execute {rollback}")
    # A broker's rate counts for what is on its way already, too, whose copying so far may have had another rate or none.
    moving = {partition: _target(found) for partition, found in ongoing.items() if partition in before} | plan
    try:
        if bytes_per_second is not None:
            # One that is away has no leaderships, copies nothing, and cannot be told.
            brokers = [broker for broker in moving_brokers(moving, before) if broker in cluster.broker_ids]
            throttle(cluster.admin, cluster.where, bytes_per_second, brokers, throttled(moving, before))
        # First, so that a replica that is yet to come begins where it is to be.
        refused = cluster.alter_directories(directories)
        refused |= alter_reassignments(cluster.where, cluster.address, plan) if plan else {}
        begun = {partition: replicas for partition, replicas in plan.items() if partition not in refused}
        if begun and wait:
            wait_for(cluster.where, cluster.metadata, begun, before, lambda: {*cluster.ongoing_of(begun), *cluster.moving(directories)})
    except KeyboardInterrupt:
        note("The reassignment continues; `ottla reassign list` shows it.")
        raise
    except CommandFailed:
        if bytes_per_second is not None:
            note("The throttle stays; `ottla reassign status PLAN` removes it when nothing is on its way any more.")
        raise
    if bytes_per_second is not None and (wait or not begun) and not _end_throttle(cluster, moving):
        note("Other partitions are on their way, so the throttle stays; `ottla reassign status` removes it later.")
    if refused:
        raise CommandFailed(_refusals(refused))
    if not wait and begun:
        say(f"{count_of(len(begun), 'partition is', 'partitions are')} on the way; `ottla reassign status PLAN` tells when all are there.")
        return
    if differing := cluster.misplaced(begun):
        found = (f"{partition} is on {_shown(replicas)}, not {_shown(begun[partition])}" for partition, replicas in differing.items())
        raise CommandFailed(f"not where the plan wants it: {'; '.join(found)}")
    if astray := cluster.in_other_directories(directories):
        found = (f"{partition} of broker {broker} is not in {directories[partition, broker]}" for partition, broker in astray)
        raise CommandFailed(f"not where the plan wants it: {'; '.join(found)}")
    say("Every partition is where the plan wants it.")


@app.command("list")
@connects
def list_ongoing(
    where: Connection,
    as_json: Json = False,
) -> None:
    """List the partitions that are on their way to other brokers."""
    cluster = ReassigningCluster(where)
    ongoing = cluster.ongoing()
    if as_json:
        say_json([partition._asdict() | asdict(found) for partition, found in ongoing.items()])
    elif ongoing:
        rows = [(str(partition), found.replicas, found.adding or None, found.removing or None) for partition, found in ongoing.items()]
        say(table(("partition", "replicas", "adding", "removing"), rows))
    else:
        say(f"No partition is on its way on {where.bootstrap_server}.")


@app.command()
@connects
def status(
    where: Connection,
    plan_file: PlanFile,
    keep_throttle: KeepThrottle = False,
    as_json: Json = False,
) -> None:
    """Compare a plan with where its partitions are, and remove the throttle when nothing is on its way any more.

    Exit code 1 until every partition is where the plan wants it.
    """
    plan, directories = _read(plan_file)
    cluster = ReassigningCluster(where)
    ongoing = cluster.ongoing()
    states = {partition: _state(partition, replicas, ongoing, cluster.replicas) for partition, replicas in sorted(plan.items())}
    for (partition, broker), found in cluster.in_other_directories(directories).items():
        if states[partition] == "done":
            states[partition] = "on its way" if found.moving_to == directories[partition, broker] else "in another log directory"
    if as_json:
        say_json(
            [
                {**partition._asdict(), "state": state, "wanted": plan[partition], "replicas": cluster.replicas.get(partition)}
                for partition, state in states.items()
            ]
        )
    else:
        rows = [(str(partition), plan[partition], cluster.replicas.get(partition), state) for partition, state in states.items()]
        say(table(("partition", "wanted", "replicas", "state"), rows))
    if not ongoing and not keep_throttle:
        _end_throttle(cluster, plan)
    unfinished = [partition for partition, state in states.items() if state != "done"]
    if unfinished:
        raise CommandFailed(f"{len(unfinished):,} of {count_of(len(plan), 'partition')} not where the plan wants it")


@app.command()
@connects
def cancel(
    where: Connection,
    plan_file: Annotated[str | None, typer.Argument(metavar="[PLAN]", help="Only the partitions of this plan.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Whatever is on its way.")] = False,
    keep_throttle: KeepThrottle = False,
) -> None:
    """Take reassignments back: partitions stay where they were, and what was copied is deleted.

    The throttle is removed when nothing is on its way any more.
    """
    if (plan_file is None) != everything:
        raise UsageError("say what to cancel: a PLAN, or --all")
    plan, directories = (None, {}) if plan_file is None else _read(plan_file)
    cluster = ReassigningCluster(where)
    ongoing = cluster.ongoing()
    # Back to where they are, which ends the copy.
    moves = {key: found.directory for key, found in cluster.on_disk(directories).items() if found.moving_to}
    chosen = [reassignment for reassignment in ongoing if plan is None or reassignment in plan]
    ended = {*chosen, *(partition for partition, _ in moves)}
    if not ended:
        if plan is not None and not keep_throttle:
            _end_throttle(cluster, plan)
        say(f"No partition{'' if plan is None else ' of the plan'} is on its way.")
        return
    refused = cluster.alter_directories(moves)
    refused |= alter_reassignments(cluster.where, cluster.address, dict.fromkeys(chosen)) if chosen else {}
    if len(chosen) == len(ongoing) and not refused and not keep_throttle:
        _end_throttle(cluster, ended)
    say(f"Cancelled the reassignment of {count_of(len(ended) - len(refused), 'partition')}.")
    if refused:
        raise CommandFailed(_refusals(refused))


def _generated(
    cluster: ReassigningCluster, topics: Sequence[str] | None, to_brokers: str | None, replication_factor: int | None, ignore_racks: bool
) -> Plan:
    names = [name.strip() for topic in topics or () for name in topic.split(",") if name.strip()]
    if not names or to_brokers is None:
        raise UsageError("say what to move and where: --topics and --to-brokers")
    for name in names:
        cluster_metadata_has(cluster.metadata.topics, name, cluster.where.bootstrap_server)
    try:
        brokers = [int(broker) for broker in to_brokers.split(",")]
    except ValueError:
        raise UsageError(f"--to-brokers takes numbers with commas, and not {to_brokers!r}") from None
    if missing := sorted(set(brokers) - set(cluster.broker_ids)):
        there = ", ".join(map(str, cluster.broker_ids))
        raise CommandFailed(f"broker {', '.join(map(str, missing))} is not there; there are {there}")
    racks = dict.fromkeys(brokers) if ignore_racks else cluster.racks(brokers)
    ongoing = cluster.ongoing()  # which has replicas that come and go besides: where they are to be counts
    targets = {partition: _target(ongoing[partition]) if partition in ongoing else now for partition, now in cluster.replicas.items()}
    current = {partition: replicas for partition, replicas in targets.items() if partition.topic in names}
    plan = even_plan(current, racks, replication_factor)
    return {partition: replicas for partition, replicas in plan.items() if replicas != current[partition]}


def _read(plan_file: str) -> tuple[Plan, Directories]:
    source = "standard input" if plan_file == "-" else plan_file
    try:
        return parsed_plan(sys.stdin.read() if plan_file == "-" else Path(plan_file).read_text(encoding="utf-8"), source)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{source} cannot be read: {error}") from None


def _write_new(file: Path, plan: str) -> None:
    """Never over another: where the partitions were before a reassignment that was broken off, no one else knows."""
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(plan + "\n")
    except FileExistsError:
        raise UsageError(f"{file} is there already and may be the way back of an earlier reassignment; name another file") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error}") from None


def _without(replicas: tuple[int, ...], ongoing: Ongoing | None) -> tuple[int, ...]:
    """Where a partition was before it was on its way."""
    return replicas if ongoing is None else tuple(replica for replica in replicas if replica not in ongoing.adding)


def _target(ongoing: Ongoing) -> tuple[int, ...]:
    """Where a partition on its way is to be."""
    return tuple(replica for replica in ongoing.replicas if replica not in ongoing.removing)


def _summary(plan: Plan, current: Mapping[TopicPartition, tuple[int, ...]], moves: int = 0) -> str:
    copies = sum(len(set(replicas) - set(current[partition])) for partition, replicas in plan.items())
    leaders = sum(replicas[0] != current[partition][0] for partition, replicas in plan.items())
    if not plan:
        return "Nothing is to be moved."
    counts = [f"{count_of(copies, 'replica')} to copy", count_of(leaders, "other preferred leader")]
    if moves:
        counts.append(f"{moves:,} to another log directory")
    return f"{count_of(len(plan), 'partition')}: {', '.join(counts)}."


def _refusals(refused: Mapping[TopicPartition, str]) -> str:
    return "refused: " + "; ".join(f"{partition}: {reason}" for partition, reason in refused.items())


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


def _end_throttle(cluster: ReassigningCluster, plan: Iterable[TopicPartition]) -> bool:
    """Removes what `--throttle` set, unless others are on their way, which may count on it; whether it did."""
    if cluster.ongoing_of(cluster.replicas):
        return False
    topics = sorted({partition.topic for partition in plan} & set(cluster.metadata.topics))
    unthrottle(cluster.admin, cluster.where, cluster.broker_ids, topics)
    return True


def _shown(replicas: Sequence[int] | None) -> str:
    return "none" if replicas is None else ",".join(map(str, replicas))


# Holding back the copying of a reassignment (KIP-73): the settings that say so, and their removal when it is over.
#
# A broker's rate counts for the replicas that their topic lists, so both are set: the rates on the brokers that take
# part, the lists on the topics that move.


def parsed_rate(text: str) -> int:
    """Bytes a second: `50000000`, `50MB`, `50MiB`.

    Raises:
        UsageError: it is neither.
    """
    found = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)\s*([kmg]i?|)b?(?:/s)?", text.strip(), re.IGNORECASE)
    rate = round(float(found[1]) * _UNITS[found[2].lower()]) if found else 0
    if not 0 < rate <= LONG_MAX:  # as the brokers have it, who would be asked behind the topics
        raise UsageError(f"--throttle takes bytes a second, for instance 50MiB, and not {text!r}")
    return rate


def throttle(admin: AdminClient, where: Connection, rate: int, brokers: Iterable[int], topics: Mapping[str, Throttled]) -> None:
    """Sets the rate on each broker, and adds the replicas to what each topic lists."""
    listed = _listed(admin, where, topics)
    for name, replicas in topics.items():
        wanted = {LEADERS: replicas.leaders, FOLLOWERS: replicas.followers}
        merged = {key: _merged(listed[name].get(key, ""), values) for key, values in wanted.items()}
        _change(admin, where, "topic", name, merged)
    for broker in brokers:
        _change(admin, where, "broker", str(broker), dict.fromkeys(RATES, str(rate)))


def unthrottle(admin: AdminClient, where: Connection, brokers: Iterable[int], topics: Iterable[str]) -> None:
    """Removes the rates of these brokers and the lists of these topics; nothing is wrong where there are none."""
    for name in topics:
        _change(admin, where, "topic", name, {LEADERS: None, FOLLOWERS: None})
    for broker in brokers:
        _change(admin, where, "broker", str(broker), dict.fromkeys(RATES))


def _merged(listed: str, replicas: Iterable[str]) -> str:
    already = [replica.strip() for replica in listed.split(",") if replica.strip()]
    return "*" if "*" in already else ",".join(dict.fromkeys([*already, *replicas]))


def _listed(admin: AdminClient, where: Connection, names: Iterable[str]) -> dict[str, dict[str, str]]:
    from confluent_kafka.admin import ConfigResource, ResourceType

    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    if not resources:
        return {}
    with told_plainly(where.bootstrap_server):
        answers = admin.describe_configs(resources, request_timeout=ANSWER_SECONDS)
        described: dict[str, dict[str, ConfigEntry]] = {
            resource.name: answer.result(ANSWER_SECONDS + 5) for resource, answer in answers.items()
        }
    return {name: {key: entry.value or "" for key, entry in entries.items()} for name, entries in described.items()}


def _change(admin: AdminClient, where: Connection, kind: str, name: str, values: Mapping[str, str | None]) -> None:
    """One resource a request: librdkafka sends a broker's to that broker, and takes one of them at a time."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries: list[Any] = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET)
        for key, value in values.items()
    ]
    resource_type = ResourceType.TOPIC if kind == "topic" else ResourceType.BROKER
    resource = ConfigResource(resource_type, name, incremental_configs=entries)
    with told_plainly(where.bootstrap_server, f"{kind} {name}"):
        admin.incremental_alter_configs([resource], request_timeout=ANSWER_SECONDS)[resource].result(ANSWER_SECONDS + 5)


# Waiting for a reassignment with a bar: by bytes copied where the brokers tell them, and by partitions.


def wait_for(
    where: Connection,
    metadata: ClusterMetadata,
    plan: Plan,
    before: Mapping[TopicPartition, tuple[int, ...]],
    ongoing: Callable[[], Collection[TopicPartition]],
) -> None:
    """Returns when nothing of the plan is on its way any more.

    Args:
        where: the cluster.
        metadata: as it was at the start.
        plan: where the partitions go.
        before: where they were.
        ongoing: asks for those of the plan that are on their way.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    copies = _Copies(where, metadata, plan, before)
    columns = (TextColumn("moving partitions"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[copied]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(plan), copied="")
        while left := ongoing():
            progress.update(task, completed=len(plan) - len(left), copied=copies.text(left))
            time.sleep(_POLL_SECONDS)
        progress.update(task, completed=len(plan), copied=copies.text(()))


class _Copies:
    """How much of the new replicas is there: their size against that of the leaders at the start."""

    def __init__(self, where: Connection, metadata: ClusterMetadata, plan: Plan, before: Mapping[TopicPartition, tuple[int, ...]]) -> None:
        self._where = where
        self._addresses = {broker.id: (str(broker.host), broker.port) for broker in metadata.brokers.values()}
        self._new = {partition: [broker for broker in replicas if broker not in before[partition]] for partition, replicas in plan.items()}
        leaders = {
            partition: metadata.topics[partition.topic].partitions[partition.partition].leader for partition in plan if self._new[partition]
        }
        led: dict[int, list[TopicPartition]] = {}
        for moving, leader in leaders.items():
            led.setdefault(leader, []).append(moving)
        self._sizes = {partition: size for leader, partitions in led.items() for partition, size in self._ask(leader, partitions).items()}
        self._total = sum(self._sizes.get(partition, 0) * len(brokers) for partition, brokers in self._new.items())

    def text(self, left: Collection[TopicPartition]) -> str:
        """`1.2 GiB of 3.0 GiB`; nothing where nothing is copied, or no size is known."""
        if not self._total:
            return ""
        copied = sum(self._sizes.get(partition, 0) * len(brokers) for partition, brokers in self._new.items() if partition not in left)
        by_broker: dict[int, list[TopicPartition]] = {}
        for partition in left:
            for broker in self._new[partition]:
                by_broker.setdefault(broker, []).append(partition)
        for broker, partitions in by_broker.items():
            for copy, size in self._ask(broker, partitions).items():
                copied += min(size, self._sizes.get(copy, 0))  # a topic that is written to grows past what it was
        return f"{bytes_of(copied)} of {bytes_of(self._total)}"

    def _ask(self, broker: int, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The sizes on one broker; none from one that does not answer, for the bar is a courtesy."""
        address = self._addresses.get(broker)
        if address is None:
            return {}
        try:
            return {partition: found.size for partition, found in replicas_on_disk(address, self._where.properties, partitions).items()}
        except CommandFailed:
            return {}

"""`ottla groups`: who reads what, how far behind they are, and where they continue."""

from __future__ import annotations

import asyncio
import csv
import logging
import re
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ottla.cli.configs import asked
from ottla.cli.connection import ANSWER_SECONDS, Connection, Json, commands, connects, each_deleted, noted, told_plainly
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.group_facts import (
    GroupFacts,
    MemberRow,
    committed_offsets,
    describe_group,
    earliest_offsets,
    latest_offsets,
    list_groups,
    members_of,
    offsets_since,
    partitions_of,
    topic_partitions,
)
from ottla.cli.output import count_of, note, say, say_json, table
from ottla.client.group_registry import read_group, set_group_offsets
from ottla.errors import OttlaError
from ottla.model import TopicPartition

if TYPE_CHECKING:
    from ottla.coordination.interface import Coordination

T = TypeVar("T")

app = commands("List, describe and delete consumer groups, and set where they continue.")

GROUP_TYPES = ("classic", "consumer")
STATES = ("Assigning", "CompletingRebalance", "Dead", "Empty", "PreparingRebalance", "Reconciling", "Stable")
Group = Annotated[str, typer.Argument(metavar="GROUP")]
Groups = Annotated[list[str] | None, typer.Argument(metavar="[GROUP]...")]
AllGroups = Annotated[bool, typer.Option("--all-groups", help="Every group of the cluster.")]


@app.command("list")
@connects
def list_command(
    where: Connection,
    state: Annotated[str | None, typer.Option("--state", help="Only groups in this state, for instance Stable; more with commas.")] = None,
    group_type: Annotated[
        str | None, typer.Option("--type", help="Only groups of this type, classic or consumer; both with a comma.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the groups; exit code 1 when some may be missing, as their coordinator does not answer."""
    states, types = _words("--state", state, STATES), _words("--type", group_type, GROUP_TYPES)
    rows, silent = list_groups(where)
    rows = [row for row in rows if (not states or row.state.lower() in states) and (not types or row.type in types)]
    if as_json:
        say_json([{"group": row.group_id, "type": row.type, "state": row.state, "is_simple": row.is_simple} for row in rows])
    elif rows:
        say(table(("group", "type", "state"), [(row.group_id, row.type, row.state) for row in rows]))
    else:
        say(f"No groups on {where.bootstrap_server}.")
    if silent:
        raise CommandFailed(f"groups may be missing: {silent[0]}")


def _words(option: str, text: str | None, known: Sequence[str]) -> set[str]:
    """What is between the commas, in any letters."""
    words = set() if text is None else {word.strip().lower() for word in text.split(",")}
    if unknown := sorted(words - {name.lower() for name in known}):
        raise UsageError(f"{option} takes {', '.join(known)}, and not {unknown[0]!r}")
    return words


@app.command()
@connects
def describe(
    where: Connection,
    groups: Groups = None,
    all_groups: AllGroups = False,
    members: Annotated[bool, typer.Option("--members", help="The members and what each reads, instead of the partitions.")] = False,
    as_json: Json = False,
) -> None:
    """Show how far a group is in each partition: the lag in messages, and how old the first unread message is.

    In JSON that is an object for one GROUP, and a list of them otherwise.

    Examples:

    - `ottla groups describe billing`
    - `ottla groups describe billing --members`
    - `ottla groups describe --all-groups --json`
    """
    is_one = _is_one(groups, all_groups)
    chosen, failures = _chosen(where, groups, all_groups)
    found: list[GroupFacts] = []
    for group in chosen:
        with noted(failures):
            found.append(describe_group(where, group, with_seconds=not members))
    if as_json and (found or not is_one):
        documents = [_as_json(facts) for facts in found]
        say_json(documents[0] if is_one else documents)
    elif found:
        say("\n\n".join(_described_members(facts) if members else _described(facts) for facts in found))
    elif not failures:
        say(f"No groups on {where.bootstrap_server}.")
    if failures:
        raise CommandFailed("; ".join(failures))


def _is_one(groups: Sequence[str] | None, all_groups: bool) -> bool:
    """Whether it is one group that was named.

    Raises:
        UsageError: it is not said which are meant.
    """
    if all_groups == bool(groups):
        raise UsageError("say which groups: GROUP, or --all-groups")
    return len(groups or ()) == 1


def _chosen(where: Connection, groups: Sequence[str] | None, all_groups: bool) -> tuple[list[str], list[str]]:
    """The groups that are meant; and of all groups, why some may be missing."""
    if not all_groups:
        return list(dict.fromkeys(groups or ())), []
    rows, silent = list_groups(where)
    return [row.group_id for row in rows], [f"groups may be missing: {reason}" for reason in silent[:1]]


def _described(facts: GroupFacts) -> str:
    lags = [partition.lag for partition in facts.partitions if partition.lag is not None]
    ages = [partition.lag_seconds for partition in facts.partitions if partition.lag_seconds is not None]
    head = (
        f"{facts.group_id}: {facts.state}, {facts.type} protocol, {count_of(len(facts.members), 'member')}, coordinator {facts.coordinator}"
    )
    if lags:
        without_offset = sum(partition.committed is None for partition in facts.partitions)
        head += f", {count_of(sum(lags), 'message')} behind"
        if without_offset:
            head += f" in {count_of(len(lags), 'partition')}"
        if ages:
            head += f", {seconds(max(ages))}"
        if without_offset:
            head += f"; {count_of(without_offset, 'partition')} {'has' if without_offset == 1 else 'have'} no committed offset"
    rows = [
        (
            partition.topic,
            partition.partition,
            partition.committed,
            partition.end,
            partition.lag,
            None if partition.lag_seconds is None else seconds(partition.lag_seconds),
            None if partition.member is None else _who(partition.member),
        )
        for partition in facts.partitions
    ]
    if not rows:
        why = "its members have no partitions yet" if facts.members else "the group has no members"
        return f"{head}\n\nNothing is committed, and {why}."
    return f"{head}\n\n" + table(("topic", "partition", "committed", "end", "lag", "behind by", "member"), rows)


def _described_members(facts: GroupFacts) -> str:
    if not facts.members:
        return f"{facts.group_id}: {facts.state}, {facts.type} protocol, no members"
    head = f"{facts.group_id}: {facts.state}, {facts.type} protocol, assignor {facts.assignor}"
    rows: list[tuple[Any, ...]] = [
        (member.member_id, member.instance_id, member.client_id, member.host, len(member.partitions), _listed(member.partitions))
        for member in facts.members
    ]
    names: tuple[str, ...] = ("member", "instance", "client", "host", "count", "partitions")
    if any(member.target not in (None, member.partitions) for member in facts.members):  # some are still on their way
        rows = [(*row, _listed(member.target or ())) for row, member in zip(rows, facts.members, strict=True)]
        names = (*names, "to be")
    return f"{head}\n\n{table(names, rows)}"


def _listed(partitions: tuple[tuple[str, int], ...]) -> str:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in by_topic.items())


def _who(member: MemberRow) -> str:
    return f"{member.instance_id or member.client_id}{member.host}"


def _as_json(facts: GroupFacts) -> dict[str, Any]:
    def partitions(some: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
        return [{"topic": topic, "partition": partition} for topic, partition in some]

    return {
        "group": facts.group_id,
        "type": facts.type,
        "state": facts.state,
        "assignor": facts.assignor,
        "coordinator": facts.coordinator,
        "members": [
            {
                **asdict(member),
                "partitions": partitions(member.partitions),
                "target": None if member.target is None else partitions(member.target),
            }
            for member in facts.members
        ],
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "committed": partition.committed,
                "end": partition.end,
                "lag": partition.lag,
                "lag_seconds": partition.lag_seconds,
                "member_id": None if partition.member is None else partition.member.member_id,
            }
            for partition in facts.partitions
        ],
    }


def seconds(duration: float) -> str:
    """`4.2 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`."""
    if duration < 60:
        return f"{duration:.1f} s"
    whole = int(duration)
    for size, unit, smaller_size, smaller in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller_size} {smaller}"
    raise AssertionError("unreachable")


@app.command("reset-offsets")
@connects
def reset_offsets(
    where: Connection,
    groups: Groups = None,
    all_groups: AllGroups = False,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="NAME[:0,1]", help="Whose offsets; all that the group has committed by default."),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first message that is there.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="To this offset.", show_default=False)] = None,
    shift_by: Annotated[int | None, typer.Option("--shift-by", help="By so many messages, back with a minus.", show_default=False)] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", metavar="WHEN", help="To the first message since then: ISO 8601, UTC when it does not say."),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", metavar="DURATION", help="To the first message since so long ago: P7D, PT1H30M.")
    ] = None,
    to_current: Annotated[bool, typer.Option("--to-current", help="To where it is, or to the end where it has committed nothing.")] = False,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="FILE", help="To what --export printed, or kafka-consumer-groups.")
    ] = None,
    export: Annotated[bool, typer.Option("--export", help="Print topic,partition,offset for --from-file.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without this it is only shown.")] = False,
    zookeeper: Annotated[
        str | None,
        typer.Option("--zookeeper", metavar="HOST:PORT,…", help="Of a group that meets in ZooKeeper; with the chroot, if any."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Set where a group continues. It must have no members meanwhile.

    Of several groups those that cannot be set stay where they are, and the exit code is 1. Their JSON is a list, and their CSV has the
    group in front.

    Examples:

    - `ottla groups reset-offsets billing --to-earliest`
    - `ottla groups reset-offsets billing --topic clicks:0,1 --to-datetime 2026-01-31T08:00 --execute`
    - `ottla groups reset-offsets --all-groups --to-current --export > all.csv`
    """
    from confluent_kafka import ConsumerGroupTopicPartitions

    if "" in (groups or ()):  # as a script's variable may be, and the client does not take it
        raise UsageError("GROUP is empty")
    flags = [to_earliest, to_latest, to_current]
    if sum(flags) + sum(option is not None for option in (to_offset, shift_by, to_datetime, by_duration, from_file)) != 1:
        raise UsageError(
            "give one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, --to-datetime, --by-duration and --from-file"
        )
    if from_file is not None and topics:
        raise UsageError("--from-file says whose offsets: --topic contradicts it")
    if export and as_json:
        raise UsageError("--export and --json contradict each other")
    is_one = _is_one(groups, all_groups)
    if zookeeper is not None and not is_one:
        raise UsageError("--zookeeper is for one GROUP")
    since_ms = None if to_datetime is None else _milliseconds(to_datetime)
    if by_duration is not None:
        since_ms = max(int(time.time() * 1000 - _seconds_of(by_duration) * 1000), 0)
    plans = {} if from_file is None else _planned(from_file, groups or [])
    chosen, failures = _chosen(where, groups, all_groups) if from_file is None else (list(plans), [])
    admin = where.admin()
    in_zookeeper = None if zookeeper is None else ZooKeeperGroup(zookeeper, chosen[0])
    named = partitions_of(where, admin, topics) if topics else []

    def reset(group: str) -> list[tuple[str, int, int | None, int]]:
        """Topic, partition, where the group was and where it continues."""
        planned = plans.get(group, {})
        before = committed_offsets(admin, where, group) if in_zookeeper is None else in_zookeeper.offsets()
        keys = named or sorted(planned or before)
        if not keys and not all_groups:
            raise CommandFailed(f"group {group!r} has committed nothing; say with --topic whose offsets to set")
        first = earliest_offsets(admin, where, keys)
        last = latest_offsets(admin, where, keys)
        found = dict.fromkeys(keys, 0) if since_ms is None else offsets_since(admin, where, keys, since_ms)
        if silent := [key for key in keys if not (key in first and key in last and key in found)]:
            raise CommandFailed(
                f"{silent[0][0]}-{silent[0][1]} does not say where it begins and ends: has it a leader? Nothing was changed"
                f"{'; --topic NAME:0,1 sets the others' if is_one else f' of group {group!r}'}"
            )
        wanted = {key: offset if offset >= 0 else last[key] for key, offset in found.items()}
        for key in keys:
            if to_earliest:
                wanted[key] = first[key]
            elif to_latest:
                wanted[key] = last[key]
            elif to_current:
                wanted[key] = before.get(key, last[key])
            elif to_offset is not None:
                wanted[key] = to_offset
            elif planned:
                wanted[key] = planned[key]
            elif shift_by is not None:
                if key not in before:
                    raise CommandFailed(f"group {group!r} has committed nothing of {key[0]}-{key[1]}, so there is nothing to shift")
                wanted[key] = before[key] + shift_by
            bounded = min(max(wanted[key], first[key]), last[key])
            if bounded != wanted[key]:
                note(f"{key[0]}-{key[1]}: {wanted[key]:,} is not in [{first[key]:,}, {last[key]:,}]; {bounded:,} is taken")
                wanted[key] = bounded
        members, state = members_of(where, admin, group) if in_zookeeper is None else (len(in_zookeeper.consumers()), "in ZooKeeper")
        if members:
            advice = f"group {group!r} has {count_of(members, 'member')} ({state}); stop its consumers first"
            if execute:
                raise CommandFailed(advice)
            note(advice)
        if execute and in_zookeeper is not None:
            in_zookeeper.set_offsets(wanted)
        elif execute and wanted:
            with told_plainly(where.bootstrap_server, f"group {group!r}"):
                request = ConsumerGroupTopicPartitions(group, topic_partitions(wanted))
                answer = admin.alter_consumer_group_offsets([request], request_timeout=ANSWER_SECONDS)[group].result(ANSWER_SECONDS + 5)
            failed = [partition for partition in answer.topic_partitions if partition.error is not None]
            if failed:
                raise CommandFailed(f"{failed[0].topic}-{failed[0].partition} was not set: {failed[0].error}")
        return [(*key, before.get(key), wanted[key]) for key in keys]

    done: dict[str, list[tuple[str, int, int | None, int]]] = {}
    for group in chosen:
        with noted(failures):
            done[group] = reset(group)
    if as_json and (done or not is_one):
        names = ("topic", "partition", "before", "after")
        documents = [
            {"group": group, "executed": execute, "offsets": [dict(zip(names, row, strict=True)) for row in rows]}
            for group, rows in done.items()
        ]
        say_json(documents[0] if is_one else documents)
    elif cells := [(*(() if is_one else (group,)), *row) for group, rows in done.items() for row in rows]:
        if export:
            lines = StringIO()
            csv.writer(lines, lineterminator="\n").writerows((*row[:-2], row[-1]) for row in cells)
            say(lines.getvalue().rstrip("\n"))
        else:
            say(table((*(() if is_one else ("group",)), "topic", "partition", "before", "after"), cells))
    if failures:
        raise CommandFailed("; ".join(failures))
    if not execute and not as_json:
        note("Nothing was changed; --execute does it.")


class ZooKeeperGroup:
    """A group of the paper's consumers: its offsets are znodes. Each call is a session of its own."""

    def __init__(self, connect: str, group: str) -> None:
        self._connect = connect
        self._group = group

    def offsets(self) -> dict[tuple[str, int], int]:
        """Where it continues."""
        _, offsets = self._call(lambda session: read_group(session, self._group))
        return {(partition.topic, partition.partition): offset for partition, offset in offsets.items()}

    def consumers(self) -> list[str]:
        """Those that live."""
        return self._call(lambda session: read_group(session, self._group))[0]

    def set_offsets(self, offsets: dict[tuple[str, int], int]) -> None:
        """Sets where it continues."""
        wanted = {TopicPartition(*key): offset for key, offset in offsets.items()}
        self._call(lambda session: set_group_offsets(session, self._group, wanted))

    def _call(self, call: Callable[[Coordination], Coroutine[Any, Any, T]]) -> T:
        from ottla.client.discovery import open_client_session

        logging.basicConfig(level=logging.CRITICAL)  # kazoo would log each attempt to connect

        async def run() -> T:
            session = await open_client_session(self._connect, ANSWER_SECONDS, ANSWER_SECONDS)()
            try:
                return await call(session)
            finally:
                await session.close()

        try:
            return asyncio.run(run())
        except OttlaError as error:
            raise CommandFailed(f"ZooKeeper at {self._connect}: {str(error).removeprefix(f'{self._connect}: ')}") from None


def _milliseconds(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--to-datetime takes ISO 8601, for instance 2026-01-31T08:00:00+01:00, and {text!r} is not that") from None
    return max(int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000), 0)  # -1 asks for the end


def _seconds_of(text: str) -> float:
    """Of a duration in ISO 8601."""
    found = re.fullmatch(
        r"P(?=.)(?:(\d{1,18})D)?(?:T(?=.)(?:(\d{1,18})H)?(?:(\d{1,18})M)?(?:(\d{1,18}(?:\.\d+)?)S)?)?", text, re.ASCII | re.IGNORECASE
    )
    if found is None:
        raise UsageError(f"--by-duration takes ISO 8601, for instance P7D or PT1H30M, and {text!r} is not that")
    return sum(float(number or 0) * size for number, size in zip(found.groups(), (86_400, 3_600, 60, 1), strict=True))


def _planned(file: Path, groups: Sequence[str]) -> dict[str, dict[tuple[str, int], int]]:
    """What a file of Kafka's form has for these groups, or for all that are in it.

    Its lines are group,topic,partition,offset, or have no group in front where there is one only.
    """
    plans: dict[str, dict[tuple[str, int], int]] = {group: {} for group in groups}
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            for number, cells in enumerate(csv.reader(opened), start=1):
                is_whole = all(cells) and "\0" not in "".join(cells)  # the client raises for a name that is empty or has a NUL in it
                if is_whole and (len(cells) == 4 or (len(cells) == 3 and len(plans) == 1 and groups)):
                    group = cells[0] if len(cells) == 4 else groups[0]
                    if not 0 <= int(cells[-2]) < 1 << 31:  # the client raises for others
                        raise ValueError(f"there is no partition {cells[-2]}")
                    if group in plans or not groups:
                        plans.setdefault(group, {})[cells[-3], int(cells[-2])] = int(cells[-1])
                elif cells:
                    form = "topic,partition,offset" if len(plans) == 1 and groups else "group,topic,partition,offset"
                    raise UsageError(f"{file}:{number}: {','.join(cells)!r} is not {form}")
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    if missing := [group for group, plan in plans.items() if not plan]:
        raise UsageError(f"{file} has nothing of group {missing[0]!r}")
    if not plans:
        raise UsageError(f"{file} has no group")
    return plans


@app.command("delete-offsets")
@connects
def delete_offsets(
    where: Connection,
    group: Group,
    topics: Annotated[list[str], typer.Option("--topic", "-t", metavar="NAME[:0,1]", help="Whose offsets; may be repeated.")],
) -> None:
    """Forget what a group has committed of topics that it is not subscribed to."""
    from ottla.wire.groups import delete_offsets as deleted

    partitions = [TopicPartition(*key) for key in partitions_of(where, where.admin(), topics)]
    failures = asked(where, "offsets are not deleted", lambda cluster: deleted(cluster, group, partitions))
    say(f"Deleted the offsets of group {group!r} for {count_of(len(partitions) - len(failures), 'partition')}.")
    if failures:
        raise CommandFailed("; ".join(str(error) for error in failures.values()))


@app.command()
@connects
def delete(
    where: Connection,
    groups: Groups = None,
    all_groups: AllGroups = False,
) -> None:
    """Delete groups that have no members, and what they have committed."""
    _is_one(groups, all_groups)
    chosen, failures = _chosen(where, groups, all_groups)
    admin = where.admin()
    answers = admin.delete_consumer_groups(chosen, request_timeout=ANSWER_SECONDS) if chosen else {}
    with noted(failures):
        for group in each_deleted(answers, where.bootstrap_server, "group"):
            say(f"Deleted group {group!r}.")
    if failures:
        raise CommandFailed("; ".join(failures))
    if not chosen:
        say(f"No groups on {where.bootstrap_server}.")

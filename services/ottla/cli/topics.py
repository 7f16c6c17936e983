"""`ottla topics`: create, list, describe, alter and delete topics, find offsets and delete records before one.

All through the same admin client that any program would use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ottla.cli.configs import check_deleted
from ottla.cli.connection import (
    ANSWER_SECONDS,
    Connection,
    Json,
    cluster_metadata,
    commands,
    connects,
    each_deleted,
    pairs,
    told_plainly,
    topics_like,
)
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.group_facts import partitions_of
from ottla.cli.offsets import timestamp_ms
from ottla.cli.output import bytes_of, count_of, note, say, say_json, table
from ottla.cli.rendering import time_of
from ottla.cli.topic_facts import TopicFacts, gather

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import ClusterMetadata, OffsetSpec

app = commands("Create, list, describe, alter and delete topics; find offsets, and delete the records before one.")

END: Final = -1  # Kafka's for "before the high watermark", and librdkafka's

Configs = Annotated[
    list[str] | None, typer.Option("--config", "-c", metavar="KEY=VALUE", help="A setting of the topic, Kafka's name; may be repeated.")
]
# librdkafka takes no more.
Partitions = Annotated[int | None, typer.Option("--partitions", "-p", min=1, max=100_000, help="Number of partitions.", show_default=False)]


def _wait(answers: dict[str, Future[Any]], where: Connection) -> None:
    for name, answer in answers.items():
        with told_plainly(where.bootstrap_server, f"topic {name!r}"):
            answer.result(ANSWER_SECONDS + 5)


@app.command()
@connects
def create(
    where: Connection,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    partitions: Partitions = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, max=(1 << 15) - 1, help="Copies of each partition.", show_default=False),
    ] = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option("--replica-assignment", metavar="ID:ID,…", help="Instead: the brokers of each partition, the preferred leader first."),
    ] = None,
    configs: Configs = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed when the topic is there already.")] = False,
) -> None:
    """Create a topic; what is not given is the broker's default.

    Examples:

    - `ottla topics create clicks --partitions 6 --config retention.ms=86400000`
    - `ottla topics create clicks --replica-assignment 1:2,2:3` — two partitions, at brokers 1 and 2, and 2 and 3
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    overrides = pairs(configs, "--config")
    if replica_assignment is None:
        topic = NewTopic(name, num_partitions=partitions or -1, replication_factor=replication_factor or -1, config=overrides)
    else:
        if partitions is not None or replication_factor is not None:
            raise UsageError("--replica-assignment says how many there are: --partitions and --replication-factor contradict it")
        replicas = _replicas(replica_assignment)
        topic = NewTopic(name, num_partitions=len(replicas), replica_assignment=replicas, config=overrides)
    admin = where.admin()  # kept until the answer is there: a client that is collected takes its requests with it
    answer = admin.create_topics([topic], request_timeout=ANSWER_SECONDS)[name]
    with told_plainly(where.bootstrap_server, f"topic {name!r}"):
        try:
            answer.result(ANSWER_SECONDS + 5)
        except KafkaException as exception:
            if not if_not_exists or exception.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            say(f"Topic {name!r} exists already.")
            return
    say(f"Created topic {name!r}.")


def _replicas(text: str) -> list[list[int]]:
    """`1:2,2:3` as the brokers of partition 0 and of partition 1."""
    try:
        replicas = [[int(broker) for broker in partition.split(":")] for partition in text.split(",")]
        if max(map(max, replicas)) >= 1 << 31:
            raise ValueError  # the client would take it for another broker
    except ValueError:
        raise UsageError(f"--replica-assignment takes ID:ID for each partition, with commas, and not {text!r}") from None
    if not all(len(set(brokers)) == len(brokers) == len(replicas[0]) and min(brokers) >= 0 for brokers in replicas):
        raise UsageError("--replica-assignment takes as many different brokers for each partition")
    return replicas


@app.command("list")
@connects
def list_topics(
    where: Connection,
    internal: Annotated[bool, typer.Option("--internal", help="Also those that begin with `__`.")] = False,
    as_json: Json = False,
) -> None:
    """List the topics."""
    metadata = cluster_metadata(where.admin(), where.bootstrap_server)
    rows = [
        (name, len(topic.partitions), max((len(partition.replicas) for partition in topic.partitions.values()), default=0))
        for name, topic in sorted(metadata.topics.items())
        if internal or not name.startswith("__")
    ]
    if as_json:
        say_json([{"topic": name, "partition_count": count, "replication_factor": replicas} for name, count, replicas in rows])
    elif rows:
        say(table(("topic", "partitions", "replicas"), rows))
    else:
        say(f"No topics on {where.bootstrap_server}.")


@app.command()
@connects
def describe(
    where: Connection,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="All when none is named, but those that begin with `__`.")
    ] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only partitions with a replica that is not in sync, of internal topics too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show leaders, replicas, offsets and sizes of each partition, and what is configured for the topic itself.

    Examples:

    - `ottla topics describe clicks`
    - `ottla topics describe --under-replicated`
    """
    topics = gather(where, names or (), internal=under_replicated)
    if under_replicated:
        topics = [topic for topic in topics if topic.shown(under_replicated)]
    if as_json:
        say_json([topic.as_json(under_replicated) for topic in topics])
    elif topics:
        say("\n\n".join(_described(topic, under_replicated) for topic in topics))
    elif under_replicated:
        say("Every replica is in sync.")
    else:
        say(f"No topics on {where.bootstrap_server}.")


def _described(topic: TopicFacts, under_replicated: bool) -> str:
    size = "size unknown" if topic.size is None else bytes_of(topic.size)
    lines = [
        f"{topic.name}: {count_of(len(topic.partitions), 'partition')}, replication factor {topic.replication_factor}, "
        f"{count_of(topic.message_count, 'message')}, {size}{'' if topic.topic_id is None else f', id {topic.topic_id}'}"
    ]
    lines += [f"  {key} = {value}" for key, value in topic.overrides.items()]
    rows = [
        (
            partition.partition,
            partition.leader,
            partition.replicas,
            partition.isr,
            partition.start_offset,
            partition.end_offset,
            None if partition.size is None else bytes_of(partition.size),
        )
        for partition in topic.shown(under_replicated)
    ]
    lines.append(table(("partition", "leader", "replicas", "isr", "start offset", "end offset", "size"), rows))
    return "\n".join(lines)


@app.command()
@connects
def alter(
    where: Connection,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    partitions: Partitions = None,
    configs: Configs = None,
    delete_configs: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="KEY", help="Back to the broker's default; may be repeated.")
    ] = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option("--replica-assignment", metavar="ID:ID,…", help="The brokers of all --partitions; those of new ones are taken."),
    ] = None,
) -> None:
    """Add partitions, set or unset what is configured for a topic. Settings that are not named stay as they are.

    Example: `ottla topics alter clicks --partitions 12 --config retention.ms=-1 --delete-config segment.bytes`
    """
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType

    if "" in (delete_configs or ()):  # as a script's variable may be, and the client does not take it
        raise UsageError("--delete-config is empty")
    if partitions is None and not configs and not delete_configs:
        raise UsageError("nothing to alter: give --partitions, --config or --delete-config")
    replicas = None if replica_assignment is None else _replicas(replica_assignment)
    if replicas is not None and len(replicas) != partitions:
        raise UsageError(f"--replica-assignment is for {count_of(len(replicas), 'partition')}: give as many with --partitions")
    admin = where.admin()
    count = len(cluster_metadata(admin, where.bootstrap_server, name).topics[name].partitions)
    entries = [
        *(ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in pairs(configs, "--config").items()),
        *(ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in delete_configs or ()),
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    if delete_configs:
        with told_plainly(where.bootstrap_server, f"topic {name!r}"):
            known = admin.describe_configs([resource], request_timeout=ANSWER_SECONDS)[resource].result(ANSWER_SECONDS + 5)
        check_deleted(delete_configs, known)
    assigned = {"replica_assignment": replicas[count:]} if replicas and replicas[count:] else {}
    new = [] if partitions is None else [NewPartitions(name, partitions, **assigned)]
    if new and entries:  # nothing is altered where one of both is refused
        _wait(admin.create_partitions(new, request_timeout=ANSWER_SECONDS, validate_only=True), where)
    if entries:
        answers = admin.incremental_alter_configs([resource], request_timeout=ANSWER_SECONDS)
        _wait({name: answers[resource]}, where)
    if new:
        _wait(admin.create_partitions(new, request_timeout=ANSWER_SECONDS), where)
        note(f"ottla: keys of {name!r} are spread over {partitions} partitions now, and not over {count}: their order holds from here on")
    say(f"Altered topic {name!r}.")


@app.command()
@connects
def delete(
    where: Connection,
    names: Annotated[list[str], typer.Argument(metavar="NAME...")],
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed when a topic is not there.")] = False,
) -> None:
    """Delete topics and all that is in them. There is no way back, and no question is asked."""
    admin = where.admin()
    there = cluster_metadata(admin, where.bootstrap_server).topics
    missing = [name for name in names if name not in there]
    if missing and not if_exists:
        raise CommandFailed(f"topic {missing[0]!r} does not exist on {where.bootstrap_server}; nothing was deleted")
    doomed = [name for name in dict.fromkeys(names) if name in there]
    answers = admin.delete_topics(doomed, request_timeout=ANSWER_SECONDS) if doomed else {}
    for name in each_deleted(answers, where.bootstrap_server, "topic"):
        say(f"Deleted topic {name!r}.")


@app.command()
@connects
def offsets(
    where: Connection,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC[:0,1]]...", help="Names or regular expressions; all topics when none is given, but those that begin with `__`."
        ),
    ] = None,
    at: Annotated[
        str,
        typer.Option("--time", metavar="WHEN", help="latest, earliest, max-timestamp, or a time: milliseconds since 1970 or ISO 8601."),
    ] = "latest",
    internal: Annotated[bool, typer.Option("--internal", help="Also those that begin with `__`.")] = False,
    as_json: Json = False,
) -> None:
    """Show the end of each partition, its beginning, its youngest record or the first one since a time.

    A partition without such a record has no offset. Exit code 1 when a partition does not answer.

    Examples:

    - `ottla topics offsets clicks --time earliest`
    - `ottla topics offsets 'click.*:0,1' --time 2026-01-31T08:00Z`
    """
    from confluent_kafka import KafkaException

    spec = _offset_spec(at)
    admin = where.admin()
    metadata = cluster_metadata(admin, where.bootstrap_server)
    asked = _matching(metadata, names or (), internal, where.bootstrap_server)
    led = {partition: spec for partition in asked if metadata.topics[partition.topic].partitions[partition.partition].leader >= 0}
    failures = [f"{partition.topic}-{partition.partition} has no leader at the moment" for partition in asked if partition not in led]
    rows: list[tuple[str, int, int | None, int | None]] = []
    with told_plainly(where.bootstrap_server):
        answers = admin.list_offsets(led, request_timeout=ANSWER_SECONDS) if led else {}
    for partition, answer in sorted(answers.items()):
        try:
            found = answer.result(ANSWER_SECONDS + 5)
        except KafkaException as exception:
            failures.append(f"{partition.topic}-{partition.partition}: {exception.args[0].str()}")
            continue
        offset, timestamp = (None if number < 0 else number for number in (found.offset, found.timestamp))
        rows.append((partition.topic, partition.partition, offset, timestamp))
    if as_json:
        say_json([dict(zip(("topic", "partition", "offset", "timestamp"), row, strict=True)) for row in rows])
    elif any(timestamp is not None for *_, timestamp in rows):
        times = [(*row, None if timestamp is None else time_of(timestamp)) for *row, timestamp in rows]
        say(table(("topic", "partition", "offset", "timestamp"), times))
    elif rows:
        say(table(("topic", "partition", "offset"), [row[:3] for row in rows]))
    elif not failures:
        say(f"No topics on {where.bootstrap_server}.")
    if failures:
        raise CommandFailed("; ".join(failures))


def _offset_spec(text: str) -> OffsetSpec:
    """What a person asks for with a word, with a time, or with one of Kafka's negative numbers."""
    from confluent_kafka.admin import OffsetSpec

    words: dict[str, Callable[[], OffsetSpec]] = {
        "earliest": OffsetSpec.earliest,
        "latest": OffsetSpec.latest,
        "max-timestamp": OffsetSpec.max_timestamp,
    }
    word = {"-1": "latest", "-2": "earliest", "-3": "max-timestamp"}.get(text, text.lower())
    if word.startswith("-"):
        raise UsageError(f"--time takes earliest (-2), latest (-1), max-timestamp (-3) or a time, and not {text!r}")
    return words[word]() if word in words else OffsetSpec.for_timestamp(timestamp_ms(text))


def _matching(metadata: ClusterMetadata, names: Sequence[str], internal: bool, server: str) -> list[TopicPartition]:
    """The partitions that patterns of topics stand for; each has to match one. What begins with `__` asks for internal topics."""
    from confluent_kafka import TopicPartition

    found: dict[TopicPartition, None] = {}
    for name in names or (".*",):
        parts = re.fullmatch(r"(.*?)(?::([0-9]+(?:,[0-9]+)*))?", name, re.DOTALL)
        assert parts is not None
        matched = [
            TopicPartition(topic, partition)
            for topic in topics_like(metadata.topics, parts[1], internal)
            for partition in sorted(metadata.topics[topic].partitions)
            if parts[2] is None or str(partition) in parts[2].split(",")
        ]
        if names and not matched:
            raise CommandFailed(f"{name!r} matches no partition on {server}")
        found.update(dict.fromkeys(matched))
    return list(found)


@app.command("delete-records")
@connects
def delete_records(
    where: Connection,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME[:0,1]]...", help="Of which partitions.")] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="OFFSET", help="The first offset to keep; `end` deletes all there is.")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="FILE", help="An offset for each partition, in the JSON of kafka-delete-records.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Delete the records of partitions before an offset. There is no way back, and no question is asked.

    Exit code 1 when a partition refuses, as one does that is only compacted or ends before that offset; the others are done.

    Examples:

    - `ottla topics delete-records clicks:0 --before 1000`
    - `ottla topics delete-records --from-file offsets.json`
    """
    from confluent_kafka import KafkaException, TopicPartition

    if (from_file is None) != bool(names) or bool(names) != (before is not None):
        raise UsageError("say which records: NAME or NAME:0,1 and --before, or --from-file")
    wanted = _wanted(from_file) if from_file is not None else {}
    first_kept = None if before is None else _first_kept(before)
    admin = where.admin()
    there = cluster_metadata(admin, where.bootstrap_server).topics
    if first_kept is not None:
        wanted = dict.fromkeys(partitions_of(where, admin, names or ()), first_kept)
    rows: list[tuple[str, int, int | None, str | None]] = []
    led = []
    for (topic, number), offset in sorted(wanted.items()):
        found = there[topic].partitions.get(number) if topic in there else None
        if found is not None and found.leader >= 0:
            led.append(TopicPartition(topic, number, offset))
        else:
            rows.append((topic, number, None, "does not exist" if found is None else "has no leader at the moment"))
    with told_plainly(where.bootstrap_server):
        answers = admin.delete_records(led, request_timeout=ANSWER_SECONDS, operation_timeout=ANSWER_SECONDS) if led else {}
    for partition, answer in answers.items():
        try:
            rows.append((partition.topic, partition.partition, answer.result(ANSWER_SECONDS + 5).low_watermark, None))
        except KafkaException as exception:
            rows.append((partition.topic, partition.partition, None, exception.args[0].str()))
    rows.sort(key=lambda row: row[:2])
    if as_json:
        say_json([dict(zip(("topic", "partition", "start_offset", "error"), row, strict=True)) for row in rows])
    elif done := [row[:3] for row in rows if row[3] is None]:
        say(table(("topic", "partition", "start offset"), done))
    if failures := [f"{topic}-{number}: {error}" for topic, number, _, error in rows if error is not None]:
        raise CommandFailed("; ".join(failures))


def _first_kept(text: str) -> int:
    if text.lower() in ("end", "latest"):
        return END
    try:
        return _offset(int(text))
    except ValueError:
        raise UsageError(f"--before takes an offset or `end`, and not {text!r}") from None


def _offset(number: Any) -> int:
    if type(number) is not int or not END <= number < 1 << 63:
        raise ValueError(number)
    return number


def _wanted(file: Path) -> dict[tuple[str, int], int]:
    """What a file of Kafka's form has: an offset for each partition, -1 for the end."""
    try:
        document: Any = json.loads(file.read_bytes())
        if document.get("version", 1) != 1:
            raise ValueError(f"version {document['version']}")
        entries = [(str(entry["topic"]), int(entry["partition"]), _offset(entry["offset"])) for entry in document["partitions"]]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        form = '{"version": 1, "partitions": [{"topic": "…", "partition": 0, "offset": 1}]}'
        raise UsageError(f"{file} cannot be read: {error}; it has to be {form}") from None
    wanted = {(topic, partition): offset for topic, partition, offset in entries}
    if len(wanted) < len(entries):
        raise UsageError(f"{file} has a partition twice")
    return wanted

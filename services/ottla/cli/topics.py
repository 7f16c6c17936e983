"""`ottla topics`: create, list, describe, alter and delete, through the same admin client that any program would use."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Annotated, Any

import typer

from ottla.cli.configs import check_deleted
from ottla.cli.connection import ANSWER_SECONDS, Connection, Json, cluster_metadata, commands, connects, each_deleted, pairs, told_plainly
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.output import bytes_of, count_of, note, say, say_json, table
from ottla.cli.topic_facts import TopicFacts, gather

app = commands("Create, list, describe, alter and delete topics.")

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
    configs: Configs = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed when the topic is there already.")] = False,
) -> None:
    """Create a topic; what is not given is the broker's default.

    Example: `ottla topics create clicks --partitions 6 --config retention.ms=86400000`
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    topic = NewTopic(name, num_partitions=partitions or -1, replication_factor=replication_factor or -1, config=pairs(configs, "--config"))
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
        f"{count_of(topic.message_count, 'message')}, {size}"
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
) -> None:
    """Add partitions, set or unset what is configured for a topic. Settings that are not named stay as they are.

    Example: `ottla topics alter clicks --partitions 12 --config retention.ms=-1 --delete-config segment.bytes`
    """
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType

    if "" in (delete_configs or ()):  # as a script's variable may be, and the client does not take it
        raise UsageError("--delete-config is empty")
    if partitions is None and not configs and not delete_configs:
        raise UsageError("nothing to alter: give --partitions, --config or --delete-config")
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
    if partitions is not None and entries:  # nothing is altered where one of both is refused
        new = [NewPartitions(name, partitions)]
        _wait(admin.create_partitions(new, request_timeout=ANSWER_SECONDS, validate_only=True), where)
    if entries:
        answers = admin.incremental_alter_configs([resource], request_timeout=ANSWER_SECONDS)
        _wait({name: answers[resource]}, where)
    if partitions is not None:
        _wait(admin.create_partitions([NewPartitions(name, partitions)], request_timeout=ANSWER_SECONDS), where)
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

"""`ottla elect-leaders`: gives partitions their preferred leader back, or, where data may be lost for it, any leader."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ottla.cli.connection import Connection, cluster_metadata, connects, told_plainly
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.output import count_of, say, say_json, table
from ottla.model import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException

ELECTED: Final = "elected"
NOT_NEEDED: Final = "not needed"
LIBRDKAFKAS_SECONDS: Final = 60.0  # its socket.timeout.ms


class Election(enum.StrEnum):
    """Who is to lead."""

    PREFERRED = "preferred"
    UNCLEAN = "unclean"


@connects
def elect_leaders(
    where: Connection,
    election: Annotated[Election, typer.Argument(help="preferred: the first replica, if it is in sync. unclean: any that lives.")],
    names: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC[:PARTITION]]...", help="Which partitions.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every partition of the cluster.")] = False,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="FILE", help="Those of a file, in the JSON of kafka-leader-election.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Elect partition leaders.

    A **preferred** election moves leaderships back to the first replica of each partition, after its broker was away. An
    **unclean** one gives a partition a leader that no replica in sync can be had for: what only those had is lost. It
    does nothing to partitions that have a leader. Exit code 1 when a partition could not be given its leader.

    Examples:

    - `ottla elect-leaders preferred --all`
    - `ottla elect-leaders unclean clicks:3`
    """
    if everything + bool(names) + (from_file is not None) != 1:
        raise UsageError("say which partitions: TOPIC or TOPIC:PARTITION, --from-file, or --all")
    if from_file is not None:
        names = named_in(from_file)
    from confluent_kafka import ElectionType
    from confluent_kafka import TopicPartition as ClientPartition

    admin = where.admin()
    asked = None
    if names:
        metadata = cluster_metadata(admin, where.bootstrap_server)
        counts = {name: len(topic.partitions) for name, topic in metadata.topics.items()}
        asked = [ClientPartition(partition.topic, partition.partition) for partition in partitions_named(names, counts)]
    election_type = ElectionType.PREFERRED if election is Election.PREFERRED else ElectionType.UNCLEAN
    with told_plainly(where.bootstrap_server):
        # Without the timeouts that it could be given: confluent-kafka 2.16 cannot take them. librdkafka has its own.
        outcomes = outcomes_of(admin.elect_leaders(election_type, asked).result(LIBRDKAFKAS_SECONDS + 5))
    if as_json:
        say_json(
            [{"topic": partition.topic, "partition": partition.partition, "outcome": outcome} for partition, outcome in outcomes.items()]
        )
    else:
        say(_described(outcomes))
    if failed := [partition for partition, outcome in outcomes.items() if outcome not in (ELECTED, NOT_NEEDED)]:
        raise CommandFailed(f"no other leader for {count_of(len(failed), 'partition')}")


def named_in(file: Path) -> list[str]:
    """The partitions of a file of Kafka's form, as they are typed.

    Raises:
        UsageError: it is none, or has no partition: without one, every partition would be meant.
    """
    try:
        document = json.loads(file.read_bytes())
        names = [f"{entry['topic']}:{entry['partition']}" for entry in document["partitions"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UsageError(f'{file} cannot be read: {error}; it has to be {{"partitions": [{{"topic": "…", "partition": 0}}]}}') from None
    if not names:
        raise UsageError(f"{file} has no partition")
    return names


def partitions_named(names: Iterable[str], partition_counts: Mapping[str, int]) -> list[TopicPartition]:
    """The partitions that `clicks` and `views:3` stand for.

    Raises:
        CommandFailed: one does not exist.
    """
    found: dict[TopicPartition, None] = {}
    for name in names:
        topic, colon, number = name.rpartition(":")
        if not colon:
            topic, number = name, ""
        if topic not in partition_counts:
            raise CommandFailed(f"topic {topic!r} does not exist")
        if colon and not (number.isdecimal() and len(number) < 10 and int(number) < partition_counts[topic]):
            raise CommandFailed(f"topic {topic!r} has no partition {number!r}")
        chosen: Sequence[int] = [int(number)] if colon else range(partition_counts[topic])
        found.update(dict.fromkeys(TopicPartition(topic, index) for index in chosen))
    return list(found)


def outcomes_of(answer: Mapping[Any, KafkaError | KafkaException | None]) -> dict[TopicPartition, str]:
    """What came of each, in a few words. The client says that it gives exceptions, and gives errors."""
    from confluent_kafka import KafkaError, KafkaException

    outcomes = {}
    for partition, found in answer.items():
        error = found.args[0] if isinstance(found, KafkaException) else found
        outcome = ELECTED
        if error is not None and error.code() != KafkaError.NO_ERROR:
            outcome = NOT_NEEDED if error.code() == KafkaError.ELECTION_NOT_NEEDED else error.str()
        outcomes[TopicPartition(partition.topic, partition.partition)] = outcome
    return dict(sorted(outcomes.items()))


def _described(outcomes: Mapping[TopicPartition, str]) -> str:
    if not outcomes:
        return "Every partition has the leader that it should have."
    return table(("partition", "outcome"), [(str(partition), outcome) for partition, outcome in outcomes.items()])

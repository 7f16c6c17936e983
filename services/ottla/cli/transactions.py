"""`ottla transactions`: what transactions are doing, and which of them hang for ever (KIP-664).

A transaction hangs in a partition when its coordinator does not know of it any more: readers of committed data wait there
for ever, and compaction stops. Verification (KIP-890) keeps that from happening; records from before it, or from a
cluster that was mirrored byte for byte, may still have one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ottla.cli.broker_call import call, security_for
from ottla.cli.connection import Connection, Json, cluster_metadata, commands, connects
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.output import count_of, note, say, say_json, table
from ottla.cli.rendering import time_of
from ottla.errors import NONE, TransactionalIdNotFound, error_of
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

    from ottla.protocol.messages import Message
    from ottla.wire.broker_connection import Build

# Any transaction that lasts longer has been aborted by its coordinator: the default of `transaction.max.timeout.ms`.
MAX_TRANSACTION_MINUTES: Final = 15

app = commands("List and describe transactions, and find and abort hanging ones.")

Topic = Annotated[str | None, typer.Option("--topic", "-t", metavar="NAME", help="Only this topic.", show_default=False)]

NO_OFFSET: Final = -1
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
_TRANSACTION: Final = 1  # of FindCoordinator's kinds of keys
Partition = tuple[str, int]


@app.command("list")
@connects
def list_command(
    where: Connection,
    state: Annotated[str | None, typer.Option("--state", help="Only those in this state, for instance Ongoing.")] = None,
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", min=0, max=(1 << 63) - 1, help="Only the one of this producer.", show_default=False)
    ] = None,
    duration_ms: Annotated[
        int,
        typer.Option("--duration-filter", max=(1 << 63) - 1, metavar="MS", help="Only those that are open for longer.", show_default=False),
    ] = -1,
    as_json: Json = False,
) -> None:
    """List the transactional ids and what their transactions are doing; exit code 1 when a coordinator has no leader."""
    brokers = Brokers(where, cluster_metadata(where.admin(), where.bootstrap_server))
    rows = brokers.transactions([] if state is None else [state], [] if producer_id is None else [producer_id], duration_ms)
    if as_json:
        say_json([asdict(row) for row in rows])
    elif rows:
        cells = [(row.transactional_id, str(row.producer_id), row.state, row.coordinator) for row in rows]
        say(table(("transactional id", "producer", "state", "coordinator"), cells))
    else:
        say(f"No transactions on {where.bootstrap_server}.")
    brokers.check_coordinators()


@app.command()
@connects
def describe(
    where: Connection,
    transactional_id: Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID")],
    as_json: Json = False,
) -> None:
    """Show a transactional id: its producer, and the partitions that its transaction has written to."""
    found = Brokers(where, cluster_metadata(where.admin(), where.bootstrap_server)).describe(transactional_id)
    if as_json:
        say_json({**asdict(found), "partitions": [{"topic": topic, "partition": partition} for topic, partition in found.partitions]})
        return
    say(
        f"{found.transactional_id}: {found.state}, producer {found.producer_id}, epoch {found.producer_epoch}, "
        f"coordinator {found.coordinator}, timeout {found.timeout_ms / 1000:g} s"
    )
    if found.start_ms is not None:
        say(f"since {_seconds_since(found.start_ms):,.0f} s, in {count_of(len(found.partitions), 'partition')}")
        say()
        say(table(("topic", "partition"), found.partitions))


@app.command("describe-producers")
@connects
def describe_producers(
    where: Connection,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    as_json: Json = False,
) -> None:
    """Show the producers that a partition knows of, those without transactions too.

    Example:

    - `ottla transactions describe-producers payments 3`
    """
    producers = sorted(_brokers_of(where, topic, partition).writers([(topic, partition)]), key=lambda writer: writer.producer_id)
    rows = [
        (
            producer.producer_id,
            producer.producer_epoch,
            None if producer.coordinator_epoch < 0 else producer.coordinator_epoch,
            producer.last_sequence,
            producer.last_timestamp_ms,
            None if producer.start_offset < 0 else producer.start_offset,
        )
        for producer in producers
    ]
    if as_json:
        names = ("producer_id", "producer_epoch", "coordinator_epoch", "last_sequence", "last_timestamp", "start_offset")
        say_json([dict(zip(names, row, strict=True)) for row in rows])
    elif rows:
        shown = [(str(producer), *between, time_of(timestamp), start) for producer, *between, timestamp, start in rows]
        say(table(("producer", "epoch", "coordinator epoch", "last sequence", "last timestamp", "start offset"), shown))
    else:
        say(f"{topic}-{partition} knows of no producers.")


def _brokers_of(where: Connection, topic: str, partition: int) -> Brokers:
    """The brokers of a cluster that has this partition.

    Raises:
        CommandFailed: it has not.
    """
    metadata = cluster_metadata(where.admin(), where.bootstrap_server, topic)
    if partition not in metadata.topics[topic].partitions:
        raise CommandFailed(f"topic {topic!r} has no partition {partition}, only 0 to {max(metadata.topics[topic].partitions)}")
    return Brokers(where, metadata)


def _seconds_since(milliseconds: int) -> float:
    return max(0.0, time.time() - milliseconds / 1000)


@app.command("find-hanging")
@connects
def find_hanging(
    where: Connection,
    topic: Topic = None,
    max_transaction_minutes: Annotated[
        int, typer.Option("--max-transaction-minutes", min=0, help="Younger ones may still be ended by their coordinators.")
    ] = MAX_TRANSACTION_MINUTES,
    as_json: Json = False,
) -> None:
    """Find transactions that are open in a partition and that no coordinator knows of.

    Examples:

    - `ottla transactions find-hanging`
    - `ottla transactions find-hanging --topic payments`
    """
    metadata = cluster_metadata(where.admin(), where.bootstrap_server, topic)
    brokers = Brokers(where, metadata)
    chosen = metadata.topics if topic is None else {topic: metadata.topics[topic]}
    open_ones = [writer for writer in brokers.writers(_partitions(chosen)) if writer.start_offset >= 0]
    old = [one for one in open_ones if _seconds_since(one.last_timestamp_ms) >= max_transaction_minutes * 60]
    hanging = _unknown(brokers, old)
    rows = [
        (*one.partition, one.producer_id, one.producer_epoch, one.start_offset, int(_seconds_since(one.last_timestamp_ms)))
        for one in hanging
    ]
    if as_json:
        names = ("topic", "partition", "producer_id", "producer_epoch", "start_offset", "seconds")
        say_json([dict(zip(names, row, strict=True)) for row in rows])
    elif rows:
        shown = [(topic, partition, str(producer), *rest) for topic, partition, producer, *rest in rows]
        say(table(("topic", "partition", "producer", "epoch", "start offset", "seconds"), shown))
        note("`ottla transactions abort TOPIC PARTITION START_OFFSET` ends one.")
    else:
        say(f"No transaction hangs; {count_of(len(open_ones), 'is', 'are')} open.")


def _partitions(topics: Any) -> list[Partition]:
    return [(name, index) for name, partitions in sorted(topics.items()) for index in sorted(partitions.partitions)]


def _unknown(brokers: Brokers, writers: list[Writer]) -> list[Writer]:
    """Those of which their producers' coordinators know nothing.

    An epoch says nothing of that: a coordinator that ends a transaction may have raised it already (Kafka 4 does so for a commit, too).

    Raises:
        CommandFailed: not every coordinator can be asked.
    """
    if not writers:
        return []
    brokers.check_coordinators()
    ids = {
        transaction.producer_id: transaction.transactional_id
        for transaction in brokers.transactions(producer_ids=sorted({writer.producer_id for writer in writers}))
    }
    described = {producer_id: brokers.describe(transactional_id) for producer_id, transactional_id in ids.items()}
    return [
        writer
        for writer in writers
        if writer.producer_id not in described or writer.partition not in described[writer.producer_id].partitions
    ]


@app.command()
@connects
def abort(
    where: Connection,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    start_offset: Annotated[int, typer.Argument(metavar="START_OFFSET", min=0)],
) -> None:
    """Abort the transaction that begins at an offset of a partition, there and nowhere else. `find-hanging` says which need it.

    Refused for a transaction that its coordinator knows, or as long as not every coordinator can be asked.

    Example:

    - `ottla transactions abort payments 3 1874002`
    """
    brokers = _brokers_of(where, topic, partition)
    found = next((writer for writer in brokers.writers([(topic, partition)]) if writer.start_offset == start_offset), None)
    if found is None:
        raise CommandFailed(f"no transaction is open in {topic}-{partition} that begins at offset {start_offset:,}")
    if not _unknown(brokers, [found]):
        raise CommandFailed(
            f"the coordinator of producer {found.producer_id} knows this transaction, and may have committed it elsewhere; it will end it"
        )
    brokers.abort(found)
    say(f"Aborted the transaction of producer {found.producer_id} in {topic}-{partition} from offset {start_offset:,} on.")


# What there is to ask brokers about transactions (keys 10, 27, 61, 65, 66), for which librdkafka has no calls.
#
# Transactions are asked of their coordinators, producers and markers of the partitions' leaders.


@dataclass(frozen=True, slots=True)
class Listed:
    """A transactional id in a list, and the broker that coordinates it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class Described:
    """All about a transactional id. `start_ms` is None when it has no transaction."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class Writer:
    """A producer as a partition knows it. `start_offset` is negative when it has no transaction there."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    last_timestamp_ms: int
    coordinator_epoch: int
    start_offset: int
    last_sequence: int = -1


class Brokers:
    """The brokers of a cluster, to be asked.

    Raises:
        UsageError: the connection is one that these requests cannot be sent over.
    """

    def __init__(self, where: Connection, metadata: ClusterMetadata) -> None:
        security_for(where.properties)
        self._where = where
        self._metadata = metadata
        self._addresses = {broker_id: (str(broker.host), broker.port) for broker_id, broker in metadata.brokers.items()}

    def check_coordinators(self) -> None:
        """Raises CommandFailed when a partition of the coordinators has no leader: the transactions that it knows, no one names."""
        topic = self._metadata.topics.get(TRANSACTION_STATE_TOPIC)
        self._by_leader([(TRANSACTION_STATE_TOPIC, index) for index in sorted(topic.partitions)] if topic is not None else [])

    def transactions(self, states: Sequence[str] = (), producer_ids: Sequence[int] = (), duration_ms: int = -1) -> list[Listed]:
        """The transactional ids of all coordinators, by id; of those that are open for longer, if it is said for how long (KIP-994)."""
        version = 0 if duration_ms < 0 else 1

        def request(api: Message) -> Any:
            duration = {"duration_filter": duration_ms} if version else {}
            return api.build("ListTransactionsRequest", state_filters=states, producer_id_filters=producer_ids, **duration)

        found = []
        for broker_id in sorted(self._metadata.brokers):
            answer = self._ask(broker_id, ApiKey.LIST_TRANSACTIONS, version, request)
            _check(answer.error_code, f"broker {broker_id}")
            if answer.unknown_state_filters:
                raise UsageError(f"there is no state {answer.unknown_state_filters[0]!r}; Ongoing and CompleteCommit are two")
            found += [
                Listed(listed.transactional_id, listed.producer_id, listed.transaction_state, broker_id)
                for listed in answer.transaction_states
            ]
        return sorted(found, key=lambda listed: listed.transactional_id)

    def describe(self, transactional_id: str) -> Described:
        """One id, from its coordinator.

        Raises:
            CommandFailed: it is not known.
        """
        coordinator = self._coordinator(transactional_id)
        answer = self._ask(
            coordinator,
            ApiKey.DESCRIBE_TRANSACTIONS,
            0,
            lambda api: api.build("DescribeTransactionsRequest", transactional_ids=[transactional_id]),
        )
        (found,) = answer.transaction_states
        if found.error_code == TransactionalIdNotFound.code:
            raise CommandFailed(f"transactional id {transactional_id!r} is not known")
        _check(found.error_code, f"transactional id {transactional_id!r}")
        return Described(
            found.transactional_id,
            coordinator,
            found.producer_id,
            found.producer_epoch,
            found.transaction_state,
            found.transaction_timeout // timedelta(milliseconds=1),
            None if found.transaction_start_time is None else round(found.transaction_start_time.timestamp() * 1000),
            tuple((str(topic.topic), int(index)) for topic in found.topics for index in topic.partitions),
        )

    def writers(self, partitions: Sequence[Partition]) -> list[Writer]:
        """The producers of partitions, from their leaders."""
        found = []
        for leader, led in self._by_leader(partitions).items():
            topics: dict[str, list[int]] = {}
            for topic, index in led:
                topics.setdefault(topic, []).append(index)

            def request(api: Message, topics: Mapping[str, list[int]] = topics) -> Any:
                asked = [api.build("TopicRequest", name=name, partition_indexes=indexes) for name, indexes in topics.items()]
                return api.build("DescribeProducersRequest", topics=asked)

            for topic_answer in self._ask(leader, ApiKey.DESCRIBE_PRODUCERS, 0, request).topics:
                for described in topic_answer.partitions:
                    partition = (str(topic_answer.name), int(described.partition_index))
                    _check(described.error_code, f"{partition[0]}-{partition[1]}")
                    found += [
                        Writer(
                            partition,
                            producer.producer_id,
                            producer.producer_epoch,
                            producer.last_timestamp,
                            producer.coordinator_epoch,
                            producer.current_txn_start_offset,
                            producer.last_sequence,
                        )
                        for producer in described.active_producers
                    ]
        return found

    def abort(self, writer: Writer) -> None:
        """Writes the marker that ends a producer's transaction in one partition, as aborted."""
        topic, index = writer.partition

        def request(api: Message) -> Any:
            marker = api.build(
                "WritableTxnMarker",
                producer_id=writer.producer_id,
                producer_epoch=writer.producer_epoch,
                transaction_result=False,
                topics=[api.build("WritableTxnMarkerTopic", name=topic, partition_indexes=[index])],
                # One that is older than what the partition has seen would be refused.
                coordinator_epoch=max(0, writer.coordinator_epoch),
            )
            return api.build("WriteTxnMarkersRequest", markers=[marker])

        (leader,) = self._by_leader([writer.partition])
        answer = self._ask(leader, ApiKey.WRITE_TXN_MARKERS, 1, request)
        _check(answer.markers[0].topics[0].partitions[0].error_code, f"{topic}-{index}")

    def _coordinator(self, transactional_id: str) -> int:
        answer = self._ask(
            min(self._metadata.brokers),
            ApiKey.FIND_COORDINATOR,
            1,
            lambda api: api.build("FindCoordinatorRequest", key=transactional_id, key_type=_TRANSACTION),
        )
        _check(answer.error_code, f"transactional id {transactional_id!r}")
        self._addresses[int(answer.node_id)] = answer.host, answer.port  # it may have joined since the brokers were listed
        return int(answer.node_id)

    def _by_leader(self, partitions: Sequence[Partition]) -> Mapping[int, list[Partition]]:
        found: dict[int, list[Partition]] = {}
        for topic, index in partitions:
            leader = self._metadata.topics[topic].partitions[index].leader
            if leader not in self._metadata.brokers:
                raise CommandFailed(f"{topic}-{index} has no leader at the moment, so not all transactions are known")
            found.setdefault(leader, []).append((topic, index))
        return found

    def _ask(self, broker_id: int, key: ApiKey, version: int, request: Build) -> Any:
        return call(self._addresses[broker_id], self._where.properties, key, version, request, "does not tell of transactions")


def _check(code: int, subject: str) -> None:
    if code != NONE:
        raise CommandFailed(str(error_of(int(code), subject)))

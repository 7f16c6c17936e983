"""`ottla transactions`: what transactions are doing, and which of them nobody will ever end (KIP-664).

A transaction hangs in a partition when its coordinator does not know of it any more: readers of committed data wait there
for ever, and compaction stops. Verification (KIP-890) keeps that from happening; records from before it, or from a
cluster that was mirrored byte for byte, may still have one.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import typer

from ottla.cli.connection import DEFAULT_BOOTSTRAP_SERVER, BootstrapServer, ClientProperty, CommandConfig, cluster_metadata, connection
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.output import count_of, note, say, say_json, table
from ottla.cli.transaction_requests import Brokers, Described, Partition, Writer

# Any transaction that lasts longer has been aborted by its coordinator: the default of `transaction.max.timeout.ms`.
MAX_TRANSACTION_MINUTES: Final = 15

app = typer.Typer(
    help="List and describe transactions, and find and end those that nobody else ends.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Topic = Annotated[str | None, typer.Option("--topic", "-t", metavar="NAME", help="Only this topic.", show_default=False)]


@app.command("list")
def list_command(
    state: Annotated[str | None, typer.Option("--state", help="Only those in this state, for instance Ongoing.")] = None,
    producer_id: Annotated[int | None, typer.Option("--producer-id", help="Only the one of this producer.", show_default=False)] = None,
    as_json: Json = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    command_config: CommandConfig = None,
    properties: ClientProperty = None,
) -> None:
    """List the transactional ids and what their transactions are doing."""
    where = connection(bootstrap_server, command_config, properties)
    brokers = Brokers(where, cluster_metadata(where.admin(), bootstrap_server))
    rows = brokers.transactions([] if state is None else [state], [] if producer_id is None else [producer_id])
    if as_json:
        say_json(
            [
                {
                    "transactional_id": each.transactional_id,
                    "producer_id": each.producer_id,
                    "state": each.state,
                    "coordinator": each.coordinator,
                }
                for each in rows
            ]
        )
    elif rows:
        cells = [(each.transactional_id, str(each.producer_id), each.state, each.coordinator) for each in rows]
        say(table(("transactional id", "producer", "state", "coordinator"), cells))
    else:
        say(f"No transactions on {bootstrap_server}.")


@app.command()
def describe(
    transactional_id: Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID")],
    as_json: Json = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    command_config: CommandConfig = None,
    properties: ClientProperty = None,
) -> None:
    """Show a transactional id: its producer, and the partitions that its transaction has written to."""
    where = connection(bootstrap_server, command_config, properties)
    found = Brokers(where, cluster_metadata(where.admin(), bootstrap_server)).describe(transactional_id)
    if as_json:
        say_json(_as_json(found))
        return
    say(
        f"{found.transactional_id}: {found.state}, producer {found.producer_id}, epoch {found.producer_epoch}, "
        f"coordinator {found.coordinator}, timeout {found.timeout_ms / 1000:g} s"
    )
    if found.start_ms >= 0:
        say(f"since {_seconds_since(found.start_ms):,.0f} s, in {count_of(len(found.partitions), 'partition')}")
        say()
        say(table(("topic", "partition"), found.partitions))


def _as_json(found: Described) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "coordinator": found.coordinator,
        "timeout_ms": found.timeout_ms,
        "start_ms": found.start_ms if found.start_ms >= 0 else None,
        "partitions": [{"topic": topic, "partition": partition} for topic, partition in found.partitions],
    }


def _seconds_since(milliseconds: int) -> float:
    return max(0.0, time.time() - milliseconds / 1000)


@app.command("find-hanging")
def find_hanging(
    topic: Topic = None,
    max_transaction_minutes: Annotated[
        int, typer.Option("--max-transaction-minutes", min=0, help="Younger ones may still be ended by their coordinators.")
    ] = MAX_TRANSACTION_MINUTES,
    as_json: Json = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    command_config: CommandConfig = None,
    properties: ClientProperty = None,
) -> None:
    """Find transactions that are open in a partition and that no coordinator knows of.

    Examples:

    - `ottla transactions find-hanging`
    - `ottla transactions find-hanging --topic payments`
    """
    where = connection(bootstrap_server, command_config, properties)
    metadata = cluster_metadata(where.admin(), bootstrap_server, topic)
    brokers = Brokers(where, metadata)
    chosen = metadata.topics if topic is None else {topic: metadata.topics[topic]}
    open_ones = [each for each in brokers.writers(_partitions(chosen)) if each.start_offset >= 0]
    old = [each for each in open_ones if _seconds_since(each.last_timestamp_ms) >= max_transaction_minutes * 60]
    hanging = _unknown(brokers, old)
    if as_json:
        say_json(
            [
                {
                    "topic": each.partition[0],
                    "partition": each.partition[1],
                    "producer_id": each.producer_id,
                    "producer_epoch": each.producer_epoch,
                    "start_offset": each.start_offset,
                    "seconds": int(_seconds_since(each.last_timestamp_ms)),
                }
                for each in hanging
            ]
        )
    elif hanging:
        rows = [
            (*each.partition, str(each.producer_id), each.producer_epoch, each.start_offset, int(_seconds_since(each.last_timestamp_ms)))
            for each in hanging
        ]
        say(table(("topic", "partition", "producer", "epoch", "start offset", "seconds"), rows))
        note("`ottla transactions abort TOPIC PARTITION START_OFFSET` ends one.")
    else:
        say(f"No transaction hangs; {count_of(len(open_ones), 'is', 'are')} open.")


def _partitions(topics: Any) -> list[Partition]:
    return [(name, index) for name, each in sorted(topics.items()) for index in sorted(each.partitions)]


def _unknown(brokers: Brokers, writers: list[Writer]) -> list[Writer]:
    """Those of which their producers' coordinators know nothing."""
    if not writers:
        return []
    ids = {
        each.producer_id: each.transactional_id
        for each in brokers.transactions(producer_ids=sorted({each.producer_id for each in writers}))
    }
    described = {producer_id: brokers.describe(transactional_id) for producer_id, transactional_id in ids.items()}
    return [
        each
        for each in writers
        if each.producer_id not in described
        or described[each.producer_id].producer_epoch != each.producer_epoch
        or each.partition not in described[each.producer_id].partitions
    ]


@app.command()
def abort(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    start_offset: Annotated[int, typer.Argument(metavar="START_OFFSET", min=0)],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    command_config: CommandConfig = None,
    properties: ClientProperty = None,
) -> None:
    """Abort the transaction that begins at an offset of a partition, there and nowhere else. `find-hanging` says which need it.

    Example:

    - `ottla transactions abort payments 3 1874002`
    """
    where = connection(bootstrap_server, command_config, properties)
    metadata = cluster_metadata(where.admin(), bootstrap_server, topic)
    if partition not in metadata.topics[topic].partitions:
        raise UsageError(f"topic {topic!r} has no partition {partition}, only 0 to {max(metadata.topics[topic].partitions)}")
    brokers = Brokers(where, metadata)
    found = next((each for each in brokers.writers([(topic, partition)]) if each.start_offset == start_offset), None)
    if found is None:
        raise CommandFailed(f"no transaction is open in {topic}-{partition} that begins at offset {start_offset:,}")
    brokers.abort(found)
    say(f"Aborted the transaction of producer {found.producer_id} in {topic}-{partition} from offset {start_offset:,} on.")

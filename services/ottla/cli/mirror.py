"""`ottla mirror`: what a mirror maker's workers copy, how far they are, and what an operator decides. All of it by gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ottla.cli.connection import RpcConfig, commands, pairs, rpc_tls
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.output import count_of, fields_of, say, say_json, table
from ottla.errors import ApiError, BrokerNotAvailable, RequestTimedOut

DEFAULT_RPC: Final = "localhost:9095"
TIMEOUT_SECONDS: Final = 10.0

app = commands("Look at what a mirror maker copies; make, pause, resume and repair it.")

LinkName = Annotated[str, typer.Argument(metavar="LINK", help="`A->B`, or `A-B`, which needs no quotes.")]
Rpc = Annotated[str, typer.Option("--rpc", metavar="HOST:PORT,…", envvar="OTTLA_MIRROR_RPC", help="`rpc.listener` of the workers.")]
Json = Annotated[bool, typer.Option("--json", "-J", help="One JSON document.")]
What = Annotated[str, typer.Argument(metavar="TOPIC|TOPIC-PARTITION", help="What of it; without, the whole link.", show_default=False)]


class _Answers(list[Any]):
    """What the workers answer, and what keeps the others from it."""

    def __init__(self) -> None:
        super().__init__()
        self.silent: list[str] = []

    def check(self) -> None:
        """Raises CommandFailed, when what there is has been said, if that is not all."""
        if self.silent:
            raise CommandFailed("\n".join(self.silent))


def _asked(workers: str, config: Path | None, method: str, request: Callable[[Any], Any], *, of_all: bool = True) -> _Answers:
    """What the workers answer; of the first that does, if that speaks for all.

    Raises:
        CommandFailed: none of them does, or one says no.
    """
    tls = rpc_tls(config)

    async def ask() -> _Answers:
        from ottla.rpc.channel import RpcChannel
        from ottla.rpc.v1 import mirror_pb2 as messages
        from ottla.rpc.v1 import mirror_pb2_grpc as services

        answers = _Answers()
        for target in [part.strip() for part in workers.split(",") if part.strip()]:
            channel = RpcChannel(target, tls=tls)
            try:
                stub = services.MirrorStub(channel.grpc_channel)
                answers.append(await channel.call(getattr(stub, method), request(messages), TIMEOUT_SECONDS))
            except (BrokerNotAvailable, RequestTimedOut) as error:
                answers.silent.append(f"no mirror maker answers at {target}: {str(error).removeprefix(f'{target}: ')}")
            except ApiError as error:
                raise CommandFailed(f"the mirror maker at {target}: {error}") from None
            finally:
                await channel.close()
            if answers and not of_all:
                break
        return answers

    found = asyncio.run(ask())
    if not found:
        found.check()
        raise UsageError("--rpc names no worker")
    return found


@app.command("list")
def list_links(rpc: Rpc = DEFAULT_RPC, config: RpcConfig = None, as_json: Json = False) -> None:
    """List the links: partitions by state, and how far they are behind."""
    rows: dict[str, dict[str, Any]] = {}
    answers = _asked(rpc, config, "Status", lambda messages: messages.MirrorStatusRequest())
    for answer in answers:
        for link in answer.links:
            row = rows.setdefault(
                f"{link.source}->{link.target}",
                {"slots": link.slots, "held": 0, "partitions": 0, "failed": 0, "lag": 0, "paused": list(link.paused), "failure": ""},
            )
            row["held"] += len(link.held_slots)
            row["partitions"] += len(link.partitions)
            row["failed"] += sum(partition.state == "FAILED" for partition in link.partitions)
            row["lag"] += sum(_lag(partition) for partition in link.partitions)
            row["failure"] = row["failure"] or link.failure
    heads = ("link", "slots", "partitions", "failed", "lag", "state")
    lines = [
        (name, f"{row['held']}/{row['slots']}", row["partitions"], row["failed"], row["lag"], row["failure"] or _paused(row["paused"]))
        for name, row in rows.items()
    ]
    if as_json:
        say_json([{"link": name, **row} for name, row in rows.items()])
    else:
        say(table(heads, lines) if lines else "No links.")
    answers.check()


def _lag(partition: Any) -> int:
    known = partition.next_offset >= 0 and partition.end_offset >= 0
    return max(int(partition.end_offset - partition.next_offset), 0) if known else 0


def _paused(names: list[str]) -> str:
    return "paused" if "*" in names else f"paused: {', '.join(names)}" if names else "copying"


@app.command()
def describe(link: LinkName, rpc: Rpc = DEFAULT_RPC, config: RpcConfig = None, as_json: Json = False) -> None:
    """Show each partition of a link: its state, its offsets, and the gaps; exit code 1 when one has failed."""
    answers = _asked(rpc, config, "Status", lambda messages: messages.MirrorStatusRequest(link=link))
    found = [one for answer in answers for one in answer.links]
    partitions = [partition for one in found for partition in one.partitions]
    if as_json:
        say_json(list(map(fields_of, found)))
    else:
        rows = [
            (
                f"{one.topic}-{one.partition}",
                f"{one.target_topic}-{one.partition}" if one.target_topic else None,
                one.state,
                one.next_offset if one.next_offset >= 0 else None,
                _lag(one),
                round(one.lag_seconds, 1),
                one.reason or None,
            )
            for one in sorted(partitions, key=lambda one: (one.topic, one.partition))
        ]
        say(table(("partition", "target", "state", "next offset", "lag", "lag seconds", "reason"), rows) if rows else "No partitions here.")
        for one in found:
            for gap in one.gaps:
                say(f"gap: {gap.topic}-{gap.partition}, offsets {gap.offset} to {gap.next_offset}: {gap.cause}")
    failures = [one.failure for one in found if one.failure]
    failed = sum(one.state == "FAILED" for one in partitions)
    if failures or failed:
        raise CommandFailed(failures[0] if failures else f"{count_of(failed, 'partition')} failed")
    answers.check()


@app.command()
def pause(link: LinkName, what: What = "*", rpc: Rpc = DEFAULT_RPC, config: RpcConfig = None) -> None:
    """Copy no more of a link, a topic or a partition, at all workers.

    Example: `ottla mirror pause A-B clicks-3`
    """
    (answer,) = _asked(rpc, config, "Pause", lambda messages: messages.MirrorPauseRequest(link=link, name=what), of_all=False)
    say(f"{link} is {_paused(list(answer.paused))}")


@app.command()
def resume(link: LinkName, what: What = "*", rpc: Rpc = DEFAULT_RPC, config: RpcConfig = None) -> None:
    """Copy on where it was paused: a topic with its partitions, or without a name everything of the link."""
    (answer,) = _asked(rpc, config, "Resume", lambda messages: messages.MirrorResumeRequest(link=link, name=what), of_all=False)
    say(f"{link} is {_paused(list(answer.paused))}")


@app.command()
def offsets(
    group: Annotated[str, typer.Option("--group", "-g", help="A consumer group of the source.")],
    link: Annotated[str, typer.Argument(metavar="[LINK]", help="`A->B`, or `A-B`, which needs no quotes.")] = "",
    target: Annotated[str, typer.Option("--to", metavar="B", help="Instead of a link: all links into this cluster.")] = "",
    rpc: Rpc = DEFAULT_RPC,
    config: RpcConfig = None,
    as_json: Json = False,
) -> None:
    """Show where a group of the source is in the target: exactly, by the map of the link."""
    if bool(link) == bool(target):
        raise UsageError("name a link, or the cluster to which links copy: --to")
    links = [link] if link else _links_into(target, rpc, config)
    answers = {name: _asked(rpc, config, "Offsets", partial(_offsets_request, name, group)) for name in links}
    rows = sorted(
        (name, one.topic, one.partition, one.source_offset, one.target_offset)
        for name, found in answers.items()
        for answer in found
        for one in answer.offsets
    )
    heads = ("link", "topic", "partition", "source offset", "target offset")
    if as_json:
        say_json([{head.replace(" ", "_"): value for head, value in zip(heads, row, strict=True)} for row in rows])
    else:
        say(table(heads, rows) if rows else f"Nothing of {group} can be translated here.")
    for found in answers.values():
        found.check()


def _offsets_request(link: str, group: str, messages: Any) -> Any:
    return messages.MirrorOffsetsRequest(link=link, group=group)


def _links_into(target: str, rpc: str, config: Path | None) -> list[str]:
    statuses = _asked(rpc, config, "Status", lambda messages: messages.MirrorStatusRequest())
    links = sorted({f"{link.source}->{link.target}" for answer in statuses for link in answer.links if link.target == target})
    if not links:
        raise CommandFailed(f"no link copies to {target}")
    return links


@app.command()
def repair(
    link: LinkName,
    partition: Annotated[str, typer.Argument(metavar="TOPIC-PARTITION")],
    accept_gap: Annotated[
        bool, typer.Option("--accept-gap", help="Go on behind what the source has lost; the map says what that was.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Copy it again from the source's first record on; the copies before stay in front of these.")
    ] = False,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Delete all records of the target's partition, no matter who wrote them, and copy it again.")
    ] = False,
    rpc: Rpc = DEFAULT_RPC,
    config: RpcConfig = None,
) -> None:
    """Have a partition that failed go on, or any partition begin again. The link's map has a gap record of what was lost, or copied twice.

    Examples:

    - `ottla mirror repair A-B clicks-3 --accept-gap`
    - `ottla mirror repair A-B clicks-3 --truncate`
    """
    topic, dash, number = partition.rpartition("-")
    if not dash or not number.isdecimal() or len(number) > 9:
        raise UsageError(f"{partition!r} is not of the form topic-3")
    ways = [name for name, is_asked in (("ACCEPT_GAP", accept_gap), ("RESTART", restart), ("TRUNCATE", truncate)) if is_asked]
    if len(ways) != 1:
        raise UsageError("what its source has lost may be gone for good; say what is to be done: --accept-gap, --restart or --truncate")

    def request(messages: Any) -> Any:
        return messages.MirrorRepairRequest(link=link, topic=topic, partition=int(number), how=ways[0])

    answers = _asked(rpc, config, "Repair", request)
    if not any(answer.is_held for answer in answers):
        answers.check()
        raise CommandFailed(f"{partition} is copied by none of these workers")
    say(f"{partition} is tried again" if accept_gap else f"{partition} begins again")


@app.command()
def create(
    link: LinkName,
    configs: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="A setting of the link, as in the file behind `A->B.`; may be repeated."),
    ] = None,
    rpc: Rpc = DEFAULT_RPC,
    config: RpcConfig = None,
) -> None:
    """Make a link between two clusters of the workers' file, at all workers that share its zookeeper.connect.

    Example: `ottla mirror create A-B --config topics=clicks,views --config naming=identity`
    """
    settings = pairs(configs, "--config")
    _asked(rpc, config, "Create", lambda messages: messages.MirrorCreateRequest(link=link, settings=settings), of_all=False)
    say(f"{link} is made")


@app.command()
def delete(link: LinkName, rpc: Rpc = DEFAULT_RPC, config: RpcConfig = None) -> None:
    """End a link that `create` has made. What it has copied stays, and so does its map: made again, it continues where it was."""
    _asked(rpc, config, "Delete", lambda messages: messages.MirrorDeleteRequest(link=link), of_all=False)
    say(f"{link} is deleted")

"""`ottla replay`: a stretch of a topic once more, into another topic or to its own end."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from ottla.cli.broker_call import security_for
from ottla.cli.connection import Connection, connects
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.offsets import timestamp_ms
from ottla.cli.output import bytes_of, count_of, say


@connects
def replay(
    where: Connection,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What to read.")],
    since: Annotated[str, typer.Option("--from", metavar="TIME", help="From then on: ISO 8601, or milliseconds since 1970.")],
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Until then; by default until now.", show_default=False)] = None,
    into: Annotated[
        str | None,
        typer.Option(
            "--into", metavar="TOPIC", help="Where to write; made if it is not there. By default the topic itself.", show_default=False
        ),
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            "--speed", help="1 is the pace at which it was written, 10 ten times that. By default as fast as it goes.", show_default=False
        ),
    ] = None,
    transactional_id: Annotated[
        str | None,
        typer.Option("--transactional-id", metavar="ID", help="One transaction: readers see all of it or nothing.", show_default=False),
    ] = None,
) -> None:
    """Write a stretch of a topic once more: whole batches, copied as they are, each partition to the one of the same number.

    To have a group read a stretch again, set it back instead: `ottla groups reset-offsets`.

    Examples:

    - `ottla replay clicks --from 2026-01-31T08:00 --to 2026-01-31T09:00 --into clicks-again`
    - `ottla replay clicks --from 2026-01-31T08:00 --into test --speed 10`
    """
    from ottla.client.replaying import Replayed
    from ottla.client.replaying import replay as replayed
    from ottla.errors import OttlaError
    from ottla.wire.cluster import Cluster, ClusterSettings

    if speed is not None and not speed > 0:
        raise UsageError("--speed is above 0")
    if "" in (into, transactional_id):  # as a script's variable may be; without a name it is the topic itself that is written to
        raise UsageError(f"{'--into' if into == '' else '--transactional-id'} is empty")
    from_ms, to_ms = timestamp_ms(since), None if until is None else timestamp_ms(until)
    settings = ClusterSettings(security=security_for(where.properties))
    where.must_listen()

    async def run() -> Replayed:
        async with Cluster(where.addresses, settings) as cluster:
            return await replayed(cluster, topic, into or topic, from_ms, to_ms, speed=speed, transactional_id=transactional_id)

    try:
        done = asyncio.run(run())
    except ExceptionGroup as errors:
        raise CommandFailed(f"{topic} was not replayed: {errors.exceptions[0]}") from None
    except (OttlaError, OSError) as error:
        raise CommandFailed(f"{topic} was not replayed: {error}") from None
    what = f"{count_of(done.records, 'message')} in {count_of(done.batches, 'batch', 'batches')}"
    say(f"Wrote {what} ({bytes_of(done.size)}) to {into or topic!r}.")

"""`ottla configs`: what a topic, a broker, all brokers or a broker's loggers are configured with, and changing it while they run.

Asked through `ottla.wire`, as librdkafka has no way to name all brokers at once, nor loggers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from ottla.cli.broker_call import security_for
from ottla.cli.connection import Connection, Json, commands, connects, pairs
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.output import say, say_json, table

if TYPE_CHECKING:
    from ottla.wire.admin import ConfigResource
    from ottla.wire.cluster import Cluster

T = TypeVar("T")

app = commands("Show and change what topics, brokers and loggers are configured with.")


class Kind(Enum):
    """What has settings, as a person types it."""

    TOPIC = "topic"
    BROKER = "broker"
    BROKER_LOGGER = "broker-logger"


KindArgument = Annotated[Kind, typer.Argument(metavar="KIND", help="topic, broker or broker-logger.")]
NameArgument = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="A topic's name or a broker's id. Without one, `broker` means all brokers.", show_default=False),
]
SOURCES: Final = {
    "TOPIC": "topic",
    "DYNAMIC_BROKER": "this broker, at run time",
    "DYNAMIC_DEFAULT_BROKER": "all brokers, at run time",
    "STATIC_BROKER": "the broker's file",
    "DEFAULT": "default",
    "DYNAMIC_BROKER_LOGGER": "this logger",
    "UNKNOWN": "unknown",
}


@app.command()
@connects
def describe(
    where: Connection,
    kind: KindArgument,
    name: NameArgument = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also settings that have their default.")] = False,
    as_json: Json = False,
) -> None:
    """Show settings with their value and where it comes from.

    Examples:

    - `ottla configs describe topic clicks --all`
    - `ottla configs describe broker 1`
    - `ottla configs describe broker`, what was changed for all brokers at run time
    """
    from ottla.wire.admin import ConfigSource, describe_configs

    resource = _resource(kind, name)

    async def ask(cluster: Cluster) -> dict[str, tuple[str | None, str, bool, bool]]:
        found = (await describe_configs(cluster, [resource]))[resource]
        return {
            key: (entry.value, entry.source.name, entry.is_read_only, entry.is_sensitive)
            for key, entry in sorted(found.items())
            if everything or entry.source is not ConfigSource.DEFAULT
        }

    settings = asked(where, _subject(kind, name), ask)
    if as_json:
        say_json(
            [
                {"name": key, "value": value, "source": source, "is_read_only": is_read_only, "is_sensitive": is_sensitive}
                for key, (value, source, is_read_only, is_sensitive) in settings.items()
            ]
        )
    elif settings:
        rows = [
            (key, "(hidden)" if is_sensitive else value, SOURCES[source], is_read_only)
            for key, (value, source, is_read_only, is_sensitive) in settings.items()
        ]
        say(table(("name", "value", "from", "read-only"), rows))
    else:
        say(f"{_subject(kind, name)}: nothing is set; --all shows the defaults.")


@app.command()
@connects
def alter(
    where: Connection,
    kind: KindArgument,
    name: NameArgument = None,
    configs: Annotated[list[str] | None, typer.Option("--config", "-c", metavar="KEY=VALUE", help="Set it; may be repeated.")] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config-file", metavar="FILE", help="Set what a properties file has; --config is over it.")
    ] = None,
    delete_configs: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="KEY", help="Back to what holds without it; may be repeated.")
    ] = None,
    validate_only: Annotated[bool, typer.Option("--validate-only", help="Check the change and do not make it.")] = False,
) -> None:
    """Set or unset settings at once, without a restart. Settings that are not named stay as they are.

    Examples:

    - `ottla configs alter topic clicks --config retention.ms=86400000`
    - `ottla configs alter broker --config log.cleaner.threads=2`, for all brokers
    - `ottla configs alter broker-logger 1 --config ottla.broker=DEBUG`, until that broker stops
    """
    from ottla.wire.admin import ConfigResource, alter_configs, describe_cluster, describe_configs

    given = pairs(configs, "--config")
    if config_file is not None:
        from ottla.config.properties import load

        given = {**load(config_file), **given}
    changes: dict[str, str | None] = {**given, **dict.fromkeys(delete_configs or ())}
    if not changes:
        raise UsageError("nothing to alter: give --config, --config-file or --delete-config")
    if both := sorted(given.keys() & set(delete_configs or ())):
        raise UsageError(f"{both[0]} is both set and deleted")
    resource = _resource(kind, name)

    async def change(cluster: Cluster) -> None:
        if delete_configs:
            described = [resource]
            if not name:  # of all brokers only what is set is described; one of them has the other names
                brokers = (await describe_cluster(cluster)).brokers
                described += [ConfigResource(resource.resource_type, str(broker.broker_id)) for broker in brokers[:1]]
            found = await describe_configs(cluster, described)
            check_deleted(delete_configs, {key for settings in found.values() for key in settings})
        for error in (await alter_configs(cluster, {resource: changes}, validate_only=validate_only)).values():
            raise error

    asked(where, _subject(kind, name), change)
    say(f"{_subject(kind, name)}: {'the change is valid' if validate_only else 'altered'}.")


def check_deleted(names: Sequence[str], known: Collection[str]) -> None:
    """Refuses to unset what there is not, as Kafka's tool does: a broker takes it for done.

    Raises:
        CommandFailed: with the nearest name that there is.
    """
    for name in names:
        if name not in known:
            from ottla.config.settings import unknown_setting

            raise CommandFailed(unknown_setting(name, known))


def _resource(kind: Kind, name: str | None) -> ConfigResource:
    from ottla.wire.admin import ConfigResource, ResourceType

    if name == "":  # as a script's variable may be
        raise UsageError("NAME is empty; leave it out to mean all brokers")
    if kind is not Kind.BROKER and not name:
        raise UsageError(f"which {kind.value}? give {'its name' if kind is Kind.TOPIC else 'the id of its broker'}")
    if kind is not Kind.TOPIC and name and not (name.isascii() and name.isdecimal() and len(name) < 19):
        raise UsageError(f"a broker has a number, and {name[:20]!r} is none")
    return ConfigResource(ResourceType[kind.name], name or "")


def _subject(kind: Kind, name: str | None) -> str:
    match kind:
        case Kind.TOPIC:
            return f"topic {name!r}"
        case Kind.BROKER:
            return f"broker {name}" if name else "all brokers"
        case Kind.BROKER_LOGGER:
            return f"loggers of broker {name}"


def asked(where: Connection, subject: str, ask: Callable[[Cluster], Awaitable[T]]) -> T:
    """The answer of the cluster; a refusal is one sentence."""
    from ottla.cli.connection import ANSWER_SECONDS
    from ottla.errors import OttlaError
    from ottla.wire.cluster import Cluster, ClusterSettings

    security = security_for(where.properties)
    where.must_listen()
    settings = ClusterSettings(security=security, request_timeout_seconds=ANSWER_SECONDS, api_timeout_seconds=ANSWER_SECONDS)

    async def run() -> T:
        async with Cluster(where.addresses, settings) as cluster:
            return await ask(cluster)

    try:
        return asyncio.run(run())
    except (OttlaError, OSError) as error:
        raise CommandFailed(f"{subject}: {error}") from None

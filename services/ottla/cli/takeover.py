"""`ottla takeover check`: whether a Kafka cluster on ZooKeeper can be taken over as it stands, or given back. It changes nothing.

Exit code 0: nothing stops it. 1: something does. 2: it could not be looked at.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer

from ottla.cli.connection import commands
from ottla.cli.errors import CommandFailed
from ottla.cli.output import bytes_of, count_of, say, say_json, table
from ottla.errors import ConfigurationError, OttlaError

if TYPE_CHECKING:
    from ottla.config.broker import BrokerSettings
    from ottla.coordination.interface import Coordination
    from ottla.takeover.findings import Finding
    from ottla.takeover.found import FoundBroker, FoundCluster

_WIDTH: Final = 120
# What a look needs; with these alone it continues where the settings as a whole contradict each other.
_NEEDED: Final = ("broker.id", "log.dir", "log.dirs", "takeover.accept", "inter.broker.protocol.version", "delete.topic.enable")

app = commands("Take over a Kafka cluster on ZooKeeper as it stands, or give it back.")


class CannotLook(CommandFailed):
    """ZooKeeper does not answer, or a file of settings is of no use."""

    exit_code: ClassVar[int] = 2


@app.callback()
def _group() -> None:
    """Keeps `check` a command of its own: a Typer app with one command would become that command."""


@app.command()
def check(
    configs: Annotated[
        list[Path],
        typer.Option("--config", "-c", metavar="FILE", help="A broker's server.properties; once for each broker, or one of them."),
    ],
    back: Annotated[bool, typer.Option("--back", help="Look at the way back to Kafka instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", "-J", help="One JSON document.")] = False,
) -> None:
    """Say what stops a takeover, what changes with it and what is taken over. Changes nothing, and may be run while Kafka runs.

    Reads the znodes under `zookeeper.connect` and the log directories of the brokers whose files are given, as far as they are on this
    machine. `ottla broker` does the same at its first start where Kafka wrote last. Exit code 1: something stops it; 2: it could not look.

    Examples:

    - `ottla takeover check --config server-1.properties --config server-2.properties`
    - `ottla takeover check --config server.properties --json`
    - `ottla takeover check --config server.properties --back`
    """
    from ottla.takeover import findings

    brokers = [_read(path) for path in configs]
    logging.basicConfig(level=logging.CRITICAL)  # kazoo would log each attempt to connect
    cluster = asyncio.run(_look(brokers))
    judged = tuple(findings.way_back(cluster, brokers)) if back else findings.takeover(cluster, brokers)
    stopped = findings.stops(judged)
    if as_json:
        say_json(_document(cluster, brokers, judged))
    else:
        _print(cluster, brokers, judged)
    if stopped:
        what = "the way back" if back else "a takeover"
        raise CommandFailed(f"{count_of(len(stopped), 'finding')} {'stops' if len(stopped) == 1 else 'stop'} {what}")


def _read(path: Path) -> FoundBroker:
    """A broker by its file. What Ottla refuses of it is a finding, and the rest is what is gone by."""
    from ottla.config.broker import BrokerSettings
    from ottla.config.providers import load
    from ottla.config.refused import why_refused
    from ottla.takeover.directories import read_directories
    from ottla.takeover.found import FoundBroker

    try:
        properties = load(path)
        accepted = {name.strip() for name in properties.get("takeover.accept", "").split(",")}
        refused: dict[str, str] = {}
        usable: dict[str, str] = {}
        for name, text in properties.items():
            try:
                BrokerSettings.definition_of(name)[1].parse(text)
                usable[name] = text
            except ConfigurationError as error:
                if name in accepted and why_refused(name):
                    usable[name] = text
                elif name == "zookeeper.connect":  # where there is nothing to be looked at
                    raise ConfigurationError(f"{properties.place_of(name)}: {error}") from error
                else:
                    refused[name] = str(error)
        settings = _settings(usable, refused)
    except ConfigurationError as error:
        raise CannotLook(str(error)) from error
    return FoundBroker(str(path), settings, read_directories(settings.log_directories), refused)


def _settings(usable: dict[str, str], refused: dict[str, str]) -> BrokerSettings:
    from ottla.config.broker import BrokerSettings

    try:
        return BrokerSettings.from_properties(usable)
    except ConfigurationError as error:
        refused["settings"] = str(error)
        needed = {name: text for name, text in usable.items() if name in _NEEDED or name.startswith("zookeeper.")}
        return BrokerSettings.from_properties(needed)


async def _look(brokers: list[FoundBroker]) -> FoundCluster:
    from ottla.takeover.cluster import read_cluster

    connects = {_place(broker.settings.zookeeper_connect): str(broker.settings.zookeeper_connect) for broker in brokers}
    if len(connects) > 1:
        raise CannotLook(f"the files are of several clusters, as zookeeper.connect says: {', '.join(sorted(connects.values()))}")
    try:
        coordination = await open_coordination(brokers[0].settings)
        try:
            cluster = await read_cluster(coordination)
        finally:
            await coordination.close()
    except OttlaError as error:
        raise CannotLook(str(error)) from error
    used = any(directory.is_used for broker in brokers for directory in broker.directories)
    if not (cluster.cluster_id or cluster.topics or cluster.damaged or used):
        where = brokers[0].settings.zookeeper_connect
        raise CannotLook(f"{where}: there is no cluster here; is the chroot the one that Kafka has?")
    return cluster


def _place(connect: str | None) -> object:
    """Which servers, in any order, and under which path."""
    from ottla.config.connect_string import ConnectString

    if connect is None:
        return None
    parsed = ConnectString.parse(connect)
    return frozenset(parsed.servers), parsed.chroot


async def open_coordination(settings: BrokerSettings) -> Coordination:
    """A session that makes nothing. Raises ConfigurationError without `zookeeper.connect`, and CoordinationError."""
    from ottla.coordination.sessions import zookeeper_options
    from ottla.coordination.zookeeper import open_session

    if settings.zookeeper_connect is None:
        raise ConfigurationError("zookeeper.connect is not set: a Kafka cluster on ZooKeeper has it in server.properties")
    return await open_session(dataclasses.replace(zookeeper_options(settings), makes_chroot=False))


def _not_looked_at(cluster: FoundCluster, brokers: list[FoundBroker]) -> list[int]:
    known = {int(broker_id) for topic in cluster.topics.values() for replicas in topic.assignment.replicas for broker_id in replicas}
    return sorted(known - {broker.broker_id for broker in brokers if broker.broker_id is not None})


def _document(cluster: FoundCluster, brokers: list[FoundBroker], judged: tuple[Finding, ...]) -> dict[str, Any]:
    from ottla.takeover import findings

    return {
        "cluster_id": cluster.cluster_id,
        "controller_epoch": cluster.controller_epoch,
        "brokers": [
            {
                "broker_id": broker.broker_id,
                "config": broker.source,
                "directories": [
                    {
                        "path": str(directory.path),
                        "stopped_cleanly": directory.is_clean,
                        "logs": len(directory.logs),
                        "bytes": sum(log.size for log in directory.logs.values()),
                    }
                    for directory in broker.directories
                ],
            }
            for broker in brokers
        ],
        "brokers_not_looked_at": _not_looked_at(cluster, brokers),
        "topics": [
            {
                "name": name,
                "partitions": len(topic.assignment.replicas),
                "replication_factor": len(topic.assignment.replicas[0]) if topic.assignment.replicas else 0,
                "bytes": _size_of(name, brokers),
                "settings": dict(topic.settings),
            }
            for name, topic in sorted(cluster.topics.items())
        ],
        "findings": [
            {
                "severity": finding.severity.value,
                "name": finding.name,
                "what": finding.what,
                "where": list(finding.where),
                "remedy": finding.remedy,
                "may_be_accepted": finding.may_be_accepted,
            }
            for finding in judged
        ],
        "stops": bool(findings.stops(judged)),
    }


def _size_of(topic: str, brokers: list[FoundBroker]) -> int:
    return sum(log.size for broker in brokers for key, log in broker.logs.items() if key.topic == topic)


def _print(cluster: FoundCluster, brokers: list[FoundBroker], judged: tuple[Finding, ...]) -> None:
    from ottla.takeover.findings import Severity

    say(f"cluster {cluster.cluster_id or 'without an id'}, controller epoch {cluster.controller_epoch}")
    say()
    document = _document(cluster, brokers, judged)
    rows = [
        (
            broker["broker_id"],
            directory["path"],
            "clean" if directory["stopped_cleanly"] else "unclean",
            directory["logs"],
            bytes_of(directory["bytes"]),
        )
        for broker in document["brokers"]
        for directory in broker["directories"]
    ]
    say(table(("broker", "directory", "last stop", "logs", "size"), rows))
    if document["brokers_not_looked_at"]:
        listed = ", ".join(map(str, document["brokers_not_looked_at"]))
        say(f"not looked at: broker {listed}; give its --config too, or run the command on its machine")
    if document["topics"]:
        say()
        names = ("name", "partitions", "replication_factor")
        rows = [(*(topic[name] for name in names), bytes_of(topic["bytes"]), len(topic["settings"])) for topic in document["topics"]]
        say(table(("topic", "partitions", "replicas", "size here", "settings"), rows))
    for severity in Severity:
        of_this = [finding for finding in judged if finding.severity is severity]
        if of_this:
            say()
            say(severity.value.upper())
        for finding in of_this:
            _print_finding(finding)
    if not judged:
        say()
        say("nothing stands in the way")


def _print_finding(finding: Finding) -> None:
    from ottla.takeover.findings import Severity, named

    say(textwrap.fill(f"{finding.name}: {finding.what}", _WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False))
    if finding.where:
        say(f"      at {named(finding.where)}")
    if finding.remedy:
        say(textwrap.fill(finding.remedy, _WIDTH, initial_indent="      ", subsequent_indent="      ", break_on_hyphens=False))
    if finding.may_be_accepted and finding.severity is Severity.STOPS:
        say(f"      to give it up: takeover.accept={finding.name}")

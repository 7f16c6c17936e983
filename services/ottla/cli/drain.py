"""`ottla broker drain` and `undrain`: a broker that runs hands over what it leads, as it does before it stops, and comes back.

The request goes by gRPC to its control endpoint, which it has registered in ZooKeeper.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ottla.cli.connection import DEFAULT_BOOTSTRAP_SERVER, Connection, cluster_metadata, pairs
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.output import count_of, say
from ottla.model import BrokerId, BrokerRegistration

if TYPE_CHECKING:
    from ottla.config.broker import BrokerSettings

_POLL_SECONDS: Final = 0.2
# Where to find the broker: no answer of Kafka's protocol has its control endpoint.
_NOWHERE: Final = (
    "say where the broker can be reached: --zookeeper HOST:PORT, --config FILE (of any broker of the cluster), or --control HOST:PORT. "
    "A cluster of `ottla dev` is one process and cannot be drained; there `ottla reassign` and `ottla elect-leaders preferred` "
    "move what a broker leads"
)


BrokerArgument = Annotated[int, typer.Argument(metavar="ID", min=0, help="The broker.")]
ZooKeeperOption = Annotated[
    str | None, typer.Option("--zookeeper", metavar="HOST:PORT,…", help="Where the broker is registered; with the chroot, if any.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", exists=True, dir_okay=False, help="A broker's properties: its zookeeper.connect, its TLS."
    ),
]
OverrideOption = Annotated[
    list[str] | None, typer.Option("--override", "-X", metavar="KEY=VALUE", help="Over the file's value; may be repeated.")
]
ControlOption = Annotated[
    str | None, typer.Option("--control", metavar="HOST:PORT", help="The broker's control endpoint, instead of looking for it.")
]


def drain(
    broker_id: BrokerArgument,
    zookeeper: ZooKeeperOption = None,
    config: ConfigOption = None,
    overrides: OverrideOption = None,
    control: ControlOption = None,
    bootstrap_server: Annotated[
        str | None,
        typer.Option("--bootstrap-server", "-b", metavar="HOST:PORT", help="Afterwards wait until clients see it lead nothing."),
    ] = None,
    timeout: Annotated[int, typer.Option("--timeout", min=1, help="Seconds to wait for that.")] = 30,
) -> None:
    """Make a broker hand over what it leads to other replicas in sync, and continue running.

    For work on its machine, or before it is stopped at a moment of your choosing. It keeps what no other broker can lead. It is in
    no ISR that has another member either, so there is one copy less, and it is not ready (`/readyz`, gRPC's health service).
    That stays so until `ottla broker undrain`, or until it is started again.

    Examples:

    - `ottla broker drain 2 --zookeeper localhost:2181`
    - `ottla broker drain 2 --config server.properties -b localhost:9092`
    """
    _tell(broker_id, zookeeper, config, overrides, control, is_end=False)
    say(f"Broker {broker_id} hands over what it leads.")
    if bootstrap_server is not None:
        _wait_until_seen(bootstrap_server, broker_id, timeout)


def undrain(
    broker_id: BrokerArgument,
    zookeeper: ZooKeeperOption = None,
    config: ConfigOption = None,
    overrides: OverrideOption = None,
    control: ControlOption = None,
) -> None:
    """Have a broker that was drained follow, catch up and lead again.

    It gets its leaderships back by `ottla elect-leaders preferred`, and where `auto.leader.rebalance.enable` is on after a
    while by itself.

    Examples:

    - `ottla broker undrain 2 --zookeeper localhost:2181`
    """
    _tell(broker_id, zookeeper, config, overrides, control, is_end=True)
    say(f"Broker {broker_id} takes part again.")


def _tell(
    broker_id: int, zookeeper: str | None, config: Path | None, overrides: list[str] | None, control: str | None, *, is_end: bool
) -> None:
    if zookeeper is None and config is None and control is None:
        raise UsageError(_NOWHERE)
    settings = _settings(config, pairs(overrides, "--override"), zookeeper)
    if control is None and settings.zookeeper_connect is None:
        raise UsageError(f"{config} has no zookeeper.connect; {_NOWHERE}")
    import asyncio
    import logging

    # What goes wrong on the way comes as an error; kazoo would log each attempt to connect besides.
    logging.basicConfig(level=logging.CRITICAL)
    asyncio.run(_call(settings, BrokerId(broker_id), control, is_end))


def _settings(config: Path | None, overrides: dict[str, str], zookeeper: str | None) -> BrokerSettings:
    """How brokers reach ZooKeeper and each other; everything else in the file does not matter here."""
    from ottla.config.broker import BrokerSettings
    from ottla.config.environment import Placed, layered
    from ottla.config.properties import Properties
    from ottla.config.providers import load

    layers: list[Properties] = [
        Placed({"zookeeper.connection.timeout.ms": "10000"}, {"zookeeper.connection.timeout.ms": ""}, "")
    ]  # a person waits
    if config is not None:
        layers.append(load(config))
    layers.append(Placed(overrides, dict.fromkeys(overrides, "--override"), "--override"))
    if zookeeper is not None:
        layers.append(Placed({"zookeeper.connect": zookeeper}, {"zookeeper.connect": "--zookeeper"}, "--zookeeper"))
    return BrokerSettings.from_properties(layered(BrokerSettings, layers))


async def _call(settings: BrokerSettings, broker_id: BrokerId, control: str | None, is_end: bool) -> None:
    from ottla.errors import ApiError
    from ottla.interbroker.calls import Outsider
    from ottla.interbroker.rpc import GrpcControl

    # In plain text a broker answers those only who can read what it has registered.
    if control is not None and (settings.zookeeper_connect is None or settings.control_address.is_tls):
        registration = BrokerRegistration(broker_id, (), control_endpoint=control)
    else:
        registration = await _registered(settings, broker_id)
        registration = registration if control is None else replace(registration, control_endpoint=control)
    transport = GrpcControl(settings, "", Outsider())
    try:
        broker = transport.broker(registration)
        await (broker.undrain() if is_end else broker.drain())
    except ApiError as error:
        what = "does not take part again" if is_end else "was not drained"
        raise CommandFailed(f"broker {broker_id} at {registration.control_endpoint} {what}: {error}") from None
    finally:
        await transport.close()


async def _registered(settings: BrokerSettings, broker_id: BrokerId) -> BrokerRegistration:
    """What the broker says of itself in ZooKeeper."""
    from ottla.coordination import znodes
    from ottla.coordination.errors import CoordinationError, NoNode
    from ottla.coordination.sessions import zookeeper_options
    from ottla.coordination.zookeeper import open_session

    where, path = settings.zookeeper_connect, znodes.BROKER.path(broker_id)
    try:
        session = await open_session(replace(zookeeper_options(settings), makes_chroot=False))
        try:
            data, stat = await session.get(path)
        finally:
            await session.close()
    except NoNode:
        raise CommandFailed(
            f"broker {broker_id} is not registered in ZooKeeper at {where}: it does not run, or in another cluster"
        ) from None
    except CoordinationError as error:
        raise CommandFailed(f"ZooKeeper at {where}: {error}") from None
    registration = znodes.decode_broker(path, data, stat.czxid)
    if registration.control_endpoint is None:
        raise CommandFailed(f"broker {broker_id} has registered no control endpoint: it is Kafka's, or alone in its cluster")
    return registration


def _wait_until_seen(bootstrap_server: str, broker_id: int, timeout_seconds: int) -> None:
    import time

    admin = Connection(bootstrap_server or DEFAULT_BOOTSTRAP_SERVER).admin()
    deadline = time.monotonic() + timeout_seconds
    while True:
        metadata = cluster_metadata(admin, bootstrap_server)
        partitions = ((name, partition) for name, topic in metadata.topics.items() for partition in topic.partitions.values())
        led = [f"{name}-{partition.id}" for name, partition in partitions if partition.leader == broker_id]
        if not led:
            say(f"Broker {broker_id} leads nothing any more.")
            return
        if time.monotonic() > deadline:
            shown = ", ".join(sorted(led)[:5]) + (", …" if len(led) > 5 else "")
            raise CommandFailed(f"broker {broker_id} still leads {count_of(len(led), 'partition')} ({shown}): no other replica is in sync")
        time.sleep(_POLL_SECONDS)

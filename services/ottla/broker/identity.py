"""Which broker this is, when its configuration does not say: the one of its log directories, or a new one.

An id is made once (`broker.id.generation.enable`): it goes into `meta.properties` when the directories are opened, and
comes from there ever after.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
from typing import Final

from ottla.broker.controller.membership import generate_broker_id
from ottla.config.broker import BrokerSettings
from ottla.coordination.interface import Coordination
from ottla.errors import ConfigurationError
from ottla.lifecycle import Offload
from ottla.storage.meta_properties import read_meta_properties

log: Final = logging.getLogger(__name__)

LOCAL: Final = "localhost"


async def with_broker_id(settings: BrokerSettings, coordination: Coordination, offload: Offload) -> BrokerSettings:
    """The settings with an id. Raises ConfigurationError when the log directories are of several brokers."""
    if settings.broker_id >= 0:
        return settings
    recorded: dict[int, str] = {}
    for directory in settings.log_directories:
        try:
            meta = await offload(read_meta_properties, directory)
        except OSError as error:
            log.warning("%s cannot be read, so its broker.id is not used: %s", directory, error)
            continue
        if meta is not None and meta.broker_id is not None:
            recorded[meta.broker_id] = str(directory)
    if len(recorded) > 1:
        listed = ", ".join(f"{directory} is broker {broker_id}'s" for broker_id, directory in sorted(recorded.items()))
        raise ConfigurationError(f"the log directories belong to several brokers: {listed}")
    if recorded:
        broker_id = next(iter(recorded))
    else:
        broker_id = await generate_broker_id(coordination, settings.reserved_broker_max_id)
        log.info("generated broker id %d", broker_id)
    # As if none had been given: a given one must lie below those that are made.
    return dataclasses.replace(settings, broker_id=broker_id, given=settings.given - {"broker.id"})


# What a machine is called by others: what a broker advertises of a listener on every interface.
#
# As Kafka with `InetAddress.getLocalHost().getCanonicalHostName()`: the name that the machine has, with its domain where that
# can be found out. Kafka's broker does not start where the name leads nowhere; ours says so, and can be reached from the same
# machine.


def canonical_host_name() -> str:
    """This machine's name. Asks the resolver, so it is nothing for an event loop."""
    name = socket.getfqdn()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        log.warning(
            "the host name %s cannot be resolved (%s); advertising %s to clients; set advertised.listeners to advertise another address",
            name,
            error,
            LOCAL,
        )
        return LOCAL
    return name

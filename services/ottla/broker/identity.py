"""Which broker this is, when its configuration does not say: the one of its log directories, or a new one.

An id is made once (`broker.id.generation.enable`): it goes into `meta.properties` when the directories are opened, and
comes from there ever after.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Final

from ottla.broker.controller.membership import generate_broker_id
from ottla.config.broker import BrokerSettings
from ottla.coordination.interface import Coordination
from ottla.errors import ConfigurationError
from ottla.lifecycle import Offload
from ottla.storage.meta_properties import read_meta_properties

log: Final = logging.getLogger(__name__)


async def with_broker_id(settings: BrokerSettings, coordination: Coordination, offload: Offload) -> BrokerSettings:
    """The settings with an id. Raises ConfigurationError when the log directories are of several brokers."""
    if settings.broker_id >= 0:
        return settings
    recorded: dict[int, str] = {}
    for directory in settings.log_directories:
        try:
            meta = await offload(read_meta_properties, directory)
        except OSError as error:
            log.warning("%s: can not be read, so it does not say which broker this is: %s", directory, error)
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
        log.info("made a broker id: %d", broker_id)
    # As if nobody had given one: a given one must lie below those that are made.
    return dataclasses.replace(settings, broker_id=broker_id, given=settings.given - {"broker.id"})

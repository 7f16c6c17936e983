"""Carries out what `configs` decides: the settings of topics and brokers are altered, written and told.

Each alteration leaves a notice under `/config/changes` for brokers that listen; old ones are swept up on the way.

One operation at a time: whoever calls sees to that.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ottla.broker.controller import configs
from ottla.broker.controller.changes import BrokerConfigChanged, MetadataChange, TopicConfigChanged
from ottla.broker.controller.state import ClusterState
from ottla.broker.controller.writes import ControllerWrites
from ottla.clock import Clock
from ottla.config.topic import TopicSettings
from ottla.coordination import znodes
from ottla.coordination.interface import Coordination, Create, Delete, SetData
from ottla.errors import InvalidRequest
from ottla.model import BrokerId

log: Final = logging.getLogger(__name__)

# As Kafka: long enough for every broker to have seen a notice.
CONFIG_CHANGE_LIFETIME_MS: Final = 15 * 60 * 1000

Decide: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class ConfigOperations:
    """What a controller does with settings in its time.

    Attributes:
        state: what is known, and is changed after each write.
        coordination: for reading.
        writes: for writing, in the name of one controller epoch.
        broker_id: this broker, the only one whose settings are altered here.
        clock: says which notices are old.
        apply: told of each change.
    """

    state: ClusterState
    coordination: Coordination
    writes: ControllerWrites
    broker_id: BrokerId
    clock: Clock
    apply: Callable[[MetadataChange], Awaitable[None]]

    async def alter_topic(self, name: str, decide: Decide, validate_only: bool) -> None:
        """Gives a topic the overrides that `decide` makes of those that it has."""
        self.state.topic(name)
        overrides = dict(decide(self.state.topic_overrides[name]))
        settings = configs.checked_topic_settings(self.state.settings, overrides)
        if validate_only:
            return
        await self._write(znodes.TOPIC_CONFIG.path(name), overrides, f"topics/{name}")
        self.state.topic_overrides[name] = overrides
        log.info("topic %s: its settings are now %s", name, overrides)
        await self.apply(TopicConfigChanged(name, settings))

    async def alter_broker(self, broker_id: BrokerId | None, decide: Decide, validate_only: bool) -> None:
        """Gives this broker, or all of them, the overrides that `decide` makes of those that are there."""
        state = self.state
        if broker_id not in (None, self.broker_id):
            raise InvalidRequest(f"Unexpected broker id, expected {self.broker_id}, but received {broker_id}")
        overrides = dict(decide(state.broker_overrides.get(broker_id, {})))
        changed = {**state.broker_overrides, broker_id: overrides}
        settings = configs.checked_broker_settings(state.static_settings, changed.get(None, {}), changed.get(self.broker_id, {}))
        before = {name: state.topic_settings(name) for name in state.topics}
        after = {name: TopicSettings.of(settings, state.topic_overrides[name]) for name in state.topics}
        if validate_only:
            return
        entity = znodes.DEFAULT_ENTITY if broker_id is None else str(broker_id)
        await self._write(znodes.BROKER_CONFIG.path(entity), overrides, f"brokers/{entity}")
        state.broker_overrides, state.settings = changed, settings
        log.info("broker %s: what was changed while it runs is now %s", entity, overrides)
        await self.apply(BrokerConfigChanged(broker_id, overrides, settings))
        for name, topic_settings in after.items():
            if topic_settings != before[name]:
                await self.apply(TopicConfigChanged(name, topic_settings))

    async def remove_old_notices(self) -> None:
        """Sweeps up the notices that every broker has seen."""
        removed = []
        for name in sorted(await self.coordination.children(znodes.CONFIG_CHANGES.path())):
            path = f"{znodes.CONFIG_CHANGES.path()}/{name}"
            stat = await self.coordination.exists(path)
            if stat is None or self.clock.time_ms() - stat.ctime < CONFIG_CHANGE_LIFETIME_MS:
                break
            removed.append(Delete(path))
        if removed:
            await self.writes.write_in_parts(removed)

    async def _write(self, path: str, overrides: Mapping[str, str], entity_path: str) -> None:
        data = znodes.encode_config(overrides)
        exists = await self.coordination.exists(path) is not None
        notice = Create(znodes.CONFIG_CHANGE.path(""), znodes.encode_config_change(entity_path), sequential=True)
        await self.writes.write([SetData(path, data) if exists else Create(path, data), notice])
        await self.remove_old_notices()

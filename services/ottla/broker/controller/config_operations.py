"""Carries out what `configs` decides: the settings of topics and brokers are altered, written and told.

Each alteration leaves a notice under `/config/changes` for all brokers to read them again (`settings_watch`); old ones
are swept up on the way. Who leads a topic is looked at again, for it may be allowed an unclean leader now.

One operation at a time: whoever calls sees to that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ottla.broker.controller import configs, decisions
from ottla.broker.controller.loading import acceptable_overrides, load_all_broker_configs, load_config
from ottla.broker.controller.log_end_questions import LogEndQuestions
from ottla.broker.controller.performing import Performer
from ottla.broker.controller.state import ClusterState
from ottla.broker.controller.writes import ControllerWrites
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
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
    """What a controller does with settings in its term.

    Attributes:
        state: what is known, and is changed after each write.
        coordination: for reading.
        writes: for writing, in the name of one controller epoch.
        performer: for telling the brokers, and for what follows.
        questions: asked before a leader is chosen of those that may have lost records.
        clock: says which notices are old.
    """

    state: ClusterState
    coordination: Coordination
    writes: ControllerWrites
    performer: Performer
    questions: LogEndQuestions
    clock: Clock

    async def alter_topic(self, name: str, decide: Decide, validate_only: bool) -> None:
        """Gives a topic the overrides that `decide` makes of those that it has."""
        overrides = dict(decide(self.state.topic(name).overrides))
        configs.checked_topic_settings(self.state.settings, overrides)
        if validate_only:
            return
        await self._write(znodes.TOPIC_CONFIG.path(name), overrides, f"topics/{name}")
        log.info("topic %s: its settings are now %s", name, overrides)
        await self._take_in_topic(name, overrides)

    async def alter_broker(self, broker_id: BrokerId | None, decide: Decide, validate_only: bool) -> None:
        """Gives a broker, or all of them, the overrides that `decide` makes of those that are there."""
        overrides = dict(decide(self.state.broker_overrides.get(broker_id, {})))
        changed = {**self.state.broker_overrides, broker_id: overrides}
        # What goes with the broker's own static settings it has looked at itself; ours stand for them here, but for listeners.
        if broker_id in (None, self.state.controller_id):
            self._settings(changed, self.state.controller_id)
        else:
            comparable = {name: text for name, text in overrides.items() if name != "advertised.listeners"}
            self._settings({**changed, broker_id: comparable}, broker_id)
        if validate_only:
            return
        entity = znodes.DEFAULT_ENTITY if broker_id is None else str(broker_id)
        await self._write(znodes.BROKER_CONFIG.path(entity), overrides, f"brokers/{entity}")
        log.info("broker %s: what was changed while it runs is now %s", entity, overrides)
        await self.take_in_brokers(changed)

    async def read_again(self, entity: str) -> None:
        """Takes in what a notice of changed settings is about. Mostly it was ourselves, and nothing is new."""
        kind, _, name = entity.partition("/")
        if kind == "topics" and name in self.state.topics and not self.state.topics[name].is_deleting:
            overrides = acceptable_overrides(
                self.state.settings, name, await load_config(self.coordination, znodes.TOPIC_CONFIG.path(name))
            )
            if overrides != self.state.topics[name].overrides:
                await self._take_in_topic(name, overrides)
        elif kind == "brokers":
            changed = await load_all_broker_configs(self.coordination)
            if any(changed.get(each, {}) != self.state.broker_overrides.get(each, {}) for each in {*changed, *self.state.broker_overrides}):
                await self.take_in_brokers(changed)

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

    async def _take_in_topic(self, name: str, overrides: Mapping[str, str]) -> None:
        self.state.topics[name].overrides = overrides
        self.performer.announce_topic_configs([name])
        await self._settle([name])

    async def take_in_brokers(self, changed: Mapping[BrokerId | None, Mapping[str, str]]) -> None:
        state = self.state
        try:
            settings = self._settings(changed, state.controller_id)
        except InvalidRequest as error:
            log.error("what was changed of this broker can not be used: %s", error)
            return
        may_lead_uncleanly = settings.unclean_leader_election_enable and not state.settings.unclean_leader_election_enable
        needs_fewer = settings.min_insync_replicas < state.settings.min_insync_replicas
        state.broker_overrides, state.settings = dict(changed), settings
        if may_lead_uncleanly or needs_fewer:
            await self._settle(list(state.topics))

    async def _settle(self, names: Sequence[str]) -> None:
        """Who may lead, and who is known to have everything, follows from settings, too."""
        partitions = [key for name in names for key in self.state.topics[name].topic_partitions()]
        await self.questions.ask(decisions.log_ends_wanted(self.state, partitions))
        await self.performer.perform(decisions.topics_found(self.state, names))
        self.questions.forget()

    def _settings(self, overrides: Mapping[BrokerId | None, Mapping[str, str]], broker_id: BrokerId) -> BrokerSettings:
        return configs.checked_broker_settings(self.state.static_settings, overrides.get(None, {}), overrides.get(broker_id, {}))

    async def _write(self, path: str, overrides: Mapping[str, str], entity_path: str) -> None:
        data = znodes.encode_config(overrides)
        exists = await self.coordination.exists(path) is not None
        notice = Create(znodes.CONFIG_CHANGE.path(""), znodes.encode_config_change(entity_path), sequential=True)
        await self.writes.write([SetData(path, data) if exists else Create(path, data), notice])
        await self.remove_old_notices()

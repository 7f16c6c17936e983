"""What is set for this broker and for topics, as this broker knows it, kept fresh while it runs.

Everything is read once. From then on each change leaves a notice under `/config/changes`, whichever tool made it, and the
entity that it names is read again. The controller also says what topics set along with their partitions
(`learn_topics`), which is quicker and comes before anything that depends on it. A read may come later than that, or from a server that
is behind: what a former topic of the same name set is not taken for the one's that the controller has told of since.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from ottla.broker.controller import configs
from ottla.broker.controller.znode_reader import acceptable_overrides, load_config, load_topic_config, load_topic_overrides
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.coordination import znodes
from ottla.coordination.errors import MalformedZnode, SessionExpired
from ottla.coordination.interface import Coordination, WatchedEvent
from ottla.errors import ConfigurationError, InvalidRequest, OttlaError
from ottla.model import ZERO_TOPIC_ID, BrokerId

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicConfigChanged:
    """The topic's settings are now these, whether it or a broker's setting that it falls back to changed."""

    name: str
    settings: TopicSettings


@dataclass(frozen=True, slots=True)
class BrokerConfigChanged:
    """What was changed of this broker (or of all, when `broker_id` is None) while it runs."""

    broker_id: BrokerId | None
    overrides: Mapping[str, str]
    settings: BrokerSettings


SettingsChange: TypeAlias = TopicConfigChanged | BrokerConfigChanged


class Topics(Protocol):
    """The topics that the controller has told this broker of: `ottla.broker.metadata.MetadataCache`."""

    def topic_id(self, name: str) -> UUID | None:
        """The id of the topic that has a name."""
        ...


# Between two attempts to read what could not be read.
_PAUSE_SECONDS: Final = 1.0
_TOPICS: Final = "topics/"
_BROKERS: Final = "brokers/"


class SettingsWatch:
    """This broker's knowledge of settings.

    Args:
        static: what the broker was started with.
        changed: called with settings that changed, once `start` was called.
        noticed: called with every entity (`topics/[topic]`, `brokers/[id]`) that a notice names.
        topics: that the controller has told this broker of.
    """

    def __init__(
        self,
        static: BrokerSettings,
        changed: Callable[[SettingsChange], None],
        noticed: Callable[[str], None],
        topics: Topics,
    ) -> None:
        self._static = static
        self._changed = changed
        self._noticed = noticed
        self._told = topics
        self._settings = static
        self._broker_id = BrokerId(static.broker_id)
        self._defaults: Mapping[str, str] = {}
        self._own: Mapping[str, str] = {}
        self._topics: dict[str, Mapping[str, str]] = {}
        self._seen: frozenset[str] = frozenset()
        self._has_changes = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    # What is known.

    @property
    def settings(self) -> BrokerSettings:
        """The broker's settings with what was changed while it runs."""
        return self._settings

    def topic_overrides(self, name: str) -> Mapping[str, str]:
        """What a topic sets for itself; nothing for one that is not known."""
        return self._topics.get(name, {})

    def topic_settings(self, name: str) -> TopicSettings:
        """A topic's settings; those of a topic that sets nothing for one that is not known."""
        return TopicSettings.of(self._settings, self.topic_overrides(name))

    def broker_overrides(self, broker_id: BrokerId | None) -> Mapping[str, str]:
        """What was changed of this broker, or of all with None; nothing for another broker."""
        if broker_id is None:
            return self._defaults
        return self._own if broker_id == self._broker_id else {}

    # How it comes to be known.

    async def load(self, coordination: Coordination) -> None:
        """Reads everything, and reports what changed. Once `start` was called, what is invalid among broker configs is ignored.

        Raises:
            ConfigurationError: what was changed of this broker does not go with what it was started with.
            CoordinationError: it cannot be read.
        """
        # The notices first: one that comes later is read again for nothing, and none is missed.
        self._seen = frozenset(await coordination.children(znodes.CONFIG_CHANGES.path()))
        try:
            await self._read_broker(coordination)
        except (MalformedZnode, InvalidRequest) as error:
            if self._watching is not None:
                log.error("configs of this broker are invalid, and ignored: %s", error)
            elif isinstance(error, InvalidRequest):
                raise ConfigurationError(
                    f"the settings in {znodes.BROKER_CONFIG.path(self._broker_id)} and {znodes.BROKER_CONFIG.path(znodes.DEFAULT_ENTITY)}"
                    f" do not go with this broker's: {error}"
                ) from error
            else:
                raise
        self.learn_topics(await load_topic_overrides(coordination))

    def start(self, coordination: Coordination) -> None:
        """Keeps it fresh from now on, in this session and no longer in a former one."""
        self.stop()
        self._watching = asyncio.ensure_future(self._watch(coordination))

    def stop(self) -> None:
        """Keeps nothing fresh any more."""
        if self._watching is not None:
            self._watching.cancel()

    async def wait_stopped(self) -> None:
        """Waits until nothing is under way any more."""
        if self._watching is not None:
            await asyncio.wait([self._watching])

    def learn_topics(self, overrides: Mapping[str, Mapping[str, str]]) -> None:
        """Takes in what topics set. Another tool may have written invalid ones: those are logged and skipped."""
        for name, override in overrides.items():
            known = self._topics.get(name)
            if known == override:
                continue
            former = self.topic_settings(name)
            self._topics[name] = acceptable_overrides(self._settings, name, override)
            if known is not None:  # otherwise nothing uses other settings yet
                self._tell_topic(name, former)

    def forget_topics(self, names: Iterable[str]) -> None:
        """Takes in that topics are gone."""
        for name in names:
            self._topics.pop(name, None)

    def keep_topics(self, names: Iterable[str]) -> None:
        """Takes in that there are no others. What was read at the start may be of one whose deletion had begun."""
        self.forget_topics(self._topics.keys() - set(names))

    async def read_again(self, coordination: Coordination, entity: str) -> None:
        """Reads what an entity sets."""
        try:
            if entity.startswith(_TOPICS):
                name = entity.removeprefix(_TOPICS)
                topic_id, overrides = await load_topic_config(coordination, name)
                is_another = self._told.topic_id(name) not in (None, ZERO_TOPIC_ID, topic_id)
                if not is_another and (overrides or name in self._topics):
                    self.learn_topics({name: overrides})
            elif entity in (f"{_BROKERS}{self._broker_id}", f"{_BROKERS}{znodes.DEFAULT_ENTITY}"):
                await self._read_broker(coordination)
        except (MalformedZnode, InvalidRequest) as error:
            log.error("configs of %s are invalid, and ignored: %s", entity, error)

    async def _read_broker(self, coordination: Coordination) -> None:
        """Takes in what was changed for all brokers, and what for this one."""
        read = [await load_config(coordination, znodes.BROKER_CONFIG.path(entity)) for entity in (znodes.DEFAULT_ENTITY, self._broker_id)]
        defaults = configs.without_unusable(self._static, read[0], for_all=True)
        own = configs.without_unusable(self._static, read[1], for_all=False)
        if (defaults, own) == (self._defaults, self._own):
            return
        settings = configs.checked_broker_settings(self._static, defaults, own)
        former_topics = {name: self.topic_settings(name) for name in self._topics}
        changed = [
            BrokerConfigChanged(broker_id, overrides, settings)
            for broker_id, overrides in ((None, defaults), (self._broker_id, own))
            if overrides != self.broker_overrides(broker_id)
        ]
        self._defaults, self._own, self._settings = defaults, own, settings
        for change in changed:
            self._tell(change)
        for name, topic_settings in former_topics.items():
            self._tell_topic(name, topic_settings)

    def _tell_topic(self, name: str, former: TopicSettings) -> None:
        settings = self.topic_settings(name)
        if settings != former:
            self._tell(TopicConfigChanged(name, settings))

    def _tell(self, change: SettingsChange) -> None:
        if self._watching is not None:  # before that nothing uses other settings
            self._changed(change)

    async def _watch(self, coordination: Coordination) -> None:
        while True:
            self._has_changes.clear()
            try:
                await self._look(coordination)
            except SessionExpired:
                return
            except Exception as error:
                # Whatever it was, the next notices must not go unread.
                log.warning("config change notices cannot be read, retrying: %s", error, exc_info=not isinstance(error, OttlaError))
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            await self._has_changes.wait()

    async def _look(self, coordination: Coordination) -> None:
        """Reads the notices that came since the last look, and what they name."""
        path = znodes.CONFIG_CHANGES.path()
        names = frozenset(await coordination.children(path, self._happened))
        paths = [f"{path}/{name}" for name in sorted(names - self._seen)]
        entities: dict[str, None] = {}
        for path, found in zip(paths, await coordination.get_many(paths), strict=True):
            try:
                if found is not None:
                    entities[znodes.decode_config_change(path, found[0])] = None
            except MalformedZnode as error:
                log.error("%s; the notice is ignored", error)
        for entity in entities:
            await self.read_again(coordination, entity)
            self._noticed(entity)
        self._seen = names

    def _happened(self, _: WatchedEvent) -> None:
        self._has_changes.set()

"""The controller's driver: carries out what `topics`, `configs` and `producer_ids` decide.

One operation at a time: each decides on the state as it is, writes the znodes, takes the new state in and tells the
broker (`apply`). An operation that has begun goes on to its end even when whoever asked for it gives up.

A topic's deletion is first written down in `/admin/delete_topics`, then told to the broker, and last its znodes go.
Whatever a crash leaves half done, the next start completes: a deletion that was written down, and the states of
partitions that a topic has and that never were led.

There is one broker as yet, so what is written here is applied here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from random import Random
from typing import Any, Final, TypeVar

from ottla.broker.controller import configs, membership, topic_znodes
from ottla.broker.controller.changes import (
    BrokerConfigChanged,
    MetadataChange,
    PartitionsAdded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from ottla.broker.controller.configs import ConfigChange
from ottla.broker.controller.loading import LoadedTopic, load_broker_configs, load_brokers, load_topic, load_topic_overrides, load_topics
from ottla.broker.controller.producer_ids import next_block
from ottla.broker.controller.topics import NewTopic as NewTopic
from ottla.broker.controller.topics import check_new_name, first_state, place_more_partitions, place_topic
from ottla.broker.controller.writes import ControllerWrites, coordination_errors_as_api_errors
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.coordination import znodes
from ottla.coordination.bounded import BoundedCoordination
from ottla.coordination.errors import BadVersion, CoordinationError, NodeExists
from ottla.coordination.interface import Coordination, Create, Delete, SetData, WatchedEvent
from ottla.errors import (
    ApiError,
    ConfigurationError,
    CoordinatorNotAvailable,
    InvalidConfig,
    InvalidRequest,
    NotController,
    RequestTimedOut,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicOrPartition,
)
from ottla.model import ZERO_TOPIC_ID, BrokerId, BrokerRegistration, TopicDescription

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

# As Kafka's zookeeper.session.timeout.ms.
SESSION_TIMEOUT_SECONDS: Final = 18.0
# The longest wait for one answer of the coordination service.
ANSWER_TIMEOUT_SECONDS: Final = 10.0
# As Kafka: long enough for every broker to have seen a notice.
CONFIG_CHANGE_LIFETIME_MS: Final = 15 * 60 * 1000


class Controller:
    """This broker as the cluster's controller.

    Args:
        coordination: a session; whoever opened it closes it.
        settings: what the broker was started with.
        clock: for the timestamps in znodes.
        random: for placement and ids.
        apply: told of each change after it is written.
        session_timeout_seconds: how long a former self of this broker may still seem alive.
    """

    def __init__(
        self,
        coordination: Coordination,
        settings: BrokerSettings,
        clock: Clock,
        random: Random,
        apply: Callable[[MetadataChange], Awaitable[None]],
        session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS,
    ) -> None:
        self._coordination: Coordination = BoundedCoordination(coordination, ANSWER_TIMEOUT_SECONDS)
        self._static_settings = settings
        self._settings = settings
        self._clock = clock
        self._random = random
        self._apply = apply
        self._session_timeout_seconds = session_timeout_seconds
        self._topics: dict[str, TopicDescription] = {}
        self._topic_versions: dict[str, int] = {}
        self._topic_overrides: dict[str, dict[str, str]] = {}
        self._broker_overrides: dict[BrokerId | None, dict[str, str]] = {}
        self._brokers: list[BrokerRegistration] = []
        self._broker_id = BrokerId(settings.broker_id)
        self._writes: ControllerWrites | None = None
        self._one_at_a_time = asyncio.Lock()
        self._operations: set[asyncio.Task[Any]] = set()
        self._is_closing = False
        self.cluster_id = ""
        self.controller_epoch = 0
        self.registration: BrokerRegistration | None = None

    # Joining and leaving.

    async def load(self) -> None:
        """Reads what there is, before this broker takes part: topics' settings are needed to open their logs.

        Raises:
            CoordinationError: it can not be read.
        """
        await membership.make_skeleton(self._coordination)
        self.cluster_id = await membership.read_or_make_cluster_id(self._coordination, self._random)
        await self._load_settings()
        for name, overrides in (await load_topic_overrides(self._coordination)).items():
            self._topic_overrides[name] = self._acceptable_overrides(name, overrides)

    async def start(self, registration: BrokerRegistration) -> None:
        """Registers the broker, becomes the controller, and applies every topic that there is.

        Args:
            registration: this broker, with the endpoints that clients can reach.

        Raises:
            ConfigurationError: another broker lives under this id, or another is the controller.
        """
        if not self.cluster_id:
            await self.load()
        self._broker_id = registration.broker_id
        self.registration = await membership.register_broker(self._coordination, registration, self._clock, self._session_timeout_seconds)
        term = await membership.become_controller(self._coordination, registration.broker_id, self._clock, self._session_timeout_seconds)
        self.controller_epoch = term.epoch
        self._writes = ControllerWrites(self._coordination, term.epoch_version)
        async with self._one_at_a_time:
            await self._take_over()

    async def close(self) -> None:
        """Finishes what has begun, and says that this broker is gone. The session stays open."""
        self._is_closing = True
        if self._operations:
            await asyncio.wait(set(self._operations))
        # The end of the session takes both as well, so it does no harm when this can not be done.
        if self._writes is not None:
            writes, self._writes = self._writes, None
            with contextlib.suppress(CoordinationError, NotController):
                await writes.write([Delete(znodes.CONTROLLER.path())])
        if self.registration is not None:
            self.registration = None
            with contextlib.suppress(CoordinationError):
                await self._coordination.delete(znodes.BROKER.path(self._broker_id))

    # What is known.

    @property
    def settings(self) -> BrokerSettings:
        """The broker's settings with what was changed while it runs."""
        return self._settings

    def topic_overrides(self, name: str) -> Mapping[str, str]:
        """What a topic sets for itself; nothing for one that is not known."""
        return self._topic_overrides.get(name, {})

    def topic_settings(self, name: str) -> TopicSettings:
        """A topic's settings; those of a topic that sets nothing for one that is not known."""
        return TopicSettings.of(self._settings, self._topic_overrides.get(name, {}))

    def broker_overrides(self, broker_id: BrokerId | None) -> Mapping[str, str]:
        """What was changed of a broker while it runs, or, with None, of all brokers."""
        return self._broker_overrides.get(broker_id, {})

    # What can be asked for.

    async def create_topic(self, new_topic: NewTopic, validate_only: bool = False) -> TopicDescription:
        """Makes a topic; only says what it would be like with `validate_only`, and then it has no id.

        Raises:
            TopicAlreadyExists, InvalidTopic, InvalidPartitions, InvalidReplicationFactor, InvalidReplicaAssignment,
            InvalidConfig: the request is refused for what the name says.
        """
        return await self._perform(f"creating topic {new_topic.name}", self._create_topic(new_topic, validate_only))

    async def delete_topic(self, name: str) -> None:
        """Deletes a topic. Raises UnknownTopicOrPartition or TopicDeletionDisabled."""
        await self._perform(f"deleting topic {name}", self._delete_topic(name))

    async def create_partitions(
        self, name: str, total_count: int, assignments: Sequence[Sequence[BrokerId]] | None = None, validate_only: bool = False
    ) -> TopicDescription:
        """Gives a topic more partitions; only says what it would be like with `validate_only`.

        Raises:
            UnknownTopicOrPartition, InvalidPartitions, InvalidReplicaAssignment: the request is refused for what the name says.
        """
        action = self._create_partitions(name, total_count, assignments, validate_only)
        return await self._perform(f"adding partitions to {name}", action)

    async def alter_topic_configs(self, name: str, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that a topic sets for itself. Raises UnknownTopicOrPartition or InvalidConfig."""

        def decide(_: Mapping[str, str]) -> Mapping[str, str]:
            return overrides

        await self._perform(f"altering the settings of topic {name}", self._alter_topic(name, decide, validate_only))

    async def incremental_alter_topic_configs(self, name: str, changes: Sequence[ConfigChange], validate_only: bool = False) -> None:
        """Changes some of what a topic sets for itself. Raises UnknownTopicOrPartition, InvalidConfig or InvalidRequest."""

        def decide(current: Mapping[str, str]) -> Mapping[str, str]:
            return configs.changed_configs(current, changes, TopicSettings.definitions())

        await self._perform(f"altering the settings of topic {name}", self._alter_topic(name, decide, validate_only))

    async def alter_broker_configs(self, broker_id: BrokerId | None, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that was changed of this broker, or of all with None, while it runs. Raises InvalidRequest."""

        def decide(_: Mapping[str, str]) -> Mapping[str, str]:
            return overrides

        await self._perform("altering the settings of brokers", self._alter_broker(broker_id, decide, validate_only))

    async def incremental_alter_broker_configs(
        self, broker_id: BrokerId | None, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        """Changes some of this broker's settings, or of all brokers' with None, while it runs. Raises InvalidRequest or InvalidConfig."""

        def decide(current: Mapping[str, str]) -> Mapping[str, str]:
            return configs.changed_configs(current, changes, BrokerSettings.definitions())

        await self._perform("altering the settings of brokers", self._alter_broker(broker_id, decide, validate_only))

    async def allocate_producer_ids(self) -> range:
        """The next block of producer ids, for this broker. Raises CoordinatorNotAvailable."""
        try:
            return await self._perform("allocating producer ids", self._allocate_producer_ids())
        except ApiError as error:
            raise CoordinatorNotAvailable(str(error)) from error

    async def _perform(self, what: str, action: Coroutine[Any, Any, T]) -> T:
        """Runs an operation in its turn and to its end, and gives its result."""
        return await asyncio.shield(self._begin(what, action))

    def _begin(self, what: str, action: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        async def run() -> T:
            async with self._one_at_a_time:
                with coordination_errors_as_api_errors(what):
                    return await action

        def done(task: asyncio.Task[T]) -> None:
            self._operations.discard(task)
            action.close()  # of one that never had its turn

        task = asyncio.ensure_future(run())
        self._operations.add(task)
        task.add_done_callback(done)
        return task

    def _as_controller(self) -> ControllerWrites:
        if self._writes is None:
            raise NotController(f"broker {self._broker_id} is not the controller")
        return self._writes

    # Taking over.

    async def _load_settings(self) -> None:
        defaults, own = await load_broker_configs(self._coordination, self._broker_id)
        try:
            self._settings = configs.checked_broker_settings(self._static_settings, defaults, own)
        except InvalidRequest as error:
            raise ConfigurationError(
                f"the settings in {znodes.BROKER_CONFIG.path(self._broker_id)} and {znodes.BROKER_CONFIG.path(znodes.DEFAULT_ENTITY)}"
                f" do not go with this broker's: {error}"
            ) from error
        self._broker_overrides = {None: defaults, self._broker_id: own}

    def _acceptable_overrides(self, topic: str, overrides: Mapping[str, str]) -> dict[str, str]:
        """What a topic sets, without what another tool wrote there and nobody can use."""
        acceptable: dict[str, str] = {}
        for name, value in overrides.items():
            try:
                configs.checked_topic_settings(self._settings, {**acceptable, name: value})
                acceptable[name] = value
            except InvalidConfig as error:
                log.error("%s: %s; it is passed over", znodes.TOPIC_CONFIG.path(topic), error)
        return acceptable

    async def _take_over(self) -> None:
        await self._load_settings()
        self._brokers = await load_brokers(self._coordination)
        await self._remove_old_notices()
        for topic in await load_topics(self._coordination):
            await self._take_in(topic)
        await self._look_for_changes()

    async def _take_in(self, topic: LoadedTopic) -> None:
        """Takes in a topic that was found, gives it what it lacks, and tells the broker."""
        writes = self._as_controller()
        topic_id, version = topic.assignment.topic_id, topic.topic_version
        first_states = {
            partition: first_state(topic.assignment.replicas[partition], self._living(), self.controller_epoch)
            for partition, state in enumerate(topic.states)
            if state is None
        }
        states = tuple(state or first_states[partition] for partition, state in enumerate(topic.states))
        description = TopicDescription(topic.name, topic_id or znodes.random_uuid(self._random), states)
        if topic_id is None:
            await writes.write([topic_znodes.identification(description, version)])
            version += 1
        if first_states:
            log.info("topic %s: giving %d partitions their first leaders", topic.name, len(first_states))
            await writes.write_in_parts(await topic_znodes.completion(self._coordination, topic.name, first_states.items()))
        self._put(description, version, self._acceptable_overrides(topic.name, topic.overrides))
        await self._apply(TopicCreated(description))

    # What other tools write.

    async def _look_for_changes(self) -> None:
        """Makes and deletes what was written to `/brokers/topics` and `/admin/delete_topics`, and watches both again."""
        if self._writes is None:
            return
        to_delete = await self._coordination.children(znodes.DELETE_TOPICS.path(), self._changed)
        names = frozenset(await self._coordination.children(znodes.TOPICS.path(), self._changed))
        for name in sorted(names - self._topics.keys() - frozenset(to_delete)):
            await self._take_in_by_name(name)
        for name in sorted(to_delete):
            log.info("topic %s: completing its deletion", name)
            await self._complete_deletion(name)
        for name in sorted(self._topics.keys() - names):
            topic = self._topics[name]
            log.warning("topic %s: its znode was removed; forgetting it", name)
            await self._forget(topic)

    def _changed(self, _: WatchedEvent) -> None:
        """A watch fired. What there is to do is found once it is our turn; mostly it was ourselves, and nothing is."""
        if not self._is_closing:
            looking = self._begin("looking for topics that were written or deleted", self._look_for_changes())
            looking.add_done_callback(_log_failure)

    async def _take_in_by_name(self, name: str) -> None:
        topic = await load_topic(self._coordination, name)
        if topic is not None:
            log.info("topic %s was found with %d partitions", name, len(topic.states))
            await self._take_in(topic)

    # Topics.

    def _put(self, description: TopicDescription, version: int, overrides: dict[str, str]) -> None:
        self._topics[description.name] = description
        self._topic_versions[description.name] = version
        self._topic_overrides[description.name] = overrides

    def _get(self, name: str) -> TopicDescription:
        description = self._topics.get(name)
        if description is None:
            raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
        return description

    def _living(self) -> frozenset[BrokerId]:
        return frozenset(each.broker_id for each in self._brokers)

    async def _create_topic(self, new_topic: NewTopic, validate_only: bool) -> TopicDescription:
        writes = self._as_controller()
        name = new_topic.name
        check_new_name(name, self._topics)
        replicas = place_topic(
            new_topic, self._brokers, self._settings.num_partitions, self._settings.default_replication_factor, self._random
        )
        configs.checked_topic_settings(self._settings, new_topic.configs)
        states = tuple(first_state(each, self._living(), self.controller_epoch) for each in replicas)
        description = TopicDescription(name, znodes.random_uuid(self._random), states)
        has_config = await self._coordination.exists(znodes.TOPIC_CONFIG.path(name)) is not None
        operations = topic_znodes.creation(description, new_topic.configs, has_config)
        if validate_only:
            return TopicDescription(name, ZERO_TOPIC_ID, states)
        try:
            await writes.write_in_parts(operations)
        except NodeExists as error:
            # Another tool made it, or an earlier attempt of ours whose outcome never became known.
            await self._look_for_changes()
            raise TopicAlreadyExists(f"Topic '{name}' already exists.") from error
        self._put(description, 0, dict(new_topic.configs))
        log.info("created topic %s with %d partitions, id %s", name, len(states), znodes.encode_uuid(description.topic_id))
        await self._apply(TopicCreated(description))
        return description

    async def _create_partitions(
        self, name: str, total_count: int, assignments: Sequence[Sequence[BrokerId]] | None, validate_only: bool
    ) -> TopicDescription:
        writes = self._as_controller()
        topic = self._get(name)
        added = place_more_partitions(name, topic.partitions, total_count, assignments, self._brokers)
        states = tuple(first_state(each, self._living(), self.controller_epoch) for each in added)
        description = TopicDescription(name, topic.topic_id, topic.partitions + states)
        version = self._topic_versions[name]
        operations = topic_znodes.extension(description, len(topic.partitions), version)
        if validate_only:
            return description
        try:
            await writes.write_in_parts(operations)
        except (BadVersion, NodeExists) as error:
            # As above: what there is now has to decide about another attempt.
            await self._take_in_by_name(name)
            raise RequestTimedOut(f"topic '{name}' was changed by somebody else meanwhile: {error}") from error
        self._put(description, version + 1, self._topic_overrides[name])
        log.info("topic %s: %d partitions -> %d", name, len(topic.partitions), total_count)
        await self._apply(PartitionsAdded(description))
        return description

    async def _delete_topic(self, name: str) -> None:
        writes = self._as_controller()
        self._get(name)
        if not self._settings.delete_topic_enable:
            raise TopicDeletionDisabled("Topic deletion is disabled.")
        with contextlib.suppress(NodeExists):  # of a deletion that was cut short
            await writes.write([Create(znodes.DELETE_TOPIC.path(name))])
        await self._complete_deletion(name)

    async def _complete_deletion(self, name: str) -> None:
        """Tells the broker, and removes the znodes, of a topic whose deletion is written down."""
        topic = self._topics.get(name)
        if topic is not None:
            await self._forget(topic)
        await self._as_controller().write_in_parts(await topic_znodes.removal(self._coordination, name))
        log.info("deleted topic %s", name)

    async def _forget(self, topic: TopicDescription) -> None:
        del self._topics[topic.name], self._topic_versions[topic.name], self._topic_overrides[topic.name]
        await self._apply(TopicDeleted(topic.name, topic.topic_id, len(topic.partitions)))

    # Settings.

    async def _alter_topic(self, name: str, decide: Callable[[Mapping[str, str]], Mapping[str, str]], validate_only: bool) -> None:
        self._as_controller()
        self._get(name)
        overrides = dict(decide(self._topic_overrides[name]))
        settings = configs.checked_topic_settings(self._settings, overrides)
        if validate_only:
            return
        await self._write_config(znodes.TOPIC_CONFIG.path(name), overrides, f"topics/{name}")
        self._topic_overrides[name] = overrides
        log.info("topic %s: its settings are now %s", name, overrides)
        await self._apply(TopicConfigChanged(name, settings))

    async def _alter_broker(
        self, broker_id: BrokerId | None, decide: Callable[[Mapping[str, str]], Mapping[str, str]], validate_only: bool
    ) -> None:
        self._as_controller()
        if broker_id not in (None, self._broker_id):
            raise InvalidRequest(f"Unexpected broker id, expected {self._broker_id}, but received {broker_id}")
        overrides = dict(decide(self.broker_overrides(broker_id)))
        changed = {**self._broker_overrides, broker_id: overrides}
        settings = configs.checked_broker_settings(self._static_settings, changed.get(None, {}), changed.get(self._broker_id, {}))
        before = {name: self.topic_settings(name) for name in self._topics}
        after = {name: TopicSettings.of(settings, self._topic_overrides[name]) for name in self._topics}
        if validate_only:
            return
        entity = znodes.DEFAULT_ENTITY if broker_id is None else str(broker_id)
        await self._write_config(znodes.BROKER_CONFIG.path(entity), overrides, f"brokers/{entity}")
        self._broker_overrides, self._settings = changed, settings
        log.info("broker %s: what was changed while it runs is now %s", entity, overrides)
        await self._apply(BrokerConfigChanged(broker_id, overrides, settings))
        for name, topic_settings in after.items():
            if topic_settings != before[name]:
                await self._apply(TopicConfigChanged(name, topic_settings))

    async def _write_config(self, path: str, overrides: Mapping[str, str], entity_path: str) -> None:
        """Writes settings, and a notice for the brokers that listen."""
        data = znodes.encode_config(overrides)
        exists = await self._coordination.exists(path) is not None
        notice = Create(znodes.CONFIG_CHANGE.path(""), znodes.encode_config_change(entity_path), sequential=True)
        await self._as_controller().write([SetData(path, data) if exists else Create(path, data), notice])
        await self._remove_old_notices()

    async def _remove_old_notices(self) -> None:
        removed = []
        for name in sorted(await self._coordination.children(znodes.CONFIG_CHANGES.path())):
            path = f"{znodes.CONFIG_CHANGES.path()}/{name}"
            stat = await self._coordination.exists(path)
            if stat is None or self._clock.time_ms() - stat.ctime < CONFIG_CHANGE_LIFETIME_MS:
                break
            removed.append(Delete(path))
        if removed:
            await self._as_controller().write_in_parts(removed)

    # Producer ids.

    async def _allocate_producer_ids(self) -> range:
        writes = self._as_controller()
        path = znodes.PRODUCER_ID_BLOCK.path()
        data, stat = await self._coordination.get(path)
        block = next_block(znodes.decode_producer_id_block(path, data), self._broker_id)
        await writes.write([SetData(path, znodes.encode_producer_id_block(block), stat.version)])
        return range(block.first, block.last + 1)


def _log_failure(looking: asyncio.Task[None]) -> None:
    if not looking.cancelled() and looking.exception() is not None:
        log.error("what was written to the coordination service by others is not known: %s", looking.exception())

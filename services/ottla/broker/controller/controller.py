"""The cluster's controller on this broker: how it becomes that, and what it can be asked for.

One operation at a time: each decides on the state as it is, writes the znodes, takes the new state in and tells the
broker (`apply`). An operation that has begun goes on to its end even when whoever asked for it gives up.
`topic_operations` and `config_operations` say how each goes.

There is one broker as yet, so what is written here is applied here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeVar

from ottla.broker.controller import configs, membership
from ottla.broker.controller.changes import BrokerConfigChanged, MetadataChange, TopicConfigChanged
from ottla.broker.controller.config_operations import ConfigOperations
from ottla.broker.controller.configs import ConfigChange
from ottla.broker.controller.loading import acceptable_overrides, load_broker_configs, load_brokers, load_topic_overrides
from ottla.broker.controller.producer_ids import next_block
from ottla.broker.controller.state import ClusterState
from ottla.broker.controller.topic_operations import TopicOperations
from ottla.broker.controller.topics import NewTopic as NewTopic
from ottla.broker.controller.writes import ControllerWrites, coordination_errors_as_api_errors
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.coordination import znodes
from ottla.coordination.bounded import BoundedCoordination
from ottla.coordination.errors import CoordinationError
from ottla.coordination.interface import Coordination, Delete, SetData, WatchedEvent
from ottla.errors import ApiError, ConfigurationError, CoordinatorNotAvailable, InvalidRequest, NotController
from ottla.model import BrokerId, BrokerRegistration, TopicDescription

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

# As Kafka's zookeeper.session.timeout.ms.
SESSION_TIMEOUT_SECONDS: Final = 18.0
# The longest wait for one answer of the coordination service.
ANSWER_TIMEOUT_SECONDS: Final = 10.0
# The longest that a broker which stops tries to say so.
LEAVE_TIMEOUT_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class _Term:
    """This broker's time as the controller: what it can do as long as nobody else has taken the next epoch."""

    writes: ControllerWrites
    topics: TopicOperations
    configs: ConfigOperations


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
        self._state = ClusterState(settings, settings)
        self._clock = clock
        self._random = random
        self._apply = apply
        self._session_timeout_seconds = session_timeout_seconds
        self._broker_id = BrokerId(settings.broker_id)
        self._term: _Term | None = None
        self._one_at_a_time = asyncio.Lock()
        self._operations: set[asyncio.Task[Any]] = set()
        self._is_closing = False
        self.cluster_id = ""
        self.controller_epoch = 0
        self.registration: BrokerRegistration | None = None  # the latest
        self._is_registered = False

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
            self._state.topic_overrides[name] = acceptable_overrides(self._state.settings, name, overrides)

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
        async with self._one_at_a_time:
            await self._join(registration)

    def session_lost(self) -> None:
        """The session is over, and with it the registration and the time as the controller. Requests are refused until `rejoin`."""
        self._term = None
        self._is_registered = False

    async def rejoin(self, coordination: Coordination) -> BrokerRegistration:
        """Starts again in another session, and applies what changed meanwhile. Gives the new registration.

        Raises:
            ConfigurationError: as `start`; or the coordination service holds another cluster by now.
            CoordinationError: it can not be read or written.
        """
        assert self.registration is not None, "the controller was never started"
        async with self._one_at_a_time:
            self._coordination = BoundedCoordination(coordination, ANSWER_TIMEOUT_SECONDS)
            await membership.make_skeleton(self._coordination)
            cluster_id = await membership.read_or_make_cluster_id(self._coordination, self._random)
            if cluster_id != self.cluster_id:
                raise ConfigurationError(f"the coordination service holds cluster {cluster_id}, and this broker is of {self.cluster_id}")
            return await self._join(self.registration)

    async def _join(self, registration: BrokerRegistration) -> BrokerRegistration:
        coordination = self._coordination
        registered = await membership.register_broker(coordination, registration, self._clock, self._session_timeout_seconds)
        self.registration, self._is_registered = registered, True
        taken = await membership.become_controller(coordination, registered.broker_id, self._clock, self._session_timeout_seconds)
        self.controller_epoch = taken.epoch
        writes = ControllerWrites(coordination, taken.epoch_version)
        term = _Term(
            writes,
            TopicOperations(self._state, coordination, writes, taken.epoch, self._random, self._apply, self._changed),
            ConfigOperations(self._state, coordination, writes, registered.broker_id, self._clock, self._apply),
        )
        settings, overrides = self._state.settings, dict(self._state.topic_overrides)
        await self._load_settings()
        self._state.brokers = await load_brokers(coordination)
        await term.configs.remove_old_notices()
        await term.topics.take_over()
        await self._apply_changed_settings(settings, overrides)
        self._term = term
        return registered

    async def _apply_changed_settings(self, settings: BrokerSettings, overrides: Mapping[str, Mapping[str, str]]) -> None:
        """Tells the settings that are others than before. At the first start there were none before."""
        state = self._state
        if state.settings != settings:
            await self._apply(BrokerConfigChanged(None, state.broker_overrides[None], state.settings))
        for name in state.topics.keys() & overrides.keys():
            if state.settings != settings or state.topic_overrides[name] != overrides[name]:
                await self._apply(TopicConfigChanged(name, state.topic_settings(name)))

    async def close(self) -> None:
        """Finishes what has begun, and says that this broker is gone. The session stays open."""
        self._is_closing = True
        if self._operations:
            await asyncio.wait(set(self._operations), timeout=ANSWER_TIMEOUT_SECONDS)
        # The end of the session takes both as well, so it does no harm when this can not be done.
        term, self._term = self._term, None
        was_registered, self._is_registered = self._is_registered, False
        with contextlib.suppress(CoordinationError, NotController, TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_SECONDS):
                if term is not None:
                    await term.writes.write([Delete(znodes.CONTROLLER.path())])
                if was_registered:
                    await self._coordination.delete(znodes.BROKER.path(self._broker_id))

    # What is known.

    @property
    def settings(self) -> BrokerSettings:
        """The broker's settings with what was changed while it runs."""
        return self._state.settings

    def topic_overrides(self, name: str) -> Mapping[str, str]:
        """What a topic sets for itself; nothing for one that is not known."""
        return self._state.topic_overrides.get(name, {})

    def topic_settings(self, name: str) -> TopicSettings:
        """A topic's settings; those of a topic that sets nothing for one that is not known."""
        return self._state.topic_settings(name)

    def broker_overrides(self, broker_id: BrokerId | None) -> Mapping[str, str]:
        """What was changed of a broker while it runs, or, with None, of all brokers."""
        return self._state.broker_overrides.get(broker_id, {})

    # What can be asked for.

    async def create_topic(self, new_topic: NewTopic, validate_only: bool = False) -> TopicDescription:
        """Makes a topic; only says what it would be like with `validate_only`, and then it has no id.

        Raises:
            TopicAlreadyExists, InvalidTopic, InvalidPartitions, InvalidReplicationFactor, InvalidReplicaAssignment,
            InvalidConfig: the request is refused for what the name says.
        """
        return await self._perform(f"creating topic {new_topic.name}", lambda term: term.topics.create(new_topic, validate_only))

    async def delete_topic(self, name: str) -> None:
        """Deletes a topic. Raises UnknownTopicOrPartition or TopicDeletionDisabled."""
        await self._perform(f"deleting topic {name}", lambda term: term.topics.delete(name))

    async def create_partitions(
        self, name: str, total_count: int, assignments: Sequence[Sequence[BrokerId]] | None = None, validate_only: bool = False
    ) -> TopicDescription:
        """Gives a topic more partitions; only says what it would be like with `validate_only`.

        Raises:
            UnknownTopicOrPartition, InvalidPartitions, InvalidReplicaAssignment: the request is refused for what the name says.
        """
        return await self._perform(
            f"adding partitions to {name}", lambda term: term.topics.extend(name, total_count, assignments, validate_only)
        )

    async def alter_topic_configs(self, name: str, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that a topic sets for itself. Raises UnknownTopicOrPartition or InvalidConfig."""

        def decide(_: Mapping[str, str]) -> Mapping[str, str]:
            return overrides

        await self._perform(f"altering the settings of topic {name}", lambda term: term.configs.alter_topic(name, decide, validate_only))

    async def incremental_alter_topic_configs(self, name: str, changes: Sequence[ConfigChange], validate_only: bool = False) -> None:
        """Changes some of what a topic sets for itself. Raises UnknownTopicOrPartition, InvalidConfig or InvalidRequest."""

        def decide(current: Mapping[str, str]) -> Mapping[str, str]:
            return configs.changed_configs(current, changes, TopicSettings.definitions())

        await self._perform(f"altering the settings of topic {name}", lambda term: term.configs.alter_topic(name, decide, validate_only))

    async def alter_broker_configs(self, broker_id: BrokerId | None, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that was changed of this broker, or of all with None, while it runs. Raises InvalidRequest."""

        def decide(_: Mapping[str, str]) -> Mapping[str, str]:
            return overrides

        await self._perform("altering the settings of brokers", lambda term: term.configs.alter_broker(broker_id, decide, validate_only))

    async def incremental_alter_broker_configs(
        self, broker_id: BrokerId | None, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        """Changes some of this broker's settings, or of all brokers' with None, while it runs. Raises InvalidRequest or InvalidConfig."""

        def decide(current: Mapping[str, str]) -> Mapping[str, str]:
            return configs.changed_configs(current, changes, BrokerSettings.definitions())

        await self._perform("altering the settings of brokers", lambda term: term.configs.alter_broker(broker_id, decide, validate_only))

    async def allocate_producer_ids(self) -> range:
        """The next block of producer ids, for this broker. Raises CoordinatorNotAvailable."""
        try:
            return await self._perform("allocating producer ids", self._allocate_producer_ids)
        except ApiError as error:
            raise CoordinatorNotAvailable(str(error)) from error

    # How it is done.

    async def _perform(self, what: str, operation: Callable[[_Term], Coroutine[Any, Any, T]]) -> T:
        """Runs an operation in its turn and to its end, and gives its result."""
        return await asyncio.shield(self._begin(what, operation))

    def _begin(self, what: str, operation: Callable[[_Term], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        async def run() -> T:
            async with self._one_at_a_time:
                if self._term is None:
                    raise NotController(f"{what}: broker {self._broker_id} is not the controller")
                with coordination_errors_as_api_errors(what):
                    return await operation(self._term)

        task = asyncio.ensure_future(run())
        self._operations.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._operations.discard(task)
        if not task.cancelled():
            task.exception()  # looked at here, as whoever asked for the operation may have gone with its connection

    def _changed(self, _: WatchedEvent) -> None:
        """A watch fired. What there is to do is found once it is our turn; mostly it was ourselves, and nothing is."""
        if not self._is_closing:
            looking = self._begin("looking for what other tools wrote", lambda term: term.topics.look_for_changes())
            looking.add_done_callback(_log_failure)

    async def _allocate_producer_ids(self, term: _Term) -> range:
        path = znodes.PRODUCER_ID_BLOCK.path()
        data, stat = await self._coordination.get(path)
        block = next_block(znodes.decode_producer_id_block(path, data), self._broker_id)
        await term.writes.write([SetData(path, znodes.encode_producer_id_block(block), stat.version)])
        return range(block.first, block.last + 1)

    async def _load_settings(self) -> None:
        defaults, own = await load_broker_configs(self._coordination, self._broker_id)
        try:
            self._state.settings = configs.checked_broker_settings(self._state.static_settings, defaults, own)
        except InvalidRequest as error:
            raise ConfigurationError(
                f"the settings in {znodes.BROKER_CONFIG.path(self._broker_id)} and {znodes.BROKER_CONFIG.path(znodes.DEFAULT_ENTITY)}"
                f" do not go with this broker's: {error}"
            ) from error
        self._state.broker_overrides = {None: defaults, self._broker_id: own}


def _log_failure(looking: asyncio.Task[None]) -> None:
    if not looking.cancelled() and looking.exception() is not None:
        log.error("what other tools wrote to the coordination service is not known: %s", looking.exception())

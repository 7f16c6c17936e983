"""The cluster's controller as one broker sees it, whichever broker that is: joining, asking, and being asked.

A broker registers, takes `/controller` or watches who has it, and asks for what only the controller may decide. Is it
the controller itself, its `ActiveController` answers, directly here and through `served` to the others. Settings are
known on every broker, kept fresh by the notices under `/config/changes`.

This is what the server and the handlers use. Nothing else in this package is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from ottla.broker.control import (
    DEFAULT_TIMEOUT_SECONDS,
    AlterPartitionRequest,
    AlterPartitionResponse,
    Caller,
    ConfigChange,
    ControllerControl,
    ControlTransport,
    ElectionType,
    NewTopic,
    OngoingReassignment,
    PartitionOutcome,
)
from ottla.broker.controller.changes import SettingsChange
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.coordination.interface import Coordination
from ottla.model import BrokerId, BrokerRegistration, TopicDescription, TopicPartition

# As Kafka's zookeeper.session.timeout.ms.
SESSION_TIMEOUT_SECONDS: Final = 18.0


class ControllerService:
    """One broker's part in the control of its cluster.

    Args:
        coordination: a session; whoever opened it closes it.
        settings: what the broker was started with.
        clock: for the timestamps in znodes.
        random: for placement and ids.
        transport: the way to the other brokers, and to this one; whoever made it closes it.
        config_changed: told of settings that are others than before, of a topic or of this broker.
        controller_changed: told who is the controller (NO_LEADER: nobody), and its epoch.
        session_timeout_seconds: how long a former self of this broker may still seem alive.
    """

    def __init__(
        self,
        coordination: Coordination,
        settings: BrokerSettings,
        clock: Clock,
        random: Random,
        transport: ControlTransport,
        config_changed: Callable[[SettingsChange], None],
        controller_changed: Callable[[BrokerId, int], None],
        session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS,
    ) -> None:
        self.cluster_id = ""
        self.registration: BrokerRegistration | None = None  # the latest

    # Joining and leaving.

    async def load(self) -> None:
        """Reads what there is before this broker takes part: the cluster's id, and all settings, which logs are opened with.

        Raises:
            ConfigurationError: what was changed of this broker while it ran does not go with what it was started with.
            CoordinationError: it can not be read.
        """

    async def start(self, registration: BrokerRegistration) -> BrokerRegistration:
        """Registers the broker and takes part in the election. Gives the registration with its epoch.

        Where this broker becomes the controller at once, as one that is alone does, it has been told all that it leads
        when this returns.

        Args:
            registration: this broker, with the endpoints that clients and brokers can reach.

        Raises:
            ConfigurationError: another broker lives under this id.
        """
        raise NotImplementedError

    def session_lost(self) -> None:
        """The session is over, and with it the registration and a time as the controller. Nothing more is decided until `rejoin`."""

    async def rejoin(self, coordination: Coordination) -> BrokerRegistration:
        """Starts again in another session. Gives the new registration.

        Raises:
            ConfigurationError: as `start`; or the coordination service holds another cluster by now.
            CoordinationError: it can not be read or written.
        """
        raise NotImplementedError

    async def controlled_shutdown(self) -> None:
        """Has the controller move what this broker leads, as often as `controlled.shutdown.max.retries` allows. Never raises."""

    async def close(self) -> None:
        """Finishes what has begun, and says that this broker is gone. The session stays open."""

    # What is known.

    @property
    def controller_id(self) -> BrokerId:
        """The controller's broker; NO_LEADER while nobody is known to be it."""
        raise NotImplementedError

    @property
    def controller_epoch(self) -> int:
        """The latest epoch of a controller that is known here."""
        raise NotImplementedError

    @property
    def settings(self) -> BrokerSettings:
        """The broker's settings with what was changed while it runs."""
        raise NotImplementedError

    def topic_overrides(self, name: str) -> Mapping[str, str]:
        """What a topic sets for itself; nothing for one that is not known."""
        raise NotImplementedError

    def topic_settings(self, name: str) -> TopicSettings:
        """A topic's settings; those of a topic that sets nothing for one that is not known."""
        raise NotImplementedError

    def broker_overrides(self, broker_id: BrokerId | None) -> Mapping[str, str]:
        """What was changed of this broker while it runs, or, with None, of all brokers; nothing for another broker."""
        raise NotImplementedError

    def learn_topic_overrides(self, overrides: Mapping[str, Mapping[str, str]]) -> None:
        """Takes in what topics set, as the controller says it: with LeaderAndIsr and UpdateMetadata, before their partitions."""

    def forget_topics(self, names: Sequence[str]) -> None:
        """Takes in that topics are deleted, as UpdateMetadata says it."""

    def caller(self) -> Caller:
        """Who this broker is when it calls others."""
        raise NotImplementedError

    def check_caller(self, caller: Caller) -> None:
        """Raises StaleBrokerEpoch or StaleControllerEpoch for a caller that is out of date."""

    @property
    def served(self) -> ControllerControl:
        """What other brokers call; it raises NotController unless this broker is the controller."""
        raise NotImplementedError

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller."""
        raise NotImplementedError

    # What is asked of the controller, wherever it is. Each raises what `ControllerControl` says; NotController and
    # BrokerNotAvailable only after a change of controllers was waited for until the timeout.

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Changes the ISRs of partitions that this broker leads."""
        raise NotImplementedError

    async def allocate_producer_ids(self) -> range:
        """The next block of producer ids, for this broker. Raises CoordinatorNotAvailable."""
        raise NotImplementedError

    async def create_topic(
        self, new_topic: NewTopic, validate_only: bool = False, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> TopicDescription:
        """Makes a topic; only says what it would be like with `validate_only`."""
        raise NotImplementedError

    async def delete_topic(self, name: str, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """Deletes a topic."""

    async def create_partitions(
        self,
        name: str,
        total_count: int,
        assignments: Sequence[Sequence[BrokerId]] | None = None,
        validate_only: bool = False,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> TopicDescription:
        """Gives a topic more partitions; only says what it would be like with `validate_only`."""
        raise NotImplementedError

    async def alter_topic_configs(self, name: str, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that a topic sets for itself."""

    async def incremental_alter_topic_configs(self, name: str, changes: Sequence[ConfigChange], validate_only: bool = False) -> None:
        """Changes some of what a topic sets for itself."""

    async def alter_broker_configs(self, broker_id: BrokerId | None, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that was changed of this broker, or of all with None, while it runs."""

    async def incremental_alter_broker_configs(
        self, broker_id: BrokerId | None, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        """Changes some settings of this broker, or of all brokers with None, while it runs."""

    async def elect_leaders(
        self, election_type: ElectionType, partitions: Sequence[TopicPartition] | None, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> Mapping[TopicPartition, PartitionOutcome]:
        """Elects leaders of the partitions named, or with None of all."""
        raise NotImplementedError

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[BrokerId] | None],
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> Mapping[TopicPartition, PartitionOutcome]:
        """Starts to move partitions to the brokers named; None instead of brokers cancels what is under way."""
        raise NotImplementedError

    async def list_partition_reassignments(
        self, partitions: Sequence[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, OngoingReassignment]:
        """The partitions on their way to other brokers, of those named or with None of all."""
        raise NotImplementedError

    async def log_directory_failed(self) -> None:
        """Tells the controller that replicas of this broker may be gone; it then asks which."""

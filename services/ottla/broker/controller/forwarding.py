"""Asking the controller, wherever it is and whoever becomes it meanwhile.

A request goes to the controller that is known. When that is none any more, or can not be reached, or gives no answer,
it goes to the next one, until its time is up. The first may have done it all the same: a request that was repeated and
is refused because its work is done counts as done (`settle`), and only if what there is now is what was asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from ottla.broker.controller.topics import validate_topic_name
from ottla.errors import (
    NONE,
    ApiError,
    BrokerNotAvailable,
    CoordinatorNotAvailable,
    ElectionNotNeeded,
    InvalidPartitions,
    NoReassignmentInProgress,
    NotController,
    RequestTimedOut,
    StaleControllerEpoch,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from ottla.interbroker.calls import (
    BROKER_DEFAULT,
    DEFAULT_TIMEOUT_SECONDS,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ConfigChange,
    ControllerControl,
    ElectionType,
    NewTopic,
    OngoingReassignment,
    PartitionOutcome,
)
from ottla.model import BrokerId, TopicDescription, TopicPartition

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

# Between two attempts, unless another controller is known before; it doubles up to the longest.
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 0.5

# A controller that is given some time answers at its end.
_ANSWER_MARGIN_SECONDS: Final = 1.0
# A client that gets no producer id asks again.
_PRODUCER_IDS_SECONDS: Final = 5.0

# What a request that has failed with can be given to the next controller for.
_TRY_ANOTHER: Final = (NotController, BrokerNotAvailable, RequestTimedOut, StaleControllerEpoch)


class Forwarding:
    """The operations of the controller, asked of whoever is it.

    Args:
        own: this broker and its epoch.
        find: the controller; raises BrokerNotAvailable while none is known.
        until_another: waits until another is known; raises NotController when none will be.
        describe: a topic as it lies in ZooKeeper, with what it sets for itself; None when there is none.
    """

    def __init__(
        self,
        own: Callable[[], tuple[BrokerId, int]],
        find: Callable[[], Awaitable[ControllerControl]],
        until_another: Callable[[], Awaitable[None]],
        describe: Callable[[str], Awaitable[tuple[TopicDescription, Mapping[str, str]] | None]],
    ) -> None:
        self._own = own
        self._find = find
        self._until_another = until_another
        self._describe = describe

    async def alter_partition(
        self, request: AlterPartitionRequest, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> AlterPartitionResponse:
        """Changes ISRs. Repeated it changes nothing more: a partition that has the ISR already is answered with it."""
        return (await self._ask("changing ISRs", timeout_seconds, lambda controller, _: controller.alter_partition(request)))[0]

    async def move_leaderships(self, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> tuple[TopicPartition, ...]:
        """Has the leaderships of this broker moved away, because it wants to stop. Gives those that it still has."""
        what = f"the shutdown of broker {self._own()[0]}"
        return (await self._ask(what, timeout_seconds, lambda controller, _: controller.controlled_shutdown(*self._own())))[0]

    async def take_part_again(self, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """Has the controller count on this broker again, after `move_leaderships`."""
        what = f"the end of draining broker {self._own()[0]}"
        await self._ask(what, timeout_seconds, lambda controller, _: controller.cancel_controlled_shutdown(*self._own()))

    async def allocate_producer_ids(self) -> range:
        """The next block of producer ids. One that was given out and never arrived is lost, and none is given twice.

        Raises:
            CoordinatorNotAvailable: there is none at the moment; the client asks again.
        """
        what = "allocating producer ids"
        try:
            return (await self._ask(what, _PRODUCER_IDS_SECONDS, lambda controller, _: controller.allocate_producer_ids(*self._own())))[0]
        except ApiError as error:
            raise CoordinatorNotAvailable(str(error)) from error

    async def create_topic(
        self, new_topic: NewTopic, validate_only: bool = False, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> TopicDescription:
        """Makes a topic."""
        validate_topic_name(new_topic.name)  # before it is a path that is looked for
        was_there = validate_only or await self._describe(new_topic.name) is not None

        async def settle(error: ApiError) -> TopicDescription:
            if isinstance(error, TopicAlreadyExists) and not was_there:
                found = await self._describe(new_topic.name)
                if found is not None and _is_as_asked(new_topic, *found):
                    return found[0]
            raise error

        def call(controller: ControllerControl, seconds: float) -> Awaitable[TopicDescription]:
            return controller.create_topic(new_topic, validate_only, seconds)

        return await self._ask_once(f"creating topic {new_topic.name}", timeout_seconds, call, settle)

    async def delete_topic(self, name: str, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """Deletes a topic."""

        async def settle(error: ApiError) -> None:
            if not isinstance(error, UnknownTopicOrPartition):
                raise error

        await self._ask_once(
            f"deleting topic {name}", timeout_seconds, lambda controller, seconds: controller.delete_topic(name, seconds), settle
        )

    async def create_partitions(
        self,
        name: str,
        total_count: int,
        assignments: Sequence[Sequence[BrokerId]] | None = None,
        validate_only: bool = False,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> TopicDescription:
        """Gives a topic more partitions."""

        async def settle(error: ApiError) -> TopicDescription:
            if isinstance(error, InvalidPartitions) and not validate_only:
                found = await self._describe(name)
                if found is not None and len(found[0].partitions) == total_count:
                    return found[0]
            raise error

        def call(controller: ControllerControl, seconds: float) -> Awaitable[TopicDescription]:
            return controller.create_partitions(name, total_count, assignments, validate_only, seconds)

        return await self._ask_once(f"adding partitions to {name}", timeout_seconds, call, settle)

    # To set a value, to add to a list what is not in it and to take out what is, does the same when it is repeated.

    async def alter_topic_configs(self, name: str, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that a topic sets for itself."""
        what = f"altering the settings of topic {name}"
        await self._ask(what, DEFAULT_TIMEOUT_SECONDS, lambda controller, _: controller.alter_topic_configs(name, overrides, validate_only))

    async def incremental_alter_topic_configs(self, name: str, changes: Sequence[ConfigChange], validate_only: bool = False) -> None:
        """Changes some of what a topic sets for itself."""
        what = f"altering the settings of topic {name}"
        await self._ask(
            what, DEFAULT_TIMEOUT_SECONDS, lambda controller, _: controller.incremental_alter_topic_configs(name, changes, validate_only)
        )

    async def alter_broker_configs(self, broker_id: BrokerId | None, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that was changed of a broker, or of all with None, while it runs."""
        what = "altering the settings of brokers"
        await self._ask(
            what, DEFAULT_TIMEOUT_SECONDS, lambda controller, _: controller.alter_broker_configs(broker_id, overrides, validate_only)
        )

    async def incremental_alter_broker_configs(
        self, broker_id: BrokerId | None, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        """Changes some settings of a broker, or of all brokers with None, while it runs."""
        what = "altering the settings of brokers"
        await self._ask(
            what,
            DEFAULT_TIMEOUT_SECONDS,
            lambda controller, _: controller.incremental_alter_broker_configs(broker_id, changes, validate_only),
        )

    async def elect_leaders(
        self, election_type: ElectionType, partitions: Sequence[TopicPartition] | None, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> Mapping[TopicPartition, PartitionOutcome]:
        """Elects leaders of the partitions named, or with None of all."""
        outcomes, was_repeated = await self._ask(
            "electing leaders", timeout_seconds, lambda controller, seconds: controller.elect_leaders(election_type, partitions, seconds)
        )
        return _without(outcomes, ElectionNotNeeded.code) if was_repeated else outcomes

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[BrokerId] | None],
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> Mapping[TopicPartition, PartitionOutcome]:
        """Starts to move partitions to the brokers named; None instead of brokers cancels what is under way."""
        outcomes, was_repeated = await self._ask(
            "moving partitions",
            timeout_seconds,
            lambda controller, seconds: controller.alter_partition_reassignments(reassignments, seconds),
        )
        return _without(outcomes, NoReassignmentInProgress.code) if was_repeated else outcomes

    async def list_partition_reassignments(
        self, partitions: Sequence[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, OngoingReassignment]:
        """The partitions on their way to other brokers, of those named or with None of all."""
        what = "listing reassignments"
        return (await self._ask(what, DEFAULT_TIMEOUT_SECONDS, lambda controller, _: controller.list_partition_reassignments(partitions)))[
            0
        ]

    # How it is done.

    async def _ask_once(
        self,
        what: str,
        timeout_seconds: float,
        call: Callable[[ControllerControl, float], Awaitable[T]],
        settle: Callable[[ApiError], Awaitable[T]],
    ) -> T:
        """Asks for what must not be done twice.

        Args:
            what: for the log and for errors.
            timeout_seconds: how long all attempts may take.
            call: asks a controller, which is given so many seconds.
            settle: given what a repeated request is refused with; the result when that is because it was done already.
        """
        return (await self._ask(what, timeout_seconds, call, settle))[0]

    async def _ask(
        self,
        what: str,
        timeout_seconds: float,
        call: Callable[[ControllerControl, float], Awaitable[T]],
        settle: Callable[[ApiError], Awaitable[T]] | None = None,
    ) -> tuple[T, bool]:
        """The result, and whether the request was made more than once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        pause = _FIRST_PAUSE_SECONDS
        was_made = False
        while True:
            try:
                controller = await self._find()
                was_repeated, was_made = was_made, True
                try:
                    async with asyncio.timeout_at(deadline + _ANSWER_MARGIN_SECONDS):
                        return await call(controller, max(0.0, deadline - loop.time())), was_repeated
                except TimeoutError as error:
                    raise RequestTimedOut(f"{what}: the controller gave no answer within {timeout_seconds:g} s") from error
                except _TRY_ANOTHER:
                    raise
                except ApiError as error:
                    if settle is None or not was_repeated:
                        raise
                    return await settle(error), was_repeated
            except _TRY_ANOTHER as error:
                if loop.time() + pause >= deadline:
                    raise
                log.debug("%s, trying again: %s", what, error)
                try:
                    async with asyncio.timeout(pause):
                        await self._until_another()
                except TimeoutError:
                    pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


def _is_as_asked(asked: NewTopic, found: TopicDescription, overrides: Mapping[str, str]) -> bool:
    """Whether a topic is the one that was to be made, as far as the request says what that is like."""
    assignments = {index: tuple(replicas) for index, replicas in asked.assignments.items()}
    return (
        dict(overrides) == dict(asked.configs)
        and asked.partition_count in (BROKER_DEFAULT, len(found.partitions))
        and asked.replication_factor in (BROKER_DEFAULT, len(found.partitions[0].replicas))
        and assignments in ({}, {index: each.replicas for index, each in enumerate(found.partitions)})
    )


def _without(outcomes: Mapping[TopicPartition, PartitionOutcome], code: int) -> Mapping[TopicPartition, PartitionOutcome]:
    """The outcomes of a repeated request: an error that says that there is nothing left to do is none."""
    return {key: PartitionOutcome(NONE) if each.error == code else each for key, each in outcomes.items()}

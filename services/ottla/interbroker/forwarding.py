"""Requests to the controller, wherever it is, and through a change of controller.

A request goes to the controller that is known. When that is none any more, cannot be reached or gives no answer, the request goes to
the next one until its time is up. The first may have carried it out anyway: a repeated request that is refused because its work
is done (`Operation.refusal_of_repeat`) counts as done, but only if what there is now is what was asked for.

Invariant: a request is sent again only after an error that leaves its outcome unknown, or that says that nothing was done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar, cast

from ottla.errors import NONE, ApiError, BrokerNotAvailable, NotController, RequestTimedOut, StaleControllerEpoch
from ottla.interbroker.calls import (
    ANSWER_MARGIN_SECONDS,
    BROKER_DEFAULT,
    DEFAULT_TIMEOUT_SECONDS,
    OPERATIONS,
    ControllerControl,
    ControllerRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    NewTopic,
    PartitionOutcome,
)
from ottla.lifecycle import Backoff
from ottla.model import TopicDescription, TopicPartition

log: Final = logging.getLogger(__name__)

A = TypeVar("A")

# Between two attempts, unless another controller is known before; it doubles up to the longest.
_BACKOFF: Final = Backoff(first_seconds=0.05, longest_seconds=0.5)

# After these a request goes to the next controller.
_TRY_ANOTHER: Final = (NotController, BrokerNotAvailable, RequestTimedOut, StaleControllerEpoch)


class ControllerLocator(Protocol):
    """Where the controller is, and what the cluster has."""

    async def find(self) -> ControllerControl:
        """The controller. Raises BrokerNotAvailable while none is known."""
        ...

    async def wait_for_another(self) -> None:
        """Waits until another is known. Raises NotController when none will be."""
        ...

    async def describe_topic(self, name: str) -> tuple[TopicDescription, Mapping[str, str]] | None:
        """A topic as it is in ZooKeeper, with its overrides; None when there is none."""
        ...


class Forwarder:
    """Sends requests to the broker that is the controller.

    Args:
        locator: finds it.
    """

    def __init__(self, locator: ControllerLocator) -> None:
        self._locator = locator

    async def call(self, request: ControllerRequest[A]) -> A:
        """The answer to a request, within its own timeout or DEFAULT_TIMEOUT_SECONDS."""
        return await self.ask(lambda: request, getattr(request, "timeout_seconds", DEFAULT_TIMEOUT_SECONDS))

    async def ask(self, make: Callable[[], ControllerRequest[A]], timeout_seconds: float) -> A:
        """The answer to a request.

        Args:
            make: the request, for each attempt: the sender's epoch may change meanwhile.
            timeout_seconds: for all attempts together.

        Raises:
            BrokerNotAvailable, RequestTimedOut, NotController: there was no answer in time; whether it was done is unknown.
            ApiError: what the controller raised.
        """
        request = make()
        operation = OPERATIONS[type(request)]
        title = operation.title_of(request)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        did_exist = False
        if isinstance(request, CreateTopicRequest):
            try:
                async with asyncio.timeout_at(deadline + ANSWER_MARGIN_SECONDS):
                    did_exist = request.validate_only or await self._locator.describe_topic(request.new_topic.name) is not None
            except TimeoutError as error:
                raise RequestTimedOut(f"{title}: ZooKeeper gave no answer within {timeout_seconds:g} s") from error
        timeouts = 0
        was_sent = False
        while True:
            try:
                controller = await self._locator.find()
                is_repeat, was_sent = was_sent, True
                try:
                    async with asyncio.timeout_at(deadline + ANSWER_MARGIN_SECONDS):
                        answer = await controller.call(_with_timeout(make(), max(0.0, deadline - loop.time())))
                except TimeoutError as error:
                    raise RequestTimedOut(f"{title}: the controller gave no answer within {timeout_seconds:g} s") from error
                except _TRY_ANOTHER:
                    raise
                except ApiError as error:
                    if not is_repeat or operation.refusal_of_repeat is None or not isinstance(error, operation.refusal_of_repeat):
                        raise
                    return cast("A", await self._answer_of_first(request, error, did_exist))
                if is_repeat and operation.refusal_of_repeat is not None:
                    return cast("A", _without(answer, operation.refusal_of_repeat.code))
                return answer
            except _TRY_ANOTHER as error:
                pause = _BACKOFF.seconds(timeouts)
                if loop.time() + pause >= deadline:
                    raise
                log.debug("%s, trying again: %s", title, error)
                try:
                    async with asyncio.timeout(pause):
                        await self._locator.wait_for_another()
                except TimeoutError:
                    timeouts += 1

    async def _answer_of_first(self, request: ControllerRequest[Any], error: ApiError, did_exist: bool) -> TopicDescription | None:
        """What the first of several attempts would have been answered, where it was carried out; raises the error where it was not."""
        match request:
            case DeleteTopicRequest():
                return None
            case CreateTopicRequest() if not did_exist:
                found = await self._locator.describe_topic(request.new_topic.name)
                if found is not None and _is_as_asked(request.new_topic, *found):
                    return found[0]
            case CreatePartitionsRequest() if not request.validate_only:
                found = await self._locator.describe_topic(request.name)
                if found is not None and len(found[0].partitions) == request.total_count:
                    return found[0]
        raise error


def _with_timeout(request: ControllerRequest[A], timeout_seconds: float) -> ControllerRequest[A]:
    """A request that has a timeout gets what is left of it."""
    if not hasattr(request, "timeout_seconds"):
        return request
    changed: ControllerRequest[A] = replace(cast("Any", request), timeout_seconds=timeout_seconds)
    return changed


def _is_as_asked(asked: NewTopic, found: TopicDescription, overrides: Mapping[str, str]) -> bool:
    """Whether a topic is the one that was to be created, as far as the request says what that is like."""
    assignments = {index: tuple(replicas) for index, replicas in asked.assignments.items()}
    return (
        dict(overrides) == dict(asked.configs)
        and asked.partition_count in (BROKER_DEFAULT, len(found.partitions))
        and asked.replication_factor in (BROKER_DEFAULT, len(found.partitions[0].replicas))
        and assignments in ({}, {index: partition.replicas for index, partition in enumerate(found.partitions)})
    )


def _without(answer: Any, code: int) -> Any:
    """The outcomes of a repeated request: an error that says that nothing is left to do is none."""
    if not isinstance(answer, Mapping):
        return answer
    outcomes: Mapping[TopicPartition, PartitionOutcome] = answer
    return {key: PartitionOutcome(NONE) if outcome.error == code else outcome for key, outcome in outcomes.items()}

"""ISR changes on their way to the controller: many a call, asked again as long as they are wanted, never twice at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from tests.loops import until

from ottla.broker.replication import isr_alterations
from ottla.broker.replication.isr_alterations import IsrAlterations
from ottla.errors import NotController, OttlaError, StaleBrokerEpoch
from ottla.interbroker.calls import AlteredPartition, AlterPartitionRequest, AlterPartitionResponse, IsrChange, IsrMember
from ottla.lifecycle import Backoff
from ottla.model import BrokerId, PartitionState, TopicPartition

ONE, TWO = BrokerId(1), BrokerId(2)


def change(partition: int, partition_epoch: int = 0) -> IsrChange:
    return IsrChange(TopicPartition("events", partition), 3, partition_epoch, (IsrMember(ONE), IsrMember(TWO, 20)))


class Controller:
    """Answers when it is told to, and as it is told."""

    def __init__(self) -> None:
        self.requests: list[AlterPartitionRequest] = []
        self.failures: list[Exception] = []
        self.errors: list[int] = []
        self.allowed = asyncio.Semaphore(0)
        self.broker_epoch = 100

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.requests.append(request)
        await self.allowed.acquire()
        if self.failures:
            raise self.failures.pop(0)
        if self.errors:
            return AlterPartitionResponse(self.errors.pop(0), {})
        state = PartitionState(ONE, 3, (ONE, TWO), (ONE, TWO))
        return AlterPartitionResponse(0, {partition.topic_partition: AlteredPartition(0, state, 1) for partition in request.partitions})


class Asked:
    """What came of it."""

    def __init__(self, controller: Controller) -> None:
        self.answers: list[tuple[IsrChange, AlteredPartition]] = []
        self.unwanted: set[TopicPartition] = set()
        self.again = 0
        self.alterations = IsrAlterations(ONE, controller, self)

    def is_wanted(self, change: IsrChange) -> bool:
        return change.topic_partition not in self.unwanted

    def altered(self, change: IsrChange, altered: AlteredPartition) -> bool:
        self.answers.append((change, altered))
        self.again -= 1
        return self.again >= 0


@pytest.fixture
def controller() -> Controller:
    return Controller()


@asynccontextmanager
async def asking(controller: Controller) -> AsyncIterator[Asked]:
    asked = Asked(controller)
    try:
        yield asked
    finally:
        await asked.alterations.close()


@pytest.fixture
def asked(controller: Controller) -> AbstractAsyncContextManager[Asked]:
    return asking(controller)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isr_alterations, "BACKOFF", Backoff(first_seconds=0.001, longest_seconds=1.0))


async def test_what_comes_while_a_call_is_under_way_shares_the_next_one(controller: Controller, asked: Asked) -> None:
    asked.alterations.submit(change(0))
    await until(lambda: len(controller.requests) == 1)
    for number in range(1, 5):
        asked.alterations.submit(change(number))
    controller.allowed.release()
    await until(lambda: len(controller.requests) == 2)
    controller.allowed.release()
    await until(lambda: len(asked.answers) == 5)
    assert [[partition.topic_partition.partition for partition in request.partitions] for request in controller.requests] == [
        [0],
        [1, 2, 3, 4],
    ]
    assert [(request.broker_id, request.broker_epoch) for request in controller.requests] == [(ONE, 100)] * 2
    assert controller.requests[0].partitions[0].new_isr == (IsrMember(ONE, 100), IsrMember(TWO, 20))


@pytest.mark.parametrize("failure", [NotController("moved"), StaleBrokerEpoch("again"), TimeoutError()])
async def test_a_call_without_an_answer_is_made_again_with_the_latest_broker_epoch(
    controller: Controller, asked: Asked, failure: OttlaError | TimeoutError
) -> None:
    controller.failures.append(failure)
    wanted = change(0)
    asked.alterations.submit(wanted)
    await until(lambda: len(controller.requests) == 1)
    controller.broker_epoch = 101
    controller.allowed.release()
    await until(lambda: len(controller.requests) == 2)
    controller.allowed.release()
    await until(lambda: len(asked.answers) == 1)
    assert asked.answers[0][0] is wanted
    assert [request.broker_epoch for request in controller.requests] == [100, 101]


async def test_an_unexpected_error_of_the_controller_in_this_process_leaves_no_isr_as_it_is_for_good(
    controller: Controller, asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends that controller's term (`EventQueue`), and who has asked gets it as it is."""
    controller.failures.append(KeyError("state"))
    asked.alterations.submit(change(0))
    for _ in range(2):
        controller.allowed.release()
    await until(lambda: len(asked.answers) == 1)
    assert "AlterPartition of 1 ISRs failed unexpectedly, retrying" in caplog.text


async def test_an_error_of_the_whole_request_and_one_of_a_partition_are_asked_again(controller: Controller, asked: Asked) -> None:
    controller.errors.append(StaleBrokerEpoch.code)
    asked.again = 1
    for _ in range(3):
        controller.allowed.release()
    asked.alterations.submit(change(0))
    await until(lambda: len(asked.answers) == 2)
    assert len(controller.requests) == 3


async def test_what_was_overtaken_is_not_asked_any_more(controller: Controller, asked: Asked) -> None:
    controller.failures.append(NotController("moved"))
    for number in range(2):
        asked.alterations.submit(change(number))
    await until(lambda: len(controller.requests) == 1)
    asked.unwanted.add(TopicPartition("events", 0))
    newer = change(1, partition_epoch=4)
    asked.alterations.submit(newer)
    for _ in range(2):
        controller.allowed.release()
    await until(lambda: len(asked.answers) == 1)
    assert asked.answers[0][0] is newer
    assert [partition.partition_epoch for partition in controller.requests[1].partitions] == [4]


async def test_closing_ends_the_call_and_the_asking(controller: Controller, asked: Asked) -> None:
    asked.alterations.submit(change(0))
    await until(lambda: len(controller.requests) == 1)
    await asked.alterations.close()
    controller.allowed.release()
    await asyncio.sleep(0)
    assert not asked.answers

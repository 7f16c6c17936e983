"""A partition that a coordinator cannot read is read again, whatever the reason was; and what is missing is said."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import cast

import pytest
from tests.loops import until as until_it
from tests.unit.broker.wired import BROKER, Wired

from ottla.broker.coordinator import state_partition
from ottla.broker.coordinator.state_partition import StatePartition, loaded_at_last
from ottla.broker.groups.coordinator import OFFSETS_TOPIC
from ottla.broker.replication.internal_topics import InternalTopics
from ottla.broker.transactions.coordinator import TRANSACTIONS_TOPIC
from ottla.errors import ApiError, KafkaStorageError, NotCoordinator, RequestTimedOut
from ottla.lifecycle import Backoff, offload_nothing
from ottla.model import BrokerId, TopicPartition

KEY = TopicPartition("state", 0)


def partition_with(load: object) -> StatePartition:
    return cast("StatePartition", SimpleNamespace(key=KEY, load=load))


def test_any_error_makes_for_another_attempt_until_the_partition_is_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    failures: list[Exception] = [ValueError("a mistake"), KafkaStorageError("no disk"), ZeroDivisionError("another"), KeyError("a third")]

    async def load(offload: object) -> None:
        if failures:
            raise failures.pop(0)

    monkeypatch.setattr(state_partition.asyncio, "sleep", pause)  # type: ignore[attr-defined]
    asyncio.run(loaded_at_last(partition_with(load), offload_nothing))
    assert failures == []
    assert pauses == [1.0, 1.0, 2.0, 4.0]
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 4
    assert caplog.records[0].getMessage() == "state-0: loading failed, retrying in 1 s"
    assert caplog.records[0].exc_info is not None


def test_a_partition_that_is_led_by_another_broker_is_not_read_again() -> None:
    async def load(offload: object) -> None:
        raise NotCoordinator("led elsewhere")

    asyncio.run(loaded_at_last(partition_with(load), offload_nothing))


@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
async def test_coordinators_of_groups_and_of_transactions_come_up_after_an_error_that_nobody_has_foreseen(
    broker: Wired, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    monkeypatch.setattr(state_partition, "_BACKOFF", Backoff(first_seconds=0.001, longest_seconds=30.0))
    whole = InternalTopics.chunks
    failures = [RuntimeError("no one has thought of this")]

    def chunks(self: InternalTopics, *arguments: object) -> object:
        if failures:
            raise failures.pop()
        return whole(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(InternalTopics, "chunks", chunks)
    broker.topic(topic)
    parts = broker.parts
    coordinator = parts.groups if topic == OFFSETS_TOPIC else parts.transactions.coordinator
    assert coordinator.is_loading
    await until_it(lambda: not coordinator.is_loading)
    assert failures == []


async def test_what_keeps_a_record_from_being_committed_is_said_by_name(broker: Wired) -> None:
    """Below min.insync.replicas no one is slow: a replica is missing."""
    two, three = BrokerId(2), BrokerId(3)
    broker.topic("state", isr=(BROKER, two, three), min_insync_replicas="2")
    internal = InternalTopics(broker.parts.replicas, broker.produces, broker.clock, offload_nothing)
    _, partition = internal.append(KEY, [(b"key", b"value")])

    async def reason() -> str:
        with pytest.raises(RequestTimedOut) as caught:
            await internal.committed(partition, 1, 0.01)
        error: ApiError = caught.value
        return error.message

    assert await reason() == "state-0: the in-sync replicas were too slow"
    broker.change_isr("state", (BROKER,))
    assert await reason() == "state-0: 1 of 3 replicas are in sync, min.insync.replicas is 2; not in sync: 2, 3"

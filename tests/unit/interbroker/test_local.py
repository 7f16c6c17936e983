"""Brokers of one process that call each other: what a call over a network may come to, a call here comes to as well."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from tests.unit.interbroker.callers import Known, admit_all

from ottla.errors import BrokerNotAvailable, NotController, RequestTimedOut, StaleBrokerEpoch, UnknownServerError
from ottla.interbroker.calls import BrokerControl, Caller, ControllerControl, CreateTopicRequest, NewTopic, UpdateMetadataRequest
from ottla.interbroker.local import Call, LocalControl, LocalTransport
from ottla.model import BrokerId, BrokerRegistration

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
METADATA = UpdateMetadataRequest(ONE, 4, 5, (), ())
# Within these tests nothing comes of a longer wait.
NEVER_SECONDS = 120.0


class Recording(ControllerControl, BrokerControl):
    """Both protocols: remembers calls, and does what a test says."""

    def __init__(self, answer: Callable[[], Awaitable[Any]] | None = None) -> None:
        self.calls: list[Any] = []
        self._answer = answer

    async def call(self, request: Any) -> Any:
        self.calls.append(request)
        return await self._answer() if self._answer is not None else None


def at(hub: LocalControl, broker_id: BrokerId) -> LocalTransport:
    return hub.transport(Known(Caller(broker_id, 10 + broker_id, 4)))


async def serve(hub: LocalControl, broker_id: BrokerId, control: Any, check: Callable[[Caller], None] = admit_all) -> LocalTransport:
    transport = hub.transport(Known(Caller(broker_id, 10 + broker_id, 4), check))
    assert await transport.serve(broker_id, control, control) is None
    return transport


def registration(broker_id: BrokerId) -> BrokerRegistration:
    return BrokerRegistration(broker_id, ())


async def test_a_call_arrives_as_it_was_made_and_is_answered() -> None:
    hub, there = LocalControl(), Recording(answer=lambda: asyncio.sleep(0, "done"))
    here, _ = await serve(hub, ONE, Recording()), await serve(hub, TWO, there)
    assert await cast("Any", here.broker(registration(TWO)).update_metadata(METADATA)) == "done"
    topic = NewTopic("orders")
    await here.controller(registration(TWO)).create_topic(topic, timeout_seconds=2.5)
    assert there.calls == [METADATA, CreateTopicRequest(topic, False, 2.5)]


async def test_a_broker_calls_itself_like_any_other() -> None:
    own = Recording()
    here = await serve(LocalControl(), ONE, own)
    await here.broker(registration(ONE)).update_metadata(METADATA)
    assert own.calls == [METADATA]


async def test_what_the_receiver_raises_is_raised_at_the_caller() -> None:
    async def refuse() -> None:
        raise NotController("broker 2 is not")

    hub = LocalControl()
    here, _ = await serve(hub, ONE, Recording()), await serve(hub, TWO, Recording(refuse))
    with pytest.raises(NotController, match="broker 2 is not"):
        await here.controller(registration(TWO)).delete_topic("orders")


async def test_a_fault_of_the_receivers_is_no_exception_of_its_own_at_the_caller() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    hub = LocalControl()
    here, _ = await serve(hub, ONE, Recording()), await serve(hub, TWO, Recording(fail))
    with pytest.raises(UnknownServerError, match="update_metadata: broker 2: ZeroDivisionError"):
        await here.broker(registration(TWO)).update_metadata(METADATA)


async def test_a_caller_that_is_out_of_date_is_refused_by_the_controller_and_not_by_brokers() -> None:
    """What brokers are told carries its epochs in its own data, for the broker itself to judge; as over gRPC."""

    def refuse(caller: Caller) -> None:
        raise StaleBrokerEpoch(f"broker {caller.broker_id} has epoch {caller.broker_epoch}")

    hub, there = LocalControl(), Recording()
    here, _ = await serve(hub, ONE, Recording()), await serve(hub, TWO, there, refuse)
    with pytest.raises(StaleBrokerEpoch, match="broker 1 has epoch 11"):
        await here.controller(registration(TWO)).delete_topic("orders")
    await here.broker(registration(TWO)).update_metadata(METADATA)
    assert there.calls == [METADATA]


@pytest.mark.parametrize("why", ["never there", "stopped", "partitioned"])
async def test_a_broker_that_can_not_be_reached(why: str) -> None:
    hub, there = LocalControl(), Recording()
    here = await serve(hub, ONE, Recording())
    if why != "never there":
        other = await serve(hub, TWO, there)
        if why == "stopped":
            await other.close()
        else:
            hub.partition(TWO, ONE)
    with pytest.raises(BrokerNotAvailable, match="broker 2 cannot be reached"):
        await here.broker(registration(TWO)).update_metadata(METADATA)
    assert there.calls == []
    hub.heal()
    if why == "partitioned":
        await here.broker(registration(TWO)).update_metadata(METADATA)


async def test_only_the_two_named_are_cut_off() -> None:
    hub, there = LocalControl(), Recording()
    for broker_id in (ONE, TWO):
        await serve(hub, broker_id, there)
    three = await serve(hub, THREE, Recording())
    hub.partition(ONE, TWO)
    for broker_id in (ONE, TWO):
        await three.broker(registration(broker_id)).update_metadata(METADATA)
    assert len(there.calls) == 2


async def test_a_caller_that_gives_up_does_not_stop_what_it_asked_for() -> None:
    finished, may_finish, begun = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await may_finish.wait()
        finished.set()

    hub = LocalControl()
    here, _ = await serve(hub, ONE, Recording()), await serve(hub, TWO, Recording(work))
    calling = asyncio.ensure_future(here.broker(registration(TWO)).update_metadata(METADATA))
    await asyncio.wait_for(begun.wait(), NEVER_SECONDS)
    calling.cancel()
    may_finish.set()
    await asyncio.wait_for(finished.wait(), NEVER_SECONDS)


async def test_an_answer_that_does_not_come_is_not_waited_for_for_ever() -> None:
    hub = LocalControl(timeout_seconds=0.01)
    here, there = await serve(hub, ONE, Recording()), await serve(hub, TWO, Recording(asyncio.Event().wait))
    with pytest.raises(RequestTimedOut, match="update_metadata: broker 2 gave no answer"):
        await here.broker(registration(TWO)).update_metadata(METADATA)
    there.abort()


@pytest.mark.parametrize("by_name", [True, False])
async def test_an_operation_that_is_given_longer_than_a_call_gets_it(by_name: bool) -> None:
    """Method: calls may last no time at all, and the operation an hour."""
    hub = LocalControl(timeout_seconds=1e-9)
    here, _ = await serve(hub, ONE, Recording()), await serve(hub, TWO, Recording(answer=lambda: asyncio.sleep(0.01)))
    controller = here.controller(registration(TWO))
    await (controller.delete_topic("orders", timeout_seconds=3600) if by_name else controller.delete_topic("orders", 3600))


async def test_who_waits_for_a_broker_that_is_killed_hears_of_it_at_once() -> None:
    hub, begun, ended = LocalControl(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    here, there = await serve(hub, ONE, Recording()), await serve(hub, TWO, Recording(work))
    calling = asyncio.ensure_future(here.broker(registration(TWO)).update_metadata(METADATA))
    await asyncio.wait_for(begun.wait(), NEVER_SECONDS)
    there.abort()
    with pytest.raises(BrokerNotAvailable, match="broker 2 has gone"):
        await asyncio.wait_for(calling, NEVER_SECONDS)
    assert ended.is_set()


async def test_a_broker_that_is_back_is_called_and_its_former_self_can_not_take_it_away() -> None:
    hub, former, again = LocalControl(), Recording(), Recording()
    here, killed = await serve(hub, ONE, Recording()), await serve(hub, TWO, former)
    await serve(hub, TWO, again)
    await killed.close()
    await here.broker(registration(TWO)).update_metadata(METADATA)
    assert (former.calls, len(again.calls)) == ([], 1)


async def test_calls_can_be_lost_and_repeated_on_the_way() -> None:
    """What the simulation does to them; it sees who calls whom."""
    hub, there, seen = LocalControl(), Recording(), []

    async def twice_without_an_answer(call: Call, perform: Callable[[], Awaitable[Any]]) -> Any:
        seen.append(call)
        await perform()
        await perform()
        raise RequestTimedOut("lost")

    here, _ = await serve(hub, ONE, Recording()), await serve(hub, TWO, there)
    hub.carry = twice_without_an_answer
    with pytest.raises(RequestTimedOut, match="lost"):
        await here.broker(registration(TWO)).update_metadata(METADATA)
    assert there.calls == [METADATA] * 2
    assert seen == [Call(ONE, TWO, "update_metadata")]

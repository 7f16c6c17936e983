"""`ottla.interbroker.calls` inside one process: brokers that share an event loop call each other without a socket.

`LocalControl` is the one hub of such a cluster, and each of its brokers has a `LocalTransport` at it. A call behaves as
one over a network does: it takes a task of its own at the receiver, which continues when the caller gives up; a broker
that is not there raises BrokerNotAvailable, one that does not answer RequestTimedOut; requests and answers are data
that is not changed afterwards. That leaves tests and the simulation one place to have bad days in: `partition` cuts
two brokers off from each other, `carry` may delay, lose or repeat any call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar, cast

from ottla.errors import ApiError, BrokerNotAvailable, RequestTimedOut, UnknownServerError
from ottla.interbroker.calls import (
    DEFAULT_TIMEOUT_SECONDS,
    OPERATIONS,
    BrokerControl,
    BrokerRequest,
    Caller,
    ControllerControl,
    ControllerRequest,
    OwnBroker,
    RemoteBroker,
    RemoteController,
    Request,
    deadline_seconds,
)
from ottla.lifecycle import Tasks
from ottla.model import NO_LEADER, BrokerId, BrokerRegistration

log: Final = logging.getLogger(__name__)

A = TypeVar("A")

# What calls under way are given when a broker stops.
GRACE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Call:
    """One call on its way."""

    sender: BrokerId  # NO_LEADER for one that is not part of the cluster yet
    receiver: BrokerId
    method: str


Perform: TypeAlias = Callable[[], Awaitable[Any]]
# Takes a call to its receiver by `perform`, and the answer back.
Carry: TypeAlias = Callable[[Call, Perform], Awaitable[Any]]


async def carry_at_once(_: Call, perform: Perform) -> Any:
    """A network without any failure of its own."""
    return await perform()


class LocalControl:
    """The brokers of one process.

    Args:
        timeout_seconds: how long a caller waits for an answer, as `controller.socket.timeout.ms`.
    """

    def __init__(self, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        self.carry: Carry = carry_at_once
        self._timeout_seconds = timeout_seconds
        self._served: dict[BrokerId, LocalTransport] = {}
        self._cut: set[frozenset[BrokerId]] = set()

    def transport(self, broker: OwnBroker) -> LocalTransport:
        """A broker's way to the others."""
        return LocalTransport(self, broker)

    def partition(self, one: BrokerId, other: BrokerId) -> None:
        """Cuts two brokers off from each other. Calls under way are answered; later ones raise BrokerNotAvailable."""
        self._cut.add(frozenset((one, other)))

    def heal(self) -> None:
        """Ends every `partition`."""
        self._cut.clear()

    # For the transports.

    def enter(self, broker_id: BrokerId, transport: LocalTransport) -> None:
        """The broker is called by this transport from now on, whichever had its id before."""
        self._served[broker_id] = transport

    def leave(self, broker_id: BrokerId, transport: LocalTransport) -> None:
        """The broker is not there any more."""
        if self._served.get(broker_id) is transport:
            del self._served[broker_id]

    async def call(self, call: Call, caller: Caller, request: Request[A]) -> A:
        """Makes a call and gives its answer.

        Raises:
            BrokerNotAvailable: the receiver is not there, or was not any more when it should have answered.
            RequestTimedOut: there was no answer.
            ApiError: what the receiver raised.
        """

        async def arrive() -> A:
            receiver = self._served.get(call.receiver)
            if receiver is None or frozenset((call.sender, call.receiver)) in self._cut:
                raise BrokerNotAvailable(f"{call.method}: broker {call.receiver} cannot be reached")
            return await receiver.performed(call, caller, request)

        try:
            async with asyncio.timeout(deadline_seconds(request, self._timeout_seconds)):
                answer: A = await self.carry(call, arrive)
                return answer
        except TimeoutError as error:
            raise RequestTimedOut(f"{call.method}: broker {call.receiver} gave no answer") from error


class LocalTransport:
    """One broker at a hub: `ottla.interbroker.calls.ControlTransport`. No caller comes from outside, so there is no secret."""

    secret: str | None = None

    def __init__(self, hub: LocalControl, broker: OwnBroker) -> None:
        self._hub = hub
        self._broker = broker
        self._own = NO_LEADER
        self._served: tuple[BrokerControl, ControllerControl] | None = None
        self._performing: Final = Tasks()
        self._context = copy_context()

    def broker(self, registration: BrokerRegistration) -> BrokerControl:
        """A broker, by its id."""
        return RemoteBroker(_Carrier(self, registration.broker_id))

    def controller(self, registration: BrokerRegistration) -> ControllerControl:
        """The controller, by its broker's id."""
        return RemoteController(_Carrier(self, registration.broker_id))

    async def call(self, receiver: BrokerId, request: Request[A]) -> A:
        """Makes a call. The caller is as it is now, as in a request that is on its way."""
        return await self._hub.call(Call(self._own, receiver, OPERATIONS[type(request)].name), self._broker.caller(), request)

    async def serve(self, own: BrokerId, broker_control: BrokerControl, controller_control: ControllerControl) -> str | None:
        """Makes this broker reachable at the hub; there is no endpoint to register."""
        self._own = own
        self._served = broker_control, controller_control
        self._context = copy_context()
        self._hub.enter(own, self)
        return None

    async def show_ready(self, is_ready: bool) -> None:
        """There is no health service here."""

    async def close(self) -> None:
        """Is not reachable any more; calls that are being performed are given a moment. Safe to repeat."""
        self._hub.leave(self._own, self)
        await self._performing.wait(GRACE_SECONDS)
        self.abort()
        await self._performing.wait()

    def abort(self) -> None:
        """Is gone at once, as a process that is killed: what is being performed stops where it is."""
        self._hub.leave(self._own, self)
        self._performing.cancel()

    # What arrives.

    async def performed(self, call: Call, caller: Caller, request: Request[A]) -> A:
        """Performs a call in a task of its own, to its end even if its caller gives up."""
        # As the receiver's work, also in its log lines.
        task = asyncio.get_running_loop().create_task(self._perform(caller, request), context=self._context.copy())
        self._performing.add(task)
        task.add_done_callback(self._ended)
        await asyncio.wait([task])
        if task.cancelled():
            raise BrokerNotAvailable(f"{call.method}: broker {call.receiver} has gone")
        error = task.exception()
        if error is not None and not isinstance(error, ApiError):
            log.error("%s, called by broker %d, failed", call.method, call.sender, exc_info=error)
            raise UnknownServerError(f"{call.method}: broker {call.receiver}: {error!r}") from error
        return task.result()

    async def _perform(self, caller: Caller, request: Request[A]) -> A:
        assert self._served is not None, "a transport that is at the hub serves"
        broker, controller = self._served
        if isinstance(request, BrokerRequest):
            return cast("A", await broker.call(request))
        assert isinstance(request, ControllerRequest), request
        self._broker.check_caller(caller)
        return cast("A", await controller.call(request))

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._performing.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have given up


@dataclass(frozen=True, slots=True)
class _Carrier:
    """Takes requests to one broker at the hub."""

    transport: LocalTransport
    receiver: BrokerId

    async def call(self, request: Request[A]) -> A:
        """Makes the call."""
        return await self.transport.call(self.receiver, request)

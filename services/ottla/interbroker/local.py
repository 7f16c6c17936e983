"""`ottla.interbroker.calls` inside one process: brokers that share an event loop call each other without a socket.

`LocalControl` is the one hub of such a cluster, and each of its brokers has a `LocalTransport` at it. A call behaves as
one over a network does: it takes a task of its own at the receiver, which goes on when the caller gives up; a broker
that is not there raises BrokerNotAvailable, one that does not answer RequestTimedOut; requests and answers are data
that nobody changes afterwards. That leaves tests and the simulation one place to have bad days in: `partition` cuts
two brokers off from each other, `carry` may delay, lose or repeat any call.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from ottla.errors import ApiError, BrokerNotAvailable, RequestTimedOut, UnknownServerError
from ottla.interbroker.calls import DEFAULT_TIMEOUT_SECONDS, BrokerControl, Caller, ControllerControl
from ottla.model import NO_LEADER, BrokerId, BrokerRegistration

log: Final = logging.getLogger(__name__)

# An operation that is given a time of its own is answered for at its end.
ANSWER_MARGIN_SECONDS: Final = 1.0
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

    def transport(self, caller: Callable[[], Caller], check_caller: Callable[[Caller], None]) -> LocalTransport:
        """A broker's way to the others.

        Args:
            caller: who that broker is now.
            check_caller: raises StaleBrokerEpoch or StaleControllerEpoch for a caller that is out of date.
        """
        return LocalTransport(self, caller, check_caller)

    def partition(self, one: BrokerId, other: BrokerId) -> None:
        """Cuts two brokers off from each other. Calls under way are answered; later ones raise BrokerNotAvailable."""
        self._cut.add(frozenset((one, other)))

    def heal(self) -> None:
        """Ends every `partition`."""
        self._cut.clear()

    # For the transports.

    def enter(self, broker_id: BrokerId, transport: LocalTransport) -> None:
        """The broker is called by this transport from now on, whoever had its id before."""
        self._served[broker_id] = transport

    def leave(self, broker_id: BrokerId, transport: LocalTransport) -> None:
        """The broker is not there any more."""
        if self._served.get(broker_id) is transport:
            del self._served[broker_id]

    async def call(self, call: Call, perform: Callable[[LocalTransport], Coroutine[Any, Any, Any]], timeout_seconds: float | None) -> Any:
        """Makes a call and gives its answer.

        Raises:
            BrokerNotAvailable: the receiver is not there, or was not any more when it should have answered.
            RequestTimedOut: there was no answer.
            ApiError: what the receiver raised.
        """

        async def arrive() -> Any:
            receiver = self._served.get(call.receiver)
            if receiver is None or frozenset((call.sender, call.receiver)) in self._cut:
                raise BrokerNotAvailable(f"{call.method}: broker {call.receiver} can not be reached")
            return await receiver.performed(call, perform(receiver))

        try:
            async with asyncio.timeout(timeout_seconds or self._timeout_seconds):
                return await self.carry(call, arrive)
        except TimeoutError as error:
            raise RequestTimedOut(f"{call.method}: broker {call.receiver} gave no answer") from error


class LocalTransport:
    """One broker at a hub: `ottla.interbroker.calls.ControlTransport`."""

    def __init__(self, hub: LocalControl, caller: Callable[[], Caller], check_caller: Callable[[Caller], None]) -> None:
        self._hub = hub
        self._caller = caller
        self._check_caller = check_caller
        self._own = NO_LEADER
        self._served: tuple[BrokerControl, ControllerControl] | None = None
        self._performing: set[asyncio.Task[Any]] = set()
        self._context = copy_context()

    def broker(self, registration: BrokerRegistration) -> BrokerControl:
        """A broker, by its id."""

        def performer(method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Callable[[LocalTransport], Any]:
            return lambda receiver: receiver.perform_as_broker(method, arguments, keywords)

        return cast("BrokerControl", _Remote(self._calling(registration.broker_id, performer)))

    def controller(self, registration: BrokerRegistration) -> ControllerControl:
        """The controller, by its broker's id."""

        def performer(method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Callable[[LocalTransport], Any]:
            caller = self._caller()  # as it is when the call is made, like a request that is on its way
            return lambda receiver: receiver.perform_as_controller(caller, method, arguments, keywords)

        return cast("ControllerControl", _Remote(self._calling(registration.broker_id, performer)))

    async def serve(self, own: BrokerId, broker_control: BrokerControl, controller_control: ControllerControl) -> str | None:
        """Makes this broker reachable at the hub; there is no endpoint to register."""
        self._own = own
        self._served = broker_control, controller_control
        self._context = copy_context()
        self._hub.enter(own, self)
        return None

    async def show_ready(self, is_ready: bool) -> None:
        """Nobody can ask for health here."""

    async def close(self) -> None:
        """Is not reachable any more; calls that are being performed are given a moment. Safe to repeat."""
        self._hub.leave(self._own, self)
        if self._performing:
            await asyncio.wait(set(self._performing), timeout=GRACE_SECONDS)
        self.abort()
        if self._performing:
            await asyncio.wait(set(self._performing))

    def abort(self) -> None:
        """Is gone at once, as a process that is killed: what is being performed stops where it is."""
        self._hub.leave(self._own, self)
        for task in self._performing:
            task.cancel()

    # What arrives.

    async def performed(self, call: Call, performing: Coroutine[Any, Any, Any]) -> Any:
        """Performs a call in a task of its own, to its end whether or not anybody still waits for it."""
        # As the receiver's work, also in its log lines.
        task = asyncio.get_running_loop().create_task(performing, context=self._context.copy())
        self._performing.add(task)
        task.add_done_callback(self._ended)
        await asyncio.wait([task])
        if task.cancelled():
            raise BrokerNotAvailable(f"{call.method}: broker {call.receiver} has gone")
        error = task.exception()
        if error is not None and not isinstance(error, ApiError):
            log.error("%s, asked for by broker %d, failed", call.method, call.sender, exc_info=error)
            raise UnknownServerError(f"{call.method}: broker {call.receiver}: {error!r}") from error
        return task.result()

    async def perform_as_broker(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """A call of the controller's."""
        assert self._served is not None, "who is at the hub serves"
        return await getattr(self._served[0], method)(*arguments, **keywords)

    async def perform_as_controller(self, caller: Caller, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """A call to this broker as the controller."""
        assert self._served is not None, "who is at the hub serves"
        self._check_caller(caller)
        return await getattr(self._served[1], method)(*arguments, **keywords)

    def _calling(
        self, receiver: BrokerId, performer: Callable[[str, tuple[Any, ...], dict[str, Any]], Callable[[LocalTransport], Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def call(method: str, *arguments: Any, **keywords: Any) -> Any:
            given = _timeout_seconds_in(method, arguments, keywords)
            timeout_seconds = None if given is None else given + ANSWER_MARGIN_SECONDS
            return await self._hub.call(Call(self._own, receiver, method), performer(method, arguments, keywords), timeout_seconds)

        return call

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._performing.discard(task)
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()  # whoever asked may have given up


def _timeout_seconds_in(method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> float | None:
    """What a call of the controller is given for itself."""
    declared = getattr(ControllerControl, method, None)
    if declared is None:
        return None
    given: float | None = inspect.signature(declared).bind(None, *arguments, **keywords).arguments.get("timeout_seconds")
    return given


class _Remote:
    """Every method of either protocol, as a call."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        def call(*arguments: Any, **keywords: Any) -> Awaitable[Any]:
            return self._call(method, *arguments, **keywords)

        return call

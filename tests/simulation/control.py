"""What brokers and the controller say to each other, over the simulated network.

`ottla.interbroker.local.LocalControl` takes calls to their receivers; here is how: late, twice never, perhaps not at
all, and in the receiver's node, whoever called. Two calls between the same brokers are carried apart and may overtake
each other, as streams of one HTTP/2 connection may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.simulation.network import Network, Stream
from tests.simulation.nodes import NODE, Node
from tests.simulation.trace import Trace

from ottla.errors import ApiError, BrokerNotAvailable
from ottla.interbroker.local import Call, Perform

MOST_STRAGGLING_SECONDS: Final = 30.0


class CarriedControl:
    """Carries calls; `carry` is what `LocalControl` wants.

    Args:
        node_of: the node that is a broker now, or None while there is none.
    """

    def __init__(self, network: Network, random: Random, trace: Trace, node_of: Callable[[int], Node | None]) -> None:
        self._network: Final = network
        self._random: Final = random
        self._trace: Final = trace
        self._node_of: Final = node_of
        self.straggling = 0.0  # the chance that a call arrives only when its caller has given up, and perhaps repeated it
        # Which calls wait for an answer of a node, to be told when it dies.
        self._waiting: dict[asyncio.Future[Any], tuple[Node, Node, str]] = {}

    async def carry(self, call: Call, perform: Perform) -> Any:
        """Takes a call to its receiver and its answer back. Who gives up waiting leaves it to its fate."""
        sender, receiver = NODE.get(), self._node_of(int(call.receiver))
        assert sender is not None, "a call comes from a node"
        self._trace.note(f"call {call.method} of broker {call.receiver}")
        if receiver is None:
            await asyncio.sleep(self._network.delay(sender.name, sender.name))
            raise BrokerNotAvailable(f"{call.method}: no one listens at broker {call.receiver}")
        if receiver is sender:
            return await perform()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        there, back = Stream(self._network, sender.name, receiver), Stream(self._network, receiver.name, sender)
        self._waiting[answer] = (sender, receiver, call.method)
        if self.straggling and self._random.random() < self.straggling:
            self._delay(there, back, answer, perform, f"{call.method} of broker {call.receiver}")
            return await answer
        there.send(self._arrived, perform, back, answer)
        try:
            return await answer
        finally:
            del self._waiting[answer]
            if not answer.done() and self._random.random() < 0.5:
                there.cut()  # the call was cancelled before it was sent again

    def _delay(self, there: Stream, back: Stream, answer: asyncio.Future[Any], perform: Perform, what: str) -> None:
        """Has a call arrive long after its caller has heard that the connection is lost."""
        seconds = self._random.uniform(1.0, MOST_STRAGGLING_SECONDS)
        self._trace.tell(f"{what} arrives after {seconds:.1f} s, and its caller does not wait")
        loop, outside = self._network.loop, self._network.outside
        loop.call_later(seconds, there.send, self._arrived, perform, back, answer, context=outside.copy())
        loop.call_later(self._random.uniform(0.0, 1.0), _fail, answer, BrokerNotAvailable(f"{what}: the connection was lost"))

    def node_died(self, node: Node, after: float) -> None:
        """Whoever waits for an answer of this node learns after a while that there will be none."""
        for answer, (sender, receiver, method) in list(self._waiting.items()):
            if receiver is node:
                error = BrokerNotAvailable(f"{method}: the connection to {node.name} was lost")
                self._network.loop.call_later(after, _fail, answer, error, context=sender.context.copy())

    def cut(self, one: str, other: str) -> None:
        """The calls under way between two nodes, by name, lose their connection; they may be performed all the same."""
        for answer, (sender, receiver, method) in list(self._waiting.items()):
            if {sender.name, receiver.name} == {one, other}:
                error = BrokerNotAvailable(f"{method}: the connection was cut")
                self._network.loop.call_later(0.0, _fail, answer, error, context=sender.context.copy())

    def _arrived(self, perform: Perform, back: Stream, answer: asyncio.Future[Any]) -> None:
        asyncio.get_running_loop().create_task(self._perform(perform, back, answer))

    async def _perform(self, perform: Perform, back: Stream, answer: asyncio.Future[Any]) -> None:
        try:
            result = await perform()
        except ApiError as error:
            back.send(_fail, answer, error)
        else:
            back.send(_succeed, answer, result)


def _succeed(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any], error: ApiError) -> None:
    if not answer.done():
        answer.set_exception(error)

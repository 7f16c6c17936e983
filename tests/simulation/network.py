"""Connections between nodes, as TCP makes them: in order within one, in no order between two.

A message takes a time that chance draws, now and then a long one (it was lost and sent again). Between two nodes that
are blocked nothing arrives; what was sent meanwhile waits, as it does in a kernel, and arrives late when the way is
free again, if the connection still lives. A connection that is cut has lost whatever was on its way.

Every callback runs in its receiver's node, so that nothing arrives at one that was killed, and at one that is paused
only afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from tests.simulation.loop import VirtualLoop
from tests.simulation.nodes import NODE, Node
from tests.simulation.trace import Trace


@dataclass(slots=True)
class Weather:
    """How the network is, between any two nodes. Seconds."""

    shortest: float = 0.0001
    usual: float = 0.001
    lost: float = 0.001  # the chance that a message has to be sent again
    again: float = 0.3  # and how long that takes, at most; TCP's first retransmission comes after 0.2 s


class Stream:
    """One direction of one connection: what is sent arrives in its order, or not at all once it is cut."""

    __slots__ = ("_arrived_at", "_life", "_network", "_waiting", "is_cut", "receiver", "receiver_name", "sender")

    def __init__(self, network: Network, sender: str, receiver: Node | str) -> None:
        """From a node, by name, to a node or to what is none, by name."""
        self._network = network
        self._arrived_at = 0.0
        self._life = 0  # grows when what is on its way is lost
        self._waiting: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.sender: Final = sender
        self.receiver: Final = receiver if isinstance(receiver, Node) else None
        self.receiver_name: Final = receiver.name if isinstance(receiver, Node) else receiver
        self.is_cut = False

    def send(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Has the callback called at the receiver, after everything sent before."""
        if self.is_cut:
            return
        network = self._network
        if self._waiting or network.is_blocked(self.sender, self.receiver_name):
            self._waiting.append((callback, arguments))
            network.held(self)
        else:
            self._put(callback, arguments)

    def cut(self) -> None:
        """Nothing arrives any more, not even what is on its way."""
        self.is_cut = True
        self._waiting.clear()

    def lose(self) -> None:
        """What is on its way does not arrive; what is sent from now on does."""
        self._life += 1
        self._waiting.clear()

    def released(self) -> None:
        """The way is free again."""
        waiting, self._waiting = self._waiting, []
        for callback, arguments in waiting:
            self._put(callback, arguments)

    def _put(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        network = self._network
        at = max(self._arrived_at, network.loop.time() + network.delay(self.sender, self.receiver_name))
        self._arrived_at = at
        context = network.outside if self.receiver is None else self.receiver.context.copy()
        network.loop.call_at(at, self._arrive, self._life, callback, arguments, context=context)

    def _arrive(self, life: int, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        if not self.is_cut and life == self._life:
            callback(*arguments)


class Network:
    """Who can reach whom, and how fast."""

    def __init__(self, loop: VirtualLoop, random: Random, trace: Trace) -> None:
        self.loop: Final = loop
        self.weather = Weather()
        self._random: Final = random
        self._trace: Final = trace
        self._blocked: set[tuple[str, str]] = set()
        self._away: set[str] = set()
        self._slow: dict[str, float] = {}
        self._held: dict[Stream, None] = {}
        self.outside: Final = _outside()

    def delay(self, sender: str, receiver: str) -> float:
        """How long the next message takes."""
        random, weather = self._random, self.weather
        delay = weather.shortest + random.expovariate(1 / weather.usual)
        if random.random() < weather.lost:
            delay += random.uniform(0.2, 1.0) * weather.again
        if self._slow:
            delay *= max(self._slow.get(sender, 1.0), self._slow.get(receiver, 1.0))
        return delay

    # Between nodes, by name.

    def is_blocked(self, sender: str, receiver: str) -> bool:
        return (bool(self._blocked) and (sender, receiver) in self._blocked) or (
            bool(self._away) and (sender in self._away or receiver in self._away)
        )

    def block(self, sender: str, receiver: str) -> None:
        """Nothing arrives in this direction until `unblock`."""
        self._blocked.add((sender, receiver))

    def unblock(self, sender: str, receiver: str) -> None:
        """What waited follows."""
        self._blocked.discard((sender, receiver))
        self._release()

    def unblock_all(self) -> None:
        self._blocked.clear()
        self._release()

    def set_away(self, name: str, is_away: bool) -> None:
        """No one hears of this one, nor it of anybody."""
        if is_away:
            self._away.add(name)
        else:
            self._away.discard(name)
            self._release()

    def _release(self) -> None:
        for stream in [stream for stream in self._held if not self.is_blocked(stream.sender, stream.receiver_name)]:
            del self._held[stream]
            stream.released()

    def slow(self, name: str, factor: float) -> None:
        """Everything from and to this node takes so many times as long; 1 ends that."""
        if factor == 1.0:
            self._slow.pop(name, None)
        else:
            self._slow[name] = factor

    def held(self, stream: Stream) -> None:
        """A stream waits for the way to be free."""
        self._held[stream] = None


def _outside() -> Context:
    context = Context()
    context.run(NODE.set, None)
    return context

"""Several brokers of one cluster on one event loop: what `ottla dev --brokers 3` and the embedded cluster of tests run.

They are brokers like any other, with ports and directories of their own. What they share is the coordination, an
embedded twin of ZooKeeper, and the hub by which they call each other. With `zookeeper.connect` they share nothing but
the process: they meet in that ZooKeeper and call each other by gRPC, as on machines of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from ottla.broker.server import Broker
from ottla.clock import Clock, SystemClock
from ottla.config.broker import BrokerSettings
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.sessions import listen
from ottla.interbroker.local import LocalControl
from ottla.model import BrokerId


class InProcessBrokers:
    """The brokers, each by its id.

    Args:
        broker_ids: which.
        settings_of: a broker's settings, asked for at each of its starts.
        coordination_directory: where the shared coordination is kept.
    """

    def __init__(
        self,
        broker_ids: Iterable[BrokerId],
        settings_of: Callable[[BrokerId], BrokerSettings],
        coordination_directory: Path,
        clock: Clock | None = None,
    ) -> None:
        self.running: dict[BrokerId, Broker] = {}
        self.hub = LocalControl()
        self._broker_ids = tuple(broker_ids)
        self._settings_of = settings_of
        self._clock = clock or SystemClock()
        self._coordination_directory = coordination_directory
        self._zookeeper: EmbeddedZooKeeper | None = None
        self._sessions: dict[BrokerId, EmbeddedSession] = {}
        self._listening = AsyncExitStack()
        self.zookeeper_address: str | None = None  # where the twin answers ZooKeeper's protocol

    async def start(self) -> None:
        """Starts all of them, or none."""
        try:
            for broker_id in self._broker_ids:
                await self.start_broker(broker_id)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stops all cleanly, one by one, and then what they share. Each hands over once: what no other can lead now, none can later."""
        async with AsyncExitStack() as stack:
            if self._zookeeper is not None:
                stack.push_async_callback(self._zookeeper.close)
                stack.push_async_callback(self._listening.aclose)
                self._zookeeper = None
            for index, broker_id in enumerate(list(self.running)):
                stack.push_async_callback(self.running.pop(broker_id).stop, handover_attempts=min(index, 1))

    def warn_of_missing_brokers(self) -> None:
        """As `Broker.warn_of_missing_brokers`, of all of them."""
        next(iter(self.running.values())).warn_of_missing_brokers()

    async def start_broker(self, broker_id: BrokerId) -> Broker:
        """Starts one, for the first time or again."""
        assert broker_id not in self.running, f"broker {broker_id} is running"
        settings = self._settings_of(broker_id)
        if settings.zookeeper_connect is not None:
            broker = Broker(settings, clock=self._clock)
        else:
            if self._zookeeper is None:
                self._zookeeper = EmbeddedZooKeeper(self._coordination_directory, self._clock)
                self.zookeeper_address = await listen(settings, self._zookeeper, self._listening)
            broker = Broker(settings, partial(self._session, broker_id), clock=self._clock, transport=self.hub.transport)
        await broker.start()
        self.running[broker_id] = broker
        return broker

    async def stop_broker(self, broker_id: BrokerId) -> None:
        await self.running.pop(broker_id).stop()

    async def kill(self, broker_id: BrokerId) -> None:
        """Ends one as a crash does, its session included."""
        await self.running.pop(broker_id).kill()

    async def expire_session(self, broker_id: BrokerId) -> None:
        """Has a broker's session time out while it runs, as when it was cut off or held up for long."""
        assert self._zookeeper is not None, "sessions are ended here where the coordination is"
        await self._zookeeper.expire(self._sessions[broker_id])

    async def _session(self, broker_id: BrokerId) -> EmbeddedSession:
        assert self._zookeeper is not None
        session = self._sessions[broker_id] = await self._zookeeper.session()
        return session

    async def failed(self) -> str:
        """Waits until one of those that run now cannot continue, and says why."""
        waiting = [asyncio.ensure_future(broker.failed()) for broker in self.running.values()]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

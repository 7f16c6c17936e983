"""The controller's channels to the living brokers, one for each: Kafka's ControllerChannelManager.

A channel sends one request at a time. What could not be sent is sent again after a pause, until the broker's registration ends or
this is not the controller any more; `request_batch` says what is merged meanwhile.

Invariant: a broker is never left without what waits for it, but by the end of its registration or of the term.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from ottla.broker.controller.request_batch import BrokerRequestBatch, request_of
from ottla.broker.controller.state import ClusterState
from ottla.errors import NONE, ApiError, StaleControllerEpoch
from ottla.interbroker.calls import BrokerControl, ControlTransport, LeaderAndIsrRequest, StopReplicaRequest
from ottla.lifecycle import Backoff
from ottla.model import BrokerId, BrokerRegistration, TopicPartition

log: Final = logging.getLogger(__name__)

# The pause after a request could not be sent; it doubles up to the second.
_BACKOFF: Final = Backoff(first_seconds=0.05, longest_seconds=1.0)


@dataclass(frozen=True, slots=True)
class BrokerResponse:
    """A broker's answer about its replicas: the error code of each, 0 where it does as the request says.

    `outdated_epochs` has the leader epochs that it refuses, each with the one that its log has.
    """

    registration: BrokerRegistration
    errors: Mapping[TopicPartition, int]
    is_stop: bool  # or else LeaderAndIsr
    outdated_epochs: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)


class ChannelListener(Protocol):
    """What hears of a broker's answers."""

    def broker_responded(self, response: BrokerResponse) -> None:
        """A broker has answered StopReplica or LeaderAndIsr."""
        ...

    def fenced(self, why: str) -> None:
        """A broker knows of a later controller."""
        ...


class Channel:
    """The channel to one registration of one broker.

    Args:
        registration: which.
        state: read when a request is made.
        request_numbers: rises with each request of this process, whatever channel and term it is of.
        transport: asked for the broker at each call.
        listener: hears of answers.
    """

    def __init__(
        self,
        registration: BrokerRegistration,
        state: ClusterState,
        request_numbers: Iterator[int],
        transport: ControlTransport,
        listener: ChannelListener,
    ) -> None:
        self.registration = registration
        self._pending = BrokerRequestBatch()
        self._state = state
        self._request_numbers = request_numbers
        self._transport = transport
        self._listener = listener
        self._has_pending = asyncio.Event()
        self._has_sent_all = asyncio.Event()
        self._has_sent_all.set()
        self._sending = asyncio.ensure_future(self._send())

    @property
    def is_over(self) -> bool:
        """Whether nothing is sent any more."""
        return self._sending.done()

    def add(self, batch: BrokerRequestBatch) -> None:
        """Has the broker sent a batch, after what waits already."""
        self._pending.merge(batch)
        self._has_sent_all.clear()
        self._has_pending.set()

    async def wait_acknowledged(self) -> None:
        """Waits until the broker has answered all that it was to be sent, or its channel is closed."""
        await self._has_sent_all.wait()

    def close(self) -> None:
        """Sends no more, at once."""
        self._sending.cancel()
        self._has_sent_all.set()

    async def wait_closed(self) -> None:
        """Waits until no request is under way any more."""
        await asyncio.wait([self._sending])

    async def _send(self) -> None:
        failures = 0
        while True:
            batch = self._pending.next_request()
            if batch is None:
                self._has_pending.clear()
                self._has_sent_all.set()
                await self._has_pending.wait()
                continue
            try:
                await self._send_one(self._transport.broker(self.registration), batch)
                failures = 0
            except StaleControllerEpoch as error:
                self._listener.fenced(str(error))
                return
            except Exception as error:
                # Whatever it was, the broker must not be left without what was to be sent.
                self._pending.put_back(batch)
                is_expected = isinstance(error, ApiError)
                level = logging.INFO if is_expected else logging.ERROR
                log.log(level, "broker %d: request failed, retrying: %s", self.registration.broker_id, error, exc_info=not is_expected)
                await asyncio.sleep(_BACKOFF.seconds(failures))
                failures += 1

    async def _send_one(self, broker: BrokerControl, batch: BrokerRequestBatch) -> None:
        request = request_of(self._state, self.registration, batch, next(self._request_numbers))
        if isinstance(request, StopReplicaRequest):
            stopped = await broker.stop_replica(request)
            # Of the others nothing is to be known, and a deletion that has begun meanwhile would take their answer for its own.
            if errors := {key: stopped.errors.get(key, NONE) for key, stop in batch.stops.items() if stop.delete}:
                self._listener.broker_responded(BrokerResponse(self.registration, errors, is_stop=True))
        elif isinstance(request, LeaderAndIsrRequest):
            response = await broker.leader_and_isr(request)
            errors = {key: response.errors.get(key, NONE) for key in batch.leader_and_isr}
            outdated = {
                key: (assignment.state.leader_epoch, response.written_epochs[key])
                for key, assignment in batch.leader_and_isr.items()
                if key in response.written_epochs
            }
            self._listener.broker_responded(BrokerResponse(self.registration, errors, False, outdated))
        else:
            await broker.update_metadata(request)


class Channels:
    """All channels of one term. The arguments are those of `Channel`."""

    def __init__(self, state: ClusterState, request_numbers: Iterator[int], transport: ControlTransport, listener: ChannelListener) -> None:
        self._shared = state, request_numbers, transport, listener
        self._channels: dict[BrokerId, Channel] = {}
        self._closed: list[Channel] = []
        self._is_over = False

    def follow(self, living: Iterable[BrokerRegistration]) -> None:
        """Has a channel to each of these registrations, and no other; to none after `close`, when an operation may still be running."""
        if self._is_over:
            return
        registrations = {registration.broker_id: registration for registration in living}
        for broker_id, channel in list(self._channels.items()):
            found = registrations.get(broker_id)
            if found is None or found.broker_epoch != channel.registration.broker_epoch:
                self._close(self._channels.pop(broker_id))
        for broker_id, registration in registrations.items():
            if broker_id not in self._channels:
                self._channels[broker_id] = Channel(registration, *self._shared)

    def add(self, broker_id: BrokerId, batch: BrokerRequestBatch) -> None:
        """Has a broker sent a batch; one without a registration gets everything when it is back."""
        channel = self._channels.get(broker_id)
        if channel is not None:
            channel.add(batch)

    async def wait_acknowledged(self, timeout_seconds: float) -> bool:
        """Waits until every living broker has answered all that it was to be sent. False: it took too long."""
        try:
            async with asyncio.timeout(timeout_seconds):
                for channel in list(self._channels.values()):
                    await channel.wait_acknowledged()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Sends nothing to any broker any more, at once."""
        self._is_over = True
        for channel in self._channels.values():
            self._close(channel)
        self._channels.clear()

    async def wait_closed(self) -> None:
        """Waits until no request is under way any more."""
        for channel in self._closed:
            await channel.wait_closed()

    def _close(self, channel: Channel) -> None:
        channel.close()
        self._closed = [closed for closed in self._closed if not closed.is_over] + [channel]

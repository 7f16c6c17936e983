"""The ways from the controller to the living brokers: one channel for each, which tells it all that waits for it.

A channel tells one thing at a time. What could not be told is told again after a pause, until the broker is gone or
this is not the controller any more; `news` says what is merged meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.broker.controller.news import News
from ottla.errors import NONE, ApiError, StaleControllerEpoch
from ottla.interbroker.calls import (
    AllReplicas,
    BrokerControl,
    ControlTransport,
    LeaderAndIsrRequest,
    PartitionAssignment,
    PartitionToStop,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from ottla.model import BrokerId, BrokerRegistration, TopicPartition

log: Final = logging.getLogger(__name__)

# The pause after a broker could not be told something; it doubles up to the second.
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Told:
    """What a broker said when it was told about its replicas: the error code of each, 0 where it does as it was told.

    `outdated_epochs` has the leader epochs that it refuses, each with the one that its log has.
    """

    registration: BrokerRegistration
    errors: Mapping[TopicPartition, int]
    is_stop: bool  # or else LeaderAndIsr
    outdated_epochs: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)


class Channel:
    """The way to one life of one broker.

    Args:
        registration: which life.
        controller_id: this broker.
        controller_epoch: in whose name it speaks.
        request_numbers: rises with each request of this process, whatever channel and term it is of.
        transport: asked for the broker at each call.
        registrations: the living brokers, looked up when something is told.
        overrides: what a topic sets for itself, looked up when something is told.
        topics: the names of all that are not being deleted, looked up when something is told.
        all_replicas: all that the broker has, looked up when something is told.
        told: given what the broker says of its replicas.
        fenced: called when the broker knows of a later controller.
    """

    def __init__(
        self,
        registration: BrokerRegistration,
        controller_id: BrokerId,
        controller_epoch: int,
        request_numbers: Iterator[int],
        transport: ControlTransport,
        registrations: Callable[[], tuple[BrokerRegistration, ...]],
        overrides: Callable[[str], Mapping[str, str]],
        topics: Callable[[], tuple[str, ...]],
        all_replicas: Callable[[], AllReplicas],
        told: Callable[[Told], None],
        fenced: Callable[[str], None],
    ) -> None:
        self.registration = registration
        self.news = News()
        self._controller_id = controller_id
        self._controller_epoch = controller_epoch
        self._request_numbers = request_numbers
        self._transport = transport
        self._registrations = registrations
        self._overrides = overrides
        self._topics = topics
        self._all_replicas = all_replicas
        self._told = told
        self._fenced = fenced
        self._has_news = asyncio.Event()
        self._has_told_all = asyncio.Event()
        self._has_told_all.set()
        self._telling = asyncio.ensure_future(self._tell())

    @property
    def is_over(self) -> bool:
        """Whether nothing is told any more."""
        return self._telling.done()

    def wake(self) -> None:
        """Something was added to the news."""
        self._has_told_all.clear()
        self._has_news.set()

    async def told_all(self) -> None:
        """Waits until the broker knows all that it was to be told, or is gone."""
        await self._has_told_all.wait()

    def close(self) -> None:
        """Tells no more, at once."""
        self._telling.cancel()
        self._has_told_all.set()

    async def wait_closed(self) -> None:
        """Waits until nothing is under way any more."""
        await asyncio.wait([self._telling])

    async def _tell(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            news = self.news.take()
            if news is None:
                self._has_news.clear()
                self._has_told_all.set()
                await self._has_news.wait()
                continue
            try:
                await self._tell_one(self._transport.broker(self.registration), news)
                pause = _FIRST_PAUSE_SECONDS
            except StaleControllerEpoch as error:
                self._fenced(str(error))
                return
            except Exception as error:
                # Whatever it was, a broker must not be left without what it was to be told.
                self.news.add_untold(news)
                is_expected = isinstance(error, ApiError)
                level = logging.INFO if is_expected else logging.ERROR
                log.log(
                    level, "broker %d could not be told, trying again: %s", self.registration.broker_id, error, exc_info=not is_expected
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def _tell_one(self, broker: BrokerControl, news: News) -> None:
        header = self._controller_id, self._controller_epoch, self.registration.broker_epoch
        number = next(self._request_numbers)
        if news.stops:
            stopped = await broker.stop_replica(StopReplicaRequest(*header, tuple(news.stops.values()), number))
            self._told(Told(self.registration, {key: stopped.errors.get(key, NONE) for key in news.stops}, is_stop=True))
        elif news.leader_and_isr or news.has_all_replicas:
            partitions = tuple(news.leader_and_isr.values())
            overrides = {each.topic: self._overrides(each.topic) for each in partitions}
            of_new = {each.topic for each in partitions if each.is_new}
            configs = {topic: each for topic, each in overrides.items() if each or topic in of_new}
            all_replicas = self._all_replicas() if news.has_all_replicas else None
            response = await broker.leader_and_isr(
                LeaderAndIsrRequest(*header, partitions, self._registrations(), configs, all_replicas, news.all_topics_known, number)
            )
            errors = {key: response.errors.get(key, NONE) for key in news.leader_and_isr}
            outdated = {
                key: (each.state.leader_epoch, response.written_epochs[key])
                for key, each in news.leader_and_isr.items()
                if key in response.written_epochs
            }
            self._told(Told(self.registration, errors, False, outdated))
        else:
            configs = {topic: self._overrides(topic) for topic in news.topic_configs}
            all_topics = self._topics() if news.has_all_topics else None
            metadata, deleted = tuple(news.metadata.values()), tuple(news.deleted_topics)
            await broker.update_metadata(
                UpdateMetadataRequest(*header, metadata, self._registrations(), deleted, configs, all_topics, news.all_topics_known, number)
            )


class Channels:
    """All channels of one term as the controller.

    Args:
        open_channel: makes one to a registration.
    """

    def __init__(self, open_channel: Callable[[BrokerRegistration], Channel]) -> None:
        self._open_channel = open_channel
        self._channels: dict[BrokerId, Channel] = {}
        self._closed: list[Channel] = []

    def follow(self, living: Iterable[BrokerRegistration]) -> list[BrokerId]:
        """Has a channel to each life of a broker that lives, and none else. Gives the brokers whose channel is new."""
        registrations = {each.broker_id: each for each in living}
        for broker_id, channel in list(self._channels.items()):
            found = registrations.get(broker_id)
            if found is None or found.broker_epoch != channel.registration.broker_epoch:
                self._close(self._channels.pop(broker_id))
        new = [each for each in registrations if each not in self._channels]
        for broker_id in new:
            self._channels[broker_id] = self._open_channel(registrations[broker_id])
        return new

    def add(
        self,
        broker_id: BrokerId,
        *,
        stops: Iterable[PartitionToStop] = (),
        leader_and_isr: Iterable[PartitionAssignment] = (),
        metadata: Iterable[PartitionAssignment] = (),
        deleted_topics: Iterable[str] = (),
        topic_configs: Iterable[str] = (),
        brokers_changed: bool = False,
        all_topics: bool = False,
        all_replicas: bool = False,
        metadata_first: bool = False,
    ) -> None:
        """Has a broker told; one that is gone is told when it is back."""
        channel = self._channels.get(broker_id)
        if channel is not None:
            channel.news.add(
                stops=stops,
                leader_and_isr=leader_and_isr,
                metadata=metadata,
                deleted_topics=deleted_topics,
                topic_configs=topic_configs,
                brokers_changed=brokers_changed,
                all_topics=all_topics,
                all_replicas=all_replicas,
                metadata_first=metadata_first,
            )
            channel.wake()

    async def told_all(self, timeout_seconds: float) -> bool:
        """Waits until every living broker knows all that it was to be told. False: it took too long."""
        try:
            async with asyncio.timeout(timeout_seconds):
                for channel in list(self._channels.values()):
                    await channel.told_all()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Tells nobody anything any more, at once."""
        for channel in self._channels.values():
            self._close(channel)
        self._channels.clear()

    async def wait_closed(self) -> None:
        """Waits until nothing is under way any more."""
        for channel in self._closed:
            await channel.wait_closed()

    def _close(self, channel: Channel) -> None:
        channel.close()
        self._closed = [each for each in self._closed if not each.is_over] + [channel]

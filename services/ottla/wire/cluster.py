"""A cluster as one who asks it has it: its brokers, a connection to each, and who is to be asked what.

    async with Cluster("a:9092,b:9092") as cluster:
        answer = await cluster.with_controller(attempt)

Who leads, coordinates or controls is looked up, remembered, and looked up again when an answer says that it has changed. One
refresh of the metadata runs at a time, and who asks for one while it runs shares the next.

A request is sent to a broker by `ask`, and its error codes are the caller's to look at. `with_coordinator`,
`with_controller` and `with_any` find the broker, call the caller's attempt with it, and try again, after a growing pause, for as
long as it raises what time may heal: a retriable ApiError, or an OSError.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol, Self, TypeVar
from uuid import UUID

from ottla.clock import Clock, SystemClock
from ottla.config.listeners import is_port
from ottla.errors import (
    NONE,
    ApiError,
    BrokerNotAvailable,
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    InvalidTopic,
    LeaderNotAvailable,
    NotController,
    NotCoordinator,
    OttlaError,
    RequestTimedOut,
    error_of,
    reason_of,
)
from ottla.lifecycle import Backoff, Offload, is_cancelled, look_at_error, offload_nothing
from ottla.model import MAX_TOPIC_NAME_LENGTH, NO_LEADER, BrokerId, Endpoint, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch_client import MalformedResponse
from ottla.wire.broker_connection import BrokerConnection, Build, Security, introduce
from ottla.wire.connection import Channel, Connect, SocketConnection, open_connection
from ottla.wire.metadata import Broker, Metadata, TopicMetadata

log = logging.getLogger(__name__)

T = TypeVar("T")
Place = tuple[str, int, str]  # host, port, lane

MIB: Final = 1024 * 1024
METADATA_VERSIONS: Final = (1, 12)
FIND_COORDINATOR_VERSIONS: Final = (0, 6)
FIRST_BATCHED_FIND_COORDINATOR: Final = 4


class CoordinatorKind(enum.IntEnum):
    """What a coordinator is asked for by: FindCoordinator's `key_type`."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How a cluster is asked. Names are those of Kafka's clients.

    Attributes:
        security: TLS and SASL.
        request_timeout_seconds: how long one request may take (`request.timeout.ms`).
        api_timeout_seconds: how long `with_…` keeps trying (`default.api.timeout.ms`).
        metadata_max_age_seconds: a topic of which more time ago was heard is asked for again (`metadata.max.age.ms`).
        retry_backoff_seconds, retry_backoff_max_seconds: the first pause, which doubles, and the longest (KIP-580).
        setup_timeout_seconds: to open a connection (`socket.connection.setup.timeout.ms`).
        receive_buffer_bytes: of a socket; -1 leaves it to the system.
        usual_answer_bytes: buffers up to this size are kept for the next answer.
        max_answer_bytes: an answer that announces more is refused.
        allow_auto_create_topics: whether asking for a topic may create it, where the broker does that.
        rack: where we are (`client.rack`), so that a replica nearby is read from (KIP-392).
    """

    client_id: str = "ottla"
    security: Security = field(default_factory=Security)
    request_timeout_seconds: float = 30.0
    api_timeout_seconds: float = 60.0
    metadata_max_age_seconds: float = 300.0
    retry_backoff_seconds: float = 0.1
    retry_backoff_max_seconds: float = 1.0
    setup_timeout_seconds: float = 10.0
    receive_buffer_bytes: int = -1
    usual_answer_bytes: int = 16 * MIB
    max_answer_bytes: int = 160 * MIB
    allow_auto_create_topics: bool = False
    rack: str = ""


def bootstrap_endpoints(text: str) -> tuple[tuple[str, int], ...]:
    """Host and port of each in `bootstrap.servers`.

    Raises:
        ValueError: there is none, or one has no port.
    """
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not (colon and is_port(port) and int(port)):
            raise ValueError(f"bootstrap.servers: {part!r} is not host:port")
        host = host.rpartition("://")[2]  # a listener's protocol may stand before it, as at Kafka's clients
        found.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not found:
        raise ValueError("bootstrap.servers: none is given")
    return tuple(found)


class Bootstrap(Protocol):
    """Who knows the brokers to begin with of a cluster that is found in another way than by a list of them."""

    async def bootstrap_servers(self) -> str:
        """`host:port,…`, as they are now. Raises OSError: none is known, and why."""


def socket_connect(settings: ClusterSettings) -> Connect:
    """How brokers are reached over TCP or TLS."""
    last: dict[Endpoint, SocketConnection] = {}

    async def connect(endpoint: Endpoint) -> Channel:
        last[endpoint] = await open_connection(
            endpoint,
            settings.security.tls,
            usual_size=settings.usual_answer_bytes,
            limit=settings.max_answer_bytes,
            receive_buffer_bytes=settings.receive_buffer_bytes,
            setup_seconds=settings.setup_timeout_seconds,
            former=last.get(endpoint),
        )
        return last[endpoint]

    return connect


class Cluster:
    """A cluster, from its bootstrap list on. Nothing is opened before it is asked something; `close` ends everything.

    Args:
        bootstrap_servers: `host:port,…`: brokers to begin with, in any order; or who knows them.
        clock, random, connect, offload: the surroundings; `offload` runs the hashes of SCRAM.

    Raises:
        ValueError: bootstrap_servers cannot be read.
    """

    def __init__(
        self,
        bootstrap_servers: str | Bootstrap,
        settings: ClusterSettings | None = None,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        connect: Connect | None = None,
        offload: Offload = offload_nothing,
    ) -> None:
        self.settings: Final = settings or ClusterSettings()
        self.metadata: Final = Metadata()
        self.clock: Final = clock or SystemClock()
        self.random: Final = random or Random()
        self._knows_brokers = None if isinstance(bootstrap_servers, str) else bootstrap_servers
        self._bootstrap = bootstrap_endpoints(bootstrap_servers) if isinstance(bootstrap_servers, str) else ()
        self._connect = connect or socket_connect(self.settings)
        self._offload = offload
        self._open: dict[Place, BrokerConnection] = {}
        self._opening: dict[Place, asyncio.Task[BrokerConnection]] = {}
        self._retired: list[BrokerConnection] = []
        self._silent: set[tuple[str, int]] = set()  # hosts and ports that did not answer in time, and have not since
        self._coordinators: dict[tuple[CoordinatorKind, str], BrokerId] = {}
        self._heard: dict[str, float] = {}  # when, of each topic
        self._refreshing: asyncio.Task[None] | None = None
        self._next_refresh: asyncio.Task[None] | None = None
        self._wanted: set[str] = set()
        self._wants_all = False
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends every connection; a caller that waits for an answer gets an error."""
        self._is_closed = True
        for connection in (*self._open.values(), *self._retired):
            connection.channel.abort()  # also for who gives up to wait for the rest
        tasks: list[asyncio.Task[Any]] = [*self._opening.values()]
        tasks += [task for task in (self._refreshing, self._next_refresh) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections = [*self._open.values(), *self._retired]
        self._open.clear()
        self._retired.clear()
        for connection in connections:
            await connection.close()

    async def end_lane(self, lane: str) -> None:
        """Ends the connections of a lane that no one uses any more, also what is still being opened for who has given it up."""
        opening = {place: task for place, task in self._opening.items() if place[2] == lane}
        for task in opening.values():
            task.cancel()
        await asyncio.gather(*opening.values(), return_exceptions=True)
        for place in opening:
            self._opening.pop(place, None)  # it ended before it began
        for connection in [connection for place, connection in self._open.items() if place[2] == lane]:
            await connection.close()

    def begin_with(self, bootstrap_servers: str) -> None:
        """Other brokers to begin with, for when none of those known answers. Raises ValueError as the constructor."""
        self._bootstrap = bootstrap_endpoints(bootstrap_servers)

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._is_closed

    # Asking a broker.

    async def ask(
        self, broker_id: BrokerId, key: ApiKey, versions: tuple[int, int], build: Build, *, timeout_seconds: float | None = None
    ) -> Any:
        """Sends one request to one broker and gives its answer, whose error codes are not looked at.

        Args:
            versions: the first and the last version that the caller speaks; the newest that the broker serves is taken.
            build: makes the request: `lambda api: api.build("CreateTopicsRequest", topics=[…], …)`. Fields that the version
                lacks are dropped.
            timeout_seconds: for the answer; `request_timeout_seconds` if None.

        Raises:
            OSError: no one there, or no answer.
            MalformedResponse: the answer cannot be read.
            UnsupportedVersion: the broker serves none of the versions.
            BrokerNotAvailable: no broker of that id is known.
        """
        return await self.ask_by(await self.connection(broker_id), key, versions, build, timeout_seconds)

    async def ask_by(
        self, connection: BrokerConnection, key: ApiKey, versions: tuple[int, int], build: Build, timeout_seconds: float | None = None
    ) -> Any:
        """As `ask`, by a connection that is there already, as `with_any` gives it."""
        api = connection.message(key, *versions)
        return await connection.ask(api, build(api), timeout_seconds or self.settings.request_timeout_seconds)

    async def connection(self, broker_id: BrokerId, lane: str = "") -> BrokerConnection:
        """The connection to a broker, opened when there is none. A caller that asks while it is being opened shares it.

        Args:
            lane: connections of different lanes do not wait for each other: an answer to Fetch may take its time.

        Raises:
            As `ask`; also SaslAuthenticationFailed and UnsupportedSaslMechanism.
        """
        broker = self.metadata.brokers.get(broker_id)
        if broker is None:
            await self.refresh(())
            broker = self.metadata.brokers.get(broker_id)
            if broker is None:
                raise BrokerNotAvailable(f"broker {broker_id} is not known; these are: {sorted(self.metadata.brokers)}")
        return await self._connection((broker.host, broker.port, lane))

    async def _connection(self, place: Place) -> BrokerConnection:
        if self._is_closed:
            raise ConnectionError("the cluster's connections are closed")
        known = self._open.get(place)
        if known is not None:
            if known.is_usable:
                return known
            del self._open[place]
            self._retired = [retired for retired in self._retired if not retired.channel.is_lost]
            self._retired.append(known)
            known.retire()  # its time is over, for what is asked from now on
        opening = self._opening.get(place)
        if opening is None:
            opening = self._opening[place] = asyncio.get_running_loop().create_task(self._opened(place))
            opening.add_done_callback(look_at_error)
        return await self._shared(opening)

    async def _shared(self, task: asyncio.Task[T]) -> T:
        """What a task gives for which others may wait as well. Raises ConnectionError when `close` has cancelled it."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled() or is_cancelled():
                raise
            raise ConnectionError("the cluster's connections are closed") from None

    async def _opened(self, place: Place) -> BrokerConnection:
        try:
            settings = self.settings
            endpoint = Endpoint("", place[0], place[1], settings.security.protocol)
            channel = await self._connect(endpoint)
            self._forget_lost()
            connection = self._open[place] = await introduce(
                endpoint, channel, settings.client_id, settings.security.credentials, self._offload, settings.request_timeout_seconds
            )
            self._silent.discard(place[:2])
            return connection
        except TimeoutError:
            self._silent.add(place[:2])
            raise
        finally:
            del self._opening[place]

    def _forget_lost(self) -> None:
        lost = {place: connection for place, connection in self._open.items() if connection.channel.is_lost}
        self._silent |= {place[:2] for place, connection in lost.items() if connection.has_timed_out}
        self._open = {place: connection for place, connection in self._open.items() if place not in lost}

    async def any_connection(self) -> BrokerConnection:
        """A connection to some broker: one that is open, or else the first of those known, or of the bootstrap list, that answers.

        One that did not answer in time, by whichever connection, is the last.

        Raises:
            OSError: none of them does.
        """
        self._forget_lost()
        open_places = [place for place, connection in self._open.items() if connection.is_usable and not place[2]]
        usable = [self._open[place] for place in open_places if place[:2] not in self._silent]
        if usable:
            return self.random.choice(usable)
        brokers = [(broker.host, broker.port) for broker in self.metadata.brokers.values()]
        self.random.shuffle(brokers)
        if self._knows_brokers is not None:
            self.begin_with(await self._knows_brokers.bootstrap_servers())
        bootstrap = self.random.sample(self._bootstrap, len(self._bootstrap))
        # Who is registered is there; at an address that is only remembered there may be another cluster by now.
        order = (*brokers, *bootstrap) if self._knows_brokers is None else (*bootstrap, *brokers)
        errors = []
        for host, port in sorted(dict.fromkeys(order), key=self._silent.__contains__):
            try:
                return await self._connection((host, port, ""))
            except (OSError, MalformedResponse) as error:
                errors.append(f"{host}:{port}: {reason_of(error)}")
        raise ConnectionError(f"no broker answers: {'; '.join(errors)}")

    # What is known.

    async def refresh(self, topics: Iterable[str] | None) -> None:
        """Hears of the brokers and of these topics, not before now.

        Args:
            topics: their names; None for all there are.

        Raises:
            OSError, MalformedResponse, ApiError: no one could say.
            InvalidTopic: a name that no request can have, which would fail those of others with it.
        """
        if topics is None:
            self._wants_all = True
        else:
            self._wanted.update(list(map(_name_of_topic, topics)))
        if self._next_refresh is None:
            self._next_refresh = asyncio.get_running_loop().create_task(self._refresh_after(self._refreshing))
            self._next_refresh.add_done_callback(look_at_error)
        await self._shared(self._next_refresh)

    async def _refresh_after(self, former: asyncio.Task[None] | None) -> None:
        if former is not None:
            await asyncio.wait([former])
        self._refreshing, self._next_refresh = self._next_refresh, None
        wanted: list[str] | None = sorted(self._wanted)
        if self._wants_all:
            wanted = None
        self._wanted.clear()
        self._wants_all = False
        await self._hear(await self.any_connection(), wanted, makes_topics=self.settings.allow_auto_create_topics)

    async def _hear(self, connection: BrokerConnection, wanted: Collection[str] | None, *, makes_topics: bool) -> None:
        answer = await self.ask_by(
            connection, ApiKey.METADATA, METADATA_VERSIONS, lambda api: self._metadata_request(api, wanted, makes_topics=makes_topics)
        )
        if not answer.brokers:
            # It has started and was not told of the cluster yet: by its account there would be no topics. Kafka's clients ask again, too.
            raise ConnectionError("a broker does not know the cluster yet")
        self.metadata.take(answer, everything=wanted is None)
        now = self.clock.monotonic()
        self._heard.update((str(topic.name), now) for topic in answer.topics)

    def _metadata_request(self, api: Any, topics: Collection[str] | None, *, makes_topics: bool = False) -> Any:
        return api.build(
            "MetadataRequest",
            topics=None if topics is None else [api.build("MetadataRequestTopic", topic_id=None, name=name) for name in topics],
            allow_auto_topic_creation=makes_topics,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )

    async def topic(self, name: str) -> TopicMetadata:
        """What is known of a topic; the broker is asked when that is nothing, or long ago.

        Raises:
            ApiError: the broker knows none, or does not let us know. As `refresh` otherwise.
        """
        heard = self._heard.get(name)
        if heard is None or name not in self.metadata.topics or self.clock.monotonic() - heard > self.settings.metadata_max_age_seconds:
            await self.refresh((name,))
        return self.metadata.topic(name)

    async def refresh_from_all(self, topics: Collection[str], timeout_seconds: float) -> None:
        """Hears of these topics from each broker that answers in time: one that is cut off has not heard of later leaders.

        Raises:
            ApiError: a broker does not speak to us.
        """
        for answer in await self._accounts(topics, timeout_seconds):
            self.metadata.take(answer, everything=False)

    async def keep_current(self, partitions: Collection[TopicPartition], then: Callable[[], None]) -> None:
        """Hears each `metadata_max_age_seconds`, until cancelled, of the topics of what is in a collection at that time.

        A leader that is cut off and does not know that it leads no more refuses nothing, and names itself: so any broker is asked, and not
        one of those that there are connections to.

        Args:
            then: called each time; who leads what may have changed.
        """
        while True:
            await asyncio.sleep(self.settings.metadata_max_age_seconds)
            topics = sorted({partition.topic for partition in partitions})
            if self.metadata.brokers:
                with suppress(OSError, OttlaError):
                    broker_id = self.random.choice(sorted(self.metadata.brokers))
                    await self._hear(await self.connection(broker_id), topics, makes_topics=False)
            then()

    async def topic_ids(self, name: str, timeout_seconds: float) -> set[UUID]:
        """The ids of the topic that has this name, by the account of each broker that answers in time: one may know a former topic still.

        Raises:
            ApiError: a broker does not speak to us.
        """
        topics = [topic for answer in await self._accounts([name], timeout_seconds) for topic in answer.topics]
        return {topic.topic_id for topic in topics if getattr(topic, "topic_id", None) is not None}

    async def _accounts(self, topics: Collection[str], timeout_seconds: float) -> list[Any]:
        async def of(broker_id: BrokerId) -> Any:
            try:
                async with asyncio.timeout(timeout_seconds):
                    return await self.ask(broker_id, ApiKey.METADATA, METADATA_VERSIONS, lambda api: self._metadata_request(api, topics))
            except OSError as error:
                log.info("broker %d does not say what it knows of topics: %s", broker_id, reason_of(error))
                return None

        return [answer for answer in await asyncio.gather(*map(of, self.metadata.brokers)) if answer is not None]

    async def leader(self, partition: TopicPartition) -> BrokerId:
        """Who leads a partition.

        Raises:
            LeaderNotAvailable, UnknownTopicOrPartition: no one, or there is none, by what was heard just now. As `topic` otherwise.
        """
        await self.topic(partition.topic)
        try:
            return self.metadata.leader(partition)
        except ApiError:
            await self.refresh((partition.topic,))
            return self.metadata.leader(partition)

    async def coordinator(self, kind: CoordinatorKind, name: str) -> BrokerId:
        """Who coordinates a group or a transactional id.

        Raises:
            CoordinatorNotAvailable: no one at the moment. As `ask` otherwise.
        """
        known = self._coordinators.get((kind, name))
        if known is not None:
            return known

        def build(api: Any) -> Any:
            if api.version >= FIRST_BATCHED_FIND_COORDINATOR:
                return api.build("FindCoordinatorRequest", key_type=kind, coordinator_keys=[name])
            return api.build("FindCoordinatorRequest", key_type=kind, key=name)

        first = FIND_COORDINATOR_VERSIONS[0] if kind is CoordinatorKind.GROUP else 1  # which has the kind
        answer = await self.ask_by(await self.any_connection(), ApiKey.FIND_COORDINATOR, (first, FIND_COORDINATOR_VERSIONS[1]), build)
        coordinators = getattr(answer, "coordinators", (answer,))
        found = next((found for found in coordinators if getattr(found, "key", name) == name), None)
        if found is None:
            raise CoordinatorNotAvailable(f"the answer does not speak of {name}")
        if found.error_code != NONE:
            raise error_of(int(found.error_code), f"the coordinator of {name}", message=found.error_message)
        broker_id = BrokerId(found.node_id)
        known_broker = self.metadata.brokers.get(broker_id)
        if known_broker is None or (known_broker.host, known_broker.port) != (found.host, found.port):
            self.metadata.brokers[broker_id] = Broker(broker_id, found.host, found.port, known_broker.rack if known_broker else None)
        self._coordinators[kind, name] = broker_id
        return broker_id

    def coordinator_moved(self, kind: CoordinatorKind, name: str) -> None:
        """The broker that was named coordinates no more, or cannot be reached."""
        self._coordinators.pop((kind, name), None)

    async def controller(self) -> BrokerId:
        """Who takes the requests that only the controller takes.

        Raises:
            NotController: no one at the moment. As `refresh` otherwise.
        """
        if self.metadata.controller_id not in self.metadata.brokers:
            await self.refresh(())
        if self.metadata.controller_id not in self.metadata.brokers:
            raise NotController("there is no controller at the moment")
        return self.metadata.controller_id

    # Attempts.

    async def with_coordinator(
        self, kind: CoordinatorKind, name: str, attempt: Callable[[BrokerId], Awaitable[T]], *, timeout_seconds: float | None = None
    ) -> T:
        """Calls `attempt` with who coordinates a group or a transactional id, again and again until it gives something.

        Args:
            attempt: raises an ApiError for the error code that it was answered.
            timeout_seconds: for all of it; `api_timeout_seconds` if None.

        Raises:
            What the last attempt raised, when that is not retriable or the time is over.
        """

        def recover(error: Exception) -> None:
            # REQUEST_TIMED_OUT: it cannot write, as one that is cut off from its replicas and does not know yet who has taken over.
            if isinstance(error, OSError | NotCoordinator | CoordinatorNotAvailable | BrokerNotAvailable | RequestTimedOut):
                self.coordinator_moved(kind, name)

        return await self._retried(lambda: self.coordinator(kind, name), attempt, recover, timeout_seconds)

    async def with_controller(self, attempt: Callable[[BrokerId], Awaitable[T]], *, timeout_seconds: float | None = None) -> T:
        """As `with_coordinator`, with the controller."""

        def recover(error: Exception) -> None:
            self.metadata.controller_id = NO_LEADER

        return await self._retried(self.controller, attempt, recover, timeout_seconds)

    async def with_any(self, attempt: Callable[[BrokerConnection], Awaitable[T]], *, timeout_seconds: float | None = None) -> T:
        """As `with_coordinator`, with a connection to one, for `ask_by`."""
        return await self._retried(self.any_connection, attempt, lambda error: None, timeout_seconds)

    async def _retried(
        self,
        find: Callable[[], Awaitable[Any]],
        attempt: Callable[[Any], Awaitable[T]],
        recover: Callable[[Exception], None],
        timeout_seconds: float | None,
    ) -> T:
        loop = asyncio.get_running_loop()
        seconds = timeout_seconds or self.settings.api_timeout_seconds
        deadline = loop.time() + seconds
        failures = 0
        last: Exception | None = None
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await attempt(await find())
            except (OSError, ApiError) as error:
                if isinstance(error, TimeoutError) and loop.time() >= deadline:
                    raise last or TimeoutError(f"no answer within {seconds:g} s") from None
                if self._is_closed or not is_healed_by_time(error) or loop.time() >= deadline:
                    raise
                last = error
            recover(last)
            pause = self.pause_seconds(failures)
            failures += 1
            if loop.time() + pause >= deadline:
                raise last
            await asyncio.sleep(pause)

    def pause_seconds(self, failures: int) -> float:
        """How long to wait after so many failures in a row before it is tried again: doubled each time, and 20 % by chance (KIP-580)."""
        settings = self.settings
        backoff = Backoff(settings.retry_backoff_seconds, settings.retry_backoff_max_seconds)
        return backoff.seconds(failures) * self.random.uniform(0.8, 1.2)


def _name_of_topic(name: str) -> str:
    try:
        if len(name.encode()) <= MAX_TOPIC_NAME_LENGTH:
            return name
    except UnicodeEncodeError:
        pass
    raise InvalidTopic(f"{name[:MAX_TOPIC_NAME_LENGTH]!r}: no topic has such a name, of {len(name)} characters")


def is_healed_by_time(error: Exception) -> bool:
    """Whether the same request may succeed later, or at another broker."""
    if isinstance(error, ApiError):
        return error.retriable or isinstance(error, BrokerNotAvailable)
    return isinstance(error, OSError)


def asks_for_metadata(error: ApiError) -> bool:
    """Whether the error says that what is known of the partition is out of date: of its leader, its id, or of its being there."""
    return error.code in _STALE


# NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION and the like: what Kafka's clients call InvalidMetadataException.
_STALE: Final = frozenset({LeaderNotAvailable.code, FencedLeaderEpoch.code, 3, 6, 9, 13, 56, 72, 75, 100, 103})

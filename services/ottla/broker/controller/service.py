"""The cluster's controller as one broker sees it, whichever broker that is: joining, asking, and being asked.

A broker registers, takes `/controller` or watches who has it, and asks for what only the controller may decide. Is it
the controller itself, its `ActiveController` answers, directly here and through `served` to the others. Settings are
known on every broker, kept fresh by the notices under `/config/changes`.

This is what the server and the handlers use. Nothing else in this package is theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Final, TypeVar, cast

from ottla.broker.controller import configs, membership
from ottla.broker.controller.active import ActiveController
from ottla.broker.controller.event_queue import ControllerCounts
from ottla.broker.controller.membership import CONTROLLER, ControllerTerm
from ottla.broker.controller.settings_watch import SettingsChange, SettingsWatch, Topics
from ottla.broker.controller.topics import validate_topic_name
from ottla.broker.controller.znode_reader import load_topic
from ottla.broker.controller.znode_writes import coordination_errors_as_api_errors
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.coordination import znodes
from ottla.coordination.election import Election, Term
from ottla.coordination.errors import CoordinationError, NoNode, SessionExpired
from ottla.coordination.interface import Coordination
from ottla.coordination.retries import BoundedCoordination, retried
from ottla.errors import (
    ApiError,
    BrokerNotAvailable,
    ConfigurationError,
    CoordinatorNotAvailable,
    InvalidRequest,
    NotController,
    StaleControllerEpoch,
)
from ottla.interbroker.calls import (
    DEFAULT_TIMEOUT_SECONDS,
    AllocateProducerIdsRequest,
    AlterConfigsRequest,
    AlterPartitionRequest,
    AlterPartitionResponse,
    Caller,
    CancelControlledShutdownRequest,
    ClusterOperations,
    ConfigResource,
    ControlledShutdownRequest,
    ControllerControl,
    ControllerRequest,
    ControlTransport,
    CreateTopicRequest,
    IncrementalAlterConfigsRequest,
    MakeTransport,
)
from ottla.interbroker.forwarding import Forwarder
from ottla.metrics.cells import Histogram
from ottla.model import NO_LEADER, ZERO_TOPIC_ID, BrokerId, BrokerRegistration, Endpoint, TopicDescription, TopicPartition

log: Final = logging.getLogger(__name__)

A = TypeVar("A")

# As Kafka's zookeeper.session.timeout.ms.
SESSION_TIMEOUT_SECONDS: Final = 18.0
# The longest wait for one answer of the coordination service.
ANSWER_TIMEOUT_SECONDS: Final = 10.0
# The longest that a broker which stops tries to say so, and then waits for what it has begun as the controller.
LEAVE_TIMEOUT_SECONDS: Final = 3.0
# The longest that one attempt to hand over leaderships may take.
_HAND_OVER_SECONDS: Final = 10.0
# Between two attempts to tell of a failed log directory; each is ten of a request.
_NOTICE_PAUSE_SECONDS: Final = 1.0
# A client that gets no producer id retries.
_PRODUCER_IDS_SECONDS: Final = 5.0


class ControllerService(ClusterOperations):
    """One broker's part in the control of its cluster. What clients ask of the controller is `ClusterOperations`'.

    Args:
        coordination: a session; its opener closes it.
        settings: what the broker was started with.
        clock: for the timestamps in znodes.
        random: for placement and ids.
        make_transport: makes the way to the other brokers, and to this one; the service does not close it.
        config_changed: called with settings that changed, of a topic or of this broker.
        controller_changed: called with the controller's broker (NO_LEADER: none), and the latest epoch that is known.
        topics: that the controller has told this broker of.
        session_timeout_seconds: how long a former self of this broker may still seem alive.
    """

    def __init__(
        self,
        coordination: Coordination,
        settings: BrokerSettings,
        clock: Clock,
        random: Random,
        make_transport: MakeTransport,
        config_changed: Callable[[SettingsChange], None],
        controller_changed: Callable[[BrokerId, int], None],
        topics: Topics,
        session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS,
    ) -> None:
        self.cluster_id = ""
        self.counts = ControllerCounts()  # over all terms of this broker
        self.coordination_seconds = Histogram()  # what the coordination service took to answer
        self.registration: BrokerRegistration | None = None  # the latest
        self._coordination: Coordination = BoundedCoordination(coordination, ANSWER_TIMEOUT_SECONDS, self.coordination_seconds)
        self._broker_id = BrokerId(settings.broker_id)
        self._static_settings = settings
        self._clock = clock
        self._random = random
        self.transport: Final = make_transport(self)
        self._locator = _Locator(self._coordination, self.transport)
        self._forwarder = Forwarder(self._locator)
        self._controller_changed = controller_changed
        self._session_timeout_seconds = session_timeout_seconds
        self._known = SettingsWatch(settings, config_changed, self._settings_noticed, topics)
        self._elector: Election | None = None
        self._epoch = 0
        self._former: ActiveController | None = None
        self._request_numbers = count(1)
        self._endpoints: tuple[Endpoint, ...] | None = None  # what is advertised since the start, if that has changed
        self._advertising = asyncio.Lock()
        self._is_registered = False
        self._is_closing = False
        self._is_drained = False
        self._draining: asyncio.Task[None] | None = None
        self._handing_over = asyncio.Lock()

    # Joining and leaving.

    async def load(self) -> None:
        """Reads what there is before this broker takes part: the cluster's id, and all settings, which logs are opened with.

        Raises:
            ConfigurationError: what was changed of this broker while it ran does not go with what it was started with.
            CoordinationError: it cannot be read.
        """
        await membership.make_skeleton(self._coordination)
        self.cluster_id = await membership.read_or_make_cluster_id(self._coordination, self._random)
        await self._known.load(self._coordination)

    async def start(self, registration: BrokerRegistration) -> BrokerRegistration:
        """Registers the broker and takes part in the election. Gives the registration with its epoch.

        Where this broker becomes the controller at once, as one that is alone does, it has been sent all that it leads
        when this returns.

        Args:
            registration: this broker, with the endpoints that clients and brokers can reach.

        Raises:
            ConfigurationError: another broker lives under this id, or at this address.
            CoordinationError: it cannot be read or written.
        """
        if not self.cluster_id:
            await self.load()
        await membership.wait_for_addresses(self._coordination, registration, self._session_timeout_seconds)
        return await self._join(registration)

    def session_lost(self) -> None:
        """The session is over, and with it the registration and a time as the controller. Nothing more is decided until `rejoin`."""
        self._is_registered = False
        self._known.stop()
        if self._elector is not None:
            self._elector.close()
        self.term_ended()

    async def rejoin(self, coordination: Coordination) -> BrokerRegistration:
        """Starts again in another session. Gives the new registration.

        Raises:
            ConfigurationError: as `start`; or the coordination service holds another cluster by now.
            CoordinationError: it cannot be read or written.
        """
        assert self.registration is not None, "it was never started"
        self.session_lost()
        await self._wait_ended()
        self._coordination = BoundedCoordination(coordination, ANSWER_TIMEOUT_SECONDS, self.coordination_seconds)
        self._locator.coordination = self._coordination
        former_id = self.cluster_id
        await membership.make_skeleton(self._coordination)
        self.cluster_id = await membership.read_or_make_cluster_id(self._coordination, self._random)
        if former_id != self.cluster_id:
            found, self.cluster_id = self.cluster_id, former_id
            raise ConfigurationError(f"the coordination service holds cluster {found}, and this broker is of {former_id}")
        await self._known.load(self._coordination)
        # Its process lived on, and so did what it had written: that is no unclean start.
        return await self._join(replace(self.registration, previous_broker_epoch=self.registration.broker_epoch))

    async def controlled_shutdown(self, attempts: int | None = None, *, is_drain: bool = False) -> None:
        """Has the controller move what this broker leads, by default as often as `controlled.shutdown.max.retries` allows. Never raises.

        Args:
            is_drain: it ends with `undrain`.
        """
        settings = self.settings
        for attempt in range(settings.controlled_shutdown_max_retries if attempts is None else attempts):
            if attempt:
                await asyncio.sleep(settings.controlled_shutdown_retry_backoff_ms / 1000)
            async with self._handing_over:
                if not self._is_registered or (is_drain and not self._is_drained):
                    return
                try:
                    remaining = await self.move_leaderships(_HAND_OVER_SECONDS)
                except ApiError as error:
                    log.warning("broker %d: controlled shutdown failed: %s", self._broker_id, error)
                    continue
            if not remaining:
                return
            log.warning("broker %d: still leads %d partitions that no other replica can lead", self._broker_id, len(remaining))

    async def drain(self) -> None:
        """Has what this broker leads moved away while it keeps running, and again by each controller that comes, until `undrain`."""
        self._is_drained = True
        await self.controlled_shutdown(is_drain=True)

    async def undrain(self) -> None:
        """Leads and follows again.

        Raises:
            ApiError: no controller has taken it in; it is drained no more anyway as soon as there is another one.
        """
        self._is_drained = False
        # An attempt that came after it would have this broker neither lead nor be in sync until it starts again.
        async with self._handing_over:
            await self.cancel_controlled_shutdown(_HAND_OVER_SECONDS)

    async def close(self) -> None:
        """Finishes what has begun, and says that this broker is gone. The session stays open."""
        if self._is_closing:
            return
        self._is_closing = self._locator.is_closing = True
        if self._elector is not None:
            self._elector.close()
        was_registered, self._is_registered = self._is_registered, False
        active = self._locator.active
        # The end of the session takes both as well, so it does no harm when this cannot be done.
        try:
            with contextlib.suppress(CoordinationError, ApiError, TimeoutError):
                async with asyncio.timeout(LEAVE_TIMEOUT_SECONDS):
                    if active is not None and was_registered:
                        await active.leave()
                    elif was_registered:
                        await self._coordination.delete(znodes.BROKER.path(self._broker_id))
        finally:
            self._known.stop()
            self.term_ended()
            await self._wait_ended(LEAVE_TIMEOUT_SECONDS)

    async def advertise(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Changes the endpoints in this broker's registration, for clients and brokers. Never raises."""
        self._endpoints = endpoints
        async with self._advertising:
            endpoints = self._endpoints
            if self.registration is None or not self._is_registered or self.registration.endpoints == endpoints:
                return
            self.registration = replace(self.registration, endpoints=endpoints)
            try:
                await membership.update_registration(self._coordination, self.registration, self._clock)
                log.info("broker %d: advertised at %s", self._broker_id, ", ".join(map(str, endpoints)))
            except CoordinationError as error:
                log.error(
                    "broker %d: cannot be advertised at %s; clients get its former address until it registers again: %s",
                    self._broker_id,
                    ", ".join(map(str, endpoints)),
                    error,
                )

    async def log_directory_failed(self) -> None:
        """Tells the controller that replicas of this broker may be gone; it then asks which. Tries for as long as the session lasts.

        A broker that registers again is asked about all of its replicas anyway.
        """
        coordination, path, data = self._coordination, znodes.LOG_DIR_EVENT.path(""), znodes.encode_log_dir_event(self._broker_id)
        while not self._is_closing:
            try:
                await retried(lambda: coordination.create(path, data, sequential=True))
                return
            except SessionExpired:
                return
            except CoordinationError as error:
                log.error("the controller cannot be notified of a failed log directory, retrying: %s", error)
            await asyncio.sleep(_NOTICE_PAUSE_SECONDS)

    # What is known.

    @property
    def controller_id(self) -> BrokerId:
        """The controller's broker; NO_LEADER while none is known."""
        return NO_LEADER if self._locator.term is None else self._locator.term.broker_id

    @property
    def broker_epoch(self) -> int:
        """Of the latest registration; -1 before the first."""
        return -1 if self.registration is None else self.registration.broker_epoch

    @property
    def registered_epoch(self) -> int:
        """The broker epoch of the registration that stands; -1 while there is none."""
        return -1 if self.registration is None or not self._is_registered else self.registration.broker_epoch

    @property
    def controller_epoch(self) -> int:
        """The latest epoch of a controller that is known here."""
        return self._epoch

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller."""
        return self._locator.active is not None

    @property
    def active(self) -> ActiveController | None:
        """The controller, if this broker is it; for looking only."""
        return self._locator.active

    @property
    def settings(self) -> BrokerSettings:
        """The broker's settings with what was changed while it runs."""
        return self._known.settings

    def topic_overrides(self, name: str) -> Mapping[str, str]:
        """What a topic sets for itself; nothing for one that is not known."""
        return self._known.topic_overrides(name)

    def topic_settings(self, name: str) -> TopicSettings:
        """A topic's settings; those of a topic that sets nothing for one that is not known."""
        return self._known.topic_settings(name)

    def broker_overrides(self, broker_id: BrokerId | None) -> Mapping[str, str]:
        """What was changed of this broker while it runs, or, with None, of all brokers; nothing for another broker."""
        return self._known.broker_overrides(broker_id)

    def learn_topic_overrides(self, overrides: Mapping[str, Mapping[str, str]]) -> None:
        """Takes in what topics set, as the controller says it: with LeaderAndIsr and UpdateMetadata, before their partitions."""
        self._known.learn_topics(overrides)

    def forget_topics(self, names: Sequence[str]) -> None:
        """Takes in that topics are deleted, as UpdateMetadata says it."""
        self._known.forget_topics(names)

    def keep_topics(self, names: Sequence[str]) -> None:
        """Takes in which topics there are, as UpdateMetadata says it."""
        self._known.keep_topics(names)

    def caller(self) -> Caller:
        """Who this broker is when it calls others."""
        return Caller(*self._own_epoch(), self._epoch)

    async def registration_of(self, broker_id: BrokerId) -> BrokerRegistration | None:
        """A broker's registration as ZooKeeper has it now.

        Raises:
            BrokerNotAvailable: ZooKeeper does not say.
        """
        path = znodes.BROKER.path(broker_id)
        try:
            data, stat = await self._coordination.get(path)
        except NoNode:
            return None
        except CoordinationError as error:
            raise BrokerNotAvailable(f"the registration of broker {broker_id} cannot be read: {error}") from error
        return znodes.decode_broker(path, data, stat.czxid)

    async def begun_epoch(self) -> int:
        """The latest controller's epoch as ZooKeeper has it now. Raises BrokerNotAvailable."""
        path = znodes.CONTROLLER_EPOCH.path()
        try:
            data, _ = await self._coordination.get(path)
        except NoNode:
            return -1
        except CoordinationError as error:
            raise BrokerNotAvailable(f"the controller's epoch cannot be read: {error}") from error
        epoch = znodes.decode_controller_epoch(path, data)
        self._epoch = max(self._epoch, epoch)  # who asks refuses what is below it from now on
        return epoch

    def check_caller(self, caller: Caller) -> None:
        """Raises StaleBrokerEpoch or StaleControllerEpoch for a caller that is out of date, or knows that we are."""
        if caller.controller_epoch > self._epoch:
            raise StaleControllerEpoch(f"broker {caller.broker_id} knows of controller epoch {caller.controller_epoch}, not {self._epoch}")
        if self._locator.active is not None:
            self._locator.active.check_broker(caller.broker_id, caller.broker_epoch)

    @property
    def served(self) -> ControllerControl:
        """What other brokers call; it raises NotController unless this broker is the controller."""
        return _Served(self._locator, self._broker_id)

    # What the controller is asked for.

    async def call(self, request: ControllerRequest[A]) -> A:
        """Asks the controller, wherever it is, and through a change of controller.

        A broker's own settings go with what it was started with, so it checks those itself, and a broker that has had something
        altered reads it at once, before the notice comes.
        """
        if isinstance(request, CreateTopicRequest):
            validate_topic_name(request.new_topic.name)  # before it is a path that is looked for
        altered = request.resource if isinstance(request, AlterConfigsRequest | IncrementalAlterConfigsRequest) else None
        if altered is not None and altered.topic is None:
            self._check_broker_settings(altered.broker_id, cast("AlterConfigsRequest | IncrementalAlterConfigsRequest", request))
        answer = await self._forwarder.call(request)
        if altered is not None:
            with contextlib.suppress(CoordinationError):  # the notice will do
                await self._known.read_again(self._coordination, _entity(altered))
        return answer

    async def alter_partition(
        self, request: AlterPartitionRequest, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> AlterPartitionResponse:
        """Changes ISRs. Repeated it changes nothing more: a partition that has the ISR already is answered with it."""
        return await self._forwarder.ask(lambda: request, timeout_seconds)

    async def move_leaderships(self, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> tuple[TopicPartition, ...]:
        """Has the leaderships of this broker moved away, because it is to stop. Gives those that it still has."""
        return await self._forwarder.ask(lambda: ControlledShutdownRequest(*self._own_epoch()), timeout_seconds)

    async def cancel_controlled_shutdown(self, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """Has the controller let this broker lead and be in sync again, after `move_leaderships`."""
        await self._forwarder.ask(lambda: CancelControlledShutdownRequest(*self._own_epoch()), timeout_seconds)

    async def allocate_producer_ids(self) -> range:
        """The next block of producer ids. One that was allocated and never arrived is lost, and none is given twice.

        Raises:
            CoordinatorNotAvailable: there is none at the moment; the client retries.
        """
        try:
            return await self._forwarder.ask(lambda: AllocateProducerIdsRequest(*self._own_epoch()), _PRODUCER_IDS_SECONDS)
        except ApiError as error:
            raise CoordinatorNotAvailable(str(error)) from error

    def _check_broker_settings(self, broker_id: BrokerId | None, request: AlterConfigsRequest | IncrementalAlterConfigsRequest) -> None:
        """Raises InvalidRequest or InvalidConfig for settings that this broker cannot have, or that are another broker's."""
        if broker_id not in (None, self._broker_id):
            raise InvalidRequest(f"Unexpected broker id, expected {self._broker_id}, but received {broker_id}")
        overrides: dict[BrokerId | None, Mapping[str, str]] = {owner: self.broker_overrides(owner) for owner in (None, self._broker_id)}
        overrides[broker_id] = configs.altered(overrides[broker_id], request, BrokerSettings.definitions())
        configs.checked_broker_settings(self._static_settings, overrides[None], overrides[self._broker_id])

    def _settings_noticed(self, entity: str) -> None:
        if self._locator.active is not None:
            self._locator.active.settings_noticed(entity)

    # Who is the controller.

    async def _join(self, registration: BrokerRegistration) -> BrokerRegistration:
        registered = await membership.register_broker(self._coordination, registration, self._clock, self._session_timeout_seconds)
        self.registration, self._is_registered = registered, True
        self._known.start(self._coordination)
        self._elector = Election(self._coordination, CONTROLLER, f"broker {self._broker_id}", self)
        await self._elector.start()
        if self._endpoints is not None:
            await self.advertise(self._endpoints)  # it may have changed while there was no session
        if self._locator.active is not None:
            await self._locator.active.wait_acknowledged()
        return registered

    def data(self) -> bytes:
        """What `/controller` holds while this broker is the controller."""
        return znodes.encode_controller(self._broker_id, self._clock.time_ms())

    async def term_begins(self, term: Term) -> None:
        """This broker or another is the controller now."""
        assert self._elector is not None
        controller = ControllerTerm.of(term)
        if self._locator.active is not None:
            self.term_ended()  # it was over before it began: `/controller` went while it waited for the one before
        if term.epoch < self._epoch:
            await membership.raise_controller_epoch(self._coordination, self._epoch)
            raise StaleControllerEpoch(f"controller epoch {self._epoch} was there before {term.epoch}")
        if self._former is not None:
            # What it had begun must not write in the middle of what comes now: the session, and the epoch, may be the same.
            await self._former.wait_closed(ANSWER_TIMEOUT_SECONDS)
            self._former = None
        self._locator.term, self._epoch = controller, max(self._epoch, term.epoch)
        active = None
        if term.is_own:
            active = self._locator.active = ActiveController(
                controller,
                self._coordination,
                self._static_settings,
                self._clock,
                self._random,
                self.transport,
                self._elector,
                self.counts,
                self._request_numbers,
            )
        else:
            log.info("controller is broker %d, epoch %d", controller.broker_id, controller.epoch)
            await self._check_controller(controller)
        self._tell_controller()
        if active is not None:
            await active.start()

    async def _check_controller(self, term: ControllerTerm) -> None:
        """Logs an error where Kafka has become the controller of this cluster, beside brokers of Ottla."""
        path = znodes.BROKER.path(term.broker_id)
        with contextlib.suppress(CoordinationError):  # who asks it for something looks again
            data, _ = await self._coordination.get(path)
            if znodes.decode_broker(path, data).is_foreign:
                log.error(
                    "controller %d is Kafka's: it decides nothing for brokers of Ottla; stop it, for a cluster is never mixed"
                    " (docs/coming-from-kafka.md)",
                    term.broker_id,
                )

    def term_ended(self) -> None:
        """The controller is not known any more."""
        active, self._locator.active = self._locator.active, None
        if active is not None:
            active.resign()
            self._former = active
        self._locator.term = None
        self._tell_controller()

    def _tell_controller(self) -> None:
        self._locator.changed()
        self._controller_changed(self.controller_id, self._epoch)
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None
        if self._is_drained and self._locator.term is not None and not self._is_closing:
            # Who leads and who is in sync is in ZooKeeper; who is not to be either, only the controller before this one knew.
            self._draining = asyncio.ensure_future(self.controlled_shutdown(is_drain=True))

    async def _wait_ended(self, timeout_seconds: float = ANSWER_TIMEOUT_SECONDS) -> None:
        """Waits until nothing of this session is under way any more."""
        if self._elector is not None:
            await self._elector.wait_closed()
        if self._former is not None:
            await self._former.wait_closed(timeout_seconds)
            self._former = None
        await self._known.wait_stopped()

    def _own_epoch(self) -> tuple[BrokerId, int]:
        return self._broker_id, self.broker_epoch


class _Locator:
    """The controller as far as this broker knows: `ottla.interbroker.forwarding.ControllerLocator`.

    Attributes:
        coordination: the current session.
        term: of the controller that is known.
        active: the controller itself, while this broker is it.
        is_closing: whether no other controller will be known.
    """

    def __init__(self, coordination: Coordination, transport: ControlTransport) -> None:
        self.coordination = coordination
        self.term: ControllerTerm | None = None
        self.active: ActiveController | None = None
        self.is_closing = False
        self._transport = transport
        self._registration: BrokerRegistration | None = None
        self._another = asyncio.Event()

    def changed(self) -> None:
        """The term is another than before, or none."""
        self._registration = None
        another, self._another = self._another, asyncio.Event()
        another.set()

    async def find(self) -> ControllerControl:
        """The controller. Raises BrokerNotAvailable while none is known."""
        if self.active is not None:
            return self.active
        term = self.term
        if term is None:
            raise BrokerNotAvailable("no controller is known at the moment")
        if self._registration is None:
            path = znodes.BROKER.path(term.broker_id)
            with coordination_errors_as_api_errors("looking for the controller"):
                try:
                    data, stat = await self.coordination.get(path)
                except NoNode:
                    raise BrokerNotAvailable(f"the controller, broker {term.broker_id}, is not registered") from None
                registration = znodes.decode_broker(path, data, stat.czxid)
            if term is not self.term:
                raise BrokerNotAvailable("the controller is another than before")
            if registration.is_foreign:
                raise BrokerNotAvailable(f"the controller, broker {term.broker_id}, is Kafka's and decides nothing for brokers of Ottla")
            self._registration = registration
        return self._transport.controller(self._registration)

    async def wait_for_another(self) -> None:
        """Waits until another controller is known. Raises NotController when this broker stops."""
        if self.is_closing:
            raise NotController("this broker stops")
        await self._another.wait()

    async def describe_topic(self, name: str) -> tuple[TopicDescription, Mapping[str, str]] | None:
        """A topic as it is in ZooKeeper, with its overrides; None when there is none."""
        with coordination_errors_as_api_errors(f"looking for topic {name}"):
            loaded = await retried(lambda: load_topic(self.coordination, name))
        if loaded is None:
            return None
        known = loaded.known(loaded.assignment.topic_id or ZERO_TOPIC_ID, loaded.topic_version)
        return known.describe(), known.overrides


@dataclass(frozen=True, slots=True)
class _Served(ControllerControl):
    """The controller, as long as this broker is it."""

    locator: _Locator
    broker_id: BrokerId

    async def call(self, request: ControllerRequest[A]) -> A:
        """Answers a request. Raises NotController unless this broker is the controller."""
        active = self.locator.active
        if active is None:
            raise NotController(f"broker {self.broker_id} is not the controller")
        return await active.call(request)


def _entity(resource: ConfigResource) -> str:
    """The resource's name in notices under /config/changes."""
    if resource.topic is not None:
        return f"topics/{resource.topic}"
    return f"brokers/{znodes.DEFAULT_ENTITY if resource.broker_id is None else resource.broker_id}"

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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any, Final, cast

from ottla.broker.controller import configs, membership
from ottla.broker.controller.active import ActiveController
from ottla.broker.controller.changes import SettingsChange
from ottla.broker.controller.counts import ControllerCounts
from ottla.broker.controller.forwarding import Forwarding
from ottla.broker.controller.loading import load_topic
from ottla.broker.controller.settings_watch import SettingsWatch
from ottla.broker.controller.terms import ControllerTerm, controller_election
from ottla.broker.controller.writes import coordination_errors_as_api_errors
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.coordination import znodes
from ottla.coordination.bounded import BoundedCoordination
from ottla.coordination.election import Election
from ottla.coordination.errors import CoordinationError, NoNode
from ottla.coordination.interface import Coordination
from ottla.coordination.retries import retried
from ottla.errors import ApiError, BrokerNotAvailable, ConfigurationError, InvalidRequest, NotController, StaleControllerEpoch
from ottla.interbroker.calls import Caller, ConfigChange, ControllerControl, ControlTransport
from ottla.metrics.cells import Histogram
from ottla.model import NO_LEADER, ZERO_TOPIC_ID, BrokerId, BrokerRegistration, Endpoint, TopicDescription

log: Final = logging.getLogger(__name__)

# As Kafka's zookeeper.session.timeout.ms.
SESSION_TIMEOUT_SECONDS: Final = 18.0
# The longest wait for one answer of the coordination service.
ANSWER_TIMEOUT_SECONDS: Final = 10.0
# The longest that a broker which stops tries to say so, and then waits for what it has begun as the controller.
LEAVE_TIMEOUT_SECONDS: Final = 3.0
# The longest that one attempt to hand over leaderships may take.
_HAND_OVER_SECONDS: Final = 10.0


class ControllerService(Forwarding):
    """One broker's part in the control of its cluster. What can be asked of the controller is `Forwarding`'s.

    Args:
        coordination: a session; whoever opened it closes it.
        settings: what the broker was started with.
        clock: for the timestamps in znodes.
        random: for placement and ids.
        transport: the way to the other brokers, and to this one; whoever made it closes it.
        config_changed: told of settings that are others than before, of a topic or of this broker.
        controller_changed: told who is the controller (NO_LEADER: nobody), and the latest epoch that is known.
        session_timeout_seconds: how long a former self of this broker may still seem alive.
    """

    def __init__(
        self,
        coordination: Coordination,
        settings: BrokerSettings,
        clock: Clock,
        random: Random,
        transport: ControlTransport,
        config_changed: Callable[[SettingsChange], None],
        controller_changed: Callable[[BrokerId, int], None],
        session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS,
    ) -> None:
        super().__init__(self._own_epoch, self._find_controller, self._until_another_controller, self._describe_topic)
        self.cluster_id = ""
        self.counts = ControllerCounts()  # over all terms of this broker
        self.coordination_seconds = Histogram()  # what the coordination service took to answer
        self.registration: BrokerRegistration | None = None  # the latest
        self._coordination: Coordination = BoundedCoordination(coordination, ANSWER_TIMEOUT_SECONDS, self.coordination_seconds)
        self._broker_id = BrokerId(settings.broker_id)
        self._static_settings = settings
        self._clock = clock
        self._random = random
        self._transport = transport
        self._controller_changed = controller_changed
        self._session_timeout_seconds = session_timeout_seconds
        self._known = SettingsWatch(settings, config_changed, self._settings_noticed)
        self._elector: Election | None = None
        self._term: ControllerTerm | None = None
        self._epoch = 0
        self._active: ActiveController | None = None
        self._former: ActiveController | None = None
        self._request_numbers = count(1)
        self._controller: BrokerRegistration | None = None
        self._another = asyncio.Event()
        self._endpoints: tuple[Endpoint, ...] | None = None  # what is advertised since the start, if that has changed
        self._advertising = asyncio.Lock()
        self._is_registered = False
        self._is_closing = False
        self._is_drained = False
        self._draining: asyncio.Task[None] | None = None

    # Joining and leaving.

    async def load(self) -> None:
        """Reads what there is before this broker takes part: the cluster's id, and all settings, which logs are opened with.

        Raises:
            ConfigurationError: what was changed of this broker while it ran does not go with what it was started with.
            CoordinationError: it can not be read.
        """
        await membership.make_skeleton(self._coordination)
        self.cluster_id = await membership.read_or_make_cluster_id(self._coordination, self._random)
        await self._known.load(self._coordination)

    async def start(self, registration: BrokerRegistration) -> BrokerRegistration:
        """Registers the broker and takes part in the election. Gives the registration with its epoch.

        Where this broker becomes the controller at once, as one that is alone does, it has been told all that it leads
        when this returns.

        Args:
            registration: this broker, with the endpoints that clients and brokers can reach.

        Raises:
            ConfigurationError: another broker lives under this id.
            CoordinationError: it can not be read or written.
        """
        if not self.cluster_id:
            await self.load()
        return await self._join(registration)

    def session_lost(self) -> None:
        """The session is over, and with it the registration and a time as the controller. Nothing more is decided until `rejoin`."""
        self._is_registered = False
        self._known.stop()
        if self._elector is not None:
            self._elector.close()
        self._term_ended()

    async def rejoin(self, coordination: Coordination) -> BrokerRegistration:
        """Starts again in another session. Gives the new registration.

        Raises:
            ConfigurationError: as `start`; or the coordination service holds another cluster by now.
            CoordinationError: it can not be read or written.
        """
        assert self.registration is not None, "it was never started"
        self.session_lost()
        await self._wait_ended()
        self._coordination = BoundedCoordination(coordination, ANSWER_TIMEOUT_SECONDS, self.coordination_seconds)
        former_id = self.cluster_id
        await membership.make_skeleton(self._coordination)
        self.cluster_id = await membership.read_or_make_cluster_id(self._coordination, self._random)
        if former_id != self.cluster_id:
            found, self.cluster_id = self.cluster_id, former_id
            raise ConfigurationError(f"the coordination service holds cluster {found}, and this broker is of {former_id}")
        await self._known.load(self._coordination)
        # Its process lived on, and so did what it had written: that is no unclean start.
        return await self._join(replace(self.registration, previous_broker_epoch=self.registration.broker_epoch))

    async def controlled_shutdown(self) -> None:
        """Has the controller move what this broker leads, as often as `controlled.shutdown.max.retries` allows. Never raises."""
        settings = self.settings
        for attempt in range(settings.controlled_shutdown_max_retries):
            if attempt:
                await asyncio.sleep(settings.controlled_shutdown_retry_backoff_ms / 1000)
            if not self._is_registered:
                return
            try:
                remaining = await self.move_leaderships(_HAND_OVER_SECONDS)
            except ApiError as error:
                log.warning("broker %d can not hand over what it leads: %s", self._broker_id, error)
                continue
            if not remaining:
                return
            log.warning("broker %d still leads %d partitions that nobody else can lead now", self._broker_id, len(remaining))

    async def drain(self) -> None:
        """Has what this broker leads moved away while it goes on running, and again by each controller that comes, until `undrain`."""
        self._is_drained = True
        await self.controlled_shutdown()

    async def undrain(self) -> None:
        """Leads and follows again.

        Raises:
            ApiError: no controller has taken it in; it is drained no more all the same as soon as there is another one.
        """
        self._is_drained = False
        await self.take_part_again(_HAND_OVER_SECONDS)

    async def close(self) -> None:
        """Finishes what has begun, and says that this broker is gone. The session stays open."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._elector is not None:
            self._elector.close()
        was_registered, self._is_registered = self._is_registered, False
        active = self._active
        # The end of the session takes both as well, so it does no harm when this can not be done.
        with contextlib.suppress(CoordinationError, ApiError, TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_SECONDS):
                if active is not None and was_registered:
                    await active.leave()
                elif was_registered:
                    await self._coordination.delete(znodes.BROKER.path(self._broker_id))
        self._known.stop()
        self._term_ended()
        await self._wait_ended(LEAVE_TIMEOUT_SECONDS)

    async def advertise(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Has clients and brokers told of other addresses of this broker, by its registration. Never raises."""
        self._endpoints = endpoints
        async with self._advertising:
            endpoints = self._endpoints
            if self.registration is None or not self._is_registered or self.registration.endpoints == endpoints:
                return
            self.registration = replace(self.registration, endpoints=endpoints)
            try:
                await membership.update_registration(self._coordination, self.registration, self._clock)
                log.info("broker %d is advertised at %s", self._broker_id, ", ".join(map(str, endpoints)))
            except CoordinationError as error:
                log.error(
                    "broker %d cannot be advertised at %s, clients are told its former address until it registers again: %s",
                    self._broker_id,
                    ", ".join(map(str, endpoints)),
                    error,
                )

    async def log_directory_failed(self) -> None:
        """Tells the controller that replicas of this broker may be gone; it then asks which."""
        path, data = znodes.LOG_DIR_EVENT.path(""), znodes.encode_log_dir_event(self._broker_id)
        try:
            await retried(lambda: self._coordination.create(path, data, sequential=True))
        except CoordinationError as error:
            log.error("the controller can not be told that a log directory has failed: %s", error)

    # What is known.

    @property
    def controller_id(self) -> BrokerId:
        """The controller's broker; NO_LEADER while nobody is known to be it."""
        return NO_LEADER if self._term is None else self._term.broker_id

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
        return self._active is not None

    @property
    def active(self) -> ActiveController | None:
        """The controller, if this broker is it; for looking only."""
        return self._active

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

    def caller(self) -> Caller:
        """Who this broker is when it calls others."""
        return Caller(*self._own_epoch(), self._epoch)

    def check_caller(self, caller: Caller) -> None:
        """Raises StaleBrokerEpoch or StaleControllerEpoch for a caller that is out of date, or knows that we are."""
        if caller.controller_epoch > self._epoch:
            raise StaleControllerEpoch(f"broker {caller.broker_id} knows of controller epoch {caller.controller_epoch}, not {self._epoch}")
        if self._active is not None:
            self._active.check_broker(caller.broker_id, caller.broker_epoch)

    @property
    def served(self) -> ControllerControl:
        """What other brokers call; it raises NotController unless this broker is the controller."""
        return cast("ControllerControl", _Served(lambda: self._active, self._broker_id))

    # Settings. A broker's own go with what it was started with, so it looks at that itself; and who has altered
    # something sees it at once, before the notice comes.

    async def alter_topic_configs(self, name: str, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that a topic sets for itself."""
        await super().alter_topic_configs(name, overrides, validate_only)
        await self._read_again(f"topics/{name}")

    async def incremental_alter_topic_configs(self, name: str, changes: Sequence[ConfigChange], validate_only: bool = False) -> None:
        """Changes some of what a topic sets for itself."""
        await super().incremental_alter_topic_configs(name, changes, validate_only)
        await self._read_again(f"topics/{name}")

    async def alter_broker_configs(self, broker_id: BrokerId | None, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that was changed of this broker, or of all with None, while it runs. Raises InvalidRequest."""
        self._check_broker_settings(broker_id, lambda _: overrides)
        await super().alter_broker_configs(broker_id, overrides, validate_only)
        await self._read_again(_entity(broker_id))

    async def incremental_alter_broker_configs(
        self, broker_id: BrokerId | None, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        """Changes some settings of this broker, or of all brokers with None, while it runs. Raises InvalidRequest or InvalidConfig."""
        definitions = BrokerSettings.definitions()
        self._check_broker_settings(broker_id, lambda current: configs.changed_configs(current, changes, definitions))
        await super().incremental_alter_broker_configs(broker_id, changes, validate_only)
        await self._read_again(_entity(broker_id))

    def _check_broker_settings(self, broker_id: BrokerId | None, decide: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        if broker_id not in (None, self._broker_id):
            raise InvalidRequest(f"Unexpected broker id, expected {self._broker_id}, but received {broker_id}")
        overrides = {each: self.broker_overrides(each) for each in (None, self._broker_id)}
        overrides[broker_id] = decide(overrides[broker_id])
        configs.checked_broker_settings(self._static_settings, overrides[None], overrides[self._broker_id])

    async def _read_again(self, entity: str) -> None:
        with contextlib.suppress(CoordinationError):  # the notice will do
            await self._known.read_again(self._coordination, entity)

    def _settings_noticed(self, entity: str) -> None:
        if self._active is not None:
            self._active.settings_noticed(entity)

    # Who is the controller.

    async def _join(self, registration: BrokerRegistration) -> BrokerRegistration:
        registered = await membership.register_broker(self._coordination, registration, self._clock, self._session_timeout_seconds)
        self.registration, self._is_registered = registered, True
        self._known.start(self._coordination)
        self._elector = controller_election(self._coordination, self._broker_id, self._clock, self._term_begins, self._term_ended)
        await self._elector.start()
        if self._endpoints is not None:
            await self.advertise(self._endpoints)  # it may have changed while there was no session
        if self._active is not None:
            await self._active.told_all()
        return registered

    async def _term_begins(self, term: ControllerTerm) -> None:
        if self._former is not None:
            # What it had begun must not write in the middle of what comes now: the session, and the epoch, may be the same.
            await self._former.wait_closed(ANSWER_TIMEOUT_SECONDS)
            self._former = None
        self._term, self._epoch = term, max(self._epoch, term.epoch)
        active = None
        if term.is_own:
            active = self._active = ActiveController(
                term,
                self._coordination,
                self._static_settings,
                self._clock,
                self._random,
                self._transport,
                self._term_failed,
                self.counts,
                self._request_numbers,
            )
        else:
            log.info("broker %d is the controller, epoch %d", term.broker_id, term.epoch)
        self._tell_controller()
        if active is not None:
            await active.start()

    def _term_ended(self) -> None:
        active, self._active = self._active, None
        if active is not None:
            active.resign()
            self._former = active
        self._term = self._controller = None
        self._tell_controller()

    def _term_failed(self, why: str) -> None:
        if self._elector is not None:
            self._elector.term_failed(why)

    def _tell_controller(self) -> None:
        another, self._another = self._another, asyncio.Event()
        another.set()
        self._controller_changed(self.controller_id, self._epoch)
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None
        if self._is_drained and self._term is not None and not self._is_closing:
            # Who leads and who is in sync is in ZooKeeper; who is not to be either, only the controller before this one knew.
            self._draining = asyncio.ensure_future(self.controlled_shutdown())

    async def _wait_ended(self, timeout_seconds: float = ANSWER_TIMEOUT_SECONDS) -> None:
        """Waits until nothing of this session is under way any more."""
        if self._elector is not None:
            await self._elector.wait_closed()
        if self._former is not None:
            await self._former.wait_closed(timeout_seconds)
            self._former = None
        await self._known.wait_stopped()

    # For `Forwarding`.

    def _own_epoch(self) -> tuple[BrokerId, int]:
        return self._broker_id, -1 if self.registration is None else self.registration.broker_epoch

    async def _find_controller(self) -> ControllerControl:
        if self._active is not None:
            return self._active
        term = self._term
        if term is None:
            raise BrokerNotAvailable("no controller is known at the moment")
        if self._controller is None:
            path = znodes.BROKER.path(term.broker_id)
            with coordination_errors_as_api_errors("looking for the controller"):
                try:
                    data, stat = await self._coordination.get(path)
                except NoNode:
                    raise BrokerNotAvailable(f"the controller, broker {term.broker_id}, is not registered") from None
                registration = znodes.decode_broker(path, data, stat.czxid)
            if term is not self._term:
                raise BrokerNotAvailable("the controller is another than before")
            self._controller = registration
        return self._transport.controller(self._controller)

    async def _until_another_controller(self) -> None:
        if self._is_closing:
            raise NotController("this broker stops")
        await self._another.wait()

    async def _describe_topic(self, name: str) -> tuple[TopicDescription, Mapping[str, str]] | None:
        with coordination_errors_as_api_errors(f"looking for topic {name}"):
            loaded = await retried(lambda: load_topic(self._coordination, name))
        if loaded is None:
            return None
        known = loaded.known(loaded.assignment.topic_id or ZERO_TOPIC_ID, loaded.topic_version)
        return known.describe(), known.overrides


class _Served:
    """Every method of ControllerControl, as long as this broker is the controller."""

    def __init__(self, active: Callable[[], ActiveController | None], broker_id: BrokerId) -> None:
        self._active = active
        self._broker_id = broker_id

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **keywords: Any) -> Any:
            active = self._active()
            if active is None:
                raise NotController(f"broker {self._broker_id} is not the controller")
            return await getattr(active, method)(*arguments, **keywords)

        return call


def _entity(broker_id: BrokerId | None) -> str:
    return f"brokers/{znodes.DEFAULT_ENTITY if broker_id is None else broker_id}"

"""Three schema registries over `_schemas`, with clients that register, delete and configure, while brokers and registries fail.

Promised (docs/schema-registry.md) is that an id stands for one schema, always; that a registration that was acknowledged is there for
everybody until it is deleted; that ids are contiguous; that all nodes say the same, also one that begins with what compaction has left; and
that registrations go on once everything has healed. What is answered with an error may have taken place, at any time.

A node is `KafkaTopic`, `Store`, `Leadership` and its sessions, put together as `server` does it, with a snapshot that may be torn.
HTTP is left out: a client calls what a request would have called, in the node, and waits for the answer no longer than a client does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from operator import methodcaller
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from tests.simulation.cluster import both_ways, to_zookeeper
from tests.simulation.machine import SkewedClock
from tests.simulation.nodes import Node, current_name
from tests.simulation.scenes import Stage
from tests.simulation.wire_clients import wire_connect

from ottla.coordination.interface import Coordination
from ottla.coordination.sessions import CoordinationSessions
from ottla.errors import OttlaError
from ottla.model import TopicPartition
from ottla.schema_registry.formats import Formats
from ottla.schema_registry.leadership import Address, Leadership
from ottla.schema_registry.state import decisions, replay
from ottla.schema_registry.state.decisions import Registration
from ottla.schema_registry.state.drafts import Drafts
from ottla.schema_registry.state.errors import (
    LeaderUnknown,
    RegistryError,
    StoreFailed,
    StoreTimedOut,
    SubjectNotFound,
    SubjectSoftDeleted,
)
from ottla.schema_registry.state.replay import State
from ottla.schema_registry.store import snapshot
from ottla.schema_registry.store.replaying import Store, replayed
from ottla.schema_registry.store.topic import KafkaTopic, TopicSettings
from ottla.wire.cluster import ClusterSettings
from ottla.wire.producing import BatchProducer, ProduceSettings

TOPIC: Final = "_schemas"
KEY: Final = TopicPartition(TOPIC, 0)
NODES: Final = 3
CLIENTS: Final = 4
REQUEST_SECONDS: Final = 8.0
TIMEOUT_SECONDS: Final = 6.0
RESTART_SECONDS: Final = 1.0
LIVELY_SECONDS: Final = 120.0
BEGIN_ATTEMPTS: Final = 10

T = TypeVar("T")


@dataclass(slots=True)
class Life:
    """A node that runs."""

    node: Node
    store: Store
    leadership: Leadership
    sessions: CoordinationSessions
    identity: snapshot.Identity
    topic: KafkaTopic


@dataclass(slots=True)
class Registry:
    """One registry: its process, if there is one, and what is on its disk."""

    name: str
    address: Address
    directory: Path | None
    clock: SkewedClock
    node: Node | None = None
    life: Life | None = None


@dataclass(slots=True)
class Subject:
    """What one client knows of a subject, which no other client writes to.

    Attributes:
        ids: by version, of what was acknowledged.
        is_unsure: a request was given up, and may still take place.
        is_going: its deletion was asked for.
        is_gone: its deletion for good was acknowledged.
    """

    name: str
    texts: list[str] = field(default_factory=list)
    ids: dict[int, int] = field(default_factory=dict)
    is_unsure: bool = False
    is_going: bool = False
    is_gone: bool = False


class Registries:
    """The scene."""

    def __init__(self, stage: Stage) -> None:
        self._stage: Final = stage
        random = stage.random
        self._every: Final = random.choice((0.05, 0.3, 1.0))
        self._fault_every: Final = random.choice((2.0, 5.0, 15.0))
        has_snapshots, shares_address = random.random() < 0.7, random.random() < 0.2
        self._registries: Final = [
            self._registry(f"registry-{number}", 1 if shares_address else number, has_snapshots=has_snapshots)
            for number in range(1, NODES + 1)
        ]
        self._fresh: Final = self._registry("registry-fresh", NODES + 1, has_snapshots=False)
        self._schemas: Final[dict[int, str]] = {}  # by id, what it stood for when it was first seen
        self._subjects: Final[list[Subject]] = []
        self._told: Final[set[str]] = set()
        self._acknowledged = [0] * CLIENTS
        self._is_healing = self._is_stopping = False

    def _registry(self, name: str, number: int, *, has_snapshots: bool) -> Registry:
        cluster = self._stage.cluster
        clock = SkewedClock(cluster.network.loop, self._stage.random.choice((0, -300, 2500)))
        return Registry(name, Address(f"http://registry-{number}:8081"), cluster.directory / name if has_snapshots else None, clock)

    @property
    def topics(self) -> frozenset[str]:
        return frozenset({TOPIC})

    async def begin(self) -> bool:
        random = self._stage.random
        settings = {
            "cleanup.policy": "compact",
            "min.insync.replicas": "2",
            "segment.bytes": str(random.choice((1 << 12, 1 << 14, 1 << 20))),
            "min.cleanable.dirty.ratio": "0.01",
            **{name: value for name, value in self._stage.plan.topic_settings.items() if name.startswith("flush.")},
        }
        for _ in range(BEGIN_ATTEMPTS):
            if await self._stage.create(TOPIC, 1, settings):
                break
            await asyncio.sleep(1.0)
        else:
            return False
        for registry in self._registries:
            self._start(registry)
        return True

    # A node's life.

    def _start(self, registry: Registry) -> None:
        if registry.node is None:
            node = registry.node = Node(registry.name)
            self._stage.tell(f"{registry.name} starts")
            self._stage.cluster.network.loop.spawn(node, self._live(registry, node))

    async def _live(self, registry: Registry, node: Node) -> None:
        try:
            await self._begin_to_live(registry, node)
        except (OttlaError, OSError) as error:
            self._stage.tell(f"{registry.name} did not start: {error!r}")
            self._later(RESTART_SECONDS, lambda: self._restart(registry, node))

    async def _begin_to_live(self, registry: Registry, node: Node) -> None:
        cluster, random = self._stage.cluster, Random(self._stage.random.random())
        bootstrap = ",".join(f"{host}:{port}" for host, port in cluster.addresses.values())
        asking = ClusterSettings(client_id=registry.name, request_timeout_seconds=4.0, api_timeout_seconds=TIMEOUT_SECONDS)
        settings = TopicSettings(bootstrap, asking, TOPIC, 3, "group", 30.0, TIMEOUT_SECONDS)
        topic = KafkaTopic(settings, registry.clock, random=random, connect=wire_connect(cluster.connections))
        try:
            cluster_id, topic_id, first, end = await topic.open()
            identity = snapshot.Identity(cluster_id, TOPIC, topic_id)
            found = None
            if registry.directory is not None:
                found = snapshot.read_or_none(snapshot.file_of(registry.directory, TOPIC), identity, first, end)
            store = await replayed(topic, Drafts(Formats()), found or State(), (first, end), TIMEOUT_SECONDS, 60.0)
            leadership = Leadership(store, lambda: registry.address, changed=lambda: None)

            async def take_part(session: Coordination) -> None:
                await leadership.join(session, "group")

            sessions = CoordinationSessions(cluster.zookeeper.opener(), leadership.lost, take_part)
            await take_part(await sessions.open())
            sessions.keep()
        except BaseException:
            await topic.close()
            raise
        registry.life = Life(node, store, leadership, sessions, identity, topic)
        self._stage.tell(f"{registry.name} is there, at offset {store.state.next_offset}{' with its snapshot' if found else ''}")

    def _kill(self, registry: Registry) -> None:
        node = registry.node
        if node is None:
            return
        cluster = self._stage.cluster
        self._see(registry)
        cluster.network.loop.kill(node)
        registry.node = registry.life = None
        cluster.connections.node_died(node, 0.0)
        cluster.zookeeper.connectivity_changed()
        path = None if registry.directory is None else snapshot.file_of(registry.directory, TOPIC)
        if path is not None and path.exists() and self._stage.random.random() < 0.2:
            self._stage.tell(f"{registry.name} has a torn snapshot")
            path.write_bytes(path.read_bytes()[: self._stage.random.randrange(max(1, path.stat().st_size))])

    def _restart(self, registry: Registry, node: Node) -> None:
        if registry.node is node:
            self._kill(registry)
            self._start(registry)

    async def _stop(self, registry: Registry, life: Life) -> None:
        """As `server` does: the lead first."""
        await life.sessions.stop_renewing()
        await life.leadership.leave()
        await life.sessions.close()
        await life.store.close()
        await life.topic.close()
        self._write_snapshot(registry, life)
        self._stage.tell(f"{registry.name} has stopped")
        self._later(self._stage.random.uniform(0.0, 3.0), lambda: self._restart(registry, life.node))

    @staticmethod
    def _write_snapshot(registry: Registry, life: Life) -> None:
        if registry.directory is not None and not life.store.fault:
            snapshot.write(snapshot.file_of(registry.directory, TOPIC), life.identity, life.store.state.image())

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        network = self._stage.cluster.network
        network.loop.call_later(seconds, what, context=network.outside.copy())

    # Faults of its own.

    async def _disturb(self) -> None:
        random, cluster = self._stage.random, self._stage.cluster
        outside = cluster.network.outside
        while True:
            await asyncio.sleep(min(30.0, random.expovariate(1 / self._fault_every)))
            if self._is_healing:
                return
            leading = [registry for registry in self._registries if registry.life is not None and registry.life.leadership.is_leader]
            registry = random.choice(leading if leading and random.random() < 0.7 else self._registries)
            seconds = random.choice((random.uniform(0.05, 1.0), random.uniform(1.0, 15.0)))
            kind = random.choice(("kill", "stop", "pause", "pause", "expire", "zookeeper", "brokers", "resign", "snapshot"))
            self._stage.tell(f"{registry.name}{' (leads)' if registry in leading else ''}: {kind}, {seconds:.3f} s")
            outside.copy().run(self._perform, registry, kind, seconds)

    def _perform(self, registry: Registry, kind: str, seconds: float) -> None:
        cluster, node, life = self._stage.cluster, registry.node, registry.life
        loop = cluster.network.loop
        match kind:
            case "kill":
                self._kill(registry)
                self._later(seconds, lambda: self._start(registry))
            case "stop" if life is not None:
                registry.life = None
                loop.spawn(life.node, self._stop(registry, life))
                self._later(30.0, lambda: self._restart(registry, life.node))
            case "pause" if node is not None:
                loop.pause(node)
                cluster.zookeeper.connectivity_changed()
                self._later(seconds, lambda: self._resume(node))
            case "expire":
                cluster.zookeeper.expire(registry.name)
            case "zookeeper" | "brokers":
                brokers = [machine.name for machine in cluster.machines.values()]
                pairs = to_zookeeper(registry.name) if kind == "zookeeper" else both_ways(registry.name, brokers)
                cluster.block(pairs)
                self._later(seconds, lambda: cluster.unblock(pairs))
            case "resign" if life is not None and life.leadership.is_leader:
                loop.spawn(life.node, self._resign(life))
            case "snapshot" if life is not None:
                self._write_snapshot(registry, life)

    @staticmethod
    async def _resign(life: Life) -> None:
        with suppress(OttlaError, OSError):
            await life.leadership.resign()

    def _resume(self, node: Node) -> None:
        self._stage.cluster.network.loop.resume(node)
        self._stage.cluster.zookeeper.connectivity_changed()

    # Clients.

    async def run(self) -> None:
        looking = asyncio.ensure_future(self._look())
        await asyncio.gather(self._disturb(), *(self._register_and_delete(number) for number in range(CLIENTS)))
        looking.cancel()

    def stop(self) -> None:
        self._is_stopping = True

    async def _register_and_delete(self, number: int) -> None:
        random = self._stage.random
        mine: list[Subject] = []
        while not self._is_stopping:
            await asyncio.sleep(random.expovariate(1 / self._every))
            chosen = random.choice(mine) if mine else None
            match random.choices(("new", "shared", "version", "delete", "config"), (6, 2, 3, 1, 1))[0]:
                case "version" if chosen is not None and not chosen.is_going and chosen.texts[0] == _record(chosen.name, 1):
                    await self._register(number, chosen, _record(chosen.name, len(chosen.texts) + 1))
                case "delete" if chosen is not None and chosen.ids and not (chosen.is_unsure or chosen.is_going):
                    await self._delete(number, chosen)
                case "config" if chosen is not None:
                    await self._configure(number, chosen)
                case kind:
                    subject = Subject(f"s-{number}-{len(mine)}")
                    mine.append(subject)
                    self._subjects.append(subject)
                    shared = _record("shared", 1 + random.randrange(5))
                    await self._register(number, subject, shared if kind == "shared" else _record(subject.name, 1))

    async def _register(self, number: int, subject: Subject, text: str) -> None:
        subject.texts.append(text)
        request = Registration(subject.name, text=text)
        version = await self._insist(number, subject, lambda store: store.register(request))
        if version is None:
            return
        self._stage.note(f"{subject.name}/{version.version} has id {version.id}")
        self._stands_for(version.id, text, f"what {subject.name} was answered")
        if subject.ids.setdefault(version.version, version.id) != version.id:
            self._fail(f"{subject.name}/{version.version} had id {subject.ids[version.version]}, and has {version.id}")

    async def _delete(self, number: int, subject: Subject) -> None:
        subject.is_going = True
        for is_permanent in (False, True):

            def decide(state: State, is_permanent: bool = is_permanent) -> Any:
                return decisions.delete_subject(state, subject.name, is_permanent=is_permanent)

            if await self._insist(number, subject, methodcaller("change", decide)) is None:
                return
        subject.is_gone = True

    async def _configure(self, number: int, subject: Subject) -> None:
        level = self._stage.random.choice(("NONE", "FULL"))
        await self._insist(
            number,
            subject,
            lambda store: store.change(lambda state: decisions.put_config(state, subject.name, {"compatibilityLevel": level})),
        )

    async def _insist(self, number: int, subject: Subject, work: Callable[[Store], Awaitable[T]]) -> T | None:
        """Asks one node after the other until one has done it; None where the run ends before, or it was done by a request given up."""
        random, is_again = self._stage.random, False
        while not self._is_stopping:
            try:
                answer = await self._ask(random.choice(self._registries), work)
                self._acknowledged[number] += 1
                return answer
            except (StoreFailed, StoreTimedOut, OSError):
                is_again = subject.is_unsure = True
            except LeaderUnknown:
                is_again = subject.is_unsure = True  # said also of a write that was under way
            except (SubjectSoftDeleted, SubjectNotFound) as error:
                if is_again and subject.is_going:
                    return None
                self._fail(f"{subject.name}: {error}")
                return None
            except RegistryError as error:
                self._fail(f"{subject.name} is refused: {error!r}")
                return None
            await asyncio.sleep(random.uniform(0.02, 0.4))
        subject.is_unsure = True
        return None

    async def _ask(self, registry: Registry, work: Callable[[Store], Awaitable[T]]) -> T:
        network, life = self._stage.cluster.network, registry.life
        await asyncio.sleep(network.delay(current_name(), registry.name))
        if life is None or registry.life is not life:
            raise ConnectionRefusedError(f"{registry.name} is not there")

        async def perform() -> T:
            return await work(life.store)

        asking = network.loop.spawn(life.node, perform())
        done, _ = await asyncio.wait([asking], timeout=REQUEST_SECONDS)
        if not done:
            asking.add_done_callback(lambda task: task.cancelled() or task.exception())
            asking.cancel()
            raise TimeoutError(f"{registry.name} does not answer")
        answer = asking.result()
        self._stage.acknowledged(KEY, life.store.state.next_offset - 1)
        await asyncio.sleep(network.delay(registry.name, current_name()))
        return answer

    # Looking.

    async def _look(self) -> None:
        while True:
            for registry in self._registries:
                self._see(registry)
            await asyncio.sleep(0.5)

    def _see(self, registry: Registry) -> None:
        if registry.life is None:
            return
        state, fault = registry.life.store.state, registry.life.store.fault
        for schema_id, schema in state.context(".").schemas.items():
            self._stands_for(schema_id, schema.text, registry.name)
        if state.conflict_count or state.unreadable_count:
            self._fail(f"{registry.name} has {state.conflict_count} conflicts and {state.unreadable_count} records that cannot be read")
        if fault:
            self._fail(f"{registry.name} writes nothing any more, and the topic is there: {fault}")

    def _stands_for(self, schema_id: int, text: str, of: str) -> None:
        known = self._schemas.setdefault(schema_id, text)
        if known != text:
            self._fail(f"id {schema_id} stands for {known}, and for {text} by {of}")

    def _fail(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._stage.fail(text)

    # The end.

    async def after_healing(self) -> None:
        cluster = self._stage.cluster
        self._is_healing = True
        for registry in self._registries:
            if registry.node is not None and registry.node.is_paused:
                self._resume(registry.node)
            cluster.network.outside.copy().run(self._start, registry)
        before = list(self._acknowledged)

        def everybody_goes_on() -> bool:
            return all(now > then for now, then in zip(self._acknowledged, before, strict=True))

        if not await cluster.wait_until(everybody_goes_on, LIVELY_SECONDS):
            self._fail(f"{LIVELY_SECONDS:.0f} s after everything healed not every client has written: {before}, {self._acknowledged}")

    async def look_at_the_end(self) -> None:
        cluster = self._stage.cluster
        cluster.network.outside.copy().run(self._start, self._fresh)
        everybody = [*self._registries, self._fresh]

        def are_level() -> bool:
            lives = [registry.life for registry in everybody]
            return len({None if life is None else life.store.state.next_offset for life in lives}) == 1 and None not in lives

        if not await cluster.wait_until(are_level, LIVELY_SECONDS):
            self._fail("the registries do not get level with each other")
            return
        for registry in everybody:
            self._see(registry)
        images = {registry.name: _image(registry.life.store.state) for registry in everybody if registry.life is not None}
        for name, image in images.items():
            if image != images[self._fresh.name]:
                self._fail(f"{name} and {self._fresh.name} do not say the same: {_difference(image, images[self._fresh.name])}")
        assert self._fresh.life is not None
        self._compare(self._fresh.life.store.state)
        self._stage.tell(f"{len(self._schemas)} ids, {sum(self._acknowledged)} writes acknowledged")

    def _compare(self, state: State) -> None:
        for subject in self._subjects:
            for version, schema_id in subject.ids.items():
                found = state.version(subject.name, version)
                if subject.is_gone:
                    if found is not None:
                        self._fail(f"{subject.name}/{version} was deleted for good, and is there")
                elif not subject.is_going and (found is None or found.id != schema_id or found.is_deleted):
                    self._fail(f"{subject.name}/{version} was acknowledged with id {schema_id}, and is {found}")
        given = sorted(self._schemas)
        if given != list(range(1, len(given) + 1)) or state.context(".").highest_id != len(given):
            missing = sorted(set(range(1, state.context(".").highest_id + 1)) - set(given))
            self._fail(f"{len(given)} ids were given, the highest is {state.context('.').highest_id}, and {missing} never were seen")

    def findings(self) -> Iterator[str]:
        if not sum(self._acknowledged):
            yield "no registry ever acknowledged anything"


def _record(name: str, field_count: int) -> str:
    fields = [{"name": f"f{number}", "type": "string", "default": ""} for number in range(field_count)]
    return json.dumps({"type": "record", "name": name.replace("-", "_"), "fields": fields}, separators=(",", ":"))


def _image(state: State) -> dict[str, Any]:
    image = state.image()
    versions = {(version.subject, version.version): version for versions in image.subjects for version in versions}
    return {"highest": dict(image.highest_ids), "versions": versions, "configs": dict(image.configs), "modes": dict(image.modes)}


def _difference(one: dict[str, Any], other: dict[str, Any]) -> list[Any]:
    return [
        (part, key, one[part].get(key), other[part].get(key))
        for part in one
        for key in sorted({*one[part], *other[part]}, key=str)
        if one[part].get(key) != other[part].get(key)
    ][:3]


def let_former_leaders_write() -> None:
    """A sabotage: a registry raises no epoch when it begins to lead, and its replay looks at none."""

    async def begin(self: KafkaTopic) -> int:
        if self._producer is None:
            self._producer = BatchProducer(self._cluster, ProduceSettings(max_in_flight=1))
        return (await self._ends())[1]

    for owner, name, replacement in ((KafkaTopic, "begin", begin), (replay, "_epoch_of", lambda headers: None)):
        assert hasattr(owner, name), f"{owner} has no {name}: the sabotage is out of date"
        setattr(owner, name, replacement)

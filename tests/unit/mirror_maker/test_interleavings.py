"""What comes in between: an operator's command, an end of a session or a stop, while a slot is being given up or a link ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.loops import until
from tests.unit.mirror_maker.mirrors import Side, two_sides
from tests.unit.mirror_maker.test_server import publish, worker
from tests.unit.wire.clusters import create_topic

from ottla.clock import SystemClock
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.errors import ConnectionLoss
from ottla.coordination.retries import BoundedCoordination
from ottla.mirror_maker import link, server
from ottla.mirror_maker.membership import ROOT, MadeLinks, Members, Shared
from ottla.mirror_maker.merge.slot import SlotCopier
from ottla.mirror_maker.server import MirrorMaker
from ottla.model import BrokerId, TopicPartition

SECONDS = 60.0


class Slow:
    """Slots that take as long to end as the target takes to abort a transaction: until it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = asyncio.Event()
        self.running: set[asyncio.Task[None]] = set()
        self.ending = 0

        async def run(copier: SlotCopier) -> None:
            task = asyncio.current_task()
            assert task is not None
            self.running.add(task)
            task.add_done_callback(self.running.discard)
            try:
                await asyncio.Event().wait()
            finally:
                self.ending += 1
                await asyncio.wait([asyncio.ensure_future(self.may_end.wait())], timeout=SECONDS)

        monkeypatch.setattr(SlotCopier, "run", run)


class Shares:
    """Workers that share a ZooKeeper, whose sessions can be ended."""

    def __init__(self, a: Side, b: Side, zookeeper: EmbeddedZooKeeper) -> None:
        self._sides = a, b
        self.zookeeper = zookeeper
        self.sessions: list[EmbeddedSession] = []
        self.may_begin = asyncio.Event()  # a session
        self.may_begin.set()

    @asynccontextmanager
    async def worker(self, **properties: str) -> AsyncIterator[MirrorMaker]:
        async def session() -> EmbeddedSession:
            await self.may_begin.wait()
            self.sessions.append(await self.zookeeper.session())
            return self.sessions[-1]

        a, b = self._sides
        async with worker(a, b, session, **properties) as one:
            yield one


@asynccontextmanager
async def shares(directory: Path) -> AsyncIterator[Shares]:
    async with two_sides(directory) as (a, b):
        await create_topic(a.cluster, "clicks", 4)
        await create_topic(a.cluster, "views", 4)
        zookeeper = EmbeddedZooKeeper(directory / "coordination", SystemClock())
        try:
            yield Shares(a, b, zookeeper)
        finally:
            await zookeeper.close()


def slots_of(one: MirrorMaker) -> set[int]:
    return set(one.links["A-B"].slots) if one.links else set()


async def test_a_pause_while_a_slot_is_given_up_does_not_begin_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers would have it, and fence each other for good."""
    slow = Slow(monkeypatch)
    async with shares(tmp_path) as shared, shared.worker() as first:
        await until(lambda: len(slots_of(first)) == 4 and first.links["A-B"]._wanted)
        async with shared.worker() as second:
            await until(lambda: slow.ending == 1)
            monkeypatch.setattr(link, "to_release", lambda *_: None)
            given_up = {0, 1, 2, 3} - slots_of(first)
            pausing = asyncio.create_task(first.links["A-B"].pause("*"))
            await asyncio.sleep(0.5)
            assert len(given_up) == 1 and not given_up & slots_of(first)
            slow.may_end.set()
            await pausing
            await until(lambda: (len(slots_of(first)), len(slots_of(second))) == (3, 1))


async def test_a_slot_that_is_another_workers_by_the_time_it_is_given_up_stays_that_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ends in between, and the next one begins."""
    slow = Slow(monkeypatch)
    async with shares(tmp_path) as shared, shared.worker() as first:
        await until(lambda: len(slots_of(first)) == 4)
        async with shared.worker() as second:
            await until(lambda: slow.ending == 1)
            monkeypatch.setattr(link, "to_release", lambda *_: None)
            shared.may_begin.clear()
            await shared.zookeeper.expire(shared.sessions[0])
            await until(lambda: len(slots_of(second)) == 4)
            shared.may_begin.set()
            await until(lambda: len(shared.sessions) == 3 and first._session is shared.sessions[2])
            slow.may_end.set()
            await until(lambda: slow.ending == 4)
            await asyncio.sleep(0.5)
            assert (len(slots_of(first)), len(slots_of(second))) == (0, 4)


async def test_a_slot_that_is_another_workers_in_zookeeper_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two fenced each other in turns for good."""
    slow = Slow(monkeypatch)
    slow.may_end.set()
    async with shares(tmp_path) as shared, shared.worker() as one:
        await until(lambda: len(slots_of(one)) == 4)
        await (await shared.zookeeper.session()).set(f"{ROOT}/A-B/slots/2", b"another")
        await until(lambda: slots_of(one) == {0, 1, 3})
        await until(lambda: len(slow.running) == 3)


async def test_no_slot_is_begun_by_what_was_seen_in_a_session_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends while what there is is on its way: by then the slots are others'."""
    slow = Slow(monkeypatch)
    slow.may_end.set()
    async with shares(tmp_path) as shared, shared.worker() as one:
        await until(lambda: len(slots_of(one)) == 4)
        look, link_ = Shared.look, one.links["A-B"]

        async def ends(membership: Shared) -> Members:
            found = await look(membership)
            link_.lost()
            return found

        monkeypatch.setattr(Shared, "look", ends)
        await until(lambda: not isinstance(link_._membership, Shared))
        await asyncio.sleep(0)
        assert not slots_of(one) and not link_._copying


async def test_two_operators_who_pause_at_once_have_both_paused(tmp_path: Path) -> None:
    async with shares(tmp_path) as shared, shared.worker() as first, shared.worker() as second:
        links = [one.links["A-B"] for one in (first, second)]
        await until(lambda: all(link._wanted for link in links))
        await asyncio.gather(*(link.pause(name) for link, name in zip(links, ("clicks", "views"), strict=True)))
        assert (await links[0]._membership.look()).paused == {"clicks", "views"}
        await asyncio.gather(*(link.resume(name) for link, name in zip(links, ("clicks", "views"), strict=True)))
        assert (await links[0]._membership.look()).paused == set()


async def test_a_worker_whose_joining_was_answered_with_a_lost_connection_joins(tmp_path: Path) -> None:
    """Its znode is there, in its own session."""

    class Breaking(BoundedCoordination):
        breaks = True

        async def create(self, path: str, data: bytes = b"", **options: bool) -> str:
            made = await super().create(path, data, **options)
            if "/workers/" in path and self.breaks:
                self.breaks = False
                raise ConnectionLoss(path)
            return made

    zookeeper = EmbeddedZooKeeper(None, SystemClock())
    try:
        session = Breaking(await zookeeper.session(), 10.0)
        for _ in range(2):
            try:
                await Shared(session, "A-B", "one", lambda: None).join()
            except ConnectionLoss:
                continue
        found = await Shared(session, "A-B", "one", lambda: None).look()
        assert found.workers == {"one"}
    finally:
        await zookeeper.close()


async def test_a_look_at_the_links_that_fails_for_an_unforeseen_reason_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No link that a command made later was copied by this worker, and its log said nothing."""
    Slow(monkeypatch).may_end.set()
    monkeypatch.setattr(server, "FOLLOW_SECONDS", 0.1)
    look = MadeLinks.look

    async def fails(links: MadeLinks) -> Any:
        monkeypatch.setattr(MadeLinks, "look", look)
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(MadeLinks, "look", fails)
    async with shares(tmp_path) as shared, shared.worker(**{"A->B.enabled": "false"}) as one:
        await MadeLinks(await shared.zookeeper.session(), lambda: None).add("A-B", "A", "B", {})
        await until(lambda: one.links.keys() == {"A-B"})
    assert "unforeseen" in caplog.text


async def test_a_link_that_ends_while_its_worker_stops_ends_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slots would be copied on, by no link, with transactions that no one ends."""
    slow = Slow(monkeypatch)
    async with shares(tmp_path) as shared, AsyncExitStack() as stack:
        one = await stack.enter_async_context(shared.worker(**{"A->B.enabled": "false"}))
        await one.create("A-B", {})
        await until(lambda: len(slow.running) == 4)
        await MadeLinks(shared.sessions[0], lambda: None).remove("A-B")
        await until(lambda: slow.ending > 0)
        stopping = asyncio.create_task(stack.aclose())
        await asyncio.sleep(0.1)
        slow.may_end.set()
        await stopping
        assert not slow.running


async def test_a_link_that_is_made_while_the_worker_stops_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    async with shares(tmp_path) as shared, AsyncExitStack() as stack:
        one = await stack.enter_async_context(shared.worker())
        await until(lambda: len(slow.running) == 4)
        stopping = asyncio.create_task(stack.aclose())
        await until(lambda: slow.ending > 0)
        creating = asyncio.create_task(one.create("B-A", {}))
        await asyncio.sleep(0.5)
        slow.may_end.set()
        await stopping
        await asyncio.wait([creating])
        await asyncio.sleep(0.5)
        assert not slow.running and not one.links


@pytest.mark.long
async def test_a_worker_whose_target_is_away_stops_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its slots waited for a minute or two to abort its transaction, one after the other: three minutes for these four."""
    monkeypatch.setattr(link, "ABORT_SECONDS", link.ABORT_SECONDS / 10)
    async with two_sides(tmp_path) as (a, b), AsyncExitStack() as stack:
        await create_topic(a.cluster, "clicks", 4)
        one = await stack.enter_async_context(worker(a, b))
        copied = one.links["A-B"]

        async def write(partition: TopicPartition) -> None:
            while True:
                await publish(a, partition, b"x")

        writing = [asyncio.create_task(write(TopicPartition("clicks", number))) for number in range(4)]
        await until(lambda: len(copied.slots) == 4 and copied.counts.transactions > 40)
        await b.brokers.kill(BrokerId(1))
        await asyncio.sleep(0.1)
        for task in writing:
            task.cancel()
        async with asyncio.timeout(SECONDS):
            await stack.aclose()
        await b.brokers.start_broker(BrokerId(1))

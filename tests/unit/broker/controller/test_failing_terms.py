"""Terms that fail one upon the other, because the coordination service cannot write."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import weakref
from collections.abc import Sequence

import pytest
from tests.loops import until

from ottla.coordination import election
from ottla.coordination.embedded import EmbeddedSession
from ottla.coordination.errors import CoordinationError
from ottla.coordination.interface import Operation, Result
from ottla.errors import KafkaStorageError, OttlaError
from ottla.interbroker.calls import NewTopic
from ottla.lifecycle import Backoff
from ottla.model import TopicPartition

from .clusters import Cluster


class FullDisk:
    """A session whose service cannot write for a while, and continues reading."""

    def __init__(self, session: EmbeddedSession) -> None:
        self._session = session
        self.is_full = False
        self.refused = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        if self.is_full:
            self.refused += 1
            raise CoordinationError(f"[Errno {errno.ENOSPC}] no space left on the device")
        return await self._session.transaction(operations)


async def test_terms_that_fail_one_upon_the_other_are_begun_with_pauses_and_told_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed log directory on the same disk is taken in at each beginning, and that cannot be written."""
    monkeypatch.setattr(election, "_BACKOFF", Backoff(first_seconds=0.1, longest_seconds=0.4))
    disks: list[FullDisk] = []
    with caplog.at_level(logging.WARNING, logger="ottla"):

        def wrapped(session: EmbeddedSession) -> FullDisk:
            disks.append(FullDisk(session))
            return disks[-1]

        controller = await cluster.start(wrapped=wrapped)  # type: ignore[arg-type]
        await controller.create_topic(NewTopic("a"))
        cluster.broker.errors[TopicPartition("a", 0)] = KafkaStorageError.code
        disks[0].is_full = True
        began = asyncio.get_running_loop().time()
        with pytest.raises(OttlaError):
            await controller.create_topic(NewTopic("b"))
        await until(lambda: disks[0].refused >= 6)  # at once, and after 0.1, 0.2, 0.4 and 0.4 s
        assert asyncio.get_running_loop().time() - began >= 1.0
        disks[0].is_full = False
        await until(lambda: controller.is_active)
        await controller.create_topic(NewTopic("b"))
    told = [record for record in caplog.records if "cannot continue as the controller" in record.message]
    assert 1 <= len(told) <= 3


async def test_a_term_that_fails_alone_is_begun_again_at_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election, "_BACKOFF", Backoff(first_seconds=20.0, longest_seconds=20.0))
    disks: list[FullDisk] = []

    def wrapped(session: EmbeddedSession) -> FullDisk:
        disks.append(FullDisk(session))
        return disks[-1]

    controller = await cluster.start(wrapped=wrapped)  # type: ignore[arg-type]
    disks[0].is_full = True
    with pytest.raises(OttlaError):
        await controller.create_topic(NewTopic("b"))
    disks[0].is_full = False
    async with asyncio.timeout(120):
        await until(lambda: controller.is_active)
        await controller.create_topic(NewTopic("b"))


async def test_a_term_that_begins_again_in_its_epoch_continues_the_numbers_of_its_requests(cluster: Cluster) -> None:
    """A broker that has heard the former term refuses lower ones, as requests that the network delivers late."""
    disks: list[FullDisk] = []

    def wrapped(session: EmbeddedSession) -> FullDisk:
        disks.append(FullDisk(session))
        return disks[-1]

    controller = await cluster.start(wrapped=wrapped)  # type: ignore[arg-type]
    await controller.create_topic(NewTopic("a"))
    epoch, heard = controller.controller_epoch, len(cluster.broker.request_numbers)
    disks[0].is_full = True
    with pytest.raises(OttlaError):
        await controller.create_topic(NewTopic("b"))
    disks[0].is_full = False
    await until(lambda: controller.is_active)
    await controller.create_topic(NewTopic("b"))
    assert controller.controller_epoch == epoch
    numbers = cluster.broker.request_numbers
    assert len(numbers) > heard > 0
    assert numbers[0] > 0
    assert numbers == sorted(set(numbers))


async def test_what_a_term_knew_is_let_go_when_it_has_failed(cluster: Cluster) -> None:
    """ZooKeeper keeps its watches for as long as the session lasts, and a term that fails every few seconds leaves one for each topic."""
    controller = await cluster.start()
    await controller.create_topic(NewTopic("a"))
    former = controller.active
    assert former is not None
    known = weakref.ref(former)
    former.fenced("an answer was lost")
    await until(lambda: controller.is_active and controller.active is not former)
    await controller.create_topic(NewTopic("b"))
    former = None
    gc.collect()
    assert known() is None

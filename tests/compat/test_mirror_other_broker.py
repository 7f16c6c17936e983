"""A broker of another kind as the source: Nisshi, which is asked by its own protocol's names and keeps its own kind of log.

`OTTLA_OTHER_BROKER` is the path of its binary (`cargo install nisshi --version 0.8.1`). What differs is said in docs/mirroring.md.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import confluent_kafka
import pytest
from tests.compat.quiet import quiet
from tests.compat.test_mirror import Worker
from tests.loops import until
from tests.unit.mirror_maker.mirrors import SECONDS, Side, caught_up, committed, copier, create_both, create_map, running, same, side
from tests.unit.mirror_maker.mirrors import settings as merge_settings
from tests.unit.wire.clusters import create_topic, servers

from ottla.errors import ApiError
from ottla.mirror_maker.merge import slot
from ottla.model import TopicPartition
from ottla.record.records import Record
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.groups import CommittedOffset, committed_offsets
from ottla.wire.offsets import EARLIEST, list_offsets

BINARY: Final = os.environ.get("OTTLA_OTHER_BROKER", "")
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
OF_A_CODEC: Final = 200
# Of messages: Nisshi deletes what is older than a week when it starts.
BEGIN_MS: Final = int(time.time() * 1000) - 3_600_000
WANTED: Final = [TopicPartition("clicks", number) for number in range(2)]
GROUP: Final = "billing"

pytestmark = pytest.mark.skipif(
    not BINARY, reason="OTTLA_OTHER_BROKER is the path of a broker of another kind: cargo install nisshi --version 0.8.1 makes one"
)


class Nisshi:
    """A process that keeps its log in a file of SQLite; killed and started again it has the same address."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        self.directory = directory
        self.start()

    def start(self) -> None:
        """Until it takes connections."""
        url = f"tcp://{self.address}"
        command = [BINARY, "broker", "--listener-url", url, "--advertised-listener-url", url, "--storage-engine", "sqlite:///nisshi.db"]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen([*command, "--silent"], cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until_ = time.monotonic() + SECONDS
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return
            assert self._process.poll() is None and time.monotonic() < until_, (self.directory / "log").read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """With -9."""
        self._process.kill()
        self._process.wait(10)


@asynccontextmanager
async def between(directory: Path) -> AsyncIterator[tuple[Nisshi, Side, Side]]:
    """Nisshi, the same as a source, and a target."""
    nisshi = Nisshi(directory / "a")
    try:
        async with Cluster(nisshi.address, ClusterSettings(api_timeout_seconds=15.0)) as cluster, side(directory / "b") as b:
            await cluster.refresh(None)
            yield nisshi, Side(cast("Any", None), cluster, cluster.metadata.cluster_id or ""), b
    finally:
        nisshi.kill()


def produce(address: str, first: int, codec: str, begin_ms: int = BEGIN_MS) -> None:
    """Messages with and without keys, values and headers."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "compression.type": codec, "linger.ms": 5, **quiet()})
    for number in range(first, first + OF_A_CODEC):
        producer.produce(
            "clicks",
            b"value %d" % number if number % 7 else None,
            b"key %d" % number if number % 5 else None,
            number % len(WANTED),
            timestamp=begin_ms + number,
            headers=[("number", b"%d" % number), ("none", None)] if number % 3 else None,
        )
    assert producer.flush(60) == 0


def consume(address: str, count: int) -> None:
    """By a group, which commits so many."""
    settings = {"bootstrap.servers": address, "group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False, **quiet()}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe(["clicks"])
    found = consumer.consume(count, 60)
    assert len(found) == count and not any(one.error() for one in found)
    consumer.commit(message=found[-1], asynchronous=False)
    consumer.close()


async def until_as_many(b: Side, count: int, log: Path) -> dict[TopicPartition, list[Record]]:
    found: dict[TopicPartition, list[Record]] = {}
    try:
        async with asyncio.timeout(SECONDS):
            while sum(map(len, found.values())) < count:
                await asyncio.sleep(0.1)
                with suppress(ApiError):  # the topic is not there yet
                    found = await committed(b, *WANTED)
    except TimeoutError:
        raise AssertionError(f"{sum(map(len, found.values()))} of {count}; see {log}") from None
    return found


async def test_each_record_of_a_broker_of_another_kind_is_there_once_as_it_was_and_groups_follow(tmp_path: Path) -> None:
    """All codecs; the worker and the source are killed in the middle."""
    config, log = tmp_path / "mm2.properties", tmp_path / "workers.log"
    async with between(tmp_path) as (nisshi, a, b):
        await create_topic(a.cluster, "clicks", len(WANTED))
        config.write_text(
            f"clusters = A, B\nA.bootstrap.servers = {nisshi.address}\nB.bootstrap.servers = {servers(b.brokers)}\n"
            "A->B.enabled = true\nnaming = identity\nslots = 2\nreplication.factor = 1\nrefresh.topics.interval.seconds = 1\n"
            "emit.checkpoints.interval.seconds = 1\n"
        )
        workers = [Worker(config, log)]
        try:
            for index, codec in enumerate(CODECS):
                await asyncio.to_thread(produce, nisshi.address, index * OF_A_CODEC, codec)
                if index == len(CODECS) // 2:
                    await until_as_many(b, OF_A_CODEC, log)
                    workers[-1].signal(signal.SIGKILL)
                    workers.append(Worker(config, log))
                    nisshi.kill()
                    nisshi.start()
            await asyncio.to_thread(consume, nisshi.address, OF_A_CODEC // 2)
            found = await until_as_many(b, len(CODECS) * OF_A_CODEC, log)
            there = await committed(a, *WANTED)
            for partition in WANTED:
                assert [replace(record, offset=0) for record in found[partition]] == [
                    replace(record, offset=0) for record in there[partition]
                ]
            stands = {key: place.offset for key, place in (await committed_offsets(a.cluster, GROUP)).items() if place.offset >= 0}
            assert stands
            async with asyncio.timeout(SECONDS):
                while True:
                    moved = await committed_offsets(b.cluster, GROUP)
                    if stands.keys() <= {key for key, place in moved.items() if place.offset >= 0}:
                        break
                    await asyncio.sleep(0.1)
            for partition, offset in stands.items():
                before = moved.get(partition, CommittedOffset(-1)).offset
                assert sum(record.offset < before for record in found[partition]) == offset
        finally:
            for worker in workers:
                worker.close()


@pytest.mark.parametrize("on_truncation", ["fail", "gap"])
async def test_a_source_that_was_restored_without_its_last_records_is_no_silence(
    tmp_path: Path, on_truncation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses no offset behind its end, and would continue behind what its log has lost."""
    monkeypatch.setattr(slot, "SHORT_SECONDS", 1.0)
    async with between(tmp_path) as (nisshi, a, b):
        await create_both(a, b, "clicks", len(WANTED))
        await create_map(b)
        await asyncio.to_thread(produce, nisshi.address, 0, "lz4")
        nisshi.kill()
        shutil.copytree(nisshi.directory, tmp_path / "backup")
        nisshi.start()
        await asyncio.to_thread(produce, nisshi.address, OF_A_CODEC, "lz4")
        one = copier(a, b, merge_settings(a, b, on_truncation=on_truncation))
        one.want(same(len(WANTED), "clicks"))
        async with running(one):
            await caught_up(one, dict.fromkeys(WANTED, OF_A_CODEC))
            nisshi.kill()
            shutil.rmtree(nisshi.directory)
            shutil.copytree(tmp_path / "backup", nisshi.directory)
            nisshi.start()
            if on_truncation == "fail":
                await until(lambda: all("and has for long" in one.statuses[key].reason for key in WANTED))
            else:
                await until(lambda: len(one.gaps) == len(WANTED))
                assert {(gap.offset, gap.next_offset) for _, gap in one.gaps} == {(OF_A_CODEC // 2, OF_A_CODEC)}
                await asyncio.to_thread(produce, nisshi.address, OF_A_CODEC, "none")
                await caught_up(one, dict.fromkeys(WANTED, OF_A_CODEC))
                assert {len(records) for records in (await committed(b, *WANTED)).values()} == {OF_A_CODEC // 2 * 3}


@pytest.mark.parametrize("on_truncation", ["fail", "gap"])
async def test_what_the_retention_of_another_kind_of_broker_took_before_it_was_copied_is_no_silence(
    tmp_path: Path, on_truncation: str
) -> None:
    """It gives what lies behind as an answer for the offset that is gone, and says in the answer that its log begins at 0."""
    long_ago_ms = BEGIN_MS - 30 * 86_400_000
    async with between(tmp_path) as (nisshi, a, b):
        await create_both(a, b, "clicks", len(WANTED))
        await create_map(b)
        await asyncio.to_thread(produce, nisshi.address, 0, "lz4", long_ago_ms)
        one = copier(a, b, merge_settings(a, b, on_truncation=on_truncation))
        one.want(same(len(WANTED), "clicks"))
        async with running(one):
            await caught_up(one, dict.fromkeys(WANTED, OF_A_CODEC // 2))
        await asyncio.to_thread(produce, nisshi.address, OF_A_CODEC, "lz4", long_ago_ms)
        await asyncio.to_thread(produce, nisshi.address, 2 * OF_A_CODEC, "lz4")
        nisshi.kill()
        nisshi.start()
        begin = OF_A_CODEC  # of each partition, once what is old has gone
        async with asyncio.timeout(SECONDS):
            while {one.offset for one in (await list_offsets(a.cluster, dict.fromkeys(WANTED, EARLIEST))).values()} != {begin}:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        async with running(one):
            if on_truncation == "fail":
                await until(lambda: all(f"the source begins at offset {begin}" in one.statuses[key].reason for key in WANTED))
                for partition in WANTED:
                    one.repair(partition, "accept gap")
            await caught_up(one, dict.fromkeys(WANTED, OF_A_CODEC // 2 * 3))
            assert {(gap.offset, gap.next_offset) for _, gap in one.gaps} == {(OF_A_CODEC // 2, begin)}
        assert {len(records) for records in (await committed(b, *WANTED)).values()} == {OF_A_CODEC}

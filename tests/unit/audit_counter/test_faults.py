"""What fails beside the audit: `__audit` has no leader, a clock is off, a file torn or full; a second counter, a killed producer.

No verdict changes by it, and none is COMPLETE that should not be.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.cluster import free_ports
from tests.chaos.network import Cut, Proxy, Wires
from tests.loops import until as until_true
from tests.unit.audit_counter.pipelines import (
    AUDITING,
    MINUTE,
    WAIT_SECONDS,
    Pipeline,
    pipeline,
    running_counter,
    to_the_end,
    until_another_topic_is_known,
    until_counted,
)
from tests.unit.audit_counter.test_server import beside, server_of, settings_of
from tests.unit.wire.clusters import brokers, cluster_of, create_topic, itself, servers, with_leader

from ottla.audit_counter import store
from ottla.audit_counter.server import FILE, AuditServer
from ottla.audit_counter.service import AuditCounter, CounterSettings
from ottla.audit_counter.store import StoreFailed
from ottla.audit_counter.verdicts import NOT_KNOWN, EdgeVerdict, Named
from ottla.client.auditing import ConsumerAudit, ProducerAudit, new_session
from ottla.clock import SystemClock
from ottla.coordination.election import Term
from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.lifecycle import offload_nothing
from ottla.model import BrokerId, TopicPartition
from ottla.record.audit_records import TOPIC, VERDICTS_TOPIC, Tally, Verdict
from ottla.record.records import Record, build_batch
from ottla.wire.admin import ConfigResource, ResourceType, create_partitions, delete_topics, describe_configs
from ottla.wire.cluster import Cluster
from ottla.wire.producing import BaseOffset, BatchProducer

pytestmark = pytest.mark.long  # whole services and what breaks around them; the rules that they follow have quicker tests

PRODUCED, CONSUMED = "producer->log", "log->consumer:billing"
HALF_AN_HOUR = 30 * MINUTE
COMPLETE = {PRODUCED: Verdict.COMPLETE, CONSUMED: Verdict.COMPLETE}


async def said(running: Pipeline, wait_seconds: float = 0.0) -> dict[tuple[int, str], Verdict]:
    return {(start_ms, found.edge): found.verdict for start_ms, found in (await running.summary(wait_seconds)).verdicts}


async def until(is_so: Callable[[], Awaitable[object]]) -> None:
    """Waits for something that nothing tells."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not await is_so():  # noqa: ASYNC110 - the counter is asked as a user asks it
            await asyncio.sleep(0.05)


async def said_of(running: Pipeline, edge: str) -> set[Verdict]:
    return {verdict for (_, name), verdict in (await said(running)).items() if name == edge}


async def until_said(running: Pipeline, edge: str, *wanted: Verdict) -> None:
    async def is_said() -> bool:
        return bool(await said_of(running, edge) & set(wanted))

    await until(is_said)


async def test_silence_is_not_the_sessions_while_audit_has_no_leader(tmp_path: Path) -> None:
    """For longer than a session may be silent. What is pending stays so, what was said stays, and it ends as if nothing had been."""
    async with pipeline(tmp_path, count=2, session_timeout_ms=4_000, audit_copies=1) as running:
        await running.produce(50)
        await running.report(running.producer.records(running.now_ms - 10 * MINUTE))
        await until_said(running, PRODUCED, *NOT_KNOWN)
        leader = await with_leader(running.cluster, TopicPartition(TOPIC, 3), itself)
        await running.running.kill(leader)
        await asyncio.sleep(9)
        assert {session.is_dead for session in await running.counter.sessions()} == {False}
        assert set((await said(running)).values()) <= {Verdict.PENDING, Verdict.UNAUDITED}  # as it was, and not IN_DOUBT
        await running.running.start_broker(leader)
        await with_leader(running.cluster, TopicPartition(TOPIC, 3), itself)
        await running.produce(50)
        await running.consume()
        await running.say_final()
        for edge in COMPLETE:
            await until_said(running, edge, Verdict.COMPLETE)


async def test_a_window_of_a_partition_without_a_leader_is_not_complete(tmp_path: Path) -> None:
    """One broker of two is killed before it has said what it had, and no broker leads its partition: the other one's word was enough."""
    second, window_ms = BrokerId(2), 10_000
    settings = CounterSettings(window_ms=window_ms, expected=("broker",), verify="never", session_timeout_ms=6_000, replication_factor=2)
    auditing = {"audit_enable": "true", "audit_report_interval_ms": "1000", "audit_window_ms": str(window_ms)}
    async with brokers(tmp_path, 2, default_replication_factor="2", **auditing) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 2, 1)
        async with running_counter(cluster, tmp_path / "audit.db", settings) as counter:
            await counter.wait_caught_up()
            now_ms = SystemClock().time_ms()
            one = Pipeline(running, cluster, counter, now_ms - now_ms % window_ms + window_ms)
            one.consumer = ConsumerAudit(new_session("consumer:billing", host="bill-1", window_ms=window_ms))
            await one.produce(10)
            await until_counted(one, 10)
            await one.consume(final=False)
            (led,) = [number for number in range(2) if await with_leader(cluster, TopicPartition("clicks", number), itself) == second]
            async with BatchProducer(cluster) as producer:
                offset = await producer.send(TopicPartition("clicks", led), build_batch([Record(0, one.start_ms, b"k", b"unsaid")]))
            await running.kill(second)
            await asyncio.sleep((one.start_ms - SystemClock().time_ms()) / 1000 + 22)
            assert await said_of(one, "broker->consumer:billing") == {Verdict.PENDING}
            await running.start_broker(second)
            one.consumer.consumed("clicks", led, offset, b"k", b"unsaid", one.start_ms)
            await one.report(one.consumer.records(one.now_ms, is_final=True))
            await until_said(one, "broker->consumer:billing", Verdict.COMPLETE)


@pytest.mark.parametrize("off_ms", [HALF_AN_HOUR, -HALF_AN_HOUR])
async def test_a_clock_that_is_half_an_hour_off_makes_nothing_known_too_early(tmp_path: Path, off_ms: int) -> None:
    """One of two producers stamps and reports by it. A window is known once both are through with it, by what they say."""
    async with pipeline(tmp_path) as running:
        other = ProducerAudit(new_session("producer", host="web-2"))
        async with BatchProducer(running.cluster) as producer:
            for number in range(10):
                stamped = running.start_ms + off_ms + number
                attempt = other.attempted("clicks", b"other", b"%d" % number, stamped)
                batch = build_batch([Record(0, stamped, b"other", b"%d" % number)])
                other.acknowledged(attempt, 1, await producer.send(TopicPartition("clicks", 1), batch))
        running.sent += [(1, number, b"", b"", 0) for number in range(10)]
        await running.produce(100)
        windows = {running.start_ms, running.start_ms + off_ms}
        await running.report(other.records(running.start_ms + off_ms))
        await running.report(running.producer.records(running.start_ms))
        await running.consume()
        await running.counter.wait_read(WAIT_SECONDS)
        assert Verdict.COMPLETE not in await said_of(running, PRODUCED)
        if off_ms > 0:  # the one ahead is through with the minute, the other is not
            await running.report(other.records(running.now_ms + off_ms))
        else:
            await running.report(running.producer.records(running.now_ms))
        await running.counter.wait_read(WAIT_SECONDS)
        assert (await said(running))[running.start_ms, PRODUCED] in NOT_KNOWN
        await running.say_final()
        await running.report(other.records(running.now_ms + off_ms, is_final=True))
        found = await said(running, WAIT_SECONDS)
        assert found == {(start_ms, edge): Verdict.COMPLETE for start_ms in windows for edge in COMPLETE}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def overwrite(path: Path) -> None:
    """A page in the middle is of something else."""
    data = bytearray(path.read_bytes())
    middle = len(data) // 8192 * 4096
    data[middle : middle + 4096] = b"\xa5" * 4096
    path.write_bytes(data)


def behead(path: Path) -> None:
    path.write_bytes(b"torn" + path.read_bytes()[4:])


@pytest.mark.parametrize("tear", [cut, overwrite, behead])
async def test_a_torn_file_changes_no_verdict(tmp_path: Path, tear: object) -> None:
    """All of it is read again, and the messages that are missing have their names again."""
    assert callable(tear)
    async with brokers(tmp_path / "brokers") as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 2)
        settings = settings_of(servers(running), tmp_path / "audit")
        now_ms = SystemClock().time_ms()
        told: list[object] = []
        for _ in range(2):
            async with server_of(settings) as server:
                line = Pipeline(running, cluster, server.counter, now_ms - now_ms % MINUTE - 2 * MINUTE)
                if not told:
                    await line.produce(100)
                    await line.consume(lambda found: [message for message in found if message[:2] != (1, 7)])
                    await line.say_final()
                await until_said(line, CONSUMED, Verdict.LOSS)
                told.append((await line.summary()).verdicts)
            if len(told) == 1:
                tear(tmp_path / "audit" / FILE)
        assert told[0] == told[1]
        assert (tmp_path / "audit" / FILE).with_suffix(".torn").exists()


async def test_a_counter_whose_disk_is_full_ends_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async with brokers(tmp_path / "brokers") as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 2)
        settings = settings_of(servers(running), tmp_path / "audit")
        now_ms = SystemClock().time_ms()
        async with server_of(settings) as server:
            line = Pipeline(running, cluster, server.counter, now_ms - now_ms % MINUTE - 2 * MINUTE)
            await line.produce(100)
            await line.say_final()
            await until_said(line, PRODUCED, Verdict.COMPLETE)

            def fill() -> None:
                connection = server.counter._store._connection
                (pages,) = connection.execute("PRAGMA page_count").fetchone()
                connection.execute(f"PRAGMA max_page_count = {pages}")

            await server.counter._in_store(fill)
            many = (
                new_session("producer", host="h" * 400).record(f"t{number}", 0, {}, watermark_ms=0, reported_ms=0) for number in range(200)
            )
            await line.report(many)
            assert "full" in await asyncio.wait_for(server.failed(), WAIT_SECONDS)
            assert (await said(line))[line.start_ms, PRODUCED] is Verdict.COMPLETE
        async with server_of(settings) as server:
            again = Pipeline(running, cluster, server.counter, line.start_ms)
            assert {
                (verdict, revision) for _, one in (await again.summary(0)).verdicts for verdict, revision in [(one.verdict, one.revision)]
            } == {(Verdict.COMPLETE, 0)}
            assert len(await server.counter.sessions()) == 201


async def test_a_file_that_does_not_take_what_a_log_said_ends_the_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was said of the log that it cannot be read, once a second, by a counter that was ready and that no alert named."""

    def full(*_: object) -> None:
        raise StoreFailed("the audit counter's file fails: database or disk is full")

    monkeypatch.setattr(store.Store, "put_log", full)
    async with brokers(tmp_path / "brokers") as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 2)
        async with server_of(settings_of(servers(running), tmp_path / "audit")) as server:
            now_ms = SystemClock().time_ms()
            line = Pipeline(running, cluster, server.counter, now_ms - now_ms % MINUTE - 2 * MINUTE)
            await line.produce(100)
            await line.say_final()
            assert "full" in await asyncio.wait_for(server.failed(), WAIT_SECONDS)
            assert not server.counter.progress.log_failures


async def test_a_second_counter_with_the_same_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_LOCKED_SECONDS", 0.2)
    async with brokers(tmp_path / "brokers") as running:
        settings = settings_of(servers(running), tmp_path / "audit")
        async with server_of(settings) as server:
            with pytest.raises(StoreFailed, match="locked"):
                await AuditServer(settings, name="two").start()
            assert server.counter.is_active


async def test_without_zookeeper_no_counter_is_active_and_the_file_knows_the_term(tmp_path: Path) -> None:
    """The one that was steps down and says what it knows; when ZooKeeper is back there is a later term; an earlier one is over."""
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(brokers(tmp_path))
        cluster = await stack.enter_async_context(cluster_of(running))
        await create_topic(cluster, "clicks", 2)
        zookeeper = EmbeddedZooKeeper(tmp_path / "zookeeper", SystemClock())
        stack.push_async_callback(zookeeper.close)
        sessions = []

        async def open_session() -> object:
            sessions.append(await zookeeper.session())
            return sessions[-1]

        server = await stack.enter_async_context(server_of(settings_of(servers(running), tmp_path / "a"), open_session, "a"))  # type: ignore[arg-type]
        now_ms = SystemClock().time_ms()
        line = Pipeline(running, cluster, server.counter, now_ms - now_ms % MINUTE - 2 * MINUTE)
        await line.produce(20)
        await line.say_final()
        await until_said(line, PRODUCED, Verdict.COMPLETE)
        former = server.counter.epoch
        seen = []
        stand_by = server.counter.stand_by

        def note() -> None:
            seen.append(True)
            stand_by()

        server.counter.stand_by = note  # type: ignore[method-assign]
        await zookeeper.expire(sessions[0])

        async def is_active_again() -> bool:
            return bool(seen) and server.counter.is_active

        await until(is_active_again)
        assert server.counter.epoch > former
        assert (await said(line))[line.start_ms, PRODUCED] is Verdict.COMPLETE
        with pytest.raises(StoreFailed, match=f"term {former} is over"):
            await server.counter.activate(former)


async def test_a_term_that_ends_before_its_counter_is_active_makes_none(tmp_path: Path) -> None:
    """The store had other work meanwhile: two counters were active, and two canaries sent."""
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(brokers(tmp_path))
        zookeeper = EmbeddedZooKeeper(tmp_path / "zookeeper", SystemClock())
        stack.push_async_callback(zookeeper.close)
        server = await stack.enter_async_context(server_of(settings_of(servers(running), tmp_path / "a"), zookeeper.session, "a"))
        server.term_ended()
        may_end = threading.Event()
        busy = asyncio.ensure_future(server.counter._in_store(may_end.wait, 30))
        await asyncio.sleep(0)
        begins = asyncio.ensure_future(server.term_begins(Term(b"a", server.counter.epoch + 1, 1)))
        await asyncio.sleep(0)
        server.term_ended()
        may_end.set()
        await asyncio.gather(busy, begins)
        assert not server.counter.is_active
        await server.term_begins(Term(b"a", server.counter.epoch + 1, 2))
        assert server.counter.is_active


# Fifty messages are written, and without a flush 25 more wait for a batch to be full. It reports when it is told to, and is killed.
PROGRAM = """
import sys, time
import confluent_kafka
from ottla.client import audited
servers, start_ms, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
options = {"ottla.audit.report.interval.ms": 300_000, "linger.ms": 100_000, "batch.num.messages": 50}
producer = audited(confluent_kafka.Producer)({"bootstrap.servers": servers, **options})
for number in range(count):
    producer.produce("clicks", b"%d" % number, timestamp=start_ms + number, partition=0)
while len(producer) > count - 50:
    producer.poll(0.05)
if count == 50:
    producer.flush(60)
print("sent", flush=True)
sys.stdin.readline()
reporter = producer.audit_reporter
reporter._report(is_final=False)
while len(reporter._producer):
    reporter._producer.poll(0.05)
print("reported", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("count", [50, 75])
@pytest.mark.parametrize("reports", [True, False])
async def test_a_killed_producer_leaves_a_window_in_doubt_and_never_complete(tmp_path: Path, count: int, reports: bool) -> None:
    """With a flush and without one, before its first report and after it."""
    async with pipeline(tmp_path, session_timeout_ms=3_000) as running:
        ahead_ms = running.start_ms + 3 * MINUTE  # a window that the producer is not through with, whatever it has on its way
        arguments = [sys.executable, "-c", PROGRAM, servers(running.running), str(ahead_ms), str(count)]
        with await beside(lambda: subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)) as process:
            try:
                assert await beside(process.stdout.readline) == "sent\n"
                if reports:
                    process.stdin.write("\n")
                    process.stdin.flush()
                    assert await beside(process.stdout.readline) == "reported\n"
            finally:
                process.send_signal(signal.SIGKILL)
        await running.consume()
        if reports:
            await until_said(running, PRODUCED, Verdict.IN_DOUBT)
        # Without a report it was never heard of. Then another producer, which is well, makes its window one that is looked at.
        other = new_session("producer", host="web-2").record("clicks", 0, {}, watermark_ms=0, reported_ms=0, is_final=True)
        await running.report([other])
        await running.counter.wait_read(WAIT_SECONDS)
        found: set[Verdict] = set()
        while not found or Verdict.PENDING in found:  # while the log is read
            found = await said_of(running, PRODUCED)
        assert found == {Verdict.IN_DOUBT if reports else Verdict.UNAUDITED}


# Reads fifty messages, reports thirty of them when it is told to, commits all fifty, and is killed.
READER = """
import sys, time
import confluent_kafka
from ottla.client import audited
options = {"ottla.audit.report.interval.ms": 300_000, "auto.offset.reset": "earliest", "enable.auto.commit": False}
consumer = audited(confluent_kafka.Consumer)({"bootstrap.servers": sys.argv[1], "group.id": "billing", **options})
consumer.subscribe(["clicks"])
for number in range(50):
    while (message := consumer.poll(1)) is None or message.error() is not None:
        pass
    if number == 29:
        reporter = consumer.audit_reporter
        reporter._report(is_final=False)
        while len(reporter._producer):
            reporter._producer.poll(0.05)
consumer.commit(message=message, asynchronous=False)
print("committed", flush=True)
time.sleep(600)
"""


async def test_a_killed_consumer_leaves_in_doubt_what_it_had_not_said(tmp_path: Path) -> None:
    """The next one of its group begins where it had committed: what lies between was consumed, and nobody says so."""
    async with pipeline(tmp_path, partitions=1, session_timeout_ms=3_000) as running:
        await running.produce(100, partitions=1)
        arguments = [sys.executable, "-c", READER, servers(running.running)]
        with await beside(lambda: subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)) as process:
            try:
                assert await beside(process.stdout.readline) == "committed\n"
            finally:
                process.send_signal(signal.SIGKILL)
        await running.say_final()

        async def is_dead() -> bool:
            return any(session.is_dead for session in await running.counter.sessions())

        await until(is_dead)
        await running.consume(lambda messages: [message for message in messages if message[1] >= 50])
        await running.counter.wait_read(WAIT_SECONDS)
        await until_said(running, CONSUMED, Verdict.IN_DOUBT)
        (found,) = [verdict for _, verdict in (await running.summary(0)).verdicts if verdict.edge == CONSUMED]
        assert (found.missing, found.downstream_count, "final word" in found.reason) == (20, 80, True)
        assert await said_of(running, PRODUCED) == {Verdict.COMPLETE}


@pytest.mark.parametrize("how", [Cut.RESET, Cut.DROPPED])
async def test_a_cut_between_counter_and_brokers_changes_no_verdict(tmp_path: Path, how: Cut) -> None:
    """For longer than a session may be silent. The counter reaches the broker by a listener of its own, through a proxy."""
    wires, directions = Wires(), {(0, 1), (1, 0)}
    ports = free_ports(2)
    proxy = Proxy(wires, 1, ports[1], lambda port, own: 0)
    await proxy.start()
    listeners: dict[str, Any] = {
        "listeners": f"PLAINTEXT://127.0.0.1:{ports[0]},CUT://127.0.0.1:{ports[1]}",
        "advertised_listeners": f"PLAINTEXT://127.0.0.1:{ports[0]},CUT://127.0.0.1:{proxy.port}",
        "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CUT:PLAINTEXT",
        "inter_broker_listener_name": "PLAINTEXT",
    }
    async with brokers(tmp_path / "brokers", **listeners) as running, Cluster(f"127.0.0.1:{ports[0]}") as cluster:
        await create_topic(cluster, "clicks", 2)
        settings = settings_of(f"127.0.0.1:{proxy.port}", tmp_path / "audit", audit_session_timeout_ms="4000")
        async with server_of(settings) as server:
            now_ms = SystemClock().time_ms()
            line = Pipeline(running, cluster, server.counter, now_ms - now_ms % MINUTE - 2 * MINUTE)
            await line.produce(50)
            await line.report(line.producer.records(line.now_ms - 10 * MINUTE))
            await until_said(line, PRODUCED, *NOT_KNOWN)
            await line.report(line.producer.records(line.now_ms - 10 * MINUTE))  # however long it was silent until now
            await line.counter.wait_read(WAIT_SECONDS)
            wires.cut(directions, how)
            await line.produce(50)
            await asyncio.sleep(6)
            assert {session.is_dead for session in await server.counter.sessions()} == {False}
            assert set((await said(line)).values()) <= {Verdict.PENDING, Verdict.UNAUDITED}
            wires.heal(directions, how)
            await line.consume()
            await line.say_final()
            for edge in COMPLETE:
                await until_said(line, edge, Verdict.COMPLETE)
    await proxy.close()


async def test_a_topic_that_is_deleted_while_it_is_in_doubt_is_judged_by_what_was_said_of_it(tmp_path: Path) -> None:
    """Its log is not waited for any more, and the counter works on: the same name is another topic then."""
    async with pipeline(tmp_path, verify="doubt", expected=("producer", "broker"), **AUDITING) as running:
        await running.produce(100)
        await running.consume(lambda found: [message for message in found if message[:2] != (1, 7)])

        await until_counted(running, 100)
        assert not await delete_topics(running.cluster, ["clicks"])
        await running.say_final()
        edge = "broker->consumer:billing"
        await until_said(running, edge, Verdict.LOSS)
        await until_said(running, "producer->broker", Verdict.COMPLETE)
        assert not await said_of(running, "broker->log")
        await create_topic(running.cluster, "clicks", 2)
        await until_another_topic_is_known(running)
        other = ProducerAudit(new_session("producer", host="web-2"))
        attempt = other.attempted("clicks", b"k", b"v", running.start_ms + MINUTE)
        async with BatchProducer(running.cluster) as producer:
            batch = build_batch([Record(0, running.start_ms + MINUTE, b"k", b"v")])
            other.acknowledged(attempt, 0, await producer.send(TopicPartition("clicks", 0), batch))
        await running.report(other.records(running.now_ms, is_final=True))

        async def is_complete() -> bool:
            # LATE where the brokers had spoken of that minute as a whole before its message came.
            return (await said(running)).get((running.start_ms + MINUTE, "producer->broker")) in (Verdict.COMPLETE, Verdict.LATE)

        await until(is_complete)


async def test_a_counter_that_starts_while_a_broker_is_away_waits_for_it_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its topics have as many copies as they are to have, once there are brokers for them."""
    async with brokers(tmp_path, 2, default_replication_factor="2") as running, cluster_of(running) as cluster:
        await running.stop_broker(BrokerId(2))
        async with running_counter(cluster, tmp_path / "audit.db", CounterSettings()) as counter:

            async def waits() -> bool:
                return "__audit_verdicts: Replication factor: 2 larger than available brokers: 1." in caplog.text

            await until(waits)
            assert not counter.is_caught_up
            await running.start_broker(BrokerId(2))
            async with asyncio.timeout(WAIT_SECONDS):
                await counter.wait_caught_up()
            await cluster.refresh(["__audit_verdicts"])
            assert len((await cluster.topic("__audit_verdicts")).partitions[0].replicas) == 2


async def written(cluster: Cluster) -> dict[str, str]:
    """The last verdict of each edge in the topic of them."""
    found: dict[str, str] = {}
    async for _, columns in to_the_end(cluster, VERDICTS_TOPIC):
        for index in range(len(columns)):
            value = json.loads(columns.values[index] or b"")
            found[value["edge"]] = value["verdict"]
    return found


async def test_what_a_former_active_counter_sends_late_takes_no_verdicts_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped just before it sent, and hears of the next one only then: the topic, which is compacted, kept its older verdict."""
    may_send, sent, send = asyncio.Event(), [], BatchProducer.send

    def noted(producer: BatchProducer, partition: TopicPartition, batch: bytes) -> asyncio.Future[BaseOffset]:
        result = send(producer, partition, batch)
        sent.extend([result] if partition.topic == VERDICTS_TOPIC else [])
        return result

    settings = CounterSettings(verify="never", replication_factor=1)
    async with brokers(tmp_path, 1, **AUDITING) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 1)
        async with running_counter(cluster, tmp_path / "a.db", settings) as former:
            in_store = former._in_store

            async def in_store_and_stopped(function: Callable[..., Any], /, *arguments: Any) -> Any:
                found = await in_store(function, *arguments)
                if function == former._store.unwritten and found:
                    await may_send.wait()
                return found

            monkeypatch.setattr(former, "_in_store", in_store_and_stopped)
            await former.wait_caught_up()
            now_ms = SystemClock().time_ms()
            one = Pipeline(running, cluster, former, now_ms - now_ms % MINUTE - 2 * MINUTE)
            await one.produce(20, partitions=1)
            await one.report(one.producer.records(one.start_ms))
            await until_said(one, "producer->broker", Verdict.PENDING)
            await until_counted(one, 20)
            async with running_counter(cluster, tmp_path / "b.db", settings):
                await one.say_final()

                async def is_complete() -> bool:
                    return await written(cluster) == {"producer->broker": Verdict.COMPLETE}

                await until(is_complete)
                monkeypatch.setattr(BatchProducer, "send", noted)
                former.stand_by()
                may_send.set()
                await until_true(lambda: sent)
                await asyncio.wait(sent)
                assert await is_complete()


@pytest.mark.parametrize("is_killed", [True, False])
async def test_verdicts_come_to_their_topic_whoever_was_to_write_them(tmp_path: Path, is_killed: bool) -> None:
    """A counter is killed between its file and the topic; or one stood by, and the active one had not come so far when it went."""

    async def nothing(counter: AuditCounter) -> None:
        await asyncio.Event().wait()

    async def is_written() -> bool:
        return await written(cluster) == {"producer->broker": Verdict.COMPLETE, "broker->consumer:billing": Verdict.COMPLETE}

    settings = CounterSettings(verify="never", replication_factor=1)
    async with brokers(tmp_path, 1, **AUDITING) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 1)
        with pytest.MonkeyPatch.context() as patched:
            if is_killed:
                patched.setattr(AuditCounter, "_write_verdicts", nothing)
            async with running_counter(cluster, tmp_path / "audit.db", settings) as counter:
                if not is_killed:
                    counter.stand_by()
                await counter.wait_caught_up()
                now_ms = SystemClock().time_ms()
                one = Pipeline(running, cluster, counter, now_ms - now_ms % MINUTE - 2 * MINUTE)
                await one.produce(20, partitions=1)
                await one.say_final()
                await one.consume()
                assert (await one.summary()).exit_code == 0
                assert await written(cluster) == {}
                if not is_killed:
                    await counter.activate(2)
                    await until(is_written)
        if is_killed:
            async with running_counter(cluster, tmp_path / "audit.db", settings):
                await until(is_written)


async def test_partitions_that_audit_gets_while_a_counter_runs_are_read(tmp_path: Path) -> None:
    """Tiers write there at once: what they said was not read before the counter was started again."""
    async with (
        brokers(tmp_path, 1) as running,
        cluster_of(running, metadata_max_age_seconds=0.2) as cluster,
        running_counter(cluster, tmp_path / "audit.db", CounterSettings(replication_factor=1)) as counter,
    ):
        await counter.wait_caught_up()
        await create_partitions(cluster, {TOPIC: 9})
        said = ProducerAudit(new_session("producer"))
        said.attempted("clicks", b"k", b"v", SystemClock().time_ms())
        line = Pipeline(running, cluster, counter, 0)
        await line.report(said.records(SystemClock().time_ms(), is_final=True), partition=8)

        async def is_heard() -> bool:
            return await counter.has_topic("clicks")

        await until(is_heard)


async def test_a_counter_that_is_started_again_knows_all_windows_that_are_open_however_many(tmp_path: Path) -> None:
    """Of ten thousand topics there are more than are ever shown at once: those of the last topics were PENDING for good."""
    count = 100_010
    kept = store.Store(tmp_path / "audit.db", MINUTE, 168 * 60 * MINUTE)
    with kept._transaction() as connection:
        rows = ((f"topic-{number % 10_000:05}", number // 10_000 * MINUTE) for number in range(count))
        connection.executemany("INSERT INTO verdicts VALUES (?, ?, 'producer', 'log', 'PENDING', 0, 0, 0, 0, 0, ?, 1)", (
            (*row, json.dumps({"named": [], "hosts": [], "known": None})) for row in rows
        ))  # fmt: skip

    async with brokers(tmp_path, 1) as running, cluster_of(running) as cluster:
        counter = AuditCounter(cluster, kept, CounterSettings(replication_factor=1), SystemClock(), offload_nothing, offload_nothing)
        await counter._prepare()
        assert sum(map(len, counter._open.values())) == count
    kept.close()


async def test_a_verdict_that_is_too_large_for_its_topic_is_written_without_what_it_names_and_takes_no_other_along(tmp_path: Path) -> None:
    """One that names tens of thousands of messages: of the hundred windows that are written together none came to the topic."""
    kept = store.Store(tmp_path / "audit.db", MINUTE, 168 * 60 * MINUTE)
    for number, count in enumerate((1, 5_000, 2, 3)):
        named = tuple(Named(0, offset, 1) for offset in range(count))
        verdict = EdgeVerdict("producer", "broker", Verdict.LOSS, missing=count, named=named, hosts=("web-1",))
        kept.put_verdicts("clicks", number * MINUTE, [verdict])
    async with brokers(tmp_path, 1) as running, cluster_of(running) as cluster:
        await create_topic(cluster, VERDICTS_TOPIC, max_message_bytes="20000")
        counter = AuditCounter(cluster, kept, CounterSettings(replication_factor=1), SystemClock(), offload_nothing, offload_nothing)
        await counter.activate(1)
        writing = asyncio.ensure_future(counter._write_verdicts())
        try:
            await until_true(lambda: not kept.unwritten(1))
        finally:
            writing.cancel()
            await asyncio.wait([writing])
        found = {}
        async for _, columns in to_the_end(cluster, VERDICTS_TOPIC):
            for index in range(len(columns)):
                value = json.loads(columns.values[index] or b"")
                found[value["window"] // MINUTE] = value["missing"], len(value["named"])
    kept.close()
    assert found == {0: (1, 1), 1: (5_000, 0), 2: (2, 2), 3: (3, 3)}


class _Clock(SystemClock):
    """A machine's that can be set."""

    ahead_ms = 0

    def time_ms(self) -> int:
        return super().time_ms() + self.ahead_ms


async def test_a_clock_that_jumps_by_hours_and_back_folds_nothing_early_and_ends_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hour was folded as if it were past, and what came of it then was counted beside that; all sessions were taken for dead."""
    folded: list[int] = []
    clock = _Clock()
    kept = store.Store(tmp_path / "audit.db", MINUTE, 168 * 60 * MINUTE)
    fold = kept.fold
    monkeypatch.setattr(kept, "fold", lambda now_ms: folded.append(fold(now_ms)))

    def heard_ms() -> int:
        (found,) = kept._connection.execute("SELECT MAX(heard_ms) FROM sessions WHERE is_final = 0").fetchone()
        return found or 0

    async with brokers(tmp_path, 1) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 2)
        settings = CounterSettings(verify="records", expected=("producer", "log"), replication_factor=1)
        counter = AuditCounter(cluster, kept, settings, clock, offload_nothing, offload_nothing)
        await counter.activate(1)
        working = asyncio.ensure_future(counter.run())
        await counter.wait_caught_up()
        now_ms = clock.time_ms()
        line = Pipeline(running, cluster, counter, now_ms - now_ms % MINUTE - 2 * MINUTE)
        await line.produce(20)
        await line.say_final()
        other = new_session("producer", host="web-2").record("clicks", 0, {}, watermark_ms=now_ms, reported_ms=now_ms)
        await line.report([other])
        await until_said(line, PRODUCED, Verdict.COMPLETE)
        for clock.ahead_ms in (300 * MINUTE, 0):
            folded.clear()
            await until_true(lambda: len(folded) > 2)
            assert not sum(folded)
            assert abs(heard_ms() - clock.time_ms()) < 100 * MINUTE
        assert not any(session.is_dead for session in await counter.sessions())
        working.cancel()
        await asyncio.wait([working])
    kept.close()


@pytest.mark.parametrize("jump", ["all clocks jump", "the counter's jumps", "the counter's jumps while it is stopped"])
async def test_a_clock_that_jumps_beyond_the_retention_deletes_no_window_and_refuses_none(tmp_path: Path, jump: str) -> None:
    """All that was known was deleted within a minute, and what was said then of the windows of these days was not counted."""
    clock = _Clock()
    settings = CounterSettings(verify="never", expected=("producer",), replication_factor=1)

    @asynccontextmanager
    async def counter_with(cluster: Cluster) -> AsyncIterator[tuple[AuditCounter, store.Store]]:
        kept = store.Store(tmp_path / "audit.db", MINUTE, settings.retention_ms)
        counter = AuditCounter(cluster, kept, settings, clock, offload_nothing, offload_nothing)
        working = asyncio.ensure_future(counter.run())
        try:
            await counter.wait_caught_up()
            yield counter, kept
        finally:
            working.cancel()
            await asyncio.wait([working])
            kept.close()

    async with brokers(tmp_path, 1) as running, cluster_of(running) as cluster, AsyncExitStack() as stack:
        counter, kept = await stack.enter_async_context(counter_with(cluster))
        now_ms = clock.time_ms()
        line = Pipeline(running, cluster, counter, now_ms - now_ms % MINUTE - 2 * MINUTE)
        session = new_session("producer", host="web-1")

        async def say() -> None:
            one = Tally(attempted=1, acknowledged=1, count=1)
            reported_ms = clock.time_ms() if jump == "all clocks jump" else SystemClock().time_ms()
            await line.report([session.record("clicks", 0, {line.start_ms: one}, watermark_ms=now_ms, reported_ms=reported_ms)])
            await counter.wait_read(60)

        await say()
        if "stopped" in jump:
            await stack.aclose()
        clock.ahead_ms = 400 * 60 * MINUTE
        if "stopped" in jump:
            counter, kept = await stack.enter_async_context(counter_with(cluster))
        for _ in range(2):
            await say()
        (row,) = await counter.tiers("clicks", 0, 1 << 60)
        assert (row["window"], row["count"], kept.counters.windows_refused) == (line.start_ms, 3, 0)


async def test_the_topic_of_verdicts_keeps_none_of_windows_that_the_counter_has_forgotten(tmp_path: Path) -> None:
    """Each window has keys of its own, so a topic that is compacted only grew for ever."""
    kept = store.Store(tmp_path / "audit.db", MINUTE, 168 * 60 * MINUTE)
    async with brokers(tmp_path, 1) as running, cluster_of(running) as cluster:
        settings = CounterSettings(replication_factor=1, retention_ms=60 * MINUTE)
        await AuditCounter(cluster, kept, settings, SystemClock(), offload_nothing, offload_nothing)._prepare()
        resource = ConfigResource(ResourceType.TOPIC, VERDICTS_TOPIC)
        found = (await describe_configs(cluster, [resource]))[resource]
    kept.close()
    assert [found[name].value for name in ("cleanup.policy", "retention.ms")] == ["compact,delete", str(60 * MINUTE)]

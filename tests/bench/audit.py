"""What the audit costs: producing with the broker's tier on, beside the same with it off, and the counter at its work.

Each round starts two fresh brokers, one after the other and in turns the other way round, so that what the machine does meanwhile
falls on both. The counter's file is filled by what a thousand producers would report, without a network. A day of windows, and how soon a
verdict comes, is measured at counters that run as processes: from the acknowledgement of a producer's last word, and from a kill -9.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from tests.bench import paper_client, wire
from tests.bench.clients import MESSAGES, PRODUCERS, QUEUE, run_user
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, percentile, ratios
from tests.bench.options import MESSAGE_SIZE, Options
from tests.bench.processes import Child, ChildFailed, run_module
from tests.bench.produce import SHAPES, TOPIC, Shape, load_of, rate, run_load
from tests.bench.servers import LOAD_CPU, free_port
from tests.bench.user_load import AUDITED
from tests.bench.wire import INT64

from ottla.audit_counter.store import Read, Store
from ottla.broker.auditing.counting import Ranges
from ottla.client.auditing import ProducerAudit, new_session
from ottla.model import TopicPartition
from ottla.record import audit_records
from ottla.record.audit_records import TOPIC_PARTITIONS, Session, Tally, decode, encode, tally_columns
from ottla.record.columnar import read_columns
from ottla.record.digests import Identities
from ottla.record.records import Record, build_batch
from ottla.testing.zookeeper import ZooKeeperServer, why_unavailable
from ottla.wire.cluster import Cluster
from ottla.wire.producing import BatchProducer

WINDOW_MS: Final = 60_000
SESSIONS: Final = 1_000
AT_ONCE: Final = 5_000  # records that one read of `__audit` brings
VERDICTS, VERDICTS_QUICK = 200, 20
DAY_TOPICS: Final = 50
DAY_TIERS: Final = ("producer", "broker", "consumer:billing")
DAY_WINDOWS: Final = 480  # of one record
SESSION_MS: Final = 4_000  # of a counter's with ZooKeeper
WAIT_SECONDS: Final = 120.0


def _round(options: Options, shape: Shape, *, audited: bool) -> dict[str, Any]:
    properties = {"audit.enable": str(audited).lower(), "audit.report.interval.ms": "500"}
    with (
        options.servers.data_directory("audit") as directory,
        options.servers.running(directory, properties) as server,
        Connection(server.port) as connection,
    ):
        connection.create_topic(audit_records.TOPIC, TOPIC_PARTITIONS)
        connection.create_topic(TOPIC)
        deadline = time.monotonic() + WAIT_SECONDS
        # Its first word costs a broker 40 ms once, for what it imports and connects.
        while audited and not any(connection.latest_offsets(audit_records.TOPIC, range(TOPIC_PARTITIONS)).values()):
            if time.monotonic() > deadline:
                raise ChildFailed(f"nothing is in {audit_records.TOPIC} after {WAIT_SECONDS:g} s: {server.child.last_words()}")
            time.sleep(0.01)
        options.ballast.release()
        return run_load(load_of(options, shape, server.highest(wire.PRODUCE, 7, 9), server.port, server.pid))


def _produce(options: Options, shape: Shape) -> list[Figure]:
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for number in range(options.rounds):
        for audited in (False, True) if number % 2 else (True, False):
            options.ballast.hold()
            found[audited].append(_round(options, shape, audited=audited))
        options.say(f"audit, {shape.name}, round {number + 1}: {rate(found[True])[-1]:,.0f} of {rate(found[False])[-1]:,.0f} requests/s")
    options.ballast.release()
    cpu = {
        audited: [1e6 * measured["server_cpu_seconds"] / measured["requests"] for measured in rounds] for audited, rounds in found.items()
    }
    bench = f"audit, {shape.name}"
    return [
        figure(bench, "counted by the broker, ratio to not", ratios(rate(found[True]), rate(found[False])), at_least=0.95),
        figure(bench, "the same by CPU time", ratios(cpu[False], cpu[True])),
    ]


def _counter(options: Options) -> list[Figure]:
    """Audit records of many sessions into the counter's file."""
    total = 50_000 if options.quick else 1_000_000
    now_ms = time.time_ns() // 1_000_000
    start_ms = now_ms - now_ms % WINDOW_MS
    numbers = np.arange(100, dtype=np.int64)
    words = numbers.astype(np.uint64)
    tally = Tally(attempted=100, acknowledged=100)
    tally.count_contents(Identities(words, words))
    tally.count_messages(0, numbers, Identities(words, words), 20_000)
    sessions = [Session(f"{number:032x}", "producer", host=f"host-{number}") for number in range(SESSIONS)]
    seconds, offset = 0.0, 0
    with options.servers.data_directory("audit-counter") as directory:
        store = Store(directory / "audit.db", WINDOW_MS, 3_600_000)
        while offset < total:
            written = []
            for number in range(AT_ONCE):
                session = sessions[(offset + number) % SESSIONS]
                minute = start_ms - (offset // 100_000) * WINDOW_MS
                topic = f"topic-{(offset + number) % SESSIONS % 50}"
                written.append(encode(session.record(topic, 0, {minute: tally}, watermark_ms=minute, reported_ms=now_ms)))
            began = time.perf_counter()
            store.apply((Read(0, offset + index, decode(value)) for index, value in enumerate(written)), {0: offset + AT_ONCE}, now_ms)
            seconds += time.perf_counter() - began
            offset += AT_ONCE
        assert store.counters.records == total, store.counters
        store.close()
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        figure("audit, counter", "a million audit records of 1,000 sessions", [seconds * 1_000_000 / total], "s", at_most=30),
        figure("audit, counter", "records/s", [total / seconds]),
        figure("audit, counter", "memory of all of it", [used], "MiB", at_most=300),
    ]


def _clients(options: Options) -> Iterator[Figure]:
    """confluent-kafka's producer with the audit before it, and plain; and `Producer(audit=True)`. In turns, in large batches."""
    _, _, settings, _ = PRODUCERS[-1]
    kinds = ("produce", AUDITED, "producer", "producer, audited", "confluent, send")
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    with options.servers.data_directory("audit-clients") as directory, options.servers.running(directory) as server:
        with Connection(server.port) as connection:
            connection.create_topic(TOPIC)
        sent = {"address": f"127.0.0.1:{server.port}", "topic": TOPIC, "warm_up_topic": TOPIC, "batch": 50}
        count = int(100_000 * options.seconds)
        for number in range(options.rounds):
            for kind in kinds if number % 2 else reversed(kinds):
                if kind in ("produce", AUDITED):
                    found = run_user(server, kind, TOPIC, MESSAGES, options.seconds, {**QUEUE, **settings})
                else:
                    found = run_module(paper_client.MODULE, {**sent, "kind": kind, "count": count}, cpu=LOAD_CPU, timeout=300)
                rates[kind].append(found["messages"] / found["seconds"])
            options.say(f"audit, clients, round {number + 1}: " + ", ".join(f"{kind} {rates[kind][-1]:,.0f}/s" for kind in kinds))
    for kind, name, plain in ((AUDITED, "an audited producer", "produce"), ("producer, audited", "Producer(audit=True)", "producer")):
        yield figure("audit, clients", f"{name} to a plain one", ratios(rates[kind], rates[plain]), at_least=0.85)
    peers = ratios(rates["producer, audited"], rates["confluent, send"])
    yield figure("audit, clients", "Producer(audit=True) to confluent-kafka's, plain, with a callback", peers)


def _log(options: Options) -> Iterator[Figure]:
    """Reading a log for verification, decoded by columns, each record hashed and placed; and as a new leader does, by batches' headers."""
    data = bytes(wire.record_batch(1_000, MESSAGE_SIZE)) * (20 if options.quick else 200)
    rates = []
    for _ in range(options.rounds):
        count, tallies = 0, dict[int, Tally]()
        began = time.process_time()
        for columns in read_columns(data):
            tally_columns(tallies, columns, 0, WINDOW_MS)
            count += len(columns)
        rates.append(count / (time.process_time() - began))
    yield figure("audit, log", "records/s a core, read and hashed", rates, at_least=1_500_000)
    count = 10_000 if options.quick else 100_000
    batch, headers = bytes(wire.record_batch(1, MESSAGE_SIZE)), []
    data = b"".join(INT64.pack(offset) + batch[INT64.size :] for offset in range(count))
    for _ in range(options.rounds):
        began = time.process_time()
        assert Ranges(0, count, WINDOW_MS).count_batches(data, ()) == count
        headers.append(count / (time.process_time() - began))
    yield figure("audit, log", "batches/s a core, counted again by a broker", headers, at_least=1_000_000)


class _Counter:
    """A counter as a process."""

    def __init__(self, options: Options, directory: Path, bootstrap_servers: str, zookeeper: str, **more: str) -> None:
        self.port = free_port()
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "rest.listener": f"127.0.0.1:{self.port}",
            "audit.directory": str(directory),
            "audit.topic.replication.factor": "1",
            **({"zookeeper.connect": zookeeper, "zookeeper.session.timeout.ms": str(SESSION_MS)} if zookeeper else {}),
            **more,
        }
        directory.mkdir()
        config = directory / "counter.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._command = [*options.servers.program, "audit-counter", "--config", str(config)]
        self._log = directory / "counter.txt"
        self.child: Child
        self.start()

    def start(self) -> None:
        self.child = Child(self._command, log=self._log)
        deadline = time.monotonic() + WAIT_SECONDS
        while not (self.ask("/v1/status") or {}).get("is_caught_up"):
            self.child.check()
            if time.monotonic() > deadline:
                raise ChildFailed(f"the counter was not ready after {WAIT_SECONDS:g} s: {self.child.last_words()}")
            time.sleep(0.02)

    @contextlib.contextmanager
    def asking(self, path: str) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        try:
            connection.request("GET", path)
            yield connection.getresponse()
        finally:
            connection.close()

    def ask(self, path: str) -> Any:
        """The answer's JSON; None while there is none."""
        try:
            with self.asking(path) as answer:
                return json.loads(answer.read()) if answer.status == 200 else None
        except OSError:
            return None

    @property
    def is_active(self) -> bool:
        return bool((self.ask("/v1/status") or {}).get("is_active"))


@contextlib.contextmanager
def _counters(options: Options, count: int, zookeeper: str = "", **more: str) -> Iterator[tuple[list[_Counter], str]]:
    """Counters beside a broker, and where that is."""
    with options.servers.data_directory("audit-verdicts") as directory, options.servers.running(directory) as server:
        with Connection(server.port) as connection:
            connection.create_topic(TOPIC)
        counters: list[_Counter] = []
        try:
            for number in range(count):
                counter = _Counter(options, directory / f"counter-{number}", f"127.0.0.1:{server.port}", zookeeper, **more)
                counters.append(counter)
            yield counters, f"127.0.0.1:{server.port}"
        finally:
            for counter in counters:
                counter.child.stop()


async def _produced(bootstrap_servers: str, start_ms: int) -> float:
    """One message in a window, with all that its producer says; gives when the last word was acknowledged."""
    audit = ProducerAudit(new_session("producer", host="bench", window_ms=WINDOW_MS))
    attempt = audit.attempted(TOPIC, b"key", b"value", start_ms)
    async with Cluster(bootstrap_servers) as cluster, BatchProducer(cluster) as producer:
        offset = await producer.send(TopicPartition(TOPIC, 0), build_batch([Record(0, start_ms, b"key", b"value")]))
        audit.acknowledged(attempt, 0, offset)
        now_ms = time.time_ns() // 1_000_000
        for record in audit.records(now_ms, is_final=True):
            words = build_batch([Record(0, now_ms, TOPIC.encode(), encode(record))])
            await producer.send(TopicPartition(audit_records.TOPIC, 0), words)
        return time.perf_counter()


def _day(options: Options) -> Iterator[Figure]:
    """What `/v1/topics/{t}/windows` takes to answer of a day, of fifty topics in turn, by HTTP. No session is final: nothing is folded."""
    now_ms = time.time_ns() // 1_000_000
    starts = range(now_ms - now_ms % WINDOW_MS - 86_400_000, now_ms, WINDOW_MS)
    words = np.arange(100, dtype=np.uint64)
    tally = Tally()
    tally.count_messages(0, words.astype(np.int64), Identities(words, words), 20_000)
    tally.latencies.add_all(np.arange(1, 100, dtype=np.int64))
    tally.sketch = None  # of the size of all the rest, and no part of the answer
    seconds = []
    with _counters(options, 1, **{"audit.session.timeout.ms": "3600000"}) as ([counter], servers):  # none is taken for dead
        asyncio.run(_said(servers, starts, tally))
        path = f"/v1/topics/topic-%d/windows?from={starts[0]}&to={now_ms}"
        for _ in range(2 if options.quick else 6):
            for number in range(DAY_TOPICS):
                while not counter.ask("/v1/status?wait=10")["is_caught_up"]:
                    counter.child.check()
                began = time.perf_counter()
                with counter.asking(path % number) as answer:
                    text = answer.read()
                seconds.append(time.perf_counter() - began)
                assert len(json.loads(text)) == len(DAY_TIERS) * len(starts)
    yield figure("audit, counter", "the windows of a day, 50 topics, p99", [1000 * percentile(seconds, 0.99)], "ms", at_most=100)


async def _said(bootstrap_servers: str, starts: range, tally: Tally) -> None:
    """Writes what tiers say of the same messages in each window of many topics."""
    async with Cluster(bootstrap_servers) as cluster, BatchProducer(cluster) as producer:
        for number in range(DAY_TOPICS):
            topic = f"topic-{number}"
            for tier in DAY_TIERS:
                session = Session(f"{tier}-{number}", tier)
                for first in range(0, len(starts), DAY_WINDOWS):
                    windows = dict.fromkeys(starts[first : first + DAY_WINDOWS], tally)
                    value = encode(session.record(topic, 0, windows, watermark_ms=0, reported_ms=starts[-1]))
                    await producer.room()
                    await producer.send(TopicPartition(audit_records.TOPIC, 0), build_batch([Record(0, starts[-1], topic.encode(), value)]))


def _windows() -> Iterator[int]:
    """A window for each message, of the last days."""
    now_ms = time.time_ns() // 1_000_000
    return iter(range(now_ms - now_ms % WINDOW_MS - 3 * WINDOW_MS, 0, -WINDOW_MS))


def _verdicts(options: Options) -> Iterator[Figure]:
    """From a producer's last word to the verdict, which needs the log to be read."""
    seconds = []
    with _counters(options, 1) as (counters, servers), counters[0].asking(f"/v1/events?topic={TOPIC}") as events:
        for _, start_ms in zip(range(VERDICTS_QUICK if options.quick else VERDICTS), _windows(), strict=False):
            said_at, is_known = asyncio.run(_produced(servers, start_ms)), False
            while not is_known:
                line = events.readline()
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    is_known = (event["window"], event["verdict"]) == (start_ms, "COMPLETE")
            seconds.append(time.perf_counter() - said_at)
    yield figure("audit, verdicts", "watermark to verdict, p99", [percentile(seconds, 0.99)], "s", at_most=2)
    yield figure("audit, verdicts", "watermark to verdict", seconds, "s")


def _standby(options: Options) -> Iterator[Figure]:
    """From a kill -9 of the active counter to the standby's verdict of a message that was sent after it, less ZooKeeper's session."""
    if (reason := why_unavailable()) is not None:
        options.say(f"audit, standby: {reason}")
        return
    seconds = []
    with options.servers.data_directory("audit-zookeeper") as directory:
        zookeeper = ZooKeeperServer(directory / "zookeeper")
        zookeeper.start()
        try:
            with _counters(options, 2, f"{zookeeper.address}/bench") as (counters, servers):
                for _, start_ms in zip(range(options.rounds), _windows(), strict=False):
                    active = next(counter for counter in counters if counter.is_active)
                    (standby,) = (counter for counter in counters if counter is not active)
                    killed_at = time.perf_counter()
                    active.child.process.kill()
                    asyncio.run(_produced(servers, start_ms))
                    path = f"/v1/topics/{TOPIC}/edges?from={start_ms}&to={start_ms + 1}"
                    while [edge["verdict"] for edge in standby.ask(path) or ()] != ["COMPLETE"]:
                        standby.child.check()
                        time.sleep(0.01)
                    seconds.append(time.perf_counter() - killed_at - SESSION_MS / 1000)
                    active.child.stop()
                    active.start()
        finally:
            zookeeper.stop()
    yield figure("audit, verdicts", "standby after kill -9, beyond the session", seconds, "s", at_most=2)


def run(options: Options) -> Iterator[Figure]:
    """The broker's tier, the counter, the log."""
    yield from _log(options)
    yield from _counter(options)
    yield from _day(options)
    yield from _verdicts(options)
    yield from _standby(options)
    yield from _clients(options)
    for shape in SHAPES[1:]:
        yield from _produce(options, shape)

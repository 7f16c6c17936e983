"""What the audit costs: producing with the broker's tier on, beside the same with it off, and the counter at its work.

Each round starts two fresh brokers, one after the other and in turns the other way round, so that what the machine does meanwhile
falls on both. The counter's file is filled by what a thousand producers would report; nothing of it is measured over a network.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from tests.bench import paper_client, wire
from tests.bench.clients import MESSAGES, PRODUCERS, QUEUE, run_user
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, ratios
from tests.bench.options import MESSAGE_SIZE, Options
from tests.bench.processes import run_module
from tests.bench.produce import SHAPES, TOPIC, Shape, load_of, rate, run_load
from tests.bench.servers import LOAD_CPU
from tests.bench.user_load import AUDITED

from ottla.audit_counter.store import Read, Store
from ottla.record.audit_records import Session, Tally, decode, encode, tally_columns
from ottla.record.columnar import read_columns
from ottla.record.digests import Identities

WINDOW_MS: Final = 60_000
SESSIONS: Final = 1_000
AT_ONCE: Final = 5_000  # records that one read of `__audit` brings


def _round(options: Options, shape: Shape, *, audited: bool) -> dict[str, Any]:
    properties = {"audit.enable": str(audited).lower(), "audit.report.interval.ms": "500"}
    with (
        options.servers.data_directory("audit") as directory,
        options.servers.running(directory, properties) as server,
        Connection(server.port) as connection,
    ):
        connection.create_topic(TOPIC)
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
    cpu = {audited: [1e6 * each["server_cpu_seconds"] / each["requests"] for each in rounds] for audited, rounds in found.items()}
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
        began = time.perf_counter()
        store.tiers("topic-1", start_ms - 86_400_000, start_ms + WINDOW_MS)
        asked = time.perf_counter() - began
        store.close()
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        figure("audit, counter", "a million audit records of 1,000 sessions", [seconds * 1_000_000 / total], "s", at_most=30),
        figure("audit, counter", "records/s", [total / seconds]),
        figure("audit, counter", "the windows of a day of a topic", [1000 * asked], "ms", at_most=100),
        figure("audit, counter", "memory of all of it", [used], "MiB", at_most=300),
    ]


def _clients(options: Options) -> Iterator[Figure]:
    """confluent-kafka's producer with the audit before it, and plain; and `Producer(audit=True)`. In turns, in large batches."""
    _, _, settings, _ = PRODUCERS[-1]
    kinds = ("produce", AUDITED, "producer", "producer, audited")
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


def _log(options: Options) -> list[Figure]:
    """Reading a log for verification: decoded by columns, each record hashed and placed."""
    data = bytes(wire.record_batch(1_000, MESSAGE_SIZE)) * (20 if options.quick else 200)
    rates = []
    for _ in range(options.rounds):
        count, tallies = 0, dict[int, Tally]()
        began = time.process_time()
        for columns in read_columns(data):
            tally_columns(tallies, columns, 0, WINDOW_MS)
            count += len(columns)
        rates.append(count / (time.process_time() - began))
    return [figure("audit, log", "records/s a core, read and hashed", rates, at_least=1_500_000)]


def run(options: Options) -> Iterator[Figure]:
    """The broker's tier, the counter, the log."""
    yield from _log(options)
    yield from _counter(options)
    yield from _clients(options)
    for shape in SHAPES[1:]:
        yield from _produce(options, shape)

"""The schema registry beside a bare "hello" upon its own protocol class, its starts, and what validation costs a producer.

The registry and "hello" run on the server's CPU, one after the other within a round; "hello" answers as many bytes as a cached id. The
broker that has the topic runs on the same CPU as the registry, so what it spends on a registration is part of it.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench import wire
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, percentile, ratios
from tests.bench.options import MIB, Options
from tests.bench.processes import Child, ChildFailed, resident_bytes, run_module, stopped_at_the_end
from tests.bench.registry_load import RegistryLoad
from tests.bench.servers import LOAD_CPU, SERVER_CPU, Server, free_port

from ottla.record.records import Record, build_batch

CLIENTS: Final = 20
SCHEMAS, SCHEMAS_QUICK = 50_000, 2_000
START_SECONDS: Final = 120.0
FILL_SECONDS: Final = 600.0
SESSION_MS: Final = 2_000
RECORDS_PER_BATCH: Final = 50
MESSAGE_SIZE: Final = 200
VALIDATED, PLAIN, NEVER = "validated", "plain", "without"
# A registry's lead is a producer with a transactional id.
ALONE: Final = {"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}
_MODULE: Final = "tests.bench.registry_load"


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry that runs."""

    port: int
    child: Child
    start_seconds: float


@contextlib.contextmanager
def registry_running(options: Options, server: Server, topic: str, snapshot: Path | None = None, zookeeper: str = "") -> Iterator[Registry]:
    """A registry over a broker; started when it says that it is ready, with its topic replayed and its lead taken."""
    port, http_port = free_port(), free_port()
    settings = {
        "listeners": f"http://127.0.0.1:{port}",
        "kafkastore.bootstrap.servers": f"127.0.0.1:{server.port}",
        "kafkastore.topic": topic,
        "kafkastore.checkpoint.dir": str(snapshot or ""),
        "http.listener": f"127.0.0.1:{http_port}",
        "zookeeper.connect": zookeeper,
        "zookeeper.session.timeout.ms": str(SESSION_MS) if zookeeper else "",
        "kafkastore.init.timeout.ms": str(int(START_SECONDS * 1000)),
    }
    file = server.data_directory / f"registry-{port}.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items() if value))
    started = time.perf_counter()
    command = [*options.servers.program, "schema-registry", "--config", str(file)]
    with stopped_at_the_end(Child(command, cpu=SERVER_CPU, log=server.data_directory / f"registry-{port}.txt")) as child:
        while True:
            child.check()
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError, wire.UnexpectedAnswer):
                ask(http_port, "/readyz")
                break
            if time.perf_counter() > started + START_SECONDS:
                raise ChildFailed(f"the registry was not ready within {START_SECONDS} s: {child.last_words()}")
            time.sleep(0.01)
        yield Registry(port, child, time.perf_counter() - started)


@contextlib.contextmanager
def hello_running(answer: bytes) -> Iterator[int]:
    """The floor, and its port."""
    command = [sys.executable, "-m", _MODULE, json.dumps(asdict(RegistryLoad("hello", answer=answer.hex())))]
    with stopped_at_the_end(Child(command, cpu=SERVER_CPU)) as child:
        assert child.process.stdout
        line = child.process.stdout.readline()
        if not line:
            raise ChildFailed("hello did not start")
        yield int(line)


def ask(port: int, path: str, body: object = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        content = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise wire.UnexpectedAnswer(f"{path}: {answer.status} {text[:500]!r}")
    return json.loads(text)


def run_load(load: RegistryLoad) -> dict[str, Any]:
    return run_module(_MODULE, asdict(load), cpu=LOAD_CPU, timeout=max(load.seconds, FILL_SECONDS if load.count else 0) + 60)


def rate(load: RegistryLoad) -> float:
    outcome = run_load(load)
    return float(outcome["requests"] / outcome["seconds"])


def answer_of(port: int, request: bytes) -> bytes:
    """The bytes of an answer as they come, with the connection kept; asked twice, as the second one comes from the cache."""
    import socket

    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        for _ in range(2):
            connection.sendall(request)
            data = b""
            while b"\r\n\r\n" not in data or len(data) < _size_of(data):
                data += connection.recv(1 << 20)
    return data


def _size_of(data: bytes) -> int:
    head, _, _ = data.partition(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return len(head) + 4 + int(length.partition(b":")[2])


def requests(options: Options, server: Server) -> list[Figure]:
    """Reads of a cached id and registrations, each to hello's answers to the same clients with the same requests."""
    rates: dict[str, list[float]] = {"read": [], "hello": [], "register": [], "hello registers": []}
    p99: list[float] = []
    first = 0
    with registry_running(options, server, "_schemas") as registry:
        number = ask(registry.port, "/subjects/cached/versions", {"schema": '{"type": "record", "name": "Cached", "fields": []}'})["id"]
        request = f"GET /schemas/ids/{number} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n\r\n".encode()
        answer = answer_of(registry.port, request)
        read = RegistryLoad("replay", registry.port, request.hex(), answer_size=len(answer), seconds=options.seconds)
        with hello_running(answer) as port:
            for _ in range(options.rounds):
                options.ballast.release()
                rates["hello"].append(rate(RegistryLoad("replay", port, request.hex(), answer_size=len(answer), seconds=options.seconds)))
                rates["read"].append(rate(read))
                outcome = run_load(RegistryLoad("paced", registry.port, request.hex(), answer_size=len(answer), seconds=options.seconds))
                p99.append(percentile(outcome["latencies"], 0.99) * 1000)
                for kind, asked in (("register", registry.port), ("hello registers", port)):
                    rates[kind].append(rate(RegistryLoad("register", asked, connections=CLIENTS, seconds=options.seconds, first=first)))
                first += 1_000_000
    bench = "schema registry"
    return [
        figure(bench, "hello on its protocol class", rates["hello"], "requests/s"),
        figure(bench, "reads of a cached id", rates["read"], "requests/s"),
        figure(bench, "reads to hello", ratios(rates["read"], rates["hello"]), at_least=0.6),
        figure(bench, "reads at 1,000/s, p99", p99, "ms", at_most=5),
        figure(bench, "registrations, 20 clients, ten fields", rates["register"], "requests/s"),
        figure(bench, "hello to these clients", rates["hello registers"], "requests/s"),
        figure(bench, "registrations to hello", ratios(rates["register"], rates["hello"])),
        figure(bench, "registrations to hello to these clients", ratios(rates["register"], rates["hello registers"]), at_least=0.15),
    ]


def starts(options: Options, server: Server) -> list[Figure]:
    """From the process's start to an answer, with many schemas: from the topic, and from a snapshot."""
    count = SCHEMAS_QUICK if options.quick else SCHEMAS
    snapshot = server.data_directory / "snapshot"
    snapshot.mkdir()
    options.say(f"registering {count:,} schemas")
    with registry_running(options, server, "_many", snapshot) as registry:
        run_load(RegistryLoad("register", registry.port, connections=CLIENTS, count=count))
    seconds: dict[str, list[float]] = {"topic": [], "snapshot": []}
    memory = []
    for _ in range(options.rounds):
        for kind in seconds:
            with registry_running(options, server, "_many", snapshot if kind == "snapshot" else None) as registry:
                seconds[kind].append(registry.start_seconds)
                if len(ask(registry.port, "/subjects")) != count:
                    raise wire.UnexpectedAnswer(f"of {count} subjects some are missing")
                memory.append(resident_bytes(registry.child.pid) / MIB)
    bench = f"schema registry, {count:,} schemas"
    return [
        figure(bench, "start, from the snapshot", seconds["snapshot"], "s", at_most=2),
        figure(bench, "start, from the topic", seconds["topic"], "s", at_most=15),
        figure(bench, "VmRSS after it", memory, "MiB", at_most=400),
    ]


def successions(options: Options) -> list[Figure]:
    """The longest time between two registrations at one node while the other one, which leads, is ended."""
    seconds: dict[signal.Signals, list[float]] = {signal.SIGKILL: [], signal.SIGTERM: []}
    zookeeper = f"127.0.0.1:{free_port()}"
    with (
        options.servers.data_directory("succession") as directory,
        options.servers.running(directory, {**ALONE, "coordination.listener": zookeeper}) as server,
    ):
        for number in range(options.rounds):
            for by, found in seconds.items():
                with (
                    registry_running(options, server, "_led", zookeeper=zookeeper) as first,
                    registry_running(options, server, "_led", zookeeper=zookeeper) as second,
                ):
                    schema = {"schema": json.dumps({"type": "record", "name": f"{by.name}{number}", "fields": []})}
                    ask(first.port, f"/subjects/{by.name}-{number}/versions", schema)
                    last, longest, has_ended = time.perf_counter(), 0.0, False
                    first.child.process.send_signal(by)
                    for turn in itertools.count():
                        is_over = has_ended
                        has_ended = first.child.process.poll() is not None
                        with contextlib.suppress(wire.UnexpectedAnswer):
                            ask(second.port, f"/subjects/{by.name}-{number}-{turn}/versions", schema)
                            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
                            if is_over:
                                break
                        if time.perf_counter() > last + START_SECONDS:
                            raise ChildFailed(f"no other registry leads {START_SECONDS} s after {by.name}")
                    found.append(longest)
    bench = f"schema registry, a session of {SESSION_MS / 1000:g} s"
    return [
        figure(bench, "leader killed, to the next registration", seconds[signal.SIGKILL], "s", at_most=SESSION_MS / 1000 + 1),
        figure(bench, "SIGTERM of the leader, to the next one", seconds[signal.SIGTERM], "s", at_most=0.5),
    ]


def validation(options: Options, server: Server, without: Server, registry: Registry) -> list[Figure]:
    """Produce to three topics in turn: validated; not, on the broker of one that is; and on a broker without any."""
    schema = '{"type": "record", "name": "Click", "fields": []}'
    number = ask(registry.port, f"/subjects/{VALIDATED}-value/versions", {"schema": schema})["id"]
    value = b"\0" + number.to_bytes(4, "big") + b"x" * (MESSAGE_SIZE - 5)
    batch = build_batch([Record(index, int(time.time() * 1000), None, value) for index in range(RECORDS_PER_BATCH)])
    rates: dict[str, list[float]] = {NEVER: [], PLAIN: [], VALIDATED: []}

    def produce(topic: str) -> float:
        broker = without if topic == NEVER else server
        with Connection(broker.port) as connection:
            version = broker.highest(wire.PRODUCE, 7, 9)
            request = wire.produce_request(version, topic, 0, batch)
            answer = connection.ask(request)
            error_code, _ = wire.produce_answer(version, answer)
            if error_code:
                raise wire.UnexpectedAnswer(f"Produce to {topic}: error {error_code}")
        options.ballast.release()
        load = RegistryLoad("replay", broker.port, request.hex(), answer_size=len(answer), window=16, seconds=options.seconds)
        return rate(load) * RECORDS_PER_BATCH

    with Connection(without.port) as connection:
        connection.create_topic(NEVER)
    with Connection(server.port) as connection:
        connection.create_topic(PLAIN)
        connection.create_topic(VALIDATED, configs={"confluent.value.schema.validation": "true"})
    for _ in range(options.rounds):
        for topic, measured in rates.items():
            measured.append(produce(topic))
    bench = "schema ids validated, batches of 50"
    return [
        figure(bench, "no topic validates", rates[NEVER], "messages/s"),
        figure(bench, "another topic validates", rates[PLAIN], "messages/s"),
        figure(bench, "another one validates, to none", ratios(rates[PLAIN], rates[NEVER]), at_least=0.99),
        figure(bench, "validated, ids cached", rates[VALIDATED], "messages/s"),
        figure(bench, "validated to not", ratios(rates[VALIDATED], rates[PLAIN]), at_least=0.5),
    ]


def run(options: Options) -> list[Figure]:
    if not options.servers.is_ottla:
        return []
    with options.servers.data_directory("registry") as directory, options.servers.running(directory, ALONE) as server:
        figures = [*requests(options, server), *starts(options, server)]
    figures += successions(options)
    with (
        options.servers.data_directory("validation") as elsewhere,
        options.servers.running(elsewhere, ALONE) as other,
        registry_running(options, other, "_schemas") as registry,
        options.servers.data_directory("validated") as directory,
        options.servers.running(directory, {"confluent.schema.registry.url": f"http://127.0.0.1:{registry.port}"}) as server,
    ):
        figures += validation(options, server, other, registry)
    return figures

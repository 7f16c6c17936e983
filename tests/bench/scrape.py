"""What a scrape of 5,000 partitions does to a broker that is busy: for how long it keeps the event loop, and produce's p99.

Rounds alternate: the same load while no one scrapes, and while someone scrapes every few seconds with
`metrics.partition.enabled`. The longest slice is what the broker itself measures and tells in the next scrape: in wall time,
so on a machine with other things to do it has those in it too. Another broker therefore measures it in CPU time
(`cpu_slices`), which says what the rendering itself takes.

One stall of some milliseconds, of which a virtual machine has one now and then, decides the p99 of a round. So the target is
for all rounds' messages together.
"""

from __future__ import annotations

import http.client
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final

from tests.bench import wire
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure
from tests.bench.latency import percentile_ms, run_pace
from tests.bench.options import MESSAGE_SIZE, MIB, Options
from tests.bench.pace import Pace
from tests.bench.processes import pin_to
from tests.bench.servers import LOAD_CPU, Server, free_port

TOPIC: Final = "many"
PARTITIONS: Final = 5_000
RATE: Final = 1_000.0
CONNECTIONS: Final = 10
# Three times as often as Prometheus does by default.
EVERY_SECONDS: Final = 5.0
SCRAPE_TIMEOUT_SECONDS: Final = 30.0
SCRAPES: Final = 4
PROPERTIES: Final = {"metrics.partition.enabled": "true"}
LONGEST_SLICE: Final = "ottla_scrape_longest_slice_seconds"
SCRAPE_SECONDS: Final = "ottla_scrape_seconds"


def scrape(port: int, path: str = "/metrics") -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SCRAPE_TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != 200:
            raise wire.UnexpectedAnswer(f"{path} answered {answer.status}")
        return answer.read()
    finally:
        connection.close()


def value_of(text: bytes, name: str) -> float | None:
    for line in text.splitlines():
        if line.startswith(name.encode() + b" "):
            return float(line.split()[1])
    return None


@dataclass(slots=True)
class Scraper:
    """Scrapes now and then in a thread, until it is left. A context manager."""

    port: int
    slices_ms: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    """Seconds of each scrape but the last, as the broker tells in the one after."""
    last: bytes = b""
    error: Exception | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Scraper:
        self._thread = threading.Thread(target=self._run, name="scraper", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join(SCRAPE_TIMEOUT_SECONDS)
        if self.error is not None and error is None:
            raise wire.UnexpectedAnswer(f"a scrape failed: {self.error}")

    def _run(self) -> None:
        pin_to(LOAD_CPU)  # this thread alone
        while True:
            due = time.monotonic() + EVERY_SECONDS
            try:
                self.take()
            except (OSError, http.client.HTTPException, wire.UnexpectedAnswer) as error:
                self.error = error
                return
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return

    def take(self) -> None:
        """One scrape, which tells what the one before took."""
        self.last = scrape(self.port)
        slice_seconds, seconds = value_of(self.last, LONGEST_SLICE), value_of(self.last, SCRAPE_SECONDS)
        if slice_seconds is not None and seconds is not None:
            self.slices_ms.append(1000 * slice_seconds)
            self.took.append(seconds)


def loaded(options: Options, server: Server, version: int) -> dict[str, Any]:
    """Produce at a steady rate to one partition of all of them."""
    pace = Pace(
        port=server.port,
        server_pid=server.pid,
        topic=TOPIC,
        version=version,
        rate=RATE,
        connections=CONNECTIONS,
        seconds=max(2.5 * EVERY_SECONDS, 6 * options.seconds),
        warm_up_seconds=0.5,
        message_size=MESSAGE_SIZE,
    )
    return run_pace(pace)


def write_to_each(server: Server, version: int) -> None:
    batch = wire.record_batch(1, MESSAGE_SIZE)
    with Connection(server.port) as connection:
        connection.create_topic(TOPIC, PARTITIONS)
        connection.wait_for_leaders(TOPIC, PARTITIONS)
        for partition in range(PARTITIONS):
            connection.produce(version, TOPIC, partition, batch)


def in_cpu_time(options: Options) -> Scraper:
    """Scrapes of a broker that counts its slices in CPU time and has nothing else to do."""
    servers = replace(options.servers, program=(sys.executable, "-m", "tests.bench.cpu_slices"))
    http_port = free_port()
    with (
        servers.data_directory("scrape-cpu") as directory,
        servers.running(directory, {"http.listener": f"127.0.0.1:{http_port}", **PROPERTIES}) as server,
    ):
        write_to_each(server, server.highest(wire.PRODUCE, 7, 9))
        scraper = Scraper(http_port)
        scraper.take()
        for _ in range(SCRAPES):
            time.sleep(EVERY_SECONDS)
            scraper.take()
        return scraper


def run(options: Options) -> Iterator[Figure]:
    """One broker for all rounds."""
    if not options.servers.is_ottla:
        return
    alone = in_cpu_time(options)
    quiet: list[float] = []
    scraped: list[float] = []
    all_quiet: list[tuple[float, float]] = []
    all_scraped: list[tuple[float, float]] = []
    cpu: list[float] = []
    http_port = free_port()
    properties = {"http.listener": f"127.0.0.1:{http_port}", **PROPERTIES}
    with options.servers.data_directory("scrape") as directory, options.servers.running(directory, properties) as server:
        version = server.highest(wire.PRODUCE, 7, 9)
        write_to_each(server, version)
        scraper = Scraper(http_port)
        scraper.take()  # the first one meets everything for the first time
        for number in range(options.rounds):
            options.ballast.release()
            without = loaded(options, server, version)
            with scraper:
                outcome = loaded(options, server, version)
            scraper = Scraper(http_port, scraper.slices_ms, scraper.took, scraper.last)
            all_quiet += without["samples"]
            all_scraped += outcome["samples"]
            quiet.append(percentile_ms(without["samples"], 0.99))
            scraped.append(percentile_ms(outcome["samples"], 0.99))
            cpu.append(100 * (outcome["server_cpu_seconds"] / outcome["seconds"] - without["server_cpu_seconds"] / without["seconds"]))
            options.say(f"scrape, round {number + 1}: p99 {scraped[-1]:.2f} ms while scraped, {quiet[-1]:.2f} ms otherwise")
        time.sleep(EVERY_SECONDS)  # what is kept of the last scrape has served its time
        scraper.take()
    lines = [line for line in scraper.last.splitlines() if not line.startswith(b"#")]
    bench = f"a scrape of {PARTITIONS:,} partitions"
    per_partition = sum(1 for line in lines if b'partition="' in line)
    yield figure(bench, "longest slice", scraper.slices_ms, "ms", at_most=2.0, note="of a scrape under load, in wall time")
    yield figure(bench, "longest slice, CPU time", alone.slices_ms, "ms", at_most=2.0)
    yield figure(bench, "CPU time of a scrape", alone.took, "s")
    ratio = percentile_ms(all_scraped, 0.99) / percentile_ms(all_quiet, 0.99)
    yield figure(
        bench, "produce p99, ratio to without", [ratio], at_most=1.2, note=f"every {EVERY_SECONDS:g} s; all rounds' messages together"
    )
    yield figure(bench, f"p99 at {RATE:,.0f}/s, scraped", scraped, "ms")
    yield figure(bench, f"p99 at {RATE:,.0f}/s, not scraped", quiet, "ms")
    yield figure(bench, "time until rendered", scraper.took, "s")
    yield figure(bench, "CPU of one core for it", cpu, "%")
    yield figure(bench, "samples", [float(len(lines))], note=f"{per_partition:,} of them per partition")
    yield figure(bench, "size", [len(scraper.last) / MIB], "MiB")

"""Another broker becomes the controller of a cluster with thousands of partitions, because the first was killed.

Half of the topics have one replica, half two; three brokers. The time counts from when the killed controller's session
has ended, which ZooKeeper decides and not its size (`failover` has that part), until both brokers that live say who leads
each partition: another replica where there is one in sync, no one where there is none. How it grows is measured on one
cluster that is given more topics between the kills.

A broker needs a file for each log that was written to; these are empty, and the limit on open files is looked at first.
"""

from __future__ import annotations

import concurrent.futures
import resource
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, TypeAlias

from kazoo.client import KazooClient
from tests.bench import admin, cluster, wire
from tests.bench.admin import NO_LEADER, PartitionView
from tests.bench.cluster import Cluster, Member
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure
from tests.bench.options import MIB, Options
from tests.bench.processes import ChildFailed, cpu_seconds, resident_bytes

SIZES: Final = (2_500, 5_000, 10_000)
SIZES_QUICK: Final = (500, 1_000)
PARTITIONS_A_TOPIC: Final = 100
TARGET_SECONDS: Final = 5.0
KILLS: Final = 3
TIMEOUT_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.02

Partitions: TypeAlias = Mapping[tuple[str, int], PartitionView]


@dataclass(frozen=True, slots=True)
class Takeover:
    """Times are in seconds since the former controller's session ended, but for the first: how long that took from the kill on."""

    session_ended: float
    elected: float
    right: float
    cpu: float
    """What the new controller's process spent from its election until all was right."""
    other_cpu: float
    """What the other one spent."""
    memory: float


class ControllerWatch:
    """Sees `/controller` go and come in ZooKeeper. A context manager."""

    def __init__(self, address: str) -> None:
        self._client: Any = KazooClient(hosts=f"{address}/bench")
        self._went_at = 0.0
        self._has_gone = threading.Event()

    def __enter__(self) -> ControllerWatch:
        self._client.start(30)
        self._client.get("/controller", watch=self._gone)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.stop()
        self._client.close()

    def again(self) -> tuple[float, float]:
        """Waits until it has gone and come again; gives when."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        if self._has_gone.wait(TIMEOUT_SECONDS):
            while time.monotonic() < deadline:
                if self._client.exists("/controller") is not None:
                    return self._went_at, time.perf_counter()
                time.sleep(0.001)
        raise wire.UnexpectedAnswer(f"there is no new controller after {TIMEOUT_SECONDS:.0f} s")

    def _gone(self, event: Any) -> None:
        self._went_at = time.perf_counter()
        self._has_gone.set()


def grow(brokers: Cluster, made: int, partitions: int) -> None:
    """Makes topics until there are so many partitions, of one and of two replicas in turn."""
    with Connection(brokers.living[0].port) as connection:
        for number in range(made // PARTITIONS_A_TOPIC, partitions // PARTITIONS_A_TOPIC):
            admin.create_topic(connection, f"bench-{number:03d}", PARTITIONS_A_TOPIC, 1 + number % 2)


def expected(before: Partitions, gone: int) -> dict[tuple[str, int], bool | int]:
    """What each partition's leader must be afterwards; True: anybody who lives."""
    leaders: dict[tuple[str, int], bool | int] = {}
    for key, each in before.items():
        has_others = any(broker_id != gone for broker_id in each.isr)
        leaders[key] = each.leader if each.leader != gone else (True if has_others else NO_LEADER)
    return leaders


def is_right(seen: Partitions, leaders: Mapping[tuple[str, int], bool | int], gone: int) -> bool:
    """Whether all of what was seen is as it must be."""
    for key, each in seen.items():
        wanted = leaders[key]
        if each.leader != wanted and not (wanted is True and each.leader not in (gone, NO_LEADER)):
            return False
    return True


def until_right(member: Member, leaders: Mapping[tuple[str, int], bool | int], gone: int) -> float:
    """When a broker was seen to be right about every partition.

    An answer about ten thousand partitions takes a broker a good part of what is measured here. So it is asked for the last topic
    until that is right, and then once for all.
    """
    some = [max(topic for topic, _ in leaders)]
    deadline = time.monotonic() + TIMEOUT_SECONDS
    with Connection(member.port) as connection:
        while time.monotonic() < deadline:
            if is_right(admin.cluster_view(connection, some).partitions, leaders, gone):
                right_at = time.perf_counter()
                view = admin.cluster_view(connection)
                if view.controller_id != gone and len(view.partitions) == len(leaders) and is_right(view.partitions, leaders, gone):
                    return right_at
            time.sleep(POLL_SECONDS)
    raise wire.UnexpectedAnswer(f"broker {member.broker_id} is wrong about some partitions after {TIMEOUT_SECONDS:.0f} s")


def take_over(brokers: Cluster) -> Takeover:
    """Kills the controller, and has it back in the end."""
    before = brokers.view()
    gone = before.controller_id
    leaders = expected(before.partitions, gone)
    living = [broker for broker in brokers.living if broker.broker_id != gone]
    with ControllerWatch(brokers.zookeeper.address) as watch, concurrent.futures.ThreadPoolExecutor(len(living)) as pool:
        killed_at = time.perf_counter()
        brokers.members[gone].kill()
        went_at, came_at = watch.again()
        spent_before = {broker.broker_id: cpu_seconds(broker.pid) for broker in living}
        right_at = max(pool.map(lambda each: until_right(each, leaders, gone), living))
    controller = brokers.members[brokers.view(topics=[]).controller_id]
    other = next(broker for broker in living if broker is not controller)
    spent = [cpu_seconds(member.pid) - spent_before[member.broker_id] for member in (controller, other)]
    memory = resident_bytes(controller.pid) / MIB
    brokers.start()
    brokers.until_in_sync(poll_seconds=1.0)
    return Takeover(went_at - killed_at, came_at - went_at, right_at - went_at, spent[0], spent[1], memory)


def run(options: Options) -> Iterator[Figure]:
    """One cluster that grows."""
    sizes, kills = (SIZES_QUICK, 1) if options.quick else (SIZES, KILLS)
    enough_files = max(sizes) * 3 // 2 // 3 + 1_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < enough_files:
        raise ChildFailed(f"a broker needs {enough_files:,} open files here, and the limit is {hard:,} (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough_files), hard))
    took: dict[int, list[float]] = {}
    with cluster.running(options.servers, "controller") as brokers:
        made = 0
        for size in sizes:
            begun_at = time.perf_counter()
            grow(brokers, made, size)
            made = size
            brokers.until_in_sync(poll_seconds=1.0)
            options.say(f"controller: {size:,} partitions after {time.perf_counter() - begun_at:.0f} s more")
            takeovers = []
            for number in range(kills):
                takeovers.append(each := take_over(brokers))
                told = f"elected {1000 * each.elected:.0f} ms after the session ended, all right {each.right:.2f} s after"
                options.say(f"controller, {size:,} partitions, kill {number + 1} of {kills}: {told}")
            took[size] = [takeover.right for takeover in takeovers]
            bench = f"controller killed, {size:,} partitions"
            yield figure(bench, "metadata right on both others", took[size], "s", at_most=TARGET_SECONDS, note="since the session ended")
            yield figure(bench, "a new controller is elected", [1000 * takeover.elected for takeover in takeovers], "ms")
            yield figure(bench, "the session ended", [takeover.session_ended for takeover in takeovers], "s", note="since the kill")
            yield figure(bench, "CPU of the new controller meanwhile", [takeover.cpu for takeover in takeovers], "s")
            yield figure(bench, "CPU of the other broker meanwhile", [takeover.other_cpu for takeover in takeovers], "s")
            yield figure(bench, "memory of the new controller", [takeover.memory for takeover in takeovers], "MiB")
    smallest, largest = sizes[0], sizes[-1]
    growth = min(took[largest]) / min(took[smallest])
    times = largest / smallest
    yield figure(
        "controller killed, growth", f"{largest:,} partitions to {smallest:,}", [growth], at_most=times, note=f"linear is {times:g}"
    )

"""How long after a change every broker of an idle cluster tells of it: a topic made, extended, deleted.

The time counts from when the request leaves, so it includes what the change itself takes (ZooKeeper's transactions, the
replicas' directories); how long after the answer the last broker knows of it is beside. All brokers are asked every
millisecond, on connections that are open. The requests go to the brokers in turn, so two of three are forwarded.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Final

from tests.bench import admin, cluster, wire
from tests.bench.admin import ClusterView, Condition
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, percentile
from tests.bench.options import Options

TOPICS: Final = 50
TOPICS_QUICK: Final = 10
# The first imports and makes what all later ones find ready; each broker is asked for each change.
WARM_UP_TOPICS: Final = 3
PAUSE_SECONDS: Final = 0.05
TARGET_MS: Final = 100.0
POLL_SECONDS: Final = 0.001
TIMEOUT_SECONDS: Final = 30.0


class Watch:
    """Connections to all brokers, asked in turn for one topic until each says what it should."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections

    def until(self, topic: str, is_so: Condition) -> float:
        """When the last broker was seen to be right."""
        wrong = list(self._connections)
        deadline = time.perf_counter() + TIMEOUT_SECONDS
        while True:
            wrong = [connection for connection in wrong if not is_so(admin.cluster_view(connection, [topic]))]
            now = time.perf_counter()
            if not wrong:
                return now
            if now > deadline:
                raise wire.UnexpectedAnswer(f"{len(wrong)} brokers are wrong about {topic} after {TIMEOUT_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)


def leads_all(topic: str, partitions: int) -> Condition:
    """Whether so many partitions are known, each with a leader and everybody in sync."""

    def is_so(view: ClusterView) -> bool:
        return sum(each.is_whole for (name, _), each in view.partitions.items() if name == topic) == partitions

    return is_so


def topic_life(watch: Watch, askers: Iterator[Connection], topic: str) -> Iterator[tuple[str, float, float]]:
    """Makes, extends and deletes a topic; gives what was done, and the ms from its request and from its answer until all were right."""
    changes: tuple[tuple[str, Callable[[Connection], None], Condition], ...] = (
        ("topic made", lambda connection: admin.create_topic(connection, topic, 3, 3), leads_all(topic, 3)),
        ("partitions added", lambda connection: admin.create_partitions(connection, topic, 6), leads_all(topic, 6)),
        ("topic deleted", lambda connection: admin.delete_topic(connection, topic), lambda view: not view.partitions),
    )
    for what, ask, is_so in changes:
        asked_at = time.perf_counter()
        ask(next(askers))
        answered_at = time.perf_counter()
        right_at = watch.until(topic, is_so)
        yield what, 1000 * (right_at - asked_at), 1000 * (right_at - answered_at)
        time.sleep(PAUSE_SECONDS)


def run(options: Options) -> Iterator[Figure]:
    """A topic after the other."""
    topics = TOPICS_QUICK if options.quick else TOPICS
    after_request: dict[str, list[float]] = {}
    after_answer: dict[str, list[float]] = {}
    with cluster.running(options.servers, "metadata") as brokers, contextlib.ExitStack() as stack:

        def connect() -> list[Connection]:
            return [stack.enter_context(Connection(member.port)) for member in brokers.members.values()]

        watch, askers = Watch(connect()), itertools.cycle(connect())
        for number in range(-WARM_UP_TOPICS, topics):
            for what, since_request, since_answer in topic_life(watch, askers, f"bench-{number}"):
                if number >= 0:
                    after_request.setdefault(what, []).append(since_request)
                    after_answer.setdefault(what, []).append(since_answer)
    bench = "metadata on 3 brokers"
    for what, times in after_request.items():
        told = f"p99 {percentile(times, 0.99):.0f} ms, half of {len(times)} after the answer {percentile(after_answer[what], 0.5):.1f} ms"
        options.say(f"metadata, {what}: {told}")
        yield figure(bench, what, times, "ms", note="from the request on")
        yield figure(bench, f"{what}, p99", [percentile(times, 0.99)], "ms", at_most=TARGET_MS)
        yield figure(bench, f"{what}, after the answer", after_answer[what], "ms")

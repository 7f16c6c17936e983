"""Requests that cost more than they are: repetitions, elements by the million, answers far larger than their questions.

A broker is one event loop, so what is measured is how much of its work someone else had to wait for (`Victim.held_seconds`). CPU time
is no constant either, on a machine whose caches are shared: the bounds are some times what is promised, and a tenth and less of what
the attacks achieved.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from ottla.protocol.api import ApiKey, max_elements
from ottla.protocol.primitives import compact_string, string, uvarint

from .sweep import SETTINGS, prepare, served, sweep
from .victim import MIB, Victim, array, batch, config_array, fetch, fetch_partition, must, produce, read_answer, repeated, request

LARGE: Final = 100 * MIB - 1024
# Of a promised 50 ms for a request up to 1 MiB, and 1 s for the largest.
SMALL_SECONDS: Final = 0.2
LARGE_SECONDS: Final = 1.5
# What the loop's own thread may take of it, with nothing of other threads in it.
LOOP_SECONDS: Final = 0.1


def _costs(victim: Victim, name: str, request_of: Callable[[], bytes]) -> None:
    data = request_of()
    before = victim.memory_mib()
    waited = victim.held_seconds(lambda: victim.ask(data))
    size = len(data) / MIB
    most = SMALL_SECONDS if size <= 1.1 else LARGE_SECONDS
    must(victim.lives, f"{name}: the broker has died")
    must(waited < most, f"{name}: {size:.2f} MiB held the loop for {waited:.2f} s")
    if size > 50:
        must(victim.peak_mib() - before < 4 * size, f"{name}: {size:.0f} MiB took {victim.peak_mib() - before:.0f} MiB")


def repetitions() -> None:
    """One thing named again and again is answered once (S3)."""
    with Victim() as victim:
        victim.ask(request(ApiKey.FIND_COORDINATOR, 4, b"\0" + array([compact_string("g")]) + b"\0"))
        broker = b"\4" + compact_string("1") + uvarint(0) + b"\0"
        cases: dict[str, Callable[[], bytes]] = {
            "DescribeConfigs": lambda: request(ApiKey.DESCRIBE_CONFIGS, 4, repeated(broker, 5_000) + b"\1\1\0"),
            "DescribeGroups": lambda: request(ApiKey.DESCRIBE_GROUPS, 5, repeated(compact_string("g"), 500_000) + b"\0\0"),
            "OffsetFetch": lambda: request(ApiKey.OFFSET_FETCH, 8, repeated(compact_string("g") + b"\0\0", 250_000) + b"\0\0"),
            "FindCoordinator": lambda: request(ApiKey.FIND_COORDINATOR, 4, b"\0" + repeated(compact_string("g"), 500_000) + b"\0"),
            "Fetch": lambda: fetch(array([compact_string("canary") + repeated(fetch_partition(0), 31_000) + b"\0"])),
            "ListOffsets v0": lambda: request(
                ApiKey.LIST_OFFSETS,
                0,
                struct.pack(">ii", -1, 1) + string("canary") + struct.pack(">i", 65_000) + struct.pack(">iqi", 0, -1, 1) * 65_000,
            ),
            # S20: of topics that exist. Named twice, none of them is deleted.
            "DeleteTopics": lambda: request(
                ApiKey.DELETE_TOPICS,
                6,
                array(compact_string(f"d{index % 100}") + bytes(16) + b"\0" for index in range(40_000)) + struct.pack(">i", 1000) + b"\0",
            ),
        }
        for index in range(100):
            victim.create_topic(f"d{index}")
        for name, request_of in cases.items():
            _costs(victim, name, request_of)


def different_names() -> None:
    """A megabyte of names that all differ is answered a few milliseconds at a time."""

    def names(count: int) -> list[bytes]:
        return [compact_string(f"n{index:x}") for index in range(count)]

    with Victim("auto.create.topics.enable=false") as victim:
        cases: dict[str, Callable[[], bytes]] = {
            "Metadata": lambda: request(ApiKey.METADATA, 9, array(name + b"\0" for name in names(100_000)) + b"\0\0\0\0"),
            "Fetch": lambda: fetch(
                array([compact_string("canary") + array(fetch_partition(index) for index in range(31_000)) + b"\0"]), session=(0, 0)
            ),
            "OffsetCommit": lambda: request(
                ApiKey.OFFSET_COMMIT,
                8,
                compact_string("g")
                + struct.pack(">i", -1)
                + compact_string("")
                + b"\0"
                + array([compact_string("canary") + array(struct.pack(">iqi", index, 1, -1) + b"\1\0" for index in range(50_000)) + b"\0"])
                + b"\0",
            ),
            "CreateTopics": lambda: request(
                ApiKey.CREATE_TOPICS,
                7,
                array(name + struct.pack(">ih", 1, 1) + b"\1" + config_array([("rretention.mss", "1")]) + b"\0" for name in names(5_000))
                + struct.pack(">i?", 60_000, True)
                + b"\0",
            ),
        }
        for name, request_of in cases.items():
            _costs(victim, name, request_of)


def every_list() -> None:
    """A megabyte of different things in each list that may name every partition of a cluster (S3), beside those of `different_names`."""
    with Victim(*SETTINGS) as victim:
        prepare(victim)
        tried = (ApiKey.FETCH, ApiKey.METADATA, ApiKey.CREATE_TOPICS)
        names = [key.api_name for key, _, _ in served() if max_elements(key) > 10_000 and key not in tried]
        for case, cost in sweep(victim, LOOP_SECONDS, names, ("unknown",), last=True):
            must(cost.loop_seconds < LOOP_SECONDS, f"{case}: the loop worked for {cost.loop_seconds:.2f} s between two turns")


def elements() -> None:
    """The largest request, of nothing but empty elements (S4)."""
    with Victim() as victim:
        _costs(
            victim,
            "tagged fields of a header",
            lambda: request(ApiKey.API_VERSIONS, 3, b"\2x\0\2x\0", tags=uvarint(LARGE // 2) + b"\0\0" * (LARGE // 2)),
        )
        _costs(
            victim,
            "Produce",
            lambda: request(ApiKey.PRODUCE, 9, b"\0" + struct.pack(">hi", 1, 1000) + repeated(b"\1\1\0", LARGE // 3) + b"\0"),
        )
        _costs(victim, "Fetch", lambda: fetch(repeated(b"\1\1\0", LARGE // 3)))
        _costs(
            victim, "a key of 20 MiB", lambda: request(ApiKey.FIND_COORDINATOR, 4, b"\0" + array([compact_string("k" * 20 * MIB)]) + b"\0")
        )


def refused_again_and_again() -> None:
    """Large requests that are refused, one after the other: of none anything is left (S10)."""
    data = request(ApiKey.INIT_PRODUCER_ID, 4, compact_string("t" * 20 * MIB) + struct.pack(">iqh", 60_000, -1, -1) + b"\0")
    with Victim() as victim:
        before = victim.memory_mib()
        for _ in range(30):
            must(victim.ask(data) is None, "an id of 20 MiB is answered")
        grown = victim.memory_mib() - before
        must(grown < 150, f"of 30 requests of 20 MiB that were refused {grown:.0f} MiB are left")


def fetch_sessions() -> None:
    """A session of partitions that do not exist, carried on by fifty bytes (S3)."""
    with Victim() as victim:
        begin = fetch(
            array([compact_string("nowhere") + array(fetch_partition(index) for index in range(190_000)) + b"\0"]), session=(0, 0)
        )
        answer = victim.ask(begin)
        session_id = 0 if answer is None else struct.unpack_from(">i", answer, 5 + 6)[0]
        waited = victim.held_seconds(lambda: [victim.ask(fetch(b"\1", session=(session_id, epoch))) for epoch in range(1, 4)])
        must(waited < SMALL_SECONDS, f"fifty bytes held the loop for {waited:.2f} s")
        must(victim.memory_mib() < 400, f"a session is kept in {victim.memory_mib():.0f} MiB")


def described_producers() -> None:
    """A hundred bytes that ask twenty times for what a hundred thousand producers have written (S3)."""
    with Victim() as victim:
        victim.create_topic("p")
        with victim.connect() as connection:
            for first in range(0, 30_000, 500):
                connection.sendall(
                    b"".join(
                        produce("p", batch(b"v", producer_id=index, producer_epoch=0, base_sequence=0))
                        for index in range(first, first + 500)
                    )
                )
                for _ in range(500):
                    read_answer(connection)
        body = array([compact_string("p") + repeated(struct.pack(">i", 0), 20) + b"\0"]) + b"\0"
        answers: list[bytes | None] = []
        waited = victim.held_seconds(lambda: answers.append(victim.ask(request(ApiKey.DESCRIBE_PRODUCERS, 0, body))))
        must(len(answers[0] or b"") < 3 * MIB, f"{len(body)} bytes are answered by {len(answers[0] or b'')}")
        must(waited < SMALL_SECONDS, f"{len(body)} bytes held the loop for {waited:.2f} s")


def topics_that_are_asked_for() -> None:
    """Names that no one has, which a question creates as topics (S18): others are served meanwhile."""
    count = 300
    with Victim() as victim:
        body = array(compact_string(f"asked-for-{index}") + b"\0" for index in range(count)) + b"\1\0\0\0"
        held = victim.held_seconds(lambda: victim.ask(request(ApiKey.METADATA, 9, body)))
        must(held < SMALL_SECONDS, f"{count} names held the loop for {held:.2f} s")


def texts_that_are_kept() -> None:
    """What is only validated is not kept (S6)."""
    with Victim() as victim:
        before = victim.memory_mib()
        for number in range(300):
            value = f"{number}:{number}," + "1:1," * 8_000
            configs = config_array([("leader.replication.throttled.replicas", value[:-1])])
            body = array([compact_string(f"x{number}") + struct.pack(">ih", 1, 1) + b"\1" + configs + b"\0"])
            victim.ask(request(ApiKey.CREATE_TOPICS, 7, body + struct.pack(">i?", 30_000, True) + b"\0"))
        grown = victim.memory_mib() - before
        must(grown < 40, f"300 topics that were only validated are kept in {grown:.0f} MiB")


ATTACKS: Final = (
    repetitions,
    different_names,
    every_list,
    elements,
    refused_again_and_again,
    fetch_sessions,
    described_producers,
    topics_that_are_asked_for,
    texts_that_are_kept,
)

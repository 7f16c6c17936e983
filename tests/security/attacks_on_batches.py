"""Batches that are believed: headers that lie under a right checksum, and kilobytes that unpack to millions of records."""

from __future__ import annotations

import struct
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Final

from ottla.protocol.api import ApiKey
from ottla.protocol.primitives import compact_string
from ottla.record.batch import HEADER_SIZE, read_header
from ottla.record.codecs import ZSTD, compress
from ottla.record.records import Record, build_batch, seal
from ottla.record.varints import encode_varint

from .victim import Victim, array, batch, fetch, fetch_partition, must, produce, produced, read_answer, request, until

INVALID_RECORD: Final = 87
# What the broker may work, in CPU time, while someone else waits for a turn. Threads that open batches take the interpreter's lock
# for 5 ms at a time, from each other too.
HELD_SECONDS: Final = 0.5
EMPTY_RECORD: Final = bytes((12, 0, 0, 0, 1, 1, 0))  # length 6: attributes, deltas, key and value of -1, no headers
UNSUPPORTED_COMPRESSION: Final = 76


def bomb(count: int) -> bytes:
    """A sound header over `count` records that are nearly nothing, packed by zstd."""
    base = read_header(batch(b"v"))
    header = base._replace(attributes=ZSTD, record_count=count, last_offset_delta=count - 1)
    return seal(header, compress(ZSTD, EMPTY_RECORD * count))


def at_once(victim: Victim, data: bytes, count: int) -> list[bytes | None]:
    """The answers to a request that so many clients send at the same time."""
    with ThreadPoolExecutor(count) as clients:
        return list(clients.map(lambda _: victim.ask(data), range(count)))


def lying_headers() -> None:
    """What the header alone shows to be wrong (S8)."""
    cases: dict[str, tuple[bytes, int]] = {
        "codec 5": (batch(b"v", attributes=5), UNSUPPORTED_COMPRESSION),
        "codec 7": (batch(b"v", attributes=7), UNSUPPORTED_COMPRESSION),
        "LogAppendTime": (batch(b"v", attributes=8), INVALID_RECORD),
        "delete horizon": (batch(b"v", attributes=0x40), INVALID_RECORD),
        "unknown attributes": (batch(b"v", attributes=0x4280), INVALID_RECORD),
        "a record that is said to be two thousand million": (
            batch(b"v", record_count=2**31 - 1, last_offset_delta=2**31 - 2),
            INVALID_RECORD,
        ),
    }
    with Victim() as victim:
        victim.create_topic("t")
        for name, (records, wanted) in cases.items():
            code = produced(victim.ask(produce("t", records)))
            must(code == wanted, f"{name}: answered with error {code}, where {wanted} was to be")
        must(produced(victim.ask(produce("t", batch(b"v")))) == 0, "a sound batch is refused")


def rolled_segments() -> None:
    """A hundred bytes that begin a new segment, three thousand times (S8)."""
    with Victim() as victim:
        victim.create_topic("t")
        before = victim.descriptors()
        lie = produce("t", batch(b"v", record_count=2**31 - 1, last_offset_delta=2**31 - 2))
        with victim.connect() as connection:
            for _ in range(10):
                connection.sendall(lie * 100)
                for _ in range(100):
                    code = produced(read_answer(connection))
                    must(code == INVALID_RECORD, f"a batch of a record that says it has two thousand million is answered with {code}")
        must(victim.descriptors() - before < 50, f"{victim.descriptors() - before} descriptors are open for 1,000 batches of a record")


def bombs_at_a_compacted_topic() -> None:
    """Twelve kilobytes of fifteen million records, eight at once (S5)."""
    with Victim() as victim:
        victim.create_topic("c", cleanup_policy="compact")
        data = produce("c", bomb(14_800_000))
        codes: list[int | None] = []
        held = victim.held_seconds(lambda: codes.extend(map(produced, at_once(victim, data, 8))))
        must(codes == [INVALID_RECORD] * 8, f"eight bombs are answered with {codes}")
        must(held < HELD_SECONDS, f"someone else waited while the broker worked for {held:.2f} s")
        must(victim.peak_mib() < 400, f"the broker took {victim.peak_mib():.0f} MiB")


def bombs_that_the_bound_lets_in() -> None:
    """The same beside a record of a hundred kilobytes, so that the header's count could be true (S5)."""
    count = 14_800_000
    value = Random(1).randbytes(110_000)
    body = bytes((0, 0, 0, 1)) + encode_varint(len(value)) + value + b"\0"
    payload = compress(ZSTD, EMPTY_RECORD * count + encode_varint(len(body)) + body)
    header = read_header(batch(b"v"))._replace(attributes=ZSTD, record_count=count + 1, last_offset_delta=count)
    with Victim() as victim:
        victim.create_topic("c", cleanup_policy="compact")
        data = produce("c", seal(header, payload))
        codes: list[int | None] = []
        held = victim.held_seconds(lambda: codes.extend(produced(victim.ask(data)) for _ in range(2)))
        must(codes == [INVALID_RECORD] * 2, f"a batch of {len(payload)} bytes and {count} records is answered with {codes}")
        must(held < HELD_SECONDS, f"someone else waited while the broker worked for {held:.2f} s")
        must(victim.peak_mib() < 400, f"the broker took {victim.peak_mib():.0f} MiB")
        must(victim.log().count("is not opened") == 1, "the batch is named more than once, or not at all")


def times_in_bombs() -> None:
    """Sixty bytes that ask for a time within a batch of hundreds of thousands of records, eight at once (S5)."""
    count = 300_000
    filler = b"".join(bytes((14, 0)) + struct.pack(">B", 0) + bytes((0, 1, 2)) + bytes((index % 251,)) + b"\0" for index in range(8_000))
    payload = compress(ZSTD, EMPTY_RECORD * count + filler)
    total = count + 8_000
    with Victim() as victim:
        victim.create_topic("t")
        now = int(time.time() * 1000)
        header = read_header(batch(b"v"))._replace(
            attributes=ZSTD, record_count=total, last_offset_delta=total - 1, base_timestamp=now, max_timestamp=now + 1
        )
        code = produced(victim.ask(produce("t", seal(header, payload))))
        if code != 0:
            return  # refused by its header, which is as good
        body = (
            struct.pack(">ib", -1, 0) + array([compact_string("t") + array([struct.pack(">iiq", 0, -1, now + 1) + b"\0"]) + b"\0"]) + b"\0"
        )
        answers: list[bytes | None] = []
        held = victim.held_seconds(lambda: answers.extend(at_once(victim, request(ApiKey.LIST_OFFSETS, 7, body), 8)))
        must(None not in answers, f"{answers.count(None)} of 8 questions are not answered")
        must(held < HELD_SECONDS, f"someone else waited while the broker worked for {held:.2f} s")
        must(victim.peak_mib() < 400, f"the broker took {victim.peak_mib():.0f} MiB")


def offsets_outside_their_batch() -> None:
    """A record at an offset that its batch does not have, which no cleaner could do with (S8)."""
    with Victim() as victim:
        victim.create_topic("c", cleanup_policy="compact")
        made = build_batch([Record(0, 1, b"k", b"v"), Record(5, 1, b"k", b"v")])
        lie = seal(read_header(made)._replace(last_offset_delta=1), made[HEADER_SIZE:])
        code = produced(victim.ask(produce("c", lie)))
        must(code == INVALID_RECORD, f"a record at offset 5 of a batch of two is answered with {code}")


def cleaned_bomb() -> None:
    """A topic that is compacted only after a bomb has come: the cleaner goes on with the rest of the log (S5)."""
    settings = ("log.cleaner.backoff.ms=200", "log.cleaner.min.cleanable.ratio=0.01", "log.roll.ms=1000")
    with Victim(*settings) as victim:
        victim.create_topic("t", segment_bytes="20000")
        garbage = seal(read_header(batch(b"v", key=b"k"))._replace(attributes=ZSTD), b"this is no zstd at all")
        must(produced(victim.ask(produce("t", garbage))) == 0, "a batch is stored unopened")
        for number in range(100):
            victim.ask(produce("t", batch(b"%d" % number + b"x" * 1_000, key=b"one key")))
        body = array(
            [b"\2" + compact_string("t") + array([compact_string("cleanup.policy") + b"\0" + compact_string("compact") + b"\0"]) + b"\0"]
        )
        victim.ask(request(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body + b"\0\0"))
        until(lambda: "records stay" in victim.log(), "the log is compacted")
        must("not opened" in victim.log(), "nothing names the batch that was left")
        must(victim.ask(fetch(array([compact_string("t") + array([fetch_partition(0)]) + b"\0"]))) is not None, "the log is not readable")


ATTACKS: Final = (
    lying_headers,
    rolled_segments,
    bombs_at_a_compacted_topic,
    bombs_that_the_bound_lets_in,
    times_in_bombs,
    offsets_outside_their_batch,
    cleaned_bomb,
)

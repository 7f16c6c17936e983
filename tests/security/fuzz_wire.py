"""`python -m tests.security.fuzz_wire [--seconds N] [--seed N]`: what no one has thought of, over the wire and on the disk.

Over the wire: requests of every API in every version, with odd values and then with bits, numbers and lengths changed. On the disk: the
files of a broker that was stopped, changed before it starts again, before `ottla log dump` looks at them, and before the cleaner does.

The broker must live, answer a well-behaved client within a few seconds, keep what it has acknowledged to that, log no traceback, stay
within its memory. A start may be refused, with a sentence. A batch that is served and has a right checksum must be one that was sent.
The seed is printed first: the same one sends the same inputs.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

from ottla.broker import handlers
from ottla.broker.handlers.registry import APIS
from ottla.protocol import messages
from ottla.protocol import produce as produce_codec
from ottla.protocol.api import ApiKey
from ottla.protocol.primitives import compact_string
from ottla.protocol.schemas import SchemaField, schema_fields, struct_writer
from ottla.record.batch import batches, crc_of
from ottla.record.records import read_records

from .victim import (
    PATIENCE_SECONDS,
    Canary,
    DidNotStart,
    Victim,
    array,
    batch,
    must,
    produce,
    produced,
    read_answer,
    request,
)

MAX_MEMORY_MIB: Final = 600
# What the broker may work while someone waits for its event loop's turn; inputs are small here.
MAX_HELD_SECONDS: Final = 0.5
TEXTS: Final = ("", "t", "c", "g", "1", "__consumer_offsets", "..", "a" * 249, "é\n\x1b[2J", "x" * 3_000, "cleanup.policy", "range")
NUMBERS: Final = (0, 1, -1, 2, 127, 255, 1 << 15, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))
SETTINGS: Final = ("group.initial.rebalance.delay.ms=50", "log.cleaner.backoff.ms=500", "log.cleaner.min.cleanable.ratio=0.01")
_PRODUCE: Final = (ApiKey.PRODUCE, produce_codec.MIN_VERSION, produce_codec.MAX_VERSION)
# What a broker reads at a start, by the ends of names.
KINDS: Final = (
    ".log",
    ".index",
    ".timeindex",
    ".snapshot",
    ".txnindex",
    "checkpoint",
    "meta.properties",
    "partition.metadata",
    ".sqlite",
)


# Over the wire.


def _odd_value(random: Random, field: SchemaField) -> Any:
    if field.is_array:
        return tuple(_one(random, field) for _ in range(random.choice((0, 1, 1, 2, 5))))
    if field.nullable and random.random() < 0.1:
        return None
    return _one(random, field)


def _one(random: Random, field: SchemaField) -> Any:
    if field.struct:
        return _message(random, field.struct)
    match field.wire_type:
        case "string":
            return random.choice(TEXTS)
        case "bytes" | "records":
            return random.choice((b"", batch(b"v"), random.randbytes(random.randrange(100))))
        case "uuid":
            return random.choice((UUID(int=random.getrandbits(128)), UUID(int=1)))
        case "bool":
            return random.random() < 0.5
        case "float64":
            return random.random()
        case "error_code":
            return 0
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=random.choice((0, 1, 500, 10_000, -1)))
        case kind:
            bits = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}[kind]
            number = random.choice(NUMBERS) & (1 << bits) - 1
            return number if kind.startswith("u") or number < 1 << bits - 1 else number - (1 << bits)


def _message(random: Random, schema: Any) -> Any:
    values = {field.name: _odd_value(random, field) for field in schema_fields(schema)}
    return schema(**{field.name: values[field.name] for field in dataclasses.fields(schema)})


def _request(random: Random) -> bytes:
    """A request of some API, mostly as its schema has it."""
    # The dispatcher takes Produce by itself, so that it is not in the table.
    key, lowest, highest = random.choice([(api.key, api.min_version, api.max_version) for api in APIS.values()] + [_PRODUCE] * 4)
    version = random.randrange(lowest, highest + 1)
    if key is ApiKey.PRODUCE and random.random() < 0.5:
        header = {}
        if random.random() < 0.5:
            field = random.choice(("attributes", "record_count", "last_offset_delta", "producer_id", "base_sequence"))
            header = {field: random.randrange(-3, 300)}
        return produce(random.choice(("t", "c", "canary2", "nowhere")), batch(b"v", key=b"k", **header))
    try:
        schema = messages._message(key, version, "request")
    except LookupError:  # kio has no schema of it
        return request(key, version, random.randbytes(random.randrange(60)))
    out = bytearray()
    struct_writer(schema)(out, _message(random, schema))
    return request(key, version, bytes(out), client_id=random.choice((b"fuzz", b"", b"\xff\xfe", b"\n\x1b[2J")))


def _mutated(random: Random, data: bytes, most: int = 4) -> bytes:
    """The bytes with a few changes; a frame's length is made right again most of the time."""
    changed = bytearray(data)
    for _ in range(random.randrange(most + 1)):
        if not changed:
            break
        at = random.randrange(len(changed))
        match random.randrange(6):
            case 0:
                changed[at] ^= 1 << random.randrange(8)
            case 1:
                changed[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                number = struct.pack(">q", random.choice(NUMBERS))[-random.choice((2, 4, 8)) :]
                changed[at : at + len(number)] = number
            case 3:
                del changed[at : at + random.randrange(1, 20)]
            case 4:
                changed[at:at] = random.randbytes(random.randrange(1, 20))
            case _:
                end = min(len(changed), at + random.randrange(1, 40))
                changed[at:at] = changed[at:end]
    return bytes(changed)


def _framed_again(random: Random, data: bytes) -> bytes:
    body = _mutated(random, data[4:])
    return struct.pack(">i", len(body) if random.random() < 0.97 else random.choice(NUMBERS) % (1 << 31)) + body


def over_the_wire(seed: int, seconds: float) -> None:
    """Sends inputs for so long."""
    random = Random(seed)
    handlers.load()
    with Victim(*SETTINGS) as victim:
        for name, settings in (("t", {}), ("c", {"cleanup_policy": "compact"}), ("canary2", {})):
            victim.create_topic(name, 2, **settings)
        canary = Canary(victim)
        canary.start()
        started_with = victim.memory_mib()
        sent = 0

        def send() -> None:
            nonlocal sent
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                must(victim.lives, f"the broker has died after {sent} inputs")
                with contextlib.suppress(OSError), victim.connect(0.2) as connection:
                    for _ in range(20):
                        data = _request(random)
                        connection.sendall(data if random.random() < 0.2 else _framed_again(random, data))
                        sent += 1
                        with contextlib.suppress(TimeoutError):
                            if read_answer(connection) is None:
                                break

        held = victim.held_seconds(send)
        canary.finish()
        must(victim.lives, f"the broker has died after {sent} inputs")
        log = victim.log()
        must("Traceback" not in log, f"a traceback:\n{log[log.find('Traceback') :][:3000]}")
        must(not canary.failures, f"the well-behaved client: {canary.failures[:3]}")
        must(held < MAX_HELD_SECONDS, f"someone waited while the broker worked for {held:.2f} s")
        must(victim.peak_mib() < MAX_MEMORY_MIB, f"{victim.peak_mib():.0f} MiB, and {started_with:.0f} at the start")
        kept = sum(header.record_count for header in _served(victim, "canary", 0, {b"canary"}))
        must(kept >= canary.answered, f"{kept} of {canary.answered} acknowledged messages are there")
    sys.stdout.write(f"  {sent} inputs over the wire, {canary.answered} messages beside, the loop held for {held:.3f} s at most\n")


# On the disk.


def _served(victim: Victim, topic: str, partition: int, known: set[bytes]) -> Iterator[Any]:
    """The headers of what can be fetched; whatever has a right checksum must be known."""
    offset = 0
    for _ in range(10_000):
        part = struct.pack(">iiqiqi", partition, -1, offset, -1, -1, 1 << 20) + b"\0"
        limits = struct.pack(">iiiib", -1, 0, 0, 1 << 20, 0) + struct.pack(">ii", 0, -1)
        answer = victim.ask(request(ApiKey.FETCH, 12, limits + array([compact_string(topic) + array([part]) + b"\0"]) + b"\1\1\0"))
        must(answer is not None, f"a fetch of {topic}-{partition} at {offset} is not answered")
        assert answer is not None
        records = _records_in(answer, topic)
        found = list(batches(records))
        for at, header in found:
            whole = records[at : at + header.size]
            if crc_of(whole) != header.crc:
                return  # the reader's library says so, too
            for record in read_records(whole):
                must(record.value in known, f"{topic}-{partition}: something that no one sent is served at offset {record.offset}")
            yield header
            offset = max(offset, header.last_offset + 1)
        if not found:
            return


def _records_in(answer: bytes, topic: str) -> bytes:
    at = 5 + 4 + 2 + 4 + 1 + 1 + len(topic) + 1  # header, throttle, error, session, one topic, its name, one partition
    at += 4 + 2 + 8 + 8 + 8 + 1 + 4  # index, error, three offsets, no aborted ones, no preferred replica
    return answer[at + (1 if answer[at] < 0x80 else 2 if answer[at + 1] < 0x80 else 3 if answer[at + 2] < 0x80 else 4) :]


def _prepared(directory: Path) -> dict[str, set[bytes]]:
    """A broker's files after some messages and a clean stop, and what it was sent."""
    known: dict[str, set[bytes]] = {"t": set(), "c": set()}
    with Victim(*SETTINGS, directory=directory) as victim:
        victim.create_topic("t", 1, segment_bytes="20000")
        victim.create_topic("c", 1, segment_bytes="20000", cleanup_policy="compact")
        for number in range(120):
            for topic, values in known.items():
                value = b"%s-%d-" % (topic.encode(), number) + b"x" * 700
                values.add(value)
                made = batch(value, key=b"k%d" % (number % 7), producer_id=9, producer_epoch=0, base_sequence=number)
                assert produced(victim.ask(produce(topic, made))) == 0
    return known


def _damage(random: Random, directory: Path) -> list[str]:
    files = [path for path in directory.rglob("*") if path.is_file() and path.name.endswith(KINDS)]
    damaged = []
    for path in random.sample(sorted(files), min(len(files), random.choice((1, 1, 2, 5)))):
        data = path.read_bytes()
        match random.randrange(5):
            case 0:
                path.write_bytes(data[: random.randrange(len(data) + 1)])
            case 1:
                path.write_bytes(b"")
            case 2:
                path.write_bytes(data + random.randbytes(random.randrange(1, 100)))
            case _:
                path.write_bytes(_mutated(random, data, 6))
        damaged.append(path.relative_to(directory).as_posix())
    return damaged


def on_the_disk(seed: int, seconds: float) -> None:
    """Damages files and starts a broker with them, for so long."""
    random = Random(seed)
    with tempfile.TemporaryDirectory(prefix="ottla-fuzz-") as temporary:
        sound, round_directory = Path(temporary, "sound"), Path(temporary, "round")
        sound.mkdir()
        known = _prepared(sound)
        rounds = refused = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            rounds += 1
            shutil.rmtree(round_directory, ignore_errors=True)
            shutil.copytree(sound, round_directory)
            for path in round_directory.rglob(".kafka_cleanshutdown"):
                if random.random() < 0.5:  # as after a crash: then it is recovered
                    path.unlink()
            where = f"round {rounds}, {', '.join(_damage(random, round_directory))}"
            _dump(random, round_directory, where)
            try:
                with Victim(*SETTINGS, directory=round_directory, memory_bytes=2 << 30) as victim:
                    for topic, values in known.items():
                        for _ in _served(victim, topic, 0, values):
                            pass
                    must(victim.lives, f"{where}: the broker has died")
                    log = victim.log()
                    must("Traceback" not in log, f"{where}: a traceback:\n{log[log.find('Traceback') :][:3000]}")
                    must(victim.peak_mib() < MAX_MEMORY_MIB, f"{where}: {victim.peak_mib():.0f} MiB")
            except DidNotStart as error:
                must(error.code is not None, f"{where}: a start that does not end")
                must("Traceback" not in error.said, f"{where}: {error.said}")
                refused += 1
    sys.stdout.write(f"  {rounds} starts with damaged files, {refused} refused with a sentence\n")


def _dump(random: Random, directory: Path, where: str) -> None:
    segments = sorted(directory.rglob("*.log"))
    segments = [segment for segment in segments if segment.parent.name.rpartition("-")[2].isdigit()]
    if not segments:
        return
    command = [sys.executable, "-c", "from ottla.cli.main import main; main()", "log", "dump", str(random.choice(segments)), "--records"]
    try:
        shown = subprocess.run(command, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        must(False, f"{where}: a dump that does not end")
        return
    must(b"Traceback" not in shown.stderr, f"{where}: {shown.stderr.decode(errors='replace')[-2000:]}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all of it")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args(arguments)
    sys.stdout.write(f"seed {given.seed}\n")
    sys.stdout.flush()
    over_the_wire(given.seed, given.seconds / 2)
    on_the_disk(given.seed, given.seconds / 2)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

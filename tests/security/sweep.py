"""Requests of every API, in every version, made as costly as their size allows: what each array, string and bytes can be filled with.

No case is thought up here: the schemas say what a request may have many of. Each array in turn gets as many elements as the request
may have, one element again and again, or all different, of things that exist or that do not; each text gets as long as may be.
What the loop's own thread worked between two turns is what is judged (`watch.py`), as anything else depends on who else computes.

`python -m tests.security.sweep [API…] [--last] [--large] [--kinds …]` tries them all, which takes an hour of CPU time; `cost.every_list`
is the part of it that runs in CI.
"""

from __future__ import annotations

import argparse
import dataclasses
import struct
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from ottla.broker import handlers
from ottla.broker.handlers.registry import APIS
from ottla.protocol import messages
from ottla.protocol import produce as produce_codec
from ottla.protocol.api import ApiKey, max_elements
from ottla.protocol.schemas import SchemaField, schema_fields, struct_writer

from .victim import MIB, Victim, array, batch, must, request, until

# What is promised, and what is judged: CPU time is no constant on a machine whose caches others use too.
SMALL_SECONDS: Final = 0.05
LARGE_SECONDS: Final = 1.0
MAX_STRING: Final = 32_767
LARGE: Final = 100 * MIB - 4096
KNOWN: Final = 200  # topics that exist, with a partition each
WIDE: Final = 5_000  # partitions of one more
KINDS: Final = ("same", "unknown", "known", "wide", "long", "text")
SETTINGS: Final = (
    "auto.create.topics.enable=false",
    "group.initial.rebalance.delay.ms=0",
    "group.coordinator.rebalance.protocols=classic,consumer",
)

Path = tuple[str, ...]


class Case(NamedTuple):
    """One request: which array is filled, and with what."""

    key: ApiKey
    version: int
    path: Path
    kind: str
    size: int

    def __str__(self) -> str:
        return f"{self.key.api_name} v{self.version} {'.'.join(self.path) or '-'} {self.kind} {self.size // 1024} KiB"


class Cost(NamedTuple):
    """What a case cost: CPU time of the loop, and of the whole process, between two turns of the loop; memory afterwards."""

    loop_seconds: float
    process_seconds: float
    grown_mib: float
    is_answered: bool


def served() -> list[tuple[ApiKey, int, int]]:
    """Every API and its versions. The dispatcher takes Produce by itself, so that it is not in the table."""
    handlers.load()
    return [
        (ApiKey.PRODUCE, produce_codec.MIN_VERSION, produce_codec.MAX_VERSION),
        *((api.key, api.min_version, api.max_version) for api in sorted(APIS.values(), key=lambda api: api.key)),
    ]


def cases(key: ApiKey, version: int, size: int) -> Iterator[Case]:
    """What is tried of one version of an API with requests of about so many bytes; elements by the million are `cost.elements`' affair."""
    try:
        schema = _schema(key, version)
    except LookupError:
        return  # of a version that is older than the schemas, as v0 of ListOffsets
    for path in _paths(schema, lambda field: field.is_array):
        for kind in ("unknown", "known", "wide", "same", "long") if size <= MIB else ("long",):
            if kind != "wide" or "partition" in path[-1]:
                yield Case(key, version, path, kind, size)
    for path in _paths(schema, lambda field: field.wire_type in ("string", "bytes", "records") and not field.is_array):
        yield Case(key, version, path, "text", size)


def _schema(key: ApiKey, version: int) -> Any:
    return messages._message(key, version, "request")


def _paths(schema: Any, wanted: Any, above: Path = ()) -> Iterator[Path]:
    for field in schema_fields(schema):
        if wanted(field):
            yield (*above, field.name)
        if field.struct:
            yield from _paths(field.struct, wanted, (*above, field.name))


class Filler:
    """Makes the message of a case."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._schema = _schema(case.key, case.version)
        self._number = 0
        self._count = 1

    def frame(self) -> bytes:
        """The framed request."""
        case = self._case
        if case.kind != "text":
            least = len(self._body(2))
            each = max(1.0, (len(self._body(66)) - least) / 64)
            # What is within an element counts, too.
            lists = sum(path[: len(case.path)] == case.path for path in _paths(self._schema, lambda field: field.is_array))
            most = min((max_elements(case.key) - 8) // lists, WIDE if case.kind == "wide" else sys.maxsize)
            self._count = max(1, min(int((case.size - least) / each), most))
        return request(case.key, case.version, self._body(self._count), client_id=b"sweep")

    def _body(self, count: int) -> bytes:
        self._number, self._count = 0, count
        out = bytearray()
        struct_writer(self._schema)(out, self._message(self._schema, ()))
        return bytes(out)

    def _message(self, schema: Any, path: Path) -> Any:
        values = {field.name: self._value(field, (*path, field.name)) for field in schema_fields(schema)}
        return schema(**{field.name: values[field.name] for field in dataclasses.fields(schema)})

    def _value(self, field: SchemaField, path: Path) -> Any:
        if not field.is_array:
            return self._one(field, path)
        if path != self._case.path or self._case.kind == "text":
            return (self._one(field, path),)
        if self._case.kind == "same":
            return (self._one(field, path),) * self._count
        values = []
        for _ in range(self._count):
            self._number += 1
            values.append(self._one(field, path))
        return tuple(values)

    def _one(self, field: SchemaField, path: Path) -> Any:
        if field.struct:
            return self._message(field.struct, path)
        number = self._number
        kind = field.wire_type
        if kind == "string":
            if field.name == "transactional_id" and self._case.key is ApiKey.PRODUCE and path != self._case.path:
                return None  # whose batches would be refused
            return self._text(field.name, number, path)
        if kind in ("bytes", "records"):
            if path == self._case.path:
                return bytes(max(self._case.size - 300, 0)) if kind == "bytes" else batch(bytes(self._case.size - 400))
            return batch(b"v", key=b"k") if kind == "records" else b"\0" * 8
        if kind == "uuid":
            return UUID(int=number + 1) if self._case.kind != "same" else None
        if kind == "bool":
            return field.name in ("validate_only", "include_documentation", "include_synonyms")
        if kind == "float64":
            return 1.0
        if kind == "error_code":
            return 0
        if kind.startswith("timedelta"):
            return timedelta(milliseconds=1000)
        if kind == "datetime_i64":
            return None
        return self._integer(field.name, number, int(kind.strip("uint")))

    def _text(self, name: str, number: int, path: Path) -> str:
        if self._case.kind == "text" and path == self._case.path:
            return "x" * min(MAX_STRING, self._case.size)
        if self._case.kind == "long" and path[: len(self._case.path)] == self._case.path:
            return f"{number:x}".ljust(max(1000, self._case.size // max_elements(self._case.key)), "x")[:MAX_STRING]
        if self._case.kind == "unknown":
            return f"n{number:x}"
        known = number % KNOWN if self._case.kind == "known" else 0
        if "topic" in name or name in ("name", "resource_name"):
            return "wide" if self._case.kind == "wide" else f"t{known}"
        if "group" in name or "coordinator" in name or name == "key":
            return f"g{known}"
        member = "" if self._case.kind == "wide" else f"s{known}"  # offsets are committed by groups without members, too
        return {"protocol_type": "consumer", "transactional_id": f"x{known}", "member_id": member}.get(name, f"s{known}")

    def _integer(self, name: str, number: int, bits: int) -> int:
        if name == "resource_type":
            return 2
        if name in ("key_type", "coordinator_type"):
            return number & 1
        if "epoch" in name or name in ("replica_id", "acks", "session_id"):
            return 1 if name == "acks" else -1
        if "timeout" in name or "max_" in name:
            return 1000
        if name in ("count", "num_partitions", "replication_factor"):
            return 1 if name != "count" else 2
        value = number % WIDE if self._case.kind == "wide" else number if self._case.kind == "unknown" else number % 7
        return value & ((1 << bits - 1) - 1)


def prepare(victim: Victim, *, wide: bool = False) -> None:
    """What the requests speak of: topics, and coordinators that have loaded."""
    all_topics = request(ApiKey.METADATA, 1, struct.pack(">i", -1))
    if wide:
        victim.create_topic("wide", WIDE)
        until(lambda: len(victim.ask(all_topics) or b"") > 10 * WIDE, "the wide topic is there")
    body = array(
        bytes((len(name) + 1,)) + name + struct.pack(">ih", 1, 1) + b"\1\1\0" for name in (b"t%d" % index for index in range(KNOWN))
    )
    assert victim.ask(request(ApiKey.CREATE_TOPICS, 7, body + struct.pack(">i?", 60_000, False) + b"\0")) is not None
    until(lambda: b"t%d" % (KNOWN - 1) in (victim.ask(all_topics) or b""), "the topics are there")
    for kind in (b"\0", b"\1"):
        for _ in range(2):
            assert victim.ask(request(ApiKey.FIND_COORDINATOR, 4, kind + array([b"\3g0"]) + b"\0")) is not None


def tried(victim: Victim, case: Case, most_seconds: float) -> Cost:
    """Sends a case, on a connection of its own; one over the bound twice more, as others' use of caches and cores only ever adds to it."""
    frame = Filler(case).frame()
    least = _sent(victim, frame)
    for _ in range(2):
        if least.loop_seconds > most_seconds:
            least = min(least, _sent(victim, frame))
    return least


def _sent(victim: Victim, frame: bytes) -> Cost:
    before, answers = victim.memory_mib(), list[bytes | None]()
    in_process, of_loop = victim.longest_waits(lambda: answers.append(victim.ask(frame)))
    return Cost(of_loop, in_process, victim.memory_mib() - before, answers[0] is not None)


def sweep(
    victim: Victim,
    most_seconds: float,
    names: Sequence[str] = (),
    kinds: Sequence[str] = KINDS,
    size: int = MIB,
    *,
    last: bool = False,
) -> Iterator[tuple[Case, Cost]]:
    """Tries the cases of the named APIs, or of all; of the last version of each alone, or of every one."""
    for key, lowest, highest in served():
        if names and key.api_name not in names:
            continue
        for version in range(highest if last else lowest, highest + 1):
            for case in cases(key, version, size):
                if case.kind in kinds:
                    yield case, tried(victim, case, most_seconds)
                    must(victim.lives, f"{case}: the broker has died")


def main(arguments: list[str]) -> int:
    """Prints each case with what it cost, and fails where one is over the bound."""
    parser = argparse.ArgumentParser()
    parser.add_argument("api", nargs="*")
    parser.add_argument("--large", action="store_true", help="of 100 MiB")
    parser.add_argument("--last", action="store_true", help="the last version of each alone")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    given = parser.parse_args(arguments)
    size, most = (LARGE, LARGE_SECONDS) if given.large else (MIB, SMALL_SECONDS)
    over = 0
    with Victim(*SETTINGS) as victim:
        prepare(victim, wide="wide" in given.kinds)
        for case, cost in sweep(victim, most, given.api, given.kinds, size, last=given.last):
            over += cost.loop_seconds > most
            mark = "OVER" if cost.loop_seconds > most else "" if cost.is_answered else "closed"
            numbers = f"{cost.loop_seconds * 1000:8.1f} {cost.process_seconds * 1000:8.1f} ms {cost.grown_mib:8.1f} MiB"
            sys.stdout.write(f"{numbers} {mark:6} {case}\n")
            sys.stdout.flush()
        must("Traceback" not in victim.log(), victim.log()[victim.log().find("Traceback") :][:3000])
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""How large the house is, and how it hangs together: `make house` prints the figures, test_tidy holds them to ceilings.

The figures of a request are not drawn by hand: three brokers run here in one process, a request is sent to one of them, and what
is called between its bytes and its answer is written down. That is the files whose functions run, and the calls from a layer into
one above it (by the order of layers in `pyproject.toml`).
"""

from __future__ import annotations

import ast
import asyncio
import re
import statistics
import struct
import sys
import tempfile
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar, copy_context
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Final

from ottla.broker.in_process import InProcessBrokers
from ottla.broker.server import Broker
from ottla.config.broker import BrokerSettings
from ottla.model import BrokerId
from ottla.network.connection import Connection
from ottla.record.records import Record, build_batch

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = ROOT / "services" / "ottla"
GENERATED: Final = re.compile(r"_pb2(_grpc)?\.py$")  # by `make proto`
# Services and rooms that came after the ceilings were set: what they add is new function, and says nothing of the house that stood.
# A path's beginning, below services/ottla and below tests.
_LATER: Final = """
    wire/ client/ schema_registry/ audit_counter/ mirror_maker/ spark/ takeover/ broker/auditing/ broker/replication/audit_runs
    broker/replication/schema_ids broker/replication/schema_claims
    cli/schema cli/services cli/audit cli/dev_services cli/mirror cli/load cli/spark cli/flights_in_spark cli/takeover cli/replay
    config/client
    config/providers config/registry config/audit config/mirror config/rpc metrics/schema_registry metrics/audit metrics/mirror metrics/load
    record/columnar record/digests network/complaints network/audit_schema storage/opening_process storage/batch_opener
    interbroker/admission unit/storage/test_batch_opener unit/broker/handlers/test_repetitions record/audit_records
    unit/record/test_audit_records unit/record/test_digests coordination/listener/ protocol/produce_client unit/record/test_columnar
    unit/config/test_providers unit/config/test_registry unit/config/test_rpc unit/testing/test_services unit/protocol/test_produce_client
    simulation/wire_clients simulation/registering simulation/kafka unit/config/test_mirror bench/columnar bench/client bench/takeover
    bench/handshakes bench/audit bench/mirror bench/registry bench/spark integration/test_takeover integration/test_schema_registry
    unit/wire/ unit/client/ unit/spark/ unit/test_lifecycle unit/coordination/test_listener paper/test_client chaos/connecting
    chaos/test_connecting compat/test_client_page bench/paper_client unit/schema_registry/ unit/broker/replication/test_schema_ids
    unit/audit_counter/ helm/test_audit_counter unit/broker/auditing/ unit/mirror_maker/ unit/takeover/ security/
    compat/test_schema_registry compat/test_mirror helm/test_mirror_maker integration/test_mirror_maker simulation/mirroring
    compat/test_audit compat/test_takeover integration/test_spark integration/test_audit_counter helm/test_load
    cli/configs compat/test_configs_command chaos/auditing chaos/test_auditing paper/test_log paper/test_server paper/test_pipeline
    paper/test_page paper/connection record/lists unit/record/test_lists
"""
LATER: Final = tuple(_LATER.split())


def stood(path: Path, below: Path) -> bool:
    """Whether a file belongs to what the ceilings are about."""
    return not path.relative_to(below).as_posix().startswith(LATER)


MODULES: Final = sorted(path for path in PACKAGE.rglob("*.py") if not GENERATED.search(path.name))
STOOD: Final = [path for path in MODULES if stood(path, PACKAGE)]
PRODUCE, CREATE_TOPICS = 0, 19
# Words that are no plain international English, and a loop variable that says nothing of what it holds.
HOME_WORDS: Final = re.compile(r"\b(?:nobody|somebody|whoever|anew|(?:is|are) told|goes on|can not|for each in)\b", re.IGNORECASE)

# What a figure may be at most. A ceiling is lowered with its figure; it is raised for new function only, by what that needs.
CEILINGS: Final[dict[str, int]] = {
    "files": 360,
    "modules with one importer": 55,
    "modules of the broker in no layer": 0,
    "Callable[": 119,
    "home words": 0,
    "loops of tests over each": 0,
    "__getattr__": 0,
    "lines of services/ottla": 63_802,
    "lines of tests": 90_904,
    "files on the way of a Produce": 14,
    "calls up into a higher layer on that way": 1,
    "files on the way of a CreateTopics": 27,
}


def lines_of(path: Path) -> int:
    """Of a file."""
    return path.read_bytes().count(b"\n")


def name_of(path: Path) -> str:
    """`ottla.storage.log` of services/ottla/storage/log.py."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    """What a module is parsed to."""
    return ast.parse(path.read_bytes())


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """What most rules ask for, found in one walk: imports, calls and attributes."""
    return tuple(node for node in ast.walk(tree_of(path)) if isinstance(node, (ast.Import, ast.ImportFrom, ast.Call, ast.Attribute)))


def importers() -> Counter[str]:
    """By how many modules each module is imported."""
    names = {name_of(path) for path in MODULES}
    counts: Counter[str] = Counter()
    for path in MODULES:
        imported = set()
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                inside = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= inside & names or {str(node.module)}
        counts.update(imported & names)
    return counts


@cache
def layers_of(container: str) -> tuple[frozenset[str], ...]:
    """The layers of a package, high to low, as import-linter is told them."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (contract,) = (
        contract
        for contract in linter["contracts"]
        if contract.get("containers") == [container] and contract["type"] == "layers" and len(contract["layers"]) > 1
    )
    return tuple(frozenset(re.findall(r"\w+", layer)) for layer in contract["layers"])


def unplaced() -> list[str]:
    """The modules of the broker that stand in no layer."""
    placed = frozenset().union(*layers_of("ottla.broker"))
    there = {path.stem for path in (PACKAGE / "broker").glob("*.py")} | {
        path.parent.name for path in (PACKAGE / "broker").glob("*/__init__.py")
    }
    return sorted(there - placed - {"__init__"})


def height(file: str) -> tuple[int, int]:
    """Where a file stands: the larger, the lower."""
    parts = Path(file).relative_to(PACKAGE).with_suffix("").parts
    top = next((index for index, layer in enumerate(layers_of("ottla")) if parts[0] in layer), -1)
    if parts[0] != "broker" or len(parts) < 2:
        return top, 0
    return top, next((index for index, layer in enumerate(layers_of("ottla.broker")) if parts[1] in layer), 0)


class Journey:
    """What is called for one request, on its loop and in threads."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.climbs: set[tuple[str, str]] = set()

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """As `sys.setprofile` takes it."""
        if event != "call" or _journey.get() is not self:
            return
        file = frame.f_code.co_filename
        if not file.startswith(str(PACKAGE)) or frame.f_code.co_name == "<module>":
            return
        self.files.add(file)
        caller = frame.f_back
        if caller is not None and caller.f_code.co_filename.startswith(str(PACKAGE)) and height(caller.f_code.co_filename) > height(file):
            self.climbs.add((caller.f_code.co_filename, file))

    def told(self) -> Iterator[str]:
        """The files, and the calls into a higher layer."""
        for file in sorted(self.files):
            yield f"  {Path(file).relative_to(PACKAGE)}"
        for caller, called in sorted(self.climbs):
            yield f"  up: {Path(caller).relative_to(PACKAGE)} -> {Path(called).relative_to(PACKAGE)}"


_journey: ContextVar[Journey | None] = ContextVar("_journey", default=None)


def journeys() -> dict[int, Journey]:
    """Of a Produce with acks=all to a partition's leader, and of a CreateTopics to a broker that is not the controller."""
    with tempfile.TemporaryDirectory(prefix="ottla-house-") as directory:
        return asyncio.run(_walked(Path(directory)))


async def _walked(directory: Path) -> dict[int, Journey]:
    def settings_of(broker_id: BrokerId) -> BrokerSettings:
        lists = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory / str(broker_id)), "broker.id": str(broker_id)}
        return BrokerSettings.from_properties(lists)

    brokers = InProcessBrokers([BrokerId(number) for number in (1, 2, 3)], settings_of, directory / "coordination")
    await brokers.start()
    try:
        bystander = next(broker for broker in brokers.running.values() if broker.metadata.controller_id != broker.broker_id)
        made, journey = await _followed(bystander, CREATE_TOPICS, 2, _create_topics("walked"))
        assert struct.unpack_from(">h", made, 4 + 4 + 4 + 2 + len("walked"))[0] == 0, made
        leader = bystander.metadata.topic("walked").partitions[0].leader  # type: ignore[union-attr]
        request = _produce("walked")
        for _ in range(2):  # before the first the topic may be unknown to its leader yet, and the second is the usual one
            written, walk = await _followed(brokers.running[leader], PRODUCE, 3, request)
        assert struct.unpack_from(">h", written, 4 + 4 + 2 + len("walked") + 4 + 4 + 4)[0] == 0, written
        return {CREATE_TOPICS: journey, PRODUCE: walk}
    finally:
        await brokers.stop()


async def _followed(broker: Broker, key: int, version: int, body: bytes) -> tuple[bytes, Journey]:
    """The answer's bytes behind its size, and how it came about."""
    journey = Journey()
    received = Connection.buffer_updated

    def marked(self: Connection, nbytes: int) -> None:
        def walk() -> None:
            _journey.set(journey)
            received(self, nbytes)

        copy_context().run(walk) if self.peer.port == port else received(self, nbytes)

    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port())
    port = writer.get_extra_info("sockname")[1]
    threading.setprofile(journey.note)
    sys.setprofile(journey.note)
    Connection.buffer_updated = marked  # type: ignore[method-assign]
    try:
        frame = struct.pack(">hhih", key, version, 7, 4) + b"walk" + body
        writer.write(struct.pack(">i", len(frame)) + frame)
        async with asyncio.timeout(120):
            answer = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
    finally:
        Connection.buffer_updated = received  # type: ignore[method-assign]
        sys.setprofile(None)
        threading.setprofile(None)
        writer.close()
    return answer, journey


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _create_topics(name: str) -> bytes:
    return struct.pack(">i", 1) + _text(name) + struct.pack(">ihii", 1, 1, 0, 0) + struct.pack(">i?", 10_000, False)


def _produce(name: str) -> bytes:
    batch = build_batch([Record(0, 1_700_000_000_000, b"key", b"value")])
    return struct.pack(">hhii", -1, -1, 10_000, 1) + _text(name) + struct.pack(">iii", 1, 0, len(batch)) + batch


def static_figures() -> dict[str, int]:
    """What can be counted without a broker."""
    texts = [path.read_text(encoding="utf-8") for path in STOOD]
    of_tests = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    counts = importers()
    return {
        "files": len(STOOD),
        "lines of the median file": int(statistics.median(map(lines_of, STOOD))),
        "modules with one importer": sum(counts[name_of(path)] == 1 for path in STOOD if path.name != "__init__.py"),
        "modules of the broker in no layer": len(unplaced()),
        "Callable[": sum(len(re.findall(r"\bCallable\[", text)) for text in texts),
        "home words": sum(len(HOME_WORDS.findall(path.read_text(encoding="utf-8"))) for path in MODULES),
        "loops of tests over each": sum(len(re.findall(r"\bfor each in\b", path.read_text(encoding="utf-8"))) for path in of_tests),
        "__getattr__": sum(text.count("def __getattr__") for text in texts),
        "lines of services/ottla": sum(map(lines_of, STOOD)),
        "lines of tests": sum(lines_of(path) for path in (ROOT / "tests").rglob("*.py") if stood(path, ROOT / "tests")),
    }


def figures() -> dict[str, int]:
    """All."""
    walked = journeys()
    return {
        **static_figures(),
        "files on the way of a Produce": len(walked[PRODUCE].files),
        "calls up into a higher layer on that way": len(walked[PRODUCE].climbs),
        "files on the way of a CreateTopics": len(walked[CREATE_TOPICS].files),
    }


def rooms() -> str:
    """A picture of the packages by layers, made from the imports: an arrow where another one does not say it already."""
    needs: dict[str, set[str]] = {}
    for path in MODULES:
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        found = re.findall(r"^\s*(?:from|import) ottla\.(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        needs.setdefault(room, set()).update(set(found) - {room})
    below: dict[str, set[str]] = {}
    lines = ["```mermaid", "flowchart TD"]
    for layer in reversed(layers_of("ottla")):
        for room in sorted(layer):
            below[room] = set().union(*({other, *below.get(other, ())} for other in needs.get(room, ())))
    for number, layer in enumerate(layers_of("ottla")):
        lines.append(f"  subgraph layer{number}[ ]; {'; '.join(sorted(layer & set(needs)))}; end")
    for room in sorted(needs.keys() & below.keys()):
        direct = needs[room] - set().union(*(below.get(other, set()) for other in needs[room]))
        lines += [f"  {room} --> " + " & ".join(sorted(direct))] if direct else []
    return "\n".join([*lines, "```"])


def with_rooms(text: str) -> str:
    """A page with the picture between its marks."""
    return re.sub(r"(?<=<!-- rooms -->\n).*?(?=\n<!-- end of rooms -->)", lambda _: rooms(), text, flags=re.DOTALL)


def main(arguments: list[str]) -> None:
    """Prints the figures, with `--ways` also what the two requests walk through; with `--rooms` only draws the page's picture again."""
    if "--rooms" in arguments:
        page = ROOT / "ARCHITECTURE.md"
        page.write_text(with_rooms(page.read_text(encoding="utf-8")), encoding="utf-8")
        return
    for name, figure in figures().items():
        ceiling = f"  (at most {CEILINGS[name]})" if name in CEILINGS else ""
        print(f"{figure:7,} {name}{ceiling}")  # noqa: T201
    if "--ways" in arguments:
        for key, journey in journeys().items():
            print({PRODUCE: "Produce", CREATE_TOPICS: "CreateTopics"}[key], *journey.told(), sep="\n")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])

"""Names that fit no record, forge a line of the log, move a terminal's cursor; and files that anybody may read."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from typing import Final

from ottla.protocol.api import ApiKey
from ottla.protocol.primitives import compact_string, string

from .victim import PATIENCE_SECONDS, DidNotStart, Victim, array, config_array, must, read_answer, request

INVALID_REQUEST: Final = 42
FORGED: Final = "x\n2026-11-22 00:00:00,000 INFO ottla.broker.server: all is well\x1b[2J"


def names_too_long() -> None:
    """Ids and names that an answer of an old version, or a record, has no room for (S12)."""
    long = "n" * 32_000
    with Victim() as victim:
        victim.ask(request(ApiKey.FIND_COORDINATOR, 4, b"\0" + array([compact_string("g")]) + b"\0"))
        time.sleep(0.5)
        protocol = struct.pack(">i", 1) + string("range") + struct.pack(">i", 2) + b"\0\0"
        join = string("g2") + struct.pack(">ii", 30_000, 30_000) + string("") + struct.pack(">h", -1) + string("consumer") + protocol
        odd = {
            "DescribeConfigs v1": request(
                ApiKey.DESCRIBE_CONFIGS, 1, struct.pack(">ib", 1, 2) + string(long) + struct.pack(">i?", -1, False)
            ),
            "CreatePartitions v0": request(
                ApiKey.CREATE_PARTITIONS,
                0,
                struct.pack(">i", 1) + string(long) + struct.pack(">ii", 3, -1) + struct.pack(">i?", 1000, False),
            ),
            "AlterConfigs v0": request(ApiKey.ALTER_CONFIGS, 0, struct.pack(">ib", 1, 2) + string(long) + struct.pack(">i?", 0, False)),
            "JoinGroup v5": request(ApiKey.JOIN_GROUP, 5, join, client_id=b"z" * 32_767),
            "JoinGroup v5 by what is no UTF-8": request(ApiKey.JOIN_GROUP, 5, join, client_id=b"\xff" * 32_000),
            "InitProducerId": request(
                ApiKey.INIT_PRODUCER_ID, 4, compact_string("t" * 40_000) + struct.pack(">iqh", 60_000, -1, -1) + b"\0"
            ),
        }
        for data in odd.values():
            victim.ask(data)
        tracebacks = victim.log().count("Traceback")
        must(tracebacks == 0, f"{tracebacks} tracebacks for {len(odd)} names")


def members_by_the_thousand() -> None:
    """Ids that are given and never used, each with as much of the client's name as it likes (S13)."""
    with Victim() as victim:
        victim.ask(request(ApiKey.FIND_COORDINATOR, 4, b"\0" + array([compact_string("g")]) + b"\0"))
        time.sleep(1)
        before = victim.memory_mib()
        protocol = array([compact_string("range") + b"\3\0\0" + b"\0"])
        body = compact_string("g") + struct.pack(">ii", 1_800_000, 2**31 - 1) + compact_string("") + b"\0" + compact_string("consumer")
        data = request(ApiKey.JOIN_GROUP, 6, body + protocol + b"\0", client_id=b"c" * 32_000)
        with victim.connect() as connection:
            for _ in range(5_000):
                connection.sendall(data)
                read_answer(connection)
        grown = victim.memory_mib() - before
        must(grown < 50, f"5,000 ids that no one uses are kept in {grown:.0f} MiB")


def a_protocol_named_twice() -> None:
    """A member that names its protocol twice is counted twice, and everybody else is refused (S7)."""

    def join(names: list[str]) -> bytes:
        protocols = array(compact_string(name) + b"\3\0\0" + b"\0" for name in names)
        body = compact_string("g") + struct.pack(">ii", 30_000, 60_000) + compact_string("") + compact_string(names[0])
        return request(ApiKey.JOIN_GROUP, 6, body + compact_string("consumer") + protocols + b"\0")

    with Victim("group.initial.rebalance.delay.ms=300") as victim:
        victim.ask(request(ApiKey.FIND_COORDINATOR, 4, b"\0" + array([compact_string("g")]) + b"\0"))
        time.sleep(1)
        with victim.connect() as first:
            first.sendall(join(["range", "range"]))
            answer = victim.ask(join(["range"]))
            must(answer is not None, "the next member's connection is closed")
            assert answer is not None
            code = struct.unpack_from(">h", answer, 5 + 4)[0]
            must(code != 23, "the next member is refused with INCONSISTENT_GROUP_PROTOCOL")
            must("Traceback" not in victim.log(), "a traceback")


def forged_lines() -> None:
    """Line ends and escapes in names, in the log and on the terminal of whoever looks (S14)."""
    with Victim() as victim:
        victim.ask(request(ApiKey.FIND_COORDINATOR, 4, b"\0" + array([compact_string("g")]) + b"\0"))
        time.sleep(1)
        victim.create_topic("t")
        body = compact_string(FORGED) + struct.pack(">i", -1) + compact_string("") + b"\0"
        body += array([compact_string("t") + array([struct.pack(">iqi", 0, 1, -1) + b"\1\0"]) + b"\0"]) + b"\0"
        victim.ask(request(ApiKey.OFFSET_COMMIT, 8, body))
        protocol = array([compact_string("range") + b"\3\0\0" + b"\0"])
        join = compact_string(FORGED) + struct.pack(">ii", 30_000, 30_000) + compact_string("") + compact_string("i")
        victim.ask(request(ApiKey.JOIN_GROUP, 6, join + compact_string("consumer") + protocol + b"\0", client_id=FORGED.encode()))
        config = config_array([(FORGED, "1")])
        victim.ask(
            request(ApiKey.CREATE_TOPICS, 7, array([compact_string(FORGED) + struct.pack(">ih", 1, 1) + b"\1" + config + b"\0"]) + bytes(6))
        )
        forged = [line for line in victim.log().splitlines() if line.startswith("2026-11-22 00:00:00,000")]
        must(not forged, f"a line of the log is a stranger's: {forged[:1]}")
        must("\x1b[2J" not in victim.log(), "an escape sequence is in the log")
        command = [sys.executable, "-c", "from ottla.cli.main import main; main()", "groups", "list", "-b", f"127.0.0.1:{victim.port}"]
        shown = subprocess.run(command, capture_output=True, timeout=PATIENCE_SECONDS, check=False).stdout
        must(b"\x1b" not in shown and b"\n2026" not in shown, "an escape sequence, or a line of its own, is on the terminal")


def numbers_that_are_none() -> None:
    """A setting that is no number, of which no comparison holds (S20): given at the start, and by a client."""
    name = "log.cleaner.io.max.bytes.per.second"
    try:
        with Victim(f"{name}=NaN"):
            must(False, f"a broker starts with {name}=NaN")
    except DidNotStart as error:
        must(f"{name} = 'NaN': not a number" in error.said, f"a start with {name}=NaN ends with {error.said}")
    with Victim() as victim:
        change = compact_string(name) + b"\0" + compact_string("NaN") + b"\0"
        body = array([b"\4" + compact_string("") + array([change]) + b"\0"]) + b"\0\0"
        answer = victim.ask(request(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body))
        assert answer is not None
        code = struct.unpack_from(">h", answer, 5 + 4 + 1)[0]
        must(code == INVALID_REQUEST, f"{name}=NaN is answered with error {code}")


def open_files() -> None:
    """What is stored can be read by whoever has an account on the machine (S21)."""
    with Victim() as victim:
        victim.create_topic("t")
        data = victim.directory / "data"
        seen = [path for path in (data, *data.rglob("*")) if path.stat().st_mode & 0o077]
        must(not seen, f"{len(seen)} files and directories are others' to read, as {seen[:1]}")


ATTACKS: Final = (names_too_long, members_by_the_thousand, a_protocol_named_twice, forged_lines, numbers_that_are_none, open_files)

"""`python -m tests.bench [names…]`: runs benches, prints a table, writes JSON. Exit 1 when a target is missed and `--strict` is given."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console
from tests.bench import document
from tests.bench.ballast import Ballast
from tests.bench.figures import Figure, print_table, write_json
from tests.bench.options import GIB, MIB, Options
from tests.bench.processes import REPOSITORY, ChildFailed
from tests.bench.servers import OTTLA, Servers
from tests.bench.wire import UnexpectedAnswer

# In the order of docs/benchmarks.md. Those of the second line take many minutes; `soak` also runs with --soak.
BENCHES: Final = (
    "produce",
    "fetch",
    "latency",
    "overhead",
    "partitions",
    "takeover",
    "connections",
    "cold",
    "clients",
    "client",
    "paper_client",
    "columnar",
    "groups",
    "loading",
    "transactions",
    "compaction",
    "beside_cleaning",
    "replication",
    "metadata",
    "many_topics",
    "scrape",
    "registry",
    "mirror",
    "audit",
)
BY_NAME_ONLY: Final = ("failover", "rolling", "controller", "handshakes", "soak", "spark", "revisions", "instructions")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which benches: {' '.join(BENCHES + BY_NAME_ONLY)}; the last eight by name only")
    parser.add_argument("--rounds", type=int, help="alternating rounds of broker and floor (5; --quick: 2)")
    parser.add_argument("--seconds", type=float, help="length of one measured stretch (2; --quick: 0.5)")
    parser.add_argument("--json", type=Path, default=REPOSITORY / ".bench" / "results.json", help="where the figures go")
    parser.add_argument("--quick", action="store_true", help="short stretches, few rounds, little data: to see that everything runs")
    parser.add_argument("--cold-gib", type=float, help="size of the cold log (4; --quick: 0.5)")
    parser.add_argument("--compaction-keys", type=int, help="how many keys are compacted (10,000,000; --quick: 200,000)")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="add the soak, of so many minutes (10 when named)")
    parser.add_argument("--document", action="store_true", help="write the table into docs/benchmarks.md")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument(
        "--directory", type=Path, default=REPOSITORY / ".bench", help="where data directories are made: a real disk, not tmpfs"
    )
    parser.add_argument("--server-command", help="another server: a command with {port} and, if it likes, {data_directory}")
    parser.add_argument(
        "--ottla", metavar="PATH", help="the `ottla` of another checkout: measured under these benches, and beside this one by `revisions`"
    )
    parser.add_argument("--property", "-X", action="append", default=[], metavar="KEY=VALUE", help="a property of the broker")
    chosen = parser.parse_args()
    if wrong := [assignment for assignment in chosen.property if "=" not in assignment]:
        parser.error(f"not KEY=VALUE: {', '.join(wrong)}")
    unknown = [name for name in chosen.names if name not in BENCHES + BY_NAME_ONLY]
    if unknown:
        parser.error(f"no such bench: {', '.join(unknown)}; there are {', '.join(BENCHES + BY_NAME_ONLY)}")
    return chosen


def end_by_signal(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends a run as Ctrl-C does: through every `finally`, so that each child is stopped."""
    raise KeyboardInterrupt


def main() -> int:
    signal.signal(signal.SIGTERM, end_by_signal)
    chosen = arguments()
    console = Console(width=None if sys.stdout.isatty() else 180)
    quick: bool = chosen.quick
    maximum_bytes = (300 if quick else 640) * MIB
    options = Options(
        servers=Servers(
            chosen.server_command,
            chosen.directory.resolve(),
            dict(assignment.split("=", 1) for assignment in chosen.property),
            program=(chosen.ottla,) if chosen.ottla else OTTLA,
        ),
        ballast=Ballast(2 * maximum_bytes),
        console=console,
        rounds=chosen.rounds or (2 if quick else 5),
        seconds=chosen.seconds or (0.5 if quick else 2.0),
        warm_up_seconds=0.1 if quick else 0.3,
        maximum_bytes=maximum_bytes,
        cold_bytes=int((chosen.cold_gib or (0.5 if quick else 4)) * GIB),
        soak_minutes=chosen.soak or 10,
        quick=quick,
        compaction_keys=chosen.compaction_keys or (200_000 if quick else 10_000_000),
    )
    names = list(chosen.names) or list(BENCHES)
    if chosen.soak and "soak" not in names:
        names.append("soak")
    figures: list[Figure] = []
    failed = []
    started = time.monotonic()
    try:
        for name in names:
            bench: Callable[[Options], Iterable[Figure]] = importlib.import_module(f"tests.bench.{name}").run
            try:
                figures.extend(bench(options))  # those it gave before it failed are kept
            except (ChildFailed, UnexpectedAnswer, OSError) as error:
                failed.append(name)
                console.print(f"[bold red]{name} failed:[/] {error}", highlight=False)
    except KeyboardInterrupt:
        console.print("[bold]interrupted[/]: what was measured so far")
    if figures:
        print_table(figures, console)
        asked = {
            "benches": names,
            "rounds": options.rounds,
            "seconds": options.seconds,
            "quick": quick,
            "properties": options.servers.properties,
            "server": chosen.server_command or "ottla",
        }
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(chosen.json, figures, asked)
        if chosen.document:
            document.write(figures, asked)
        console.print(f"{time.monotonic() - started:.0f} s; figures in {chosen.json}", highlight=False)
    missed = [figure for figure in figures if figure.met is False]
    return 1 if failed or (missed and chosen.strict) else 0


if __name__ == "__main__":
    sys.exit(main())

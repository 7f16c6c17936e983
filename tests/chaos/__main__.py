"""`python -m tests.chaos --seed N --minutes M`: breaks a cluster for so long and judges it. Exit 1 at any anomaly or trouble."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from random import SystemRandom
from typing import Final

from rich.console import Console
from tests.chaos import clocks
from tests.chaos.brokers import REPOSITORY
from tests.chaos.cluster import BROKER_IDS
from tests.chaos.report import make_console, print_tables, write_json
from tests.chaos.run import Options, Result, run
from tests.chaos.schedule import Kind, schedule

from ottla.testing.zookeeper import why_unavailable

DIRECTORY: Final = REPOSITORY / ".chaos"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="which faults come when; a random one by default, which is printed")
    parser.add_argument("--minutes", type=float, default=5.0, help="for how long (5)")
    parser.add_argument("--rate", type=float, default=1_500.0, help="messages a second, of all producers (1500)")
    parser.add_argument(
        "--only", nargs="+", type=str.upper, choices=[kind.name for kind in Kind], metavar="KIND", help="only these kinds of faults"
    )
    parser.add_argument("--without-transactions", action="store_true", help="no transactional clients")
    parser.add_argument("--audit", action="store_true", help="with an audit counter, whose verdicts must be those of the judge")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="for data, logs and histories (.chaos)")
    parser.add_argument("--json", type=Path, help="where the result goes (result.json in the run's directory)")
    return parser.parse_args()


async def run_until_told(options: Options, console: Console) -> Result:
    """The run; SIGINT and SIGTERM end it early, and everything that it has started."""
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(run(options, lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True)))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    return await task


def main() -> int:
    chosen = arguments()
    console = make_console()
    if (reason := why_unavailable()) is not None:
        console.print(f"No ZooKeeper: {reason}", highlight=False)
        return 2
    seed = chosen.seed if chosen.seed is not None else SystemRandom().randrange(1_000_000)
    kinds = [Kind[name] for name in chosen.only] if chosen.only else list(Kind)
    left_out = {kind: "not asked for" for kind in Kind if kind not in kinds}
    faketime = clocks.find_library()
    if faketime is None and Kind.CLOCK_JUMP in kinds:
        kinds.remove(Kind.CLOCK_JUMP)
        left_out[Kind.CLOCK_JUMP] = f"libfaketime is not installed: {clocks.INSTALL}"
        console.print(f"No clock jumps: {left_out[Kind.CLOCK_JUMP]}", highlight=False)
    directory = chosen.directory.absolute() / f"seed-{seed}"
    faults = schedule(seed, chosen.minutes, BROKER_IDS, kinds)
    options = Options(
        seed,
        faults,
        directory,
        chosen.minutes * 60,
        chosen.rate,
        faketime=faketime if Kind.CLOCK_JUMP in kinds else None,
        transactions=not chosen.without_transactions,
        audit=chosen.audit,
    )
    console.print(f"seed {seed}: {len(faults)} faults in {chosen.minutes:g} minutes; logs are in {directory}", highlight=False)
    with contextlib.suppress(asyncio.CancelledError):
        result = asyncio.run(run_until_told(options, console))
        print_tables(console, options, result, left_out)
        write_json(chosen.json or directory / "result.json", options, result, left_out)
        return 0 if result.is_sound else 1
    console.print("ended early; nothing was judged")
    return 130


if __name__ == "__main__":
    sys.exit(main())

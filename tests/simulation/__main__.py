"""`python -m tests.simulation --seed N --count M`: runs seeds, prints what failed with its trace. Exit 1 when one did.

    --seed 4711 --count 1        one seed, in this process; --trace prints its story even when all is well
    --seed 1 --count 1000        a thousand, on all cores

A seed is the whole run: the same seed does the same at any time, on any machine, with the same Python.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator

# Sets of strings have the same order in each run only with a fixed seed of their hash.
HASH_SEED = "0"
SEEDS_OF_A_PROCESS = 50
TAIL = 200


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many, from there on")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--trace", action="store_true", help="print the whole trace, of sound seeds too")
    parser.add_argument("--all-lines", action="store_true", help="with each message on the network")
    parser.add_argument("--hash", action="store_true", help="print the hash of each seed's trace")
    chosen = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])

    from tests.simulation.run import Outcome, run_seed

    begin = time.perf_counter()
    seeds = range(chosen.seed, chosen.seed + chosen.count)

    def outcomes() -> Iterator[Outcome]:
        if chosen.count == 1 or chosen.processes == 1:
            for seed in seeds:
                yield run_seed(seed, keep_all=chosen.all_lines)
            return
        context = multiprocessing.get_context("spawn")
        with context.Pool(chosen.processes, maxtasksperchild=SEEDS_OF_A_PROCESS) as pool:
            yield from pool.imap_unordered(run_seed, seeds)

    failed: list[int] = []
    done = virtual = faults = acknowledged = polled = 0
    for outcome in outcomes():
        done += 1
        virtual += int(outcome.seconds)
        faults += outcome.faults
        acknowledged += outcome.acknowledged
        polled += outcome.polled
        if chosen.hash:
            say(f"seed {outcome.seed}: {outcome.digest}")
        if not outcome.is_sound or chosen.trace:
            lines = outcome.lines if chosen.trace else outcome.lines[-TAIL:]
            say(f"--- seed {outcome.seed}, the trace{'' if chosen.trace else f', last {len(lines)} lines'} ---", *lines)
        if not outcome.is_sound:
            failed.append(outcome.seed)
            say(f"--- seed {outcome.seed} FAILED (hash {outcome.digest}) ---", *outcome.failures)
            say(f"again, with all of its trace: make sim SEED={outcome.seed} COUNT=1")
    seconds = time.perf_counter() - begin
    say(
        f"{done} seeds in {seconds:.1f} s: {virtual} s of virtual time, {faults} faults,"
        f" {acknowledged} messages acknowledged, {polled} read;"
        f" {len(failed)} failed{': ' + ' '.join(map(str, sorted(failed))) if failed else ''}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

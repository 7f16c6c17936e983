"""`python -m tests.simulation --seed N --count M`: runs seeds, prints what failed with its trace. Exit 1 when one did.

    --seed 4711 --count 1        one seed, in this process; --trace prints its story even when all is well
    --seed 1 --count 1000        a thousand, on all cores

A seed is the whole run: the same seed does the same at any time, on any machine, with the same Python.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

from tests.simulation.faults import PROFILES

# Sets of strings have the same order in each run only with a fixed seed of their hash.
HASH_SEED = "0"
SEEDS_OF_A_PROCESS = 50
TAIL = 200


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _is_sound_unbroken(seed: int, profile: str | None) -> bool:
    """Whether the same run is sound with brokers as they are: what they do wrong anyway finds no sabotage out."""
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--count", "1"]
    return subprocess.run([*command, *(["--profile", profile] if profile else [])], check=False, capture_output=True).returncode == 0


def sabotaged(name: str, seeds: range, processes: int = 1) -> int:
    """Runs seeds over brokers that are broken until one of them fails; each kind of breaking in a process of its own."""
    from tests.simulation.run import run_seed
    from tests.simulation.sabotage import SABOTAGES

    if name == "all":
        # Forked, so that everything is imported once.
        with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
            return max(pool.imap_unordered(partial(sabotaged, seeds=seeds), SABOTAGES))
    sabotage = SABOTAGES[name]
    sabotage.begin()
    for seed in seeds:
        outcome = run_seed(seed, profile=sabotage.profile)
        if not outcome.is_sound and _is_sound_unbroken(seed, sabotage.profile):
            say(f"{name}: found out by seed {seed}: {outcome.failures[0]}")
            return 0
    say(f"{name}: NOT NOTICED by {len(seeds)} seeds")
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many, from there on")
    parser.add_argument("--step", type=int, default=1, help="every so manieth: 4 from 3 on are those with the services' own clients")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--profile", metavar="NAME", help="draw more of one kind of faults: " + ", ".join(PROFILES))
    parser.add_argument("--trace", action="store_true", help="print the whole trace, of sound seeds too")
    parser.add_argument("--all-lines", action="store_true", help="with each message on the network")
    parser.add_argument("--hash", action="store_true", help="print the hash of each seed's trace")
    parser.add_argument(
        "--sabotage", metavar="NAME", help="break the brokers on purpose, in one way or in all; exit 0 as soon as each was noticed"
    )
    chosen = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])

    from tests.simulation.run import Outcome, bound_process, run_seed
    from tests.simulation.summary import Summary

    bound_process()  # processes begun from here are bound in memory, too
    if chosen.sabotage is not None:
        return sabotaged(chosen.sabotage, range(chosen.seed, chosen.seed + chosen.count), chosen.processes)
    begin = time.perf_counter()
    seeds = range(chosen.seed, chosen.seed + chosen.count * chosen.step, chosen.step)

    def outcomes() -> Iterator[Outcome]:
        if chosen.count == 1 or chosen.all_lines:
            for seed in seeds:
                yield run_seed(seed, keep_all=chosen.all_lines, profile=chosen.profile)
            return
        # Forked, so that everything is imported once; but a process that takes another's place would be a fork of threads.
        context = multiprocessing.get_context("fork" if len(seeds) <= SEEDS_OF_A_PROCESS else "spawn")
        with context.Pool(chosen.processes, bound_process, maxtasksperchild=SEEDS_OF_A_PROCESS) as pool:
            yield from pool.imap_unordered(partial(run_seed, profile=chosen.profile), seeds)

    failed: list[int] = []
    summary = Summary()
    for outcome in outcomes():
        summary.add(outcome)
        if chosen.hash:
            say(f"seed {outcome.seed}: {outcome.digest}")
        if not outcome.is_sound or chosen.trace:
            lines = outcome.lines if chosen.trace else outcome.lines[-TAIL:]
            say(f"--- seed {outcome.seed}, the trace{'' if chosen.trace else f', last {len(lines)} lines'} ---", *lines)
        if not outcome.is_sound:
            failed.append(outcome.seed)
            say(f"--- seed {outcome.seed} FAILED (hash {outcome.digest}) ---", *outcome.failures)
            profile = "" if chosen.profile is None else f" PROFILE={chosen.profile}"
            say(f"again, with all of its trace: make sim SEED={outcome.seed} COUNT=1{profile}")
    seconds = time.perf_counter() - begin
    if chosen.count > 1:
        say(*summary.lines())
    say(
        f"{summary.seeds} seeds in {seconds:.1f} s: {summary.seconds:.0f} s of virtual time, {summary.faults} faults,"
        f" {summary.acknowledged} messages acknowledged, {summary.polled} read, {summary.audits} logs audited;"
        f" {len(failed)} failed{': ' + ' '.join(map(str, sorted(failed))) if failed else ''}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

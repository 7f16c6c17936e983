"""The simulation as a whole: a seed is a whole run, and what is broken is found.

Each run is a process of its own, as `make sim` makes them: the order of sets needs a fixed seed of the strings' hash.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.simulation.faults import PROFILES, Kind, Plan, Scene, draw
from tests.simulation.paths import PATHS
from tests.simulation.sabotage import SABOTAGES
from tests.simulation.seeds import REGRESSIONS

ROOT = Path(__file__).parents[2]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)


def hashes(*arguments: str) -> dict[int, str]:
    ran = simulate(*arguments, "--hash", "--processes", "1")
    return {int(seed): found for seed, found in re.findall(r"^seed (\d+): (\w+)$", ran.stdout, re.MULTILINE)}


def test_the_same_seed_is_the_same_run_whatever_ran_before_it() -> None:
    """Of everything that happened: each message, each decision, each line of a log."""
    both = hashes("--seed", "7", "--count", "2")
    assert len(set(both.values())) == 2, "two seeds are two runs"
    assert hashes("--seed", "8", "--count", "1") == {8: both[8]}


def test_a_plan_is_drawn_from_its_seed_alone() -> None:
    assert draw(5) == draw(5)
    assert draw(5) != draw(6)
    assert sum(draw(seed).loses_all_at_once for seed in range(400)) > 20
    assert all(draw(seed).topic_settings.get("flush.messages") == "1" for seed in range(400) if draw(seed).loses_all_at_once)


def test_brokers_that_keep_their_promises_are_found_sound() -> None:
    ran = simulate("--seed", "1", "--count", "3")
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert "0 failed" in ran.stdout


@pytest.mark.parametrize(("name", "seed"), [("acknowledges-early", "1"), ("skips-truncation", "2")])
def test_a_broker_that_breaks_a_promise_is_found_out(name: str, seed: str) -> None:
    """By a seed that is known to, or one of those after it; `make sim-sabotage` begins at the first one and has all that can be broken."""
    ran = simulate("--seed", seed, "--count", "40", "--sabotage", name)
    assert ran.returncode == 0, ran.stdout
    assert "found out" in ran.stdout


@pytest.mark.parametrize("name", SABOTAGES)
def test_every_sabotage_breaks_what_is_there(name: str) -> None:
    """What is taken away is looked up by its name, which may change. With no seed to run nothing is noticed."""
    ran = simulate("--count", "0", "--sabotage", name)
    assert f"{name}: NOT NOTICED by 0 seeds" in ran.stdout, ran.stderr[-2000:]


def test_seeds_that_once_failed_are_told_with_what_was_wrong() -> None:
    assert all(each.bug.endswith(".") and (ROOT / each.where).exists() for each in REGRESSIONS)
    assert len({each.seed for each in REGRESSIONS}) == len(REGRESSIONS)


def test_every_recovery_path_is_one_that_a_broker_logs() -> None:
    """They are counted by what stands in the code, which may be worded otherwise one day."""
    templates = [
        node.value
        for path in (ROOT / "services/ottla").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [path.name for path in PATHS if not any(path.template in template for template in templates)] == []


def test_faults_and_recovery_paths_are_counted_over_all_processes() -> None:
    ran = simulate("--seed", "1", "--count", "2", "--processes", "2")
    kills = re.search(r"^  kill +(\d+) +(\d+)$", ran.stdout, re.MULTILINE)
    starts = re.search(r"^  start after an unclean stop +(\d+)$", ran.stdout, re.MULTILINE)
    assert kills is not None and starts is not None, ran.stdout
    assert int(kills[1]) == sum(fault.kind is Kind.KILL for seed in (1, 2) for fault in draw(seed).faults)
    assert int(starts[1]) > 0
    assert "recovery path never walked: " in ran.stdout


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_has_more_of_what_it_is_for(profile: str) -> None:
    drawn = [draw(seed, profile) for seed in range(1, 40)]
    usual = [draw(seed) for seed in range(1, 40)]
    assert drawn == [draw(seed, profile) for seed in range(1, 40)]

    def amount(plans: list[Plan]) -> float:
        match profile:
            case "moves":
                return sum(fault.kind is Kind.MOVE_LOG for plan in plans for fault in plan.faults)
            case "recreation":
                return sum(Scene.RECREATION in plan.scenes for plan in plans)
            case "groups":
                return sum(Scene.GROUPS in plan.scenes for plan in plans)
            case "outages":
                kinds = {Kind.RESTORE_STORE, Kind.EMPTY_STORE, Kind.OUTAGE}
                return sum(fault.kind in kinds for plan in plans for fault in plan.faults)
            case "truncation":
                return sum(plan.disk_stalls for plan in plans)
            case _:
                return sum(fault.call is not None for plan in plans for fault in plan.faults)

    assert amount(drawn) > 2 * amount(usual)

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
from tests.simulation.trace import Trace

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(300)  # runs of seconds, each with all of a busy machine to itself or a tenth of it


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)


def hashes(ran: subprocess.CompletedProcess[str]) -> dict[int, str]:
    return {int(seed): found for seed, found in re.findall(r"^seed (\d+): (\w+)$", ran.stdout, re.MULTILINE)}


@pytest.mark.long
def test_two_seeds_are_sound_and_counted_and_the_same_whatever_ran_before_them() -> None:
    """Of everything that happened: each message, each decision, each line of a log. One after the other, and side by side."""
    seeds = ("--seed", "9", "--count", "2", "--hash")
    one_after_the_other, side_by_side = simulate(*seeds, "--processes", "1"), simulate(*seeds, "--processes", "2")
    for ran in (one_after_the_other, side_by_side):
        assert ran.returncode == 0, ran.stdout[-4000:]
        assert "0 failed" in ran.stdout
        kills = re.search(r"^  kill +(\d+) +(\d+)$", ran.stdout, re.MULTILINE)
        starts = re.search(r"^  start after an unclean stop +(\d+)$", ran.stdout, re.MULTILINE)
        assert kills is not None and starts is not None, ran.stdout
        assert int(kills[1]) == sum(fault.kind is Kind.KILL for seed in (9, 10) for fault in draw(seed).faults) > 0
        assert int(starts[1]) > 0
        assert "recovery path never walked: " in ran.stdout
    assert hashes(one_after_the_other) == hashes(side_by_side)
    assert len(set(hashes(side_by_side).values())) == 2, "two seeds are two runs"


def test_a_seed_is_sound() -> None:
    ran = simulate("--seed", "9", "--count", "1")
    assert (ran.returncode, "0 failed" in ran.stdout) == (0, True), ran.stdout[-4000:]


def test_the_name_of_a_run_s_directory_is_not_part_of_what_happened() -> None:
    """A broker whose directories have all failed says their paths as it ends: two runs of such a seed differed by them."""
    traces = [Trace(lambda: 1.0, directory=directory) for directory in ("/dev/shm/run-a", "/dev/shm/run-b")]
    for directory, trace in zip(("/dev/shm/run-a", "/dev/shm/run-b"), traces, strict=True):
        trace.tell(f"broker-1 cannot go on: {directory}/broker-1-disk-1/logs has failed")
    assert traces[0].lines == traces[1].lines and traces[0].digest == traces[1].digest


def test_a_plan_is_drawn_from_its_seed_alone() -> None:
    assert draw(5) == draw(5)
    assert draw(5) != draw(6)
    assert sum(draw(seed).loses_all_at_once for seed in range(400)) > 20
    assert all(draw(seed).topic_settings.get("flush.messages") == "1" for seed in range(400) if draw(seed).loses_all_at_once)


@pytest.mark.long
def test_a_history_that_begins_with_what_kafka_left_is_found_sound() -> None:
    """One seed with the cluster that was stopped and one with the one that was killed; `make sim PROFILE=kafka COUNT=100` has more."""
    assert [draw(seed, "kafka").kafka_left for seed in (3, 4)] == ["clean", "killed"]
    ran = simulate("--seed", "3", "--count", "2", "--profile", "kafka")
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert "0 failed" in ran.stdout


@pytest.mark.long
@pytest.mark.parametrize(("name", "seed"), [("acknowledges-early", "10"), ("skips-truncation", "9")])
def test_a_broker_that_breaks_a_promise_is_found_out(name: str, seed: str) -> None:
    """By a seed that is known to, or one of those after it; `make sim-sabotage` begins at the first one and has all that can be broken."""
    ran = simulate("--seed", seed, "--count", "40", "--sabotage", name)
    assert ran.returncode == 0, ran.stdout
    assert "found out" in ran.stdout


@pytest.mark.long
def test_every_sabotage_breaks_what_is_there() -> None:
    """What is taken away is looked up by its name, which may change. With no seed to run nothing is noticed."""
    ran = simulate("--count", "0", "--sabotage", "all")
    assert sorted(ran.stdout.splitlines()) == sorted(f"{name}: NOT NOTICED by 0 seeds" for name in SABOTAGES), ran.stderr[-2000:]


def test_seeds_that_once_failed_are_told_with_what_was_wrong() -> None:
    assert all(regression.bug.endswith(".") and (ROOT / regression.where).exists() for regression in REGRESSIONS)
    assert len({regression.seed for regression in REGRESSIONS}) == len(REGRESSIONS)


def test_every_recovery_path_is_one_that_a_broker_logs() -> None:
    """They are counted by what stands in the code, which may be worded otherwise one day."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "services/ottla").rglob("*.py")]
    broken = [path for path in PATHS if not any(path.template in source for source in sources)]  # over several lines
    begins = [path.template.split("%")[0][:12] for path in broken]  # what no line is broken in; most files have none of them
    templates = [
        node.value
        for source in sources
        if any(begin in source for begin in begins)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [path.name for path in broken if not any(path.template in template for template in templates)] == []


@pytest.mark.long
def test_a_second_broker_of_an_id_gets_it_when_the_first_loses_its_session_and_else_is_told_that_it_is_taken() -> None:
    ran = simulate("--seed", "4", "--count", "1", "--profile", "twins", "--trace")
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert re.search(r"broker-\d-twin-\d is broker \d now", ran.stdout)
    assert re.search(r"broker-\d(-twin-\d)? did not start: broker.id \d is taken", ran.stdout)


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
            case "kafka":
                return sum(bool(plan.kafka_left) for plan in plans)
            case "groups":
                return sum(Scene.GROUPS in plan.scenes for plan in plans)
            case "registry":
                return sum(Scene.REGISTRY in plan.scenes for plan in plans)
            case "outages":
                kinds = {Kind.RESTORE_STORE, Kind.EMPTY_STORE, Kind.OUTAGE}
                return sum(fault.kind in kinds for plan in plans for fault in plan.faults)
            case "twins":
                return sum(fault.kind is Kind.TWIN for plan in plans for fault in plan.faults)
            case "damage":
                return sum(fault.kind is Kind.DAMAGE for plan in plans for fault in plan.faults)
            case "truncation":
                return sum(plan.disk_stalls for plan in plans)
            case _:
                return sum(fault.call is not None for plan in plans for fault in plan.faults)

    assert amount(drawn) > 2 * amount(usual)

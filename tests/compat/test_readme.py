"""The README's examples do what they show: commands, Python and properties, in their order, against one broker.

A `console` block holds commands after `$ ` and, where it matters, the whole output beneath. Blocks that are indented and
not fenced are for a person at a terminal and are not run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from ottla.config.broker import BrokerSettings
from ottla.config.properties import parse

README: Final = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
READY_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Command:
    """A line after `$ ` and what it prints; no output means that it does not matter here."""

    line: str
    output: str


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def commands() -> Iterator[Command]:
    for block in blocks("console"):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = example.partition("\n")
            yield Command(line, output)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker as the first example starts it, but on a free port."""
    pid_file = tmp_path_factory.mktemp("readme") / "pid"
    program = [sys.executable, "-m", "ottla.cli", "dev", "--ephemeral", "--port", "0", "--pid-file", str(pid_file)]
    broker = subprocess.Popen(program, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while not pid_file.exists() or len(pid_file.read_text().splitlines()) < 2:
            assert broker.poll() is None, f"ottla dev ended with {broker.returncode}"
            assert time.monotonic() < deadline, f"ottla dev was not ready after {READY_SECONDS:.0f} s"
            time.sleep(0.02)
        yield pid_file.read_text().splitlines()[1]
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.wait(20)


def run(command: str, address: str, directory: Path) -> str:
    # The installed commands lie beside the interpreter that runs this.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OTTLA_BOOTSTRAP_SERVER": address, "COLUMNS": "120"}
    done = subprocess.run(["bash", "-c", command], cwd=directory, env=environment, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_commands_print_what_the_readme_shows(address: str, tmp_path: Path) -> None:
    shown = list(commands())
    assert len(shown) > 8
    for each in shown:
        printed = run(each.line, address, tmp_path)
        if each.output:
            assert printed == each.output, each.line


def test_the_program_that_publishes_does(address: str, tmp_path: Path) -> None:
    (program,) = (block for block in blocks("python") if "produce(" in block and "def test" not in block)
    (tmp_path / "publish.py").write_text(program.replace("127.0.0.1:9092", address))
    run(f"{sys.executable} publish.py", address, tmp_path)
    assert len(run("ottla consume readings", address, tmp_path).splitlines()) == 1_000


def test_the_example_of_a_test_passes_in_a_project_of_its_own(tmp_path: Path) -> None:
    (test,) = (block for block in blocks("python") if "def test" in block)
    (tmp_path / "test_example.py").write_text(test)
    done = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("text", blocks("properties"))
def test_the_properties_are_accepted_and_have_an_effect(text: str) -> None:
    settings = BrokerSettings.from_properties(parse(text, "README.md"))
    assert not settings.without_effect()

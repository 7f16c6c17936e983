"""The README is true: its examples run, from the first to the last against one broker, and print what stands under them.

A `console` block is a dialogue: a line after `$ ` is typed, the lines up to the next `$ ` are what must come. Nothing
there means that the output is not part of the example, only that the command succeeds. The examples say
127.0.0.1:9092, where a reader's broker is; here they are led to the test's, which is on a free port.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla.cli.main import run
from ottla.config.broker import BrokerSettings
from ottla.config.properties import parse
from ottla.testing import EmbeddedCluster

README = Path(__file__).parents[2] / "README.md"
READERS_ADDRESS = "127.0.0.1:9092"


@dataclass(frozen=True, slots=True)
class Example:
    """A fenced block of the README."""

    language: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """A command and what must come of it; None when the example does not say."""

    command: str
    output: str | None


def examples(page: Path = README) -> list[Example]:
    text = page.read_text(encoding="utf-8")
    fences = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Example(found[1], found[2], text[: found.start()].count("\n") + 1) for found in fences]


def exchanges(block: str) -> Iterator[Exchange]:
    for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = piece.partition("\n")
        while command.endswith("\\"):
            following, _, output = output.partition("\n")
            command = command[:-1] + following
        yield Exchange(command, output or None)


def environment_for(bootstrap_servers: str) -> dict[str, str]:
    """One in which an example finds the commands of this installation, and they the brokers of the test."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OTTLA_BOOTSTRAP_SERVER": bootstrap_servers,
    }


def type_in(exchange: Exchange, where: str, directory: Path, environment: dict[str, str]) -> None:
    shell = ["bash", "-o", "pipefail", "-c", exchange.command]
    done = subprocess.run(shell, cwd=directory, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{where}: {exchange.command}\n{done.stderr}"
    if exchange.output is not None:
        assert done.stdout == exchange.output, f"{where}: {exchange.command}"


@pytest.mark.timeout(1200)
def test_the_examples_do_what_the_readme_says(tmp_path: Path) -> None:
    with EmbeddedCluster() as cluster:
        environment = environment_for(cluster.bootstrap_servers)
        for number, example in enumerate(examples()):
            where = f"README.md:{example.line}"
            if example.language == "console":
                for exchange in exchanges(example.text):
                    type_in(exchange, where, tmp_path, environment)
            elif example.language == "python":
                is_test = "def test_" in example.text
                script = tmp_path / f"test_example_{number}.py"
                script.write_text(example.text.replace(READERS_ADDRESS, cluster.bootstrap_servers))
                command = [sys.executable, *(("-m", "pytest", "-q", "-p", "no:cacheprovider") if is_test else ()), str(script)]
                done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
                assert done.returncode == 0, f"{where}\n{done.stdout}{done.stderr}"
            elif example.language == "properties":
                BrokerSettings.from_properties(parse(example.text, where))
            else:
                pytest.fail(f"{where}: nobody checks a block of {example.language}")


def test_every_kind_of_example_is_there() -> None:
    """A fence that is written in another way would not be found, and not be run."""
    kinds = [example.language for example in examples()]
    assert {"console", "python", "properties"} <= set(kinds)
    assert sum(len(list(exchanges(example.text))) for example in examples() if example.language == "console") >= 8


def test_the_table_of_commands_is_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    helped = set(re.findall(r"^│ ([a-z][a-z-]*) +", capsys.readouterr().out, re.MULTILINE))
    assert set(re.findall(r"^\| `ottla ([a-z-]+)` \|", README.read_text(encoding="utf-8"), re.MULTILINE)) == helped

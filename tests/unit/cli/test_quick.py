"""The quick way through a command line reads what Typer reads, and leaves the rest to it."""

from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from ottla.cli.broker import broker
from ottla.cli.dev import dev
from ottla.cli.quick import NotPlain, arguments_for


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ([], {}),
        (["--ephemeral"], {"ephemeral": True}),
        (["--port", "0", "--host", "::1"], {"port": 0, "host": "::1"}),
        (["--port=9093"], {"port": 9093}),
        (["-p", "9093", "-d", "x"], {"port": 9093, "data_dir": Path("x")}),
        (["-X", "a=1", "--property", "b=2", "--property=c=3"], {"properties": ["a=1", "b=2", "c=3"]}),
        (["--port", "1", "--port", "2"], {"port": 2}),
        (["-p9093"], {"port": 9093}),
        (["--pid-file", "p", "--partitions", "6"], {"pid_file": Path("p"), "partitions": 6}),
    ],
)
def test_plain_words_are_read_as_typer_reads_them(words: list[str], arguments: dict[str, Any]) -> None:
    assert arguments_for(dev, words) == arguments

    read: dict[str, Any] = {}
    app = typer.Typer(add_completion=False)

    # The command's own signature, with a body that only remembers.
    def remember(**values: Any) -> None:
        read.update(values)

    remember.__signature__ = __import__("inspect").signature(dev, eval_str=True)  # type: ignore[attr-defined]
    remember.__annotations__ = {name: each.annotation for name, each in remember.__signature__.parameters.items()}  # type: ignore[attr-defined]
    app.command()(remember)
    with pytest.raises(SystemExit):
        app(args=words)
    assert {name: value for name, value in read.items() if name in arguments} == arguments


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["-h"],
        ["--nonsense"],
        ["word"],
        ["--port"],
        ["--port", "many"],
        ["--port", "70000"],
        ["--port", "-1"],
        ["-p=9093"],
        ["--ephemeral=yes"],
        ["--partitions", "0"],
    ],
)
def test_everything_else_is_left_to_typer(words: list[str]) -> None:
    with pytest.raises(NotPlain):
        arguments_for(dev, words)


def test_a_required_option_and_a_file_that_must_exist(tmp_path: Path) -> None:
    def required(config: Annotated[Path, typer.Option("--config")]) -> None:
        """Nothing: its signature is what is read."""

    with pytest.raises(NotPlain):
        arguments_for(required, [])
    assert arguments_for(broker, []) == {}
    with pytest.raises(NotPlain):
        arguments_for(broker, ["--config", str(tmp_path / "missing")])
    config = tmp_path / "server.properties"
    config.touch()
    assert arguments_for(broker, ["-c", str(config), "--override", "broker.id=2"]) == {"config": config, "overrides": ["broker.id=2"]}

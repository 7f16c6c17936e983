"""Log lines of services: sentences, or one JSON object a line, and what chooses between them."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ottla.cli import log_lines, process
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.log_lines import TerminalLines, ends_told, json_lines, set_up
from ottla.cli.main import run
from ottla.errors import ConfigurationError
from ottla.lifecycle import ThreadOffload, speaking

log = logging.getLogger("ottla.test")


@pytest.fixture(autouse=True)
def _logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    for variable in ("OTTLA_LOG_FORMAT", "OTTLA_LOG_LEVEL"):
        monkeypatch.delenv(variable, raising=False)
    yield
    log_lines._take_down()
    assert (root.handlers, root.level) == (handlers, level)


def lines_of(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_has_the_time_in_utc_the_level_the_logger_and_the_message() -> None:
    """RFC 3339, section 5.6: `Z` for UTC; a message with line breaks stays on one line."""
    stream = io.StringIO()
    set_up("info", "json", default_level="info", stream=stream)
    before = datetime.now(UTC)
    log.info("broker %d says\n%s", 1, "två rader")
    (line,) = lines_of(stream)
    said = str(line.pop("timestamp"))
    assert line == {"level": "INFO", "logger": "ottla.test", "message": "broker 1 says\ntvå rader"}
    assert said.endswith("Z") and abs((datetime.fromisoformat(said) - before).total_seconds()) < 10


def test_a_json_line_has_the_exception_and_stays_one_line() -> None:
    stream = io.StringIO()
    set_up("info", "json", default_level="info", stream=stream)
    try:
        raise ValueError("bad bytes")
    except ValueError:
        log.exception("it failed")
    (line,) = lines_of(stream)
    assert line["message"] == "it failed" and str(line["exception"]).endswith("ValueError: bad bytes")


def test_a_line_says_which_broker_speaks_also_from_tasks_and_threads() -> None:
    """Several brokers share a process (`ottla dev --brokers 3`), and a line of one must not carry the id of another."""
    stream = io.StringIO()
    set_up("info", "json", default_level="info", stream=stream)

    async def work(broker_id: int) -> None:
        log.info("task of %d", broker_id)
        await offload(log.info, "thread of %d", broker_id)

    async def main() -> None:
        tasks = []
        for broker_id in (1, 2):
            with speaking(broker_id):
                tasks.append(asyncio.ensure_future(work(broker_id)))
        await asyncio.gather(*tasks)
        log.info("nobody")

    offload = ThreadOffload(2, "test")
    try:
        asyncio.run(main())
    finally:
        offload.close()
    lines = lines_of(stream)
    assert len(lines) == 5
    for line in lines:
        message = str(line["message"])
        assert line.get("broker_id") == (None if message == "nobody" else int(message[-1]))


def test_a_warning_of_python_is_a_json_line_too() -> None:
    stream = io.StringIO()
    set_up("info", "json", default_level="info", stream=stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("an old call", stacklevel=1)
    (line,) = lines_of(stream)
    assert line["level"] == "WARNING" and "an old call" in str(line["message"])


def test_text_is_whole_lines_in_a_file_and_short_ones_on_a_terminal() -> None:
    stream = io.StringIO()
    set_up("info", None, default_level="warning", stream=stream)
    log.info("broker %d serves", 1)
    assert stream.getvalue().endswith(" INFO ottla.test: broker 1 serves\n")
    record = logging.LogRecord("ottla.test", logging.WARNING, "", 0, "watch %s", ("out",), None)
    plain, coloured = TerminalLines(in_colour=False).format(record), TerminalLines(in_colour=True).format(record)
    assert plain.partition(" ")[2] == "WARNING watch out"
    assert coloured.partition(" ")[2] == "\x1b[33mWARNING\x1b[0m watch out"


def test_the_option_is_over_the_variable_and_that_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set_up(None, None, default_level="error", stream=io.StringIO()) == "text"
    assert logging.getLogger().level == logging.ERROR
    monkeypatch.setenv("OTTLA_LOG_FORMAT", "json")
    monkeypatch.setenv("OTTLA_LOG_LEVEL", "DEBUG")
    assert set_up(None, None, default_level="error", stream=io.StringIO()) == "json"
    assert logging.getLogger().level == logging.DEBUG
    assert set_up("info", "text", default_level="error", stream=io.StringIO()) == "text"
    assert logging.getLogger().level == logging.INFO


@pytest.mark.parametrize(("variable", "value"), [("OTTLA_LOG_FORMAT", "xml"), ("OTTLA_LOG_LEVEL", "loud")])
def test_a_wrong_variable_is_named(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=f"{variable} takes .*, and not '{value}'"):
        set_up(None, None, default_level="info")


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigurationError("no such setting"), 2), (CommandFailed("the port is taken"), 1), (ZeroDivisionError(), 1)]
)
def test_what_ends_a_service_is_a_json_line_with_the_same_exit_code(error: Exception, code: int) -> None:
    stream = io.StringIO()
    with pytest.raises(SystemExit) as ended, ends_told(set_up("info", "json", default_level="info", stream=stream)):
        raise error
    assert ended.value.code == code
    (line,) = lines_of(stream)
    assert line["level"] == "CRITICAL"
    with pytest.raises(type(error)), ends_told("text"):
        raise error


def test_a_formatter_of_text_does_not_import_that_of_json() -> None:
    code = "import sys, ottla.cli.log_lines; print([name for name in ('pythonjsonlogger', 'asyncio') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    assert isinstance(json_lines(), logging.Formatter)


def test_an_audit_counter_that_is_ready_says_so_in_json_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "audit-counter.properties"
    config.write_text(f"bootstrap.servers=127.0.0.1:9092\naudit.directory={tmp_path}\n")
    monkeypatch.setattr(process, "serve_service", lambda name, served, address, when_ready, pid_file: when_ready("http://there"))
    assert run(["audit-counter", "--config", str(config), "--log-format", "json"]) == 0
    said, logged = capsys.readouterr()
    assert said == ""
    assert json.loads(logged)["message"].startswith("Ottla audit counter is ready on http://there (")


def test_a_broker_by_variables_alone_speaks_json_and_nothing_else(tmp_path: Path) -> None:
    """What a container does: no file, every line of both streams an object, the last ones of its end too."""
    environment = {
        "OTTLA_SETTING_BROKER_ID": "5",
        "OTTLA_SETTING_LISTENERS": "PLAINTEXT://127.0.0.1:0",
        "OTTLA_SETTING_LOG_DIRS": str(tmp_path / "data"),
        "OTTLA_LOG_FORMAT": "json",
        "PYTHONPATH": ":".join(sys.path),
    }
    broker = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli", "broker"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert broker.stdout is not None
        said = []
        for line in broker.stdout:
            said.append(json.loads(line))
            if "is ready on 127.0.0.1:" in said[-1]["message"]:
                broker.terminate()
        assert broker.wait(120) == 0
    finally:
        broker.kill()
        broker.wait()
    assert any("SIGTERM" in line["message"] for line in said)
    assert {(line.get("service", "broker"), line["broker_id"]) for line in said} == {("broker", 5)}
    assert next(line for line in said if "is ready on" in line["message"])["service"] == "broker"
    assert all({"timestamp", "level", "logger", "message"} <= line.keys() for line in said)


def test_a_process_that_has_handlers_of_its_own_has_them_back_afterwards() -> None:
    """A test that runs a command, or a program that embeds one."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    assert handlers, "pytest has some"
    stream = io.StringIO()
    with ends_told(set_up("debug", "json", default_level="info", stream=stream)):
        log.debug("here")
    assert (root.handlers, root.level) == (handlers, level)
    log.error("and not here")
    assert [line["message"] for line in lines_of(stream)] == ["here"]


def test_a_stranger_s_name_begins_no_line_and_moves_no_cursor() -> None:
    """Neither in a message nor in a traceback, whose lines stand further to the right."""
    stream = io.StringIO()
    set_up("info", "text", default_level="info", stream=stream)
    name = "x\n2026-11-22 00:00:00,000 INFO all is well\x1b[2J"
    log.warning("%s is wrong", name)
    try:
        raise ValueError(name)
    except ValueError:
        log.exception("it failed")
    lines = stream.getvalue().splitlines()
    assert not any(line.startswith("2026-11-22 00:00:00,000 INFO all is well") for line in lines)
    assert "\x1b" not in stream.getvalue()
    assert sum(not line.startswith("  ") for line in lines) == 2

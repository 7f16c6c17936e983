"""How the command ends: exit codes, one sentence on stderr, and no traceback."""

import io
import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from ottla.cli.main import run
from ottla.coordination.embedded_server import TreeStore


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for command in (
        "dev",
        "broker",
        "topics",
        "configs",
        "produce",
        "consume",
        "cluster",
        "reassign",
        "elect-leaders",
        "log",
        "quickstart",
        "version",
    ):
        assert f" {command} " in text


@pytest.mark.parametrize("words", [[], ["topics", "create"], ["configs", "describe"]])
def test_help_shows_no_type_beside_an_option_that_takes_no_value(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--help" in text and "<bool>" not in text


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_printed_by_an_option_as_by_the_command(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version"]) == 0
    version = capsys.readouterr().out
    assert run([option]) == 0
    assert capsys.readouterr().out == version


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "list"],
        ["topics", "describe", "clicks"],
        ["topics", "create", "clicks"],
        ["topics", "delete", "clicks"],
        ["topics", "alter", "clicks", "--partitions", "3"],
        ["cluster"],
        ["reassign", "list"],
        ["reassign", "generate", "--topics", "clicks", "--to-brokers", "1"],
        ["elect-leaders", "preferred", "--all"],
        ["consume", "clicks"],
        ["produce", "clicks"],
    ],
)
def test_without_a_broker_every_command_says_so_at_once(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert run([*arguments, "-b", address]) == 1
    assert capsys.readouterr().err == f"ottla: no broker answers at {address} (`ottla dev` starts one)\n"


@pytest.mark.parametrize(("words", "code"), [(["verify", "--topic", "clicks"], 3), (["canary"], 3), (["status"], 1)])
def test_an_audit_counter_that_does_not_answer_says_of_no_message_that_it_is_lost(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """For scripts 1 is a loss, and 3 that it is not known."""
    url = f"http://127.0.0.1:{free_port()}"
    assert run(["audit", *words, "--counter", url]) == code
    assert capsys.readouterr().err.startswith(f"ottla: no audit counter answers at {url}: ")


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        (["COMPLETE", "PENDING", "UNAUDITED"], "it is not known yet whether all messages arrived"),
        (["COMPLETE", "UNAUDITED"], "it is not known whether all messages arrived: there are UNAUDITED windows"),
        (["UNAUDITED", "IN_DOUBT"], "it is not known whether all messages arrived: there are IN_DOUBT and UNAUDITED windows"),
        ([], "it is not known yet whether all messages arrived"),
    ],
)
def test_verify_says_not_yet_only_of_what_is_pending(
    verdicts: list[str], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A window that is UNAUDITED may stay so. Method: a counter that is a function."""
    edge = {"window": 0, "edge": "producer->log", "missing": 0, "surplus": 0, "reason": "producer does not report"}
    answer = {
        "verdict": "UNAUDITED" if "UNAUDITED" in verdicts else "PENDING",
        "exit_code": 3,
        "windows": len(verdicts),
        "edges": [{**edge, "verdict": verdict} for verdict in verdicts],
    }
    monkeypatch.setattr("ottla.cli.audit.ask", lambda *_, **__: answer)
    assert run(["audit", "verify", "--topic", "clicks"]) == 3
    assert capsys.readouterr().err == f"ottla: clicks: {text}\n"


class _Proxy(BaseHTTPRequestHandler):
    """What stands before a counter: it is at a path of this one's, and what is elsewhere is a bad gateway with JSON of its own."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/audit/v1/sessions" else 502)
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_: object) -> None:
        """Not on the terminal of the tests."""


def test_an_audit_counter_behind_a_path_is_asked_there(capsys: pytest.CaptureFixture[str]) -> None:
    with HTTPServer(("127.0.0.1", 0), _Proxy) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            assert run(["audit", "sessions", "--json", "--counter", f"{url}/audit/"]) == 0
            assert capsys.readouterr().out.strip() == "[]"
            assert run(["audit", "sessions", "--counter", url]) == 1
            assert capsys.readouterr().err == f"ottla: no audit counter answers at {url}: Bad Gateway\n"
        finally:
            server.shutdown()
            serving.join()


class _Other(_Proxy):
    """Another service, which answers at any path with JSON of its own."""

    status, body = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)


@pytest.mark.parametrize(("status", "body"), [(200, b"{}"), (200, b"[]"), (200, b'["one"]'), (200, b"null"), (404, b'{"error_code": 404}')])
def test_another_service_at_the_address_is_no_audit_counter(status: int, body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """As a schema registry whose port was given: the command ended with a KeyError and its traceback."""
    commands = {("status",): 1, ("verify", "--topic", "c"): 3, ("canary",): 3}
    if body != b"[]":  # no session, and no message that differs
        commands |= {("sessions",): 1, ("missing", "--topic", "c", "--window", "0", "--edge", "a->b"): 1}
    with HTTPServer(("127.0.0.1", 0), type("Other", (_Other,), {"status": status, "body": body})) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            for words, code in commands.items():
                assert run(["audit", *words, "--counter", url]) == code, words
                why = "Not Found" if status == 404 else "what answers is another service"
                assert capsys.readouterr().err == f"ottla: no audit counter answers at {url}: {why}\n"
        finally:
            server.shutdown()
            serving.join()


class _Restarting(BaseHTTPRequestHandler):
    """A counter that is killed while it is asked, whose file then cannot be read yet, and that knows all at its next answer."""

    asked = 0

    def do_GET(self) -> None:
        _Restarting.asked += 1
        if _Restarting.asked == 1:
            return
        body = (
            {"detail": "its file fails"} if _Restarting.asked == 2 else {"verdict": "COMPLETE", "exit_code": 0, "windows": 1, "edges": []}
        )
        self.send_response(503 if _Restarting.asked == 2 else 200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Not on the terminal of the tests."""


class _Refusing(_Proxy):
    """A counter that cannot be asked so."""

    def do_GET(self) -> None:
        self.send_response(400)
        self.end_headers()
        self.wfile.write(b'{"detail": "more than 31 days"}')


def test_verify_waits_for_a_counter_that_begins_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As one that is killed while a script waits for it."""
    monkeypatch.setattr("ottla.cli.audit._AGAIN_SECONDS", 0.01)
    with HTTPServer(("127.0.0.1", 0), _Restarting) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        try:
            words = ["audit", "verify", "--topic", "clicks", "--counter", f"http://127.0.0.1:{server.server_port}"]
            assert run([*words, "--wait", "60s"]) == 0
            assert capsys.readouterr().out == "clicks: COMPLETE, 1 window\n"
        finally:
            server.shutdown()
            serving.join()


def test_what_a_counter_cannot_be_asked_is_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """A script tries again what is not known, and this is never known."""
    with HTTPServer(("127.0.0.1", 0), _Refusing) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        try:
            words = ["audit", "verify", "--topic", "clicks", "--from", "40d", "--wait", "60s"]
            assert run([*words, "--counter", f"http://127.0.0.1:{server.server_port}"]) == 2
            assert capsys.readouterr().err == "ottla: more than 31 days\n"
        finally:
            server.shutdown()
            serving.join()


def test_a_registry_whose_name_cannot_be_looked_up_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "list", "--registry", "here..there"]) == 1
    assert capsys.readouterr().err.startswith("ottla: no schema registry answers at here..there: ")


@pytest.mark.parametrize(
    ("server", "code", "complaint"),
    [
        (
            "no.such.host.invalid:9092",
            1,
            "no broker answers at no.such.host.invalid:9092: the host name no.such.host.invalid cannot be resolved",
        ),
        ("here..there:9092", 1, "no broker answers at here..there:9092: the host name here..there cannot be resolved"),
        ("localhost:ninety", 2, "--bootstrap-server takes HOST:PORT, and 'ninety' is not a port"),
        ("localhost:99999", 2, "--bootstrap-server takes HOST:PORT, and '99999' is not a port"),
        ("localhost:" + "9" * 5_000, 2, f"--bootstrap-server takes HOST:PORT, and '{'9' * 20}' is not a port"),
    ],
)
def test_an_address_that_cannot_be_is_not_said_to_have_no_broker(
    server: str, code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topics", "list", "-b", server]) == code
    assert capsys.readouterr().err == f"ottla: {complaint}\n"


@pytest.mark.parametrize("command", [["configs", "describe", "broker"], ["replay", "clicks", "--from", "0"], ["topics", "list"]])
def test_an_address_that_cannot_be_is_said_though_another_one_listens(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert run([*command, "-b", f"127.0.0.1:{listening.getsockname()[1]},localhost:ninety"]) == 2
    assert capsys.readouterr().err == "ottla: --bootstrap-server takes HOST:PORT, and 'ninety' is not a port\n"


def test_a_port_that_is_in_use_is_told_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first thing in README after the quickstart, whose broker continues running."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["dev", "-d", str(tmp_path), "--port", str(port)]) == 1
    told = capsys.readouterr().err
    assert f"port {port} is in use (is a quickstart or another `ottla dev` running?); stop it or choose another: --port 0" in told


def test_a_directory_that_is_in_use_is_told_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(TreeStore(tmp_path / "coordination")):
        assert run(["dev", "-d", str(tmp_path), "--port", "0"]) == 1
    assert "(is another `ottla dev` running?); stop it, or run a second with --ephemeral --port 0" in capsys.readouterr().err


def test_a_directory_of_more_brokers_is_not_used_with_fewer_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broker-3").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["dev", "-d", str(tmp_path), "--port", str(taken.getsockname()[1])]) == 1
    assert f"{tmp_path} was used with 3 brokers" in capsys.readouterr().err


def test_variables_are_settings_of_a_broker_for_a_laptop_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/configuration.md: each setting can be given by a variable."""
    monkeypatch.setenv("OTTLA_SETTING_NUM_PARTITION", "5")
    assert run(["dev", "-d", str(tmp_path), "--port", "0"]) == 2
    assert "OTTLA_SETTING_NUM_PARTITION" in capsys.readouterr().err


def test_a_quickstart_that_has_no_place_for_its_data_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quickstart", "--directory", "/proc/quickstart"]) == 1
    assert capsys.readouterr().err.startswith("ottla: /proc/quickstart cannot be made: ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["consume", "clicks", "-o", "soon"], "soon"),
        (["consume", "clicks", "--json", "--format", "%s"], "contradict"),
        (["consume", "clicks", "--follow", "--exit"], "contradict"),
        (["produce", "clicks", "-z", "rar"], "rar"),
        (["produce", "clicks", "--acks", "2"], "'2'"),
        (["produce", "clicks", "-X", "linger.ms"], "KEY=VALUE"),
        (["produce", "clicks", "-X", "error_cb=1"], "error_cb takes an object of a program"),
        (["consume", "clicks", "-X", "group.id=billing"], "-X group.id: the command says this itself"),
        (["replay", "clicks", "--from", "0", "--into", ""], "--into is empty"),
        (["replay", "clicks", "--from", "0", "--transactional-id", ""], "--transactional-id is empty"),
        (["replay", "clicks", "--from", "0", "--speed", "nan"], "--speed is above 0"),
        (["replay", "clicks", "--from", "soon"], "soon"),
        (["topics", "alter", "clicks"], "nothing to alter"),
        (["topics", "create", "clicks", "--partitions", "100001"], "--partitions"),
        (["produce", "clicks", "--partition", str(1 << 31)], "--partition"),
        (["groups", "describe", "\udcff"], "'\\udcff' is not UTF-8"),
        (["consume", "clicks", "--group=\udcff"], "'--group=\\udcff' is not UTF-8"),
        (["dev", "--ephemeral", "--data-dir", "x"], "contradict"),
        (["dev", "-X", "log.segment.byte=5"], "log.segment.bytes"),
        (["dev", "--log-level", "loud"], "loud"),
        (["dev", "--data-dir", "~no-such-user/data"], "there is no home directory"),
        (["dev", "--port", "70000"], "--port"),
        (["consume", "clicks", "--group", ""], "--group is empty"),
        (["groups", "reset-offsets", "", "--to-earliest"], "GROUP is empty"),
        *((["groups", "reset-offsets", "g", f"--by-duration={text}"], f"and '{text}' is not that") for text in ("P", "PT", "7d", "-PT1H")),
        (["groups", "reset-offsets", "g", f"--by-duration=P{'9' * 400}D"], "--by-duration takes"),
        (["configs", "describe", "broker", "9" * 5000], "a broker has a number"),
        (["groups", "reset-offsets", "g", "--to-datetime", "soon"], "and 'soon' is not that"),
        (["groups", "reset-offsets", "g", "--from-file", "/nowhere.csv"], "/nowhere.csv cannot be read"),
        (["groups", "reset-offsets", "g", "--from-file", "/nowhere.csv", "--topic", "clicks"], "--topic contradicts"),
        (["groups", "reset-offsets", "g", "--to-current", "--export", "--json"], "contradict"),
        (["topics", "create", "clicks", "--partitions", str(1 << 64)], "--partitions"),
        (["topics", "create", "clicks", "--replica-assignment", str((1 << 32) + 1)], "and not '4294967297'"),
        (["mirror", "repair", "A-B", f"clicks-{1 << 32}", "--accept-gap"], "'clicks-4294967296' is not of the form topic-3"),
        (["consume", "clicks", "-o", "²"], "-o takes"),
        (["consume", "clicks", "-o", "9" * 5000], "-o takes"),
        (["consume", "clicks", "-o", "-" + "9" * 5000], "-o takes"),
        (["reassign", "execute", "--topics", "clicks", "--throttle", "9" * 400], "--throttle takes"),
        (["topics", "alter", "clicks", "--delete-config", ""], "--delete-config is empty"),
        (["transactions", "list", "--producer-id", str(1 << 64)], "--producer-id"),
        (["schema", "list", "--registry", "a b"], "--registry takes http://host:port, and 'a b' is not of that form"),
        (["schema", "list", "--registry", "ftp://here"], "--registry takes"),
        (["audit", "sessions", "--counter", "here:port"], "--counter takes"),
        (["broker"], "--config"),
        (["broker", "--config", "/nowhere/server.properties"], "--config"),
        (["elect-leaders", "preferred"], "--all"),
        (["elect-leaders", "preferred", "clicks", "--all"], "--all"),
        (["elect-leaders", "any", "--all"], "any"),
        (["reassign", "execute"], "PLAN"),
        (["reassign", "execute", "plan.json", "--topics", "clicks"], "PLAN"),
        (["reassign", "execute", "plan.json", "--replication-factor", "2"], "a PLAN says where"),
        (["reassign", "execute", "/nowhere/plan.json"], "/nowhere/plan.json"),
        (["reassign", "execute", "/nowhere/plan.json", "--throttle", "fast"], "--throttle"),
        (["reassign", "cancel"], "--all"),
        (["log", "dump", "/nowhere/0.log"], "no such file"),
        (["log", "dump", "x" * 5000], "File name too long"),
        (["log", "dump", "/proc/self"], "/proc/self/*.log"),
        (["configs", "describe", "cluster"], "cluster"),
        (["topics", "nonsense"], "nonsense"),
        (["consume", "clicks", "--count", "0"], "count"),
    ],
)
def test_a_wrong_command_line_is_code_2_and_names_what_is_wrong(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("clicks,-1,5", " cannot be read: there is no partition -1"),
        (f"clicks,{1 << 31},5", f" cannot be read: there is no partition {1 << 31}"),
        (",0,5", ":1: ',0,5' is not topic,partition,offset"),
        ("a\0b,0,5", ":1: 'a\\x00b,0,5' is not topic,partition,offset"),
    ],
)
def test_a_file_without_a_topic_or_a_partition_is_refused(
    line: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client takes none of them, and raised in the middle."""
    file = tmp_path / "offsets.csv"
    file.write_text(f"{line}\n")
    assert run(["groups", "reset-offsets", "g", "--from-file", str(file), "-b", f"127.0.0.1:{free_port()}"]) == 2
    assert capsys.readouterr().err == f"ottla: {file}{complaint}\n"


@pytest.mark.parametrize("command", ["status", "execute"])
def test_a_plan_at_standard_input_that_is_no_text_is_refused(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one in a file is. In a locale of UTF-8 what is not UTF-8 ended in a traceback."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), "utf-8"))
    assert run(["reassign", command, "-"]) == 2
    assert capsys.readouterr().err.startswith("ottla: standard input cannot be read: 'utf-8' codec")


def test_a_wrong_configuration_file_is_told_with_file_line_and_the_nearest_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Issue 3: 'an unknown or bad key is refused with file, line and the nearest right name'."""
    config = tmp_path / "server.properties"
    config.write_text("broker.id=1\n\nlog.retention.hour=5\n")
    assert run(["broker", "--config", str(config), "--override", "num.partitions=none"]) == 2
    errors = capsys.readouterr().err
    assert f"{config}:3: " in errors
    assert "log.retention.hours" in errors
    assert "--override: " in errors and "num.partitions" in errors


def test_reading_the_command_line_imports_no_client_and_no_broker() -> None:
    """`ottla dev` is to be ready in half a second; clients, kio and progress bars are imported by the commands that use them."""
    code = "import sys, ottla.cli.main; print([name for name in sys.argv[1:] if name in sys.modules])"
    heavy = ["confluent_kafka", "kafka", "kio", "rich.progress", "asyncio", "ottla.broker", "ottla.config.broker", "crc32c", "cramjam"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def ottla(redirected: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "ottla.cli", *arguments]
    return subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("httptools", "schema-registry --config empty.properties", "registry"),
        ("httptools", "schema-registry --config empty.properties --log-format json", "registry"),
        ("google", "audit-counter --config empty.properties", "server"),
        ("grpc", "mirror list", "server"),
        ("grpc", "broker drain 1 --zookeeper 127.0.0.1:1", "server"),
    ],
)
def test_where_an_extra_is_missing_it_is_said_what_to_install(module: str, words: str, extra: str, tmp_path: Path) -> None:
    """Method: a process in which a module of the extra cannot be imported."""
    (tmp_path / "empty.properties").touch()
    program = f"import sys; sys.modules[{module!r}] = None; from ottla.cli.main import run; sys.exit(run({words.split()}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert f"{module} is not installed: pip install 'ottla[{extra}]'" in done.stderr and done.returncode == 1
    assert done.stderr.count("\n") == 1 and "bug" not in done.stderr


@pytest.mark.parametrize(
    ("redirected", "words", "code", "said"),
    [
        (">/dev/full", "version", 1, "ottla: standard output: No space left on device\n"),
        (">/dev/full", "topics --help", 1, "ottla: standard output: No space left on device\n"),
        (">&-", "version", 0, ""),
    ],
)
def test_a_full_disk_behind_stdout_is_one_sentence_and_a_closed_one_none(redirected: str, words: str, code: int, said: str) -> None:
    ended = ottla(redirected, *words.split())
    assert (ended.returncode, ended.stderr) == (code, said)


def test_a_command_whose_reader_has_gone_ends_in_silence() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        words = [sys.executable, "-m", "ottla.cli", "version"]
        ended = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full"])
def test_the_exit_code_is_the_same_where_nothing_can_be_said(redirected: str) -> None:
    assert ottla(redirected, "consume", "clicks", "-o", "soon").returncode == 2

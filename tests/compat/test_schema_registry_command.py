"""`ottla schema-registry`, `ottla schema` and `ottla dev --with schema-registry`, run as a person runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.chaos.cluster import free_ports

from ottla.config.properties import parse
from ottla.config.registry import RegistrySettings
from ottla.testing import EmbeddedCluster

COMMAND = [sys.executable, "-m", "ottla.cli"]
CLICK = {"type": "record", "name": "Click", "fields": [{"name": "user", "type": "string"}]}
CLICK_WITH_PAGE = {**CLICK, "fields": [*CLICK["fields"], {"name": "page", "type": "string"}]}

Ottla = Callable[..., str]


@pytest.fixture
def ottla(ottla_schema_registry_url: str) -> Ottla:
    """Runs the command and gives what it says; expects success, unless another code is given."""

    def call(*arguments: str, given: str = "", code: int = 0, registry: str = ottla_schema_registry_url) -> str:
        environment = {**os.environ, "OTTLA_SCHEMA_REGISTRY": registry}
        done = subprocess.run([*COMMAND, *arguments], input=given, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr

    return call


def test_a_schema_from_its_file_to_its_deletion(ottla: Ottla, ottla_topic: str, tmp_path: Path) -> None:
    subject = f"{ottla_topic}-value"
    file, newer = tmp_path / "click.avsc", tmp_path / "newer.avsc"
    file.write_text(json.dumps(CLICK))
    newer.write_text(json.dumps(CLICK_WITH_PAGE))
    assert "would be version 1" in ottla("schema", "register", subject, str(file), "--dry-run")
    assert f"{subject} version 1, id " in ottla("schema", "register", subject, str(file))
    assert subject in ottla("schema", "list")
    described = ottla("schema", "describe", subject)
    assert "version 1" in described and '"Click"' in described
    refused = ottla("schema", "check", subject, str(newer), code=1)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in refused and "remedy" in refused
    assert "(409)" in ottla("schema", "register", subject, str(newer), code=1)
    assert '"compatibility": "NONE"' in ottla("schema", "config", subject, "--set", "compatibility=NONE")
    assert "compatible with" in ottla("schema", "check", subject, "-", given=json.dumps(CLICK_WITH_PAGE))
    ottla("schema", "register", subject, str(newer))
    assert "+ " in ottla("schema", "diff", subject, "1")
    assert ottla("schema", "mode", subject).strip() == "READWRITE"
    assert "1, 2" in ottla("schema", "delete", subject)
    assert "1, 2" in ottla("schema", "undelete", subject)
    assert "for good" in ottla("schema", "delete", subject, "--permanent")
    assert "(40401)" in ottla("schema", "describe", subject, code=1)


def test_a_deletion_means_one_version(ottla: Ottla, ottla_topic: str, tmp_path: Path) -> None:
    """An empty variable of a script deleted all versions, and `latest` for good, tried again, one more at each attempt."""
    file = tmp_path / "click.avsc"
    for kind in ("int", "long", "string"):
        file.write_text(json.dumps(kind))
        ottla("schema", "config", ottla_topic, "--set", "compatibility=NONE")
        ottla("schema", "register", ottla_topic, str(file))
    for command in ("delete", "undelete"):
        assert "VERSION is empty" in ottla("schema", command, ottla_topic, "", code=2)
    for refused in (("mode", "", "--set", "READONLY"), ("config", "", "--delete")):
        assert "SUBJECT is empty" in ottla("schema", *refused, code=2)
    assert "1 version of" in ottla("schema", "delete", ottla_topic, "latest", "--permanent")
    exported = ottla("schema", "export", "--prefix", ottla_topic)
    assert [(json.loads(line)["version"], "deleted" in json.loads(line)) for line in exported.splitlines()] == [(1, False), (2, False)]
    assert ": 1, 2" in ottla("schema", "delete", ottla_topic, "--permanent")


def test_a_registry_is_copied_with_what_is_softly_deleted_and_keeps_its_modes(ottla: Ottla, tmp_path: Path) -> None:
    """Messages with the id of a version that is softly deleted are to be read from the copy too."""
    file = tmp_path / "click.avsc"
    with EmbeddedCluster(services=["schema-registry"]) as source, EmbeddedCluster(services=["schema-registry"]) as target:
        there, copy = source.schema_registry_url, target.schema_registry_url
        for subject, kind in (("gone", "int"), ("half", "long"), ("half", "string")):
            file.write_text(json.dumps(kind))
            ottla("schema", "config", subject, "--set", "compatibility=NONE", registry=there)
            ottla("schema", "register", subject, str(file), registry=there)
        ottla("schema", "delete", "gone", registry=there)
        ottla("schema", "delete", "half", "1", registry=there)
        exported = ottla("schema", "export", registry=there)
        ottla("schema", "mode", "half", "--set", "READONLY", registry=copy)
        for _ in range(2):  # what was broken off is begun again
            assert "3 versions of 2 subjects" in ottla("schema", "import", given=exported, registry=copy)
            assert ottla("schema", "export", registry=copy) == exported
        with urllib.request.urlopen(f"{copy}/schemas/ids/1", timeout=60) as answer:
            assert json.load(answer)["schema"] == '"int"'
        assert [row["subject"] for row in json.loads(ottla("schema", "list", "--json", registry=copy))] == ["half"]
        assert ottla("schema", "mode", "half", registry=copy) == "READONLY\n"
        assert ottla("schema", "mode", "gone", registry=copy) == "READWRITE\n"
        ottla("schema", "mode", "gone", "--set", "IMPORT", "--force", registry=copy)  # as an import that was killed leaves it
        said = ottla("schema", "import", given=exported, registry=copy)
        assert said.endswith("In IMPORT mode as before, in which clients can register nothing: gone\n")


class _OlderRegistry(BaseHTTPRequestHandler):
    """Answers as the one behind it, and does not say what is softly deleted: Confluent's of old does not, nor Karapace."""

    behind = ""

    def do_GET(self) -> None:
        try:
            with urllib.request.urlopen(self.behind + self.path, timeout=60) as answer:
                status, found = answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            status, found = error.code, json.load(error)
        if isinstance(found, dict):
            found.pop("deleted", None)
        body = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_what_is_softly_deleted_in_a_registry_that_does_not_say_so_is_exported_as_deleted(
    ottla: Ottla, ottla_topic: str, ottla_schema_registry_url: str
) -> None:
    """In the copy it would be the latest version, against which others are checked and with which a producer writes."""
    ottla("schema", "config", ottla_topic, "--set", "compatibility=NONE")
    for kind in ("int", "long"):
        ottla("schema", "register", ottla_topic, "-", given=json.dumps(kind))
    with ThreadingHTTPServer(("127.0.0.1", 0), _OlderRegistry) as server:
        _OlderRegistry.behind = ottla_schema_registry_url
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            for gone, wanted in (((ottla_topic, "2"), [(1, False), (2, True)]), ((ottla_topic,), [(1, True), (2, True)])):
                ottla("schema", "delete", *gone)
                exported = ottla("schema", "export", "--prefix", ottla_topic, registry=f"http://127.0.0.1:{server.server_port}")
                found = [json.loads(line) for line in exported.splitlines()]
                assert [(version["version"], version.get("deleted", False)) for version in found] == wanted
        finally:
            server.shutdown()
            thread.join(120)


def test_mistakes_are_sentences(ottla: Ottla, tmp_path: Path) -> None:
    assert "no schema registry answers" in ottla("schema", "list", registry="http://127.0.0.1:1", code=1)
    assert "http://host:port" in ottla("schema", "list", registry="ftp://x", code=2)
    file = tmp_path / "a.avsc"
    file.write_text('"int"')
    assert "AVRO, JSON or PROTOBUF" in ottla("schema", "register", "s", str(file), "--type", "XML", code=2)
    assert "NAME=SUBJECT:VERSION" in ottla("schema", "register", "s", str(file), "--reference", "x", code=2)
    assert "no schema registry answers by gRPC" in ottla("schema", "doctor", "--rpc", "127.0.0.1:1", code=1)
    assert "--with takes" in ottla("dev", "--ephemeral", "--with", "everything", code=2)
    assert "kafkastore.bootstrap.servers" in ottla(
        "schema-registry", "--override", "listeners=http://:0", "-c", str(_empty(tmp_path)), code=2
    )


def _empty(directory: Path) -> Path:
    path = directory / "empty.properties"
    path.write_text("")
    return path


def test_a_registry_of_its_own_copied_with_its_ids(ottla: Ottla, tmp_path: Path) -> None:
    """From one that an embedded cluster has to one that runs by itself, from a file."""
    with EmbeddedCluster(services=["schema-registry"]) as source, EmbeddedCluster() as cluster:
        (port,) = free_ports(1)
        rpc = f"127.0.0.1:{port}"
        texts = {"a": CLICK, "b": {"type": "record", "name": "Use", "fields": [{"name": "c", "type": "Click"}]}}
        references = '[{"name":"Click","subject":"a","version":1}]'
        for subject, text in texts.items():
            body = {"schema": json.dumps(text), "references": json.loads(references) if subject == "b" else []}
            url = f"{source.schema_registry_url}/subjects/{subject}/versions"
            request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=60).close()
        config, pid_file = tmp_path / "registry.properties", tmp_path / "pid"
        config.write_text(
            f"listeners=http://127.0.0.1:0\nkafkastore.bootstrap.servers=PLAINTEXT://{cluster.bootstrap_servers}\n"
            f"kafkastore.checkpoint.dir={tmp_path / 'kept'}\nrpc.listener={rpc}\ndebug=false\n"
        )
        arguments = [*COMMAND, "schema-registry", "--config", str(config), "--pid-file", str(pid_file)]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "is ready on http://127.0.0.1:" in line, line
            url = pid_file.read_text().splitlines()[1]
            exported = ottla("schema", "export", registry=source.schema_registry_url)
            assert [json.loads(line)["subject"] for line in exported.splitlines()] == ["a", "b"]
            assert "2 versions of 2 subjects" in ottla("schema", "import", given=exported, registry=url)
            assert ottla("schema", "export", registry=url) == exported
            assert "leads; epoch 1" in ottla("schema", "doctor", "--rpc", rpc)
            producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})  # a registry of another maker
            key = {"keytype": "SCHEMA", "subject": "c", "version": 1, "magic": 1}
            value = {"subject": "c", "version": 1, "id": 1, "schema": '"bytes"', "deleted": False}
            producer.produce("_schemas", json.dumps(value), json.dumps(key))
            assert producer.flush(120) == 0
            deadline = time.monotonic() + 120
            while json.loads(ottla("schema", "list", "--json", registry=url)) and time.monotonic() < deadline:
                told = subprocess.run([*COMMAND, "schema", "doctor", "--rpc", rpc], capture_output=True, text=True, timeout=300)
                if told.returncode:
                    break
            assert "c/1 has id 1, which is a/1's" in told.stdout and "1 record with an id of another schema" in told.stderr
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
            assert (tmp_path / "kept" / "_schemas.snapshot").exists() and not pid_file.exists()
        finally:
            process.kill()
            process.wait(120)


def test_dev_with_a_registry(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    arguments = [*COMMAND, "dev", "--ephemeral", "--port", "0", "--with", "schema-registry", "--pid-file", str(pid_file)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = ""
        while not url:
            line = process.stdout.readline()
            assert line, process.stderr and process.stderr.read()
            url = line.split()[-1] if line.strip().startswith("schemas") else ""
        with urllib.request.urlopen(f"{url}/subjects", timeout=60) as answer:
            assert json.load(answer) == []
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait(120)


def test_the_examples_of_the_page_are_right(ottla_schema_registry_url: str, ottla_topic: str) -> None:
    """docs/schema-registry.md: its Python runs, its settings load, its commands are there."""
    page = (Path(__file__).parents[2] / "docs" / "schema-registry.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(program.replace("http://127.0.0.1:8081", ottla_schema_registry_url), names)
    context = SerializationContext(ottla_topic, MessageField.VALUE)
    assert names["serializer"]({"user": "ada"}, context)[0] == 0
    lines = re.findall(r"^    ([a-z.]+=.*)$", page, re.MULTILINE)
    assert len(lines) == 6
    assert RegistrySettings.from_properties(parse("\n".join(lines))).rpc_address is not None
    (secured,) = re.findall(r"^```properties\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert RegistrySettings.from_properties(parse("\n".join([*lines[1:], secured]))).inter_instance_listener.is_tls
    commands = re.findall(r"ottla schema ([a-z]+)", page)
    helped = subprocess.run([*COMMAND, "schema", "--help"], check=True, capture_output=True, text=True).stdout
    assert set(commands) <= set(re.findall(r"^│ ([a-z]+)  ", helped, re.MULTILINE))

"""`ottla takeover check`: what it prints of what Kafka left, and its exit codes. ZooKeeper is the twin; tests/compat has the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.takeover.kafka_left import CLEAN, CLUSTER_ID, KafkaLeft, put_znodes

from ottla.cli import takeover
from ottla.cli.main import run
from ottla.clock import SystemClock
from ottla.config.broker import BrokerSettings
from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.coordination.interface import Coordination


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KafkaLeft:
    """What Kafka left, with its three files of settings; a session sees the znodes, and what it writes is a failure."""
    left = KafkaLeft.unpack(CLEAN, tmp_path, "znodes.json", "broker-1", "broker-2", "broker-3", "broker-1.properties")
    text = (tmp_path / "broker-1.properties").read_text()
    for broker_id in (1, 2, 3):
        own = text.replace("broker.id=1", f"broker.id={broker_id}").replace(
            "log.dirs=broker-1", f"log.dirs={left.log_directory(broker_id)}"
        )
        (tmp_path / f"broker-{broker_id}.properties").write_text(own)

    async def open_coordination(settings: BrokerSettings) -> Coordination:
        assert (settings.zookeeper_connect or "").endswith("127.0.0.1:36281/kafka")
        session = await EmbeddedZooKeeper(None, SystemClock()).session()
        await put_znodes(session, left.znodes)
        for write in ("create", "set", "delete", "transaction"):
            monkeypatch.setattr(session, write, None)
        return session

    monkeypatch.setattr(takeover, "open_coordination", open_coordination)
    return left


def options(left: KafkaLeft, *broker_ids: int) -> list[str]:
    return [word for broker_id in broker_ids for word in ("--config", str(left.directory / f"broker-{broker_id}.properties"))]


def add(left: KafkaLeft, broker_id: int, *lines: str) -> None:
    with (left.directory / f"broker-{broker_id}.properties").open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def test_the_check_says_what_stops_and_what_to_do_and_fails(left: KafkaLeft, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["takeover", "check", *options(left, 1)]) == 1
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert lines[0] == f"cluster {CLUSTER_ID}, controller epoch 3"
    assert lines[2].split() == ["BROKER", "DIRECTORY", "LAST", "STOP", "LOGS", "SIZE"]
    assert lines[4] == "not looked at: broker 2, 3; give its --config too, or run the command on its machine"
    at = lines.index("STOPS")
    assert lines[at + 1 : at + 5] == [
        "  quotas: quotas are set, and none is enforced here",
        "      at /config/clients/slow",
        "      remove them with kafka-configs.sh while Kafka runs",
        "      to give it up: takeover.accept=quotas",
    ]
    assert "TAKEN OVER" in lines
    assert "1 finding stops a takeover" in output.err


def test_with_all_brokers_and_what_is_accepted_nothing_stops(left: KafkaLeft, capsys: pytest.CaptureFixture[str]) -> None:
    add(left, 1, "takeover.accept=quotas")
    assert run(["takeover", "check", *options(left, 1, 2, 3), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (document["cluster_id"], document["stops"], document["brokers_not_looked_at"]) == (CLUSTER_ID, False, [])
    assert [broker["broker_id"] for broker in document["brokers"]] == [1, 2, 3]
    assert all(
        described["directories"][0]["stopped_cleanly"] and described["directories"][0]["logs"] == 17 for described in document["brokers"]
    )
    rolled = next(topic for topic in document["topics"] if topic["name"] == "rolled")
    assert (rolled["partitions"], rolled["replication_factor"], rolled["settings"]["segment.bytes"]) == (1, 3, "16384")
    assert {finding["severity"] for finding in document["findings"]} == {"given up", "taken over"}


def test_settings_that_are_refused_are_findings_and_not_an_end(left: KafkaLeft, capsys: pytest.CaptureFixture[str]) -> None:
    """A secured cluster's file: SASL listeners, an authorizer, a plugin's setting."""
    add(left, 1, "takeover.accept=quotas", "authorizer.class.name=kafka.security.authorizer.AclAuthorizer", "my.plugin=1")
    add(left, 1, "inter.broker.listener.name=SASL_SSL")
    assert run(["takeover", "check", *options(left, 1), "--json"]) == 1
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)["findings"] if finding["severity"] == "stops"}
    assert set(found) == {"authorizer.class.name", "my.plugin", "settings"}
    assert found["authorizer.class.name"]["may_be_accepted"]
    assert found["authorizer.class.name"]["where"] == [str(left.directory / "broker-1.properties")]
    assert "SASL_SSL is not one of listeners" in found["settings"]["what"]


def test_the_way_back_is_looked_at_with_back(left: KafkaLeft, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["takeover", "check", "--back", *options(left, 1, 2, 3)]) == 0
    assert "nothing stands in the way" in capsys.readouterr().out
    (left.log_directory(2) / "coordination").mkdir()
    assert run(["takeover", "check", "--back", *options(left, 1, 2, 3)]) == 1
    output = capsys.readouterr()
    assert f"at {left.log_directory(2)}/coordination" in output.out
    assert "1 finding stops the way back" in output.err


@pytest.mark.parametrize("why", ["no file", "no properties", "no zookeeper.connect", "files of two clusters"])
def test_what_cannot_be_looked_at_is_exit_code_2(left: KafkaLeft, capsys: pytest.CaptureFixture[str], why: str) -> None:
    words = options(left, 1, 2)
    path = left.directory / "broker-1.properties"
    if why == "no file":
        path.unlink()
    elif why == "no properties":
        path.write_text("=1")
    elif why == "files of two clusters":
        path.write_text(path.read_text().replace("/kafka", "/other"))
    else:
        path.write_text(path.read_text().replace("zookeeper.connect", "#"))
        words = options(left, 1)
    if why == "no zookeeper.connect":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(takeover, "open_coordination", ORIGINAL)
            assert run(["takeover", "check", *words]) == 2
    else:
        assert run(["takeover", "check", *words]) == 2
    assert capsys.readouterr().err.startswith("ottla: ")


def test_a_place_of_zookeeper_that_is_none_is_said_with_its_line(left: KafkaLeft, capsys: pytest.CaptureFixture[str]) -> None:
    """It was said not to be set, as with what is refused it was left out."""
    path = left.directory / "broker-1.properties"
    path.write_text("broker.id=1\nzookeeper.connect=127.0.0.1:zwei/kafka\n")
    assert run(["takeover", "check", *options(left, 1)]) == 2
    assert capsys.readouterr().err == (f"ottla: {path}:2: zookeeper.connect = '127.0.0.1:zwei/kafka': '127.0.0.1:zwei' is not host:port\n")


def test_the_order_of_the_servers_of_zookeeper_makes_no_other_cluster(left: KafkaLeft, capsys: pytest.CaptureFixture[str]) -> None:
    """As where each broker's file has the nearest server first. A slash at the end is none of the chroot's."""
    for broker_id, connect in ((1, "zk2:2181,127.0.0.1:36281/kafka"), (2, "127.0.0.1:36281, zk2/kafka/")):
        path = left.directory / f"broker-{broker_id}.properties"
        path.write_text(path.read_text().replace("127.0.0.1:36281/kafka", connect))
    assert run(["takeover", "check", *options(left, 1, 2)]) == 1
    assert capsys.readouterr().err == "ottla: 1 finding stops a takeover\n"


def test_a_place_without_a_cluster_cannot_be_looked_at(
    left: KafkaLeft, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a forgotten chroot nothing was said to stop a takeover, and nothing to stand in the way back."""

    async def nothing(settings: BrokerSettings) -> Coordination:
        return await EmbeddedZooKeeper(None, SystemClock()).session()

    monkeypatch.setattr(takeover, "open_coordination", nothing)
    path = left.directory / "broker-1.properties"
    assert run(["takeover", "check", *options(left, 1)]) == 1
    assert "foreign-directories" in capsys.readouterr().out
    path.write_text(path.read_text().replace(f"log.dirs={left.log_directory(1)}", "log.dirs=/on/another/machine"))
    for back in ([], ["--back"]):
        assert run(["takeover", "check", *back, *options(left, 1)]) == 2
        assert capsys.readouterr().err == "ottla: 127.0.0.1:36281/kafka: there is no cluster here; is the chroot the one that Kafka has?\n"


ORIGINAL = takeover.open_coordination

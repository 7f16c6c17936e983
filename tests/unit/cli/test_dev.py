"""What `ottla dev` runs: a broker's properties, and where a cluster that grows or shrinks finds what it had."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from ottla.cli.dev import dev_properties, log_directory
from ottla.cli.dev_services import BrokersWithServices
from ottla.cli.errors import UsageError
from ottla.cli.main import run
from ottla.config.broker import BrokerSettings
from ottla.model import BrokerId


@pytest.mark.parametrize(
    ("there", "broker_id", "brokers", "expected"),
    [
        ((), 1, 1, "log"),
        ((), 1, 3, "broker-1"),
        ((), 2, 3, "broker-2"),
        (("log",), 1, 3, "log"),
        (("log",), 2, 3, "broker-2"),
        (("broker-1", "broker-2"), 1, 1, "broker-1"),
    ],
)
def test_a_broker_finds_its_logs_whatever_the_size_of_its_cluster_was(
    tmp_path: Path, there: tuple[str, ...], broker_id: int, brokers: int, expected: str
) -> None:
    for name in there:
        (tmp_path / name).mkdir()
    assert log_directory(tmp_path, broker_id, brokers) == tmp_path / expected


def test_brokers_of_one_machine_share_all_but_their_ports_and_logs(tmp_path: Path) -> None:
    one, two = (
        BrokerSettings.from_properties(dev_properties(tmp_path, "127.0.0.1", 9092, 4, {"log.segment.bytes": "2048"}, number, 2))
        for number in (1, 2)
    )
    assert (one.broker_id, one.accepted_listeners[0].port) == (1, 9092)
    assert (two.broker_id, two.accepted_listeners[0].port) == (2, 9093)
    assert one.log_directories != two.log_directories
    assert one.coordination_path == two.coordination_path
    assert (one.num_partitions, two.log_segment_bytes) == (4, 2048)


@pytest.mark.parametrize("name", ["broker.id", "log.dirs", "log.dir"])
def test_what_each_broker_has_of_its_own_is_not_given_to_several(tmp_path: Path, name: str) -> None:
    """Each waited 22 s for the one before it to go, or said that another has its directory. One broker that is alone may have it."""
    with pytest.raises(UsageError, match=rf"{name} would be that of all 2 brokers"):
        dev_properties(tmp_path, "127.0.0.1", 0, 1, {name: "7"}, 1, 2)
    assert dev_properties(tmp_path, "127.0.0.1", 0, 1, {name: "7"})[name] == "7"


@pytest.mark.parametrize("name", ["log.dirs", "log.dir"])
def test_a_broker_that_is_alone_keeps_its_logs_where_a_property_says(tmp_path: Path, name: str) -> None:
    """`log.dir` had no effect: `log.dirs` goes before it, and was set to the data directory."""
    properties = dev_properties(tmp_path, "127.0.0.1", 0, 1, {name: str(tmp_path / "logs")})
    assert BrokerSettings.from_properties(properties).log_directories == (tmp_path / "logs",)


def test_a_directory_whose_path_has_a_comma_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Logs lay in two others, one of them in the working directory, as `log.dirs` is a list."""
    assert run(["dev", "--data-dir", str(tmp_path / "a,b"), "--port", "0"]) == 2
    assert capsys.readouterr().err.startswith(f"ottla: {tmp_path / 'a,b'}: its path has a comma")
    assert not [*tmp_path.iterdir()]


def test_free_ports_are_free_ones_of_each(tmp_path: Path) -> None:
    assert dev_properties(tmp_path, "127.0.0.1", 0, 1, {}, 3, 3)["listeners"] == "PLAINTEXT://127.0.0.1:0"


HUGE = f":{'9' * 5000}"


@pytest.mark.parametrize(
    ("given", "expected"),
    [("127.0.0.1:9404", "127.0.0.1:9406"), (":0", ":0"), ("nonsense", "nonsense"), (HUGE, HUGE)],
    ids=lambda text: text[:20],
)
def test_metrics_of_several_brokers_are_at_ports_side_by_side(tmp_path: Path, given: str, expected: str) -> None:
    assert dev_properties(tmp_path, "127.0.0.1", 0, 1, {"http.listener": given}, 3, 3)["http.listener"] == expected


@pytest.mark.long
async def test_the_audit_of_three_brokers_has_three_copies_whichever_service_is_named_first(tmp_path: Path) -> None:
    """What the registry wrote had the brokers make `__audit` with one copy, and the counter found it there."""
    overrides = {"audit.enable": "true", "coordination.listener": "127.0.0.1:0"}
    settings = {
        BrokerId(number): BrokerSettings.from_properties(dev_properties(tmp_path, "127.0.0.1", 0, 1, overrides, number, 3))
        for number in (1, 2, 3)
    }
    served = BrokersWithServices(settings, tmp_path, dict.fromkeys(("schema-registry", "audit-counter"), "127.0.0.1:0"), "")
    await served.start()
    try:
        admin = AdminClient({"bootstrap.servers": served.bootstrap_servers})
        (topic,) = (await asyncio.to_thread(admin.list_topics, "__audit", timeout=60)).topics.values()
        assert {len(partition.replicas) for partition in topic.partitions.values()} == {3}
    finally:
        await served.stop()

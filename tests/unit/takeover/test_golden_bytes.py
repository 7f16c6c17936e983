"""Each kind of file and znode that Ottla writes, compared field by field with what Kafka 3.9.1 wrote: Kafka has to read it again.

Method: what Kafka wrote is decoded and written again by Ottla's own writers. Whatever differs is named here, with why Kafka reads it all
the same. ZooKeeper's transaction log has also what was there for a moment only: registrations, the controller, notices.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.takeover.kafka_left import CLEAN, KafkaLeft

from ottla.coordination import znodes
from ottla.model import BrokerId
from ottla.record.batch import HEADER_SIZE
from ottla.storage import checkpoints
from ottla.storage.clean_shutdown import CLEAN_SHUTDOWN, write_clean_shutdown
from ottla.storage.meta_properties import META_PROPERTIES, read_meta_properties, write_meta_properties
from ottla.storage.partition_metadata import PARTITION_METADATA, read_topic_id, write_topic_id
from ottla.storage.producer_snapshots import encode_snapshot, read_snapshot
from ottla.storage.recovery import load_log, rebuild_indexes
from ottla.storage.segment import Segment

TOPIC_SETTINGS = {"rolled": 512}  # index.interval.bytes, where it is not 4096


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> KafkaLeft:
    return KafkaLeft.unpack(CLEAN, tmp_path_factory.mktemp("kafka"))


# Znodes.


def documents(left: KafkaLeft) -> Iterator[dict[str, Any]]:
    """Every JSON object in ZooKeeper's transaction log."""
    decoder = json.JSONDecoder()
    text = (left.directory / "zookeeper" / "version-2" / "log.1").read_bytes().decode("latin-1")
    for match in re.finditer(r'\{"', text):
        try:
            found, _ = decoder.raw_decode(text, match.start())
        except ValueError:
            continue
        yield found


def with_fields(left: KafkaLeft, *names: str) -> list[dict[str, Any]]:
    """Those that have these fields."""
    found = [document for document in documents(left) if all(name in document for name in names)]
    assert found, names
    return found


def rewritten(document: dict[str, Any], rewrite: Callable[[bytes], bytes]) -> dict[str, Any]:
    again: dict[str, Any] = json.loads(rewrite(json.dumps(document, separators=(",", ":")).encode()))
    return again


def test_a_topic_is_written_with_kafkas_fields(left: KafkaLeft) -> None:
    for document in with_fields(left, "partitions", "topic_id"):
        assert rewritten(document, lambda data: znodes.encode_topic(znodes.decode_topic("/", data))) == document


def test_a_partition_state_is_written_with_kafkas_fields_in_kafkas_order(left: KafkaLeft) -> None:
    """The two lists that Kafka does not have are left out where they are empty, as they are unless too few are in sync."""
    for document in with_fields(left, "leader_epoch"):
        data = json.dumps(document, separators=(",", ":")).encode()
        assert znodes.encode_partition_state(znodes.decode_partition_state("/", data, [BrokerId(1)])) == data


def test_settings_are_written_with_kafkas_fields(left: KafkaLeft) -> None:
    for document in with_fields(left, "config"):
        assert rewritten(document, lambda data: znodes.encode_config(znodes.decode_config("/", data))) == document


def test_a_notice_of_changed_settings_is_written_with_kafkas_fields(left: KafkaLeft) -> None:
    for document in with_fields(left, "entity_path"):
        assert rewritten(document, lambda data: znodes.encode_config_change(znodes.decode_config_change("/", data))) == document


def test_a_block_of_producer_ids_is_written_with_kafkas_fields(left: KafkaLeft) -> None:
    for document in with_fields(left, "block_start"):
        block = znodes.decode_producer_id_block("/", json.dumps(document).encode())
        assert block is not None
        assert json.loads(znodes.encode_producer_id_block(block)) == document


def test_the_cluster_id_and_the_controllers_epoch_are_written_as_kafka_does(left: KafkaLeft) -> None:
    cluster_id = left.znodes["/cluster/id"]
    assert znodes.encode_cluster_id(znodes.decode_cluster_id("/", cluster_id)) == cluster_id
    epoch = left.znodes["/controller_epoch"]
    assert znodes.encode_controller_epoch(znodes.decode_controller_epoch("/", epoch)) == epoch == b"3"


def test_the_controller_registers_with_kafkas_fields(left: KafkaLeft) -> None:
    for document in with_fields(left, "kraftControllerEpoch"):
        data = json.dumps(document, separators=(",", ":")).encode()
        assert znodes.encode_controller(znodes.decode_controller("/", data), int(document["timestamp"])) == data


def test_a_broker_registers_with_kafkas_fields_and_two_of_its_own(left: KafkaLeft) -> None:
    """Kafka's reader looks its fields up by name, and passes over others. By the second it is seen to be Ottla's."""
    for document in with_fields(left, "listener_security_protocol_map"):
        registration = znodes.decode_broker("/brokers/ids/1", json.dumps(document).encode())
        assert registration.is_foreign
        ours = json.loads(znodes.encode_broker(registration, int(document["timestamp"])))
        assert {name: ours[name] for name in document} == document
        assert set(ours) - set(document) == {"previous_broker_epoch"}  # and `control_endpoint`, where it has one
        assert not znodes.decode_broker("/brokers/ids/1", json.dumps(ours).encode()).is_foreign


def test_ottlas_own_znodes_lie_under_one_that_kafka_does_not_have(left: KafkaLeft) -> None:
    """What a cluster gets of Ottla that Kafka never made is below `/ottla`; /latest_producer_id_block and so on are Kafka's."""
    ours = {path for path in znodes.SKELETON if path not in left.znodes}
    assert {path for path in ours if not path.startswith("/ottla")} == set()


# Files.


def logs(left: KafkaLeft) -> Iterator[Path]:
    found = sorted(path for path in left.directory.glob("broker-*/*-*") if path.is_dir())
    assert len(found) == 51
    yield from found


def test_checkpoints_of_offsets_have_kafkas_lines(left: KafkaLeft, tmp_path: Path) -> None:
    """Kafka's are in no order; ours are sorted."""
    files = list(left.directory.glob("broker-*/*-offset-checkpoint"))
    assert len(files) == 12
    for file in files:
        again = tmp_path / file.name
        checkpoints.write_offsets(again, checkpoints.read_offsets(file))
        theirs, ours = file.read_bytes().splitlines(), again.read_bytes().splitlines()
        assert ours[:2] == theirs[:2]
        assert ours[2:] == sorted(theirs[2:], key=lambda line: (line.split()[0], int(line.split()[1])))
        assert again.read_bytes().endswith(b"\n")


def test_leader_epochs_are_kafkas_bytes(left: KafkaLeft) -> None:
    files = [path / checkpoints.LEADER_EPOCH_CHECKPOINT for path in logs(left)]
    written = [path for path in files if path.stat().st_size]
    assert len(written) > 30
    for file in written:
        assert checkpoints.encode_leader_epochs(checkpoints.read_leader_epochs(file)) == file.read_bytes()


def test_partition_metadata_has_kafkas_lines(left: KafkaLeft, tmp_path: Path) -> None:
    """Kafka ends its last line without a line feed; its reader takes lines."""
    for path in logs(left):
        topic_id = read_topic_id(path)
        assert topic_id is not None
        write_topic_id(tmp_path, topic_id)
        assert (tmp_path / PARTITION_METADATA).read_bytes().splitlines() == (path / PARTITION_METADATA).read_bytes().splitlines()


def test_meta_properties_has_kafkas_properties_and_a_directory_id(left: KafkaLeft, tmp_path: Path) -> None:
    """The id is Kafka 3.7's own (KIP-858), which it gives to directories while it migrates to KRaft."""
    for broker_id in (1, 2, 3):
        directory = left.log_directory(broker_id)
        meta = read_meta_properties(directory)
        assert meta is not None
        assert meta.directory_id is None
        write_meta_properties(tmp_path, meta, 1_795_349_540_000)
        theirs, ours = ((path / META_PROPERTIES).read_text().splitlines() for path in (directory, tmp_path))
        assert sorted(ours[2:]) == sorted(theirs[2:])
        assert ours[0] == theirs[0] == "#"
        assert re.fullmatch(r"#\w{3} \w{3} \d\d \d\d:\d\d:\d\d UTC \d{4}", theirs[1])
        assert ours[1] == "#Sun Nov 22 12:12:20 UTC 2026"


def test_the_mark_of_a_clean_stop_has_kafkas_fields(left: KafkaLeft, tmp_path: Path) -> None:
    theirs = (left.log_directory(1) / CLEAN_SHUTDOWN).read_bytes()
    write_clean_shutdown(tmp_path, json.loads(theirs)["brokerEpoch"])
    assert (tmp_path / CLEAN_SHUTDOWN).read_bytes() == theirs


def test_snapshots_of_producers_are_kafkas_bytes(left: KafkaLeft) -> None:
    files = [file for path in logs(left) for file in path.glob("*.snapshot")]
    with_producers = 0
    for file in files:
        entries = read_snapshot(file)
        with_producers += bool(entries)
        assert encode_snapshot(entries) == file.read_bytes(), file
    assert with_producers > 20


def test_indexes_are_kafkas_bytes(left: KafkaLeft, tmp_path: Path) -> None:
    """Made again from the log, of segments that are full, at the topic's `index.interval.bytes`."""
    compared = 0
    for path in (path for path in logs(left) if path.name == "rolled-0"):
        for log in sorted(path.glob("*.log"))[:-1]:
            directory = tmp_path / path.parent.name
            directory.mkdir(exist_ok=True)
            (directory / log.name).write_bytes(log.read_bytes())
            segment = Segment(str(directory), int(log.stem), log.stat().st_size)
            rebuild_indexes(segment, TOPIC_SETTINGS["rolled"])
            for suffix in (".index", ".timeindex"):
                theirs, ours = log.with_suffix(suffix).read_bytes(), (directory / log.name).with_suffix(suffix).read_bytes()
                assert theirs == ours, log.with_suffix(suffix)
                compared += 1
    assert compared > 60


def test_indexes_of_aborted_transactions_are_kafkas_bytes(left: KafkaLeft, tmp_path: Path) -> None:
    """Made again from the log by a recovery."""
    compared = 0
    for path in (path for path in logs(left) if path.name.startswith("transactions-")):
        directory = tmp_path / f"{path.parent.name}-{path.name}" / path.name
        directory.mkdir(parents=True)
        for log in path.glob("*.log"):
            (directory / log.name).write_bytes(log.read_bytes())
        load_log(directory, index_interval_bytes=4096)
        for file in path.glob("*.txnindex"):
            if file.stat().st_size:
                assert (directory / file.name).read_bytes() == file.read_bytes()
                compared += 1
    assert compared >= 3


def test_segments_stay_as_they_are(left: KafkaLeft) -> None:
    """A load after a clean stop changes no byte of a log."""
    path = left.log_directory(1) / "codecs-0"
    before = {file.name: file.read_bytes() for file in path.glob("*.log")}
    loaded = load_log(path, index_interval_bytes=4096, clean=True)
    assert loaded.unsound is None
    assert {segment.name: segment.read_bytes() for segment in path.glob("*.log")} == before
    assert sum(map(len, before.values())) > 10 * HEADER_SIZE

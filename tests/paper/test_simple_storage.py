"""The paper's section 3.1, "Simple storage" and "Efficient transfer", and the design document's "Messages" and "Log"."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.paper.messages import directory_of, publish, publish_at, read

from ottla.record.batch import HEADER_SIZE, batches, crc_of
from ottla.record.records import read_records
from ottla.testing.cluster import EmbeddedCluster

SEGMENT_BYTES = 64 * 1024


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings={"log.segment.bytes": str(SEGMENT_BYTES), "log.retention.check.interval.ms": "100"}) as started:
        yield started


def test_a_partition_is_a_set_of_segment_files_of_about_the_same_size(cluster: EmbeddedCluster) -> None:
    """NetDB'11 3.1: a partition is one logical log, physically segment files of about the same size (S1).

    Each is named by its first offset (design document, "Log").
    """
    topic = cluster.create_topic("segments")
    publish(cluster, topic, [bytes(500)] * 1000, **{"batch.size": 4096})
    logs = sorted(directory_of(cluster, topic).glob("*.log"))
    assert len(logs) > 5
    assert all(SEGMENT_BYTES - 8192 < log.stat().st_size <= SEGMENT_BYTES for log in logs[:-1])
    for log in logs:
        _, header = next(iter(batches(log.read_bytes())))
        assert log.name == f"{header.base_offset:020d}.log"


def test_the_bytes_of_a_producer_are_the_bytes_on_disk_and_on_the_wire(cluster: EmbeddedCluster) -> None:
    """NetDB'11 3.1 and the design document's "Messages": one format for producer, disk and consumer (S2).

    The batch on disk is what the wire gives back, byte for byte, and its checksum is right.
    """
    topic = cluster.create_topic("one-format")
    values = [letter * 500 for letter in (b"a", b"b", b"c")]
    publish(cluster, topic, values, **{"linger.ms": 200, "compression.type": "lz4"})
    stored = (directory_of(cluster, topic) / f"{0:020d}.log").read_bytes()
    fetched = fetch_raw(cluster, topic, 0)
    assert fetched == stored
    for position, header in batches(stored):
        assert crc_of(stored[position : position + header.size]) == header.crc
        assert header.codec == 3, "a compressed set stays compressed on the disk (S8)"
    records = [record for position, header in batches(stored) for record in read_records(stored[position : position + header.size])]
    assert [record.value for record in records] == values


def fetch_raw(cluster: EmbeddedCluster, topic: str, offset: int) -> bytes:
    """One Fetch v4 by hand: the record set as it came."""
    body = struct.pack(">iiiibi", -1, 1000, 1, 1 << 20, 0, 1) + struct.pack(">h", len(topic)) + topic.encode()
    body += struct.pack(">iiqi", 1, 0, offset, 1 << 20)
    request = struct.pack(">hhih", 1, 4, 7, -1) + body
    host, _, port = cluster.bootstrap_servers.partition(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = _read_frame(connection)
    return answer[-struct.unpack_from(">i", answer, 4 + 4 + 4 + 2 + len(topic) + 4 + 4 + 2 + 8 + 8 + 4)[0] :]


def _read_frame(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as stream:
        (size,) = struct.unpack(">i", stream.read(4))
        return stream.read(size)


@pytest.mark.parametrize(("count", "most"), [(50, 10.3), (1000, 10.0)])
def test_a_message_costs_nine_bytes_and_a_share_of_its_batch(cluster: EmbeddedCluster, count: int, most: float) -> None:
    """NetDB'11 5: 9 bytes of overhead a message against ActiveMQ's 144 (N3). The log file alone, 200-byte messages.

    A record costs 9 bytes up to the 64th of its batch and 10 from there, where its offset delta takes a second byte.
    """
    topic = cluster.create_topic(f"overhead-{count}", settings={"segment.bytes": str(1 << 30)})
    batch = 200 * count + 9 * count + HEADER_SIZE
    # A batch leaves when it is full, however slow the machine is; with it would leave what has come behind it, so no more comes. A time
    # that is 64 ms later than the first one takes a byte more.
    configuration = {"batch.num.messages": count, "batch.size": batch + 2000, "linger.ms": 200_000}
    for _ in range(3):
        publish_at(1_700_000_000_000, cluster, topic, [bytes(200)] * count, **configuration)
    overhead = (directory_of(cluster, topic) / f"{0:020d}.log").stat().st_size / (3 * count) - 200
    assert 9 <= overhead <= most


def test_old_messages_are_deleted_by_time_whether_read_or_not(cluster: EmbeddedCluster) -> None:
    """NetDB'11 3.1: a time-based SLA decides, not the consumers (S5); the active segment is never the first to go."""
    topic = cluster.create_topic("retained")
    publish(cluster, topic, [bytes(500)] * 500, **{"batch.size": 4096})
    before = len(list(directory_of(cluster, topic).glob("*.log")))
    assert before > 2
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(120)
    deadline = time.monotonic() + 120
    while len(list(directory_of(cluster, topic).glob("*.log"))) > 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(list(directory_of(cluster, topic).glob("*.log"))) == 1
    # Or this one would be too old as well before it is read.
    forever = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[forever])])[resource].result(120)
    publish(cluster, topic, [b"continues"])
    assert read(cluster, topic, 500, 1) == [b"continues"]


def test_a_consumer_goes_back_to_an_old_offset_and_reads_again(cluster: EmbeddedCluster) -> None:
    """NetDB'11 3.1: a consumer can deliberately rewind; the broker keeps no state of it (K4)."""
    topic = cluster.create_topic("rewound")
    values = [b"%d" % number for number in range(100)]
    publish(cluster, topic, values)
    assert read(cluster, topic, 0, 100) == values
    assert read(cluster, topic, 40, 60) == values[40:]
    assert read(cluster, topic, 0, 100) == values


def test_a_bulk_fetch_goes_by_sendfile(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """NetDB'11 3.1, "Efficient transfer": sendfile moves the bytes from the file to the socket (S7).

    The broker lives in this process, so its system calls can be counted; the values come back right.
    """
    topic = cluster.create_topic("sent", settings={"segment.bytes": str(1 << 30)})
    values = [os.urandom(1000) for _ in range(2000)]
    publish(cluster, topic, values)
    sent: list[int] = []
    real = os.sendfile

    def counting(out: int, source: int, position: int, count: int) -> int:
        moved = real(out, source, position, count)
        sent.append(moved)
        return moved

    monkeypatch.setattr(os, "sendfile", counting)
    assert read(cluster, topic, 0, 2000) == values
    assert sum(sent) > 0.9 * (directory_of(cluster, topic) / f"{0:020d}.log").stat().st_size


def test_messages_with_a_wrong_checksum_are_removed_by_recovery(tmp_path: Path) -> None:
    """NetDB'11 3.3: each message has a CRC, and after an I/O error recovery removes those that are inconsistent (S6)."""
    with EmbeddedCluster(data_directory=tmp_path, topics={"damaged": 1}) as cluster:
        publish(cluster, "damaged", [b"first"])
        publish(cluster, "damaged", [b"second"])
    log = tmp_path / "log" / "damaged-0" / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[-3] ^= 0xFF
    log.write_bytes(content)
    (tmp_path / "log" / ".kafka_cleanshutdown").unlink()
    (tmp_path / "log" / "recovery-point-offset-checkpoint").unlink()
    with EmbeddedCluster(data_directory=tmp_path) as cluster:
        assert read(cluster, "damaged", 0, 1) == [b"first"]
        publish(cluster, "damaged", [b"third"])
        assert read(cluster, "damaged", 1, 1) == [b"third"], "the offset is given again"

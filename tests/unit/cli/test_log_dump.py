"""`ottla log dump` on real segment files, sound and damaged."""

import json
import struct
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ottla.broker.groups.classic.effects import StoredMember, StoreGroup
from ottla.broker.groups.consumer.changes import EpochChange
from ottla.broker.groups.consumer.record_codec import encode_change
from ottla.broker.groups.records import CommittedOffset, OffsetKey, encode_group, encode_group_key, encode_offset, encode_offset_key
from ottla.broker.transactions.records import encode, encode_key
from ottla.broker.transactions.states import TransactionState
from ottla.broker.transactions.transaction import Transaction
from ottla.cli.main import run
from ottla.model import TopicPartition
from ottla.record.codecs import ZSTD
from ottla.record.records import Record, build_batch
from ottla.storage.indexes import OFFSET_ENTRY, TIME_ENTRY

NOON = 1372939200000  # 2013-07-04T12:00:00Z


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Two batches, of two and one records, the second compressed."""
    first = build_batch([Record(0, NOON, b"ada", b"hello", (("lang", b"en"),)), Record(1, NOON + 1, None, None)], leader_epoch=4)
    second = build_batch([Record(2, NOON + 2, b"\xff", b"tab\there")], base_offset=2, codec=ZSTD, leader_epoch=4)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(first + second)
    path.with_suffix(".index").write_bytes(OFFSET_ENTRY.pack(2, len(first)))
    path.with_suffix(".timeindex").write_bytes(TIME_ENTRY.pack(NOON + 2, 2))
    return path


def test_batches_checksums_and_indexes_are_told(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", str(segment)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("@0  offsets 0-1  2 records  ")
    assert "create time 2013-07-04T12:00:00.001Z" in lines[0] and lines[0].endswith(" ok")
    assert "offsets 2-2  1 record " in lines[1] and " zstd " in lines[1]
    assert lines[2] == "00000000000000000000.index: 1 entry, agrees with the segment"
    assert lines[3] == "00000000000000000000.timeindex: 1 entry, agrees with the segment"
    assert lines[4].startswith("2 batches, 3 records, ") and lines[4].endswith("all checksums are right")


def test_records_are_shown_with_control_characters_escaped(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", "--records", "--no-index-check", str(segment)]) == 0
    out = capsys.readouterr().out
    assert "    0  2013-07-04T12:00:00.000Z  ada → hello  lang=en\n" in out
    assert "    1  2013-07-04T12:00:00.001Z  null → null\n" in out
    assert "    2  2013-07-04T12:00:00.002Z  b'\\xff' → 'tab\\there'\n" in out


def test_json_is_a_document_a_line(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", "--json", "--records", str(segment)]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["kind"] for document in documents] == ["batch", "batch", "index", "index", "summary"]
    assert documents[0]["base_offset"] == 0 and documents[0]["leader_epoch"] == 4 and documents[0]["crc_is_valid"]
    assert documents[0]["records"][0] == {
        "offset": 0,
        "timestamp": NOON,
        "key": "ada",
        "value": "hello",
        "headers": [{"name": "lang", "value": "en"}],
    }
    assert documents[1]["records"][0]["key_base64"] == "/w=="
    assert documents[-1] == {
        "path": str(segment),
        "kind": "summary",
        "batches": 2,
        "records": 3,
        "size": segment.stat().st_size,
        "bad_checksums": 0,
        "problems": 0,
    }


def test_records_of_coordinators_are_decoded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As by kafka-dump-log --offsets-decoder and --transaction-log-decoder (DumpLogSegmentsTest, OffsetMessageFormatterTest)."""
    topic_id, key = uuid4(), encode_offset_key(OffsetKey("billing", "clicks", 1))
    group = StoreGroup("billing", "consumer", 3, "range", "m", 7, (StoredMember("m", None, "c", "/h", 1, 2, b"s", b"a"),))
    records = [
        Record(0, NOON, key, encode_offset(CommittedOffset(100, 10, "about", 1234), topic_id)),
        Record(1, NOON, key, None),
        Record(2, NOON, encode_group_key("billing"), encode_group(group)),
        Record(3, NOON, *encode_change("reading", EpochChange(4))),
        Record(4, NOON, b"\0\x63", b"of a later release"),
        Record(5, NOON, key, b"?"),
    ]
    ongoing = Transaction("pay", 7, 2, 60_000, TransactionState.ONGOING, frozenset({TopicPartition("clicks", 1)}), 1, 2)
    of_transactions = [Record(0, NOON, encode_key("pay"), encode(ongoing))]
    for directory, of_directory in (
        ("__consumer_offsets-3", records),
        ("__transaction_state-0", of_transactions),
        ("clicks-0", records[:1]),
    ):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "00000000000000000000.log").write_bytes(build_batch(of_directory))

    def dumped(directory: str) -> list[Any]:
        assert run(["log", "dump", "--json", "--records", str(tmp_path / directory / "00000000000000000000.log")]) == 0
        return [record.get("decoded") for record in json.loads(capsys.readouterr().out.splitlines()[0])["records"]]

    offset, tombstone, stored, changed, *others = dumped("__consumer_offsets-3")
    assert offset["key"] == tombstone["key"] == {"group_id": "billing", "topic": "clicks", "partition": 1}
    assert offset["value"]["topic_id"] == str(topic_id)
    assert (
        offset["value"]["committed"].items() >= {"offset": 100, "leader_epoch": 10, "metadata": "about", "commit_timestamp": 1234}.items()
    )
    assert tombstone["value"] is None and others == [None, None] and changed["key"]["group_id"] == "reading"
    assert (stored["value"]["generation_id"], stored["value"]["members"][0]["subscription"]) == (3, "cw==")
    (transaction,) = dumped("__transaction_state-0")
    assert transaction["key"] == "pay" and transaction["value"]["state"] == "ONGOING"
    assert transaction["value"]["partitions"] == [{"topic": "clicks", "partition": 1}] and dumped("clicks-0") == [None]
    assert run(["log", "dump", "-r", str(tmp_path / "__consumer_offsets-3" / "00000000000000000000.log")]) == 0
    assert '    1  2013-07-04T12:00:00.000Z  {"group_id": "billing", "topic": "clicks", "partition": 1} → null\n' in capsys.readouterr().out


def test_a_flipped_bit_is_a_wrong_checksum_and_code_1(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray(segment.read_bytes())
    content[70] ^= 1
    segment.write_bytes(content)
    assert run(["log", "dump", str(segment)]) == 1
    told = capsys.readouterr()
    assert "WRONG" in told.out and "1 checksum wrong" in told.out
    assert told.err == "ottla: 1 problem found\n"


def test_a_torn_tail_is_told_with_its_position(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = segment.read_bytes()
    segment.write_bytes(content[:-5])
    assert run(["log", "dump", "--no-index-check", str(segment)]) == 1
    assert "torn batch" in capsys.readouterr().out


def test_an_index_that_lies_is_told(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment.with_suffix(".index").write_bytes(OFFSET_ENTRY.pack(2, 33))
    assert run(["log", "dump", str(segment)]) == 1
    assert "no batch begins" in capsys.readouterr().out


def test_indexes_and_checkpoints_are_shown_too(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    epochs = segment.parent / "leader-epoch-checkpoint"
    epochs.write_text("0\n1\n4 0\n")
    files = [str(segment.with_suffix(".index")), str(segment.with_suffix(".timeindex")), str(epochs)]
    assert run(["log", "dump", *files]) == 0
    out = capsys.readouterr().out
    assert "offset +2  @" in out
    assert "2013-07-04T12:00:00.002Z  offset +2" in out
    assert "leader epoch 4 from offset 0" in out


def test_aborted_transactions_are_shown_and_compared_with_their_segment(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The segment has the offsets 0 to 2, and so has the marker of whatever was aborted in it."""
    path = segment.with_suffix(".txnindex")
    for last_offset, torn, code, end in ((2, b"", 0, "1 aborted transaction"), (2, b"x", 1, "no multiple"), (3, b"", 1, "a marker at 3")):
        path.write_bytes(struct.pack(">hqqqq", 0, 424242, 0, last_offset, 1) + torn)
        assert run(["log", "dump", str(path)]) == code
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"producer_id 424242  first_offset 0  last_offset {last_offset}  last_stable_offset 1"
        assert end in lines[1]


def test_each_line_of_json_says_of_which_file_it_is(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`*/*.log` is what is typed, and a position without its file is of no use."""
    epochs = segment.parent / "leader-epoch-checkpoint"
    epochs.write_text("0\n1\n4 0\n")
    assert run(["log", "dump", "--json", str(segment), str(epochs)]) == 0
    paths = [json.loads(line)["path"] for line in capsys.readouterr().out.splitlines()]
    assert paths == [str(segment)] * 5 + [str(epochs)] * 2


def test_a_file_of_another_kind_is_refused_before_any_is_printed(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 is that nothing was tried. A directory's `*` has partition.metadata, too."""
    (segment.parent / "notes.txt").write_text("hello")
    assert run(["log", "dump", str(segment), str(segment.parent / "notes.txt")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "leader-epoch-checkpoint" in printed.err

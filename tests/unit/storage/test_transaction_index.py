"""The index of aborted transactions: Kafka's bytes, and what a reader of a range is told."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage.transaction_index import AbortedTransaction, TransactionIndex

FIRST = AbortedTransaction(producer_id=7, first_offset=100, last_offset=110, last_stable_offset=105)
SECOND = AbortedTransaction(producer_id=8, first_offset=105, last_offset=120, last_stable_offset=121)


def index_of(path: Path, *entries: AbortedTransaction) -> TransactionIndex:
    index = TransactionIndex(str(path))
    for entry in entries:
        index.append(entry)
    return index


def collected(index: TransactionIndex, offset: int, up_to: int) -> tuple[list[AbortedTransaction], bool]:
    found: list[AbortedTransaction] = []
    return found, index.collect(offset, up_to, found)


def test_entries_are_kafkas_bytes(tmp_path: Path) -> None:
    """AbortedTxn: version, producer id, first, last and last stable offset; 34 bytes, big-endian."""
    index = index_of(tmp_path / "0.txnindex", FIRST, SECOND)
    index.write()
    content = (tmp_path / "0.txnindex").read_bytes()
    assert content == struct.pack(">hqqqq", 0, 7, 100, 110, 105) + struct.pack(">hqqqq", 0, 8, 105, 120, 121)
    assert list(TransactionIndex(index.path)) == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("offset", "up_to", "expected", "is_complete"),
    [
        (0, 100, [], True),  # all of it lies later, and it says so itself
        (0, 101, [FIRST], True),
        (106, 107, [FIRST, SECOND], True),
        (110, 111, [FIRST, SECOND], True),  # the marker itself
        (111, 112, [SECOND], True),
        (111, 122, [SECOND], False),  # a later segment may have more
        (121, 130, [], False),
    ],
)
def test_a_reader_is_told_of_what_touches_its_range(
    tmp_path: Path, offset: int, up_to: int, expected: list[AbortedTransaction], is_complete: bool
) -> None:
    assert collected(index_of(tmp_path / "0.txnindex", FIRST, SECOND), offset, up_to) == (expected, is_complete)


def test_no_file_is_an_empty_index_and_none_is_made_for_it(tmp_path: Path) -> None:
    index = TransactionIndex(str(tmp_path / "0.txnindex"))
    assert (len(index), collected(index, 0, 10)) == (0, ([], False))
    assert not index.write()
    index.truncate(0)
    assert list(tmp_path.iterdir()) == []


def test_what_a_torn_write_left_behind_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    index_of(path, FIRST).write()
    path.write_bytes(path.read_bytes() + b"torn")
    index = TransactionIndex(str(path))
    index.append(SECOND)
    index.write()
    assert list(TransactionIndex(str(path))) == [FIRST, SECOND]


def test_what_is_not_on_the_disk_yet_is_known(tmp_path: Path) -> None:
    index = index_of(tmp_path / "0.txnindex", FIRST)
    assert index.unsynced is None, "there is no file to be synced yet"
    assert index.write()
    assert index.unsynced == 34
    index.append(SECOND)
    index.synced(34)
    assert index.unsynced is None
    assert not index.write(), "the file was there already"
    assert index.unsynced == 68
    index.truncate(111)
    assert index.unsynced == 34, "the disk may have what was cut off"
    index.synced(34)
    assert index.unsynced is None


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (FIRST._replace(first_offset=111), "111 to 110"),
        (FIRST._replace(last_offset=99, first_offset=98), "after a marker at 99"),
        (FIRST._replace(last_stable_offset=-1), "stable at -1"),
        (FIRST._replace(last_offset=200), "a marker at 200 where the segment ends at 150"),
    ],
)
def test_entries_that_can_not_be_are_found(tmp_path: Path, entry: AbortedTransaction, problem: str) -> None:
    found = index_of(tmp_path / "0.txnindex", entry).problem(100, 150)
    assert found is not None
    assert problem in found
    assert index_of(tmp_path / "1.txnindex", FIRST, SECOND).problem(100, 150) is None


def test_a_version_that_is_not_known_is_found(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    path.write_bytes(struct.pack(">hqqqq", 1, 7, 100, 110, 105))
    assert TransactionIndex(str(path)).problem(100, None) == "an entry has version 1"


def test_zeros_where_a_loss_of_power_left_the_size_and_not_the_entry_are_none(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    path.write_bytes(bytes(34))
    assert TransactionIndex(str(path)).problem(0, None) is not None


@st.composite
def histories(draw: st.DrawFn) -> list[AbortedTransaction]:
    """Aborted transactions as a log would have them: of any number of producers, each one after the other."""
    open_since: dict[int, int] = {}
    entries = []
    for offset, producer in enumerate(draw(st.lists(st.integers(0, 3), max_size=30))):
        if producer not in open_since:
            open_since[producer] = offset
        else:
            first = open_since.pop(producer)
            entries.append(AbortedTransaction(producer, first, offset, min(open_since.values(), default=offset + 1)))
    return entries


@given(histories(), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_any_range_of_any_history(
    tmp_path_factory: pytest.TempPathFactory, entries: list[AbortedTransaction], cut: int, offset: int, size: int
) -> None:
    """As told by the definition: those that begin before the range's end and whose markers lie at or behind its begin."""
    path = tmp_path_factory.mktemp("index") / "0.txnindex"
    index = index_of(path, *entries)
    index.write()
    index.truncate(cut)
    left = [entry for entry in entries if entry.last_offset < cut]
    for again in (index, TransactionIndex(str(path))):
        assert list(again) == left
        found, is_complete = collected(again, offset, offset + size)
        assert found == [
            transaction for transaction in left if transaction.first_offset < offset + size and transaction.last_offset >= offset
        ]
        later = [entry for entry in entries if entry.last_offset >= cut]
        assert not is_complete or not any(transaction.first_offset < offset + size for transaction in later)

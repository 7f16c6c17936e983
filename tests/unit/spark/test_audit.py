"""What is said of a partition's day, without a table and without a counter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

pytest.importorskip("xxhash")

from ottla.model import TopicPartition
from ottla.record.audit_records import Verdict
from ottla.record.columnar import read_columns
from ottla.record.digests import OffsetSums, contents_of_columns, placed
from ottla.record.digests import digest as digest_of_all
from ottla.record.message_ids import ID_HEADER
from ottla.record.records import Record, build_batch
from ottla.spark.audit import CountTask, Known, PartitionVerdict, Rows, Said, judge, united
from ottla.spark.loading.files import file_schema
from ottla.spark.reading import record_batch
from ottla.spark.table import ParquetFile

PLACE = TopicPartition("t", 0)


def runs(*ranges: tuple[int, int]) -> np.ndarray:
    return np.array(ranges, np.int64).reshape(-1, 2)


def said(offsets: Sequence[int], placed: int | None = None) -> Said:
    return Said(len(offsets), min(offsets), max(offsets), OffsetSums.of(np.array(offsets)), placed)


def judged(
    brokers: Sequence[int], *rows: tuple[int, int], known: Known | None = None, elsewhere: np.ndarray | None = None
) -> PartitionVerdict:
    return judge(PLACE, said(brokers), Rows(runs(*rows)), known or Known(0, 1000), elsewhere)


def test_ranges_are_united_and_what_lies_under_two_is_doubled() -> None:
    """Against sets, of random runs."""
    random = Random(4)
    for _ in range(200):
        given = [(start, start + random.randrange(1, 9)) for start in (random.randrange(40) for _ in range(random.randrange(8)))]
        whole, doubled = united(runs(*given))
        counts = np.zeros(60, int)
        for start, end in given:
            counts[start:end] += 1
        assert [offset for start, end in whole.tolist() for offset in range(start, end)] == np.flatnonzero(counts).tolist()
        assert [offset for start, end in doubled.tolist() for offset in range(start, end)] == np.flatnonzero(counts > 1).tolist()


def test_the_same_offsets_are_complete_in_however_many_files() -> None:
    found = judged(range(100), (40, 100), (0, 40))
    assert (found.verdict, found.brokers, found.rows, found.first, found.last, found.evidence) == ("COMPLETE", 100, 100, 0, 99, "offsets")
    assert judge(PLACE, None, Rows(runs()), Known(0, 0)).verdict == Verdict.COMPLETE


def test_offsets_that_are_missing_are_named_by_their_sums() -> None:
    """A run, several, at both ends; and where markers lie between, those that the brokers counted and no others."""
    for rows, missing in (
        ([(0, 40), (50, 100)], ((40, 50),)),
        ([(3, 20), (25, 90)], ((0, 3), (20, 25), (90, 100))),
        ([], ((0, 100),)),
    ):
        found = judged(range(100), *rows)
        assert (found.verdict, found.missing, found.is_exact) == (Verdict.LOSS, missing, True)
    marked = [offset for offset in range(100) if offset % 10 != 9]  # every tenth is a marker
    kept = [(start, start + 9) for start in range(0, 100, 10)]
    found = judged(marked, *kept[:3], *kept[4:])
    assert (found.verdict, found.missing, found.is_exact, found.missing_count) == (Verdict.LOSS, ((30, 39),), True, 9)
    # Two runs among markers: the commits say which ranges have all that they had.
    filled = [(start, start + 10, 9) for start in range(0, 100, 10)]
    found = judged(marked, *kept[:3], *kept[4:6], *kept[7:], known=Known(0, 1000, filled))
    assert (found.verdict, found.missing, found.is_exact) == (Verdict.LOSS, ((30, 40), (60, 70)), False)
    found = judged(marked, *kept[:3], *kept[4:6], *kept[7:])
    assert (found.missing_count, found.is_exact, found.missing[:4]) == (18, False, ((9, 10), (19, 20), (29, 40), (49, 50)))


def test_what_is_of_another_day_is_not_missing() -> None:
    even, odd = range(0, 100, 2), runs(*((offset, offset + 1) for offset in range(1, 100, 2)))
    mine = [(offset, offset + 1) for offset in even if offset not in (20, 60)]
    found = judged(even, *mine, elsewhere=odd)
    assert (found.verdict, found.missing, found.is_exact) == (Verdict.LOSS, ((20, 21), (60, 61)), True)


def test_rows_that_are_there_twice_are_doubled() -> None:
    found = judged(range(100), (0, 100), (10, 20), (15, 30), (10, 12))
    assert (found.verdict, found.doubled, found.doubled_count) == (Verdict.DUPLICATE, ((10, 30),), 27)
    both = judged(range(100), (0, 90), (10, 20))
    assert (both.verdict, both.missing, both.doubled) == (Verdict.LOSS, ((90, 100),), ((10, 20),))


def test_what_was_not_loaded_yet_and_what_was_before_the_job_is_no_loss() -> None:
    found = judged(range(100), (0, 60), known=Known(0, 60))
    assert (found.verdict, found.missing, found.reason) == (Verdict.PENDING, (), "the table is at offset 60")
    found = judged(range(100), (40, 100), known=Known(40, 100))
    assert (found.verdict, found.reason) == (Verdict.UNAUDITED, "its job began at offset 40")
    found = judged(range(100), (0, 20), (30, 60), known=Known(0, 60))
    assert (found.verdict, found.missing, found.missing_count) == (Verdict.LOSS, ((20, 30),), 10)


def test_silence_is_never_complete_and_other_rows_are_not_these() -> None:
    assert judge(PLACE, None, Rows(runs((0, 5))), Known(0, 5)).verdict == Verdict.UNAUDITED
    found = judged(range(90), (0, 100))
    assert (found.verdict, found.reason) == (Verdict.UNAUDITED, "10 rows are of messages that the brokers have not spoken of")
    assert judged(range(100), (1, 101)).verdict == Verdict.COMPENSATED
    unsummed = Said(100, 0, 99, None)
    assert judge(PLACE, unsummed, Rows(runs((0, 100))), Known(0, 100)).evidence == "counts"
    for digest, verdict in ((7, Verdict.COMPLETE), (8, Verdict.COMPENSATED)):
        found = judge(PLACE, said(range(10), 7), Rows(runs((0, 10)), digest), Known(0, 10))
        assert (found.verdict, found.evidence) == (verdict, "placed")


@pytest.mark.parametrize("headers", [(), (("page", b"7"), (ID_HEADER, b"0123456789abcdef")), ((ID_HEADER, b"short"), ("none", None))])
def test_the_rows_of_a_table_are_hashed_as_the_log_is_with_their_ids_too(
    tmp_path: Path, headers: tuple[tuple[str, bytes | None], ...]
) -> None:
    pytest.importorskip("pyarrow")
    records = [Record(number, 1_700_000_000_000 + number, b"k", b"%d" % number, headers if number % 2 else ()) for number in range(10)]
    (columns,) = read_columns(build_batch(records))
    file = ParquetFile(str(tmp_path), "one.parquet", file_schema())
    file.write(record_batch(columns, PLACE, file_schema()))
    file.close()
    rows = CountTask(str(tmp_path), ("one.parquet",), None, has_contents=True).run()
    assert rows[0].placed == digest_of_all(placed(contents_of_columns(columns), 0, columns.offsets))

"""`compression.type` of a topic: another codec around the same records."""

from __future__ import annotations

import pytest

from ottla.errors import InvalidRecord
from ottla.record.batch import CODEC_MASK, check_batch, read_header
from ottla.record.codecs import CODEC_NAMES, GZIP, NONE, ZSTD, DecompressedTooLarge
from ottla.record.opening import recompress
from ottla.record.records import Record, build_batch, read_records, seal

RECORDS = [Record(7 + index, 1_000 + index, b"key", b"value " * index, (("h", None),)) for index in range(50)]


@pytest.mark.parametrize("before", CODEC_NAMES)
@pytest.mark.parametrize("after", CODEC_NAMES)
def test_records_and_header_stay_and_the_codec_changes(before: int, after: int) -> None:
    batch = build_batch(
        RECORDS, base_offset=7, codec=before, producer_id=3, producer_epoch=1, base_sequence=9, transactional=True, leader_epoch=2
    )
    changed = recompress(memoryview(batch), after)
    header, was = check_batch(memoryview(changed)), read_header(batch)
    assert header == was._replace(length=header.length, crc=header.crc, attributes=was.attributes & ~CODEC_MASK | after)
    assert list(read_records(changed)) == RECORDS
    assert recompress(changed, NONE) == recompress(batch, NONE), "the records' bytes are the same"


def test_a_batch_that_has_the_codec_stays_byte_for_byte() -> None:
    batch = build_batch(RECORDS, codec=GZIP, level=1)
    assert recompress(batch, GZIP) == batch


def test_a_damaged_payload_and_a_bomb_are_refused() -> None:
    batch = build_batch(RECORDS, codec=ZSTD)
    with pytest.raises(InvalidRecord):
        recompress(seal(read_header(batch), batch[61:-4]), GZIP)
    with pytest.raises(DecompressedTooLarge):
        recompress(batch, GZIP, maximum_decompressed=1_000)

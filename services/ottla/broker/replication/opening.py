"""What can only be done with a batch opened: another codec, and the keys of a compacted topic.

Bulk work on bytes that came from outside, so it runs beside the loop and its output is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.config.topic import TopicSettings
from ottla.errors import InvalidRecord
from ottla.model import TopicPartition
from ottla.record.batch import check_batch
from ottla.record.codecs import CODEC_NAMES, codec_number
from ottla.record.recompress import recompress
from ottla.record.records import read_records

# A batch of a megabyte can have more records than an answer should name; all of them are counted in its message.
NAMED_AT_MOST: Final = 1_000
_SHOWN: Final = 3


def opened_for_topic(batch: bytes, topic_partition: TopicPartition, settings: TopicSettings) -> bytes:
    """The batch as its topic wants it stored.

    Raises:
        InvalidRecord: records without a key on a compacted topic, which it names, or records that can not be read.
        ApiError: what `check_batch` finds.
    """
    header = check_batch(memoryview(batch))
    if settings.is_compacted:
        without_key = [index for index, record in enumerate(read_records(batch)) if record.key is None]
        if without_key:
            raise _refusal(without_key, f"Compacted topic cannot accept message without key in topic partition {topic_partition}.")
    if settings.compression_type == "producer":
        return batch
    codec = codec_number(settings.compression_type)
    if header.codec == codec:
        return batch
    levels = {"gzip": settings.compression_gzip_level, "lz4": settings.compression_lz4_level, "zstd": settings.compression_zstd_level}
    level = levels.get(CODEC_NAMES[codec])
    return recompress(batch, codec, None if level == -1 else level)


def _refusal(indexes: Sequence[int], complaint: str) -> InvalidRecord:
    """The refusal of a batch for some of its records, in Kafka's words (`LogValidator`)."""
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{complaint}')" for index in indexes[:_SHOWN])
    return InvalidRecord(
        f"One or more records have been rejected due to {len(indexes)} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]",
        [(index, complaint) for index in indexes[:NAMED_AT_MOST]],
    )

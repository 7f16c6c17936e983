"""What can only be done with a batch opened: another codec, and the keys of a compacted topic.

Bulk work on bytes that came from outside, so it runs beside the loop and its output is bounded.
"""

from __future__ import annotations

from ottla.config.topic import TopicSettings
from ottla.errors import InvalidRecord
from ottla.record.batch import check_batch
from ottla.record.codecs import CODEC_NAMES, codec_number
from ottla.record.recompress import recompress
from ottla.record.records import read_records


def opened_for_topic(batch: bytes, settings: TopicSettings) -> bytes:
    """The batch as its topic wants it stored.

    Raises:
        InvalidRecord: a record without a key on a compacted topic, or records that cannot be read.
        ApiError: what `check_batch` finds.
    """
    header = check_batch(memoryview(batch))
    if settings.is_compacted:
        for record in read_records(batch):
            if record.key is None:
                raise InvalidRecord(f"the record {record.offset - header.base_offset} of the batch has no key, and the topic is compacted")
    if settings.compression_type == "producer":
        return batch
    codec = codec_number(settings.compression_type)
    if header.codec == codec:
        return batch
    levels = {"gzip": settings.compression_gzip_level, "lz4": settings.compression_lz4_level, "zstd": settings.compression_zstd_level}
    level = levels.get(CODEC_NAMES[codec])
    return recompress(batch, codec, None if level == -1 else level)

"""Another codec for a batch, when a topic's `compression.type` is not `producer`.

The records are not taken apart: what the producer's codec packed is unpacked and packed again, byte for byte, and
only attributes, length and checksum change. It is bulk work and goes through `offload`.
"""

from __future__ import annotations

from ottla.record.batch import CODEC_MASK, HEADER_SIZE
from ottla.record.codecs import MAXIMUM_DECOMPRESSED, compress, decompress
from ottla.record.records import seal, whole_header


def recompress(batch: bytes | memoryview, codec: int, level: int | None = None, maximum_decompressed: int = MAXIMUM_DECOMPRESSED) -> bytes:
    """The batch under `codec`; as it is when it has that codec already.

    Raises:
        CorruptMessage: the batch is cut short.
        InvalidRecord: its payload is damaged, or unpacks to more than the bound (DecompressedTooLarge).
        UnsupportedCompressionType: its codec or the wanted one is unknown.
    """
    header = whole_header(batch)
    if header.codec == codec:
        return bytes(batch)
    payload = decompress(header.codec, memoryview(batch)[HEADER_SIZE : header.size], maximum_decompressed)
    return seal(header._replace(attributes=header.attributes & ~CODEC_MASK | codec), compress(codec, payload, level))

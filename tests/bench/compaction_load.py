"""What the bench of compaction runs in processes of their own: making a log, cleaning it, and the floor of that.

`python -m tests.bench.compaction_load JSON` prints one JSON line.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.keyed_batches import KeyedBatches, every_key_twice

from ottla.storage.compaction.clean import clean
from ottla.storage.compaction.job import CleaningJob, SourceSegment
from ottla.storage.compaction.offset_map import SLOT_SIZE
from ottla.storage.file_names import CLEANED_SUFFIX, LOG_SUFFIX, segment_file_name

RECORDS_PER_BATCH: Final = 1_000
SEGMENT_BYTES: Final = 128 << 20
LOAD_FACTOR: Final = 0.9
BUFFER_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class CompactionLoad:
    """`make` writes a log of every key twice; `clean` cleans it; `copy` reads as many bytes and writes as many as that did."""

    kind: str
    directory: str
    keys: int
    value_size: int = 100
    bytes_read: int = 0
    bytes_written: int = 0


def make(load: CompactionLoad) -> dict[str, Any]:
    batches = KeyedBatches(RECORDS_PER_BATCH, load.value_size, time.time_ns() // 1_000_000)
    offset = 0
    file = None
    try:
        for keys in every_key_twice(load.keys, RECORDS_PER_BATCH):
            if file is None or file.tell() + batches.size > SEGMENT_BYTES:
                if file is not None:
                    file.close()
                file = open(Path(load.directory) / segment_file_name(offset, LOG_SUFFIX), "wb")  # noqa: SIM115 - closed below
            file.write(batches.made(keys, offset))
            offset += RECORDS_PER_BATCH
    finally:
        if file is not None:
            file.close()
    os.sync()
    return {"records": offset, "bytes": sum(source.size for source in _sources(load))}


def _sources(load: CompactionLoad) -> list[SourceSegment]:
    paths = sorted(Path(load.directory).glob(f"*{LOG_SUFFIX}"))
    bases = [int(path.stem) for path in paths]
    ends = [*bases[1:], 2 * load.keys]
    return [SourceSegment(base, end, path.stat().st_size) for path, base, end in zip(paths, bases, ends, strict=True)]


def clean_all(load: CompactionLoad) -> dict[str, Any]:
    sources = _sources(load)
    job = CleaningJob(
        name="bench-0",
        directory=load.directory,
        sources=tuple(sources),
        following=(),
        first_dirty_offset=0,
        committed_offset=2 * load.keys,
        producers=(),
        epoch_begins=(),
        now_ms=time.time_ns() // 1_000_000,
        delete_retention_ms=86_400_000,
        segment_bytes=SEGMENT_BYTES,
        segment_index_bytes=10 << 20,
        index_interval_bytes=4096,
        # What the broker would need: a setting for each log.cleaner.threads.
        map_bytes=int(SLOT_SIZE * load.keys / LOAD_FACTOR) + (1 << 20),
        load_factor=LOAD_FACTOR,
        buffer_bytes=BUFFER_BYTES,
        bytes_per_second=float("inf"),
    )
    before = _peak_bytes()
    began, cpu = time.perf_counter(), time.process_time()
    result = clean(job, lambda cleaned: None, lambda size: None)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert (result.keys, result.records_after) == (load.keys, load.keys), result
    for path in Path(load.directory).glob(f"*{CLEANED_SUFFIX}"):
        path.unlink()
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "bytes_before": result.bytes_before,
        "bytes_read": result.bytes_read,
        "bytes_after": result.bytes_after,
        "peak_bytes": _peak_bytes(),
        "map_and_buffers": _peak_bytes() - before,
    }


def copy(load: CompactionLoad) -> dict[str, Any]:
    """The floor: the same bytes read in chunks of the same size, and as many of them written and synced."""
    paths = sorted(Path(load.directory).glob(f"*{LOG_SUFFIX}"))
    began = time.perf_counter()
    read = written = 0
    target = os.open(f"{load.directory}/floor", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        while read < load.bytes_read:
            for path in paths:
                source = os.open(path, os.O_RDONLY)
                try:
                    while chunk := os.read(source, BUFFER_BYTES):
                        read += len(chunk)
                        if written < load.bytes_written:
                            written += os.write(target, chunk)
                        if read >= load.bytes_read:
                            break
                finally:
                    os.close(source)
                if read >= load.bytes_read:
                    break
        os.fsync(target)
    finally:
        os.close(target)
    seconds = time.perf_counter() - began
    Path(f"{load.directory}/floor").unlink()
    return {"seconds": seconds}


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    load = CompactionLoad(**json.loads(sys.argv[1]))
    kinds = {"make": make, "clean": clean_all, "copy": copy}
    sys.stdout.write(json.dumps(kinds[load.kind](load)) + "\n")


if __name__ == "__main__":
    main()

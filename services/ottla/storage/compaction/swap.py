"""A cleaned segment takes the place of others, in steps of which a crash may leave any beginning.

    1  .index.cleaned … -> .index.swap …, at last .log.cleaned -> .log.swap     from here on the new segment is the truth
    2  the old segments' files get `.deleted` behind their names, in order of offsets
    3  .log.swap -> .log, at last .index.swap -> .index …

What a start makes of it (`complete_swaps`): without a `.log.swap` either step 1 has not ended, then nothing has happened, or
step 3 has begun, then the rest of it is done. With one, steps 2 and 3 are done again. What goes in step 2 goes from the
oldest on, so that whatever a crash leaves of it is the end of what was replaced: records that are no longer needed, never an
older one without the later.

Everything but `complete_swaps` runs on the loop that owns the log, in one step with the change of its list: renames of a few
microseconds. Source: Kafka's `LocalLog.replaceSegments` and `LogLoader`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ottla.storage.batches import headers
from ottla.storage.delayed_deletes import rename_to_deleted
from ottla.storage.file_names import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_in,
    segment_file_name,
)
from ottla.storage.log_sync import PASSING

log = logging.getLogger(__name__)

COMPANION_SUFFIXES: Final = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


class SwapNotBegun(OSError):
    """The first step failed and was taken back: the log is as it was, and the same swap can be tried again."""


def swap(directory: str, base_offset: int, replaced: Sequence[int]) -> list[str]:
    """Puts a cleaned segment in the place of those at the offsets `replaced`; gives the files that are to be deleted.

    Producer snapshots stay but for those of segments that are no more.

    Raises:
        SwapNotBegun: there is no room for the names of the new segment, or the disk has failed.
        OSError: a rename failed later; the next start completes what was begun.
    """
    stem = f"{directory}/{segment_file_name(base_offset, '')}"
    there = [suffix for suffix in COMPANION_SUFFIXES if Path(stem + suffix + CLEANED_SUFFIX).exists()]
    begun = []
    try:
        for suffix in (*there, LOG_SUFFIX):
            os.rename(stem + suffix + CLEANED_SUFFIX, stem + suffix + SWAP_SUFFIX)  # noqa: PTH104  a Path costs more than the rename
            begun.append(stem + suffix + SWAP_SUFFIX)
    except OSError as error:
        for path in begun:
            os.unlink(path)  # noqa: PTH108
        raise SwapNotBegun(error.errno, error.strerror, error.filename) from error
    deleted = []
    for old_offset in replaced:
        gone = () if old_offset == base_offset else (SNAPSHOT_SUFFIX,)
        for suffix in (LOG_SUFFIX, *COMPANION_SUFFIXES, *gone):
            path = f"{directory}/{segment_file_name(old_offset, suffix)}"
            try:
                deleted.append(rename_to_deleted(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in PASSING:
                    raise
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)  # noqa: PTH108  no room for another name: its data is freed on the spot
    for suffix in (LOG_SUFFIX, *there):
        os.rename(stem + suffix + SWAP_SUFFIX, stem + suffix)  # noqa: PTH104
    return deleted


def remove_cleaned(directory: Path) -> None:
    """Removes what an ended cleaning has left. It blocks; the log may be in use."""
    for path in directory.glob(f"*{CLEANED_SUFFIX}"):
        path.unlink(missing_ok=True)


def complete_swaps(directory: Path, names: set[str]) -> None:
    """Brings what a crash has left of a swap to its end, or to its beginning. For a start, before anything is read.

    Args:
        directory: the partition's.
        names: the files there; brought up to date.

    Raises:
        OSError: the disk cannot be read or written.
    """
    cleaned = [offset_in(name) for name in names if name.endswith(LOG_SUFFIX + CLEANED_SUFFIX)]
    for name in sorted(name for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
        base_offset = offset_in(name)
        if base_offset is None:
            continue
        if any(other is not None and other <= base_offset for other in cleaned):
            # Kafka splits a segment by two or more swaps at a time, and renames the last one first: it was not done.
            _remove(directory, name, names)
        else:
            _complete(directory, base_offset, names)
    for name in sorted(name for name in names if name.endswith(SWAP_SUFFIX)):
        final = name.removesuffix(SWAP_SUFFIX)
        stem = final.rpartition(".")[0]
        if stem + LOG_SUFFIX + CLEANED_SUFFIX in names or stem + LOG_SUFFIX not in names or final in names:
            _remove(directory, name, names)
        else:
            _rename(directory, name, final, names)


def _complete(directory: Path, base_offset: int, names: set[str]) -> None:
    """Steps 2 and 3, of a segment whose files end in `.swap`."""
    stem = segment_file_name(base_offset, "")
    next_offset = _next_offset(directory / (stem + LOG_SUFFIX + SWAP_SUFFIX), base_offset)
    olds = sorted(
        {
            offset
            for name in names
            if name.endswith((LOG_SUFFIX, *COMPANION_SUFFIXES))
            and (offset := offset_in(name)) is not None
            and (offset == base_offset or base_offset < offset < next_offset)
        }
    )
    for old_offset in olds:
        for suffix in (LOG_SUFFIX, *COMPANION_SUFFIXES):
            _remove(directory, segment_file_name(old_offset, suffix), names)
    for suffix in (LOG_SUFFIX, *COMPANION_SUFFIXES):
        if stem + suffix + SWAP_SUFFIX in names:
            _rename(directory, stem + suffix + SWAP_SUFFIX, stem + suffix, names)
    log.info("%s: the cleaned segment at %d replaced those before %d", directory.name, base_offset, next_offset)


def _next_offset(path: Path, base_offset: int) -> int:
    """Behind the last record of a segment."""
    next_offset = base_offset
    with open(path, "rb", buffering=0) as file:
        for _, header in headers(file.fileno(), 0, path.stat().st_size):
            next_offset = header.last_offset + 1
    return next_offset


def _rename(directory: Path, name: str, final: str, names: set[str]) -> None:
    (directory / name).replace(directory / final)
    names.discard(name)
    names.add(final)


def _remove(directory: Path, name: str, names: set[str]) -> None:
    if name in names:
        (directory / name).unlink(missing_ok=True)
        names.discard(name)

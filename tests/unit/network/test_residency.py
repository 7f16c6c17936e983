"""What lies in the page cache and what does not, on a real file."""

from __future__ import annotations

import errno
import os
import posix
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ottla.network.send import CHUNK_SIZE, PROBE_STRIDE, bring_in, is_resident

SIZE = 3 * CHUNK_SIZE + 100


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(SIZE))
    opened = os.open(path, os.O_RDONLY)
    posix.fsync(opened)  # a page that is not written yet stays; os.fsync waits for nothing in these tests
    yield opened
    os.close(opened)


def test_a_file_dropped_from_the_cache_is_absent_until_it_is_brought_in(fd: int) -> None:
    """A file system that does not know RWF_NOWAIT never says resident; then everything goes through a thread."""
    known = is_resident(fd, 0, SIZE)
    for _ in range(100):
        # An advice: the kernel keeps a page that is in use, and starts to read, as quick as the disk is, where it is asked.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if not is_resident(fd, 0, SIZE):
            break
        time.sleep(0.05)
    else:
        pytest.skip("this kernel keeps the file in memory, whatever it is advised")
    bring_in(fd, 0, SIZE)
    assert is_resident(fd, 0, SIZE) == known


def test_bringing_in_moves_no_position_and_ends_at_the_files_end(fd: int) -> None:
    os.lseek(fd, 7, os.SEEK_SET)
    bring_in(fd, SIZE - 10, 1000)
    bring_in(fd, SIZE + 10, 1000)
    assert os.lseek(fd, 0, os.SEEK_CUR) == 7


@pytest.mark.parametrize("size", [1, PROBE_STRIDE, PROBE_STRIDE + 1, CHUNK_SIZE])
def test_first_and_last_byte_are_probed_and_no_stretch_between_is_longer_than_the_read_ahead(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    probed = []

    def preadv(fd: int, buffers: Any, offset: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        probed.append(offset)
        return 1

    monkeypatch.setattr(os, "preadv", preadv)
    assert is_resident(0, 1000, size)
    assert probed[0] == 1000
    assert probed[-1] == 1000 + size - 1
    assert all(later - earlier <= PROBE_STRIDE for earlier, later in pairwise(probed))


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.EOPNOTSUPP, errno.EIO])
def test_an_answer_that_would_wait_or_is_not_known_is_absent(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    def preadv(*_: Any) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "preadv", preadv)
    assert not is_resident(0, 0, 100)


def test_a_range_beyond_the_files_end_is_absent(fd: int) -> None:
    assert not is_resident(fd, SIZE - 10, 20)

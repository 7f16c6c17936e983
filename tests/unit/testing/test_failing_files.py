"""A disk that fails when a test says so."""

import errno
import os
from pathlib import Path

import pytest

from ottla.testing.failing_files import failing_files


def test_a_full_disk_takes_the_bytes_that_fit_and_refuses_the_rest(tmp_path: Path) -> None:
    file = os.open(tmp_path / "a", os.O_WRONLY | os.O_CREAT)
    with failing_files(tmp_path, writes_after=7) as disk:
        assert os.write(file, b"12345") == 5
        assert os.writev(file, [b"67", b"89"]) == 2
        with pytest.raises(OSError) as failure:
            os.writev(file, [b"89"])
        assert failure.value.errno == errno.ENOSPC
        assert disk.failures == 1
        disk.heal()
        assert os.pwrite(file, b"89", 7) == 2
    os.close(file)
    assert (tmp_path / "a").read_bytes() == b"123456789"


def test_fsync_fails_with_the_error_that_was_asked_for(tmp_path: Path) -> None:
    file = os.open(tmp_path / "a", os.O_WRONLY | os.O_CREAT)
    with failing_files(tmp_path, fsync=True, error=errno.EIO):
        os.write(file, b"x")
        for synchronise in (os.fsync, os.fdatasync):
            with pytest.raises(OSError) as failure:
                synchronise(file)
            assert failure.value.errno == errno.EIO
    os.fsync(file)
    os.close(file)


def test_other_directories_are_not_concerned(tmp_path: Path) -> None:
    (tmp_path / "sick").mkdir()
    file = os.open(tmp_path / "sickness", os.O_WRONLY | os.O_CREAT)
    with failing_files(tmp_path / "sick", writes_after=0, fsync=True):
        assert os.write(file, b"x") == 1
        os.fsync(file)
    os.close(file)

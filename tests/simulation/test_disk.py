"""What is left after a loss of power. Real files; each promise of fsync is asked for a hundred times."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.simulation.disk import Disk, _survived, recording

from ottla.storage.checkpoints import sync_directory, write_atomically


def append(path: Path, data: bytes, *, sync: bool) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(data)
        if sync:
            os.fsync(file.fileno())


def crashes(directory: Path) -> Iterator[tuple[Disk, Path, Random]]:
    """A hundred disks, each with its own chance."""
    for seed in range(100):
        disk = Disk(directory / f"disk-{seed}")
        with recording([disk], os.urandom):
            yield disk, Path(disk.root), Random(seed)


def test_what_was_synced_is_there_and_behind_it_a_piece_of_the_rest(tmp_path: Path) -> None:
    for disk, root, random in crashes(tmp_path):
        append(root / "log", b"synced", sync=True)
        sync_directory(root)
        append(root / "log", b"written", sync=False)
        disk.lose_power(random)
        content = (root / "log").read_bytes()
        assert content[:6] == b"synced"
        assert len(content) <= 13


def test_a_tear_takes_every_form() -> None:
    found = {_survived(b"synced", b"synced and written", Random(seed)) for seed in range(300)}
    assert b"synced" in found
    assert b"synced and written" in found
    assert any(each.endswith(b"\0") for each in found), "the size without the blocks"
    assert any(len(each) == 18 and not b"synced and written".startswith(each.rstrip(b"\0")) for each in found), "garbage"
    assert all(each.startswith(b"synced") for each in found)


def test_a_replaced_file_is_the_old_or_the_new_one_and_with_its_directory_synced_the_new(tmp_path: Path) -> None:
    for disk, root, random in crashes(tmp_path):
        write_atomically(root / "checkpoint", b"first")
        write_atomically(root / "checkpoint", b"second")
        aside = root / "checkpoint.new"
        append(aside, b"third", sync=True)
        aside.replace(root / "checkpoint")
        disk.lose_power(random)
        assert (root / "checkpoint").read_bytes() in (b"second", b"third")


def test_a_rename_is_there_or_not_but_never_half(tmp_path: Path) -> None:
    for disk, root, random in crashes(tmp_path):
        append(root / "segment", b"data", sync=True)
        sync_directory(root)
        (root / "segment").rename(root / "segment.deleted")
        disk.lose_power(random)
        assert sorted(each.name for each in root.iterdir()) in (["segment"], ["segment.deleted"])


def test_a_deleted_file_may_come_back_unless_the_directory_was_synced(tmp_path: Path) -> None:
    for disk, root, random in crashes(tmp_path):
        for name in ("kept gone", "comes and goes"):
            append(root / name, b"data", sync=True)
        sync_directory(root)
        (root / "kept gone").unlink()
        sync_directory(root)
        (root / "comes and goes").unlink()
        disk.lose_power(random)
        assert not (root / "kept gone").exists()
        back = root / "comes and goes"
        assert not back.exists() or back.read_bytes() == b"data"


def test_a_directory_that_was_not_synced_in_its_parent_may_be_gone_with_all_its_files(tmp_path: Path) -> None:
    seen = set()
    for seed in range(50):
        disk = Disk(tmp_path / f"disk-{seed}")
        inner = Path(disk.root) / "t-0"
        with recording([disk], os.urandom):
            inner.mkdir()
            append(inner / "log", b"data", sync=True)
            sync_directory(inner)
            disk.lose_power(Random(seed))
        seen.add(inner.exists())
        assert not inner.exists() or (inner / "log").read_bytes() == b"data"
    assert seen == {True, False}


def test_a_cut_that_was_not_synced_may_be_undone(tmp_path: Path) -> None:
    seen = set()
    for seed in range(100):
        disk = Disk(tmp_path / f"disk-{seed}")
        path = Path(disk.root) / "log"
        with recording([disk], os.urandom):
            append(path, b"0123456789", sync=True)
            sync_directory(path.parent)
            os.truncate(path, 4)
            append(path, b"ab", sync=False)
            disk.lose_power(Random(seed))
        seen.add(path.read_bytes())
    assert seen == {b"0123456789", b"0123", b"0123a", b"0123ab"}


def test_after_a_loss_of_power_what_is_there_lasts(tmp_path: Path) -> None:
    for disk, root, random in crashes(tmp_path):
        path = root / "log"
        append(path, b"data", sync=True)
        sync_directory(path.parent)
        append(path, b"more", sync=False)
        disk.lose_power(random)
        found = path.read_bytes()
        disk.lose_power(random)
        assert path.read_bytes() == found


def test_a_killed_process_loses_nothing_but_its_lock(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    root = Path(disk.root)
    with recording([disk], os.urandom):
        append(root / "log", b"written", sync=False)
        append(root / ".lock", b"", sync=False)
        disk.release()
    assert (root / "log").read_bytes() == b"written"
    assert not (root / ".lock").exists()


def test_the_functions_of_os_are_put_back(tmp_path: Path) -> None:
    before = os.fsync, os.rename, os.unlink, os.urandom
    with recording([Disk(tmp_path / "disk")], bytes):
        assert os.urandom(2) == b"\0\0"
    assert (os.fsync, os.rename, os.unlink, os.urandom) == before

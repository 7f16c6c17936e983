"""What is left after a loss of power. Real files; each promise of fsync is asked for a hundred times."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from tests.simulation.disk import CallFault, Crashed, Disk, _survived, recording
from tests.simulation.nodes import NODE, Node

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
    assert any(value.endswith(b"\0") for value in found), "the size without the blocks"
    assert any(len(value) == 18 and not b"synced and written".startswith(value.rstrip(b"\0")) for value in found), "garbage"
    assert all(value.startswith(b"synced") for value in found)


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
        assert sorted(path.name for path in root.iterdir()) in (["segment"], ["segment.deleted"])


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


@contextmanager
def as_a_broker() -> Iterator[None]:
    """Calls fail for processes, and not for the simulation itself."""
    token = NODE.set(Node("broker-1"))
    try:
        yield
    finally:
        NODE.reset(token)


def test_some_sectors_of_an_unsynced_stretch_may_be_missing_while_later_ones_are_there() -> None:
    synced, written = b"s" * 700, bytes(range(1, 251)) * 20
    found = [_survived(synced, synced + written, Random(seed)) for seed in range(200)]
    assert all(content.startswith(synced) for content in found)
    assert any(bytes(400) in content and content[-100:] == written[-100:] for content in found)


def test_each_disk_loses_a_stretch_of_its_own(tmp_path: Path) -> None:
    """Two disks of one machine that goes down: everything, nothing or something of either."""
    seen = set()
    for seed in range(60):
        disks = [Disk(tmp_path / f"{seed}-{number}") for number in range(2)]
        with recording(disks, os.urandom):
            random = Random(seed)
            for disk in disks:
                append(Path(disk.root) / "log", b"a", sync=True)
                sync_directory(Path(disk.root))
                append(Path(disk.root) / "log", b"b" * 50, sync=False)
            for disk in disks:
                disk.lose_power(random)
        seen.add(tuple(len((Path(disk.root) / "log").read_bytes()) for disk in disks))
    assert {(1, 51), (51, 1), (1, 1), (51, 51)} <= seen


def test_calls_fail_by_their_kind_and_file_after_so_many_and_so_often(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    root = Path(disk.root)
    with recording([disk], os.urandom), as_a_broker():
        disk.arm(CallFault("rename", "*-checkpoint|!recovery*", errno.EDQUOT, skips=1, hits=2))
        for name in ("epochs-checkpoint", "recovery-checkpoint"):
            write_atomically(root / name, b"1")
        failures = 0
        for attempt in range(4):
            write_atomically(root / "recovery-checkpoint", b"%d" % attempt)
            try:
                write_atomically(root / "epochs-checkpoint", b"%d" % attempt)
            except OSError as error:
                assert error.errno == errno.EDQUOT
                failures += 1
        assert failures == 2
        assert disk.failed_by_kind == {"rename fails with EDQUOT": 2}
        disk.disarm()
        write_atomically(root / "epochs-checkpoint", b"last")
    assert (root / "epochs-checkpoint").read_bytes() == b"last"


@pytest.mark.parametrize(
    ("call", "do"),
    [
        ("open", lambda root: (root / "f").read_bytes()),
        ("open", lambda root: os.open(root / "f", os.O_RDONLY)),
        ("write", lambda root: os.write(os.open(root / "f", os.O_WRONLY), b"x")),
        ("write", lambda root: os.writev(os.open(root / "f", os.O_WRONLY), [b"x"])),
        ("fsync", lambda root: os.fsync(os.open(root / "f", os.O_WRONLY))),
        ("rename", lambda root: (root / "f").rename(root / "g")),
        ("unlink", lambda root: (root / "f").unlink()),
        ("truncate", lambda root: os.truncate(root / "f", 1)),
    ],
)
def test_every_kind_of_call_can_fail_and_then_has_done_nothing(tmp_path: Path, call: str, do: Callable[[Path], object]) -> None:
    disk = Disk(tmp_path / "disk")
    root = Path(disk.root)
    (root / "f").write_bytes(b"what was there")
    with recording([disk], os.urandom), as_a_broker():
        disk.arm(CallFault(call, "f|g", errno.EIO))
        with pytest.raises(OSError, match="Input/output error"):
            do(root)
    assert (root / "f").read_bytes() == b"what was there"


def test_opening_what_is_there_needs_no_room(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    (Path(disk.root) / "old").write_bytes(b"old")
    with recording([disk], os.urandom), as_a_broker():
        disk.arm(CallFault("any", "*", errno.ENOSPC, hits=10))
        assert (Path(disk.root) / "old").read_bytes() == b"old"
        with pytest.raises(OSError, match="No space left"):
            (Path(disk.root) / "new").write_bytes(b"")


def test_a_crash_in_a_call_keeps_what_came_before_and_lets_nothing_follow(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    root = Path(disk.root)

    def crashing() -> bool:
        disk.is_frozen = True
        return True

    disk.crashing = crashing
    with recording([disk], os.urandom), as_a_broker():
        disk.arm(CallFault("rename", "*checkpoint", 0))
        with pytest.raises(Crashed):
            write_atomically(root / "checkpoint", b"new")
        with pytest.raises(Crashed):
            (root / "more").write_bytes(b"")
    assert [path.name for path in root.iterdir()] == ["checkpoint.tmp"]

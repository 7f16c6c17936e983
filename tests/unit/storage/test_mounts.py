"""Which file system a path lies on."""

from __future__ import annotations

from pathlib import Path

from ottla.storage.log_directory import file_system_of

MOUNTS = """\
22 1 0:45 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/a:/b
23 22 0:20 / /proc rw,nosuid - proc proc rw
30 22 8:1 /var/data /data rw,relatime shared:5 master:2 - ext4 /dev/sda1 rw
31 30 0:50 / /data/fast\\040disk rw - xfs /dev/nvme0n1 rw
a line that is none
32 22 0:60 / /twice rw - ext4 /dev/sdb rw
33 22 0:61 / /twice rw - tmpfs tmpfs rw
"""


def test_the_longest_mount_point_above_a_path_decides(tmp_path: Path) -> None:
    """proc(5), mountinfo; spaces are written as octal, and a later mount covers an earlier one."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    found = {
        path: file_system_of(Path(path), mounts) for path in ("/var/lib/ottla", "/data/logs", "/data/fast disk/0", "/data", "/twice/a")
    }
    assert found == {
        "/var/lib/ottla": "overlay",
        "/data/logs": "ext4",
        "/data/fast disk/0": "xfs",
        "/data": "ext4",
        "/twice/a": "tmpfs",
    }


def test_a_kernel_that_does_not_say_is_no_error(tmp_path: Path) -> None:
    """The warning is a courtesy."""
    assert file_system_of(tmp_path, tmp_path / "not there") is None
    assert file_system_of(tmp_path) is not None

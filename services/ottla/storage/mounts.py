"""Which file system a path lies on, as /proc/self/mountinfo has it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mountinfo")


def file_system_of(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the file system (`ext4`, `overlay` …); None where the kernel does not say."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    place = path.resolve()
    longest, found = -1, None
    for line in lines:
        # 36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/root rw: any number of fields before the dash
        fields, _, after = line.partition(" - ")
        parts = fields.split()
        if len(parts) < 5 or not after:
            continue
        mount_point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), parts[4]))
        # A later line with the same mount point covers the earlier one.
        if (place == mount_point or mount_point in place.parents) and len(mount_point.parts) >= longest:
            longest, found = len(mount_point.parts), after.split()[0]
    return found

"""A wall clock of its own for each broker, by libfaketime: it can jump, while the monotonic clock stays the machine's.

The machine's clock is never touched. Debian's package `libfaketime` (or `faketime`) has the library; where it is not
installed there are no clock jumps, and the run says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

INSTALL: Final = "apt-get install --no-install-recommends libfaketime"
_PLACES: Final = ("/usr/lib/*/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime")
_NAME: Final = "libfaketimeMT.so.1"  # the one for programs with threads
_PRELOADED: Final = Path(__file__).parent / "preloaded"
# How long the library believes what it last read in its file, in seconds.
NOTICED_AFTER_SECONDS: Final = 1


def find_library() -> Path | None:
    """The library, or None when it is not there. OTTLA_FAKETIME names one that lies elsewhere."""
    if named := os.environ.get("OTTLA_FAKETIME"):
        return Path(named)
    return next((path for place in _PLACES for path in sorted(Path("/").glob(f"{place[1:]}/{_NAME}"))), None)


class FakeClock:
    """The clock of one broker, through all its lives."""

    def __init__(self, library: Path, offset_file: Path) -> None:
        self._library = library
        self._file = offset_file
        self.jump(0)

    def jump(self, seconds: float) -> None:
        """From now on the broker's clock is so far ahead of the real one, or behind it."""
        unfinished = self._file.with_suffix(".new")
        unfinished.write_text(f"{seconds:+.3f}\n", encoding="ascii")
        unfinished.replace(self._file)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs to live by this clock."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": str(NOTICED_AFTER_SECONDS),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # its older name
            "NO_FAKE_STAT": "1",  # times of files are the machine's
            "PYTHONPATH": os.pathsep.join(filter(None, (str(_PRELOADED), os.environ.get("PYTHONPATH")))),
        }

"""What happened in a run, in its order, and a hash of it: two runs of one seed have the same.

Everything that chance decides and everything that the brokers say of themselves becomes a line. The hash covers all
lines; of the frequent ones (each message on the network) only the hash is kept unless a reader asks for them.
"""

from __future__ import annotations

import hashlib
import logging
import traceback
from collections.abc import Callable
from typing import Final

from tests.simulation.nodes import current_name
from tests.simulation.paths import PathCounts


class Trace:
    """The lines of one run.

    Args:
        now: the virtual time.
        keep_all: whether frequent lines are kept as well.
        directory: of the run's files, which has another name each time; lines have "…" in its place.
    """

    def __init__(self, now: Callable[[], float], keep_all: bool = False, directory: str = "…") -> None:
        self._now: Final = now
        self._keep_all: Final = keep_all
        self._directory: Final = directory
        self._hash: Final = hashlib.blake2b(digest_size=16)
        self.lines: Final[list[str]] = []
        self.count = 0

    def tell(self, text: str) -> None:
        """A line that a reader of a failure wants to see."""
        self._add(text, True)

    def note(self, text: str) -> None:
        """A frequent line."""
        self._add(text, self._keep_all)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def _add(self, text: str, is_kept: bool) -> None:
        line = f"{self._now():10.6f} {current_name():10} {text}".replace(self._directory, "…")
        self.count += 1
        self._hash.update(line.encode(errors="replace"))
        if is_kept:
            self.lines.append(line)


class TraceHandler(logging.Handler):
    """What the brokers log, as lines of the trace; what none of them should ever say goes to `unexpected` as well."""

    def __init__(self, trace: Trace, unexpected: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._trace = trace
        self._unexpected = unexpected
        self.walked = PathCounts()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self.walked.logged(record, message)
        text = f"{record.levelname.lower()} {record.name.removeprefix('ottla.')}: {message}"
        self._trace.tell(text)
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            places = "; ".join(
                f"{frame.name} {frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
            )
            self._trace.tell(f"  {error!r} in {places}")
            if record.levelno >= logging.ERROR:
                self._unexpected(f"{current_name()}: {text}: {error!r}")

"""What is counted of all logs of a broker, by whoever does it; one object, shared through `LogContext`."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.metrics.cells import Histogram


@dataclass(slots=True)
class LogCounts:
    """Plain numbers, counted on the broker's loop.

    Attributes:
        flush_seconds: of each flush of a log.
        crc_errors: batches that were read from the disk and did not match their checksum.
        recovery_seconds: what loading all logs at the start took.
        recovered_bytes: what was read through of logs that had not been closed cleanly.
    """

    flush_seconds: Histogram = field(default_factory=Histogram)
    crc_errors: int = 0
    recovery_seconds: float = 0.0
    recovered_bytes: int = 0


@dataclass(slots=True)
class CleanerCounts:
    """As `LogCounts`, of the cleaner.

    Attributes:
        read_bytes: of logs that were cleaned.
        run_seconds: of each cleaning of a log that came to its end.
        crc_errors: batches that did not match their checksum, or could not be read otherwise.
        max_dirty_ratio: as of the last look at all logs.
    """

    read_bytes: int = 0
    run_seconds: Histogram = field(default_factory=Histogram)
    crc_errors: int = 0
    max_dirty_ratio: float = 0.0

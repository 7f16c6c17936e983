"""What a broker has counted of its replication; plain numbers, counted on its loop and read by the collectors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class IsrCounts:
    """Of the partitions that are led here."""

    shrinks: int = 0
    expansions: int = 0
    refused: int = 0  # changes that the controller did not make


@dataclass(slots=True)
class FetchCounts:
    """Of those that follow here."""

    failures: int = 0  # fetches that failed as a whole
    crc_errors: int = 0  # batches that did not match their checksum

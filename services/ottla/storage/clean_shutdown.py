"""`.kafka_cleanshutdown`: the last one to use this log directory closed everything.

    {"version":0,"brokerEpoch":7}

Written as the last step of a clean stop, after all logs and checkpoints are on the disk, and deleted as soon as a
start has seen it, so that a crash finds none. With it a start trusts segments and indexes as they are; without it
every log is checked from its recovery point on. The broker epoch says which registration closed it (KIP-966).

Everything here blocks; on the event loop it goes through `offload`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.storage.checkpoints import sync_directory, write_atomically

CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
NO_BROKER_EPOCH: Final = -1

_VERSION: Final = 0


@dataclass(frozen=True, slots=True)
class CleanShutdown:
    """A clean stop, and the broker epoch it was made under (-1 when the file does not say)."""

    broker_epoch: int


def write_clean_shutdown(directory: Path, broker_epoch: int = NO_BROKER_EPOCH) -> None:
    """Says that the log directory was closed cleanly."""
    content = json.dumps({"version": _VERSION, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_atomically(directory / CLEAN_SHUTDOWN, content.encode())


def take_clean_shutdown(directory: Path) -> CleanShutdown | None:
    """Reads the file and deletes it for good; None when the last stop was not a clean one.

    That the file is there is what counts: brokers before Kafka 3.7 left it empty.
    """
    path = directory / CLEAN_SHUTDOWN
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    path.unlink()
    sync_directory(directory)
    try:
        broker_epoch = json.loads(content)["brokerEpoch"]
    except (ValueError, TypeError, KeyError):
        return CleanShutdown(NO_BROKER_EPOCH)
    return CleanShutdown(broker_epoch if isinstance(broker_epoch, int) else NO_BROKER_EPOCH)

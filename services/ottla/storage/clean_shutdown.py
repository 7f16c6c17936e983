"""`.kafka_cleanshutdown`: the last one to use this log directory closed everything.

    {"version":0,"brokerEpoch":7}

Written as the last step of a clean stop, after all logs and checkpoints are on the disk, and deleted as soon as a
start has seen it, so that a crash finds none. With it a start trusts segments and indexes as they are; without it
every log is checked from its recovery point on. The broker epoch says which registration closed it (KIP-966).

Everything here blocks; on the event loop it goes through `offload`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from ottla.storage.checkpoints import sync_directory, write_atomically

CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
NO_BROKER_EPOCH: Final = -1

_VERSION: Final = 0


def write_clean_shutdown(directory: Path, broker_epoch: int = NO_BROKER_EPOCH) -> None:
    """Says that the log directory was closed cleanly."""
    content = json.dumps({"version": _VERSION, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_atomically(directory / CLEAN_SHUTDOWN, content.encode())


def take_clean_shutdown(directory: Path) -> int | None:
    """Deletes the file for good, and gives the broker epoch in it, -1 when it does not say; None when the last stop was not a clean one.

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
        return NO_BROKER_EPOCH
    return broker_epoch if isinstance(broker_epoch, int) else NO_BROKER_EPOCH

"""Who owns the other end of a loopback connection: /proc knows, and needs no privileges for processes of the same user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def owner_of_port(port: int, peer_port: int, process_ids: Mapping[int, int]) -> int | None:
    """Which of these processes has the connection from `port` to `peer_port`.

    Args:
        port: its own end.
        peer_port: the end that was connected to.
        process_ids: what to answer, by process id.
    """
    inode = _inode(port, peer_port)
    if inode is None:
        return None
    wanted = f"socket:[{inode}]"
    for process_id, answer in process_ids.items():
        try:
            for entry in os.scandir(f"/proc/{process_id}/fd"):
                try:
                    if os.readlink(entry.path) == wanted:  # noqa: PTH115  hundreds of them, for each connection
                        return answer
                except OSError:
                    continue  # closed meanwhile
        except OSError:
            continue  # the process has ended
    return None


def _inode(port: int, peer_port: int) -> str | None:
    # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...; addresses as HEX:PORT
    for table in _TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and int(fields[2].rpartition(":")[2], 16) == peer_port:
                return fields[9]
    return None

"""Log lines about what peers do wrong: one a peer and minute, with how many there were, so that no peer can fill a disk with them.

A peer is an address: its next connection is the same peer.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

PAUSE_SECONDS: Final = 60.0
# Addresses that are remembered; with more, the one that was silent longest is heard at once again.
MAX_PEERS: Final = 1_000


class Complaints:
    """What one broker has said of its peers.

    Args:
        time: seconds, of a clock that does not go back.
    """

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._said: OrderedDict[str, tuple[float, int]] = OrderedDict()  # when the last line was, and how many came since

    def warn(self, log: logging.Logger, host: str, message: str, *arguments: object) -> None:
        """Writes the line, unless there was one about this address within the last minute; then it is counted."""
        now = self._time()
        said_at, count = self._said.get(host, (None, 0))
        if said_at is not None and now - said_at < PAUSE_SECONDS:
            self._said[host] = said_at, count + 1
            return
        self._said[host] = now, 0
        self._said.move_to_end(host)
        if len(self._said) > MAX_PEERS:
            self._said.popitem(last=False)
        if count:
            log.warning(message + " (and %d more about this address since the last line)", *arguments, count)
        else:
            log.warning(message, *arguments)

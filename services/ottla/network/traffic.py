"""What has passed through one listener: plain numbers that its connections add to, for anyone who asks.

They are only written here. Each connection of a listener has the listener's, so that nothing is added up when one ends.
"""

from __future__ import annotations

from typing import Final, Literal

# Why a connection ended: its client did it; it was idle, or took nothing of an answer, for too long; it was one too many;
# what it sent or asked for could not be answered; the broker stopped.
CloseReason = Literal["client", "idle", "stalled", "refused", "error", "stopped"]
CLOSE_REASONS: Final[tuple[CloseReason, ...]] = ("client", "idle", "stalled", "refused", "error", "stopped")


class Traffic:
    """The numbers of one listener since it was made."""

    __slots__ = ("closed", "cold_reads", "opened", "paused_reads", "received_bytes", "sendfile_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.opened = 0
        self.closed: dict[CloseReason, int] = dict.fromkeys(CLOSE_REASONS, 0)
        self.received_bytes = 0
        self.sent_bytes = 0  # as handed over; a connection that ends takes what was not out yet with it
        self.sendfile_bytes = 0
        self.paused_reads = 0
        self.cold_reads = 0  # stretches that were read from the disk outside the loop before they could be sent

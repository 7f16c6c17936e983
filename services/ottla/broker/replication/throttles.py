"""Replication throttles (KIP-73): moving replicas must not take the whole network from clients.

A topic names the replicas that are throttled, on the leader's side and on the follower's; a broker says how many bytes a
second those may take together. Only replicas that lag are held back: one that is in sync must stay so.

    leader.replication.throttled.replicas = 0:101,1:102     leader.replication.throttled.rate = 1048576
    follower.replication.throttled.replicas = *             follower.replication.throttled.rate = 1048576
"""

from __future__ import annotations

from typing import Final

from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.config.settings import LONG_MAX
from ottla.model import BrokerId

EVERY_REPLICA: Final = "*"
# A second's worth may pass at once; Kafka measures over as long.
BURST_SECONDS: Final = 1.0
# A rate can be raised while a fetch waits by the old one.
LONGEST_WAIT_SECONDS: Final = 1.0


class Throttle:
    """A token bucket: what passes is taken out afterwards, so one large answer may put it into debt.

    Args:
        clock: fills it.
        rate: bytes a second; `LONG_MAX` is no throttle at all.
    """

    def __init__(self, clock: Clock, rate: int = LONG_MAX) -> None:
        self._clock = clock
        self._rate = rate
        self._left = rate * BURST_SECONDS
        self._filled = clock.monotonic()

    def update(self, rate: int) -> None:
        """Takes a new rate, from now on."""
        if rate != self._rate:
            self._fill()
            # What passed under the old rate is not held against the new one for longer than a second.
            self._left = min(max(self._left, -rate * BURST_SECONDS), rate * BURST_SECONDS)
            self._rate = rate

    def record(self, size: int) -> None:
        """So many bytes of throttled replicas have passed."""
        if self._rate != LONG_MAX:
            self._fill()
            self._left -= size

    @property
    def is_exceeded(self) -> bool:
        """Whether those that lag have to wait."""
        if self._rate == LONG_MAX:
            return False
        self._fill()
        return self._left <= 0

    def seconds_until_free(self) -> float:
        """For how long, at most a second: then look again."""
        if not self.is_exceeded:
            return 0.0
        if self._rate == 0:
            return LONGEST_WAIT_SECONDS
        # One byte more than none; never so little that asking again costs more than waiting.
        return min(max((1 - self._left) / self._rate, 0.01), LONGEST_WAIT_SECONDS)

    def _fill(self) -> None:
        now = self._clock.monotonic()
        self._left = min(self._left + (now - self._filled) * self._rate, self._rate * BURST_SECONDS)
        self._filled = now


class ReplicationThrottles:
    """A broker's two: of what its followers take from it, and of what it takes from its leaders."""

    def __init__(self, clock: Clock, settings: BrokerSettings) -> None:
        self.leader = Throttle(clock, settings.leader_replication_throttled_rate)
        self.follower = Throttle(clock, settings.follower_replication_throttled_rate)

    def update(self, settings: BrokerSettings) -> None:
        """Takes the broker's new settings."""
        self.leader.update(settings.leader_replication_throttled_rate)
        self.follower.update(settings.follower_replication_throttled_rate)


def is_throttled(throttled_replicas: tuple[str, ...], partition: int, broker_id: BrokerId) -> bool:
    """Whether a topic's `….replication.throttled.replicas` names this replica."""
    return bool(throttled_replicas) and (EVERY_REPLICA in throttled_replicas or f"{partition}:{broker_id}" in throttled_replicas)

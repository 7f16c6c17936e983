"""What became of each message of one partition: acknowledged, failed, consumed, lost or doubled, and how long that took.

A message is lost when the consumer has passed the offset at which it was acknowledged, and had another one or nothing there. One that
failed may have arrived all the same and is neither lost nor, if it is consumed, doubled. Nothing here does I/O or asks the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ottla.metrics.cells import Histogram

_UNKNOWN_OFFSET: Final = -1
# An hour of a consumer that stands still; the audit counts what is behind it.
_MOST_MESSAGES: Final = 3_600


@dataclass(slots=True)
class _Message:
    attempted: float
    acknowledged: float | None = None
    offset: int = _UNKNOWN_OFFSET
    has_failed: bool = False
    is_lost: bool = False
    consumed: float | None = None

    @property
    def is_over(self) -> bool:
        return self.has_failed or self.is_lost or (self.acknowledged is not None and self.consumed is not None)


@dataclass(slots=True)
class Ledger:
    """One partition. Times are seconds of one clock that never goes back.

    Args:
        timeout_seconds: to be acknowledged, and from there to be consumed; what takes longer was not available.
        period_seconds: over which availability is a mean.
    """

    timeout_seconds: float
    period_seconds: float = 60.0
    attempted: int = 0
    acknowledged: int = 0
    failed: int = 0
    consumed: int = 0
    lost: int = 0
    doubled: int = 0
    produce_seconds: Histogram = field(default_factory=Histogram)
    end_to_end_seconds: Histogram = field(default_factory=Histogram)
    _messages: dict[int, _Message] = field(default_factory=dict)
    _next_index: int = 0
    _highest: int = -1  # that was consumed
    _position: int = 0  # of the consumer

    @property
    def is_awaited(self) -> bool:
        """Whether a message was acknowledged that is neither consumed nor lost."""
        return any(not message.is_over and message.acknowledged is not None for message in self._messages.values())

    def begin_again(self) -> None:
        """A consumer begins that may read again what was consumed: of what was sent before, nothing more is said."""
        self._messages.clear()
        self._highest, self._position = self._next_index - 1, 0

    def attempt(self, now: float) -> int:
        """A message is sent; its index."""
        index = self._next_index
        self._next_index += 1
        self.attempted += 1
        self._messages[index] = _Message(now)
        self._forget(now)
        return index

    def acknowledge(self, index: int, offset: int, now: float) -> None:
        """The brokers have it at an offset; -1: it is not known at which."""
        self.acknowledged += 1
        message = self._messages.get(index)
        if message is not None:
            message.acknowledged, message.offset = now, offset
            self.produce_seconds.observe(now - message.attempted)
            self._look_for_lost([(index, message)])

    def fail(self, index: int) -> None:
        """The brokers refused it, or did not say anything in time."""
        self.failed += 1
        message = self._messages.get(index)
        if message is not None:
            message.has_failed = True

    def consume(self, index: int, now: float) -> None:
        """The consumer was given it."""
        message = self._messages.get(index)
        if message is not None and message.consumed is None:
            message.consumed = now
            self.consumed += 1
            self.end_to_end_seconds.observe(now - message.attempted)
        elif index <= self._highest:
            self.doubled += 1
        self._highest = max(self._highest, index)

    def come_to(self, offset: int) -> None:
        """The consumer was given everything before this offset."""
        self._position = offset  # lower than before where a log was cut
        self._look_for_lost(self._messages.items())

    def _look_for_lost(self, messages: Iterable[tuple[int, _Message]]) -> None:
        for index, message in messages:
            if message.acknowledged is None or message.consumed is not None or message.is_lost:
                continue
            if message.offset < self._position if message.offset != _UNKNOWN_OFFSET else index < self._highest:
                message.is_lost = True
                self.lost += 1

    def _forget(self, now: float) -> None:
        """Drops what is over, and was sent before the period began."""
        begin = now - self.period_seconds - self.timeout_seconds
        while self._messages:
            index, message = next(iter(self._messages.items()))
            if len(self._messages) <= _MOST_MESSAGES and not (message.is_over and message.attempted < begin):
                break
            del self._messages[index]

    def produce_availability(self, now: float) -> float | None:
        """The share of the period's messages that were acknowledged in time; None of none."""
        return self._share(((message.attempted, message.acknowledged, message.has_failed) for message in self._messages.values()), now)

    def consume_availability(self, now: float) -> float | None:
        """The share of the period's acknowledged messages that were consumed in time; None of none."""
        return self._share(
            (
                (message.acknowledged, message.consumed, message.is_lost)
                for message in self._messages.values()
                if message.acknowledged is not None
            ),
            now,
        )

    def _share(self, found: Iterable[tuple[float, float | None, bool]], now: float) -> float | None:
        good = bad = 0
        for begun, ended, is_given_up in found:
            if begun < now - self.period_seconds - self.timeout_seconds:
                continue
            if is_given_up or (now if ended is None else ended) - begun > self.timeout_seconds:
                bad += 1
            elif ended is not None:
                good += 1
        return good / (good + bad) if good + bad else None

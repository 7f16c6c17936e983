"""The judge: does a history hold anything that a log with acknowledgements must never show?

The anomalies are those of Jepsen's workload for Kafka and its kin (jepsen.tests.kafka), for clients without transactions:

lost write           acknowledged at an offset up to which consumers have read, and no one ever got it
unseen               acknowledged, and beyond everything that was read, though all was read to the end
duplicate            one message at two offsets, from one producer id and epoch. A broker promises no more: librdkafka takes a
                     new epoch after some errors and then sends again what may be in the log already. That is counted
                     as sent again, and is no anomaly
inconsistent offset  one offset at which two clients saw two messages
nonmonotonic poll    a process polls an offset that is not above the one it polled before
skipped poll         a process polls past an offset at which a message is known to be
nonmonotonic send    two sends of one process to one partition, and the later one has not the higher offset
skipped send         between two neighbouring sends of one process lies an offset without any message. Jepsen asks this
                     of the sends of one transaction. Without transactions another producer's messages may lie between,
                     but never nothing: markers, which leave gaps for Jepsen, do not exist, so an offset that was given
                     out and holds nothing has lost what it held.
aborted read         a message was read whose sending had certainly failed
unwritten read       a message was read that no one sent, or not to that partition: it was damaged or misplaced

Nothing here does I/O, waits, or knows what a broker is.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from operator import attrgetter

from tests.chaos.history import NO_OFFSET, History, Outcome, Polls, Sends, sender_of, value_of
from tests.chaos.observed_log import NOTHING, ObservedLog
from tests.chaos.verdict import Finding, Findings, seconds


class Anomaly(StrEnum):
    """What can be wrong with a history."""

    LOST_WRITE = "lost write"
    UNSEEN = "unseen"
    DUPLICATE = "duplicate"
    INCONSISTENT_OFFSET = "inconsistent offset"
    NONMONOTONIC_POLL = "nonmonotonic poll"
    SKIPPED_POLL = "skipped poll"
    NONMONOTONIC_SEND = "nonmonotonic send"
    SKIPPED_SEND = "skipped send"
    ABORTED_READ = "aborted read"
    UNWRITTEN_READ = "unwritten read"


@dataclass(slots=True)
class Verdict(Findings):
    """What was found, and how much was looked at."""

    sent: int = 0
    acknowledged: int = 0
    unknown: int = 0
    failed: int = 0
    polled: int = 0
    unknown_but_written: int = 0
    sent_again: int = 0


# Says which producer id and epoch wrote what is at an offset of a partition, where that is known.
Writer = tuple[int, int] | None
WriterOf = Callable[[int, int], Writer]


def check(history: History, writer_of: WriterOf = lambda partition, offset: None) -> Verdict:
    """Judges a whole history."""
    return _Check(history, writer_of).verdict


class _Check:
    """One pass over a history. Words are made only for the anomalies that are told: to find a witness takes long."""

    def __init__(self, history: History, writer_of: WriterOf) -> None:
        self._writer_of = writer_of
        self._sends = {send.process: send for send in history.sends}
        self._polls = history.polls
        self._logs: dict[int, ObservedLog] = {}
        # Where each message of a process was found, by its sequence.
        self._places = {process: array("q", [NO_OFFSET]) * len(each) for process, each in self._sends.items()}
        self._other_places: dict[int, list[int]] = {}  # of messages at several offsets: all but the first
        self.verdict = Verdict()
        self._observe()
        self._count()
        for partition, log in sorted(self._logs.items()):
            for offset, value in _entries(log):
                self._find_place(partition, offset, value)
            for offset in sorted(log.disputed):
                self._tell(Anomaly.INCONSISTENT_OFFSET, partial(self._dispute, partition, offset))
        for sends in history.sends:
            self._lost_and_unseen(sends)
            self._order_of_sends(sends)
        for polls in self._polls:
            self._order_of_polls(polls)
        self.verdict.findings.sort(key=attrgetter("at_ms"))

    def _observe(self) -> None:
        for sends in self._sends.values():
            for sequence, (partition, offset, outcome) in enumerate(zip(sends.partitions, sends.offsets, sends.outcomes, strict=True)):
                if outcome == Outcome.ACKNOWLEDGED and offset >= 0:
                    self._log(partition).acknowledge(offset, value_of(sends.process, sequence))
        for polls in self._polls:
            for partition, first_offset, count, _, position in polls.runs():
                if count:
                    self._log(partition).read(first_offset, polls.values[position : position + count])

    def _log(self, partition: int) -> ObservedLog:
        return self._logs.setdefault(partition, ObservedLog())

    def _count(self) -> None:
        verdict = self.verdict
        for sends in self._sends.values():
            verdict.sent += len(sends)
            verdict.acknowledged += sends.outcomes.count(Outcome.ACKNOWLEDGED)
            verdict.failed += sends.outcomes.count(Outcome.FAILED)
        verdict.unknown = verdict.sent - verdict.acknowledged - verdict.failed
        verdict.polled = sum(len(poll) for poll in self._polls)

    def _tell(self, anomaly: Anomaly, describe: Callable[[], tuple[int, str]]) -> None:
        if self.verdict.count(anomaly):
            self.verdict.findings.append(Finding(anomaly, *describe()))

    # What lies in the logs.

    def _find_place(self, partition: int, offset: int, value: int) -> None:
        process, sequence = sender_of(value)
        sends = self._sends.get(process)
        if sends is None or sequence >= len(sends) or sends.partitions[sequence] != partition:
            self._tell(Anomaly.UNWRITTEN_READ, partial(self._stray, partition, offset, value))
        elif (first := self._places[process][sequence]) != NO_OFFSET:
            self._other_places.setdefault(value, []).append(offset)
            is_disputed = not self._log(partition).disputed.keys().isdisjoint((first, offset))
            if not is_disputed and self._writer_of(partition, first) != self._writer_of(partition, offset):
                self.verdict.sent_again += 1
                return
            words = partial(self._of_message, sends, sequence, "is at offset {} and at offset {}", first, offset)
            self._tell(Anomaly.DUPLICATE, words)
        else:
            self._places[process][sequence] = offset
            if sends.outcomes[sequence] == Outcome.FAILED:
                words = partial(self._of_message, sends, sequence, "was read at offset {}", offset)
                self._tell(Anomaly.ABORTED_READ, words)
            elif sends.outcomes[sequence] == Outcome.UNKNOWN:
                self.verdict.unknown_but_written += 1

    def _stray(self, partition: int, offset: int, value: int) -> tuple[int, str]:
        reader = self._reader(partition, offset, value)
        return reader[1] if reader else 0, f"offset {offset} of partition {partition} holds {self._message(value)}"

    def _dispute(self, partition: int, offset: int) -> tuple[int, str]:
        witnesses: list[str] = []
        at_ms = 0
        for value in sorted(self._log(partition).all_at(offset)):
            reader = self._reader(partition, offset, value)
            at_ms = max(at_ms, reader[1] if reader else 0)
            saw = f"as process {reader[0]} polled it at {seconds(reader[1])}" if reader else "as its acknowledgement says"
            witnesses.append(f"{self._message(value)}, {saw}")
        return at_ms, f"at offset {offset} of partition {partition} are: {'; '.join(witnesses)}"

    # What was acknowledged.

    def _lost_and_unseen(self, sends: Sends) -> None:
        """Every acknowledged message that no one got, at whatever offset it lies."""
        places = self._places[sends.process]
        for sequence, (partition, outcome) in enumerate(zip(sends.partitions, sends.outcomes, strict=True)):
            if outcome != Outcome.ACKNOWLEDGED:
                continue
            offset = places[sequence]
            log = self._log(partition)
            value = value_of(sends.process, sequence)
            if log.was_got(offset, value) or any(log.was_got(number, value) for number in self._other_places.get(value, ())):
                continue
            words = partial(self._unread, sends, sequence, offset)
            self._tell(Anomaly.LOST_WRITE if NO_OFFSET < offset <= log.highest_read else Anomaly.UNSEEN, words)

    def _unread(self, sends: Sends, sequence: int, offset: int) -> tuple[int, str]:
        log = self._log(sends.partitions[sequence])
        others = sorted(log.all_at(offset) - {value_of(sends.process, sequence)})
        where = "without an offset" if offset == NO_OFFSET else f"with offset {offset}"
        if others:
            where += f", where consumers saw {', '.join(self._message(other) for other in others)}"
        text = f"was acknowledged {where}, and no process got it; the highest offset that was read is {{}}"
        return sends.done_at[sequence], self._of_message(sends, sequence, text, log.highest_read)[1]

    # In which order.

    def _order_of_sends(self, sends: Sends) -> None:
        last: dict[int, tuple[int, int]] = {}  # partition: sequence and offset
        for sequence, (partition, offset) in enumerate(zip(sends.partitions, self._places[sends.process], strict=True)):
            if offset == NO_OFFSET:
                continue
            earlier, earlier_offset = last.get(partition, (sequence, offset - 1))
            last[partition] = sequence, offset
            if offset <= earlier_offset:
                text = "is at offset {}, and this process's later message {} is at offset {}"
                words = partial(self._of_message, sends, earlier, text, earlier_offset, sequence, offset)
                self._tell(Anomaly.NONMONOTONIC_SEND, words)
            elif offset > earlier_offset + 1 and (holes := self._log(partition).holes_between(earlier_offset, offset)):
                text = "is at offset {}, this process's next message {} is at offset {}, and no one saw anything at {} between them"
                words = partial(self._of_message, sends, earlier, text, earlier_offset, sequence, offset, _listed(holes))
                self._tell(Anomaly.SKIPPED_SEND, words)

    def _order_of_polls(self, polls: Polls) -> None:
        last: dict[int, int] = {}
        for partition, first_offset, count, at_ms, _ in polls.runs():
            if count == 0:
                last[partition] = first_offset - 1
                continue
            before = last.get(partition, first_offset - 1)
            last[partition] = first_offset + count - 1
            jump = partial(self._jump, polls.process, partition, before, first_offset, at_ms)
            if first_offset <= before:
                self._tell(Anomaly.NONMONOTONIC_POLL, jump)
            elif first_offset > before + 1 and self._log(partition).known_between(before, first_offset):
                self._tell(Anomaly.SKIPPED_POLL, jump)

    def _jump(self, process: int, partition: int, before: int, offset: int, at_ms: int) -> tuple[int, str]:
        text = f"process {process} was to poll offset {before + 1} of partition {partition}, and polled {offset} at {seconds(at_ms)}"
        if known := self._log(partition).known_between(before, offset):
            text += f"; past {_listed(known)}, and at {known[0]} is {self._message(self._log(partition).at(known[0]))}"
        return at_ms, text

    # Words.

    def _of_message(self, sends: Sends, sequence: int, text: str, *numbers: object) -> tuple[int, str]:
        return sends.sent_at[sequence], f"{self._message(value_of(sends.process, sequence))} {text.format(*numbers)}"

    def _message(self, value: int) -> str:
        process, sequence = sender_of(value)
        sends = self._sends.get(process)
        if sends is None or sequence >= len(sends):
            return f"{value:#x}, which no one sent"
        outcome = Outcome(sends.outcomes[sequence])
        learned = "its end unknown" if outcome == Outcome.UNKNOWN else f"{outcome.name.lower()} at {seconds(sends.done_at[sequence])}"
        return (
            f"message {sequence} of process {process} (to partition {sends.partitions[sequence]}, "
            f"sent at {seconds(sends.sent_at[sequence])}, {learned})"
        )

    def _reader(self, partition: int, offset: int, value: int) -> tuple[int, int] | None:
        """The first process that got this value there, and when."""
        for polls in self._polls:
            for at_partition, first_offset, count, at_ms, position in polls.runs():
                if (
                    at_partition == partition
                    and first_offset <= offset < first_offset + count
                    and polls.values[position + offset - first_offset] == value
                ):
                    return polls.process, at_ms
        return None


def _entries(log: ObservedLog) -> Iterator[tuple[int, int]]:
    for offset, value in enumerate(log.values):
        if value != NOTHING:
            yield offset, value
    for offset, others in sorted(log.disputed.items()):
        for value in sorted(others):
            yield offset, value


def _listed(offsets: list[int]) -> str:
    """`4`, `4 to 9`, `4, 6 and 12 more`."""
    if len(offsets) > 1 and offsets[-1] - offsets[0] == len(offsets) - 1:
        return f"{offsets[0]} to {offsets[-1]}"
    shown = ", ".join(str(offset) for offset in offsets[:5])
    return shown if len(offsets) <= 5 else f"{shown} and {len(offsets) - 5} more"

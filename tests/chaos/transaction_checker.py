"""The judge of transactions: does a history hold anything that readers of committed data must never see?

The anomalies are those of Jepsen's workload for Kafka (jepsen.tests.kafka) and of Adya, where clients send and poll in
transactions, and every reader reads committed data:

aborted read         G1a: a message was read of a transaction that was aborted, or whose commit no one asked for
precommitted read    a message was read before the commit of its transaction was asked for, be it by that transaction itself
write cycle          G0: a transaction began after another one had ended, and yet has a lower offset in some partition. Of
                     transactions at the same time Kafka promises no order: they may interleave, and then are before each
                     other. Jepsen takes those for legal too; here they are counted
circular flow        G1c: a transaction has read what another wrote, which has read what the first wrote, on whatever
                     ways. The transactions of one process follow each other as well
lost write           a committed message lies below something that was read, and no one ever got it. A transaction of which
                     one message was read is a committed one, whatever its producer knows: it must not be torn
unseen               as lost, and beyond everything that was read, though all was read to the end
duplicate            one message at two offsets. A transaction has one epoch, and no client sends its messages under another
inconsistent offset  one offset at which two clients saw two messages
nonmonotonic poll    a process polls an offset that is not above the one it polled before
skipped poll         a process polls past an offset at which there is a committed message
nonmonotonic send    of two sends of one transaction to one partition the later has not the higher offset
unwritten read       a message was read that no one sent, or not to that partition: it was damaged or misplaced
copied twice         a message has two committed copies, though copies and the offsets of what was copied commit together
not copied           a committed message has no committed copy, though all were to be copied

Nothing here does I/O, waits, or knows what a broker is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from operator import attrgetter

from tests.chaos.cycles import circles, way_back
from tests.chaos.transaction_history import (
    DAMAGED,
    NEVER,
    NO_OFFSET,
    OUTSIDE,
    End,
    Got,
    Reads,
    Transaction,
    TransactionHistory,
    original_of,
)
from tests.chaos.verdict import Findings, seconds


class TransactionAnomaly(StrEnum):
    """What can be wrong with a history of transactions."""

    ABORTED_READ = "aborted read (G1a)"
    PRECOMMITTED_READ = "precommitted read"
    WRITE_CYCLE = "write cycle (G0)"
    CIRCULAR_FLOW = "circular flow (G1c)"
    LOST_WRITE = "lost write"
    UNSEEN = "unseen"
    DUPLICATE = "duplicate"
    INCONSISTENT_OFFSET = "inconsistent offset"
    NONMONOTONIC_POLL = "nonmonotonic poll"
    SKIPPED_POLL = "skipped poll"
    NONMONOTONIC_SEND = "nonmonotonic send"
    UNWRITTEN_READ = "unwritten read"
    COPIED_TWICE = "copied twice"
    NOT_COPIED = "not copied"


@dataclass(slots=True)
class TransactionVerdict(Findings):
    """What was found, and how much was looked at."""

    committed: int = 0
    aborted: int = 0
    unknown: int = 0
    unknown_but_committed: int = 0
    interleaved: int = 0
    messages: int = 0
    polled: int = 0
    copied: int = 0


def check(history: TransactionHistory, copied_topic: str | None = None) -> TransactionVerdict:
    """Judges a whole history.

    Args:
        copied_topic: every committed message of that topic was to be copied.
    """
    return _Check(history, copied_topic).verdict


class _Check:
    """One pass over a history."""

    def __init__(self, history: TransactionHistory, copied_topic: str | None) -> None:
        self._history = history
        self._sender: dict[str, tuple[Transaction, int]] = {
            sent.name: (transaction, place) for transaction in history.transactions for place, sent in enumerate(transaction.sends)
        }
        self._was_read = {row.name for reads in history.reads for row in reads.rows}
        self._committed = [transaction for transaction in history.transactions if self._is_committed(transaction)]
        self._logs: dict[str, dict[int, str]] = defaultdict(dict)
        self._highest_read: dict[str, int] = defaultdict(lambda: NO_OFFSET)
        self.verdict = TransactionVerdict()
        self._tell = self.verdict.add
        self._count()
        self._readable()
        self._contents()
        for reads in history.reads:
            self._order_of_polls(reads)
        for transaction in history.transactions:
            self._order_of_sends(transaction)
        for committed in self._committed:
            self._lost_and_unseen(committed)
        self._write_cycles()
        self._circular_flow()
        if copied_topic is not None:
            self._copies(copied_topic)
        self.verdict.findings.sort(key=attrgetter("at_ms"))

    def _is_committed(self, each: Transaction) -> bool:
        """What its producer knows, or what someone has read proves."""
        return each.end == End.COMMITTED or (each.end == End.UNKNOWN and any(sent.name in self._was_read for sent in each.sends))

    def _count(self) -> None:
        ends = Counter(transaction.end for transaction in self._history.transactions)
        self.verdict.committed, self.verdict.aborted, self.verdict.unknown = (ends[end] for end in End)
        self.verdict.unknown_but_committed = sum(transaction.end == End.UNKNOWN for transaction in self._committed)
        self.verdict.messages = sum(len(transaction.sends) for transaction in self._history.transactions)
        self.verdict.polled = sum(len(read.rows) for read in self._history.reads)

    # Whether it might have been read at all.

    def _readable(self) -> None:
        for reads in self._history.reads:
            for row in reads.rows:
                found = self._sender.get(row.name)
                if found is None or found[0].sends[found[1]].partition != row.partition:
                    what = "what no producer wrote" if row.name == DAMAGED else f"{row.name}, which no one sent there"
                    self._tell(TransactionAnomaly.UNWRITTEN_READ, row.at_ms, f"{_at(reads, row)}: {what}")
                    continue
                writer = found[0]
                if writer.end == End.ABORTED:
                    self._tell(TransactionAnomaly.ABORTED_READ, row.at_ms, f"{_at(reads, row)}: {row.name}, of {_told(writer)}")
                elif reads.process == writer.process and row.transaction == writer.number:
                    text = f"{_at(reads, row)}: {row.name}, which this very transaction wrote"
                    self._tell(TransactionAnomaly.PRECOMMITTED_READ, row.at_ms, text)
                elif row.at_ms < writer.commit_asked_ms:
                    self._tell(TransactionAnomaly.PRECOMMITTED_READ, row.at_ms, f"{_at(reads, row)}: {row.name}, of {_told(writer)}")

    # What lies where.

    def _contents(self) -> None:
        places: dict[str, set[int]] = defaultdict(set)
        for reads in self._history.reads:
            for row in reads.rows:
                self._highest_read[row.partition] = max(self._highest_read[row.partition], row.offset)
                self._note(row.partition, row.offset, row.name, row.at_ms, f"as {reads.process} polled it")
                if row.name != DAMAGED and row.offset not in places[row.name]:
                    places[row.name].add(row.offset)
                    if len(places[row.name]) > 1:
                        text = f"{row.name} is at offsets {sorted(places[row.name])} of {row.partition}"
                        self._tell(TransactionAnomaly.DUPLICATE, row.at_ms, text)
        for transaction in self._committed:
            for sent in transaction.sends:
                if sent.offset != NO_OFFSET:
                    self._note(sent.partition, sent.offset, sent.name, transaction.ended_ms, "as its producer was told")

    def _note(self, partition: str, offset: int, name: str, at_ms: int, how: str) -> None:
        there = self._logs[partition].setdefault(offset, name)
        if there != name:
            text = f"offset {offset} of {partition} holds {there}, and {name}, {how}"
            self._tell(TransactionAnomaly.INCONSISTENT_OFFSET, at_ms, text)

    def _lost_and_unseen(self, each: Transaction) -> None:
        for sent in each.sends:
            if sent.name in self._was_read:
                continue
            is_lost = NO_OFFSET < sent.offset <= self._highest_read[sent.partition]
            text = (
                f"{sent.name} of {_told(each)} was to be at offset {sent.offset} of {sent.partition}, and no one got it; "
                f"the highest offset that was read is {self._highest_read[sent.partition]}"
            )
            self._tell(TransactionAnomaly.LOST_WRITE if is_lost else TransactionAnomaly.UNSEEN, each.ended_ms, text)

    # In which order.

    def _order_of_polls(self, reads: Reads) -> None:
        last = {partition: offset - 1 for partition, offset in reads.positions.items()}
        known = {partition: sorted(log) for partition, log in self._logs.items()} if len(self._logs) else {}
        for row in reads.rows:
            before = last.get(row.partition, row.offset - 1)
            last[row.partition] = row.offset
            if row.offset <= before:
                self._tell(TransactionAnomaly.NONMONOTONIC_POLL, row.at_ms, f"{_at(reads, row)}, after offset {before}")
                continue
            offsets = known[row.partition]
            between = offsets[bisect_right(offsets, before) : bisect_left(offsets, row.offset)]
            if between:
                text = f"{_at(reads, row)}, after offset {before}; past {self._logs[row.partition][between[0]]} at {between[0]}"
                self._tell(TransactionAnomaly.SKIPPED_POLL, row.at_ms, text)

    def _order_of_sends(self, each: Transaction) -> None:
        last: dict[str, int] = {}
        for sent in each.sends:
            if sent.offset == NO_OFFSET:
                continue
            before = last.get(sent.partition, NO_OFFSET)
            last[sent.partition] = sent.offset
            if sent.offset <= before:
                text = f"{sent.name} is at offset {sent.offset} of {sent.partition}, and what was sent before it is at {before}"
                self._tell(TransactionAnomaly.NONMONOTONIC_SEND, each.began_ms, text)

    # Cycles.

    def _write_cycles(self) -> None:
        by_end = sorted(
            (transaction for transaction in self._history.transactions if transaction.ended_ms != NEVER), key=attrgetter("ended_ms")
        )
        # The highest offset in each partition of all that have ended, and whose it is.
        highest: dict[str, tuple[int, Transaction]] = {}
        position = 0
        for later in sorted(self._history.transactions, key=attrgetter("began_ms")):
            while position < len(by_end) and by_end[position].ended_ms < later.began_ms:
                for sent in by_end[position].sends:
                    if sent.offset > highest.get(sent.partition, (NO_OFFSET, later))[0]:
                        highest[sent.partition] = sent.offset, by_end[position]
                position += 1
            for sent in later.sends:
                offset, earlier = highest.get(sent.partition, (NO_OFFSET, later))
                if NO_OFFSET < sent.offset < offset:
                    text = f"{_told(later)} is at offset {sent.offset} of {sent.partition}, before offset {offset} of {_told(earlier)}"
                    self._tell(TransactionAnomaly.WRITE_CYCLE, later.began_ms, text)
        self.verdict.interleaved = sum(map(len, circles(self._write_order())))

    def _write_order(self) -> dict[str, set[str]]:
        """Which committed transaction wrote right before which other one, in any partition."""
        after: dict[str, set[str]] = defaultdict(set)
        for log in self._logs.values():
            writers = [self._sender[log[offset]][0].name for offset in sorted(log) if log[offset] in self._sender]
            for one, other in pairwise(writers):
                if one != other:
                    after[one].add(other)
        return after

    def _circular_flow(self) -> None:
        names = {transaction.name: transaction for transaction in self._committed}
        after: dict[str, set[str]] = defaultdict(set)
        for reads in self._history.reads:
            for row in reads.rows:
                reader = f"{reads.process}.{row.transaction}"
                if row.transaction == OUTSIDE or reader not in names or row.name not in self._sender:
                    continue
                writer = self._sender[row.name][0].name
                if writer != reader and writer in names:
                    after[writer].add(reader)
        by_process: dict[str, list[Transaction]] = defaultdict(list)
        for transaction in self._committed:
            by_process[transaction.process].append(transaction)
        for transactions in by_process.values():
            for earlier, later in pairwise(sorted(transactions, key=attrgetter("number"))):
                after[earlier.name].add(later.name)
        for circle in circles(after):
            way = way_back(after, circle)
            text = f"{' -> '.join(way)}: each has read of the one before it, or followed it"
            self._tell(TransactionAnomaly.CIRCULAR_FLOW, names[way[0]].began_ms, text)

    # Copies.

    def _copies(self, topic: str) -> None:
        copies: dict[str, set[str]] = defaultdict(set)
        for name in self._was_read:
            original = original_of(name)
            if original is not None:
                copies[original].add(name)
        self.verdict.copied = len(copies)
        for original, names in sorted(copies.items()):
            if len(names) > 1:
                at_ms = max(self._sender[name][0].began_ms if name in self._sender else 0 for name in names)
                self._tell(TransactionAnomaly.COPIED_TWICE, at_ms, f"{original} has the copies {', '.join(sorted(names))}")
        for transaction in self._committed:
            for sent in transaction.sends:
                if sent.partition.rpartition("-")[0] == topic and sent.name not in copies:
                    text = f"{sent.name} of {_told(transaction)}, at offset {sent.offset} of {sent.partition}, has no copy"
                    self._tell(TransactionAnomaly.NOT_COPIED, transaction.ended_ms, text)


def _at(reads: Reads, row: Got) -> str:
    within = "" if row.transaction == OUTSIDE else f" in its transaction {row.transaction}"
    return f"{reads.process} polled offset {row.offset} of {row.partition} at {seconds(row.at_ms)}{within}"


def _told(each: Transaction) -> str:
    asked = "never asked to be committed" if each.commit_asked_ms == NEVER else f"asked to be committed at {seconds(each.commit_asked_ms)}"
    ended = "" if each.ended_ms == NEVER else f" at {seconds(each.ended_ms)}"
    return f"transaction {each.name} (begun at {seconds(each.began_ms)}, {asked}, {each.end}{ended})"

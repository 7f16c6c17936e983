"""The judge of transactions on histories made by hand: one for each anomaly, each as it would come about, and sound ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chaos.cycles import circles, way_back
from tests.chaos.transaction_checker import TransactionAnomaly, TransactionVerdict, check
from tests.chaos.transaction_history import (
    DAMAGED,
    NO_OFFSET,
    OUTSIDE,
    End,
    Got,
    Reads,
    Transaction,
    TransactionHistory,
    copy_name,
    decode,
    encode,
    original_of,
)

A, B = "written-0", "written-1"


@dataclass
class Story:
    """A history that is told operation by operation; each takes a millisecond."""

    history: TransactionHistory = field(default_factory=TransactionHistory)
    now_ms: int = 0

    def tick(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def begin(self, process: str) -> Transaction:
        number = sum(transaction.process == process for transaction in self.history.transactions)
        transaction = Transaction(process, number, self.tick())
        self.history.transactions.append(transaction)
        return transaction

    def send(self, transaction: Transaction, partition: str, offset: int = NO_OFFSET, original: str | None = None) -> str:
        place, name = transaction.send(partition, original)
        transaction.delivered(place, offset)
        return name

    def commit(self, transaction: Transaction, is_answered: bool = True) -> None:
        transaction.commit_asked_ms = self.tick()
        transaction.end = End.UNKNOWN
        if is_answered:
            transaction.end, transaction.ended_ms = End.COMMITTED, self.tick()

    def abort(self, transaction: Transaction) -> None:
        transaction.end, transaction.ended_ms = End.ABORTED, self.tick()

    def read(self, process: str, partition: str, *entries: tuple[int, str], of: Transaction | None = None) -> None:
        reads = next((read for read in self.history.reads if read.process == process), None)
        if reads is None:
            reads = Reads(process)
            self.history.reads.append(reads)
        at_ms, number = self.tick(), OUTSIDE if of is None else of.number
        reads.rows += [Got(partition, offset, name, at_ms, number) for offset, name in entries]

    def assign(self, process: str, **positions: int) -> None:
        self.history.reads.append(Reads(process, {name.replace("_", "-"): offset for name, offset in positions.items()}))

    def committed(self, process: str, partition: str, offset: int) -> str:
        """A transaction of one message, from begin to end."""
        transaction = self.begin(process)
        name = self.send(transaction, partition, offset)
        self.commit(transaction)
        return name

    def verdict(self, copied_topic: str | None = None) -> TransactionVerdict:
        return check(self.history, copied_topic)


def only(verdict: TransactionVerdict, anomaly: TransactionAnomaly, *words: str, count: int = 1) -> None:
    assert dict(verdict.counts) == {anomaly: count}, verdict.findings
    assert not verdict.is_sound
    for word in words:
        assert word in verdict.findings[0].explanation


def test_transactions_that_interleave_are_sound_and_counted() -> None:
    """Writes of transactions at the same time are not isolated: each may be before the other, as in Jepsen."""
    story = Story()
    one, other = story.begin("w1"), story.begin("w2")
    names = story.send(one, A, 0), story.send(other, A, 1), story.send(other, B, 0), story.send(one, B, 1)
    story.commit(one)
    story.commit(other)
    story.read("r", A, (0, names[0]), (1, names[1]))
    story.read("r", B, (0, names[2]), (1, names[3]))
    verdict = story.verdict()
    assert verdict.is_sound, verdict.findings
    assert (verdict.committed, verdict.interleaved, verdict.messages, verdict.polled) == (2, 2, 4, 4)


def test_markers_and_aborted_messages_leave_gaps() -> None:
    story = Story()
    first = story.committed("w", A, 0)
    aborted = story.begin("w")
    story.send(aborted, A, 2)
    story.abort(aborted)
    second = story.committed("w", A, 4)
    story.assign("r", written_0=0)
    story.read("r", A, (0, first), (4, second))
    assert story.verdict().is_sound


def test_aborted_read() -> None:
    """G1a: the transaction was aborted, and a reader of committed data has its message."""
    story = Story()
    transaction = story.begin("w")
    name = story.send(transaction, A, 0)
    story.abort(transaction)
    story.read("r", A, (0, name))
    only(story.verdict(), TransactionAnomaly.ABORTED_READ, "r polled offset 0 of written-0", "w.0", "never asked to be committed")


def test_aborted_read_of_a_transaction_that_was_left_open() -> None:
    """No one ever asked to commit it: its producer is gone."""
    story = Story()
    name = story.send(story.begin("w"), A)
    story.read("r", A, (0, name))
    only(story.verdict(), TransactionAnomaly.ABORTED_READ)


def test_precommitted_read_of_another() -> None:
    story = Story()
    transaction = story.begin("w")
    name = story.send(transaction, A, 0)
    story.read("r", A, (0, name))
    story.commit(transaction)
    only(story.verdict(), TransactionAnomaly.PRECOMMITTED_READ, "r polled offset 0", "asked to be committed at 0.003 s")


def test_precommitted_read_of_its_own() -> None:
    """Jepsen's: a transaction observes what it has written itself, which is invisible to all until it commits."""
    story = Story()
    transaction = story.begin("w")
    name = story.send(transaction, A, 0)
    story.read("w", A, (0, name), of=transaction)
    story.commit(transaction)
    only(story.verdict(), TransactionAnomaly.PRECOMMITTED_READ, "which this very transaction wrote")


def test_write_cycle() -> None:
    """G0: the second began when the first had ended, and in one partition it is before it."""
    story = Story()
    first = story.begin("w1")
    names = [story.send(first, A, 1), story.send(first, B, 0)]
    story.commit(first)
    second = story.begin("w2")
    names += [story.send(second, A, 0), story.send(second, B, 1)]
    story.commit(second)
    story.read("r", A, (0, names[2]), (1, names[0]))
    story.read("r", B, (0, names[1]), (1, names[3]))
    only(story.verdict(), TransactionAnomaly.WRITE_CYCLE, "w2.0", "offset 0 of written-0, before offset 1", "w1.0")


def test_circular_flow() -> None:
    """G1c: each of two transactions has read what the other one wrote. It takes a precommitted read to come about."""
    story = Story()
    one, other = story.begin("w1"), story.begin("w2")
    names = story.send(one, A, 0), story.send(other, B, 0)
    story.read("w2", A, (0, names[0]), of=other)
    story.commit(other)
    story.read("w1", B, (0, names[1]), of=one)
    story.commit(one)
    verdict = story.verdict()
    assert verdict.counts == {TransactionAnomaly.CIRCULAR_FLOW: 1, TransactionAnomaly.PRECOMMITTED_READ: 1}
    assert any("w1.0 -> w2.0 -> w1.0" in finding.explanation for finding in verdict.findings)


def test_circular_flow_over_many_and_over_what_a_process_did_before() -> None:
    """The second transaction of w1 was read by w2, whose message was read by the first one of w1, so long before."""
    story = Story()
    first = story.begin("w1")
    story.read("w1", B, (0, "w2.0.0"), of=first)
    story.commit(first)
    second = story.begin("w1")
    name = story.send(second, A, 0)
    story.commit(second)
    other = story.begin("w2")
    story.read("w2", A, (0, name), of=other)
    story.send(other, B, 0)
    story.commit(other)
    verdict = story.verdict()
    assert verdict.counts[TransactionAnomaly.CIRCULAR_FLOW] == 1
    assert any("w1.0 -> w1.1 -> w2.0 -> w1.0" in finding.explanation for finding in verdict.findings)


def test_what_an_aborted_transaction_has_read_is_no_flow() -> None:
    story = Story()
    one = story.begin("w1")
    name = story.send(one, A, 0)
    story.commit(one)
    other = story.begin("w2")
    story.read("w2", A, (0, name), of=other)
    story.abort(other)
    assert story.verdict().is_sound


def test_lost_write() -> None:
    story = Story()
    story.committed("w", A, 0)
    story.read("r", A, (1, story.committed("w", A, 1)))
    only(story.verdict(), TransactionAnomaly.LOST_WRITE, "w.0.0", "offset 0 of written-0", "highest offset that was read is 1")


def test_a_transaction_of_unknown_end_may_be_there_or_not_but_not_in_part() -> None:
    """Half of it was read, so it was committed, and the other half is missing."""
    for is_read in (False, True):
        story = Story()
        transaction = story.begin("w")
        name = story.send(transaction, A, 0)
        story.send(transaction, B)
        story.commit(transaction, is_answered=False)
        if is_read:
            story.read("r", A, (0, name))
        verdict = story.verdict()
        assert (verdict.unknown, verdict.unknown_but_committed) == (1, int(is_read))
        if is_read:
            only(verdict, TransactionAnomaly.UNSEEN, "w.0.1")
        else:
            assert verdict.is_sound


def test_unseen() -> None:
    story = Story()
    story.committed("w", A, 0)
    only(story.verdict(), TransactionAnomaly.UNSEEN, "highest offset that was read is -1")


def test_duplicate() -> None:
    story = Story()
    name = story.committed("w", A, 0)
    story.read("r", A, (0, name), (1, name))
    only(story.verdict(), TransactionAnomaly.DUPLICATE, "offsets [0, 1]")


def test_inconsistent_offset() -> None:
    story = Story()
    one, other = story.committed("w", A, 0), story.committed("w", A, 1)
    story.read("r", A, (0, one), (1, other))
    story.read("s", A, (0, one))
    story.history.transactions[1].sends[0] = story.history.transactions[1].sends[0]._replace(offset=0)
    verdict = story.verdict()
    assert verdict.counts[TransactionAnomaly.INCONSISTENT_OFFSET] == 1
    assert "offset 0 of written-0 holds w.0.0, and w.1.0" in verdict.findings[0].explanation


def test_nonmonotonic_poll() -> None:
    story = Story()
    names = [story.committed("w", A, offset) for offset in range(2)]
    story.read("r", A, (0, names[0]), (1, names[1]))
    story.read("r", A, (1, names[1]))
    only(story.verdict(), TransactionAnomaly.NONMONOTONIC_POLL, "polled offset 1 of written-0", "after offset 1")


def test_skipped_poll() -> None:
    story = Story()
    names = [story.committed("w", A, offset) for offset in range(3)]
    story.read("r", A, *enumerate(names))
    story.assign("s", written_0=0)
    story.read("s", A, (0, names[0]), (2, names[2]))
    only(story.verdict(), TransactionAnomaly.SKIPPED_POLL, "s polled offset 2", "past w.1.0 at 1")


def test_skipped_poll_from_where_it_was_set_to() -> None:
    story = Story()
    names = [story.committed("w", A, offset) for offset in range(2)]
    story.read("r", A, *enumerate(names))
    story.assign("s", written_0=0)
    story.read("s", A, (1, names[1]))
    only(story.verdict(), TransactionAnomaly.SKIPPED_POLL, "past w.0.0 at 0")


def test_nonmonotonic_send() -> None:
    story = Story()
    transaction = story.begin("w")
    names = story.send(transaction, A, 1), story.send(transaction, A, 0)
    story.commit(transaction)
    story.read("r", A, (0, names[1]), (1, names[0]))
    only(story.verdict(), TransactionAnomaly.NONMONOTONIC_SEND, "w.0.1 is at offset 0")


@pytest.mark.parametrize("partition, name", [(A, DAMAGED), (A, "w.7.0"), (B, "w.0.0")])
def test_unwritten_read(partition: str, name: str) -> None:
    """Damaged, of no one, and in another partition than it was sent to."""
    story = Story()
    story.read("r", A, (0, story.committed("w", A, 0)))
    story.read("r", partition, (5, name))
    verdict = story.verdict()
    assert verdict.counts[TransactionAnomaly.UNWRITTEN_READ] == 1


def test_a_copy_of_each_message_is_sound() -> None:
    story = copied(copies=1)
    verdict = story.verdict("written")
    assert verdict.is_sound, verdict.findings
    assert verdict.copied == 1


def test_copied_twice() -> None:
    only(copied(copies=2).verdict("written"), TransactionAnomaly.COPIED_TWICE, "w.0.0 has the copies c.0.0<w.0.0, c.1.0<w.0.0")


def test_not_copied() -> None:
    only(copied(copies=0).verdict("written"), TransactionAnomaly.NOT_COPIED, "w.0.0", "has no copy")
    assert copied(copies=0).verdict().is_sound, "no one said that it was to be copied"


def copied(copies: int) -> Story:
    story = Story()
    original = story.committed("w", A, 0)
    story.read("r", A, (0, original))
    for offset in range(copies):
        transaction = story.begin("c")
        story.read("c", A, (0, original), of=transaction) if offset == 0 else None
        name = story.send(transaction, "copies-0", offset, original)
        story.commit(transaction)
        story.read("r", "copies-0", (offset, name))
    return story


@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_what_a_log_does_that_keeps_its_promises_is_sound(random: Random, steps: int) -> None:
    """Three producers that interleave, and readers that get what is decided: no order of steps makes an anomaly of it."""
    story = Story()
    logs: dict[str, list[tuple[str, Transaction] | None]] = {A: [], B: []}
    undecided: dict[str, Transaction] = {}
    positions: dict[tuple[str, str], int] = {}

    def stable_end(partition: str) -> int:
        still = [log[1] for log in logs[partition] if log is not None and log[1] in undecided.values()]
        return next((index for index, each in enumerate(logs[partition]) if each is not None and each[1] in still), len(logs[partition]))

    def poll(process: str, partition: str, of: Transaction | None) -> None:
        end = stable_end(partition)
        rows = [(index, each[0]) for index, each in enumerate(logs[partition]) if each is not None and each[1].end == End.COMMITTED]
        begin = positions.get((process, partition), 0)
        story.read(process, partition, *(row for row in rows if begin <= row[0] < end), of=of)
        positions[process, partition] = max(begin, end)

    for _ in range(steps):
        process = random.choice(("w1", "w2", "w3"))
        partition = random.choice((A, B))
        transaction = undecided.get(process)
        match random.choice(("send", "send", "poll", "poll outside", "commit", "abort")):
            case "send":
                transaction = undecided.setdefault(process, transaction or story.begin(process))
                logs[partition].append((story.send(transaction, partition, len(logs[partition])), transaction))
            case "poll":
                poll(process, partition, transaction)
            case "poll outside":
                poll("r", partition, None)
            case ending if transaction is not None:
                del undecided[process]
                story.commit(transaction) if ending == "commit" else story.abort(transaction)
                for log in logs.values():
                    log.append(None)  # the marker
    for process in list(undecided):
        story.abort(undecided.pop(process))
    for partition in logs:
        poll("final", partition, None)
    verdict = story.verdict()
    assert verdict.is_sound, verdict.findings


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.sets(st.sampled_from("abcdefgh"))))
def test_circles_are_what_can_be_reached_from_each_other(after: dict[str, set[str]]) -> None:
    """Compared with plain reachability."""

    def reachable(start: str) -> set[str]:
        found: set[str] = set()
        waiting = list(after.get(start, ()))
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += after.get(node, ())
        return found

    nodes = set(after).union(*after.values()) if after else set()
    expected = {frozenset({one} | {other for other in reachable(one) if one in reachable(other)}) for one in nodes}
    assert {frozenset(circle) for circle in circles(after)} == {circle for circle in expected if len(circle) > 1}
    for circle in circles(after):
        way = way_back(after, circle)
        assert way[0] == way[-1]
        assert set(way) <= set(circle)
        assert all(later in after[earlier] for earlier, later in pairwise(way))


@given(st.text(st.characters(codec="ascii", exclude_characters=" <"), min_size=1, max_size=30), st.integers(0, 500))
def test_a_message_gives_its_name_back_and_with_any_bit_turned_it_is_damaged(name: str, bit: int) -> None:
    message = bytearray(encode(name))
    assert decode(bytes(message)) == name
    message[bit // 8 % len(message)] ^= 1 << bit % 8
    assert decode(bytes(message)) != name
    assert decode(None) == decode(b"") == decode(b"nonsense") == DAMAGED


def test_a_copy_knows_its_original() -> None:
    assert original_of(copy_name("c.1.0", "w.2.3")) == "w.2.3"
    assert original_of("w.2.3") is None


def test_a_history_comes_back_from_its_file(tmp_path: Path) -> None:
    story = Story()
    transaction = story.begin("w")
    name = story.send(transaction, A, 4)
    story.commit(transaction)
    story.assign("r", written_0=2)
    story.read("r", A, (4, name), of=transaction)
    story.history.save(tmp_path / "history")
    loaded = TransactionHistory()
    loaded.load(tmp_path / "history")
    assert loaded == story.history

"""The judge on histories made by hand: one for each anomaly, each as it would come about, and sound ones beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chaos.checker import Anomaly, Verdict, check
from tests.chaos.history import DAMAGED, NO_OFFSET, History, Polls, Sends, value_of


@dataclass
class Story:
    """A history that is told operation by operation; each takes a millisecond."""

    history: History = field(default_factory=History)
    now_ms: int = 0

    def tick(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def send(self, process: int, offset: int | None, partition: int = 0) -> int:
        """A send that is acknowledged with this offset, or whose end stays unknown."""
        sends = next((send for send in self.history.sends if send.process == process), None)
        if sends is None:
            sends = Sends(process)
            self.history.sends.append(sends)
        value = sends.begin(partition, self.tick())
        if offset is not None:
            sends.acknowledge(len(sends) - 1, offset, self.tick())
        return value

    def send_failing(self, process: int, partition: int = 0) -> int:
        value = self.send(process, None, partition)
        sends = next(send for send in self.history.sends if send.process == process)
        sends.fail(len(sends) - 1, self.tick())
        return value

    def poll(self, process: int, *entries: tuple[int, int], partition: int = 0) -> None:
        """One poll that gives these offsets and values."""
        now_ms = self.tick()
        polls = self._polls(process)
        for offset, value in entries:
            polls.poll(partition, offset, value, now_ms)

    def assign(self, process: int, offset: int, partition: int = 0) -> None:
        self._polls(process).assign(partition, offset, self.tick())

    def _polls(self, process: int) -> Polls:
        found = next((poll for poll in self.history.polls if poll.process == process), None)
        if found is None:
            found = Polls(process)
            self.history.polls.append(found)
        return found

    def verdict(self) -> Verdict:
        return check(self.history)

    def only(self, anomaly: Anomaly, count: int = 1) -> str:
        """Asserts that this anomaly is found, and no other; gives the first explanation."""
        verdict = self.verdict()
        assert verdict.counts == {anomaly: count}
        assert not verdict.is_sound
        return verdict.findings[0].explanation


def sound_story() -> tuple[Story, list[int]]:
    """Two producers, one partition, five messages; no one has read yet."""
    story = Story()
    return story, [story.send(1, 0), story.send(2, 1), story.send(1, 2), story.send(1, 3), story.send(2, 4)]


def test_nothing_is_wrong_with_an_empty_history() -> None:
    assert Story().verdict().is_sound


def test_a_log_that_is_read_as_it_was_written_is_sound() -> None:
    story, values = sound_story()
    story.poll(10, *enumerate(values[:2]))
    story.poll(10, *enumerate(values[2:], start=2))
    verdict = story.verdict()
    assert verdict.is_sound
    assert (verdict.sent, verdict.acknowledged, verdict.unknown, verdict.failed, verdict.polled) == (5, 5, 0, 0, 5)


def test_what_never_was_acknowledged_may_be_there_or_not() -> None:
    story = Story()
    there = story.send(1, None)
    story.send(1, None)
    last = story.send(1, 1)
    story.poll(10, (0, there), (1, last))
    verdict = story.verdict()
    assert verdict.is_sound
    assert (verdict.unknown, verdict.unknown_but_written) == (2, 1)


def test_an_acknowledgement_without_an_offset_is_kept_by_whoever_reads_it() -> None:
    story = Story()
    value = story.send(1, NO_OFFSET)
    story.poll(10, (0, value))
    assert story.verdict().is_sound


def test_a_process_that_is_set_back_reads_again_and_another_process_from_anywhere() -> None:
    story, values = sound_story()
    story.poll(10, *enumerate(values))
    story.assign(10, 1)
    story.poll(10, *enumerate(values[1:], start=1))
    story.poll(11, (3, values[3]), (4, values[4]))
    assert story.verdict().is_sound


def test_partitions_have_orders_of_their_own() -> None:
    story = Story()
    first, second = story.send(1, 7, partition=0), story.send(1, 0, partition=1)
    story.poll(10, (7, first), partition=0)
    story.poll(10, (0, second), partition=1)
    assert story.verdict().is_sound


def test_a_lost_write() -> None:
    """Acknowledged by a leader that was then cut off its log: others' messages lie at that offset and beyond."""
    story = Story()
    first = story.send(1, 0)
    story.send(1, 1)
    third = story.send(2, 2)
    story.poll(10, (0, first))
    story.assign(10, 2)
    story.poll(10, (2, third))
    explanation = story.only(Anomaly.LOST_WRITE)
    assert explanation.startswith("message 1 of process 1 (to partition 0, sent at 0.003 s, acknowledged at 0.004 s)")
    assert "with offset 1" in explanation
    assert explanation.endswith("the highest offset that was read is 2")


def test_an_overwritten_write_is_lost_and_its_offset_disputed() -> None:
    story = Story()
    story.send(1, 0)
    other = story.send(2, None)
    story.poll(10, (0, other))
    verdict = story.verdict()
    assert verdict.counts == {Anomaly.LOST_WRITE: 1, Anomaly.INCONSISTENT_OFFSET: 1}
    assert any("where consumers saw message 0 of process 2" in finding.explanation for finding in verdict.findings)


def test_an_unseen_write() -> None:
    """A log that was cut off at its end, and nothing has come after."""
    story, values = sound_story()
    story.poll(10, *enumerate(values[:4]))
    explanation = story.only(Anomaly.UNSEEN)
    assert explanation.startswith("message 1 of process 2")
    assert "with offset 4" in explanation


def test_an_acknowledgement_without_an_offset_of_a_message_that_nobody_reads_is_unseen() -> None:
    story, values = sound_story()
    story.send(3, NO_OFFSET)
    story.poll(10, *enumerate(values))
    assert "without an offset" in story.only(Anomaly.UNSEEN)


def test_a_duplicate() -> None:
    """A retry that was appended a second time."""
    story, values = sound_story()
    story.poll(10, *enumerate([*values, values[4]]))
    assert story.only(Anomaly.DUPLICATE).endswith("is at offset 4 and at offset 5")


def test_what_a_client_sends_again_under_a_new_epoch_is_no_duplicate() -> None:
    story, values = sound_story()
    story.poll(10, *enumerate([*values, values[4], values[4]]))
    epochs = {5: (7, 1), 6: (7, 1)}
    verdict = check(story.history, lambda partition, offset: epochs.get(offset, (7, 0)))
    assert verdict.is_sound
    assert verdict.sent_again == 2


def test_an_inconsistent_offset() -> None:
    """Two replicas that went different ways, each read by a consumer."""
    story = Story()
    ours, theirs = story.send(1, None), story.send(2, None)
    story.poll(10, (0, ours))
    story.poll(11, (0, theirs))
    explanation = story.only(Anomaly.INCONSISTENT_OFFSET)
    assert "as process 10 polled it at 0.003 s" in explanation
    assert "as process 11 polled it at 0.004 s" in explanation


def test_two_acknowledgements_of_one_offset() -> None:
    story = Story()
    first, second = story.send(1, 0), story.send(2, 0)
    story.poll(10, (0, first))
    verdict = story.verdict()
    assert verdict.counts == {Anomaly.INCONSISTENT_OFFSET: 1, Anomaly.LOST_WRITE: 1}
    assert second == value_of(2, 0)
    assert "as its acknowledgement says" in verdict.findings[-1].explanation


def test_a_disputed_offset_is_lost_only_to_those_whom_nobody_read() -> None:
    """Both values were got by someone, the acknowledged one before and after the other."""
    story = Story()
    acknowledged, other = story.send(1, 0), story.send(2, None)
    for reader, value in enumerate((acknowledged, other, acknowledged), start=10):
        story.poll(reader, (0, value))
    story.only(Anomaly.INCONSISTENT_OFFSET)


@pytest.mark.parametrize("again", [2, 0])
def test_a_nonmonotonic_poll(again: int) -> None:
    """A consumer that is sent back without having asked: to the offset it just had, or further."""
    story, values = sound_story()
    story.poll(10, *enumerate(values[:3]))
    story.poll(10, *enumerate(values[again:], start=again))
    explanation = story.only(Anomaly.NONMONOTONIC_POLL)
    assert explanation.startswith(f"process 10 was to poll offset 3 of partition 0, and polled {again}")


def test_a_nonmonotonic_poll_within_one_answer() -> None:
    story, values = sound_story()
    story.poll(10, (0, values[0]), (1, values[1]), (2, values[2]), (1, values[1]), (2, values[2]), (3, values[3]), (4, values[4]))
    story.only(Anomaly.NONMONOTONIC_POLL)


def test_a_skipped_poll() -> None:
    """One consumer passes over what another one gets."""
    story, values = sound_story()
    story.poll(10, *enumerate(values))
    story.poll(11, (0, values[0]))
    story.poll(11, (3, values[3]), (4, values[4]))
    explanation = story.only(Anomaly.SKIPPED_POLL)
    assert "was to poll offset 1 of partition 0, and polled 3" in explanation
    assert "past 1 to 2, and at 1 is message 0 of process 2" in explanation


def test_a_poll_that_does_not_begin_where_the_process_was_set_to_is_skipped() -> None:
    story, values = sound_story()
    story.poll(10, *enumerate(values))
    story.assign(11, 0)
    story.poll(11, *enumerate(values[1:], start=1))
    story.only(Anomaly.SKIPPED_POLL)


def test_a_nonmonotonic_send() -> None:
    """Retries that overtook each other, or an epoch in which offsets were given again."""
    story = Story()
    early, late = story.send(1, 1), story.send(1, 0)
    story.poll(10, (0, late), (1, early))
    assert story.only(Anomaly.NONMONOTONIC_SEND).endswith("is at offset 1, and this process's later message 1 is at offset 0")


def test_a_nonmonotonic_send_that_only_consumers_saw() -> None:
    story = Story()
    early, late = story.send(1, None), story.send(1, None)
    story.poll(10, (0, late), (1, early))
    story.only(Anomaly.NONMONOTONIC_SEND)


def test_a_skipped_send() -> None:
    """Offsets were given out, and no one finds anything there."""
    story = Story()
    first, second = story.send(1, 0), story.send(1, 3)
    story.poll(10, (0, first), (3, second))
    assert "no one saw anything at 1 to 2 between them" in story.only(Anomaly.SKIPPED_SEND)


def test_an_aborted_read() -> None:
    """The client said that it never sent this."""
    story = Story()
    value = story.send_failing(1)
    story.poll(10, (0, value))
    assert "was read at offset 0" in story.only(Anomaly.ABORTED_READ)


def test_an_unwritten_read() -> None:
    story, values = sound_story()
    story.poll(10, *enumerate([*values, DAMAGED]))
    assert "which no one sent" in story.only(Anomaly.UNWRITTEN_READ)


def test_a_message_of_another_partition_is_an_unwritten_read() -> None:
    story = Story()
    value = story.send(1, 0, partition=3)
    story.poll(10, (0, value), partition=3)
    story.poll(10, (0, value), partition=4)
    assert story.only(Anomaly.UNWRITTEN_READ).startswith("offset 0 of partition 4 holds message 0 of process 1 (to partition 3")


def test_all_are_counted_and_few_are_told() -> None:
    story = Story()
    for offset in range(1_000):
        story.send(1, offset)
    verdict = story.verdict()
    assert verdict.counts == {Anomaly.UNSEEN: 1_000}
    assert len(verdict.findings) == 20


@pytest.mark.long
def test_a_history_of_many_disputes_is_judged_without_looking_through_it_for_each() -> None:
    """Twenty thousand disputes; to look through them for each would take minutes, and the timeout of tests ends this."""
    count = 20_000
    story = Story()
    ours, theirs = Sends(1), Sends(2)
    story.history.sends += [ours, theirs]
    first, second = story._polls(10), story._polls(11)
    for offset in range(count):
        first.poll(0, offset, ours.begin(0, 1), offset)
        second.poll(0, offset, theirs.begin(0, 1), offset)
    assert story.verdict().counts == {Anomaly.INCONSISTENT_OFFSET: count}


# Sound histories of any shape, and what becomes of them when one thing is changed.


@st.composite
def sound_histories(draw: st.DrawFn) -> Story:
    """Producers that interleave, some ends unknown, consumers that read in pieces and are set back, a last one reads all."""
    story = Story()
    random = Random(draw(st.integers(0, 2**32)))
    logs: dict[int, list[int]] = {0: [], 1: []}
    for process, partition, end in draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(0, 1), st.sampled_from(["ack", "quiet", "lost", "no offset"])), min_size=4, max_size=60
        )
    ):
        log = logs[partition]
        offset = {"ack": len(log), "no offset": NO_OFFSET}.get(end)
        value = story.send(process, offset, partition)
        if end != "lost":
            log.append(value)
    for reader in range(10, 10 + draw(st.integers(0, 3))):
        for partition, log in logs.items():
            for _ in range(random.randint(0, 3)):
                position = random.randint(0, len(log))
                story.assign(reader, position, partition)
                while position < len(log) and random.random() < 0.8:
                    stop = random.randint(position + 1, len(log))
                    story.poll(reader, *enumerate(log[position:stop], start=position), partition=partition)
                    position = stop
    for partition, log in logs.items():
        story.assign(99, 0, partition)
        story.poll(99, *enumerate(log), partition=partition)
    return story


@given(sound_histories())
@settings(deadline=None)
def test_sound_histories_are_found_sound(story: Story) -> None:
    assert story.verdict().is_sound


@given(sound_histories(), st.data())
@settings(deadline=None)
def test_a_value_that_is_replaced_in_any_poll_is_found(story: Story, data: st.DataObject) -> None:
    polls = story.history.polls[data.draw(st.integers(0, len(story.history.polls) - 1))]
    if not polls.values:
        return
    position = data.draw(st.integers(0, len(polls.values) - 1))
    polls.values[position] = data.draw(st.sampled_from([DAMAGED, value_of(1, 10_000), *(set(polls.values) - {polls.values[position]})]))
    assert not story.verdict().is_sound


@given(sound_histories(), st.data())
@settings(deadline=None)
def test_an_acknowledged_message_that_nobody_reads_is_found(story: Story, data: st.DataObject) -> None:
    """Its row is taken out of every poll: what is left is a skip, a loss, or unseen."""
    acknowledged = [
        value_of(sends.process, sequence)
        for sends in story.history.sends
        for sequence, outcome in enumerate(sends.outcomes)
        if outcome == 1
    ]
    if not acknowledged:
        return
    value = data.draw(st.sampled_from(acknowledged))
    kept = History(story.history.sends)
    for polls in story.history.polls:
        other = Polls(polls.process)
        for partition, first_offset, count, at_ms, position in polls.runs():
            if count == 0:
                other.assign(partition, first_offset, at_ms)
            for index in range(count):
                if polls.values[position + index] != value:
                    other.poll(partition, first_offset + index, polls.values[position + index], at_ms)
        kept.polls.append(other)
    assert {Anomaly.LOST_WRITE, Anomaly.UNSEEN} & set(check(kept).counts)

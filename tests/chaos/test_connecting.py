"""What a group has lost, of what its consumers have read."""

from __future__ import annotations

from time import process_time

from tests.chaos.connecting import gaps
from tests.chaos.history import Polls


def test_a_group_has_lost_what_nobody_of_it_read_before_what_one_of_it_did() -> None:
    def polls(process: int, *offsets: int) -> Polls:
        found = Polls(process)
        for offset in offsets:
            found.poll(0, offset, 1, process)
        return found

    everything = [polls(99, 0, 1, 2, 4, 5, 6, 7)]  # at 3 lies a marker
    assert gaps([polls(1, 0, 1), polls(2, 1, 2, 4, 5)], everything) == []
    (told,) = gaps([polls(1, 0, 1), polls(2, 4, 5, 6)], everything)
    assert "1 messages from offset 2 on, and one has read up to 6" in told
    assert gaps([], everything) == []
    long = [polls(99, *range(50_000))]  # half an hour has a million of each partition
    before = process_time()
    assert gaps(long, long) == []
    assert process_time() - before < 5

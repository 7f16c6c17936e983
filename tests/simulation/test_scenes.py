"""The judges of scenes, and what scenes and outages are made of: each finds what it is there for, in small."""

from __future__ import annotations

import asyncio
import os
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from tests.chaos.history import Sends
from tests.simulation.aging import Compaction, Retention, UncleanElections
from tests.simulation.asking import _records
from tests.simulation.compacted import last_of_keys, lost_records
from tests.simulation.control import CarriedControl
from tests.simulation.disk import Disk, recording
from tests.simulation.faults import Kind, Plan, Scene, _drawn, draw
from tests.simulation.loop import VirtualLoop
from tests.simulation.nodes import Node
from tests.simulation.producing import VALUE
from tests.simulation.recreating import Incarnation, judge
from tests.simulation.test_loop import run
from tests.simulation.test_network import network_of
from tests.simulation.trace import Trace

from ottla.errors import BrokerNotAvailable
from ottla.interbroker.local import Call
from ottla.model import BrokerId
from ottla.record.records import Record, build_batch


@cache
def plans(profile: str | None = None, count: int = 200) -> list[Plan]:
    return [draw(seed, profile) for seed in range(count)]


def test_two_runs_in_five_have_no_scenes_and_what_is_drawn_for_them_has_not_changed() -> None:
    assert 60 < sum(not plan.scenes for plan in plans()) < 100
    for plan in plans():
        if not plan.scenes and not any(fault.kind in (Kind.RESTORE_STORE, Kind.EMPTY_STORE, Kind.OUTAGE) for fault in plan.faults):
            assert set(_drawn(plan.seed).faults) <= set(plan.faults)
            assert _drawn(plan.seed).broker_settings.items() <= plan.broker_settings.items()


@pytest.mark.parametrize("scene", Scene)
def test_each_scene_is_played_often(scene: Scene) -> None:
    """The mirror maker's in its profile alone, as it is no part of a broker."""
    profile = "mirror" if scene is Scene.MIRROR else None
    assert sum(scene in plan.scenes for plan in plans(profile)) > 4


@pytest.mark.parametrize("kind", [Kind.EMPTY_DISK, Kind.ROLL_BACK_DISK, Kind.STEP_CLOCK_FAR, Kind.STRAGGLING_CALLS])
def test_each_rare_fault_is_drawn_with_scenes(kind: Kind) -> None:
    assert sum(any(fault.kind is kind for fault in plan.faults) for plan in plans()) > 4


@pytest.mark.parametrize("kind", [Kind.RESTORE_STORE, Kind.EMPTY_STORE, Kind.OUTAGE])
def test_each_outage_is_drawn_in_its_profile(kind: Kind) -> None:
    assert sum(any(fault.kind is kind for fault in plan.faults) for plan in plans("outages", 40)) > 4


# A topic that is made again.


def incarnation(number: int, first_seen_ms: int, last_seen_ms: int) -> Incarnation:
    return Incarnation(UUID(int=number), first_seen_ms - 10, first_seen_ms, last_seen_ms)


def sent(process: int, *times: tuple[int, int, int]) -> Sends:
    """Messages to partition 0, by when they were sent, acknowledged, and at which offset."""
    sends = Sends(process)
    for sequence, (sent_ms, done_ms, offset) in enumerate(times):
        sends.begin(0, sent_ms)
        sends.acknowledge(sequence, offset, done_ms)
    return sends


def values(sends: Sends) -> list[int]:
    return [sends.process << 32 | sequence for sequence in range(len(sends))]


def test_what_was_acknowledged_in_the_last_incarnation_must_be_read_in_it() -> None:
    sends = sent(1, (100, 110, 0), (120, 130, 1))
    last = incarnation(1, 50, 500)
    last.read = {(0, 0): values(sends)[0]}
    assert list(judge([last], [sends])) == ["w-0, incarnation 0: 0x100000001 was acknowledged at offset 1, which holds nothing"]
    last.asked_start = {0: 2}
    assert list(judge([last], [sends])) == [], "its deletion was asked for"


def test_of_an_earlier_incarnation_only_what_was_read_past_is_missed() -> None:
    sends = sent(1, (100, 110, 0), (120, 130, 1))
    first, last = incarnation(1, 50, 500), incarnation(2, 600, 900)
    assert list(judge([first, last], [sends])) == []
    first.spans = [(0, 0, 2)]
    first.read = {(0, 1): values(sends)[1]}
    assert len(list(judge([first, last], [sends]))) == 1


def test_a_message_that_may_have_been_acknowledged_in_either_incarnation_is_not_judged() -> None:
    sends = sent(1, (450, 650, 0))
    assert list(judge([incarnation(1, 50, 500), incarnation(2, 600, 900)], [sends])) == []


def test_a_message_of_a_former_incarnation_is_found() -> None:
    sends = sent(1, (100, 110, 0))
    first, last = incarnation(1, 50, 500), incarnation(2, 600, 900)
    last.read = {(0, 7): values(sends)[0]}
    assert list(judge([last, first], [sends])) == ["w-0, incarnation 1: offset 7 holds 0x100000000, acknowledged in a former one"]


# What goes by itself. The judges are given what a run would have left with them.


def aged(kind: type[Any], start: int, read: dict[int, int], sends: Sends, **more: object) -> Any:
    scene = object.__new__(kind)
    cluster = SimpleNamespace(clock_difference_ms=0, machines={})
    given = {"topic": "r", "start": start, "read": read, "sends": [sends], "ended_ms": 100_000, "stage": SimpleNamespace(cluster=cluster)}
    for name, value in {**given, **more}.items():
        object.__setattr__(scene, name, value)
    return scene


def test_retention_may_take_what_is_old_enough_and_nothing_younger() -> None:
    sends = sent(1, (1_000, 1_010, 0), (90_000, 90_010, 1), (91_000, 91_010, 2))
    found = aged(Retention, 2, {2: values(sends)[2]}, sends, _milliseconds=60_000, _bytes=None)
    assert list(found.findings()) == ["r: the log begins at 2, and offset 1 was sent 10000 ms ago; it is kept for 60000 ms"]


def test_compaction_keeps_the_last_of_each_key_or_something_newer() -> None:
    sends = sent(1, *((number, number + 1, number) for number in range(10)))
    kept = {offset: value for offset, value in enumerate(values(sends)) if offset >= 5}
    assert list(aged(Compaction, 0, dict(kept), sends).findings()) == []
    del kept[7]
    assert len(list(aged(Compaction, 0, kept, sends).findings())) == 1


def test_after_unclean_elections_what_is_there_was_sent_and_once() -> None:
    sends = sent(1, (0, 1, 0), (2, 3, 1), (4, 5, 2))
    first, second, _ = values(sends)
    assert list(aged(UncleanElections, 0, {0: first, 1: second}, sends).findings()) == []
    assert len(list(aged(UncleanElections, 0, {0: first, 1: first}, sends).findings())) == 1
    assert len(list(aged(UncleanElections, 0, {0: first, 2: second}, sends).findings())) == 1, "nothing at offset 1"


# Compacted logs, and transactions in them.


def batch(offset: int, key: bytes, value: bytes | None, **options: Any) -> bytes:
    return build_batch([Record(offset, 1, key, value)], base_offset=offset, **options)


def marker(offset: int, producer_id: int, *, commits: bool) -> bytes:
    key = bytes([0, 0, 0, 1 if commits else 0])
    return build_batch(
        [Record(offset, 1, key, bytes(6))], base_offset=offset, producer_id=producer_id, producer_epoch=0, transactional=True, control=True
    )


def test_the_last_of_each_key_is_the_same_before_and_after_a_cleaning(tmp_path: Path) -> None:
    in_transaction = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    whole = [
        batch(0, b"a", b"0"),
        batch(1, b"a", b"1"),
        batch(2, b"b", b"2"),
        batch(3, b"b", None),
        batch(4, b"c", b"4", **in_transaction),
        marker(5, 7, commits=False),
        batch(6, b"d", b"6", **in_transaction),
        marker(7, 7, commits=True),
        batch(8, b"e", b"8", **in_transaction),
        batch(9, b"a", b"9"),
    ]
    before, after = tmp_path / "before", tmp_path / "after"
    for directory, batches in ((before, whole), (after, [whole[1], whole[6], whole[7], whole[8], whole[9]])):
        directory.mkdir()
        (directory / "00000000000000000000.log").write_bytes(b"".join(batches))
    assert last_of_keys(before, 9) == {b"a": (1, b"1"), b"d": (6, b"6")}
    assert last_of_keys(after, 9) == last_of_keys(before, 9)


def test_a_start_may_find_the_old_segments_or_the_cleaned_one_and_in_both_the_last_record_of_each_key(tmp_path: Path) -> None:
    """A crash in the middle of a swap: the old one has given up its name, and the next has not."""
    first = [build_batch([Record(offset, 1, b"ab"[offset : offset + 1], b"x")], base_offset=offset) for offset in range(2)]
    second = [build_batch([Record(offset, 1, b"b", b"y%d" % offset)], base_offset=offset) for offset in (2, 3)]
    contents = {
        "00000000000000000000.log.deleted": b"".join(first),
        "00000000000000000000.log.swap": first[0] + second[1],
        "00000000000000000002.log": b"".join(second),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    last = last_of_keys(tmp_path, 4)
    assert last == {b"a": (0, b"x"), b"b": (3, b"y3")}
    assert lost_records(tmp_path, last) == {b"a": (0, b"x")}, "no one has ended the swap"
    (tmp_path / "00000000000000000000.log").write_bytes(first[0] + second[1])
    (tmp_path / "00000000000000000002.log").unlink()
    assert lost_records(tmp_path, last) == {}


def test_a_reader_of_committed_records_leaves_out_what_was_aborted_and_no_more() -> None:
    def message(offset: int, producer_id: int) -> bytes:
        return build_batch(
            [Record(offset, 1, None, VALUE.pack(offset))],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=offset,
            transactional=True,
        )

    data = b"".join(
        [message(0, 1), message(1, 2), marker(2, 1, commits=False), message(3, 1), marker(4, 1, commits=True), marker(5, 2, commits=True)]
    )
    assert [record.offset for record in _records(data, [(0, 1)])] == [1, 3]
    assert [record.offset for record in _records(data, [])] == [0, 1, 3]


# What outages are made of.


def test_a_disk_comes_back_as_it_was_kept_or_empty(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    root = Path(disk.root)
    with recording([disk], os.urandom):
        (root / "log").write_bytes(b"old")
        kept = disk.kept()
        (root / "log").write_bytes(b"new")
        (root / "other").write_bytes(b"new")
        disk.replace(kept)
        assert [(path.name, path.read_bytes()) for path in root.iterdir()] == [("log", b"old")]
        disk.lose_power(Random(1))
        assert (root / "log").read_bytes() == b"old", "what is on it is on the disk"
        disk.replace(None)
        assert list(root.iterdir()) == []


def test_a_straggling_call_fails_at_once_for_its_caller_and_is_performed_much_later() -> None:
    caller, receiver = Node("broker-1"), Node("broker-2")
    performed: list[float] = []

    async def story(loop: VirtualLoop) -> float:
        network = network_of(loop)
        control = CarriedControl(network, Random(3), Trace(loop.time), lambda broker_id: receiver)
        control.straggling = 1.0

        async def perform() -> None:
            performed.append(loop.time())

        async def call() -> float:
            with pytest.raises(BrokerNotAvailable):
                await control.carry(Call(BrokerId(1), BrokerId(2), "stop_replica"), perform)
            return loop.time()

        failed_at = await loop.spawn(caller, call())
        await asyncio.sleep(60.0)
        return failed_at

    failed_at = cast("float", run(story))
    assert failed_at <= 1.0 < performed[0]
    assert len(performed) == 1

"""The smaller parts: messages that prove themselves, sessions read off the wire, views of a cluster, replicas compared."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chaos import messages
from tests.chaos.brokers import REPOSITORY
from tests.chaos.clocks import FakeClock
from tests.chaos.history import DAMAGED
from tests.chaos.replicas import Writers, differences
from tests.chaos.sabotage import FAULTS
from tests.chaos.sabotaged import SABOTAGES
from tests.chaos.sessions import Session
from tests.chaos.views import ClusterView, PartitionView, decode


@given(st.integers(0, 2**64 - 3))
def test_a_message_gives_its_value_back(value: int) -> None:
    assert messages.decode(messages.encode(value)) == value
    assert len(messages.encode(value)) == messages.SIZE


@given(st.integers(0, 2**64 - 3), st.integers(0, messages.SIZE * 8 - 1))
def test_a_message_with_any_bit_turned_is_damaged(value: int, bit: int) -> None:
    message = bytearray(messages.encode(value))
    message[bit // 8] ^= 1 << bit % 8
    assert messages.decode(bytes(message)) == DAMAGED


def test_what_is_no_message_of_ours_is_damaged() -> None:
    assert messages.decode(None) == messages.decode(b"") == messages.decode(messages.encode(1)[:-1]) == DAMAGED


def test_a_session_is_read_from_the_answer_that_gives_it() -> None:
    answer = struct.pack("!iiiqi16s?", 37, 0, 6_000, 0x1000A, 16, b"p" * 16, False)
    assert Session.of_answer(answer) == Session(0x1000A, b"p" * 16)


def test_an_answer_that_gives_no_session_has_none() -> None:
    """An expired session is answered with the id 0; a short read is not an answer."""
    assert Session.of_answer(struct.pack("!iiiqi16s?", 37, 0, 0, 0, 16, bytes(16), False)) is None
    assert Session.of_answer(b"\0\0\0") is None
    assert Session.of_answer(struct.pack("!iiiqi", 37, 0, 6_000, 7, 16) + b"short") is None


def _metadata(controller: int, partitions: list[tuple[int, int, list[int], list[int]]]) -> bytes:
    def ids(values: list[int]) -> bytes:
        return struct.pack(f">i{len(values)}i", len(values), *values)

    brokers = struct.pack(">iih1sih", 1, 1, 1, b"h", 9092, -1)  # one, without a rack
    topic = struct.pack(">hh5s?i", 0, 5, b"chaos", False, len(partitions))
    rest = b"".join(struct.pack(">hii", 0, number, leader) + ids(replicas) + ids(isr) for number, leader, replicas, isr in partitions)
    return struct.pack(">i", 1) + brokers + struct.pack(">ii", controller, 1) + topic + rest


def test_a_view_is_read_from_a_metadata_answer() -> None:
    view = decode(_metadata(3, [(0, 1, [1, 2, 3], [1, 2, 3]), (1, -1, [2, 3, 1], [2])]))
    whole = frozenset({1, 2, 3})
    assert view == ClusterView(3, {0: PartitionView(1, whole, whole), 1: PartitionView(-1, whole, frozenset({2}))})
    assert view.shortcomings(2) == ["partition 1 has leader -1, in sync [2] of [1, 2, 3]"]
    assert view.shortcomings(3)[0] == "partition 2 is unknown"


def test_a_leader_outside_the_isr_is_a_shortcoming() -> None:
    both = frozenset({1, 2})
    assert PartitionView(1, both, both).is_whole
    assert not PartitionView(3, both, both).is_whole
    assert not PartitionView(1, both, frozenset({1})).is_whole


def _batch(offset: int, payload: bytes) -> bytes:
    return struct.pack(">qi", offset, len(payload)) + payload


def _replica(root: Path, *segments: list[bytes]) -> Path:
    directory = root / "chaos-0"
    directory.mkdir(parents=True)
    for number, batches in enumerate(segments):
        (directory / f"{number:020d}.log").write_bytes(b"".join(batches))
    return root


def test_replicas_that_roll_at_different_places_are_the_same(tmp_path: Path) -> None:
    one, two, three = (_batch(offset, b"x" * 30) for offset in (0, 5, 9))
    directories = {1: _replica(tmp_path / "a", [one, two, three]), 2: _replica(tmp_path / "b", [one], [two, three])}
    assert differences(directories, "chaos", 1) == []


def test_replicas_differ_at_the_first_batch_that_is_not_the_same_in_both(tmp_path: Path) -> None:
    one, two, other, three = _batch(0, b"a"), _batch(5, b"b"), _batch(5, b"c"), _batch(9, b"d")
    directories = {
        1: _replica(tmp_path / "a", [one, two, three]),
        2: _replica(tmp_path / "b", [one, other, three]),
        3: _replica(tmp_path / "c", [one, two]),
    }
    found = differences(directories, "chaos", 1)
    assert [difference.explanation for difference in found] == [
        "partition 0: the logs of broker 1 and broker 2 differ from the batch at offset 5 on",
        "partition 0: the logs of broker 1 and broker 3 differ from the batch at offset 9 on",
    ]


def test_the_writer_of_an_offset_is_the_producer_of_its_batch(tmp_path: Path) -> None:
    def batch(offset: int, producer_id: int, epoch: int) -> bytes:
        return _batch(offset, bytes(31) + struct.pack(">qh", producer_id, epoch) + bytes(10))

    writer_of = Writers(_replica(tmp_path, [batch(0, 7, 0), batch(5, 8, 3)], [batch(9, 7, 1)]), "chaos")
    assert [writer_of(0, offset) for offset in (0, 4, 5, 8, 9, 12)] == [(7, 0), (7, 0), (8, 3), (8, 3), (7, 1), (7, 1)]


@pytest.mark.long
def test_each_sabotage_breaks_what_is_there() -> None:
    """It replaces parts by their names, and says so when there is no such part any more. In a process that it may break."""
    each = "if not os.fork(): begin(); sys.exit()\n if os.wait()[1]: print(name)"
    program = f"import os, sys, ottla.broker.server, tests.chaos.sabotaged as s\nfor name, begin in s.SABOTAGES.items():\n {each}"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    command = [sys.executable, "-m", "tests.chaos.sabotaged", "ignores-the-epoch", "--help"]
    assert subprocess.run(command, cwd=REPOSITORY, capture_output=True).returncode == 0


def test_every_sabotage_has_faults_that_make_it_felt() -> None:
    assert set(FAULTS) == set(SABOTAGES)


def test_a_clock_is_told_its_offset_by_a_file(tmp_path: Path) -> None:
    clock = FakeClock(Path("/lib/fake.so"), tmp_path / "clock")
    assert (tmp_path / "clock").read_text() == "+0.000\n"
    clock.jump(-90.5)
    assert (tmp_path / "clock").read_text() == "-90.500\n"
    assert clock.environment["LD_PRELOAD"] == "/lib/fake.so"
    assert clock.environment["FAKETIME_DONT_FAKE_MONOTONIC"] == "1"


def test_a_client_whose_library_does_not_come_back_still_tells_what_it_saw(tmp_path: Path) -> None:
    """Its main thread is in a call of C then, and no handler of signals runs."""
    code = (
        "import ctypes, os, signal\n"
        "from tests.chaos import transactional_clients as clients\n"
        "clients.HANGS_SECONDS = 0.01\n"
        f"worker = clients.Worker(clients.Transacting('copier-9', '', ('a', 'b'), 1, 's', 0.0, {str(tmp_path / 'history')!r}))\n"
        "worker.run(lambda process: (os.kill(os.getpid(), signal.SIGTERM), ctypes.CDLL(None).sleep(60)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["hung"] == 1
    assert (tmp_path / "history").exists()

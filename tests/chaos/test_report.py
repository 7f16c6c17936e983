"""What a run says of itself: tables with every fault and anomaly, words for what is wrong, and a file with all of it."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console
from tests.chaos.checker import Anomaly, Verdict
from tests.chaos.faults import Injected
from tests.chaos.replicas import Difference
from tests.chaos.report import print_tables, write_json
from tests.chaos.run import Options, Result
from tests.chaos.schedule import Kind
from tests.chaos.transaction_checker import TransactionAnomaly, TransactionVerdict
from tests.chaos.verdict import Finding


def printed(result: Result, left_out: dict[Kind, str]) -> str:
    console = Console(file=io.StringIO(), width=160)
    print_tables(console, Options(7, (), Path("runs"), 60.0), result, left_out)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row(text: str, name: str) -> list[str]:
    return next([cell.strip() for cell in line.split("│")[2:-1]] for line in text.splitlines() if line.startswith(f"│ {name} "))


def test_a_sound_run() -> None:
    result = Result(
        injected=[Injected(Kind.KILL, 3.0, 7.5, "kill -9: broker 1"), Injected(Kind.KILL, 10.0, 11.0, "kill -9: broker 2")],
        verdict=Verdict(sent=12_000, acknowledged=11_990, unknown=10, unknown_but_written=4),
    )
    text = printed(result, {Kind.CLOCK_JUMP: "no libfaketime"})
    assert row(text, "kill -9") == ["2", "6"]
    assert row(text, "clock jump") == ["-", "no libfaketime"]
    assert row(text, "disk full") == ["0", "0"]
    assert row(text, "of unknown end") == ["10, of which 4 are in the log"]
    assert all(row(text, anomaly) == ["0"] for anomaly in Anomaly)
    assert text.splitlines()[-1].strip() == "sound"


def test_an_anomaly_is_told_with_the_faults_of_its_time(tmp_path: Path) -> None:
    verdict = Verdict(findings=[Finding(Anomaly.LOST_WRITE, 8_000, "message 5 is lost")])
    verdict.counts[Anomaly.LOST_WRITE] = 3
    result = Result(
        injected=[Injected(Kind.KILL, 3.0, 7.5, "kill -9: broker 1"), Injected(Kind.FREEZE, 20.0, 21.0, "freeze: broker 2")],
        verdict=verdict,
        differences=[Difference(0, "partition 0: they differ")],
        troubles=["broker 3 did not stop"],
        clients={"producer-1": {"errors": {"_MSG_TIMED_OUT": 2}}, "producer-2": {"errors": {}}},
    )
    text = printed(result, {})
    assert row(text, "lost write") == ["3"]
    assert "lost write: message 5 is lost [kill -9: broker 1]" in text
    assert "partition 0: they differ" in text
    assert "broker 3 did not stop" in text
    assert "producer-1 met" in text and "producer-2" not in text
    assert "NOT SOUND" in text
    write_json(tmp_path / "made" / "result.json", Options(7, (), tmp_path, 60.0), result, {})
    document = json.loads((tmp_path / "made" / "result.json").read_text())
    assert document["verdict"]["anomalies"]["lost write"] == 3
    assert document["verdict"]["findings"][0]["explanation"] == "message 5 is lost"
    assert document["faults"][0] == {"kind": "kill -9", "began": 3.0, "ended": 7.5, "what": "kill -9: broker 1"}
    assert not document["is_sound"]


def test_a_difference_between_replicas_or_a_trouble_is_enough_to_be_unsound() -> None:
    assert Result().is_sound
    assert not Result(differences=[Difference(0, "")]).is_sound
    assert not Result(troubles=["one"]).is_sound


def test_an_anomaly_of_a_transaction_is_told_and_makes_the_run_unsound(tmp_path: Path) -> None:
    finding = Finding(TransactionAnomaly.ABORTED_READ, 8_000, "reader-1 polled what was aborted")
    verdict = TransactionVerdict(findings=[finding], committed=1_200, unknown=3, unknown_but_committed=2, copied=700)
    verdict.counts[TransactionAnomaly.ABORTED_READ] = 4
    result = Result(injected=[Injected(Kind.KILL, 3.0, 8.5, "kill -9: broker 1")], transactions=verdict)
    assert not result.is_sound
    text = printed(result, {})
    assert row(text, "committed") == ["1,200"]
    assert row(text, "whose commit was not answered") == ["3, of which 2 are committed"]
    assert row(text, "aborted read (G1a)") == ["4"]
    assert row(text, "circular flow (G1c)") == ["0"]
    assert "aborted read (G1a): reader-1 polled what was aborted [kill -9: broker 1]" in text
    write_json(tmp_path / "result.json", Options(7, (), tmp_path, 60.0), result, {})
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["transactions"]["anomalies"]["aborted read (G1a)"] == 4
    write_json(tmp_path / "result.json", Options(7, (), tmp_path, 60.0, transactions=False), Result(), {})
    assert json.loads((tmp_path / "result.json").read_text())["transactions"] is None

"""The scenarios of transactions: what is written, whom markers go to, and what is refused. `make golden` writes the files anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.transactions.states import LEGAL_PREDECESSORS, TransactionState

from .transaction_commands import TransactionCommands
from .transcript import replay

FILES = sorted(Path(__file__).parent.glob("transaction_*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[file.stem for file in FILES])
def test_the_coordinator_of_transactions_does_as_the_file_says(path: Path) -> None:
    commands = TransactionCommands()
    try:
        replay(path, commands.execute)
    finally:
        commands.close()


def test_the_files_go_every_way_that_the_table_of_states_has() -> None:
    """But for PREPARE_EPOCH_FENCE, which is a thought of the coordinator's and never written."""
    seen: set[tuple[TransactionState, TransactionState]] = set()
    for path in FILES:
        commands = TransactionCommands()
        for block in path.read_text(encoding="utf-8").split("\n\n"):
            command = block.strip("\n").split("\n", 1)[0]
            if command and not command.startswith("#"):
                list(commands.execute(command))
        commands.close()
        seen |= commands.steps
    fence = TransactionState.PREPARE_EPOCH_FENCE
    legal = {(before, after) for after, all_before in LEGAL_PREDECESSORS.items() for before in all_before if fence not in (before, after)}
    # A transaction whose producer is shut out goes from ONGOING through the fence; what is written is the abort.
    assert seen == legal

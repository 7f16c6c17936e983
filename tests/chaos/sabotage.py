"""`python -m tests.chaos.sabotage [NAME…]`: runs chaos over brokers that are broken on purpose. Exit 1 when one is found sound.

Each sabotage has faults of its own, chosen so that what is missing is missed: minutes of a seed's faults would find it
as well, but not surely. The judge has to find an anomaly in what clients saw; that replicas differ, that a transaction
hangs, or that the cluster does not come back, is not enough.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from typing import Final

from tests.chaos.__main__ import DIRECTORY, run_until_told
from tests.chaos.auditing import disagreements
from tests.chaos.checker import Verdict
from tests.chaos.incarnations import IncarnationVerdict
from tests.chaos.report import make_console, print_tables, write_json
from tests.chaos.run import Options, Result
from tests.chaos.sabotaged import OF_REPLICATION, OF_STORAGE, SABOTAGES
from tests.chaos.sabotaged_transactions import SABOTAGES as OF_TRANSACTIONS
from tests.chaos.schedule import Fault, Kind
from tests.chaos.transaction_checker import TransactionVerdict

from ottla.record.audit_records import Verdict as AuditVerdict
from ottla.testing.zookeeper import why_unavailable

# Broker 1 goes on taking messages that its followers do not get, and is then gone for good as a leader.
_LEADER_LOSES_FOLLOWERS_AND_DIES: Final = (
    Fault(Kind.ISOLATE, start=6, seconds=4, target=1),
    Fault(Kind.KILL, start=8.5, seconds=1, target=1),
)
# Broker 1 takes messages that no one else gets, until its session ends and another leads; then it comes back, with
# messages that are no one else's, and leads again when the other two have each been away.
_FORMER_LEADER_RETURNS: Final = (
    Fault(Kind.ALONE, start=6, seconds=12, target=1),
    Fault(Kind.RESTART, start=30, seconds=1, target=2),
    Fault(Kind.RESTART, start=45, seconds=1, target=3),
)
# Each broker stops in order, which writes its checkpoints, while the topic that is made again and again has lost records to
# DeleteRecords. Soon it is another topic, and each is killed before it writes them once more: whichever leads then has inherited.
_CHECKPOINTS_OUTLIVE_THEIR_TOPIC: Final = tuple(
    Fault(kind, start=begin + later + 5 * target, seconds=0.5, target=target)
    for begin in range(0, 200, 40)
    for later, kind in ((0, Kind.RESTART), (22, Kind.KILL))
    for target in (1, 2, 3)
)
# What is wrong with transactions is seen without any fault; a coordinator and a leader that go away belong to it all the same.
_A_BROKER_IS_KILLED: Final = (Fault(Kind.KILL, start=10, seconds=2, target=1),)
FAULTS: Final[Mapping[str, tuple[Fault, ...]]] = {
    "acknowledges-early": _LEADER_LOSES_FOLLOWERS_AND_DIES,
    "skips-truncation": _FORMER_LEADER_RETURNS,
    "ignores-the-epoch": _FORMER_LEADER_RETURNS,
    "inherits-checkpoints": _CHECKPOINTS_OUTLIVE_THEIR_TOPIC,
    **dict.fromkeys(OF_TRANSACTIONS, _A_BROKER_IS_KILLED),
}
# Those that the audit has to notice too. What a copier copies twice it has also read twice, as after any abort; and of a topic that is
# made again every few seconds each window is of two.
_AUDITED: Final = (OF_REPLICATION.keys() | OF_TRANSACTIONS.keys()) - {"loses-offsets-of-transactions"}
# What it says of transactions in a sound run in which a broker is killed: some producers are thrown away with one that is open.
_SOUND: Final = (AuditVerdict.COMPLETE, AuditVerdict.LATE, AuditVerdict.IN_DOUBT)
# One message a batch: then any offset is a batch's, and logs that have parted fit onto each other anywhere.
_MESSAGES_PER_BATCH: Final = 1
_MESSAGES_PER_SECOND: Final = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.sabotage", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SABOTAGES))
    names = parser.parse_args().names or list(SABOTAGES)
    console = make_console()
    if (reason := why_unavailable()) is not None:
        console.print(f"No ZooKeeper: {reason}", highlight=False)
        return 2
    unnoticed: list[str] = []
    for name in names:
        console.rule(f"a broker that {name}")
        faults = FAULTS[name]
        options = Options(
            seed=0,
            faults=faults,
            directory=DIRECTORY.absolute() / name,
            seconds=max(fault.end for fault in faults) + 10,
            messages_per_second=_MESSAGES_PER_SECOND,
            command=(sys.executable, "-m", "tests.chaos.sabotaged", name),
            messages_per_batch=_MESSAGES_PER_BATCH,
            one_after_the_other=False,
            transactions=name in OF_TRANSACTIONS,
            audit=name in _AUDITED,
        )
        result = asyncio.run(run_until_told(options, console))
        print_tables(console, options, result, {})
        write_json(options.directory / "result.json", options, result, {})
        if _verdict(name, result).is_sound:
            unnoticed.append(name)
        if options.audit and not _is_noticed_by_the_audit(name, result):
            unnoticed.append(f"{name}, by the audit")
    console.rule()
    for name in (*names, *(f"{name}, by the audit" for name in names if name in _AUDITED)):
        console.print(f"{name}: {'NOT NOTICED' if name in unnoticed else 'found out, as it should be'}")
    return 1 if unnoticed else 0


def _is_noticed_by_the_audit(name: str, result: Result) -> bool:
    if name in OF_TRANSACTIONS:
        return any(one.verdict not in _SOUND for one in result.audit_of_transactions)
    return not disagreements(result.audit, result.verdict)


def _verdict(name: str, result: Result) -> Verdict | TransactionVerdict | IncarnationVerdict:
    """The judge that has to find this sabotage out."""
    if name in OF_TRANSACTIONS:
        return result.transactions
    return result.incarnations if name in OF_STORAGE else result.verdict


if __name__ == "__main__":
    sys.exit(main())

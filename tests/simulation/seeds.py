"""Seeds that once failed, and what was wrong: each fails on the commit before its fix, with the simulation of that time.

A seed draws another run as soon as the plans or the brokers' own messages change, so what a seed has shown is kept as a
test of its own beside the code that was wrong; `where` says which. `test_simulation.py` sees to it that those tests are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Regression:
    """One bug that a seed has found."""

    seed: int
    bug: str
    where: str


REGRESSIONS: Final = (
    Regression(
        22,
        "The directory of a new partition was never synced in its parent, so a loss of power on all machines took whole partitions"
        " with it, every message of which had been synced.",
        "tests/unit/storage/test_log_flushes.py",
    ),
    Regression(
        183,
        "Recovery took a hole between two segments, left by one that had not reached the disk, for a compaction's, and kept what"
        " followed: the replica joined the ISR again and later led without messages that were acknowledged.",
        "tests/unit/storage/test_recovery.py",
    ),
    Regression(
        2086,
        "A segment that truncation had cut was sealed and never synced: after a loss of power what had been cut off was back, before the"
        " segment that was written since.",
        "tests/unit/storage/test_recovery.py",
    ),
    Regression(
        1480,
        "What a thread had found in files that were truncated meanwhile was believed, and its errors were taken for a handler's.",
        "tests/unit/storage/test_looks_during_truncation.py",
    ),
    Regression(
        1010,
        "A block of producer ids that did not come, when whoever waited for it had gone, was an exception that no one looked at.",
        "tests/unit/broker/test_producer_ids.py",
    ),
    Regression(
        2668,
        "A follower told a consumer that an offset which it had not got to was out of range; its leader had it.",
        "tests/unit/broker/handlers/test_replica_fetch.py",
    ),
    Regression(
        34,
        "A consumer that knew only a former leader read on from it as from a follower, and was thrown back when that one lost its disk.",
        "tests/unit/broker/handlers/test_replica_fetch.py",
    ),
    Regression(
        20003,
        "A broker that stopped while no one answered it took up to 41 s, and left what it had begun as the controller to itself.",
        "tests/simulation/test_stopping.py",
    ),
    Regression(
        40015,
        "A replica that was moved away while its broker was away stayed there for ever.",
        "tests/unit/broker/controller/test_strays.py",
    ),
    Regression(
        770274,
        "With flush.messages a new leader waited for its next append before it synced what it had received as a follower: without one"
        " the high watermark stayed where it was, and acknowledged messages were never read.",
        "tests/unit/broker/replication/test_replicas.py",
    ),
    Regression(
        770591,
        "The same with what a leader had found in its log after a loss of power.",
        "tests/unit/broker/replication/test_replicas.py",
    ),
    Regression(
        771076,
        "The simulation's own fault: it counted the leaders nine milliseconds after an election, before the former one had heard of it.",
        "tests/simulation/test_simulation.py",
    ),
    Regression(
        5572979,
        "A start after a kill took the leader epochs before the recovery point from the batches, of which compaction had removed the"
        " first: a follower could have been told too late an end of its epoch.",
        "tests/unit/storage/test_recovery.py",
    ),
    Regression(
        4048,
        "ZooKeeper was restored while brokers ran (profile outages): the leader took its partition's state of before for a request that had"
        " come late, and led no more.",
        "tests/unit/broker/replication/test_roles.py",
    ),
    Regression(
        2949574,
        "A broker of a cluster taken over from Kafka did not start again: the logs of a topic that was being deleted were missing.",
        "tests/unit/takeover/test_findings.py",
    ),
    Regression(
        88878315,
        "ZooKeeper was restored while brokers ran, and broker epochs went back with it: a broker refused its controller for ever.",
        "tests/unit/broker/test_applying.py",
    ),
    Regression(
        1911202600100,
        "A controller that died before it had written down that its epoch was Ottla's left one that passed for Kafka's: brokers checked a"
        " takeover of their own cluster, and one with the log of an older topic did not start.",
        "tests/unit/coordination/test_election.py",
    ),
    Regression(
        554979494,
        "A log that had lost its partition.metadata after a clean stop was renamed as a stray, and the replica led with the empty one after"
        " it: acknowledged records were cut off everywhere.",
        "tests/unit/storage/test_last_stops.py",
    ),
    Regression(
        28112026213846,
        "The last segment of a log was cut between two batches after a clean stop: its time index kept what it had of what was gone.",
        "tests/unit/storage/test_recovery.py",
    ),
    Regression(
        233210817,
        "A log was cleaned while its copy in another log directory had its name already: a crash in between could leave a copy without the"
        " cleaned segment, and a start had the log begin where that copy did.",
        "tests/unit/storage/test_moves_and_crashes.py",
    ),
    Regression(
        692519639,
        "The only replica in sync came back with an empty disk. As long as the partition had no leader it was given an empty log, which"
        " then passed for one that nothing had been in: it led, and the others cut off what was committed.",
        "tests/unit/broker/replication/test_roles.py",
    ),
    Regression(
        138079997,
        "A broker was killed before it had made its log of a new partition, and was the last in sync. A log that it never made passed for"
        " one on a disk that is gone: no leader for good.",
        "tests/unit/storage/test_known_directories.py",
    ),
)

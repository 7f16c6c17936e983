"""A broker that is broken on purpose, so that the judge can be judged: `python -m tests.chaos.sabotaged NAME broker --config …`.

Each sabotage takes one of the promises away that keep acknowledged messages, in this process only, and then runs the
`ottla` command as it is. A run of chaos over brokers like these must not be found sound.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.chaos import sabotaged_transactions
from tests.chaos.sabotaging import replace


def acknowledge_early() -> None:
    """acks=all is answered when the leader has the message, whatever its followers have."""
    from ottla.broker.handlers.produce import ProducePartitionStatus

    def is_met(self: ProducePartitionStatus) -> bool:
        return self.partition.committed_offset() >= self.offset

    replace(ProducePartitionStatus, "is_met", is_met)


def skip_truncation() -> None:
    """A follower keeps what its leader does not have, and does not say of which epoch it is."""
    from ottla.broker.replication.replica import Replica

    fetch_position = Replica.fetch_position

    def silent_position(self: Replica) -> Any:
        return fetch_position(self)._replace(last_fetched_epoch=-1)

    def truncate_for(self: Replica, diverging_epoch: int, end_offset: int) -> bool:
        return False

    replace(Replica, "fetch_position", silent_position)
    replace(Replica, "truncate_for", truncate_for)


def ignore_epoch() -> None:
    """A leader does not compare a follower's epochs with its own, and whoever claims to be the controller is believed."""
    from ottla.broker.applying import ControlApplier
    from ottla.broker.replication.partition import Partition
    from ottla.broker.replication.replica import Replica
    from ottla.errors import NotLeaderOrFollower

    def divergence(self: Partition, last_fetched_epoch: int, fetch_offset: int) -> None:
        return None

    def check_leader_epoch(self: Replica, current_leader_epoch: int, *, by_leader: bool = True) -> None:
        if by_leader and not self.is_leader:
            raise NotLeaderOrFollower(f"{self.topic_partition}: broker {self.broker_id} does not lead")

    def check(self: ControlApplier, request: object) -> None:
        return None

    replace(Partition, "divergence", divergence)
    replace(Replica, "check_leader_epoch", check_leader_epoch)
    replace(ControlApplier, "_check", check)


def inherit_checkpoints() -> None:
    """A partition's name is given to a new log while the checkpoints still speak of the former one."""
    from ottla.storage.log_checkpoints import LogCheckpoints

    async def forget(self: LogCheckpoints, directory: Any, topic_partitions: Any) -> None:
        pass

    def forget_now(self: LogCheckpoints, directory: Any, topic_partition: Any) -> None:
        pass

    replace(LogCheckpoints, "forget", forget)
    replace(LogCheckpoints, "forget_now", forget_now)


OF_REPLICATION: Final[Mapping[str, Callable[[], None]]] = {
    "acknowledges-early": acknowledge_early,
    "skips-truncation": skip_truncation,
    "ignores-the-epoch": ignore_epoch,
}
OF_STORAGE: Final[Mapping[str, Callable[[], None]]] = {"inherits-checkpoints": inherit_checkpoints}
SABOTAGES: Final[Mapping[str, Callable[[], None]]] = {**OF_REPLICATION, **OF_STORAGE, **sabotaged_transactions.SABOTAGES}


if __name__ == "__main__":
    from ottla.cli.main import run

    SABOTAGES[sys.argv[1]]()
    sys.exit(run(sys.argv[2:]))

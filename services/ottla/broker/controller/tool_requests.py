"""What other tools ask of the controller by writing to ZooKeeper, as they did before there were APIs for it.

`/admin/reassign_partitions` names partitions and where they are to be. Each is taken out of it once it is there, or when it
is refused, and the znode goes with the last: tools wait for that. `/admin/preferred_replica_election` names partitions that
their preferred replicas are to lead, and goes when that was done. Both are looked at when a term begins and when their
watches fire. As Kafka, except that a request which can not be read is removed: there it keeps all later ones away.

One operation at a time: whoever calls sees to that.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Final

from ottla.broker.controller.partition_operations import PartitionOperations
from ottla.broker.controller.state import ClusterState
from ottla.broker.controller.writes import ControllerWrites
from ottla.coordination import znodes
from ottla.coordination.errors import BadVersion, MalformedZnode, NoNode
from ottla.coordination.interface import Coordination, Delete, Operation, SetData, Stat, Watch
from ottla.errors import NONE, ElectionNotNeeded
from ottla.interbroker.calls import ElectionType, PartitionOutcome
from ottla.model import BrokerId, TopicPartition

log: Final = logging.getLogger(__name__)


class ToolRequests:
    """What is asked for in ZooKeeper, in one term.

    Args:
        state: what is known.
        coordination: for reading.
        writes: for writing, in the name of one controller epoch.
        partitions: does what is asked for.
        reassignment_changed: told when there may be another request to move partitions.
        election_changed: told when there may be another request for elections.
    """

    def __init__(
        self,
        state: ClusterState,
        coordination: Coordination,
        writes: ControllerWrites,
        partitions: PartitionOperations,
        reassignment_changed: Watch,
        election_changed: Watch,
    ) -> None:
        self._state = state
        self._coordination = coordination
        self._writes = writes
        self._partitions = partitions
        self._reassignment_changed = reassignment_changed
        self._election_changed = election_changed
        self._moving: dict[TopicPartition, tuple[BrokerId, ...]] = {}  # what `/admin/reassign_partitions` says
        self._version = 0

    @property
    def is_moving(self) -> bool:
        """Whether partitions are on their way because a tool wrote so."""
        return bool(self._moving)

    async def look_for_reassignment(self) -> None:
        """Takes in which partitions a tool wants to be elsewhere."""
        path = znodes.REASSIGNMENT.path()
        found = await self._read(path, self._reassignment_changed)
        if found is None:
            self._moving = {}
            return
        data, stat = found
        try:
            wanted = znodes.decode_reassignment(path, data)
        except MalformedZnode as error:
            log.error("%s; the request is removed", error)
            self._moving = {}
            await self._write(Delete(path, stat.version))
            return
        new = {key: target for key, target in wanted.items() if self._moving.get(key) != target}
        self._moving, self._version = wanted, stat.version
        if new:
            log.info("%s: %d partitions are to be moved", path, len(new))
            _tell_refused("is not moved", await self._partitions.alter_reassignments(new))
        await self.reassignments_went_on()

    async def reassignments_went_on(self) -> None:
        """Takes out of the request what is done, or will not be."""
        left = {key: target for key, target in self._moving.items() if key in self._state.reassigning()}
        if len(left) == len(self._moving) and left:
            return
        path = znodes.REASSIGNMENT.path()
        is_written = await self._write(
            SetData(path, znodes.encode_reassignment(left), self._version) if left else Delete(path, self._version)
        )
        if is_written:
            self._moving = left
            self._version += 1

    async def look_for_election(self) -> None:
        """Has preferred replicas lead as a tool wants it."""
        path = znodes.PREFERRED_ELECTION.path()
        found = await self._read(path, self._election_changed)
        if found is None:
            return
        data, stat = found
        try:
            wanted = znodes.decode_partitions(path, data)
        except MalformedZnode as error:
            log.error("%s; the request is removed", error)
        else:
            log.info("%s: %d partitions are to be led by their preferred replicas", path, len(wanted))
            _tell_refused("has no other leader", await self._partitions.elect_leaders(ElectionType.PREFERRED, wanted))
        await self._write(Delete(path, stat.version))

    async def _read(self, path: str, watch: Watch) -> tuple[bytes, Stat] | None:
        with contextlib.suppress(NoNode):
            if await self._coordination.exists(path, watch) is not None:
                return await self._coordination.get(path)
        return None

    async def _write(self, operation: Operation) -> bool:
        """False when the tool was quicker: the watch tells of it."""
        try:
            await self._writes.write([operation])
        except (BadVersion, NoNode):
            return False
        return True


def _tell_refused(what: str, outcomes: Mapping[TopicPartition, PartitionOutcome]) -> None:
    for key, outcome in outcomes.items():
        if outcome.error not in (NONE, ElectionNotNeeded.code):
            log.warning("%s %s, as another tool wants it: %s", key, what, outcome.message)

"""A partition as a client of one listener sees it: Metadata and DescribeTopicPartitions tell the same of it."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from ottla.errors import NONE, LeaderNotAvailable, ListenerNotFound, ReplicaNotAvailable
from ottla.model import NO_LEADER, BrokerId, PartitionState


class PartitionView:
    """Makes the struct of a partition for a response.

    Args:
        schema: the response's.
        struct_name: the struct's.
        reachable: the live brokers that have the client's listener.
        alive: all live brokers.
        knows_listener_not_found: whether the version has that error; older ones are told that there is no leader.
        knows_offline_replicas: whether the version can say which replicas are offline; from older ones those are hidden.
    """

    def __init__(
        self,
        schema: Callable[..., Any],
        struct_name: str,
        reachable: Container[BrokerId],
        alive: Container[BrokerId],
        *,
        knows_listener_not_found: bool = True,
        knows_offline_replicas: bool = True,
    ) -> None:
        self._schema = schema
        self._struct_name = struct_name
        self._reachable = reachable
        self._alive = alive
        self._knows_listener_not_found = knows_listener_not_found
        self._knows_offline_replicas = knows_offline_replicas

    def __call__(self, index: int, state: PartitionState) -> Any:
        replicas, isr = state.replicas, state.isr
        if not self._knows_offline_replicas:
            # They are left out, and the error says that some are missing.
            replicas = tuple(each for each in replicas if each in self._reachable)
            isr = tuple(each for each in isr if each in self._reachable)
        error_code, leader = NONE, state.leader
        if leader not in self._reachable:
            error_code = self._why_no_leader(leader)
            leader = NO_LEADER
        elif len(replicas) < len(state.replicas) or len(isr) < len(state.isr):
            error_code = ReplicaNotAvailable.code
        return self._schema(
            self._struct_name,
            error_code=error_code,
            partition_index=index,
            leader_id=leader,
            leader_epoch=state.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=isr,
            # Not null: Java's client reads both as lists. Brokers over ZooKeeper have neither (KIP-966).
            eligible_leader_replicas=(),
            last_known_elr=(),
            offline_replicas=[each for each in state.replicas if each not in self._reachable],
        )

    def _why_no_leader(self, leader: BrokerId) -> int:
        if leader in self._alive and self._knows_listener_not_found:
            return ListenerNotFound.code
        return LeaderNotAvailable.code

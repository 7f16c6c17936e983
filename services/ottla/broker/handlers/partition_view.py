"""A partition as a client of one listener sees it: Metadata and DescribeTopicPartitions tell it alike, Produce and Fetch who leads it."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from ottla.broker.handlers.registry import BrokerParts, RequestContext
from ottla.errors import NONE, LeaderNotAvailable, ListenerNotFound, ReplicaNotAvailable
from ottla.model import NO_LEADER, BrokerId, BrokerRegistration, Endpoint, PartitionState, TopicPartition
from ottla.protocol.fetch import NodeEndpoint
from ottla.protocol.messages import MessageSchema


class PartitionView:
    """Makes the struct of a partition for a response.

    Args:
        schema: the response's.
        struct_name: the struct's.
        reachable: the live brokers that have the client's listener.
        alive: all live brokers.
        knows_listener_not_found: whether the version has that error; older ones get LEADER_NOT_AVAILABLE.
        knows_offline_replicas: whether the version can say which replicas are offline; from older ones those are hidden.
    """

    def __init__(
        self,
        schema: MessageSchema,
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
            replicas = tuple(replica for replica in replicas if replica in self._reachable)
            isr = tuple(replica for replica in isr if replica in self._reachable)
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
            offline_replicas=[replica for replica in state.replicas if replica not in self._reachable],
        )

    def _why_no_leader(self, leader: BrokerId) -> int:
        if leader in self._alive and self._knows_listener_not_found:
            return ListenerNotFound.code
        return LeaderNotAvailable.code


class CurrentLeaders:
    """The leaders of partitions that this broker refused as it does not lead them, for one answer (KIP-951).

    Args:
        listener_name: the client's.
    """

    __slots__ = ("_listener_name", "_parts", "endpoints")

    def __init__(self, parts: BrokerParts, listener_name: str) -> None:
        self._parts = parts
        self._listener_name = listener_name
        self.endpoints: dict[BrokerId, NodeEndpoint] = {}

    def of(self, key: TopicPartition) -> tuple[BrokerId, int] | None:
        """A partition's leader and its epoch, None without one. `endpoints` has where the client reaches it, if it does."""
        held = self._parts.replicas.partitions.get(key) or self._parts.metadata.partition(*key)
        if held is None or held.leader == NO_LEADER:
            return None
        registration = self._parts.metadata.brokers.get(held.leader)
        endpoint = None if registration is None else registration.endpoint(self._listener_name)
        if registration is not None and endpoint is not None:
            self.endpoints[held.leader] = NodeEndpoint(held.leader, endpoint.host, endpoint.port, registration.rack)
        return held.leader, held.leader_epoch


def reachable_brokers(parts: BrokerParts, context: RequestContext) -> dict[BrokerId, tuple[Endpoint, BrokerRegistration]]:
    """The live brokers that have the client's listener, with its address on each."""
    found = {}
    for broker_id, registration in sorted(parts.metadata.brokers.items()):
        endpoint = registration.endpoint(context.listener_name)
        if endpoint is not None:
            found[broker_id] = (endpoint, registration)
    return found

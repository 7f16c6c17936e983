"""`ottla cluster`: the brokers, the controller, and what is not as it should be, at a glance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ottla.cli.broker_call import NoConnection
from ottla.cli.connection import ANSWER_SECONDS, Connection, cluster_metadata, connects, told_plainly
from ottla.cli.errors import CommandFailed
from ottla.cli.log_directories import log_directory_states
from ottla.cli.output import count_of, say, say_json, table
from ottla.cli.reassignment_requests import adding_replicas
from ottla.model import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

# A glance: after a broker has gone, thousands of partitions have the same to say.
SHOWN: Final = 20

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
# Topics whose settings are asked for in one request: each has about thirty of them.
_TOPICS_AT_ONCE: Final = 200


@connects
def cluster(
    where: Connection,
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 when something is wrong, for scripts.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts; with every partition in question.")] = False,
) -> None:
    """Show the brokers, the controller, and partitions that are offline, under min.insync.replicas or under-replicated.

    Any broker answers for all. With `--check` the command fails when something is wrong: no controller, a broker that has
    replicas and does not live, or that does not answer, a partition in question, or a log directory that is offline or
    whose disk is full.

    Examples:

    - `ottla cluster`
    - `until ottla cluster --check; do sleep 1; done`
    """
    facts = gather_cluster(where)
    if as_json:
        say_json(facts.as_json())
    else:
        say(described(facts))
    if check and facts.complaints:
        raise CommandFailed("; ".join(facts.complaints))


def described(facts: ClusterFacts) -> str:
    """The cluster as a person reads it."""
    controller = "no controller" if facts.controller_id is None else f"controller {facts.controller_id}"
    rows: list[tuple[object, ...]] = [
        (
            str(broker.broker_id),
            f"{broker.host}:{broker.port}",
            broker.rack,
            broker.leader_count,
            broker.replica_count,
            broker.in_sync_count,
        )
        for broker in facts.brokers
    ]
    rows += [(str(broker_id), "is missing", None, None, count, None) for broker_id, count in facts.missing_brokers.items()]
    lines = [
        f"Cluster {facts.cluster_id}: {count_of(len(facts.brokers), 'broker')}, {controller}",
        table(("broker", "address", "rack", "leads", "replicas", "in sync"), rows),
        "",
    ]
    content = f"{count_of(facts.topic_count, 'topic')}, {count_of(len(facts.partitions), 'partition')}"
    if not facts.complaints:
        return "\n".join([*lines, f"{content}: every replica is in sync." if facts.partitions else f"{content}."])
    lines.append(f"{content}: {'; '.join(facts.complaints)}.")
    groups = (
        ("Offline", facts.offline),
        ("Under min.insync.replicas", facts.under_min_isr),
        ("Under-replicated", facts.under_replicated),
    )
    for title, partitions in groups:
        if partitions:
            lines += ["", f"{title}:", partitions_table(partitions[:SHOWN])]
        if len(partitions) > SHOWN:
            lines.append(f"… and {len(partitions) - SHOWN:,} more; --json has them all.")
    return "\n".join(lines)


def partitions_table(partitions: Sequence[Placed]) -> str:
    """Partitions with who leads, has and follows them."""
    rows = [
        (str(partition.topic_partition), partition.leader, partition.replicas, partition.isr, partition.min_insync_replicas)
        for partition in partitions
    ]
    return table(("partition", "leader", "replicas", "isr", "min isr"), rows)


# What `ottla cluster` shows: who is there, who leads how much, and which partitions are not as they should be.
#
# Gathered once from a client's metadata; what follows from it is worked out here, without a cluster.


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A broker that is registered. What it has is counted over all topics; log directories are named where something is wrong with them.

    One that was killed, or hangs, is registered until its session ends, and in every ISR until then: it does not answer (`is_reachable`).
    """

    broker_id: int
    host: str
    port: int
    rack: str | None
    leader_count: int = 0
    replica_count: int = 0
    in_sync_count: int = 0
    full_log_dirs: tuple[str, ...] = ()
    offline_log_dirs: tuple[str, ...] = ()
    is_reachable: bool = True


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a partition is. `min_insync_replicas` is None where it is not known; `adding` are replicas that a reassignment brings."""

    topic_partition: TopicPartition
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_insync_replicas: int | None = None
    adding: tuple[int, ...] = ()

    @property
    def is_offline(self) -> bool:
        """Whether it has no leader."""
        return self.leader is None

    @property
    def is_under_replicated(self) -> bool:
        return not {*self.isr, *self.adding}.issuperset(self.replicas)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether acks=all is refused for want of replicas."""
        return self.min_insync_replicas is not None and len(self.isr) < self.min_insync_replicas

    def as_json(self) -> dict[str, Any]:
        return {
            **self.topic_partition._asdict(),
            "leader": self.leader,
            "replicas": list(self.replicas),
            "isr": list(self.isr),
            "min_insync_replicas": self.min_insync_replicas,
        }


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The whole cluster at one moment."""

    cluster_id: str
    controller_id: int | None
    brokers: tuple[BrokerFacts, ...]
    partitions: tuple[Placed, ...]

    @property
    def topic_count(self) -> int:
        return len({partition.topic_partition.topic for partition in self.partitions})

    @property
    def offline(self) -> list[Placed]:
        return [partition for partition in self.partitions if partition.is_offline]

    @property
    def under_min_isr(self) -> list[Placed]:
        return [partition for partition in self.partitions if partition.is_under_min_isr]

    @property
    def under_replicated(self) -> list[Placed]:
        return [partition for partition in self.partitions if partition.is_under_replicated]

    @property
    def missing_brokers(self) -> dict[int, int]:
        """Brokers that have replicas and do not live, with how many replicas."""
        living = {broker.broker_id for broker in self.brokers}
        return dict(sorted(Counter(replica for placed in self.partitions for replica in placed.replicas if replica not in living).items()))

    @property
    def complaints(self) -> list[str]:
        """What is wrong, worst first; nothing when all is well."""
        found = [
            (len(self.offline), "offline"),
            (len(self.under_min_isr), f"under {MIN_INSYNC_REPLICAS}"),
            (len(self.under_replicated), "under-replicated"),
        ]
        complaints = [f"{count:,} of {len(self.partitions):,} partitions {what}" for count, what in found if count]
        if self.controller_id is None:
            complaints.insert(0, "no controller")
        if self.missing_brokers:
            complaints.append(f"no sign of broker {', '.join(map(str, self.missing_brokers))}")
        for broker in self.brokers:
            if not broker.is_reachable:
                complaints.append(f"broker {broker.broker_id} does not answer at {broker.host}:{broker.port}")
            complaints += [f"the log directory {path} of broker {broker.broker_id} is offline" for path in broker.offline_log_dirs]
            complaints += [f"the disk of the log directory {path} of broker {broker.broker_id} is full" for path in broker.full_log_dirs]
        return complaints

    def as_json(self) -> dict[str, Any]:
        return {
            "cluster_id": self.cluster_id,
            "controller_id": self.controller_id,
            "brokers": [asdict(broker) for broker in self.brokers],
            "topic_count": self.topic_count,
            "partition_count": len(self.partitions),
            "offline": [partition.as_json() for partition in self.offline],
            "under_min_isr": [replica.as_json() for replica in self.under_min_isr],
            "under_replicated": [partition.as_json() for partition in self.under_replicated],
            "missing_brokers": [{"broker_id": broker_id, "replica_count": count} for broker_id, count in self.missing_brokers.items()],
        }


def with_counts(brokers: Sequence[BrokerFacts], partitions: Sequence[Placed]) -> tuple[BrokerFacts, ...]:
    """The brokers by id, with what each leads, has, and has in sync."""
    leads = Counter(partition.leader for partition in partitions)
    has = Counter(replica for partition in partitions for replica in partition.replicas)
    in_sync = Counter(replica for partition in partitions for replica in partition.isr)
    return tuple(
        replace(broker, leader_count=leads[broker.broker_id], replica_count=has[broker.broker_id], in_sync_count=in_sync[broker.broker_id])
        for broker in sorted(brokers, key=lambda broker: broker.broker_id)
    )


def gather_cluster(where: Connection) -> ClusterFacts:
    """Asks any broker for all of it."""
    admin = where.admin()
    with told_plainly(where.bootstrap_server):
        described = admin.describe_cluster(request_timeout=ANSWER_SECONDS).result(ANSWER_SECONDS + 5)
    metadata = cluster_metadata(admin, where.bootstrap_server)
    adding = adding_replicas(where, metadata)
    minima = _min_insync_replicas(admin, where, sorted(metadata.topics))
    partitions = tuple(
        Placed(
            TopicPartition(name, number),
            found.leader if found.leader >= 0 else None,
            tuple(found.replicas),
            tuple(found.isrs),
            minima.get(name),
            adding.get(TopicPartition(name, number), ()),
        )
        for name, topic in sorted(metadata.topics.items())
        for number, found in sorted(topic.partitions.items())
    )
    brokers = [_broker(node, where) for node in described.nodes]
    controller = described.controller
    return ClusterFacts(
        described.cluster_id or "",
        controller.id if controller is not None and controller.id >= 0 else None,
        with_counts(brokers, partitions),
        partitions,
    )


def _broker(node: Any, where: Connection) -> BrokerFacts:
    found = BrokerFacts(node.id, node.host, node.port, node.rack)
    with suppress(CommandFailed):  # one that may not be asked, or not in this way, does not hide what others tell
        try:
            states = log_directory_states((str(node.host), node.port), where.properties)
        except NoConnection:
            return replace(found, is_reachable=False)
        full = tuple(path for path, state in states.items() if state == "full")
        return replace(found, full_log_dirs=full, offline_log_dirs=tuple(path for path, state in states.items() if state == "offline"))
    return found


def _min_insync_replicas(admin: AdminClient, where: Connection, names: Sequence[str]) -> Mapping[str, int]:
    """Of each topic; of none where the principal may not see them."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    minima: dict[str, int] = {}
    for start in range(0, len(names), _TOPICS_AT_ONCE):
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names[start : start + _TOPICS_AT_ONCE]]
        with told_plainly(where.bootstrap_server):
            answers = admin.describe_configs(resources, request_timeout=ANSWER_SECONDS)
        for resource, answer in answers.items():
            try:
                minima[resource.name] = int(answer.result(ANSWER_SECONDS + 5)[MIN_INSYNC_REPLICAS].value)
            except KafkaException:  # deleted meanwhile, or not ours to see
                continue
    return minima

"""What follows from what was found: what stops a takeover, what is given up by name, what changes, what is taken over. Pure.

A takeover is never weaker than what was before: what Kafka honoured and Ottla cannot honour stops it, unless `takeover.accept` has its
name. Some of it cannot be accepted, because a start would lose records or two implementations would write: those findings say so.

Every finding says what, where and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from ottla.config.broker import DYNAMIC_SETTINGS, BrokerSettings
from ottla.config.refused import why_refused
from ottla.config.topic import TopicSettings
from ottla.coordination import znodes
from ottla.coordination.znodes import DEFAULT_ENTITY, NO_KRAFT_EPOCH
from ottla.errors import ApiError
from ottla.model import TopicPartition
from ottla.takeover.cluster import ACLS, DELEGATION_TOKENS, MIGRATION, QUOTAS, SCRAM_USERS
from ottla.takeover.found import FoundBroker, FoundCluster, FoundDirectory

GUIDE: Final = "docs/coming-from-kafka.md"
# The oldest release whose cluster is taken over: since then topics have ids.
OLDEST_RELEASE: Final = (2, 8)
# With an older inter.broker.protocol.version Kafka writes `/feature` in its first version.
SECOND_FEATURE_VERSION: Final = (3, 3)
# The first release that knows what a directory is that ends with -stray.
KNOWS_STRAYS: Final = (3, 7)
# Paths of one finding that are named; of more their number is.
MOST_NAMED: Final = 5

_TIERED: Final = "remote.storage.enable"
_OF_TIERED_TOPICS: Final = ("remote.", "local.retention.")
_NOT_KAFKAS: Final = ("ottla.", "confluent.")


class Severity(Enum):
    """What a finding means for the start."""

    STOPS = "stops"
    GIVEN_UP = "given up"
    CHANGES = "changes"
    TAKEN_OVER = "taken over"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        name: what `takeover.accept` calls it.
        what: in a sentence.
        where: paths of files and znodes, places of settings.
        remedy: what to do about it; "" where there is nothing to do.
        may_be_accepted: whether `takeover.accept` can have it pass.
    """

    severity: Severity
    name: str
    what: str
    where: tuple[str, ...] = ()
    remedy: str = ""
    may_be_accepted: bool = False

    def sentence(self) -> str:
        """All of it in a line, as a log has it."""
        where = f", at {named(self.where)}" if self.where else ""
        accept = f"; to give it up: takeover.accept={self.name}" if self.may_be_accepted and self.severity is Severity.STOPS else ""
        return f"{self.name}: {self.what}{where}" + (f"; {self.remedy}" if self.remedy else "") + accept


def named(paths: Sequence[str]) -> str:
    """The first of some paths, and how many there are beside."""
    beside = f" and {len(paths) - MOST_NAMED} more" if len(paths) > MOST_NAMED else ""
    return ", ".join(paths[:MOST_NAMED]) + beside


def stops(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that stop a start."""
    return tuple(finding for finding in findings if finding.severity is Severity.STOPS)


def takeover(cluster: FoundCluster, brokers: Sequence[FoundBroker]) -> tuple[Finding, ...]:
    """What stands in the way of a takeover, what changes with it and what it takes over.

    Args:
        cluster: the znodes.
        brokers: those whose directories were looked at; some of the cluster's, or one.
    """
    accepted = {name for broker in brokers for name in broker.settings.takeover_accept}
    parts: tuple[Iterator[Finding], ...] = (
        mixture(cluster),
        _directories(cluster, brokers),
        _kept_elsewhere(cluster),
        _settings(cluster, brokers),
        _unfinished(cluster, brokers),
        _damage(cluster, brokers),
        _logs(cluster, brokers),
        _taken_over(cluster, brokers),
    )
    return tuple(_judged(finding, accepted) for part in parts for finding in part)


def _judged(finding: Finding, accepted: set[str]) -> Finding:
    if finding.severity is Severity.STOPS and finding.may_be_accepted and finding.name in accepted:
        return replace(finding, severity=Severity.GIVEN_UP)
    return finding


def _stop(name: str, what: str, where: Iterable[str], remedy: str, may_be_accepted: bool = False) -> Finding:
    return Finding(Severity.STOPS, name, what, tuple(where), remedy, may_be_accepted)


def _change(name: str, what: str, where: Iterable[str] = (), remedy: str = "") -> Finding:
    return Finding(Severity.CHANGES, name, what, tuple(where), remedy)


def mixture(cluster: FoundCluster) -> Iterator[Finding]:
    """What lives in the chroot of another implementation. It stops every start, and cannot be accepted."""
    foreign = [broker for broker in cluster.brokers if broker.is_foreign]
    if foreign:
        listed = "; ".join(f"broker {broker.broker_id} ({', '.join(map(str, broker.endpoints)) or 'no address'})" for broker in foreign)
        role = " One of them is the controller." if cluster.controller in {broker.broker_id for broker in foreign} else ""
        yield _stop(
            "live-brokers",
            f"Kafka runs in this chroot: {listed}.{role} A cluster is never mixed",
            (znodes.BROKER.path(broker.broker_id) for broker in foreign),
            "stop Kafka's brokers; one that was killed is gone when its session has timed out (zookeeper.session.timeout.ms)",
        )
    if cluster.controller is not None and cluster.kraft_epoch != NO_KRAFT_EPOCH:
        yield _stop(
            "live-controller",
            f"a KRaft controller, {cluster.controller}, has this cluster and migrates it",
            (znodes.CONTROLLER.path(),),
            "end or revert the migration as Kafka's documentation says, and stop the KRaft controllers",
        )


def _directories(cluster: FoundCluster, brokers: Sequence[FoundBroker]) -> Iterator[Finding]:
    for broker in brokers:
        for directory in broker.directories:
            where = (str(directory.path),)
            if directory.is_kraft:
                yield _stop(
                    "kraft",
                    "Kafka used the directory in KRaft mode, whose topics are in no znode",
                    where,
                    "copy the topics with the mirror into a new cluster; only a cluster on ZooKeeper is taken over",
                )
            elif directory.failure:
                yield _stop("damaged-files", f"the log directory cannot be read: {directory.failure}", where, "mend it", True)
            else:
                yield from _foreign(cluster, broker, directory)
            if directory.copies:
                yield _change(
                    "moves",
                    "moves of logs to this directory had not ended: their copies are removed, and the logs stay where they are",
                    (f"{directory.path}/{name}" for name in directory.copies),
                    "ask for them again with kafka-reassign-partitions.sh",
                )
            if not directory.is_used and not directory.failure and cluster.topics:
                yield _change("empty-directories", "the directory is empty: its broker copies its replicas from the others", where)


def _foreign(cluster: FoundCluster, broker: FoundBroker, directory: FoundDirectory) -> Iterator[Finding]:
    where = (str(directory.path),)
    if directory.broker_id is not None and broker.broker_id not in (None, directory.broker_id):
        yield _stop(
            "foreign-directories",
            f"the directory is broker {directory.broker_id}'s, and broker.id is {broker.broker_id}",
            where,
            "set log.dirs, or broker.id, as they were",
        )
    elif directory.cluster_id is not None and directory.cluster_id != cluster.cluster_id:
        here = "this ZooKeeper has no cluster" if cluster.cluster_id is None else f"this one is {cluster.cluster_id}"
        yield _stop(
            "foreign-directories",
            f"the directory belongs to cluster {directory.cluster_id}, and {here}",
            where,
            "set zookeeper.connect as Kafka had it, with its chroot",
        )


_KEPT_ELSEWHERE: Final = {
    ACLS: ("ACLs are set, and every client may do everything here", "remove them with kafka-acls.sh while Kafka runs"),
    SCRAM_USERS: ("users authenticate by SCRAM, and there is no SASL here", "remove the users with kafka-configs.sh while Kafka runs"),
    DELEGATION_TOKENS: ("delegation tokens are in use, and there are none here", "let them expire, or remove them"),
    QUOTAS: ("quotas are set, and none is enforced here", "remove them with kafka-configs.sh while Kafka runs"),
    MIGRATION: (
        "a migration to KRaft has begun",
        "revert it as Kafka's documentation says; then the znode is to be removed",
    ),
}


def _kept_elsewhere(cluster: FoundCluster) -> Iterator[Finding]:
    for name, (what, remedy) in _KEPT_ELSEWHERE.items():
        if paths := cluster.kept_elsewhere.get(name, ()):
            yield _stop(name, what, paths, remedy, True)


def _settings(cluster: FoundCluster, brokers: Sequence[FoundBroker]) -> Iterator[Finding]:
    for broker in brokers:
        for name, reason in broker.refused.items():
            yield _stop(name, reason, (broker.source,), "change or remove it", bool(why_refused(name)))
        for name in sorted(broker.settings.ignored):
            yield Finding(Severity.GIVEN_UP, name, "the setting is ignored", (broker.source,))
        if without_effect := broker.settings.without_effect(broker.settings.given):
            reasons = "; ".join(f"{name}: {reason}" for name, reason in without_effect.items())
            yield _change("settings-without-effect", reasons, (broker.source,))
        if broker.settings.protocol_release < OLDEST_RELEASE:
            yield _stop(
                "protocol-version",
                f"inter.broker.protocol.version is {broker.settings.inter_broker_protocol_version}: the upgrade to Kafka 2.8 was not ended",
                (broker.source,),
                "end it while Kafka runs; a cluster is taken over from Kafka 2.8 on",
                True,
            )
        elif cluster.feature_version == 1 and broker.settings.protocol_release >= SECOND_FEATURE_VERSION:
            yield _stop(
                "protocol-version",
                "inter.broker.protocol.version was below 3.3 in Kafka, as /feature says, and is "
                f"{broker.settings.inter_broker_protocol_version} here: Kafka could not read the offsets that are committed meanwhile",
                (broker.source,),
                "set it as Kafka has it; its default is Kafka's own release",
                True,
            )
    settings = brokers[0].settings if brokers else BrokerSettings()
    for entity, overrides in cluster.broker_settings.items():
        for name, value in overrides.items():
            if reason := settings.unusable(name, value, for_all=entity == DEFAULT_ENTITY):
                yield _stop(
                    DYNAMIC_SETTINGS,
                    f"what was set of brokers while they ran means nothing here: {reason}",
                    (znodes.BROKER_CONFIG.path(entity),),
                    f"remove {name} with kafka-configs.sh while Kafka runs",
                    True,
                )
    for topic, found in cluster.topics.items():
        yield from _topic_settings(settings, topic, found.settings)


def _topic_settings(settings: BrokerSettings, topic: str, overrides: Mapping[str, str]) -> Iterator[Finding]:
    where = (znodes.TOPIC_CONFIG.path(topic),)
    is_tiered = overrides.get(_TIERED, "false").strip().lower() == "true"
    if is_tiered:
        yield _stop(
            "tiered-topics",
            f"topic {topic} has records in tiered storage, which cannot be read here",
            where,
            # Kafka with ZooKeeper lets no topic leave tiered storage (KIP-950).
            "copy the topic into one without it, with the mirror or another client, and delete it",
            True,
        )
    for name, value in overrides.items():
        if name.startswith(_OF_TIERED_TOPICS):
            if not is_tiered:
                yield _change("topic-settings", f"topic {topic}: {name} has no effect", where)
            continue
        try:
            TopicSettings.of(settings, {name: value})
        except ApiError as error:
            yield _stop(DYNAMIC_SETTINGS, f"topic {topic}: {error}", where, f"remove {name} with kafka-configs.sh while Kafka runs", True)


def _unfinished(cluster: FoundCluster, brokers: Sequence[FoundBroker]) -> Iterator[Finding]:
    moving = [f"{name}-{index}" for name, topic in cluster.topics.items() for index in _moving(topic.assignment)]
    if moving or cluster.reassignment:
        where = [znodes.REASSIGNMENT.path()] if cluster.reassignment else []
        yield _change("reassignment", f"an unfinished reassignment continues: {named(moving) or 'it has not begun'}", where)
    may_delete = _may_delete(brokers)
    for name in cluster.deletions:
        where = [znodes.DELETE_TOPIC.path(name)]
        is_lost = name not in cluster.topics and znodes.TOPIC.path(name) in cluster.damaged
        if is_lost:
            yield _stop(
                "deletion", f"topic {name} is to be deleted, and which replicas it has cannot be read", where, "mend its znode", True
            )
        else:
            what = "its deletion is completed" if may_delete else "the mark of its deletion is removed, as delete.topic.enable is false"
            yield _change("deletion", f"topic {name}: {what}", where)


def _moving(assignment: znodes.TopicAssignment) -> list[int]:
    return sorted({*assignment.adding_replicas, *assignment.removing_replicas})


def _damage(cluster: FoundCluster, brokers: Sequence[FoundBroker]) -> Iterator[Finding]:
    for path, reason in cluster.damaged.items():
        name = "reassignment" if path == znodes.REASSIGNMENT.path() else "damaged-znodes"
        yield _stop(name, f"the znode cannot be read: {reason.removeprefix(f'{path}: ')}", (path,), "mend or remove it", True)
    for broker in brokers:
        for directory in broker.directories:
            for path, reason in directory.damaged.items():
                yield _stop(
                    "damaged-files",
                    f"the file cannot be read: {reason.removeprefix(f'{path}: ')}",
                    (path,),
                    "bring it back from a copy, or remove it and have its logs read through",
                    True,
                )


def _may_delete(brokers: Sequence[FoundBroker]) -> bool:
    return all(broker.settings.delete_topic_enable for broker in brokers)


def _logs(cluster: FoundCluster, brokers: Sequence[FoundBroker]) -> Iterator[Finding]:
    without_id = sorted(name for name, topic in cluster.topics.items() if topic.assignment.topic_id is None)
    if without_id:
        yield _change("topic-ids", f"topics without an id get one: {named(without_id)}", map(znodes.TOPIC.path, without_id))
    for broker in brokers:
        for directory in broker.directories:
            yield from _logs_of(cluster, broker, directory)
    yield from _missing(cluster, brokers)


def _logs_of(cluster: FoundCluster, broker: FoundBroker, directory: FoundDirectory) -> Iterator[Finding]:
    old: list[str] = []
    others: list[str] = []
    unnamed: list[str] = []
    strays: list[str] = []
    for key, log in directory.logs.items():
        path = f"{directory.path}/{key}"
        old += [f"{path}/{name} (format {magic})" for name, magic in log.old_formats]
        topic = cluster.topics.get(key.topic)
        if topic is None or key.partition >= len(topic.assignment.replicas):
            if znodes.TOPIC.path(key.topic) not in cluster.damaged:
                strays.append(path)
        elif broker.broker_id not in (None, *topic.assignment.replicas[key.partition]):
            strays.append(path)  # it was moved away, or its move was not ended here
        elif log.topic_id is not None and topic.assignment.topic_id != log.topic_id:
            (unnamed if topic.assignment.topic_id is None else others).append(path)
    if old:
        yield _stop(
            "message-format",
            "segments are of message format 0 or 1, which a recovery would cut away as damage",
            old,
            "let retention or compaction replace them while Kafka runs, or copy the topic with the mirror",
        )
    if others:
        yield _stop(
            "topic-ids",
            "the log has the id of another topic than its znode, and would be renamed to -stray",
            others,
            "find out which of the two is the topic",
            True,
        )
    if unnamed:
        # Kafka's tools of before 2.8 leave the id out when they write a topic's znode.
        yield _stop(
            "topic-ids",
            "the log has a topic's id and its znode has none: the topic would get another one, and the log would be renamed to -stray",
            unnamed,
            "write the id of partition.metadata into the topic's znode, as topic_id",
            True,
        )
    if strays and not directory.is_kraft:
        yield _change("stray-logs", "no znode gives these logs to their broker: they are renamed to -stray and kept", strays)


def _missing(cluster: FoundCluster, brokers: Sequence[FoundBroker]) -> Iterator[Finding]:
    """Partitions whose records are in no directory any more that was looked at, while no other directory has all of them."""
    looked = {broker.broker_id: broker.logs for broker in brokers if not any(directory.failure for directory in broker.directories)}
    deleted = cluster.deletions if _may_delete(brokers) else ()  # whose logs may be gone everywhere before their znodes are
    lost: list[str] = []
    for name, topic in cluster.topics.items():
        for index, state in enumerate(topic.states):
            if name in deleted or state is None or not state.isr or not all(replica in looked for replica in state.isr):
                continue
            if not any(TopicPartition(name, index) in looked[replica] for replica in state.isr):
                lost.append(znodes.PARTITION_STATE.path(name, index))
    if lost:
        yield _stop(
            "missing-logs",
            "the log is missing on every broker that is in sync: the partition would begin empty, and the others would be cut to that",
            lost,
            "bring the log directory back, or start without this broker and let a replica out of sync lead",
            True,
        )


def _taken_over(cluster: FoundCluster, brokers: Sequence[FoundBroker]) -> Iterator[Finding]:
    def taken(name: str, what: str) -> Finding:
        return Finding(Severity.TAKEN_OVER, name, what)

    partitions = sum(len(topic.assignment.replicas) for topic in cluster.topics.values())
    yield taken("topics", f"{len(cluster.topics)} topics with {partitions} partitions, their ids, leader epochs and in-sync replicas")
    logs = [log for broker in brokers for log in broker.logs.values()]
    yield taken("records", f"{len(logs)} logs with {sum(log.size for log in logs)} bytes, as they lie")
    changed = sum(bool(topic.settings) for topic in cluster.topics.values())
    dynamic = sorted({name for overrides in cluster.broker_settings.values() for name in overrides})
    yield taken("settings", f"what {changed} topics set, and of brokers: {', '.join(dynamic) or 'nothing'}")
    for topic, what in (("__consumer_offsets", "consumer groups with their offsets"), ("__transaction_state", "transactional producers")):
        if topic in cluster.topics:
            yield taken(topic, what)


def way_back(cluster: FoundCluster, brokers: Sequence[FoundBroker]) -> Iterator[Finding]:
    """What stands in the way of Kafka on these znodes and directories, and what it will pass over."""
    own = [broker for broker in cluster.brokers if not broker.is_foreign]
    if own:
        yield _stop(
            "live-brokers",
            f"Ottla runs: {', '.join(f'broker {broker.broker_id}' for broker in own)}",
            (znodes.BROKER.path(broker.broker_id) for broker in own),
            "stop all of its brokers before the first of Kafka starts",
        )
    for broker in brokers:
        definitions = broker.settings.definitions()
        ours = [name for name in sorted(broker.settings.given) if definitions[name].doc.startswith("Ottla's own")]
        if ours:
            yield _change("settings", f"Kafka passes over {', '.join(ours)}", (broker.source,))
        if broker.settings.serves_consumer_groups:
            yield _change(
                "consumer-groups",
                "groups of the consumer protocol (KIP-848) are not Kafka's with ZooKeeper: it passes over their members, not their offsets",
                (broker.source,),
                "let their clients use group.protocol=classic, and remove `consumer` from group.coordinator.rebalance.protocols",
            )
        for directory in broker.directories:
            yield from _foreign(cluster, broker, directory)  # Kafka refuses them, too
            yield from _directory_back(directory, broker.settings.protocol_release)
    if own_names := sorted({name for topic in cluster.topics.values() for name in topic.settings if name.startswith(_NOT_KAFKAS)}):
        yield _change(
            "topic-settings",
            f"Kafka passes over {', '.join(own_names)}, and refuses to alter a topic while that is set of it",
            (znodes.TOPIC_CONFIG.path(name) for name, topic in cluster.topics.items() if not topic.settings.keys().isdisjoint(own_names)),
            "remove it with kafka-configs.sh --delete-config",
        )
    if cluster.own_epochs.last >= 0:
        yield _change("znodes", "Kafka passes over what lies under /ottla", ("/ottla",), "`deleteall /ottla` when there is no coming again")


def _directory_back(directory: FoundDirectory, release: tuple[int, int]) -> Iterator[Finding]:
    if directory.unknown:
        yield _stop(
            "unknown-directories",
            "Kafka starts in no log directory that has a directory of another kind",
            (f"{directory.path}/{name}" for name in directory.unknown),
            "move them elsewhere",
        )
    if directory.set_aside and release < KNOWS_STRAYS:
        yield _stop(
            "stray-logs",
            f"Kafka {'.'.join(map(str, release))} starts in no log directory that has a directory ending with -stray",
            (f"{directory.path}/{name}" for name in directory.set_aside),
            "move them elsewhere",
        )
    if directory.is_used and not directory.is_clean:
        yield _change("unclean-stop", "the last stop was not a clean one: Kafka reads its logs through", (str(directory.path),))

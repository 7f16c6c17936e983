"""What is found of a cluster that is to be taken over, or given back: its znodes and its log directories, as values.

A path that could not be read is a value too: damage is something to report, and does not end the look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from ottla.config.broker import BrokerSettings
from ottla.coordination.znodes import NO_KRAFT_EPOCH, NO_OWN_EPOCHS, OwnEpochs, TopicAssignment
from ottla.model import BrokerId, BrokerRegistration, PartitionState, TopicPartition


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic in its znodes; `states` has None for a partition that has had no leader yet."""

    assignment: TopicAssignment
    states: tuple[PartitionState | None, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """What lies in the znodes of a cluster.

    Attributes:
        brokers: those that are registered now.
        controller: the broker of `/controller`; None where there is none.
        kraft_epoch: of a KRaft controller that migrates the cluster; NO_KRAFT_EPOCH without one.
        own_epochs: the latest controller epochs that were Ottla's.
        feature_version: of `/feature`, which says of which release Kafka's protocol was; None without it.
        broker_settings: what was changed of brokers while they ran, by the name of the znode.
        kept_elsewhere: paths of what Ottla has no part for, by the name of the finding (`acls`, `quotas` …).
        reassignment: whether `/admin/reassign_partitions` is there.
        deletions: the topics marked for deletion.
        damaged: paths that could not be read, each with the reason.
    """

    cluster_id: str | None = None
    controller_epoch: int = 0
    brokers: tuple[BrokerRegistration, ...] = ()
    controller: BrokerId | None = None
    kraft_epoch: int = NO_KRAFT_EPOCH
    own_epochs: OwnEpochs = NO_OWN_EPOCHS
    feature_version: int | None = None
    topics: Mapping[str, FoundTopic] = field(default_factory=dict)
    broker_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    kept_elsewhere: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reassignment: bool = False
    deletions: tuple[str, ...] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def since_epoch(self) -> int:
        """The controller epoch with which Ottla's latest time began, or begins with the next controller."""
        # An election between the two reads gives an own epoch above the controller's.
        return self.own_epochs.first if self.own_epochs.last >= self.controller_epoch else self.controller_epoch + 1


@dataclass(frozen=True, slots=True)
class FoundLog:
    """One partition's directory.

    Attributes:
        size: of its segments, in bytes.
        topic_id: that of `partition.metadata`; None without one.
        old_formats: the segments that begin with a message of format 0 or 1, each with the format.
    """

    size: int
    topic_id: UUID | None = None
    old_formats: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class FoundDirectory:
    """One of `log.dirs`.

    Attributes:
        path: where it is.
        broker_id: whose it is, by `meta.properties`.
        cluster_id: of which cluster.
        has_directory_id: whether it has one, which Kafka with ZooKeeper gives to none and Ottla to each.
        is_kraft: whether Kafka used it in KRaft mode.
        is_clean: whether the last stop was a clean one.
        logs: the partitions in it.
        set_aside: directories that end with `-stray`.
        copies: those that end with `-future`: of logs on their way here from another directory.
        marked: these, and all others of partitions that have another name than theirs: to be deleted, not finished.
        unknown: directories that are no partition's.
        checked_since: the controller epoch with which the time began that it was checked for; None without the note.
        damaged: files that could not be read, each with the reason.
        failure: why nothing could be read; "" where it could.
    """

    path: Path
    broker_id: int | None = None
    cluster_id: str | None = None
    has_directory_id: bool = False
    is_kraft: bool = False
    is_clean: bool = False
    logs: Mapping[TopicPartition, FoundLog] = field(default_factory=dict)
    set_aside: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    checked_since: int | None = None
    damaged: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""

    @property
    def is_used(self) -> bool:
        """Whether a broker ever used it."""
        return self.broker_id is not None or self.is_kraft or bool(self.logs) or bool(self.damaged)


@dataclass(frozen=True, slots=True)
class FoundBroker:
    """One broker of the cluster: its settings and its log directories.

    Attributes:
        source: where the settings are from: a file, or "this broker".
        settings: those that can be used.
        refused: settings of Kafka that are not served, each with the place and the reason.
        directories: what lies in `log.dirs`.
    """

    source: str
    settings: BrokerSettings
    directories: tuple[FoundDirectory, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def broker_id(self) -> int | None:
        """Which broker it is: as the settings say, else as its directories do."""
        if self.settings.broker_id >= 0:
            return self.settings.broker_id
        return next((directory.broker_id for directory in self.directories if directory.broker_id is not None), None)

    @property
    def logs(self) -> Mapping[TopicPartition, FoundLog]:
        """All of its directories' logs."""
        return {key: log for directory in self.directories for key, log in directory.logs.items()}

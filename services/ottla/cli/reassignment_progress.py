"""Waiting for a reassignment with a bar: by bytes copied where the brokers tell them, and by partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.cli.connection import Connection
from ottla.cli.errors import CommandFailed
from ottla.cli.log_directories import partition_sizes
from ottla.cli.output import bytes_of
from ottla.cli.reassignment_plan import Plan
from ottla.cli.reassignment_requests import Ongoing
from ottla.model import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

_POLL_SECONDS: Final = 0.5


def wait_for(
    where: Connection,
    metadata: ClusterMetadata,
    plan: Plan,
    before: Mapping[TopicPartition, tuple[int, ...]],
    ongoing: Callable[[], dict[TopicPartition, Ongoing]],
) -> None:
    """Returns when nothing of the plan is on its way any more.

    Args:
        where: the cluster.
        metadata: as it was at the start.
        plan: where the partitions go.
        before: where they were.
        ongoing: asks for those of the plan that are on their way.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    copies = _Copies(where, metadata, plan, before)
    columns = (TextColumn("moving partitions"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[copied]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(plan), copied="")
        while left := ongoing():
            progress.update(task, completed=len(plan) - len(left), copied=copies.text(left))
            time.sleep(_POLL_SECONDS)
        progress.update(task, completed=len(plan), copied=copies.text({}))


class _Copies:
    """How much of the new replicas is there: their size against that of the leaders at the start."""

    def __init__(self, where: Connection, metadata: ClusterMetadata, plan: Plan, before: Mapping[TopicPartition, tuple[int, ...]]) -> None:
        self._where = where
        self._addresses = {each.id: (str(each.host), each.port) for each in metadata.brokers.values()}
        self._new = {each: [broker for broker in replicas if broker not in before[each]] for each, replicas in plan.items()}
        leaders = {each: metadata.topics[each.topic].partitions[each.partition].leader for each in plan if self._new[each]}
        led: dict[int, list[TopicPartition]] = {}
        for each, leader in leaders.items():
            led.setdefault(leader, []).append(each)
        self._sizes = {each: size for leader, partitions in led.items() for each, size in self._ask(leader, partitions).items()}
        self._total = sum(self._sizes.get(each, 0) * len(brokers) for each, brokers in self._new.items())

    def text(self, left: Mapping[TopicPartition, Ongoing]) -> str:
        """`1.2 GiB of 3.0 GiB`; nothing where nothing is copied, or nothing is told."""
        if not self._total:
            return ""
        copied = sum(self._sizes.get(each, 0) * len(brokers) for each, brokers in self._new.items() if each not in left)
        by_broker: dict[int, list[TopicPartition]] = {}
        for each in left:
            for broker in self._new[each]:
                by_broker.setdefault(broker, []).append(each)
        for broker, partitions in by_broker.items():
            for each, size in self._ask(broker, partitions).items():
                copied += min(size, self._sizes.get(each, 0))  # a topic that is written to grows past what it was
        return f"{bytes_of(copied)} of {bytes_of(self._total)}"

    def _ask(self, broker: int, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The sizes on one broker; none from one that does not answer, for the bar is a courtesy."""
        address = self._addresses.get(broker)
        if address is None:
            return {}
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        try:
            return partition_sizes(address, self._where.properties, topics)
        except CommandFailed:
            return {}

"""The assignors that the coordinator runs: who is to read what.

    uniform   everybody as much as everybody else, and as little moved as that allows
    range     of each topic, a range of partitions for each member; topics of as many partitions are dealt alike

Pure, and the same for the same members and topics in whatever order. As in Kafka 4.0 none of them looks at racks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from ottla.broker.groups.consumer.assignment import Assignment
from ottla.broker.groups.consumer.ranges import range_assignor
from ottla.broker.groups.consumer.subscriber import Subscriber
from ottla.broker.groups.consumer.uniform import uniform_assignor

# Of who reads what, and how many partitions each topic has, what everybody is to have.
Assignor: TypeAlias = Callable[[Sequence[Subscriber], Mapping[UUID, int]], dict[str, Assignment]]

ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform_assignor, "range": range_assignor}

"""What clients do in some runs beside writing to one topic and reading it: a scene has topics and clients of its own, and a judge.

A scene runs while faults happen, insists on its topics once everything has healed, looks at everything again at the end
and says what it found. What it may find is what the documentation promises, no more: each module says which promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from tests.chaos.history import Sends
from tests.simulation.administering import Administrator
from tests.simulation.asking import Asker
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Plan
from tests.simulation.producing import Producer
from tests.simulation.wire import ClientView

from ottla.model import TopicPartition

# What CreateTopics is answered with when the topic is there.
THERE: Final = (0, 36)


class Actors(Protocol):
    """A scene."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics that are there at the end."""
        ...

    async def begin(self) -> bool:
        """Makes what has to be there before the first fault."""
        ...

    async def run(self) -> None:
        """What its clients do, until `stop`."""
        ...

    def stop(self) -> None: ...

    async def after_healing(self) -> None:
        """Insists on what has to be there at the end. `run` goes on meanwhile."""
        ...

    async def look_at_the_end(self) -> None:
        """Reads everything once more, when `run` has ended and all replicas are equal."""
        ...

    def findings(self) -> Iterator[str]:
        """What was wrong."""
        ...


@dataclass(slots=True)
class Stage:
    """What a scene has to do with.

    Attributes:
        fail: called with what must not be.
        new_process: gives numbers to lives of clients, which no other client of the run has.
        acknowledged: called with partition and offset of what must be on everybody who is in sync from now on.
    """

    plan: Plan
    cluster: Cluster
    administrator: Administrator
    random: Random
    fail: Callable[[str], None]
    tell: Callable[[str], None]
    note: Callable[[str], None]
    time_ms: Callable[[], int]
    new_process: Callable[[], int]
    acknowledged: Callable[[TopicPartition, int], None]

    def asker(self, name: str) -> Asker:
        return Asker(self.view(name), self.cluster.machines, Random(self.random.random()))

    def view(self, name: str) -> ClientView:
        return ClientView(self.cluster.connections, self.cluster.addresses, name)

    def producer(
        self,
        topic: str,
        partition_count: int,
        sends: list[Sends],
        acknowledged: Callable[[int, int], None] = lambda partition, offset: None,
        key_of: Callable[[int], bytes | None] = lambda value: None,
        *,
        is_judged: bool = True,
    ) -> Producer:
        """An idempotent producer with acks=all for a topic; it adds to `sends` what it did.

        Args:
            is_judged: whether it is a failure when it is refused what it may send.
        """

        def new_sends() -> Sends:
            sends.append(Sends(self.new_process()))
            return sends[-1]

        return Producer(
            self.view(f"producer of {topic}"),
            topic,
            partition_count,
            list(self.cluster.machines),
            Random(self.random.random()),
            self.time_ms,
            new_sends,
            lambda text: (self.fail if is_judged else self.tell)(f"{topic}: {text}"),
            delivery_seconds=30.0,
            acknowledged=acknowledged,
            note=self.note,
            place_of=self.cluster.place_of,
            key_of=key_of,
        )

    async def create(self, topic: str, partition_count: int, settings: Mapping[str, str]) -> bool:
        """Asks for a topic once; gives whether it is there."""
        with suppress(OSError):
            return await self.administrator.create(topic, partition_count, dict(settings)) in THERE
        return False

    def is_going(self, topic: str) -> bool:
        """Whether its deletion was asked for: brokers may know no more of it, while ZooKeeper still does."""
        return self.cluster.znode(f"/admin/delete_topics/{topic}") is not None

    def leads(self, broker_id: int, topic: str, partition: int) -> bool:
        """Whether a broker is the leader for all the others, too."""
        return self.cluster.place_of(topic, partition)[1] == broker_id

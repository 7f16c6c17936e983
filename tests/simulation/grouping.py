"""Groups that commit offsets and read them back, with their coordinators under fire.

Promised is that a commit that was acknowledged is there until it is overwritten, or until it expires:
`offsets.retention.minutes` after it was made, by the coordinator's clock. A commit that was not acknowledged may count at
any time, also later than one that was sent after it. Offsets of a topic that was deleted are no offsets of a topic that
was made under its name.

Each group has one member at most that commits, and it commits by itself (no generation, as `assign` does it), so what may
be read is known at each moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from tests.simulation.asking import GROUP, NO_OFFSET, NONE, Asker
from tests.simulation.recreating import TOPIC as RECREATED
from tests.simulation.scenes import Stage

TOPIC: Final = "t"
PARTITION: Final = 0
MOST_GROUPS: Final = 12
END_ATTEMPTS: Final = 100
# Between a commit and what a coordinator does about it; beside it clocks are counted with.
SLACK_MS: Final = 5_000


@dataclass(slots=True)
class Commits:
    """What is known of one group's offset.

    Attributes:
        name: of the group.
        topic_id: of the topic that is committed for, where that is made again and again.
        acknowledged: the last offset whose commit was acknowledged, or was read.
        acknowledged_ms: when that commit was sent.
        unknown: offsets that may be there as well.
    """

    name: str
    topic: str
    topic_id: UUID | None = None
    acknowledged: int = NO_OFFSET
    acknowledged_ms: int = 0
    last: int = NO_OFFSET
    unknown: set[int] = field(default_factory=set)


class Groups:
    """The scene."""

    def __init__(self, stage: Stage) -> None:
        self._stage: Final = stage
        self._every: Final = stage.random.choice((0.1, 0.5, 2.0))
        self._clients: Final = [stage.asker(f"group member {number}") for number in range(2)]
        self._groups: Final[list[Commits]] = []
        self._former: Final[list[Commits]] = []
        self._is_stopping = False
        minutes = int(stage.plan.broker_settings["offsets.retention.minutes"])
        self._retention_ms: Final = minutes * 60_000

    @property
    def topics(self) -> frozenset[str]:
        return frozenset()

    async def begin(self) -> bool:
        return True

    def stop(self) -> None:
        self._is_stopping = True

    async def after_healing(self) -> None:
        """Nothing has to be there but the topics of others."""

    async def run(self) -> None:
        await asyncio.gather(*(self._commit_and_read(client, number) for number, client in enumerate(self._clients)))
        for client in self._clients:
            client.view.close()

    async def _commit_and_read(self, client: Asker, number: int) -> None:
        random = self._stage.random
        mine: list[Commits] = []
        while not self._is_stopping:
            if not mine or (len(mine) < MOST_GROUPS and random.random() < 0.3):
                # Many are young: a group's first commit is a moment of its own.
                mine.append(self._new_group(f"group-{number}-{len(mine)}", is_young=len(mine) > 0))
                self._groups.append(mine[-1])
            group = random.choice((mine[-1], random.choice(mine)))
            with suppress(OSError):
                if random.random() < 0.6:
                    await self._commit(client, group)
                await self._read(client, group)
            await asyncio.sleep(random.expovariate(1 / self._every))

    def _new_group(self, name: str, *, is_young: bool) -> Commits:
        topic_id = self._stage.cluster.topic_id(RECREATED)
        if is_young and topic_id is not None and self._stage.random.random() < 0.5:
            return Commits(name, RECREATED, topic_id)
        return Commits(name, TOPIC)

    async def _commit(self, client: Asker, group: Commits) -> None:
        if group.topic_id is not None and self._stage.cluster.topic_id(RECREATED) != group.topic_id:
            return  # what it was committed for is no more
        group.last += 1
        offset, sent_ms = group.last, self._stage.time_ms()
        group.unknown.add(offset)
        is_known = await self._is_known(client, group)
        if await client.commit_offsets(group.name, group.topic, {PARTITION: offset}) == NONE and is_known:
            group.unknown.discard(offset)
            group.acknowledged, group.acknowledged_ms = offset, sent_ms

    async def _is_known(self, client: Asker, group: Commits) -> bool:
        """Whether the coordinator has heard of this topic. If not, a commit by its name is one for the former topic, as far as it knows."""
        broker = self._stage.cluster.machines[await client.coordinator(GROUP, group.name)].broker
        topic = None if broker is None else broker.metadata.topic(group.topic)
        return group.topic_id is None or (topic is not None and topic.topic_id == group.topic_id)

    async def _read(self, client: Asker, group: Commits) -> bool:
        """Whether it was answered."""
        error, offset = await client.committed_offset(group.name, group.topic, PARTITION)
        if error:
            return False
        self._judge(group, offset)
        return True

    def _judge(self, group: Commits, offset: int) -> None:
        if offset == group.acknowledged or offset in group.unknown:
            return
        if group.topic_id is not None and (self._stage.cluster.topic_id(RECREATED) != group.topic_id or self._stage.is_going(RECREATED)):
            return
        age_ms = self._stage.time_ms() - group.acknowledged_ms
        if offset == NO_OFFSET:
            # A coordinator whose clock is ahead expires it before its time; the next one's may be behind.
            if age_ms + self._stage.cluster.clock_difference_ms + SLACK_MS < self._retention_ms:
                self._stage.fail(
                    f"{group.name}: {age_ms} ms after its commit of {group.acknowledged} for {group.topic} was acknowledged there is none"
                )
                group.unknown.add(group.acknowledged)
                group.acknowledged = NO_OFFSET
        else:
            self._stage.fail(
                f"{group.name}: offset {offset} for {group.topic} was read, and {group.acknowledged} was acknowledged;"
                f" not known are {sorted(group.unknown)}"
            )

    async def look_at_the_end(self) -> None:
        client = self._stage.asker("groups at the end")
        for group in self._groups:
            for _ in range(END_ATTEMPTS):
                with suppress(OSError):
                    if await self._read_at_the_end(client, group):
                        break
                await asyncio.sleep(0.5)
            else:
                self._stage.fail(f"{group.name}: its offsets cannot be read")
        client.view.close()

    async def _read_at_the_end(self, client: Asker, group: Commits) -> bool:
        now = self._stage.cluster.topic_id(RECREATED)
        if group.topic_id is None or now in (None, group.topic_id):
            return await self._read(client, group)
        error, offset = await client.committed_offset(group.name, group.topic, PARTITION)
        if not error and offset != NO_OFFSET and offset not in group.unknown:
            self._stage.fail(
                f"{group.name}: offset {offset} was committed for a topic {group.topic} that is no more, and is there for its successor"
            )
        return not error

    def findings(self) -> Iterator[str]:
        yield from ()

"""Members over histories: their coordinator's log lags, refuses, times out, loses its tail and is compacted, while they come and go.

The shard is real, the log modelled, and the clients of both protocols are those of the storms. Promised is that no partition has two
readers at the same time, that a member that lives is not put out, and that all partitions are read once when the trouble is over.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.broker.groups.logs_in_memory import MovingLog
from tests.unit.broker.groups.test_conversion_storm import NewClient, OldClient, Storm, settle

from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.records import CommittedOffset
from ottla.errors import ApiError, NotEnoughReplicas
from ottla.model import TopicPartition

MAX_SIZE: Final = 4
Client = NewClient | OldClient
EVENTS: Final = (
    *("step",) * 25,
    *("come",) * 3,
    *("go", "go", "restart", "restart", "all step", "lose an answer"),
    *("time",) * 4,
    *("commit",) * 12,
    *("hold", "hold", "refuse", "time out", "grow", "make again", "lead again", "lead again", "offsets"),
)


class History:
    """One group.

    Attributes:
        held: whether the high watermark stands still.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.kinds: tuple[type[Client], ...] = random.choice([(NewClient, OldClient), (NewClient, OldClient), (NewClient,), (OldClient,)])
        self.log = MovingLog()
        self.storm = Storm(self.log, MAX_SIZE)
        self.clients: list[Client] = []
        self.held = False
        self.number = 0
        self.story: list[str] = []

    async def step(self) -> None:
        random, log, storm, clients = self.random, self.log, self.storm, self.clients
        self.number += 1
        said = event = random.choice(EVENTS)
        match event:
            case "come" if len(clients) < 5:
                name = f"c{self.number}"
                clients.append(random.choice(self.kinds)(storm, name, random.choice([None, f"i{self.number}"])))
                said = f"{name} comes, a {type(clients[-1]).__name__}, {clients[-1].instance_id}"
            case "go" if clients:
                said = await self.goes(clients.pop(random.randrange(len(clients))), is_static=False)
            case "restart" if any(client.instance_id for client in clients):
                stopped = random.choice([client for client in clients if client.instance_id])
                clients.remove(stopped)
                said = await self.goes(stopped, is_static=True)
                clients.insert(0, random.choice(self.kinds)(storm, f"c{self.number}", stopped.instance_id))
                said += f", and is back as c{self.number}, a {type(clients[0]).__name__}"
            case "all step":
                for client in clients:
                    await client.step()
            case "lose an answer" if clients:
                client = random.choice(clients)
                said = f"{client.member_id} loses its connection"
                client.loses_its_connection()
            case "time":
                seconds = random.choice([0.1, 3, 9])
                said = f"{seconds} s"
                await storm.pass_time(seconds)
            case "hold":
                self.held = True
            case "commit":
                self.held = False
                log.refusal = None
            case "refuse":
                log.refusal = NotEnoughReplicas("1 of 2")
            case "time out":
                log.time_out()
            case "make again" if self.kinds == (NewClient,):  # others speak of topics by name
                storm.topics.delete("clicks")
                storm.topics.make("clicks", random.randint(3, 6))
                storm.shard.topics_deleted(["clicks"])
            case "grow" if storm.partition_count < 9:
                storm.topics.make("clicks", storm.partition_count + 1)
            case "lead again":
                said = await self.lead_again()
            case "offsets":
                await self.offsets()
            case _ if clients:
                client = random.choice(clients)
                said = f"step of {client.member_id}"
                await client.step()
        await self.look(said)

    async def look(self, said: str) -> None:
        if not self.held:
            self.log.commit(self.log.end_offset)
        await settle()
        group = self.storm.shard.group("g")
        state = "none" if group is None else f"{type(group).__name__} {group.state.value} {list(group.members)}"
        self.story.append(f"{said}: {state}, {self.log.high_watermark} of {self.log.end_offset} {self.log.refusal or ''}")
        self.storm.check_owners(self.clients)

    async def goes(self, client: Client, *, is_static: bool) -> str:
        if self.random.random() < 0.3:
            return f"{client.member_id} dies"
        client.loses_its_connection()
        going = asyncio.ensure_future(client.stop() if is_static else client.leave())
        await settle()
        if going.done() and isinstance(going.exception(), ApiError):
            return f"{client.member_id} leaves in vain: {going.exception()}"
        going.cancel()
        return f"{client.member_id} " + ("stops" if is_static else "leaves")

    async def lead_again(self) -> str:
        end_offset = self.random.choice([self.log.high_watermark, *self.log.boundaries()])
        known = self.known()
        self.storm.shard.close()
        self.log.refusal, self.held = None, False
        self.log.cut(end_offset)
        await settle()
        if self.random.random() < 0.5:
            self.log.compact(self.random)
        await self.storm.shard.ended()
        assert not timers(), self.story
        await self.storm.start()
        forgotten = [client.member_id for client in known if client not in self.known()]
        assert not forgotten, (forgotten, self.story)
        return f"another leads, from {end_offset} on"

    def known(self) -> list[Client]:
        """The members that have been answered what their coordinator has of them."""
        group = self.storm.shard.group("g")
        if group is None:
            return []
        return [client for client in self.clients if client.is_at_rest and client.owned and client.is_current(group)]

    async def offsets(self) -> None:
        """Some that keep an empty group, or let it go."""
        shard, partition = self.storm.shard, TopicPartition("clicks", 0)
        work = (
            shard.commit("g", -1, "", None, {partition: CommittedOffset(1)}),
            shard.delete("g"),
            shard.delete_offsets("g", [partition]),
        )
        chosen = self.random.randrange(3)
        for index, each in enumerate(work):
            if index != chosen:
                each.close()
        doing = asyncio.ensure_future(work[chosen])
        await settle()
        if not doing.done():
            doing.cancel()
        elif doing.exception() is not None:
            assert isinstance(doing.exception(), ApiError), self.story

    async def run(self, steps: int) -> None:
        await self.storm.start()
        for _ in range(steps):
            await self.step()
        self.log.refusal, self.held = None, False
        if not self.clients:
            self.clients.append(self.kinds[0](self.storm, "last"))
        for number in range(70):
            if number == 20:
                # A leader that restarts sees neither that the topic grew nor what another was to give up, as in Kafka (KIP-814).
                self.storm.topics.make("clicks", self.storm.partition_count + 1)
            for client in self.clients:
                await client.step()
            await self.storm.pass_time(2)
            await self.look("rest")
        group = self.storm.shard.group("g")
        assert isinstance(group, (Group, ConsumerGroup))
        topic = self.storm.topics.topic("clicks")
        assert topic is not None
        found = sorted(partition for client in self.clients for partition in client.owned)
        assert found == [(topic.topic_id, number) for number in range(len(topic.partitions))], (found, self.story)
        assert len(group) == min(len(self.clients), MAX_SIZE), self.story
        assert group.state.value == "Stable", self.story
        self.storm.shard.close()
        await settle()
        assert not timers(), self.story


def timers() -> list[asyncio.TimerHandle]:
    """Those that wait."""
    return [timer for timer in vars(asyncio.get_running_loop())["_scheduled"] if not timer.cancelled()]


@settings(max_examples=examples(12), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_partition_has_two_readers_and_all_are_read_in_the_end(seed: int) -> None:
    asyncio.run(History(Random(seed)).run(120))

"""An administrator at work while everything breaks: topics come, grow and go, partitions move, leaders are preferred.

What is asked for may be done, refused, or lost on the way; no one insists before everything has healed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any, Final

from tests.simulation.faults import Kind
from tests.simulation.wire import ClientView

from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import message

REPLICATION_FACTOR: Final = 3
# Few, so that a topic is often made again under the name of one that was deleted.
OTHER_TOPICS: Final = ("u", "v")
_TIMEOUT: Final = timedelta(seconds=10)
_ANSWER_SECONDS: Final = 15.0
_SETTLE_ATTEMPTS: Final = 30


class Administrator:
    """A client that changes topics.

    Args:
        tell: told what is asked for and answered.
    """

    def __init__(
        self, view: ClientView, topic: str, partition_count: int, broker_ids: list[int], random: Random, tell: Callable[[str], None]
    ) -> None:
        self._view = view
        self._topic = topic
        self._partition_count = partition_count
        self._broker_ids = broker_ids
        self._random = random
        self._tell = tell
        self.topics_beside: list[str] = []  # that are moved, too: some may not be there, or have one partition

    async def do(self, kind: Kind) -> None:
        """Asks once, whatever comes of it."""
        random = self._random
        name = random.choice(OTHER_TOPICS)
        with suppress(OSError):
            match kind:
                case Kind.CREATE_TOPIC:
                    await self.create(name, random.choice((1, 3)), {})
                case Kind.DELETE_TOPIC:
                    await self.delete(name)
                case Kind.MORE_PARTITIONS:
                    await self._grow(name, random.randint(2, 5))
                case Kind.REASSIGN if self.topics_beside and random.random() < 0.6:
                    name = random.choice(self.topics_beside)
                    await self._reassign({random.randrange(2): random.sample(self._broker_ids, random.choice((2, 3, 3)))}, name)
                case Kind.REASSIGN:
                    partition = random.randrange(self._partition_count)
                    await self._reassign({partition: random.sample(self._broker_ids, random.choice((2, 3, 3)))})
                case Kind.PREFER_LEADERS:
                    await self._prefer_leaders()
                case _:
                    raise ValueError(kind)

    async def settle(self) -> None:
        """Insists: every partition of the topic gets to as many brokers as it is meant to be on."""
        for _ in range(_SETTLE_ATTEMPTS):
            with suppress(OSError):
                targets = {number: self._random.sample(self._broker_ids, REPLICATION_FACTOR) for number in range(self._partition_count)}
                if await self._reassign(targets) == {0}:
                    return
            await asyncio.sleep(1.0)
        self._tell("the administrator was not heard")

    async def remove(self, names: Iterable[str]) -> None:
        """Deletes topics; one may be made later all the same, by a request that was on its way for long."""
        for name in names:
            with suppress(OSError):
                await self.delete(name)

    async def create(self, name: str, partition_count: int, settings: dict[str, str]) -> int:
        """Gives the error code."""
        api = message(ApiKey.CREATE_TOPICS, 5)
        kinds = api.request
        topic = kinds.CreatableTopic(
            name=name,
            num_partitions=partition_count,
            replication_factor=REPLICATION_FACTOR,
            assignments=(),
            configs=tuple(kinds.CreatableTopicConfig(name=each, value=value) for each, value in settings.items()),
        )
        answer = await self._ask(f"create {name}", api, kinds.CreateTopicsRequest(topics=(topic,), timeout=_TIMEOUT, validate_only=False))
        return self._answered(f"create {name}", int(answer.topics[0].error_code))

    async def move_log(self, broker_id: int, key: TopicPartition, path: str) -> None:
        """Asks a broker once to have a log in another of its directories."""
        api = message(ApiKey.ALTER_REPLICA_LOG_DIRS, 2)
        kinds = api.request
        topic = kinds.AlterReplicaLogDirTopic(name=key.topic, partitions=(key.partition,))
        body = kinds.AlterReplicaLogDirsRequest(dirs=(kinds.AlterReplicaLogDir(path=path, topics=(topic,)),))
        self._tell(f"move {key} on broker {broker_id}")
        with suppress(OSError):
            answer = await self._view.ask(broker_id, api, body, _ANSWER_SECONDS)
            self._answered(f"move {key} on broker {broker_id}", int(answer.results[0].partitions[0].error_code))

    async def delete(self, name: str) -> int:
        """Gives the error code."""
        api = message(ApiKey.DELETE_TOPICS, 5)
        answer = await self._ask(f"delete {name}", api, api.request.DeleteTopicsRequest(topic_names=(name,), timeout=_TIMEOUT))
        return self._answered(f"delete {name}", int(answer.responses[0].error_code))

    async def _grow(self, name: str, count: int) -> int:
        api = message(ApiKey.CREATE_PARTITIONS, 2)
        kinds = api.request
        topic = kinds.CreatePartitionsTopic(name=name, count=count, assignments=None)
        body = kinds.CreatePartitionsRequest(topics=(topic,), timeout=_TIMEOUT, validate_only=False)
        answer = await self._ask(f"grow {name}", api, body)
        return self._answered(f"grow {name} to {count}", int(answer.results[0].error_code))

    async def _reassign(self, targets: dict[int, list[int]], name: str | None = None) -> set[int]:
        name = name or self._topic
        api = message(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0)
        kinds = api.request
        partitions = tuple(kinds.ReassignablePartition(partition_index=each, replicas=tuple(to)) for each, to in targets.items())
        body = kinds.AlterPartitionReassignmentsRequest(
            timeout=_TIMEOUT, topics=(kinds.ReassignableTopic(name=name, partitions=partitions),)
        )
        what = f"reassign {targets}" if name == self._topic else f"reassign {targets} of {name}"
        answer = await self._ask(what, api, body)
        errors = {int(answer.error_code)} | {int(partition.error_code) for topic in answer.responses for partition in topic.partitions}
        self._tell(f"{what}: {sorted(errors)}")
        return errors

    async def _prefer_leaders(self) -> None:
        api = message(ApiKey.ELECT_LEADERS, 2)
        body = api.request.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout=_TIMEOUT)
        await self._ask("elect preferred leaders", api, body)

    async def _ask(self, what: str, api: Any, body: Any) -> Any:
        broker_id = self._random.choice(self._broker_ids)
        self._tell(f"{what}, asked of broker {broker_id}")
        return await self._view.ask(broker_id, api, body, _ANSWER_SECONDS)

    def _answered(self, what: str, error: int) -> int:
        self._tell(f"{what}: error {error}" if error else f"{what}: done")
        return error

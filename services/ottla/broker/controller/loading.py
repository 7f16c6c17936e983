"""Reading the cluster's state from its znodes: topics, partition states and settings.

What another tool wrote badly must not keep a broker from its good topics: a znode that can not be read is told in the
log, and its topic left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from ottla.broker.controller import configs
from ottla.broker.controller.topics import Replicas
from ottla.config.broker import BrokerSettings
from ottla.coordination import znodes
from ottla.coordination.errors import MalformedZnode, NoNode
from ottla.coordination.interface import Coordination
from ottla.errors import InvalidConfig
from ottla.model import BrokerId, BrokerRegistration, PartitionState

log: Final = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")

# Requests under way at once, so that a thousand partitions cost a few round trips to ZooKeeper.
_PIPELINE: Final = 256


@dataclass(frozen=True, slots=True)
class LoadedTopic:
    """A topic as it lies in its znodes. A partition without a state is one that nobody led yet."""

    name: str
    assignment: znodes.TopicAssignment
    topic_version: int  # of /brokers/topics/[topic]
    states: tuple[PartitionState | None, ...]
    overrides: dict[str, str]


async def load_topics(coordination: Coordination) -> list[LoadedTopic]:
    """Every topic that can be read, by name."""
    names = sorted(await coordination.children(znodes.TOPICS.path()))
    loaded = await _each(names, lambda name: load_topic(coordination, name))
    return [each for each in loaded if each is not None]


async def load_topic_overrides(coordination: Coordination) -> dict[str, dict[str, str]]:
    """What every topic sets for itself, by topic; nothing for one whose settings can not be read."""

    async def load(name: str) -> dict[str, str]:
        try:
            return await load_config(coordination, znodes.TOPIC_CONFIG.path(name))
        except MalformedZnode as error:
            log.error("%s; topic %s is left out", error, name)
            return {}

    names = await coordination.children(znodes.TOPICS.path())
    return dict(zip(names, await _each(names, load), strict=True))


async def load_brokers(coordination: Coordination) -> list[BrokerRegistration]:
    """The brokers that live, by id."""

    async def load(name: str) -> BrokerRegistration | None:
        path = znodes.BROKER.path(name)
        try:
            data, stat = await coordination.get(path)
            return znodes.decode_broker(path, data, stat.czxid)
        except NoNode:
            return None  # it went between the two reads
        except MalformedZnode as error:
            log.error("%s; the broker is passed over", error)
            return None

    found = await _each(await coordination.children(znodes.BROKER_IDS.path()), load)
    return sorted((each for each in found if each is not None), key=lambda each: each.broker_id)


async def load_config(coordination: Coordination, path: str) -> dict[str, str]:
    """The settings of a topic or broker; none when there is no such znode."""
    try:
        return znodes.decode_config(path, (await coordination.get(path))[0])
    except NoNode:
        return {}


async def load_broker_configs(coordination: Coordination, broker_id: BrokerId) -> tuple[dict[str, str], dict[str, str]]:
    """What was changed for all brokers, and what for this one."""
    return (
        await load_config(coordination, znodes.BROKER_CONFIG.path(znodes.DEFAULT_ENTITY)),
        await load_config(coordination, znodes.BROKER_CONFIG.path(broker_id)),
    )


def acceptable_overrides(broker: BrokerSettings, topic: str, overrides: Mapping[str, str]) -> dict[str, str]:
    """What a topic sets, without what another tool wrote there and nobody can use; that is told in the log."""
    acceptable: dict[str, str] = {}
    for name, value in overrides.items():
        try:
            configs.checked_topic_settings(broker, {**acceptable, name: value})
            acceptable[name] = value
        except InvalidConfig as error:
            log.error("topic %s: a setting is passed over: %s", topic, error)
    return acceptable


async def load_topic(coordination: Coordination, name: str) -> LoadedTopic | None:
    """One topic; None when there is none of that name, or none that can be read."""
    path = znodes.TOPIC.path(name)
    try:
        data, stat = await coordination.get(path)
        assignment = znodes.decode_topic(path, data)
        overrides = await load_config(coordination, znodes.TOPIC_CONFIG.path(name))
        states = await _each(
            enumerate(assignment.replicas), lambda each: _load_state(coordination, znodes.PARTITION_STATE.path(name, each[0]), each[1])
        )
    except NoNode:
        return None  # it went since its name was read
    except MalformedZnode as error:
        log.error("%s; topic %s is left out", error, name)
        return None
    return LoadedTopic(name, assignment, stat.version, tuple(states), overrides)


async def _load_state(coordination: Coordination, path: str, replicas: Replicas) -> PartitionState | None:
    try:
        return znodes.decode_partition_state(path, (await coordination.get(path))[0], replicas)
    except NoNode:
        return None


async def _each(items: Iterable[S], load: Callable[[S], Awaitable[T]]) -> list[T]:
    """What each item loads as, several at a time."""
    waiting = list(items)
    results: list[T] = []
    for start in range(0, len(waiting), _PIPELINE):
        results += await asyncio.gather(*(load(each) for each in waiting[start : start + _PIPELINE]))
    return results

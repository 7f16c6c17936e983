"""Reading all that a takeover depends on from the znodes of a cluster: what a controller reads, and what it passes over.

Reads only, and by one session; what is not there is not made. Children are read some hundred at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from ottla.coordination import znodes
from ottla.coordination.errors import MalformedZnode, NoNode, NotAuthorized
from ottla.coordination.interface import Coordination
from ottla.model import BrokerId, BrokerRegistration, PartitionState, TopicPartition
from ottla.takeover.found import FoundCluster, FoundTopic

T = TypeVar("T")

# Where Kafka keeps what Ottla has no part for, by the name of the finding. Below these paths a leaf is one of them.
ACLS: Final = "acls"
SCRAM_USERS: Final = "scram-users"
DELEGATION_TOKENS: Final = "delegation-tokens"
QUOTAS: Final = "quotas"
MIGRATION: Final = "migration"
_TREES: Final = {
    ACLS: (("/kafka-acl", 2), ("/kafka-acl-extended", 3)),
    DELEGATION_TOKENS: (("/delegation_token/tokens", 1),),
}
_MIGRATION: Final = "/migration"
_FEATURE: Final = "/feature"
_USERS, _CLIENTS, _ADDRESSES = "/config/users", "/config/clients", "/config/ips"
_SCRAM: Final = "SCRAM-SHA-"
_AT_ONCE: Final = 500


async def read_who_lives(coordination: Coordination) -> FoundCluster:
    """Who is registered, who is the controller, and whose epochs there were: what every start looks at, in a few requests."""
    reader = _Reader(coordination)
    controller, kraft_epoch = await reader.controller()
    epoch, own_epochs = await reader.epochs()
    return FoundCluster(
        controller_epoch=epoch, brokers=await reader.brokers(), controller=controller, kraft_epoch=kraft_epoch, own_epochs=own_epochs
    )


async def read_cluster(coordination: Coordination) -> FoundCluster:
    """Everything.

    Raises:
        NotAuthorized: Kafka keeps some of it from others; the message says what to do.
        CoordinationError: the service does not answer.
    """
    try:
        return await _read_cluster(coordination)
    except NotAuthorized as error:
        raise NotAuthorized(
            f"{error}: Kafka made its znodes with zookeeper.set.acl, and ZooKeeper does not know us for who made them; while Kafka runs, "
            "open them with zookeeper-security-migration.sh --zookeeper.acl=unsecure, or where the ACL is a digest's set "
            "zookeeper.digest.username and zookeeper.digest.password"
        ) from error


async def _read_cluster(coordination: Coordination) -> FoundCluster:
    reader = _Reader(coordination)
    migration, cluster_id, feature = await coordination.get_many([_MIGRATION, znodes.CLUSTER_ID.path(), _FEATURE])
    controller, kraft_epoch = await reader.controller()
    epoch, own_epochs = await reader.epochs()
    kept = {name: tuple([path for root, depth in roots for path in await reader.leaves(root, depth)]) for name, roots in _TREES.items()}
    kept[SCRAM_USERS], kept[QUOTAS] = await reader.users_and_quotas()
    kept[MIGRATION] = () if migration is None else (_MIGRATION,)
    return FoundCluster(
        cluster_id=None if cluster_id is None else reader.decoded(znodes.CLUSTER_ID.path(), cluster_id[0], znodes.decode_cluster_id, None),
        controller_epoch=epoch,
        brokers=await reader.brokers(),
        controller=controller,
        kraft_epoch=kraft_epoch,
        own_epochs=own_epochs,
        feature_version=None if feature is None else reader.decoded(_FEATURE, feature[0], znodes.decode_feature_version, None),
        topics=await reader.topics(),
        broker_settings=await reader.settings(znodes.BROKER_CONFIGS.path()),
        kept_elsewhere={name: paths for name, paths in kept.items() if paths},
        reassignment=await reader.reassignment(),
        deletions=tuple(sorted(await reader.children(znodes.DELETE_TOPICS.path()))),
        damaged=reader.damaged,
    )


class _Reader:
    """One look at a cluster, which notes what it cannot read."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self.damaged: dict[str, str] = {}

    def decoded(self, path: str, data: bytes, decode: Callable[[str, bytes], T], otherwise: T) -> T:
        """What the data of a znode are; `otherwise`, and a note, where they cannot be read."""
        try:
            return decode(path, data)
        except MalformedZnode as error:
            self.damaged[path] = str(error)
            return otherwise

    async def children(self, path: str) -> list[str]:
        """The names below a path, sorted; none where it is not there."""
        try:
            return sorted(await self._coordination.children(path))
        except NoNode:
            return []

    async def data(self, paths: Iterable[str]) -> dict[str, bytes]:
        """The data of those that are there."""
        wanted = list(paths)
        found: dict[str, bytes] = {}
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            answers = await self._coordination.get_many(some)
            found.update({path: answer[0] for path, answer in zip(some, answers, strict=True) if answer is not None})
        return found

    async def leaves(self, root: str, depth: int) -> list[str]:
        """The paths so far below a path."""
        paths = [root]
        for _ in range(depth):
            paths = [f"{path}/{name}" for path in paths for name in await self.children(path)]
        return paths

    async def brokers(self) -> tuple[BrokerRegistration, ...]:
        names = await self.children(znodes.BROKER_IDS.path())
        paths = [znodes.BROKER.path(name) for name in names]
        found = await self._coordination.get_many(paths)
        decoded = [
            self.decoded(path, content[0], lambda path, data, epoch=content[1].czxid: znodes.decode_broker(path, data, epoch), None)  # type: ignore[misc]  # mypy infers no type of a default
            for path, content in zip(paths, found, strict=True)
            if content is not None
        ]
        return tuple(sorted((broker for broker in decoded if broker is not None), key=lambda broker: broker.broker_id))

    async def controller(self) -> tuple[BrokerId | None, int]:
        """Who has `/controller`, and the epoch of a KRaft controller."""
        path = znodes.CONTROLLER.path()
        for data in (await self.data([path])).values():
            kraft_epoch = self.decoded(path, data, znodes.decode_kraft_epoch, znodes.NO_KRAFT_EPOCH)
            return self.decoded(path, data, znodes.decode_controller, None), kraft_epoch
        return None, znodes.NO_KRAFT_EPOCH

    async def epochs(self) -> tuple[int, znodes.OwnEpochs]:
        path, own_path = znodes.CONTROLLER_EPOCH.path(), znodes.OTTLA.path()
        epoch, own = await self._coordination.get_many([path, own_path])
        return (
            0 if epoch is None else self.decoded(path, epoch[0], znodes.decode_controller_epoch, 0),
            znodes.NO_OWN_EPOCHS if own is None else self.decoded(own_path, own[0], znodes.decode_own_epochs, znodes.NO_OWN_EPOCHS),
        )

    async def settings(self, parent: str) -> dict[str, Mapping[str, str]]:
        """What the znodes below a path set, by their names."""
        data = await self.data(f"{parent}/{name}" for name in await self.children(parent))
        return {path.rpartition("/")[2]: self.decoded(path, config, znodes.decode_config, {}) for path, config in data.items()}

    async def users_and_quotas(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The paths of users that authenticate by SCRAM, and of those of whom quotas are set."""
        users = [f"{_USERS}/{name}" for name in await self.children(_USERS)]
        clients = [f"{user}/clients/{name}" for user in users for name in await self.children(f"{user}/clients")]
        others = [f"{parent}/{name}" for parent in (_CLIENTS, _ADDRESSES) for name in await self.children(parent)]
        scram: list[str] = []
        quotas: list[str] = []
        for path, data in (await self.data([*users, *clients, *others])).items():
            names = self.decoded(path, data, znodes.decode_config, dict[str, str]())
            if any(name.startswith(_SCRAM) for name in names):
                scram.append(path)
            if any(not name.startswith(_SCRAM) for name in names):
                quotas.append(path)
        return tuple(scram), tuple(quotas)

    async def reassignment(self) -> bool:
        path = znodes.REASSIGNMENT.path()
        for data in (await self.data([path])).values():
            self.decoded(path, data, znodes.decode_reassignment, dict[TopicPartition, tuple[BrokerId, ...]]())
            return True
        return False

    async def topics(self) -> dict[str, FoundTopic]:
        names = await self.children(znodes.TOPICS.path())
        assignments = await self.data(map(znodes.TOPIC.path, names))
        configs = await self.data(map(znodes.TOPIC_CONFIG.path, names))
        read: dict[str, znodes.TopicAssignment] = {}
        for name in names:
            path = znodes.TOPIC.path(name)
            if path in assignments:  # else it went since its name was read
                assignment = self.decoded(path, assignments[path], znodes.decode_topic, None)
                if assignment is not None:
                    read[name] = assignment
        states = await self.data(znodes.PARTITION_STATE.path(name, index) for name in read for index in range(len(read[name].replicas)))
        topics: dict[str, FoundTopic] = {}
        for name, assignment in read.items():
            config_path = znodes.TOPIC_CONFIG.path(name)
            settings = self.decoded(config_path, configs.get(config_path, b""), znodes.decode_config, dict[str, str]())
            paths = (znodes.PARTITION_STATE.path(name, index) for index in range(len(assignment.replicas)))
            found = tuple(self._state(path, states.get(path), replicas) for path, replicas in zip(paths, assignment.replicas, strict=True))
            topics[name] = FoundTopic(assignment, found, settings)
        return topics

    def _state(self, path: str, data: bytes | None, replicas: tuple[BrokerId, ...]) -> PartitionState | None:
        if data is None:
            return None
        return self.decoded(path, data, lambda path, data: znodes.decode_partition_state(path, data, replicas), None)

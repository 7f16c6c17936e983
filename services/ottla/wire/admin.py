"""What an administrator asks for: topics, partitions, settings, the cluster itself.

Requests are about several topics or resources at once and each has an outcome of its own, so those that change something give what
was refused, by name: nothing, when all was done. What time may heal is tried again, for those that it was said of; after a
connection was lost that may mean that a topic is found to be there already.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ottla.errors import NONE, ApiError, ElectionNotNeeded, NotController, OttlaError, UnknownTopicOrPartition, error_of
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.wire.broker_connection import BrokerConnection
from ottla.wire.cluster import Cluster, is_healed_by_time
from ottla.wire.metadata import Broker
from ottla.wire.offsets import Answers, ask_leaders, by_topic, left_out, unanswered

K = TypeVar("K")
T = TypeVar("T")

CREATE_TOPICS_VERSIONS: Final = (2, 7)
DELETE_TOPICS_VERSIONS: Final = (1, 6)
FIRST_DELETE_BY_ID: Final = 6
CREATE_PARTITIONS_VERSIONS: Final = (0, 3)
REASSIGN_VERSIONS: Final = (0, 0)
ELECT_LEADERS_VERSIONS: Final = (1, 2)
DESCRIBE_CONFIGS_VERSIONS: Final = (1, 4)
ALTER_CONFIGS_VERSIONS: Final = (0, 1)
DESCRIBE_CLUSTER_VERSIONS: Final = (0, 1)
DELETE_RECORDS_VERSIONS: Final = (0, 2)
BROKERS_CHOICE: Final = -1  # of a count: the broker's default
HIGH_WATERMARK: Final = -1  # delete_records: all that is there

_PREFERRED: Final = 0  # of elections (KIP-460)
_SET, _DELETE = 0, 1  # operations of IncrementalAlterConfigs (KIP-339)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be made.

    Attributes:
        partitions, replication_factor: the broker's `num.partitions` and `default.replication.factor` if -1.
        settings: under Kafka's names.
        assignments: the replicas of each partition, the preferred leader first, in place of both counts.
    """

    name: str
    partitions: int = BROKERS_CHOICE
    replication_factor: int = BROKERS_CHOICE
    settings: Mapping[str, str] = field(default_factory=dict)
    assignments: Sequence[Sequence[int]] = ()


class ResourceType(enum.IntEnum):
    """What has settings."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """One thing that has settings: a topic by its name, a broker by its id; an empty name is the default of all brokers."""

    resource_type: ResourceType
    name: str


class ConfigSource(enum.IntEnum):
    """Where a setting's value is from."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting as it holds. A sensitive one has no value here."""

    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """Who is in the cluster; `controller_id` is -1 when there is none at the moment."""

    cluster_id: str
    controller_id: BrokerId
    brokers: tuple[Broker, ...]


async def create_topics(cluster: Cluster, topics: Iterable[NewTopic], *, validate_only: bool = False) -> dict[str, ApiError]:
    """Makes topics, and gives those that were refused, with the reason. Leaders are known a little later.

    Args:
        validate_only: everything is checked and nothing is made.

    Raises:
        ApiError, OSError: no controller that would do it in time.
    """

    def build(api: Any, names: Collection[str]) -> Any:
        return api.build(
            "CreateTopicsRequest",
            topics=[_creatable(api, wanted[name]) for name in names],
            timeout=_request_timeout_ms(cluster),
            validate_only=validate_only,
        )

    wanted = {topic.name: topic for topic in topics}
    return await _controlled(cluster, ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSIONS, wanted, build, "topics")


async def delete_topics(cluster: Cluster, names: Iterable[str]) -> dict[str, ApiError]:
    """Deletes topics, and gives those that were refused, with the reason. One that is not there is refused at once.

    Raises:
        As `create_topics`.
    """

    def build(api: Any, names: Collection[str]) -> Any:
        timeout = _request_timeout_ms(cluster)
        if api.version >= FIRST_DELETE_BY_ID:
            topics = [api.build("DeleteTopicState", name=name, topic_id=None) for name in names]
            return api.build("DeleteTopicsRequest", topics=topics, timeout=timeout)
        return api.build("DeleteTopicsRequest", topic_names=names, timeout=timeout)

    return await _controlled(cluster, ApiKey.DELETE_TOPICS, DELETE_TOPICS_VERSIONS, names, build, "responses")


async def create_partitions(
    cluster: Cluster,
    counts: Mapping[str, int],
    *,
    assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
    validate_only: bool = False,
) -> dict[str, ApiError]:
    """Has topics grow, and gives those that were refused, with the reason.

    Args:
        counts: how many partitions each topic is to have.
        assignments: of topics, the replicas of each new partition, the preferred leader first; of others the controller chooses.

    Raises:
        As `create_topics`.
    """

    def replicas_of(api: Any, name: str) -> Any:
        if assignments is None or name not in assignments:
            return None
        return [api.build("CreatePartitionsAssignment", broker_ids=replicas) for replicas in assignments[name]]

    def build(api: Any, names: Collection[str]) -> Any:
        return api.build(
            "CreatePartitionsRequest",
            topics=[
                api.build("CreatePartitionsTopic", name=name, count=counts[name], assignments=replicas_of(api, name)) for name in names
            ],
            timeout=_request_timeout_ms(cluster),
            validate_only=validate_only,
        )

    return await _controlled(cluster, ApiKey.CREATE_PARTITIONS, CREATE_PARTITIONS_VERSIONS, counts, build, "results")


async def reassign_partitions(cluster: Cluster, replicas: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, ApiError]:
    """Begins to move partitions (KIP-455), and gives those that were refused, with the reason; the moves go on beside it.

    Args:
        replicas: that each is to have, the preferred leader first.

    Raises:
        As `create_topics`.
    """

    def build(api: Any) -> Any:
        def partition(key: TopicPartition) -> Any:
            return api.build("ReassignablePartition", partition_index=key.partition, replicas=replicas[key])

        topics = [api.build("ReassignableTopic", name=topic, partitions=found) for topic, found in by_topic(replicas, partition)]
        return api.build("AlterPartitionReassignmentsRequest", timeout=_request_timeout_ms(cluster), topics=topics)

    async def attempt(controller: BrokerId) -> dict[TopicPartition, ApiError]:
        answer = await cluster.ask(controller, ApiKey.ALTER_PARTITION_REASSIGNMENTS, REASSIGN_VERSIONS, build)
        if answer.error_code:
            raise _error(answer, "the reassignment of partitions")
        outcomes = {
            TopicPartition(topic.name, found.partition_index): _outcome(found, f"{topic.name}-{found.partition_index}")
            for topic in answer.responses
            for found in topic.partitions
        }
        return {key: error for key, error in outcomes.items() if error is not None} | left_out(replicas, outcomes)

    return await cluster.with_controller(attempt) if replicas else {}


async def elect_preferred_leaders(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ApiError]:
    """Has partitions be led by their first replica (KIP-183), and gives those that were refused, with the reason.

    Raises:
        As `create_topics`.
    """
    wanted = list(partitions)

    def build(api: Any) -> Any:
        topics = [
            api.build("TopicPartitions", topic=topic, partitions=numbers) for topic, numbers in by_topic(wanted, lambda key: key.partition)
        ]
        return api.build("ElectLeadersRequest", election_type=_PREFERRED, topic_partitions=topics, timeout=_request_timeout_ms(cluster))

    async def attempt(controller: BrokerId) -> dict[TopicPartition, ApiError]:
        answer = await cluster.ask(controller, ApiKey.ELECT_LEADERS, ELECT_LEADERS_VERSIONS, build)
        if answer.error_code:
            raise _error(answer, "the election of preferred leaders")
        outcomes = {
            TopicPartition(result.topic, found.partition_id): _outcome(found, f"{result.topic}-{found.partition_id}")
            for result in answer.replica_election_results
            for found in result.partition_result
        }
        for error in outcomes.values():
            if isinstance(error, NotController):  # Kafka's brokers with ZooKeeper say it of each partition, and not of the request
                raise error
        refused = {key: error for key, error in outcomes.items() if error is not None and not isinstance(error, ElectionNotNeeded)}
        return refused | left_out(wanted, outcomes)

    return await cluster.with_controller(attempt) if wanted else {}


async def describe_configs(
    cluster: Cluster, resources: Iterable[ConfigResource], *, timeout_seconds: float | None = None
) -> dict[ConfigResource, dict[str, ConfigEntry]]:
    """The settings of topics and brokers. A broker says its own, the controller those of topics: it is the first to know them.

    Raises:
        ApiError, OSError: of the first resource that was refused.
    """
    found: dict[ConfigResource, dict[str, ConfigEntry]] = {}
    for broker_id, some in _by_broker(resources).items():

        async def attempt(connection: BrokerConnection, some: Collection[ConfigResource] = some) -> Any:
            def build(api: Any) -> Any:
                kind = "DescribeConfigsResource"
                asked = [
                    api.build(kind, resource_type=resource.resource_type, resource_name=resource.name, configuration_keys=None)
                    for resource in some
                ]
                return api.build("DescribeConfigsRequest", resources=asked)

            answer = await cluster.ask_by(connection, ApiKey.DESCRIBE_CONFIGS, DESCRIBE_CONFIGS_VERSIONS, build)
            for result in answer.results:
                if result.error_code and _is_worth_another_try(error := _error(result, result.resource_name)):
                    raise error
            return answer.results

        for result in await _at(cluster, broker_id, attempt, timeout_seconds):
            if result.error_code:
                raise _error(result, result.resource_name)
            resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
            found[resource] = {
                entry.name: ConfigEntry(entry.value, _source(entry.config_source), entry.read_only, entry.is_sensitive)
                for entry in result.configs
            }
        for resource in some:
            if resource not in found:
                raise unanswered(resource.name)
    return found


async def alter_configs(
    cluster: Cluster,
    changes: Mapping[ConfigResource, Mapping[str, str | None]],
    *,
    validate_only: bool = False,
) -> dict[ConfigResource, ApiError]:
    """Sets settings of topics and brokers and leaves their others as they are (KIP-339); gives the resources that were refused.

    Args:
        changes: None as a value has the setting go back to its default.

    Raises:
        ApiError, OSError: no broker that would do it in time.
    """
    refused: dict[ConfigResource, ApiError] = {}
    for broker_id, some in _by_broker(changes).items():
        left = set(some)

        async def attempt(connection: BrokerConnection, left: set[ConfigResource] = left) -> None:
            def build(api: Any) -> Any:
                asked = [_alteration(api, resource, changes[resource]) for resource in sorted(left, key=str)]
                return api.build("IncrementalAlterConfigsRequest", resources=asked, validate_only=validate_only)

            answer = await cluster.ask_by(connection, ApiKey.INCREMENTAL_ALTER_CONFIGS, ALTER_CONFIGS_VERSIONS, build)
            outcomes = {
                ConfigResource(ResourceType(result.resource_type), result.resource_name): _outcome(result, result.resource_name)
                for result in answer.responses
            }
            _take(left, refused, outcomes)

        await _at(cluster, broker_id, attempt)
    return refused


async def describe_cluster(cluster: Cluster) -> ClusterDescription:
    """Who is in the cluster, as some broker knows it.

    Raises:
        ApiError, OSError: no one who would say it in time.
    """

    async def attempt(connection: BrokerConnection) -> ClusterDescription:
        answer = await cluster.ask_by(
            connection,
            ApiKey.DESCRIBE_CLUSTER,
            DESCRIBE_CLUSTER_VERSIONS,
            lambda api: api.build("DescribeClusterRequest", include_cluster_authorized_operations=False),
        )
        if answer.error_code:
            raise error_of(int(answer.error_code), "DescribeCluster", message=answer.error_message)
        brokers = tuple(Broker(BrokerId(found.broker_id), found.host, found.port, found.rack) for found in answer.brokers)
        return ClusterDescription(answer.cluster_id, BrokerId(answer.controller_id), brokers)

    return await cluster.with_any(attempt)


async def delete_records(cluster: Cluster, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Has partitions begin at an offset, and gives where they begin then.

    Args:
        offsets: the first that is to stay; HIGH_WATERMARK deletes all there are.

    Raises:
        OffsetOutOfRange: past the high watermark. As `offsets.list_offsets` otherwise.
    """

    async def ask(leader: BrokerId, asked: Mapping[TopicPartition, int]) -> Answers[int]:
        def build(api: Any) -> Any:
            def partition(key: TopicPartition) -> Any:
                return api.build("DeleteRecordsPartition", partition_index=key.partition, offset=asked[key])

            topics = [api.build("DeleteRecordsTopic", name=topic, partitions=found) for topic, found in by_topic(asked, partition)]
            return api.build("DeleteRecordsRequest", topics=topics, timeout=_request_timeout_ms(cluster))

        answer = await cluster.ask(leader, ApiKey.DELETE_RECORDS, DELETE_RECORDS_VERSIONS, build)
        return {
            key: found.low_watermark
            if found.error_code == NONE
            else error_of(int(found.error_code), f"records of {key} before {asked.get(key)}")
            for topic in answer.topics
            for found in topic.partitions
            for key in [TopicPartition(topic.name, found.partition_index)]
        }

    return await ask_leaders(cluster, offsets, ask)


async def _controlled(
    cluster: Cluster, key: ApiKey, versions: tuple[int, int], names: Iterable[str], build: Any, results: str
) -> dict[str, ApiError]:
    """Asks the controller about topics, for those again that time may heal; gives what was refused for good."""
    left = set(names)
    refused: dict[str, ApiError] = {}

    async def attempt(controller: BrokerId) -> None:
        answer = await cluster.ask(controller, key, versions, lambda api: build(api, sorted(left)))
        _take(left, refused, {str(result.name): _outcome(result, result.name) for result in getattr(answer, results)})

    if left:
        await cluster.with_controller(attempt)
    return refused


def _take(left: set[K], refused: dict[K, ApiError], outcomes: Mapping[K, ApiError | None]) -> None:
    """Has what has an outcome leave `left`, for `refused` or for good. Raises what time may heal, if there is such.

    Where nothing is to be tried again, what has no outcome is refused: no one knows what became of it.
    """
    again: ApiError | None = None
    for name, error in outcomes.items():
        if name not in left:
            continue
        if error is not None and _is_worth_another_try(error):
            again = error
            continue
        left.discard(name)
        if error is not None:
            refused[name] = error
    if again is not None:
        raise again
    for name in left:
        refused[name] = unanswered(name)


def _is_worth_another_try(error: ApiError) -> bool:
    """A topic that is not there is something to wait for, for who writes to it; not for who deletes it, and asks who would know."""
    return is_healed_by_time(error) and not isinstance(error, UnknownTopicOrPartition)


def _error(result: Any, name: str) -> ApiError:
    return error_of(int(result.error_code), name, message=getattr(result, "error_message", None))


def _outcome(result: Any, name: str) -> ApiError | None:
    return _error(result, name) if result.error_code else None


async def _at(
    cluster: Cluster, broker_id: BrokerId | None, attempt: Callable[[BrokerConnection], Awaitable[T]], timeout_seconds: float | None = None
) -> T:
    """Has the controller asked, or a certain broker, for which there need be no controller."""

    async def at_controller(controller: BrokerId) -> T:
        return await attempt(await cluster.connection(controller))

    async def there(_: BrokerConnection) -> T:
        assert broker_id is not None
        try:
            return await attempt(await cluster.connection(broker_id))
        except OSError:
            with suppress(OSError, OttlaError):
                await cluster.refresh(())  # it may have another address since
            raise

    if broker_id is None:
        return await cluster.with_controller(at_controller, timeout_seconds=timeout_seconds)
    return await cluster.with_any(there, timeout_seconds=timeout_seconds)


def _by_broker(resources: Iterable[ConfigResource]) -> dict[BrokerId | None, list[ConfigResource]]:
    """Who has to be asked for what; None is the controller."""
    found: dict[BrokerId | None, list[ConfigResource]] = {}
    for resource in resources:
        is_one = resource.resource_type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and resource.name
        found.setdefault(BrokerId(int(resource.name)) if is_one else None, []).append(resource)
    return found


def _creatable(api: Any, topic: NewTopic) -> Any:
    return api.build(
        "CreatableTopic",
        name=topic.name,
        num_partitions=BROKERS_CHOICE if topic.assignments else topic.partitions,
        replication_factor=BROKERS_CHOICE if topic.assignments else topic.replication_factor,
        assignments=[
            api.build("CreatableReplicaAssignment", partition_index=index, broker_ids=replicas)
            for index, replicas in enumerate(topic.assignments)
        ],
        configs=[api.build("CreatableTopicConfig", name=name, value=value) for name, value in topic.settings.items()],
    )


def _alteration(api: Any, resource: ConfigResource, changes: Mapping[str, str | None]) -> Any:
    return api.build(
        "AlterConfigsResource",
        resource_type=resource.resource_type,
        resource_name=resource.name,
        configs=[
            api.build("AlterableConfig", name=name, config_operation=_DELETE if value is None else _SET, value=value)
            for name, value in changes.items()
        ],
    )


def _source(number: int) -> ConfigSource:
    """A newer broker may have others."""
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN


def _request_timeout_ms(cluster: Cluster) -> int:
    """How long the broker may take: a little less than we wait."""
    return int(cluster.settings.request_timeout_seconds * 900)

"""CreateTopics (key 19), versions 2-7: topics with a number of partitions, or with each replica placed by hand.

From v4 on -1 takes the broker's default for partitions and replicas (KIP-464), v5 answers with the topic's settings
(KIP-525), v7 with its id. Each topic stands for itself: one that is refused does not stop the others.
The response comes when this broker knows the topic, and mostly all live brokers, for which the controller waits a second;
timeout_ms bounds the wait.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.controller.topics import NewTopic
from ottla.broker.handlers.authorization import DENIED, may_create_topic, topic_allowed
from ottla.broker.handlers.config_entries import broker_config, topic_entries
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import Deadline, side_by_side
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, InvalidConfig, InvalidReplicaAssignment, InvalidRequest, TopicAuthorizationFailed
from ottla.model import BrokerId, TopicDescription
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import MessageSchema

if TYPE_CHECKING:
    from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest

FIRST_WITH_SETTINGS: Final = 5


@handles(ApiKey.CREATE_TOPICS, 2, 7)
async def create_topics(request: CreateTopicsRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    times_named = Counter[str](topic.name for topic in request.topics)
    named: dict[str, CreatableTopic] = {topic.name: topic for topic in request.topics}
    deadline = Deadline(request.timeout)

    async def create(name: str) -> Any:
        try:
            if times_named[name] > 1:
                raise InvalidRequest(f"{name} is in the request {times_named[name]} times")
            if not may_create_topic(parts, context, name):
                raise TopicAuthorizationFailed(DENIED)
            new_topic = new_topic_of(named[name])
            creation = parts.controller.create_topic(new_topic, request.validate_only, deadline.seconds_left())
            created = await (deadline.answer if request.validate_only else deadline.wait)(creation, f"creating {name}")
            if not request.validate_only:
                await parts.metadata.wait_for(created, deadline.seconds_left())
        except ApiError as error:
            return _refused(schema, name, error)
        may_see = topic_allowed(parts, context, Operation.DESCRIBE_CONFIGS, name)
        return _created(schema, created, request.validate_only, shown_settings(new_topic) if may_see else None)

    # Of hundreds of topics most set the same for themselves, and to show all settings takes longer than to make a topic.
    shown: dict[tuple[tuple[str, str], ...], list[Any]] = {}

    def shown_settings(new_topic: NewTopic) -> list[Any]:
        if context.api_version < FIRST_WITH_SETTINGS:
            return []
        key = tuple(sorted(new_topic.configs.items()))
        if key not in shown:
            shown[key] = _settings(schema, new_topic, parts)
        return shown[key]

    results = await side_by_side(create, named)
    return schema("CreateTopicsResponse", throttle_time=0, topics=results)


def new_topic_of(topic: CreatableTopic) -> NewTopic:
    """What the controller is asked for.

    Raises:
        InvalidReplicaAssignment: a partition is assigned twice.
        InvalidConfig: a setting has no value.
    """
    assignments: dict[int, tuple[BrokerId, ...]] = {}
    for assignment in topic.assignments:
        if assignment.partition_index in assignments:
            raise InvalidReplicaAssignment(f"{topic.name}: partition {assignment.partition_index} is assigned twice")
        assignments[assignment.partition_index] = tuple(map(BrokerId, assignment.broker_ids))
    configs = {config.name: config.value for config in topic.configs if config.value is not None}
    without_value = [config.name for config in topic.configs if config.value is None]
    if without_value:
        raise InvalidConfig(f"Null value not supported for topic configs: {','.join(without_value)}")
    return NewTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=assignments,
        configs=configs,
    )


def _refused(schema: MessageSchema, name: str, error: ApiError) -> Any:
    return schema(
        "CreatableTopicResult",
        name=name,
        topic_id=None,
        error_code=error.code,
        error_message=error.message,
        num_partitions=-1,
        replication_factor=-1,
        configs=(),
    )


def _created(schema: MessageSchema, created: TopicDescription, validate_only: bool, settings: list[Any] | None) -> Any:
    # A principal that may create a topic but not see its settings (None) gets neither them nor its size.
    return schema(
        "CreatableTopicResult",
        name=created.name,
        topic_id=None if validate_only else created.topic_id,
        error_code=NONE,
        error_message=None,
        topic_config_error_code=TopicAuthorizationFailed.code if settings is None else NONE,
        num_partitions=-1 if settings is None else len(created.partitions),
        replication_factor=-1 if settings is None else len(created.partitions[0].replicas),
        configs=settings or (),
    )


def _settings(schema: MessageSchema, new_topic: NewTopic, parts: BrokerParts) -> list[Any]:
    return [
        schema(
            "CreatableTopicConfigs",
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.is_sensitive,
        )
        for entry in topic_entries(broker_config(parts), new_topic.configs)
    ]

"""Metadata (key 3), versions 0-12: the brokers, the topics and who leads what.

v0 asks for all topics with an empty list, later versions with null. v1 adds the controller, racks and internal topics,
v2 the cluster id, v4 allow_auto_topic_creation, v5 offline replicas, v6 LISTENER_NOT_FOUND, v7 leader epochs, v8 the
authorized operations, v10 topic ids in the answer, v12 topic ids in the request.
Unlike Kafka: a topic created on the way is complete in the same answer, so its client need not ask again. Topics come
in the order of the request. Kafka's internal topics are not created this way. A request for topics by name or id,
as of producers and consumers, is answered with brokers that went in the last three seconds too: librdkafka then takes a
partition to its next leader at once and not a second later. Such a broker leads nothing by then; a request for all topics
or for none is answered with the live brokers only.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from ottla.broker.controller.topics import NewTopic, validate_topic_name
from ottla.broker.handlers.authorization import NOT_ASKED, authorized_operations, may_create_topic, topic_allowed
from ottla.broker.handlers.partition_view import PartitionView, reachable_brokers
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import Deadline, in_slices, side_by_side
from ottla.broker.security.authorizer import CLUSTER, Operation, topic
from ottla.errors import (
    NONE,
    ApiError,
    BrokerNotAvailable,
    CoordinatorNotAvailable,
    InvalidRequest,
    LeaderNotAvailable,
    NotController,
    RequestTimedOut,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.model import INTERNAL_TOPICS, NO_LEADER, ZERO_TOPIC_ID, BrokerId, BrokerRegistration, Endpoint, TopicDescription
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.metadata.v10.request import MetadataRequest as MetadataRequestV10
    from kio.schema.metadata.v12.request import MetadataRequest

# How long a client waits for topics to be created by being asked for; then it is to ask again. What it asks for beside them waits too.
AUTO_CREATION: Final = timedelta(seconds=5)
# Partitions of a topic between which no one else has a turn.
SEEN_AT_ONCE: Final = 500
FIRST_WITH_LISTENER_NOT_FOUND: Final = 6
WITH_CLUSTER_OPERATIONS: Final = range(8, 11)  # then DescribeCluster has them
FIRST_WITH_TOPIC_IDS_IN_THE_REQUEST: Final = 12


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said of one topic: its description, or why there is none."""

    name: str | None
    error_code: int = NONE
    description: TopicDescription | None = None
    topic_id: UUID | None = None


@handles(ApiKey.METADATA, 0, 12)
async def metadata(request: MetadataRequest, context: RequestContext, parts: BrokerParts) -> Any:
    version = context.api_version
    if _asks_for_all_topics(request, version):
        answers = [Answer(topic.name, description=topic) for topic in parts.metadata.topics() if _may_describe(parts, context, topic.name)]
    else:
        answers = await _asked_for(request, context, parts)

    schema = context.response_schema()
    brokers = reachable_brokers(parts, context)
    see = PartitionView(
        schema,
        "MetadataResponsePartition",
        brokers,
        parts.metadata.brokers,
        knows_listener_not_found=version >= FIRST_WITH_LISTENER_NOT_FOUND,
        knows_offline_replicas=version > 0,
    )
    want_operations = request.include_topic_authorized_operations
    return schema(
        "MetadataResponse",
        throttle_time=0,
        brokers=[
            schema("MetadataResponseBroker", node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=registration.rack)
            for broker_id, (endpoint, registration) in (brokers | _just_gone(request, context, parts)).items()
        ],
        cluster_id=parts.metadata.cluster_id,
        controller_id=parts.metadata.controller_id if parts.metadata.controller_id in brokers else NO_LEADER,
        topics=[
            schema(
                "MetadataResponseTopic",
                error_code=answer.error_code,
                name=answer.name,
                topic_id=answer.description.topic_id if answer.description else answer.topic_id,
                is_internal=answer.name in INTERNAL_TOPICS,
                partitions=await _partitions(answer.description, see) if answer.description else (),
                topic_authorized_operations=authorized_operations(parts, context, topic(answer.name))
                if want_operations and answer.description and answer.name
                else NOT_ASKED,
            )
            async for answer in in_slices(answers)
        ],
        cluster_authorized_operations=authorized_operations(parts, context, CLUSTER)
        if version in WITH_CLUSTER_OPERATIONS and cast("MetadataRequestV10", request).include_cluster_authorized_operations
        else NOT_ASKED,
    )


async def _partitions(description: TopicDescription, see: PartitionView) -> list[Any]:
    numbered = enumerate(description.partitions)
    if len(description.partitions) <= SEEN_AT_ONCE:
        return [see(index, state) for index, state in numbered]
    return [see(index, state) async for index, state in in_slices(numbered)]


def _just_gone(
    request: MetadataRequest, context: RequestContext, parts: BrokerParts
) -> dict[BrokerId, tuple[Endpoint, BrokerRegistration]]:
    """The brokers that a client of some topics may know still, and is to forget after it has turned to others."""
    if not request.topics:
        return {}
    found = ((broker.endpoint(context.listener_name), broker) for broker in parts.metadata.just_gone())
    return {broker.broker_id: (endpoint, broker) for endpoint, broker in found if endpoint is not None}


def _asks_for_all_topics(request: MetadataRequest, version: int) -> bool:
    return request.topics is None or (version == 0 and not request.topics)


def _may_describe(parts: BrokerParts, context: RequestContext, name: str) -> bool:
    return topic_allowed(parts, context, Operation.DESCRIBE, name)


async def _asked_for(request: MetadataRequest, context: RequestContext, parts: BrokerParts) -> list[Answer]:
    """One answer for each topic named, or given by id; a topic that is asked for twice is answered once."""
    may_create = request.allow_auto_topic_creation and parts.settings.auto_create_topics_enable
    answers: dict[str | UUID | None, Answer] = {}
    missing: list[str] = []
    async for requested in in_slices(request.topics or ()):
        topic_id = requested.topic_id
        key = topic_id or requested.name
        if key in answers:
            continue
        if context.api_version < FIRST_WITH_TOPIC_IDS_IN_THE_REQUEST and (topic_id or requested.name is None):
            # The fields can hold an id or a null name from v10 on, and clients may use that only from v12 on (KIP-516).
            answers[key] = Answer(requested.name or "", InvalidRequest.code, topic_id=topic_id)
        elif topic_id:
            answers[key] = _by_id(topic_id, context, parts)
        else:
            name = requested.name or ""
            answers[key] = _by_name(name, context, parts, may_create)
            if answers[key].error_code == NONE and answers[key].description is None:
                missing.append(name)
    if missing:
        deadline = Deadline(AUTO_CREATION)
        answers |= zip(missing, await side_by_side(lambda name: _created(name, parts, deadline), missing), strict=True)
    return list(answers.values())


def _by_id(topic_id: UUID, context: RequestContext, parts: BrokerParts) -> Answer:
    name = parts.metadata.topic_name(topic_id)
    if name is None:
        return Answer(None, UnknownTopicId.code, topic_id=topic_id)
    if not _may_describe(parts, context, name):
        # The id is no secret, the name is.
        return Answer(None, TopicAuthorizationFailed.code, topic_id=topic_id)
    return Answer(name, description=parts.metadata.topic(name))


def _by_name(name: str, context: RequestContext, parts: BrokerParts, may_create: bool) -> Answer:
    """What is said of a topic that is there or may not be; one that is to be created has neither a description nor an error."""
    if not _may_describe(parts, context, name):
        return Answer(name, TopicAuthorizationFailed.code, topic_id=ZERO_TOPIC_ID)
    description = parts.metadata.topic(name)
    if description is not None:
        return Answer(name, description=description)
    try:
        validate_topic_name(name)
    except ApiError as error:
        return Answer(name, error.code)
    if not may_create or name in INTERNAL_TOPICS:
        return Answer(name, UnknownTopicOrPartition.code)
    return Answer(name, NONE if may_create_topic(parts, context, name) else TopicAuthorizationFailed.code)


async def _created(name: str, parts: BrokerParts, deadline: Deadline) -> Answer:
    """The topic with the broker's defaults; or as another client created it meanwhile."""
    try:
        # Without a controller, or without an answer in time, the client asks again.
        with contextlib.suppress(TopicAlreadyExists, NotController, BrokerNotAvailable, CoordinatorNotAvailable, RequestTimedOut):
            seconds = deadline.seconds_left()
            if seconds:
                await deadline.wait(parts.controller.create_topic(NewTopic(name), timeout_seconds=seconds), f"creating {name}")
    except ApiError as error:
        return Answer(name, error.code)
    description = parts.metadata.topic(name)
    return Answer(name, LeaderNotAvailable.code) if description is None else Answer(name, description=description)

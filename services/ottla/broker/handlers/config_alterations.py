"""What AlterConfigs and IncrementalAlterConfigs share: whose settings, who may change them, and one answer for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from ottla.broker.handlers.authorization import cluster_allowed, topic_allowed
from ottla.broker.handlers.config_entries import ConfigResourceKind, broker_of, check_logger_resource
from ottla.broker.handlers.registry import BrokerParts, RequestContext
from ottla.broker.handlers.waiting import in_slices
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, ClusterAuthorizationFailed, InvalidRequest, TopicAuthorizationFailed, UnknownTopicOrPartition
from ottla.interbroker.calls import AlterConfigsRequest, ConfigResource, IncrementalAlterConfigsRequest
from ottla.protocol.messages import MessageSchema


class Resource(Protocol):
    """What a request says of one topic or broker, in either API."""

    @property
    def resource_type(self) -> int:
        """A `ConfigResourceKind`, or a number that is none."""

    @property
    def resource_name(self) -> str:
        """The topic's name or the broker's id."""


ResourceT = TypeVar("ResourceT", bound=Resource)
AnyAlteration: TypeAlias = AlterConfigsRequest | IncrementalAlterConfigsRequest


async def alter_each(
    resources: Sequence[ResourceT],
    schema: MessageSchema,
    context: RequestContext,
    parts: BrokerParts,
    request_of: Callable[[ConfigResource, ResourceT], AnyAlteration],
    change_loggers: Callable[[ResourceT], None] | None = None,
) -> list[Any]:
    """Alters each resource and gives the answers; one that is refused does not stop the others.

    Args:
        resources: of the request.
        schema: of its responses.
        context: who asks.
        parts: the broker's.
        request_of: what the controller is asked for a topic, a broker or all brokers, and what the client's request says of it.
        change_loggers: alters this broker's loggers, where the API has it.
    """
    times_named = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    responses = []
    named = {(resource.resource_type, resource.resource_name): resource for resource in resources}
    async for resource in in_slices(named.values()):
        kind, name = resource.resource_type, resource.resource_name
        error_code, error_message = NONE, None
        try:
            if times_named[kind, name] > 1:
                raise InvalidRequest("Each resource must appear at most once.")
            if kind == ConfigResourceKind.TOPIC:
                _check_topic(name, context, parts)
                await parts.controller.call(request_of(ConfigResource(name, topic_id=parts.metadata.topic_id(name)), resource))
            elif kind == ConfigResourceKind.BROKER:
                if not cluster_allowed(parts, context, Operation.ALTER_CONFIGS):
                    raise ClusterAuthorizationFailed(f"{context.principal} may not alter the settings of brokers")
                target = ConfigResource(broker_id=broker_of(name, parts.settings.broker_id))
                await parts.controller.call(request_of(target, resource))
            elif kind == ConfigResourceKind.BROKER_LOGGER and change_loggers is not None:
                if not cluster_allowed(parts, context, Operation.ALTER_CONFIGS):
                    raise ClusterAuthorizationFailed(f"{context.principal} may not alter the log levels of brokers")
                check_logger_resource(name, parts.settings.broker_id)
                change_loggers(resource)
            else:
                raise InvalidRequest(f"Unsupported resource type: {kind}")
        except ApiError as error:
            error_code, error_message = error.code, error.message
        responses.append(
            schema(
                "AlterConfigsResourceResponse",
                error_code=error_code,
                error_message=error_message,
                resource_type=kind,
                resource_name=name,
            )
        )
    return responses


def _check_topic(name: str, context: RequestContext, parts: BrokerParts) -> None:
    if not topic_allowed(parts, context, Operation.ALTER_CONFIGS, name):
        raise TopicAuthorizationFailed(f"{context.principal} may not alter the settings of topic {name}")
    if not name:
        raise InvalidRequest("Default topic resources are not allowed.")
    if parts.metadata.topic(name) is None:
        raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")

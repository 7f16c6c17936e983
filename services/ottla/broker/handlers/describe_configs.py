"""DescribeConfigs (key 32), versions 1-4: the settings of topics and of this broker, with where each comes from.

v1 has sources and synonyms (KIP-226), v3 types and documentation. An empty list of keys asks for all, as null does.
The broker of no name stands for the settings that were changed for all brokers. Passwords are never shown.
The settings of this broker's loggers are their levels. Groups have none here and are refused with INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla.broker.controller.topics import validate_topic_name
from ottla.broker.handlers.authorization import cluster_allowed, topic_allowed
from ottla.broker.handlers.broker_loggers import logger_levels
from ottla.broker.handlers.config_entries import (
    ConfigEntry,
    ConfigResourceKind,
    broker_config,
    broker_entries,
    broker_of,
    check_logger_resource,
    dynamic_default_entries,
    logger_entries,
    topic_entries,
)
from ottla.broker.handlers.registry import BrokerParts, RequestContext, Sliced, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, ClusterAuthorizationFailed, InvalidRequest, TopicAuthorizationFailed, UnknownTopicOrPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import MessageSchema

if TYPE_CHECKING:
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource

_Made: TypeAlias = dict[Hashable, list[ConfigEntry]]


@handles(ApiKey.DESCRIBE_CONFIGS, 1, 4)
def describe_configs(request: DescribeConfigsRequest, context: RequestContext, parts: BrokerParts) -> Sliced:
    schema = context.response_schema()
    with_documentation = request.include_documentation
    results = []
    # What is the same for several resources is put together once: a broker's takes milliseconds.
    made: _Made = {}
    for resource in {(resource.resource_type, resource.resource_name): resource for resource in request.resources}.values():
        yield
        error_code, error_message, entries = NONE, "", list[ConfigEntry]()
        keys = frozenset(resource.configuration_keys or ())
        try:
            entries = _entries(resource, context, parts, made)
        except ApiError as error:
            error_code, error_message = error.code, error.message
        results.append(
            schema(
                "DescribeConfigsResult",
                error_code=error_code,
                error_message=error_message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[
                    _shown(schema, entry, request.include_synonyms, with_documentation)
                    for entry in entries
                    if not keys or entry.name in keys
                ],
            )
        )
    return schema("DescribeConfigsResponse", throttle_time=0, results=results)


def _entries(resource: DescribeConfigsResource, context: RequestContext, parts: BrokerParts, made: _Made) -> list[ConfigEntry]:
    name = resource.resource_name
    match resource.resource_type:
        case ConfigResourceKind.TOPIC:
            if not topic_allowed(parts, context, Operation.DESCRIBE_CONFIGS, name):
                raise TopicAuthorizationFailed(f"{context.principal} may not describe the settings of topic {name}")
            validate_topic_name(name)
            if parts.metadata.topic(name) is None:
                raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
            overrides = parts.controller.topic_overrides(name)
            kind: Hashable = frozenset(overrides.items())
            if kind not in made:
                made[kind] = topic_entries(broker_config(parts), overrides)
        case ConfigResourceKind.BROKER:
            if not cluster_allowed(parts, context, Operation.DESCRIBE_CONFIGS):
                raise ClusterAuthorizationFailed(f"{context.principal} may not describe the settings of brokers")
            entries = dynamic_default_entries if broker_of(name, parts.settings.broker_id) is None else broker_entries
            kind = entries
            if kind not in made:
                made[kind] = entries(broker_config(parts))
        case ConfigResourceKind.BROKER_LOGGER:
            if not cluster_allowed(parts, context, Operation.DESCRIBE_CONFIGS):
                raise ClusterAuthorizationFailed(f"{context.principal} may not describe the log levels of brokers")
            check_logger_resource(name, parts.settings.broker_id)
            kind = logger_entries
            if kind not in made:
                made[kind] = logger_entries(logger_levels())
        case other:
            raise InvalidRequest(f"Unsupported resource type: {other}")
    return made[kind]


def _shown(schema: MessageSchema, entry: ConfigEntry, with_synonyms: bool, with_documentation: bool) -> Any:
    return schema(
        "DescribeConfigsResourceResult",
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            schema("DescribeConfigsSynonym", name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in (entry.synonyms if with_synonyms else ())
        ],
        config_type=entry.config_type,
        documentation=entry.documentation if with_documentation else None,
    )

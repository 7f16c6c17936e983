"""IncrementalAlterConfigs (key 44), versions 0-1: some settings of a topic or broker (KIP-339). v1 is flexible.

Each setting is set, deleted, appended to or subtracted from; the last two are for lists such as cleanup.policy.
The broker of no name stands for all brokers. Log levels change at once and until the broker stops (`broker_loggers`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.controller.configs import ConfigChange, ConfigOperation
from ottla.broker.handlers.broker_loggers import change_levels
from ottla.broker.handlers.config_alterations import alter_each
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.errors import InvalidRequest
from ottla.interbroker import calls
from ottla.interbroker.calls import ConfigResource
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.incremental_alter_configs.v1.request import AlterConfigsResource, IncrementalAlterConfigsRequest


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1)
async def incremental_alter_configs(request: IncrementalAlterConfigsRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()

    def request_of(target: ConfigResource, resource: AlterConfigsResource) -> calls.IncrementalAlterConfigsRequest:
        return calls.IncrementalAlterConfigsRequest(target, changes_of(resource), request.validate_only)

    def change_loggers(resource: AlterConfigsResource) -> None:
        change_levels(changes_of(resource), validate_only=request.validate_only)

    responses = await alter_each(request.resources, schema, context, parts, request_of, change_loggers)
    return schema("IncrementalAlterConfigsResponse", throttle_time=0, responses=responses)


def changes_of(resource: AlterConfigsResource) -> list[ConfigChange]:
    """What is to be done to the resource's settings.

    Raises:
        InvalidRequest: an operation has a number that Kafka does not know.
    """
    changes = []
    for config in resource.configs:
        try:
            operation = ConfigOperation(config.config_operation)
        except ValueError as error:
            raise InvalidRequest(f"Unknown operation type {config.config_operation} for config key {config.name}") from error
        changes.append(ConfigChange(config.name, operation, config.value))
    return changes

"""AlterConfigs (key 33), versions 0-2: all settings of a topic or broker at once (KIP-133). v2 is flexible.

What the request does not name goes back to its default; clients should prefer IncrementalAlterConfigs (KIP-339).
The broker of no name stands for all brokers. Loggers are refused with INVALID_REQUEST, as by Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.config_alterations import alter_each
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.errors import InvalidRequest
from ottla.interbroker import calls
from ottla.interbroker.calls import ConfigResource
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.alter_configs.v2.request import AlterConfigsRequest, AlterConfigsResource


@handles(ApiKey.ALTER_CONFIGS, 0, 2)
async def alter_configs(request: AlterConfigsRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()

    def request_of(target: ConfigResource, resource: AlterConfigsResource) -> calls.AlterConfigsRequest:
        return calls.AlterConfigsRequest(target, replacement_of(resource), request.validate_only)

    responses = await alter_each(request.resources, schema, context, parts, request_of)
    return schema("AlterConfigsResponse", throttle_time=0, responses=responses)


def replacement_of(resource: AlterConfigsResource) -> dict[str, str]:
    """All the settings that the resource is to have.

    Raises:
        InvalidRequest: one has no value, or is there twice.
    """
    without_value = [config.name for config in resource.configs if config.value is None]
    if without_value:
        raise InvalidRequest(f"Null value not supported for : {','.join(without_value)}")
    replacement = {config.name: config.value for config in resource.configs if config.value is not None}
    if len(replacement) < len(resource.configs):
        raise InvalidRequest("Error due to duplicate config keys")
    return replacement

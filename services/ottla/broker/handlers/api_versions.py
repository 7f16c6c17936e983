"""ApiVersions (key 18), versions 0-4: what this broker serves, read off the table that handlers enter themselves in.

From v3 on the client says what it is, and is refused with INVALID_REQUEST where that is no name.
A version that is not served is answered in version 0 with UNSUPPORTED_VERSION, so that the client can try again
(KIP-511); the dispatcher calls `refused` for that. Produce 0-2 are advertised and refused: librdkafka before 2.11.1
turns compression off when the list does not begin at 0 (KAFKA-18659).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.handlers.registry import APIS, BrokerParts, RequestContext, handles
from ottla.errors import InvalidRequest, UnsupportedVersion
from ottla.protocol import produce
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import encode_response, response_schema

if TYPE_CHECKING:
    from kio.schema.api_versions.v4.request import ApiVersionsRequest

MIN_VERSION: Final = 0
MAX_VERSION: Final = 4
FIRST_WITH_SOFTWARE: Final = 3

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?")


@handles(ApiKey.API_VERSIONS, MIN_VERSION, MAX_VERSION)
def api_versions(request: ApiVersionsRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    named = (request.client_software_name, request.client_software_version) if context.api_version >= FIRST_WITH_SOFTWARE else ()
    if not all(map(_SOFTWARE.fullmatch, named)):
        return schema("ApiVersionsResponse", error_code=InvalidRequest.code, api_keys=(), throttle_time=0)
    # Produce is not in the table, because the dispatcher calls it by itself.
    keys = [schema("ApiVersion", api_key=ApiKey.PRODUCE, min_version=0, max_version=produce.MAX_VERSION)]
    keys += [
        schema("ApiVersion", api_key=api.key, min_version=api.min_version, max_version=api.max_version)
        for api in sorted(APIS.values(), key=lambda api: api.key)
        if api.is_served(parts.settings)
    ]
    return schema("ApiVersionsResponse", error_code=0, api_keys=keys, throttle_time=0)


def refused(correlation_id: int) -> bytes:
    """The framed answer to an ApiVersions request of a version that is not served."""
    schema = response_schema(ApiKey.API_VERSIONS, 0)
    own = schema("ApiVersion", api_key=ApiKey.API_VERSIONS, min_version=MIN_VERSION, max_version=MAX_VERSION)
    return encode_response(
        ApiKey.API_VERSIONS, 0, correlation_id, schema("ApiVersionsResponse", error_code=UnsupportedVersion.code, api_keys=[own])
    )

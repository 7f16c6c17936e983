"""DescribeAcls, CreateAcls and DeleteAcls (keys 29 to 31), versions 1-3: refused, for there is no authorizer.

They are served anyway, as by a Kafka without `authorizer.class.name`: SECURITY_DISABLED tells a tool that there are no
rules, and MirrorMaker 2 then stops asking for them. Version 0 has no pattern types and left with Kafka 4 (KIP-896).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.handlers.authorization import DENIED, cluster_allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import ApiError, ClusterAuthorizationFailed, SecurityDisabled
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.create_acls.v3.request import CreateAclsRequest
    from kio.schema.delete_acls.v3.request import DeleteAclsRequest
    from kio.schema.describe_acls.v3.request import DescribeAclsRequest

NO_AUTHORIZER: Final = "No Authorizer is configured."


@handles(ApiKey.DESCRIBE_ACLS, 1, 3)
def describe_acls(request: DescribeAclsRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    error = _refusal(context, parts, Operation.DESCRIBE)
    return schema("DescribeAclsResponse", throttle_time=0, error_code=error.code, error_message=error.message, resources=())


@handles(ApiKey.CREATE_ACLS, 1, 3)
def create_acls(request: CreateAclsRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    error = _refusal(context, parts, Operation.ALTER)
    result = schema("AclCreationResult", error_code=error.code, error_message=error.message)
    return schema("CreateAclsResponse", throttle_time=0, results=[result] * len(request.creations))


@handles(ApiKey.DELETE_ACLS, 1, 3)
def delete_acls(request: DeleteAclsRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    error = _refusal(context, parts, Operation.ALTER)
    result = schema("DeleteAclsFilterResult", error_code=error.code, error_message=error.message, matching_acls=())
    return schema("DeleteAclsResponse", throttle_time=0, filter_results=[result] * len(request.filters))


def _refusal(context: RequestContext, parts: BrokerParts, operation: Operation) -> ApiError:
    return SecurityDisabled(NO_AUTHORIZER) if cluster_allowed(parts, context, operation) else ClusterAuthorizationFailed(DENIED)

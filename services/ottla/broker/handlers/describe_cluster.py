"""DescribeCluster (key 60), versions 0-1: the brokers, the controller and what the principal may do to the cluster.

v1 adds endpoint_type (KIP-919). Brokers are the only endpoints there are here: a request for controllers gets
MISMATCHED_ENDPOINT_TYPE, as from a Kafka 3.9 broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.handlers.authorization import NOT_ASKED, authorized_operations
from ottla.broker.handlers.partition_view import reachable_brokers
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.security.authorizer import CLUSTER
from ottla.errors import NONE, MismatchedEndpointType, UnsupportedEndpointType
from ottla.model import NO_LEADER
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_cluster.v1.request import DescribeClusterRequest

BROKERS: Final = 1
CONTROLLERS: Final = 2


@handles(ApiKey.DESCRIBE_CLUSTER, 0, 1)
def describe_cluster(request: DescribeClusterRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    error_code, error_message = _refusal(request.endpoint_type)
    if error_code != NONE:
        return schema(
            "DescribeClusterResponse",
            throttle_time=0,
            error_code=error_code,
            error_message=error_message,
            cluster_id="",
            brokers=(),
        )
    brokers = reachable_brokers(parts, context)
    return schema(
        "DescribeClusterResponse",
        throttle_time=0,
        error_code=NONE,
        endpoint_type=BROKERS,
        cluster_id=parts.metadata.cluster_id,
        controller_id=parts.metadata.controller_id if parts.metadata.controller_id in brokers else NO_LEADER,
        brokers=[
            schema("DescribeClusterBroker", broker_id=broker_id, host=endpoint.host, port=endpoint.port, rack=registration.rack)
            for broker_id, (endpoint, registration) in brokers.items()
        ],
        cluster_authorized_operations=authorized_operations(parts, context, CLUSTER)
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )


def _refusal(endpoint_type: int) -> tuple[int, str | None]:
    if endpoint_type == BROKERS:
        return NONE, None
    if endpoint_type == CONTROLLERS:
        return (
            MismatchedEndpointType.code,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    return UnsupportedEndpointType.code, f"Unsupported endpoint type {endpoint_type}"

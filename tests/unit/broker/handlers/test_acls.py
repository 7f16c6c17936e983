"""DescribeAcls, CreateAcls and DeleteAcls of a broker without an authorizer (Kafka's `AclApis`)."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.broker.security.authorizer import Operation
from ottla.protocol.api import ApiKey

RULE = {"resource_type": 2, "resource_name": "flights", "principal": "User:ann", "host": "*", "operation": 3, "permission_type": 3}
FILTER = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}


async def refusals(broker: Any, version: int) -> list[list[tuple[int, str | None]]]:
    """Error code and message of each result: of a description, of two rules to make, of two filters to delete by."""
    described = await broker.ask(ApiKey.DESCRIBE_ACLS, version, **FILTER)
    assert described.resources == ()
    created = await broker.ask(ApiKey.CREATE_ACLS, version, creations=[RULE, RULE])
    deleted = await broker.ask(ApiKey.DELETE_ACLS, version, filters=[FILTER, FILTER])
    assert all(result.matching_acls == () for result in deleted.filter_results)
    answers = ([described], created.results, deleted.filter_results)
    return [[(int(answer.error_code), answer.error_message) for answer in found] for found in answers]


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_without_an_authorizer_security_is_disabled(broker: Any, version: int) -> None:
    refused = (54, "No Authorizer is configured.")
    assert await refusals(broker, version) == [[refused], [refused] * 2, [refused] * 2]


async def test_a_principal_that_may_not_is_told_that_first(broker: Any) -> None:
    broker.rules.denied |= {(Operation.DESCRIBE, "kafka-cluster"), (Operation.ALTER, "kafka-cluster")}
    denied = (31, "Authorization failed.")
    assert await refusals(broker, 3) == [[denied], [denied] * 2, [denied] * 2]

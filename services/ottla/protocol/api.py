"""The names of Kafka's APIs and the first flexible version of each.

Kept as two small tables of our own, so that the dispatcher reads a request header without importing a schema.
`tests/unit/protocol/test_api.py` compares both with the schemas.
"""

from __future__ import annotations

import enum
from typing import Final


class ApiKey(enum.IntEnum):
    """The key that a request header begins with."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    DESCRIBE_TOPIC_PARTITIONS = 75

    @property
    def api_name(self) -> str:
        """Kafka's own spelling, as messages and metrics show it: `CreateTopics`."""
        return _API_NAMES[self]


_API_NAMES: Final = {key: "".join(word.capitalize() for word in key.name.split("_")) for key in ApiKey}

_NEVER: Final = 1 << 15
# KIP-482. What came after it is flexible from its version 0 on, but for a few.
_FIRST_FLEXIBLE_VERSION: Final = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 6,
    ApiKey.METADATA: 9,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 6,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.JOIN_GROUP: 6,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 4,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.LIST_GROUPS: 3,
    ApiKey.SASL_HANDSHAKE: _NEVER,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.DELETE_TOPICS: 4,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.INIT_PRODUCER_ID: 2,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 3,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.DESCRIBE_ACLS: 2,
    ApiKey.CREATE_ACLS: 2,
    ApiKey.DELETE_ACLS: 2,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.ALTER_CONFIGS: 2,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 2,
    ApiKey.DESCRIBE_LOG_DIRS: 2,
    ApiKey.SASL_AUTHENTICATE: 2,
    ApiKey.CREATE_PARTITIONS: 2,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.OFFSET_DELETE: _NEVER,
}

# What one request may name. Those below may name every partition of a cluster, of which one that ZooKeeper coordinates has
# a hundred thousand or two; those by which Kafka's tools ask at once for all groups, or all settings of all topics, a part of that;
# those that are one client's affair a few; all others as many things as a tool does at once.
_PARTITIONS_OF_A_CLUSTER: Final = 200_000
_THINGS_OF_A_TOOL: Final = 50_000
_THINGS_AT_ONCE: Final = 10_000
_OF_ONE_CLIENT: Final = 1_000
_MAX_ELEMENTS: Final = (
    dict.fromkeys(
        (
            ApiKey.FETCH,
            ApiKey.LIST_OFFSETS,
            ApiKey.METADATA,
            ApiKey.OFFSET_COMMIT,
            ApiKey.OFFSET_FETCH,
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            ApiKey.TXN_OFFSET_COMMIT,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            ApiKey.CREATE_TOPICS,
            ApiKey.CREATE_PARTITIONS,
            ApiKey.OFFSET_DELETE,
            ApiKey.DESCRIBE_LOG_DIRS,
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            ApiKey.SYNC_GROUP,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ),
        _PARTITIONS_OF_A_CLUSTER,
    )
    | dict.fromkeys(
        (
            ApiKey.FIND_COORDINATOR,
            ApiKey.DESCRIBE_GROUPS,
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            ApiKey.DELETE_GROUPS,
            ApiKey.DESCRIBE_CONFIGS,
            ApiKey.ALTER_CONFIGS,
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            ApiKey.ALTER_REPLICA_LOG_DIRS,
            ApiKey.DESCRIBE_PRODUCERS,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ),
        _THINGS_OF_A_TOOL,
    )
    | dict.fromkeys(
        (
            ApiKey.API_VERSIONS,
            ApiKey.HEARTBEAT,
            ApiKey.INIT_PRODUCER_ID,
            ApiKey.JOIN_GROUP,
            ApiKey.LIST_GROUPS,
            ApiKey.END_TXN,
            ApiKey.ADD_OFFSETS_TO_TXN,
        ),
        _OF_ONE_CLIENT,
    )
)


def max_elements(api_key: ApiKey) -> int:
    """How many elements the arrays of one request of this API have at most, together."""
    return _MAX_ELEMENTS.get(api_key, _THINGS_AT_ONCE)


def is_flexible(api_key: ApiKey, version: int) -> bool:
    """Whether this version has compact strings and tagged fields, and so request header 2 and response header 1."""
    return version >= _FIRST_FLEXIBLE_VERSION.get(api_key, 0)


def response_header_size(api_key: ApiKey, version: int) -> int:
    """Bytes of the response header: the correlation id, and one for "no tagged fields" in flexible versions.

    ApiVersions never has the second part: a client that does not know its version yet must be able to read the answer.
    """
    return 5 if api_key is not ApiKey.API_VERSIONS and is_flexible(api_key, version) else 4

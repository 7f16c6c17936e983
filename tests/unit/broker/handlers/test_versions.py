"""The versions that are served and advertised."""

from __future__ import annotations

import re
from pathlib import Path

from ottla.broker import handlers
from ottla.broker.handlers.registry import APIS
from ottla.protocol import produce
from ottla.protocol.api import ApiKey

PAGE = Path(__file__).parents[4] / "docs" / "compatibility.md"
_ROW = re.compile(r"^\| (\w+) \| (\d+) \| (\d+)(?:-(\d+))? \|$", re.MULTILINE)


_HANDLER = re.compile(r"@handles\(\s*ApiKey\.(\w+),[^)]*\)\s*(?:async )?def \w+\(\s*request: ([\w | ]+),")


def test_each_handler_has_its_request_as_the_highest_version_that_is_served() -> None:
    """For that is what it is read into, whichever version was sent (`Api.max_version`); Fetch is read by hand."""
    handlers.load()
    typed = {}
    for path in Path(handlers.__file__).parent.glob("*.py"):
        source = path.read_text()
        for name, annotation in _HANDLER.findall(source):
            typed[ApiKey[name]] = annotation.split(" | ")[0]
            if name != "FETCH":
                expected = f"kio.schema.{name.lower()}.v{APIS[ApiKey[name]].max_version}.request import"
                assert re.search(rf"{expected} .*\b{ApiKey[name].api_name}Request\b", source), path.name
    assert typed.keys() == APIS.keys()
    assert {key for key, annotation in typed.items() if annotation != f"{key.api_name}Request"} == set()


def test_the_versions_are_kafka_3_9s_with_kafka_4s_minima() -> None:
    """Clients infer the broker's release from these ranges, so they are those of one release (KIP-896 for the minima).

    ListOffsets 0 is served for Kafka 0.8's getOffsetsBefore, OffsetCommit 1 for Sarama. AddPartitionsToTxn 4 and 5 are for
    brokers among themselves.
    """
    handlers.load()
    served = {key: (api.min_version, api.max_version) for key, api in APIS.items() if key != ApiKey.PRODUCE}
    assert served == {
        ApiKey.FETCH: (4, 17),
        ApiKey.LIST_OFFSETS: (0, 9),
        ApiKey.METADATA: (0, 12),
        ApiKey.FIND_COORDINATOR: (0, 6),
        ApiKey.API_VERSIONS: (0, 4),
        ApiKey.CREATE_TOPICS: (2, 7),
        ApiKey.DELETE_TOPICS: (1, 6),
        ApiKey.DELETE_RECORDS: (0, 2),
        ApiKey.INIT_PRODUCER_ID: (0, 5),
        ApiKey.OFFSET_COMMIT: (1, 9),
        ApiKey.OFFSET_FETCH: (1, 9),
        ApiKey.JOIN_GROUP: (0, 9),
        ApiKey.HEARTBEAT: (0, 4),
        ApiKey.LEAVE_GROUP: (0, 5),
        ApiKey.SYNC_GROUP: (0, 5),
        ApiKey.DESCRIBE_GROUPS: (0, 5),
        ApiKey.LIST_GROUPS: (0, 5),
        ApiKey.DELETE_GROUPS: (0, 2),
        ApiKey.OFFSET_DELETE: (0, 0),
        ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
        ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
        ApiKey.END_TXN: (0, 4),
        ApiKey.WRITE_TXN_MARKERS: (1, 1),
        ApiKey.TXN_OFFSET_COMMIT: (0, 4),
        ApiKey.DESCRIBE_PRODUCERS: (0, 0),
        ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
        ApiKey.LIST_TRANSACTIONS: (0, 1),
        # Of Kafka 4.0, for brokers whose group.coordinator.rebalance.protocols lists consumer.
        ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
        ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
        ApiKey.DESCRIBE_ACLS: (1, 3),
        ApiKey.CREATE_ACLS: (1, 3),
        ApiKey.DELETE_ACLS: (1, 3),
        ApiKey.DESCRIBE_CONFIGS: (1, 4),
        ApiKey.ALTER_CONFIGS: (0, 2),
        ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2),
        ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
        ApiKey.CREATE_PARTITIONS: (0, 3),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
        ApiKey.ELECT_LEADERS: (0, 2),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 0),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
        ApiKey.DESCRIBE_CLUSTER: (0, 1),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    }


def test_the_page_of_compatibility_lists_what_is_served() -> None:
    handlers.load()
    listed = [(name, int(key), int(low), int(high or low)) for name, key, low, high in _ROW.findall(PAGE.read_text(encoding="utf-8"))]
    served = [(ApiKey.PRODUCE.api_name, int(ApiKey.PRODUCE), produce.MIN_VERSION, produce.MAX_VERSION)]
    served += [(api.key.api_name, key, api.min_version, api.max_version) for key, api in sorted(APIS.items())]
    assert listed == served

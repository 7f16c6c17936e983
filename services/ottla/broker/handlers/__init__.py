"""One module per API. Each enters itself in the table of `registry` when it is imported; `load` imports them all."""

from __future__ import annotations

import importlib
from typing import Final

_MODULES: Final = (
    "acls",
    "add_offsets_to_txn",
    "add_partitions_to_txn",
    "alter_configs",
    "alter_partition_reassignments",
    "alter_replica_log_dirs",
    "api_versions",
    "consumer_group_describe",
    "consumer_group_heartbeat",
    "create_partitions",
    "create_topics",
    "delete_groups",
    "delete_records",
    "delete_topics",
    "describe_cluster",
    "describe_configs",
    "describe_groups",
    "describe_log_dirs",
    "describe_producers",
    "describe_topic_partitions",
    "describe_transactions",
    "elect_leaders",
    "end_txn",
    "fetch",
    "find_coordinator",
    "heartbeat",
    "incremental_alter_configs",
    "init_producer_id",
    "join_group",
    "leave_group",
    "list_groups",
    "list_offsets",
    "list_partition_reassignments",
    "list_transactions",
    "metadata",
    "offset_commit",
    "offset_delete",
    "offset_fetch",
    "offset_for_leader_epoch",
    "produce",
    "sync_group",
    "txn_offset_commit",
    "write_txn_markers",
)


def load() -> None:
    """Fills the table of APIs."""
    for name in _MODULES:
        importlib.import_module(f"{__name__}.{name}")

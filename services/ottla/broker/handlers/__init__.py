"""One module per API. Each enters itself in the table of `registry` when it is imported; `load` imports them all."""

from __future__ import annotations

import importlib
from typing import Final

_MODULES: Final = (
    "alter_configs",
    "alter_partition_reassignments",
    "alter_replica_log_dirs",
    "api_versions",
    "create_partitions",
    "create_topics",
    "delete_groups",
    "delete_records",
    "delete_topics",
    "describe_cluster",
    "describe_configs",
    "describe_groups",
    "describe_log_dirs",
    "describe_topic_partitions",
    "elect_leaders",
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
    "metadata",
    "offset_commit",
    "offset_delete",
    "offset_fetch",
    "offset_for_leader_epoch",
    "produce",
    "sync_group",
)


def load() -> None:
    """Fills the table of APIs."""
    for name in _MODULES:
        importlib.import_module(f"{__name__}.{name}")

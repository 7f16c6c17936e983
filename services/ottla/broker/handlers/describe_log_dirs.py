"""DescribeLogDirs (key 35), versions 1-4: what lies on each disk of this broker (KIP-113).

v3 adds an error for the whole request, v4 the size of the volume (KIP-827). A directory that has failed is listed with
KAFKA_STORAGE_ERROR. A replica on its way to another directory is in both, in the new one as future key with how many
offsets it is behind.
"""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.authorization import cluster_allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext, Sliced, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ClusterAuthorizationFailed, KafkaStorageError
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest


@handles(ApiKey.DESCRIBE_LOG_DIRS, 1, 4)
def describe_log_dirs(request: DescribeLogDirsRequest, context: RequestContext, parts: BrokerParts) -> Sliced:
    schema = context.response_schema()
    if not cluster_allowed(parts, context, Operation.DESCRIBE):
        return schema("DescribeLogDirsResponse", throttle_time=0, error_code=ClusterAuthorizationFailed.code, results=())
    asked: dict[str, set[int]] | None = None
    if request.topics is not None:
        asked = {}
        for named in request.topics:
            yield
            asked.setdefault(named.topic, set()).update(named.partitions)
    sizes: dict[Path, dict[TopicPartition, int]] = defaultdict(dict)
    for (topic, index), partition_log in sorted(parts.logs.logs.items(), key=itemgetter(0)):
        yield
        if asked is None or index in asked.get(topic, ()):
            sizes[partition_log.directory.parent][TopicPartition(topic, index)] = partition_log.size
    results = []
    for directory in parts.logs.describe_directories():
        topics: dict[str, list[Any]] = defaultdict(list)
        for (topic, index), size in sizes[directory.path].items() if directory.error is None else ():
            yield
            topics[topic].append(
                schema("DescribeLogDirsPartition", partition_index=index, partition_size=size, offset_lag=0, is_future_key=False)
            )
        for (topic, index), future in sorted(parts.log_moves.ongoing.items()):
            if future.directory == directory.path and (asked is None or index in asked.get(topic, ())):
                fields = {"partition_index": index, "partition_size": future.size, "offset_lag": future.offset_lag}
                topics[topic].append(schema("DescribeLogDirsPartition", **fields, is_future_key=True))
        results.append(
            schema(
                "DescribeLogDirsResult",
                error_code=NONE if directory.error is None else KafkaStorageError.code,
                log_dir=str(directory.path.absolute()),
                topics=[schema("DescribeLogDirsTopic", name=name, partitions=partitions) for name, partitions in topics.items()],
                total_bytes=directory.total_bytes,
                usable_bytes=directory.usable_bytes,
            )
        )
    return schema("DescribeLogDirsResponse", throttle_time=0, error_code=NONE, results=results)

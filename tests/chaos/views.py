"""What one broker says of the cluster: a Metadata request (key 3, version 1), asked of that broker and no other.

A client library asks whichever broker it likes, and to know that all of them are right each must be asked.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_ASK_SECONDS: Final = 5.0
_METADATA: Final = 3
_VERSION: Final = 1
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class PartitionView:
    """What is said of one partition."""

    leader: int
    replicas: frozenset[int]
    in_sync: frozenset[int]

    @property
    def is_whole(self) -> bool:
        """Whether it has a leader, and every replica is in sync."""
        return self.leader in self.in_sync and self.in_sync == self.replicas


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What is said of the controller and of one topic; a topic that is not known has no partitions."""

    controller: int
    partitions: Mapping[int, PartitionView]

    def shortcomings(self, partition_count: int) -> list[str]:
        """What keeps it from being whole."""
        missing = [f"partition {number} is unknown" for number in range(partition_count) if number not in self.partitions]
        return missing + [
            f"partition {number} has leader {each.leader}, in sync {sorted(each.in_sync)} of {sorted(each.replicas)}"
            for number, each in sorted(self.partitions.items())
            if not each.is_whole
        ]


async def ask(port: int, topic: str) -> ClusterView:
    """The view of the broker whose client listener is at this port.

    Raises:
        OSError: it does not answer, or not in time.
    """
    name = topic.encode()
    # api_key api_version correlation_id client_id, then one topic
    body = struct.pack(f">hhih5sih{len(name)}s", _METADATA, _VERSION, 1, 5, b"chaos", 1, len(name), name)
    async with asyncio.timeout(_ASK_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(_INT32.pack(len(body)) + body)
            (size,) = _INT32.unpack(await reader.readexactly(4))
            return decode(await reader.readexactly(size))
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError(f"port {port}: the connection ended within an answer") from error
        finally:
            writer.transport.abort()


def decode(answer: bytes) -> ClusterView:
    """Reads the answer from its correlation id on."""
    fields = _Fields(answer)
    fields.int32()
    for _ in range(fields.int32()):
        fields.int32(), fields.string(), fields.int32(), fields.string()  # id, host, port, rack
    controller = fields.int32()
    partitions: dict[int, PartitionView] = {}
    for _ in range(fields.int32()):
        fields.int16(), fields.string(), fields.take(1)  # error, name, internal
        for _ in range(fields.int32()):
            fields.int16()
            number, leader = fields.int32(), fields.int32()
            partitions[number] = PartitionView(leader, fields.ids(), fields.ids())
    return ClusterView(controller, partitions)


class _Fields:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, size: int) -> bytes:
        self._position += size
        return self._data[self._position - size : self._position]

    def int16(self) -> int:
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self.take(4))[0])

    def string(self) -> bytes:
        return self.take(max(self.int16(), 0))

    def ids(self) -> frozenset[int]:
        return frozenset(self.int32() for _ in range(self.int32()))

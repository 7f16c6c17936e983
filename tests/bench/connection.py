"""One blocking connection for a bench's preparations: a request, its answer, nothing in between."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from tests.bench import wire


class Connection:
    """A client of one broker; a context manager."""

    def __init__(self, port: int, *, timeout: float = 60.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()

    def ask(self, request: bytes) -> bytes:
        """The whole answer, its length prefix included."""
        self._socket.sendall(request)
        prefix = self._exactly(wire.FRAME_PREFIX_SIZE)
        return prefix + self._exactly(wire.INT32.unpack(prefix)[0])

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if not count:
                raise wire.UnexpectedAnswer("the server closed the connection")
            view = view[count:]
        return bytes(data)

    def api_versions(self) -> dict[int, tuple[int, int]]:
        return wire.api_versions_answer(self.ask(wire.api_versions_request()))

    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Creates the topic and waits until each partition has a leader; a server without CreateTopics is asked to auto-create."""
        if wire.CREATE_TOPICS in self.api_versions():
            error_code, message = wire.create_topic_answer(self.ask(wire.create_topic_request(topic, partitions, configs or {})))
            if error_code:
                raise wire.UnexpectedAnswer(f"CreateTopics {topic!r}: error {error_code}: {message}")
        self.wait_for_leaders(topic, partitions)

    def wait_for_leaders(self, topic: str, partitions: int, *, timeout: float = 60.0) -> None:
        deadline = time.monotonic() + timeout
        while len(wire.metadata_answer(self.ask(wire.metadata_request([topic]))).get(topic, [])) < partitions:
            if time.monotonic() > deadline:
                raise wire.UnexpectedAnswer(f"{topic!r} has not {partitions} partitions with a leader after {timeout:.0f} s")
            time.sleep(0.01)

    def latest_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        return wire.latest_offset_answer(self.ask(wire.latest_offset_request(topic, partitions)))

    def produce(self, version: int, topic: str, partition: int, batch: bytes) -> int:
        """The base offset given to the batch."""
        error_code, base_offset = wire.produce_answer(version, self.ask(wire.produce_request(version, topic, partition, batch)))
        if error_code:
            raise wire.UnexpectedAnswer(f"Produce to {topic}-{partition}: error {error_code}")
        return base_offset

"""How many bytes each partition has on each broker's disks, asked with DescribeLogDirs (key 35).

librdkafka has no call for it, so this module speaks the protocol itself: one small request on one connection a broker,
encoded by kio. TLS is set up from the same properties that librdkafka would use.
"""

from __future__ import annotations

import io
import socket
import ssl
import struct
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Final

from ottla.cli.errors import CommandFailed
from ottla.model import TopicPartition

_FRAME: Final = struct.Struct(">i")
_VERSION: Final = 1  # not flexible, and served by every broker since Kafka 2.0
_CORRELATION_ID: Final = 1
_TIMEOUT_SECONDS: Final = 10.0


def can_ask(properties: Mapping[str, str]) -> bool:
    """Whether the connection is one that this module can make: SASL is not."""
    return properties.get("security.protocol", "plaintext").lower() in ("plaintext", "ssl")


def partition_sizes(
    address: tuple[str, int], properties: Mapping[str, str], topics: Mapping[str, Iterable[int]]
) -> dict[TopicPartition, int]:
    """The bytes of each of these partitions that the broker at `address` has on its disks."""
    from kio.schema.describe_log_dirs.v1.request import DescribableLogDirTopic, DescribeLogDirsRequest
    from kio.schema.describe_log_dirs.v1.response import DescribeLogDirsResponse

    asked = tuple(DescribableLogDirTopic(topic=name, partitions=tuple(partitions)) for name, partitions in topics.items())  # type: ignore[arg-type]
    answer = _ask(address, properties, DescribeLogDirsRequest(topics=asked), DescribeLogDirsResponse)
    sizes: dict[TopicPartition, int] = {}
    for directory in answer.results:
        for topic in directory.topics:
            for partition in topic.partitions:
                sizes[TopicPartition(topic.name, partition.partition_index)] = partition.partition_size
    return sizes


def _ask(address: tuple[str, int], properties: Mapping[str, str], request: Any, response: type[Any]) -> Any:
    from kio.schema.request_header.v1.header import RequestHeader
    from kio.schema.response_header.v0.header import ResponseHeader
    from kio.serial import entity_reader, entity_writer

    header = RequestHeader(request_api_key=35, request_api_version=_VERSION, correlation_id=_CORRELATION_ID, client_id="ottla")  # type: ignore[arg-type]
    frame = io.BytesIO()
    entity_writer(RequestHeader)(frame, header)
    entity_writer(type(request))(frame, request)
    payload = frame.getvalue()
    with ExitStack() as stack:
        try:
            connection: socket.socket = stack.enter_context(socket.create_connection(address, _TIMEOUT_SECONDS))
            if properties.get("security.protocol", "").lower() == "ssl":
                connection = stack.enter_context(_tls(properties).wrap_socket(connection, server_hostname=address[0]))
            connection.sendall(_FRAME.pack(len(payload)) + payload)
            (size,) = _FRAME.unpack(_receive(connection, _FRAME.size))
            answer = _receive(connection, size)
        except OSError as error:
            raise CommandFailed(f"the broker at {address[0]}:{address[1]} does not tell its sizes: {error}") from None
    _, after_header = entity_reader(ResponseHeader)(answer, 0)
    return entity_reader(response)(answer, after_header)[0]


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise ConnectionError("it closed the connection")
        received += piece
    return bytes(received)


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=properties.get("ssl.ca.location"), cadata=properties.get("ssl.ca.pem"))
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate := properties.get("ssl.certificate.location"):
        context.load_cert_chain(certificate, properties.get("ssl.key.location"), properties.get("ssl.key.password"))
    return context

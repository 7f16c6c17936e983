"""`ottla produce`: lines of stdin or of files into a topic.

The producer is idempotent and waits for all in-sync replicas unless `--acks` says otherwise: what a person types by hand
should not be lost or doubled either. The command ends when every message is acknowledged, and fails when one is not.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ottla.cli.connection import Connection, connects, last_error, sentence
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.offsets import timestamp_ms
from ottla.cli.output import count_of, note
from ottla.cli.rendering import unescaped

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
DELIVERY_MS: Final = 30_000
FLUSH_SECONDS: Final = 0.5
SILENT_SECONDS: Final = 3.0  # after which a person hears why nothing happens

_INT64: Final = struct.Struct(">q")
_NO_ZERO: Final = "a timestamp of 0, or earlier, cannot be written: the client takes it for now"

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class NewMessage:
    """What one line comes to."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None


def from_line(line: bytes, key_delimiter: bytes | None, null: bytes | None, headers_delimiter: bytes | None = None) -> NewMessage:
    """A line without its newline. A line without the delimiter has no key, which is not an empty key; and so with headers.

    They come first: name:value,name:value, as kafka-console-producer has them with parse.headers. What is as `null` is none.
    """
    key: bytes | None = None
    value: bytes | None = line
    headers: Headers = ()
    if headers_delimiter is not None and headers_delimiter in line:
        text, _, line = line.partition(headers_delimiter)
        headers = [_header(pair, null) for pair in text.split(b",")] if text not in (b"", null) else ()
        value = line
    if key_delimiter is not None and key_delimiter in line:
        key, _, value = line.partition(key_delimiter)
    if null is not None:
        key, value = None if key == null else key, None if value == null else value
    return NewMessage(key, value, headers)


def _header(pair: bytes, null: bytes | None) -> tuple[str, bytes | None]:
    name, colon, value = pair.partition(b":")
    return name.decode(errors="replace"), None if not colon or value == null else value


def from_json(line: bytes, number: int) -> NewMessage:
    """A line as `ottla consume --json` prints it; topic, partition and offset are not taken over."""
    try:
        document = json.loads(line)
        headers = [(str(header["name"]), _part(header, "value")) for header in document.get("headers") or ()]
        for name, _ in headers:
            name.encode()  # the client does not see that it is no text, and ends the process
        timestamp = None if document.get("timestamp") is None else _INT64.unpack(_INT64.pack(int(document["timestamp"])))[0]
        return NewMessage(_part(document, "key"), _part(document, "value"), headers, timestamp)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, struct.error) as error:
        raise CommandFailed(f"line {number} is not a message in JSON as `ottla consume --json` prints it: {error}") from None


def _part(document: dict[str, Any], name: str) -> bytes | None:
    if (encoded := document.get(f"{name}_base64")) is not None:
        return base64.b64decode(encoded, validate=True)
    content = document.get(name)
    if content is None:
        return None
    return content.encode() if isinstance(content, str) else json.dumps(content, ensure_ascii=False).encode()


def headers_of(values: Sequence[str] | None) -> Headers:
    """`-H name=value`; `-H name` is a header without a value."""
    found: list[tuple[str, bytes | None]] = []
    for header in values or ():
        name, equals, value = header.partition("=")
        found.append((name, value.encode() if equals else None))
    return found


def _lines(files: Sequence[Path]) -> Iterator[bytes]:
    if not files:
        for line in sys.stdin.buffer:
            yield line.removesuffix(b"\n")
        return
    for path in files:
        try:
            with path.open("rb") as file:
                for line in file:
                    yield line.removesuffix(b"\n")
        except OSError as error:
            raise CommandFailed(f"{path}: {error.strerror}") from None


@connects
def produce(
    where: Connection,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Read instead of stdin.")] = None,
    key_delimiter: Annotated[
        str | None,
        typer.Option("--key-delimiter", "-K", metavar="TEXT", help="What parts a key from its value in a line.", show_default=False),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The same key for every message.", show_default=False)] = None,
    headers: Annotated[list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated.")] = None,
    partition: Annotated[int, typer.Option("--partition", "-p", min=-1, max=(1 << 31) - 1, help="This partition; -1 is by key.")] = -1,
    timestamp: Annotated[
        str | None,
        typer.Option("--timestamp", metavar="TIME", help="Milliseconds since 1970 or ISO 8601. [default: now]", show_default=False),
    ] = None,
    codec: Annotated[str, typer.Option("--compression", "-z", help=f"{', '.join(CODECS)}.")] = "none",
    acks: Annotated[str, typer.Option("--acks", help="0, 1 or all.")] = "all",
    null: Annotated[bool, typer.Option("--null", "-Z", help="An empty value (or key) is null: a tombstone.")] = False,
    null_marker: Annotated[
        str | None, typer.Option("--null-marker", metavar="TEXT", help="A value, key or header that is this text is null.")
    ] = None,
    headers_delimiter: Annotated[
        str | None,
        typer.Option("--headers-delimiter", metavar="TEXT", help="What parts headers, name:value,name:value, from what follows in a line."),
    ] = None,
    json_lines: Annotated[bool, typer.Option("--json", "-J", help="Lines as `ottla consume --json` prints them.")] = False,
) -> None:
    """Publish each line of stdin, or of files, as a message.

    Examples:

    - `echo hello | ottla produce greetings`
    - `echo 'ada:hello' | ottla produce greetings -K : -H lang=en -z zstd`
    - `echo 'ada:' | ottla produce greetings -K : --null` — a tombstone
    - `printf 'lang:en,by:hand\\tada\\thello\\n' | ottla produce greetings --headers-delimiter '\\t' -K '\\t'`
    - `ottla produce log /var/log/syslog`
    """
    if codec not in CODECS:
        raise UsageError(f"--compression takes {', '.join(CODECS)}, and not {codec!r}")
    if acks not in ("0", "1", "all", "-1"):
        raise UsageError(f"--acks takes 0, 1 or all, and not {acks!r}")
    if json_lines and (key_delimiter is not None or key is not None):
        raise UsageError("--json has the key in each line: --key and --key-delimiter contradict it")
    if json_lines and (headers_delimiter is not None or null_marker is not None):
        raise UsageError("--json has headers and nulls in each line: --headers-delimiter and --null-marker contradict it")
    if null and null_marker is not None:
        raise UsageError("--null and --null-marker contradict each other")
    if headers_delimiter == "":
        raise UsageError("--headers-delimiter must be a text")
    if key_delimiter is not None and (key is not None or not key_delimiter):
        raise UsageError("--key-delimiter must be a text, and contradicts --key")
    delimiter, of_headers = (None if text is None else unescaped(text).encode() for text in (key_delimiter, headers_delimiter))
    marker = b"" if null else None if null_marker is None else null_marker.encode()
    common_headers = headers_of(headers)
    time_given = None if timestamp is None else timestamp_ms(timestamp)
    if time_given == 0:
        raise UsageError(f"--timestamp: {_NO_ZERO}")

    def message_of(line: bytes, number: int) -> NewMessage:
        message = from_json(line, number) if json_lines else from_line(line, delimiter, marker, of_headers)
        return NewMessage(
            key.encode() if key is not None else message.key,
            message.value,
            [*message.headers, *common_headers],
            time_given if time_given is not None else message.timestamp_ms,
        )

    publisher = Publisher(where, topic, partition, codec, acks)
    try:
        publisher.publish(_lines(files or ()), message_of)
    finally:
        publisher.finish()


class Publisher:
    """Sends messages and remembers the first one that was not taken."""

    def __init__(self, where: Connection, topic: str, partition: int, codec: str, acks: str) -> None:
        from confluent_kafka import Producer

        where.must_listen()
        self._where, self._topic, self._partition = where, topic, partition
        self._failed = 0
        self._first_failure = ""
        own = where.properties
        self._producer = where.client(
            Producer,
            **{
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": own.get("acks", own.get("request.required.acks", acks)) in ("all", "-1"),
                "partitioner": "murmur2_random",  # Java's: the same key lies in the same partition, no matter who publishes
                "message.timeout.ms": DELIVERY_MS,
                "delivery.report.only.error": True,
            },
        )

    def publish(self, lines: Iterator[bytes], message_of: Callable[[bytes, int], NewMessage]) -> None:
        for number, line in enumerate(lines, start=1):
            message = message_of(line, number)
            if message.timestamp_ms == 0:
                raise CommandFailed(f"line {number}: {_NO_ZERO}; `ottla replay --into` copies such messages as they are")
            if any("\0" in name for name, _ in message.headers):
                raise CommandFailed(f"line {number}: the name of a header has a NUL, at which the client would cut it")
            self._send(message)

    def _send(self, message: NewMessage) -> None:
        from confluent_kafka import KafkaException

        more: dict[str, Any] = {} if message.timestamp_ms is None else {"timestamp": message.timestamp_ms}
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    message.value,
                    message.key,
                    self._partition,
                    self._delivered,
                    headers=list(message.headers) or None,
                    **more,
                )
                break
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as exception:
                raise CommandFailed(self._sentence(exception.args[0])) from None
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed += 1
            self._first_failure = self._first_failure or self._sentence(error)

    def _sentence(self, error: KafkaError) -> str:
        from confluent_kafka import KafkaError

        is_partition = error.code() == KafkaError._UNKNOWN_PARTITION
        subject = f"partition {self._partition} of {self._topic!r}" if is_partition else f"topic {self._topic!r}"
        return sentence(error, self._where.bootstrap_server, subject)

    def finish(self) -> None:
        """Waits until everything is acknowledged or given up."""
        left, silent_seconds = 0, 0.0
        while still := self._producer.flush(FLUSH_SECONDS):
            silent_seconds = silent_seconds + FLUSH_SECONDS if still == left else 0.0
            left = still
            if silent_seconds == SILENT_SECONDS:
                reason = self._why_nothing_is_taken()
                note(f"ottla: {count_of(left, 'message')} not acknowledged yet, trying for up to {DELIVERY_MS // 1000} s: {reason}")
        if self._failed:
            raise CommandFailed(f"{count_of(self._failed, 'message')} not delivered. First error: {self._first_failure}")

    def _why_nothing_is_taken(self) -> str:
        """librdkafka says nothing of what it tries again."""
        from confluent_kafka import KafkaException

        try:
            topic = self._producer.list_topics(timeout=SILENT_SECONDS).topics.get(self._topic)
        except KafkaException:
            return last_error() or "the cluster does not answer"
        if topic is not None and (lost := [str(number) for number, found in sorted(topic.partitions.items()) if found.leader < 0]):
            return f"partition {', '.join(lost)} has no leader"
        return (
            last_error()
            or "the cluster answers, and does not take them: too few replicas may be in sync (min.insync.replicas); see `ottla cluster`"
        )

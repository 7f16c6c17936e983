"""`ottla consume`: messages of a topic, or of those that a pattern matches, to stdout.

Without `--group` partitions are assigned, never subscribed to: looking at a topic joins no group and moves no
group's offsets. It ends at what was the end when it started, unless `--follow` is given.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ottla.cli import offsets
from ottla.cli.connection import ANSWER_SECONDS, Connection, cluster_metadata, connects, sentence, told_plainly, topics_like
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.rendering import ReadMessage, Renderer, as_json, by_format, columns

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition
    from confluent_kafka.admin import ClusterMetadata, TopicMetadata

POLL_MESSAGES: Final = 1_000
POLL_SECONDS: Final = 0.2
SILENT_SECONDS: Final = 30.0

# How long nothing may come while the group is forming, or its coordinator moves.
GROUP_SILENT_SECONDS: Final = 60.0


def _renderer(form: str | None, json_lines: bool, key: bool, headers: bool, timestamp: bool, position: bool, null: str) -> Renderer:
    if form is not None and json_lines:
        raise UsageError("--format and --json contradict each other")
    if json_lines:
        return as_json
    if form is not None:
        return by_format(form, null.encode())
    return columns(position=position, timestamp=timestamp, headers=headers, key=key, null=null.encode())


@connects
def consume(
    where: Connection,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]")] = None,
    include: Annotated[
        str | None, typer.Option("--include", metavar="REGEX", help="Of topics whose whole name matches when it starts, instead of TOPIC.")
    ] = None,
    partitions: Annotated[list[int] | None, typer.Option("--partition", "-p", metavar="N", help="Only this one; may be repeated.")] = None,
    start: Annotated[
        list[str] | None,
        typer.Option("--offset", "-o", metavar="OFFSET", help="beginning, end, N, -N (the last N of each partition), s@TIME, e@TIME."),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, metavar="N", help="Stop after so many.", show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Continue with what comes after, until Ctrl-C.")] = False,
    timeout_ms: Annotated[
        int | None, typer.Option("--timeout-ms", min=0, metavar="MS", help="With --follow: stop when nothing has come for so long.")
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit", "-e", help="Stop at the end: what happens anyway, for hands used to kcat.")
    ] = False,
    key: Annotated[bool, typer.Option("--key", "-k", help="Print the key and a tab before the value.")] = False,
    headers: Annotated[bool, typer.Option("--headers", help="Print the headers.")] = False,
    timestamp: Annotated[bool, typer.Option("--timestamp", "-T", help="Print the timestamp.")] = False,
    position: Annotated[bool, typer.Option("--position", "-P", help="Print topic-partition@offset.")] = False,
    json_lines: Annotated[bool, typer.Option("--json", "-J", help="A line of JSON for each message.")] = False,
    form: Annotated[
        str | None, typer.Option("--format", "-f", metavar="TEXT", help="kcat's: %t %p %o %k %s %K %S %T %h; \\n, \\t.", show_default=False)
    ] = None,
    null: Annotated[str, typer.Option("--null", help="What is printed for a null key or value.")] = "",
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", metavar="GROUP", help="Read as a member of this group, and commit what was printed.", show_default=False
        ),
    ] = None,
    isolation: Annotated[str, typer.Option("--isolation", help="read_uncommitted or read_committed.")] = "read_uncommitted",
) -> None:
    """Print the messages of a topic.

    Examples:

    - `ottla consume clicks` — all there is
    - `ottla consume clicks -o -5 --key` — the last five of each partition, with their keys
    - `ottla consume clicks --follow -o end --json` — what comes from now on
    - `ottla consume clicks -o s@2013-07-04 -o e@2013-07-05 -p 2` — one day of one partition
    - `ottla consume clicks --group billing` — what the group has not read yet
    - `ottla consume clicks --json | ottla produce clicks-copy --json`
    - `ottla consume --include 'click.*' --position` — topics that begin so
    """
    if (topic is None) == (include is None):
        raise UsageError("say what to read: TOPIC, or --include REGEX")
    if include is not None and partitions:
        raise UsageError("--partition is for one TOPIC, and --include contradicts it")
    if follow and exit_at_end:
        raise UsageError("--follow and --exit contradict each other")
    if timeout_ms is not None and not follow:
        raise UsageError("--timeout-ms is for --follow: without that it stops at the end")
    if isolation not in ("read_uncommitted", "read_committed"):
        raise UsageError(f"--isolation takes read_uncommitted or read_committed, and not {isolation!r}")
    span = offsets.span(start or ())
    if follow and span.until_ms is not None:
        raise UsageError("--follow and -o e@TIME contradict each other")
    render = _renderer(form, json_lines, key, headers, timestamp, position, null)
    reader: TopicReader | GroupReader
    if group is not None:
        if not group:  # as a script's variable may be; librdkafka aborts the process
            raise UsageError("--group is empty")
        if partitions or span not in (offsets.span(()), offsets.span(["end"])):
            raise UsageError("--group takes neither --partition nor any --offset but `beginning` and `end`: the group says what is read")
        metadata = cluster_metadata(where.admin(), where.bootstrap_server)
        topics = _topics(metadata, topic, include, where.bootstrap_server)
        reader = GroupReader(where, list(topics), group, isolation, from_the_end=span == offsets.span(["end"]), follow=follow)
    else:
        reader = TopicReader(where, isolation)
    try:
        if isinstance(reader, TopicReader):
            reader.assign(_topics(reader.metadata(), topic, include, where.bootstrap_server), partitions, span, follow)
        _print(reader, render, count, timeout_ms, flush_each=follow)
    except KeyboardInterrupt:
        pass  # the way to end --follow
    finally:
        reader.close()


def _topics(metadata: ClusterMetadata, topic: str | None, include: str | None, server: str) -> dict[str, TopicMetadata]:
    """The topics to read.

    Raises:
        CommandFailed: there is none.
    """
    if include is not None:
        if found := topics_like(metadata.topics, include):
            return {name: metadata.topics[name] for name in found}
        raise CommandFailed(f"no topic matches {include!r} on {server}")
    if topic is None or topic not in metadata.topics:
        raise CommandFailed(f"topic {topic!r} does not exist on {server}")
    return {topic: metadata.topics[topic]}


def _print(reader: TopicReader | GroupReader, render: Renderer, count: int | None, timeout_ms: int | None, flush_each: bool) -> None:
    out = sys.stdout.buffer
    left = count
    for messages in reader.batches(timeout_ms):
        taken = messages if left is None else messages[:left]
        out.writelines(render(ReadMessage.of(message)) for message in taken)
        if flush_each or isinstance(reader, GroupReader):
            out.flush()
        if isinstance(reader, GroupReader):
            reader.printed(taken)
        if left is not None:
            left -= len(taken)
            if left == 0:
                break
    out.flush()


def _is_over(silent_polls: int, timeout_ms: int | None) -> bool:
    return timeout_ms is not None and silent_polls > 0 and silent_polls * POLL_SECONDS * 1000 >= timeout_ms


def _consumer(where: Connection, group_id: str, isolation: str, reset: str) -> Consumer:
    """A client that says where partitions end, and commits nothing by itself."""
    from confluent_kafka import Consumer

    configuration = {
        "group.id": group_id,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": isolation,
        "fetch.wait.max.ms": 100,
        "fetch.queue.backoff.ms": 5,  # by default it pauses for a second whenever we are slower than the broker
        "auto.offset.reset": reset,
    }
    return where.client(Consumer, **configuration)


def _polled(consumer: Consumer) -> list[Message]:
    """Waits for the first and takes what else is there: `consume` alone waits until it has all it may have."""
    first = consumer.poll(POLL_SECONDS)
    return [] if first is None else [first, *consumer.consume(POLL_MESSAGES, 0)]


class TopicReader:
    """Reads spans of topics' partitions through librdkafka, without a group."""

    def __init__(self, where: Connection, isolation: str) -> None:
        self._where = where
        self._ends: dict[tuple[str, int], int] = {}  # partitions not yet read, each with the offset that it ends before
        self._follow = False
        where.must_listen()
        self._consumer = _consumer(where, "ottla-consume", isolation, "earliest")  # of a group that nothing is ever committed to

    def metadata(self) -> ClusterMetadata:
        """Brokers and topics."""
        with told_plainly(self._where.bootstrap_server):
            metadata: ClusterMetadata = self._consumer.list_topics(timeout=ANSWER_SECONDS)
        return metadata

    def assign(self, topics: Mapping[str, TopicMetadata], wanted: list[int] | None, span: offsets.Span, follow: bool) -> None:
        """Decides where each partition starts and ends, and begins to fetch."""
        from confluent_kafka import TopicPartition

        self._follow = follow
        assigned: list[TopicPartition] = []
        for topic, metadata in topics.items():
            there = sorted(metadata.partitions)
            chosen = list(dict.fromkeys(wanted or there))
            for partition in chosen:
                if partition not in there:
                    raise CommandFailed(f"topic {topic!r} has partitions 0 to {len(there) - 1}, and no {partition}")
                if metadata.partitions[partition].leader < 0:
                    raise CommandFailed(f"partition {partition} of {topic!r} has no leader at the moment")
            for partition in chosen:
                begin, end = self._span_of(topic, partition, span)
                if follow or begin < end:
                    assigned.append(TopicPartition(topic, partition, begin))
                    self._ends[topic, partition] = end
        self._consumer.assign(assigned)

    def _span_of(self, topic: str, partition: int, span: offsets.Span) -> tuple[int, int]:
        from confluent_kafka import TopicPartition

        server = self._where.bootstrap_server
        with told_plainly(server, f"partition {partition} of {topic!r}"):
            watermarks = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_SECONDS)
            if watermarks is None:
                raise CommandFailed(f"no broker at {server} returned the offsets of {topic}-{partition} within {ANSWER_SECONDS:.0f} s")
            since = self._offset_at(topic, partition, span.start.timestamp_ms) if isinstance(span.start, offsets.Since) else None
            until = None if span.until_ms is None else self._offset_at(topic, partition, span.until_ms)
        low, high = watermarks
        return offsets.first_offset(span.start, low, high, since), high if until is None else until

    def _offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset with that timestamp or a later one; None when there is none yet."""
        from confluent_kafka import TopicPartition

        (found,) = self._consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], timeout=ANSWER_SECONDS)
        return found.offset if found.offset >= 0 else None

    def batches(self, timeout_ms: int | None) -> Iterator[list[Message]]:
        """Messages as they come, until every partition has reached its end; when following, until nothing has come for so long."""
        silent_polls = 0
        while self._follow or self._ends:
            polled = _polled(self._consumer)
            messages = [message for message in polled if self._belongs(message)]
            if messages:
                yield messages
            silent_polls = 0 if polled else silent_polls + 1
            if _is_over(silent_polls, timeout_ms):
                return
            if silent_polls * POLL_SECONDS > SILENT_SECONDS and not self._follow:
                unread = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(self._ends))
                raise CommandFailed(f"nothing came for {SILENT_SECONDS:.0f} s; partitions not read to their end: {unread}")

    def _belongs(self, message: Message) -> bool:
        """Whether a message is to be printed; notes where a partition has come to its end."""
        from confluent_kafka import KafkaError

        topic, partition, offset, error = message.topic(), message.partition(), message.offset(), message.error()
        if topic is None:  # of the group, whose coordinator librdkafka looks for although nothing is asked of it
            return False
        assert partition is not None
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise CommandFailed(sentence(error, self._where.bootstrap_server, f"{topic}-{partition}"))
            self._ends.pop((topic, partition), None)
            return False
        if self._follow:
            return True
        assert offset is not None
        end = self._ends.get((topic, partition), 0)
        if offset + 1 >= end:
            self._ends.pop((topic, partition), None)
        return offset < end

    def close(self) -> None:
        self._consumer.close()


# Reading topics as a member of a group: what `ottla consume --group` does.
#
# The group says which partitions are ours and where they continue. What was printed is committed, and only that, so that
# whatever ends the command, the next one continues with the first message that has not been shown. The end of a partition is
# committed too, as Kafka's consumer does: what is written after a first look with `-o end` would be skipped by the next.


class GroupReader:
    """One member of a group.

    Args:
        where: the cluster.
        topics: what is subscribed to; they have to exist.
        group_id: the group.
        isolation: `read_uncommitted` or `read_committed`.
        from_the_end: where a group begins that has committed nothing: at the end, or at the beginning.
        follow: continue at the end of all partitions that are ours.
    """

    def __init__(self, where: Connection, topics: list[str], group_id: str, isolation: str, *, from_the_end: bool, follow: bool) -> None:
        self._where, self._group_id = where, group_id
        self._follow = follow
        # Members that cooperate (KIP-429, KIP-848) are given partitions beside those that they have; at first, and in between, none.
        strategy, protocol = (where.properties.get(name, "") for name in ("partition.assignment.strategy", "group.protocol"))
        self._cooperates = "cooperative" in strategy or protocol.lower() == "consumer"
        self._unread: set[tuple[str, int]] | None = None  # partitions of ours that have not come to their end; None before we have any
        self._ends: dict[tuple[str, int], int] = {}  # where others of ours have just ended, not committed yet
        self._consumer = _consumer(where, group_id, isolation, "latest" if from_the_end else "earliest")
        self._consumer.subscribe(topics, on_assign=self._assigned, on_revoke=self._revoked)

    def batches(self, timeout_ms: int | None) -> Iterator[list[Message]]:
        """Messages as they come, until every partition of ours has reached its end; when following, until nothing has come for so long."""
        silent_polls = 0
        while self._follow or self._unread is None or self._unread:
            polled = _polled(self._consumer)
            messages = [message for message in polled if self._belongs(message)]
            if messages:
                yield messages
            self._commit_ends()
            silent_polls = 0 if polled else silent_polls + 1
            if _is_over(silent_polls, timeout_ms):
                return
            if silent_polls * POLL_SECONDS > GROUP_SILENT_SECONDS and not self._follow:
                raise CommandFailed(f"nothing came for {GROUP_SILENT_SECONDS:.0f} s: the group has given this member no partition")

    def printed(self, messages: Sequence[Message]) -> None:
        """Commits what was printed."""
        from confluent_kafka import TopicPartition

        following: dict[tuple[str, int], int] = {}
        for message in messages:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None and partition is not None and offset is not None
            following[topic, partition] = offset + 1
        offsets = [TopicPartition(*key, offset) for key, offset in following.items()]
        # What was printed behind the end is not to be taken back by it.
        self._ends = {key: end for key, end in self._ends.items() if end > following.get(key, 0)}
        with told_plainly(self._where.bootstrap_server):
            self._consumer.commit(offsets=offsets, asynchronous=False)

    def _commit_ends(self) -> None:
        """Commits where partitions have ended; without waiting, for nothing that was printed depends on it."""
        if self._ends:
            from confluent_kafka import TopicPartition

            self._consumer.commit(offsets=[TopicPartition(*key, offset) for key, offset in self._ends.items()])
            self._ends.clear()

    def close(self) -> None:
        """Leaves the group."""
        self._consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        given = {(partition.topic, partition.partition) for partition in partitions}
        if given or not self._cooperates:
            self._unread = given | (self._unread or set() if self._cooperates else set())

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        revoked = {(partition.topic, partition.partition) for partition in partitions}
        left = {(partition.topic, partition.partition) for partition in consumer.assignment()} - revoked
        self._unread = (self._unread or set()) & left if left else None
        self._ends = {key: offset for key, offset in self._ends.items() if key in left}

    def _belongs(self, message: Message) -> bool:
        from confluent_kafka import KafkaError

        error, topic, partition, offset = message.error(), message.topic(), message.partition(), message.offset()
        if error is None:
            return True
        if error.code() != KafkaError._PARTITION_EOF:
            subject = f"group {self._group_id!r}" if topic is None else f"{topic}-{partition}"
            raise CommandFailed(sentence(error, self._where.bootstrap_server, subject))
        if self._unread is not None and topic is not None and partition is not None and offset is not None:
            self._unread.discard((topic, partition))
            self._ends[topic, partition] = offset
        return False

"""Reading a topic as a member of a group: what `ottla consume --group` does.

The group says which partitions are ours and where they go on. What was printed is committed, and only that, so that
whatever ends the command, the next one goes on with the first message that nobody has seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ottla.cli.connection import Connection, cluster_metadata, sentence, told_plainly
from ottla.cli.errors import CommandFailed, UsageError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

POLL_MESSAGES: Final = 1_000
POLL_SECONDS: Final = 0.2
# How long nothing may come while the group is forming, or its coordinator moves.
SILENT_SECONDS: Final = 60.0


class GroupReader:
    """One member of a group.

    Args:
        where: the cluster.
        topic: what is subscribed to; it has to exist.
        group_id: the group.
        isolation: `read_uncommitted` or `read_committed`.
        from_the_end: where a group begins that has committed nothing: at the end, or at the beginning.
        follow: go on at the end of all partitions that are ours.
    """

    def __init__(self, where: Connection, topic: str, group_id: str, isolation: str, *, from_the_end: bool, follow: bool) -> None:
        from confluent_kafka import Consumer, KafkaException

        cluster_metadata(where.admin(), where.bootstrap_server, topic)
        self._where = where
        self._topic = topic
        self._follow = follow
        self._unread: set[int] | None = None  # partitions of ours that have not come to their end; None before we have any
        try:
            self._consumer: Consumer = Consumer(
                where.client_configuration(
                    **{
                        "group.id": group_id,
                        "enable.auto.commit": False,
                        "enable.partition.eof": True,
                        "isolation.level": isolation,
                        "auto.offset.reset": "latest" if from_the_end else "earliest",
                        "fetch.wait.max.ms": 100,
                        "fetch.queue.backoff.ms": 5,
                    }
                )
            )
        except KafkaException as error:
            raise UsageError(f"the client refuses its configuration: {error.args[0].str()}") from None
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)

    def batches(self) -> Iterator[list[Message]]:
        """Messages as they come, until every partition of ours has reached its end; for ever when following."""
        silent_polls = 0
        while self._follow or self._unread is None or self._unread:
            first = self._consumer.poll(POLL_SECONDS)
            polled = [] if first is None else [first, *self._consumer.consume(POLL_MESSAGES, 0)]
            messages = [each for each in polled if self._belongs(each)]
            if messages:
                yield messages
            silent_polls = 0 if polled else silent_polls + 1
            if silent_polls * POLL_SECONDS > SILENT_SECONDS and not self._follow:
                raise CommandFailed(f"nothing came for {SILENT_SECONDS:.0f} s: the group has given this member no partition")

    def printed(self, messages: Sequence[Message]) -> None:
        """Commits what was printed."""
        from confluent_kafka import TopicPartition

        following: dict[int, int] = {}
        for each in messages:
            partition, offset = each.partition(), each.offset()
            assert partition is not None and offset is not None
            following[partition] = offset + 1
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in following.items()]
        with told_plainly(self._where.bootstrap_server):
            self._consumer.commit(offsets=offsets, asynchronous=False)

    def close(self) -> None:
        """Leaves the group."""
        self._consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._unread = {each.partition for each in partitions}

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._unread = None

    def _belongs(self, message: Message) -> bool:
        from confluent_kafka import KafkaError

        error, partition = message.error(), message.partition()
        if error is None:
            return True
        if error.code() != KafkaError._PARTITION_EOF:
            raise CommandFailed(sentence(error, self._where.bootstrap_server, f"{self._topic}-{partition}"))
        if self._unread is not None and partition is not None:
            self._unread.discard(partition)
        return False

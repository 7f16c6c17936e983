"""One topic that is made, written to, cut by DeleteRecords, read and deleted, again and again under its name; a process of its own.

    python -m tests.chaos.recreating JSON      # the fields of `Recreating`; at SIGTERM it reads what there is and ends

Incarnations are told apart by the topic's id, so that an answer that was lost makes none of two. A topic is only deleted when
nothing is on its way to it, or what a producer sends again would be written to the next one, as it would with Kafka.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.chaos.incarnations import Incarnation, PartitionLife, save

TOPIC: Final = "recreated"
PARTITIONS: Final = 2
_REQUEST_SECONDS: Final = 8.0
_LIFE_SECONDS: Final = (2.0, 20.0)
_MESSAGES_PER_SECOND: Final = 300
_MESSAGE_TIMEOUT_MS: Final = 60_000
_READ_SECONDS: Final = 60.0
_LAST_READ_SECONDS: Final = 100.0
_RETRY_SECONDS: Final = 0.3
_PADDING: Final = b"." * 200
_NO_ANSWER: Final = (KafkaException, TimeoutError)


@dataclass(frozen=True, slots=True)
class Recreating:
    """What the process is told."""

    bootstrap_servers: str
    replication_factor: int
    min_insync_replicas: int
    seed: str
    began_at: float
    history_file: str


class Worker:
    """The process."""

    def __init__(self, told: Recreating) -> None:
        self._told = told
        self._random = Random(told.seed)
        self._lives: list[Incarnation] = []
        self._errors: Counter[str] = Counter()
        self._topic_id = ""
        self._is_stopped = False

    def run(self) -> int:
        """Makes and deletes until SIGTERM; 1 when the last incarnation could not be read."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_is_stopped", True))
        was_read = True
        while not self._is_stopped:
            if not self._until(self._made):
                break
            life = Incarnation(len(self._lives), self._now_ms(), [PartitionLife() for _ in range(PARTITIONS)])
            self._lives.append(life)
            self._write(life)
            if self._is_stopped:
                was_read = self._read(life, _LAST_READ_SECONDS)
            elif self._random.random() < 0.8:
                self._read(life, _READ_SECONDS)
            self._report()
            self._until(self._deleted)
        save(Path(self._told.history_file), self._lives)
        self._report()
        return 0 if was_read else 1

    def _now_ms(self) -> int:
        return max(0, int((time.monotonic() - self._told.began_at) * 1000))

    def _until(self, attempt: Callable[[], bool]) -> bool:
        """Tries until it is done, or the process is to end; says whether it was done."""
        while not self._is_stopped:
            try:
                if attempt():
                    return True
            except _NO_ANSWER as error:
                self._note(error)
            time.sleep(_RETRY_SECONDS)
        return False

    # The topic. An admin client that has seen an older leader or controller is of no use for minutes: each call makes its own.

    def _made(self) -> bool:
        admin = self._admin()
        config = {"min.insync.replicas": str(self._told.min_insync_replicas)}
        topic = NewTopic(TOPIC, PARTITIONS, self._told.replication_factor, config=config)
        with suppress(*_NO_ANSWER):  # it may have been made by a call whose answer was lost
            admin.create_topics([topic], operation_timeout=5, request_timeout=_REQUEST_SECONDS)[TOPIC].result(2 * _REQUEST_SECONDS)
        topic_id = self._known_id(admin)
        if topic_id in ("", self._topic_id):
            return False
        self._topic_id = topic_id
        return True

    def _deleted(self) -> bool:
        admin = self._admin()
        try:
            admin.delete_topics([TOPIC], operation_timeout=5, request_timeout=_REQUEST_SECONDS)[TOPIC].result(2 * _REQUEST_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        return True

    def _known_id(self, admin: AdminClient) -> str:
        described = admin.describe_topics(TopicCollection([TOPIC]), request_timeout=_REQUEST_SECONDS)[TOPIC]
        try:
            return str(described.result(2 * _REQUEST_SECONDS).topic_id)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return ""

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._told.bootstrap_servers, "log_level": 0})

    # What becomes of one incarnation.

    def _write(self, life: Incarnation) -> None:
        """Writes for a while, and deletes some of it."""
        producer = Producer(self._producer_configuration(life))
        ends_at = time.monotonic() + self._random.uniform(*_LIFE_SECONDS)
        while not self._is_stopped and time.monotonic() < ends_at:
            index = self._random.randrange(PARTITIONS)
            for _ in range(self._random.randint(1, 30)):
                with suppress(BufferError, KafkaException):
                    producer.produce(TOPIC, b"%d %d %s" % (life.number, life.partitions[index].sent, _PADDING), partition=index)
                    life.partitions[index].sent += 1
            self._hear(producer.poll, 15 / _MESSAGES_PER_SECOND)
            # Of every second one nothing: then any log start but 0 is one that the former topic has left.
            if life.number % 2 == 0 and self._random.random() < 0.03:
                self._delete_records(index, life.partitions[index])
        self._hear(producer.flush, _MESSAGE_TIMEOUT_MS / 1000 + 10)

    def _delete_records(self, index: int, partition: PartitionLife) -> None:
        if not partition.acknowledged:
            return
        written = max(partition.acknowledged.values())
        # Mostly of the first ones: most of what the next topic has lies behind that, and would be lost if it began there.
        offset = self._random.randint(1, max(1, written if self._random.random() < 0.1 else written // 4))
        partition.asked = max(partition.asked, offset)
        key, admin = TopicPartition(TOPIC, index, offset), self._admin()  # to be kept: what it has asked for ends with it
        try:
            deleted = admin.delete_records([key], operation_timeout=5, request_timeout=_REQUEST_SECONDS)[key]
            partition.answered = max(partition.answered, deleted.result(2 * _REQUEST_SECONDS).low_watermark)
        except _NO_ANSWER as error:
            # It may be done later, and by then to the next topic: a request names a topic, not its id.
            partition.unanswered = max(partition.unanswered, offset)
            self._note(error)

    def _read(self, life: Incarnation, seconds: float) -> bool:
        """Reads each partition from its first offset to its end; says whether that could be done.

        A leader that was replaced while it was cut off from ZooKeeper does not know it, and answers with an end of then, as Kafka's
        would. So what lacks something is read again, as long as there is time for it.
        """
        deadline = time.monotonic() + seconds
        for index, partition in enumerate(life.partitions):
            last = max(partition.acknowledged.values(), default=-1)
            while time.monotonic() < deadline:
                try:
                    partition.begin, partition.read = self._all_of(index, deadline)
                    if partition.begin > last or (partition.read and partition.read[-1][0] >= last):
                        break
                except _NO_ANSWER as error:
                    self._note(error)
                time.sleep(_RETRY_SECONDS)
            if partition.begin is None:
                return False
        return True

    def _all_of(self, index: int, deadline: float) -> tuple[int, list[tuple[int, int, int]]]:
        consumer = Consumer(self._consumer_configuration())
        try:
            begin, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, index), _REQUEST_SECONDS)
            read: list[tuple[int, int, int]] = []
            consumer.assign([TopicPartition(TOPIC, index, begin)])
            while begin < end and (not read or read[-1][0] < end - 1):
                if time.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                for message in consumer.consume(1_000, 0.2):
                    error, offset = message.error(), message.offset()
                    if error is not None:
                        raise KafkaException(error)
                    assert offset is not None
                    incarnation, number, _ = (message.value() or b"-1 -1 .").split(b" ")
                    read.append((offset, int(incarnation), int(number)))
            return begin, read
        finally:
            consumer.close()

    def _hear(self, listen: Callable[[float], int], seconds: float) -> None:
        try:
            listen(seconds)
        except KafkaException as error:
            self._note(error)

    def _producer_configuration(self, life: Incarnation) -> dict[str, Any]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None:
                self._count(error)
            elif offset is not None and offset >= 0:
                number = int((message.value() or b"").split(b" ")[1])
                life.partitions[message.partition() or 0].acknowledged[number] = offset

        return {
            "bootstrap.servers": self._told.bootstrap_servers,
            "client.id": "recreating",
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": _MESSAGE_TIMEOUT_MS,
            "request.timeout.ms": 4_000,
            "socket.timeout.ms": 5_000,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 2_000,
            "topic.metadata.propagation.max.ms": _MESSAGE_TIMEOUT_MS,  # a topic that is just made is not known everywhere
            "on_delivery": delivered,
            "error_cb": self._count,
            "log_level": 0,
        }

    def _consumer_configuration(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._told.bootstrap_servers,
            "client.rack": self._random.choice(("", "rack-1", "rack-2", "rack-3")),
            "group.id": "recreating",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "fetch.wait.max.ms": 100,
            "socket.timeout.ms": 5_000,
            "log_level": 0,
        }

    def _note(self, error: KafkaException | TimeoutError) -> None:
        if isinstance(error, KafkaException):
            self._count(error.args[0])
        else:
            self._errors[type(error).__name__] += 1

    def _count(self, error: KafkaError) -> None:
        self._errors[error.name()] += 1

    def _report(self) -> None:
        acknowledged = sum(len(partition.acknowledged) for life in self._lives for partition in life.partitions)
        report = {"incarnations": len(self._lives), "acknowledged": acknowledged, "errors": self._errors}
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(Worker(Recreating(**json.loads(sys.argv[1]))).run())

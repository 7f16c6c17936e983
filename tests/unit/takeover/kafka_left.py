"""What Kafka 3.9.1 left behind, unpacked for a test: log directories, znodes, and what a consumer had read of it.

Source: tests/fixtures/kafka-3.9.1/README.md.
"""

from __future__ import annotations

import asyncio
import io
import json
import lzma
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from ottla.clock import SystemClock
from ottla.config.broker import BrokerSettings
from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.coordination.interface import Coordination, Create
from ottla.model import TopicPartition
from ottla.testing.cluster import EmbeddedCluster

FIXTURES: Final = Path(__file__).parent.parent.parent / "fixtures" / "kafka-3.9.1"
CLEAN, KILLED = "clean", "killed"
BROKERS: Final = (1, 2, 3)
CLUSTER_ID: Final = "Ns1g21eKQ8OHfovMSnVN8w"
# A registration as Kafka 3.9.1 wrote it.
KAFKAS_BROKER: Final = (
    b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://kafka.example:36302"],'
    b'"rack":"rack-2","jmx_port":-1,"port":36302,"host":"kafka.example","version":5,"timestamp":"1795349542242"}'
)
# What was being written while Kafka was killed: what of it is there beyond the acknowledged is up to the moment.
WRITTEN_WHILE_KILLED: Final = "reassigned"
# The quota of the fixtures is not enforced, and what else a takeover of them needs.
ACCEPTED: Final = {"takeover.accept": "quotas"}


@dataclass(frozen=True, slots=True)
class KafkaLeft:
    """One of the two clusters in a directory, laid out as `EmbeddedCluster` has it: `broker-1` to `broker-3`."""

    which: str
    directory: Path

    @classmethod
    def unpack(cls, which: str, into: Path, *parts: str) -> KafkaLeft:
        """Unpacks it below a directory, or some parts of it."""
        with tarfile.open(fileobj=io.BytesIO(_archive(which))) as archive:
            wanted = [member for member in archive.getmembers() if not parts or member.name.split("/")[0] in parts]
            archive.extractall(into, wanted, filter="data")
        return cls(which, into)

    @property
    def znodes(self) -> dict[str, bytes]:
        """The data of every znode by its path below the chroot."""
        return {path: each["data"].encode() for path, each in json.loads((self.directory / "znodes.json").read_bytes()).items()}

    @property
    def expected(self) -> dict[str, Any]:
        """What a consumer read from Kafka."""
        return _expected(self.directory / f"kafka-3.9.1-{self.which}.json")

    def log_directory(self, broker_id: int) -> Path:
        return self.directory / f"broker-{broker_id}"

    def acknowledged(self) -> dict[TopicPartition, int]:
        """The last offset of each partition that has records which Kafka had acknowledged."""
        last: dict[TopicPartition, int] = {}
        for name, value in self.expected.items():
            partition_name = name.removeprefix("acknowledged-").removesuffix("-read_uncommitted")
            if name == partition_name or (name.endswith("uncommitted") and f"acknowledged-{partition_name}" in self.expected):
                continue
            topic, _, partition = partition_name.rpartition("-")
            last[TopicPartition(topic, int(partition))] = value[-1][0] if isinstance(value, list) else value["rows"][-1][0]
        return last

    def settings(self, broker_id: int = 1, **properties: str) -> BrokerSettings:
        """A broker's settings on one of its directories; `_` stands for a dot in the names."""
        return BrokerSettings.from_properties(
            {
                "broker.id": str(broker_id),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(self.log_directory(broker_id)),
                **{name.replace("_", "."): text for name, text in properties.items()},
            }
        )

    def put_into_twin(self, changes: Mapping[str, bytes | None] = {}) -> None:
        """Makes the znodes in the twin that `cluster` uses.

        Args:
            changes: data of znodes that are to be others, or None for one that is to be missing.
        """

        async def put() -> None:
            twin = EmbeddedZooKeeper(self.directory / "coordination", SystemClock())
            session = await twin.session()
            await put_znodes(session, self.znodes, changes)
            await session.close()
            await twin.close()

        asyncio.run(put())

    def check(self, bootstrap_servers: str, *, only: str = "") -> None:
        """Compares every partition at both isolation levels, and every group, with what was read from Kafka.

        Args:
            only: what the names of topics begin with; then groups are not looked at.
        """
        for name, value in self.expected.items():
            if name.startswith("group-") and not only:
                consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap_servers, "group.id": name.removeprefix("group-")})
                wanted = [confluent_kafka.TopicPartition(topic, partition) for topic, partition, _ in value]
                found = [[partition.topic, partition.partition, partition.offset] for partition in _committed(consumer, wanted)]
                consumer.close()
                assert found == value, name
            elif name.startswith("acknowledged-"):
                topic, _, partition = name.removeprefix("acknowledged-").rpartition("-")
                rows = read_all(bootstrap_servers, topic, int(partition), "read_uncommitted")["rows"]
                assert {tuple(row) for row in value} <= {(offset, text) for offset, _, _, text, _ in rows}, name
            elif isinstance(value, dict) and name.startswith(only) and not (self.which == KILLED and name.startswith(WRITTEN_WHILE_KILLED)):
                partition_name, _, isolation_level = name.rpartition("-")
                topic, _, partition = partition_name.rpartition("-")
                assert read_all(bootstrap_servers, topic, int(partition), isolation_level) == value, name

    def cluster(self, **properties: str) -> EmbeddedCluster:
        """Three brokers of Ottla in its place, not started."""
        settings = {**ACCEPTED, "min.insync.replicas": "2", "auto.create.topics.enable": "false"}
        # The killed cluster left a transaction open whose time is over: it would be aborted 10 s after the start, and so while it is read.
        settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"] = "3600000"
        settings |= {name.replace("_", "."): text for name, text in properties.items()}
        return EmbeddedCluster(brokers=3, settings=settings, data_directory=self.directory)


def _committed(consumer: confluent_kafka.Consumer, wanted: list[confluent_kafka.TopicPartition]) -> list[confluent_kafka.TopicPartition]:
    """Preferred leaders are elected soon after a start, and librdkafka says NOT_COORDINATOR to its caller."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return consumer.committed(wanted, timeout=120)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError.NOT_COORDINATOR or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@cache
def _archive(which: str) -> bytes:
    return lzma.decompress((FIXTURES / f"kafka-3.9.1-{which}.tar.xz").read_bytes())


@cache
def _expected(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


async def put_znodes(session: Coordination, znodes: Mapping[str, bytes], changes: Mapping[str, bytes | None] = {}) -> None:
    """Makes the znodes in a store, parents first."""
    wanted: dict[str, bytes | None] = {**znodes, **changes}
    for path in sorted(changes):  # whose parents Kafka may not have had
        while (path := path.rpartition("/")[0]) and path not in wanted:
            wanted[path] = b""
    paths = [path for path in sorted(wanted) if wanted[path] is not None and path != "/"]
    await session.transaction([Create(path, wanted[path] or b"") for path in paths])


def _text(data: str | bytes | None) -> str | None:
    return data.decode() if isinstance(data, bytes) else data


def _watermarks(consumer: confluent_kafka.Consumer, partition: confluent_kafka.TopicPartition) -> tuple[int, int]:
    """As librdkafka asks for them once, a leader that has moved since is asked for again."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=120)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() >= deadline:
                raise
        time.sleep(0.1)


def read_all(bootstrap_servers: str, topic: str, partition: int, isolation_level: str) -> dict[str, Any]:
    """What a consumer finds, in the form of the fixture: the log start, the end, and every record."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": isolation_level,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        rows: list[list[Any]] = []
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
        while True:
            message = consumer.poll(120)
            assert message is not None, f"{topic}-{partition}: nothing came for 120 s"
            error = message.error()
            if error is not None:
                if error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    break
                if error.code() in (confluent_kafka.KafkaError._ALL_BROKERS_DOWN, confluent_kafka.KafkaError._TRANSPORT):
                    continue
                raise AssertionError(error)
            key = _text(message.key()) or ""  # a null key is "" in the fixture
            pairs: Any = message.headers() or []
            headers = [[name, _text(each)] for name, each in pairs]
            rows.append([message.offset(), message.timestamp()[1], key, _text(message.value()), headers])
        low, high = _watermarks(consumer, confluent_kafka.TopicPartition(topic, partition))
        return {"log_start": low, "end": high, "rows": rows}
    finally:
        consumer.close()

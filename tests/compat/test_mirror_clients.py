"""A link as clients and clusters meet it: groups of other clients that move over it, and a source that asks for certificates."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest
from tests.unit.mirror_maker.mirrors import SECONDS, until
from tests.unit.mirror_maker.test_lying_sources import started

from ottla.config.mirror import MirrorSettings
from ottla.mirror_maker.link import Link
from ottla.model import TopicPartition
from ottla.testing import EmbeddedCluster
from ottla.testing.certificates import Authority
from ottla.wire.cluster import Cluster
from ottla.wire.groups import CommittedOffset, committed_offsets

from .quiet import quiet

CLICKS, COPIED = TopicPartition("clicks", 0), TopicPartition("A.clicks", 0)
VALUES = [b"%d" % number for number in range(40)]
GROUP = "readers"

# From where its group stands: so many values of a topic, each committed by itself.
Read = Callable[[str, str, int], list[bytes]]


def publish(address: str) -> None:
    """In batches of eight."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 1000, "batch.num.messages": 8, **quiet()})
    for value in VALUES:
        producer.produce("clicks", value, partition=0)
    assert producer.flush(60) == 0


def by_kafka_python(address: str, topic: str, count: int) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        consumer_timeout_ms=60_000,
        max_poll_records=1,
    )
    found: list[bytes] = []
    try:
        while len(found) < count:
            found.append(next(consumer).value)
            consumer.commit()
    finally:
        consumer.close(autocommit=False)
    return found


def by_aiokafka(address: str, topic: str, count: int) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        await consumer.start()
        found: list[bytes] = []
        try:
            async with asyncio.timeout(SECONDS):
                while len(found) < count:
                    found.append((await consumer.getone()).value)
                    await consumer.commit()
        finally:
            await consumer.stop()
        return found

    return asyncio.run(read())


def settings(source: dict[str, str], target: str) -> MirrorSettings:
    return MirrorSettings.from_properties(
        {
            "clusters": "A,B",
            **{f"A.{name}": value for name, value in source.items()},
            "B.bootstrap.servers": target,
            "A->B.enabled": "true",
            "slots": "1",
            "replication.factor": "1",
            "refresh.topics.interval.seconds": "1",
            "emit.checkpoints.interval.seconds": "1",
        }
    )


async def copied(link: Link) -> None:
    await until(lambda: CLICKS in link.maps and link.maps[CLICKS].next_offset == len(VALUES))


@pytest.mark.parametrize("read", [by_kafka_python, by_aiokafka])
def test_a_group_of_another_client_that_moves_reads_each_message_once(read: Read) -> None:
    """It stops in the middle of a batch here, and goes on there. By confluent-kafka: tests/unit/mirror_maker/test_server.py."""
    begun = 13

    async def main(source: str, target: str) -> None:
        async with started(settings({"bootstrap.servers": source}, target)) as one, Cluster(target) as there:
            await copied(one.links["A-B"])
            assert await asyncio.to_thread(read, source, "clicks", begun) == VALUES[:begun]
            expected = one.links["A-B"].maps[CLICKS].translate(begun)
            async with asyncio.timeout(SECONDS):
                while (await committed_offsets(there, GROUP)).get(COPIED, CommittedOffset(-1)).offset != expected:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert await asyncio.to_thread(read, target, "A.clicks", len(VALUES) - begun) == VALUES[begun:]

    with EmbeddedCluster(topics={"clicks": 1}) as a, EmbeddedCluster() as b:
        publish(a.bootstrap_servers)
        asyncio.run(main(a.bootstrap_servers, b.bootstrap_servers))


def test_a_source_that_asks_for_certificates_is_copied_over_tls(tmp_path: Path) -> None:
    """As `A.security.protocol` and `A.ssl.…` of `mm2.properties` say it. With a strange authority the link says why it waits."""
    authority, stranger = Authority("of the source"), Authority("a stranger")
    for name, content in (
        ("authority", authority.pem),
        ("broker", authority.issue("localhost")),
        ("worker", authority.issue("the mirror")),
        ("stranger", stranger.pem),
    ):
        (tmp_path / f"{name}.pem").write_bytes(content)

    def stores(keystore: str, truststore: str) -> dict[str, str]:
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(tmp_path / f"{keystore}.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(tmp_path / f"{truststore}.pem"),
        }

    async def main(source: str, target: str) -> None:
        given = {"bootstrap.servers": source, "security.protocol": "SSL"}
        async with started(settings({**given, **stores("worker", "stranger")}, target)) as one:
            await until(lambda: "CERTIFICATE_VERIFY_FAILED" in one.links["A-B"].failure.upper().replace(" ", "_"))
        async with started(settings({**given, **stores("worker", "authority")}, target)) as one:
            await copied(one.links["A-B"])

    listening = {"listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0", "ssl.client.auth": "required"}
    with EmbeddedCluster(settings={**listening, **stores("broker", "authority")}, topics={"clicks": 1}) as a, EmbeddedCluster() as b:
        publish(a.bootstrap_servers)
        asyncio.run(main(a.address("SSL"), b.bootstrap_servers))


def test_dev_with_a_mirror_maker_copies_another_cluster_and_says_where_it_is_asked() -> None:
    command = [sys.executable, "-m", "ottla.cli"]
    alone = subprocess.run([*command, "dev", "--ephemeral", "--with", "mirror-maker"], capture_output=True, text=True, check=False)
    assert alone.returncode == 2 and "belong together" in alone.stderr
    with EmbeddedCluster(topics={"clicks": 1}) as source:
        publish(source.bootstrap_servers)
        arguments = ["dev", "--ephemeral", "--port", "0", "--with", "mirror-maker", "--mirror-from", source.bootstrap_servers]
        process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            told: dict[str, str] = {}
            while "mirror" not in told:
                line = process.stdout.readline()
                assert line, process.stderr and process.stderr.read()
                label, *_, last = line.split()
                told[label] = last if label == "mirror" else line
            address = told["Ottla"].split()[4]
            settings = {
                "bootstrap.servers": address,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "metadata.max.age.ms": 1000,
                **quiet(),
            }
            reader = confluent_kafka.Consumer(settings)
            reader.subscribe(["source.clicks"])
            found: list[bytes | None] = []
            for _ in range(int(SECONDS)):
                found += [message.value() for message in reader.consume(len(VALUES), timeout=1.0) if message.error() is None]
                if len(found) == len(VALUES):
                    break
            reader.close()
            assert found == VALUES
            asked = subprocess.run([*command, "mirror", "list", "--rpc", told["mirror"]], capture_output=True, text=True, check=True)
            assert "source->dev" in asked.stdout
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait(20)

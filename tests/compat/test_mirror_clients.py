"""A link as clients and clusters meet it: groups of other clients that move over it, and a source that asks for certificates."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import confluent_kafka
import pytest
from tests.compat.test_groups import Reader, read_with_aiokafka, read_with_kafka_python
from tests.loops import until
from tests.unit.mirror_maker.mirrors import SECONDS
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
NUMBERS = list(range(40))
GROUP = "readers"


def publish(address: str) -> None:
    """In batches of eight."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 1000, "batch.num.messages": 8, **quiet()})
    for number in NUMBERS:
        producer.produce("clicks", str(number), partition=0)
    assert producer.flush(60) == 0


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
    await until(lambda: CLICKS in link.maps and link.maps[CLICKS].next_offset == len(NUMBERS))


@pytest.mark.parametrize("read", [read_with_kafka_python, read_with_aiokafka])
def test_a_group_of_another_client_that_moves_reads_each_message_once(read: Reader) -> None:
    """It stops in the middle of a batch here, and goes on there. By confluent-kafka: tests/unit/mirror_maker/test_server.py."""
    begun = 13

    async def main(source: str, target: str) -> None:
        async with started(settings({"bootstrap.servers": source}, target)) as one, Cluster(target) as there:
            await copied(one.links["A-B"])
            assert await asyncio.to_thread(read, source, "clicks", GROUP, begun) == NUMBERS[:begun]
            expected = one.links["A-B"].maps[CLICKS].translate(begun)
            async with asyncio.timeout(SECONDS):
                while (await committed_offsets(there, GROUP)).get(COPIED, CommittedOffset(-1)).offset != expected:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert await asyncio.to_thread(read, target, "A.clicks", GROUP, len(NUMBERS) - begun) == NUMBERS[begun:]

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
            found: list[int] = []
            for _ in range(int(SECONDS)):
                found += [int(message.value() or 0) for message in reader.consume(len(NUMBERS), timeout=1.0) if message.error() is None]
                if len(found) == len(NUMBERS):
                    break
            reader.close()
            assert found == NUMBERS
            asked = subprocess.run([*command, "mirror", "list", "--rpc", told["mirror"]], capture_output=True, text=True, check=True)
            assert "source->dev" in asked.stdout
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        finally:
            process.kill()
            process.wait(120)

"""kcat (Debian's, librdkafka 2.0.2): lists, produces and consumes.

An old librdkafka is a check of its own: it turns compression off when the list of versions is not the one it knows,
and cannot connect when ApiVersions has more tagged fields than it expects (reference: KAFKA-18659).
"""

from __future__ import annotations

import json
import subprocess

import pytest

from ottla.testing import EmbeddedCluster

from .clients import CLIENTS, CODECS, Message


def run(command: list[str], given: bytes = b"") -> bytes:
    done = subprocess.run(command, input=given, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_it_lists_brokers_and_topics(kcat: str, ottla_cluster: EmbeddedCluster, ottla_topic: str) -> None:
    listed = json.loads(run([kcat, "-b", ottla_cluster.bootstrap_servers, "-L", "-J"]))
    assert [broker["name"] for broker in listed["brokers"]] == [ottla_cluster.bootstrap_servers]
    topics = {topic["topic"]: topic for topic in listed["topics"]}
    assert topics[ottla_topic]["partitions"] == [
        {"partition": 0, "leader": listed["brokers"][0]["id"], "replicas": [{"id": 1}], "isrs": [{"id": 1}]}
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_what_it_produces_everyone_reads(kcat: str, codec: str, ottla_cluster: EmbeddedCluster, ottla_topic: str) -> None:
    address = ottla_cluster.bootstrap_servers
    lines = b"".join(b"key %d:the same text again and again\n" % number for number in range(200))
    run([kcat, "-b", address, "-P", "-t", ottla_topic, "-p", "0", "-K", ":", "-z", codec, "-H", "from=kcat"], lines)
    for reader in CLIENTS:
        read = reader.read(address, ottla_topic, 200)
        assert [(message.key, message.value, message.headers) for message in read] == [
            (b"key %d" % number, b"the same text again and again", (("from", b"kcat"),)) for number in range(200)
        ], reader.name


@pytest.mark.parametrize("codec", CODECS)
def test_it_compresses(kcat: str, codec: str, ottla_cluster: EmbeddedCluster, ottla_topic: str) -> None:
    """What lies on disk has the codec that was asked for: nothing turned it off in silence."""
    address = ottla_cluster.bootstrap_servers
    # A first message that left alone would be a batch which does not get smaller, and that librdkafka sends as it is.
    waiting = ["-X", "linger.ms=1000"]
    run([kcat, "-b", address, "-P", "-t", ottla_topic, "-p", "0", "-z", codec, *waiting], b"again and again\n" * 500)
    (segment,) = (ottla_cluster.data_directory / "log" / f"{ottla_topic}-0").glob("*.log")
    attributes = segment.read_bytes()[22]
    assert attributes & 0x07 == CODECS.index(codec)


def test_it_consumes_what_others_published(kcat: str, ottla_cluster: EmbeddedCluster, ottla_topic: str) -> None:
    address = ottla_cluster.bootstrap_servers
    messages = [Message(b"k", b"v", (("h", b"1"),), 1372939200000), Message(b"k", None, (), 1372939200001)]
    for client in CLIENTS:
        client.publish(address, ottla_topic, "lz4", messages)
    text = run([kcat, "-b", address, "-C", "-t", ottla_topic, "-p", "0", "-o", "beginning", "-e", "-q", "-Z", "-f", r"%o %T %k %s %h\n"])
    expected = []
    for number in range(len(CLIENTS)):
        expected += [f"{2 * number} 1372939200000 k v h=1", f"{2 * number + 1} 1372939200001 k NULL "]
    assert text.decode().splitlines() == expected


def test_it_starts_at_a_time_and_at_the_tail(kcat: str, ottla_cluster: EmbeddedCluster, ottla_topic: str) -> None:
    address = ottla_cluster.bootstrap_servers
    CLIENTS[0].publish(address, ottla_topic, "none", [Message(None, b"%d" % number, (), 1000 + number) for number in range(10)])
    reading = [kcat, "-b", address, "-C", "-t", ottla_topic, "-p", "0", "-e", "-q"]
    assert run([*reading, "-o", "s@1007"]).split() == [b"7", b"8", b"9"]
    assert run([*reading, "-o", "-2"]).split() == [b"8", b"9"]

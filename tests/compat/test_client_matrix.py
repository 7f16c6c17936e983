"""Every client publishes with every codec, and every client reads what every client published.

Issue 3: 'confluent-kafka, kafka-python and aiokafka produce with every codec, headers, null keys and values, and read
each other's messages'.
"""

from __future__ import annotations

import pytest

from ottla.testing import EmbeddedCluster

from .clients import CLIENTS, CODECS, Client, Message

NOON = 1372939200000
LARGE = bytes(range(256)) * 1200  # 300 KB, larger than any client's first buffer

NOTHING = Message(None, None, (), NOON + 3)
MESSAGES = [
    Message(b"key", b"value", (), NOON),
    Message(None, b"no key", (), NOON + 1),
    Message(b"a tombstone", None, (), NOON + 2),
    Message(b"", b"", (), NOON + 4),
    Message(b"headers", b"value", (("one", b"1"), ("two", b""), ("one", b"again"), ("grüße", b"\x00\xff")), NOON + 5),
    Message(b"\x00\xff", b"\xff\x00\xfe", (), NOON + 6),
    Message("ключ".encode(), "значение".encode(), (), NOON - 1000),  # time may go back
    Message(b"large", LARGE, (), NOON + 7),
    *(Message(b"many %d" % number, b"the same text again and again %d" % (number % 7), (), NOON + 10 + number) for number in range(500)),
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("publisher", CLIENTS, ids=lambda client: client.name)
def test_what_one_client_publishes_every_client_reads(
    publisher: Client, codec: str, ottla_cluster: EmbeddedCluster, ottla_topic: str
) -> None:
    address = ottla_cluster.bootstrap_servers
    messages = [*MESSAGES, NOTHING] if publisher.publishes_nothing else MESSAGES
    offsets = publisher.publish(address, ottla_topic, codec, messages)
    assert offsets == list(range(len(messages)))
    for reader in CLIENTS:
        assert reader.read(address, ottla_topic, len(messages)) == messages, f"{reader.name} reads what {publisher.name} published"


def test_a_null_header_value_goes_through(ottla_cluster: EmbeddedCluster, ottla_topic: str) -> None:
    """Apart from the others: kafka-python takes no null here, and reads one."""
    address = ottla_cluster.bootstrap_servers
    message = Message(b"k", b"v", (("null", None),), NOON)
    CLIENTS[0].publish(address, ottla_topic, "none", [message])
    for reader in CLIENTS:
        assert reader.read(address, ottla_topic, 1) == [message], reader.name


def test_all_clients_and_codecs_share_one_partition(ottla_cluster: EmbeddedCluster, ottla_topic: str) -> None:
    """Each batch has its own codec; a log may have them all, one after the other."""
    address = ottla_cluster.bootstrap_servers
    expected: list[Message] = []
    for client in CLIENTS:
        for codec in CODECS:
            batch = [message._replace(key=f"{client.name} {codec}".encode()) for message in MESSAGES[:12]]
            assert client.publish(address, ottla_topic, codec, batch)[0] == len(expected)
            expected += batch
    for reader in CLIENTS:
        assert reader.read(address, ottla_topic, len(expected)) == expected, reader.name

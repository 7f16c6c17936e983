"""What is corrupt in an internal topic, or in a compacted one, costs nobody else anything, and no start is given up for it.

The files are damaged while the broker is stopped cleanly, so no recovery looks at them: as a disk does it.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.waiting import until

from ottla.record.batch import batches
from ottla.testing import EmbeddedCluster

from .quiet import quiet
from .reading import read_to_the_end

SETTINGS = {"transaction.state.log.num.partitions": "1", "log.cleaner.backoff.ms": "50"}
LENGTH = 8  # where a batch says how long it is


def transactional(cluster: EmbeddedCluster, transactional_id: str) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 300_000,
            "reconnect.backoff.max.ms": 200,
            **quiet(),
        }
    )
    producer.init_transactions(120)
    return producer


def places_of(path: Path, text: bytes) -> list[tuple[int, int]]:
    """Where each batch with these bytes in it begins, and where they are."""
    content = path.read_bytes()
    found = [(at, content.find(text, at, at + header.size)) for at, header in batches(content)]
    return [row for row in found if row[1] >= 0]


@pytest.mark.parametrize("what", ["a record", "a length"])
def test_a_damaged_record_of_transactions_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str) -> None:
    """With one bit that has turned, its id begins again. With a length that cannot be, all behind it in its segment is skipped."""
    small = {**SETTINGS, "transaction.state.log.segment.bytes": "400"} if what == "a length" else SETTINGS
    cluster = EmbeddedCluster(settings=small, data_directory=tmp_path)
    log = tmp_path / "log" / "__transaction_state-0"
    with cluster:
        topic = cluster.create_topic("events")
        damaged = transactional(cluster, "damaged")
        for _ in range(3):
            damaged.begin_transaction()
            damaged.produce(topic, b"before")
            damaged.commit_transaction(120)
        others = transactional(cluster, "others")
        others.begin_transaction()
        others.produce(topic, b"open")
        others.flush(120)
        del damaged
        cluster.stop()
        path = next(path for path in sorted(log.glob("*.log")) if places_of(path, b"damaged"))
        content = bytearray(path.read_bytes())
        if what == "a record":
            # All of them, so that nothing of the id is left.
            for _, place in places_of(path, b"damaged"):
                content[place] ^= 0x01
        else:
            struct.pack_into(">i", content, places_of(path, b"damaged")[0][0] + LENGTH, 1_000_000_000)
        path.write_bytes(content)
        with caplog.at_level(logging.ERROR, "ottla"):
            cluster.start()
            again = transactional(cluster, "damaged")
        assert "skipped" in caplog.text
        again.begin_transaction()
        again.produce(topic, b"again")
        again.commit_transaction(120)
        others.commit_transaction(120)
        found: list[bytes | None] = []

        def all_is_seen() -> bool:
            found[:] = [message.value for message in read_to_the_end(cluster.bootstrap_servers, topic)]
            return len(found) == 5

        until(all_is_seen, "what was open commits, and what is new too")
        assert sorted(found, key=str) == [b"again", b"before", b"before", b"before", b"open"]
        before = caplog.text.count("skipped")
        assert before < 20, "it is told once, and not in a loop"


def test_a_damaged_compacted_log_is_read_as_it_is_and_left_alone_and_the_others_are_cleaned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": "2000",
        "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": "1000000",
    }
    cluster = EmbeddedCluster(settings=SETTINGS, data_directory=tmp_path)
    with cluster:
        for topic in ("damaged", "sound"):
            cluster.create_topic(topic, settings=settings)
            producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "batch.num.messages": 5, **quiet()})
            for number in range(200):
                producer.produce(topic, b"value %d" % number + b"x" * 30, key=b"key %d" % (number % 7))
            assert producer.flush(120) == 0
        cluster.stop()
        path = sorted((tmp_path / "log" / "damaged-0").glob("*.log"))[1]
        content = bytearray(path.read_bytes())
        content[places_of(path, b"value")[0][1]] ^= 0x01
        path.write_bytes(content)
        cluster.start()
        entry = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        with caplog.at_level(logging.ERROR, "ottla"):
            for topic in ("damaged", "sound"):
                resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
                for made in admin.incremental_alter_configs([resource]).values():
                    made.result(90)
            until(lambda: len(read_to_the_end(cluster.bootstrap_servers, "sound")) < 60, "the sound one is cleaned", 240)
            until(lambda: "damaged-0: compaction has stopped until the broker restarts" in caplog.text, "the damaged one is logged", 240)
        assert caplog.text.count("damaged-0: compaction has stopped until the broker restarts") == 1
        assert len(read_to_the_end(cluster.bootstrap_servers, "damaged", offset=150)) == 50

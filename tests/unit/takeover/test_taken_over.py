"""Three brokers of Ottla in the place of three of Kafka 3.9.1, on what these left: every record, offset, group and setting is there.

What is compared is what a consumer read from Kafka itself (tests/fixtures/kafka-3.9.1/README.md).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from tests.unit.takeover.kafka_left import BROKERS, CLEAN, KILLED, KafkaLeft, read_all
from tests.waiting import until

from ottla.record.batch import batches
from ottla.storage.partition_metadata import PARTITION_METADATA, read_topic_id
from ottla.takeover.directories import NOTE


@pytest.mark.parametrize("which", [pytest.param(CLEAN, marks=pytest.mark.long), KILLED])
def test_everything_that_kafka_held_is_there_and_more_can_be_written(tmp_path: Path, which: str) -> None:
    """Issue 20: 'every record, offset, timestamp, header, aborted transaction, log start, group and setting'."""
    left = KafkaLeft.unpack(which, tmp_path)
    left.put_into_twin()
    with left.cluster() as cluster:
        left.check(cluster.bootstrap_servers)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        resources = [ConfigResource(ConfigResource.Type.TOPIC, "plain"), ConfigResource(ConfigResource.Type.BROKER, "1")]
        described = [config.result(120) for config in admin.describe_configs(resources).values()]
        assert described[0]["retention.ms"].value == "86400000"
        assert described[1]["log.cleaner.threads"].value == "2"
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "enable.idempotence": True})
        until(lambda: len(cluster.isr("plain", 0)) == 3)
        delivered: list[int | None] = []
        producer.produce("plain", b"ours", b"key", 0, on_delivery=lambda error, message: delivered.append(message.offset()))
        assert producer.flush(120) == 0
        assert delivered == [1646]
    for broker_id in BROKERS:
        note = json.loads((left.log_directory(broker_id) / NOTE).read_bytes())
        assert (note["accepted"], note["since_controller_epoch"]) == (["quotas"], 4 if which == CLEAN else 5)
    with left.cluster() as cluster:  # and after a start of our own
        left.check(cluster.bootstrap_servers, only="transactions")


@pytest.mark.long
@pytest.mark.parametrize(("which", "is_elected_by_log_ends"), [(CLEAN, False), (KILLED, True)])
def test_what_kafka_closed_in_order_is_not_called_an_unclean_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, which: str, is_elected_by_log_ends: bool
) -> None:
    """Nothing is elected by where logs end, as after an unclean stop: a leader that Kafka named has all."""
    left = KafkaLeft.unpack(which, tmp_path)
    left.put_into_twin()
    with caplog.at_level("INFO"), left.cluster() as cluster:
        left.check(cluster.bootstrap_servers, only="plain")
    assert ("stopped uncleanly" in caplog.text) == is_elected_by_log_ends


@pytest.mark.long
def test_without_one_of_three_brokers_the_others_have_everything(tmp_path: Path) -> None:
    """The broker that is missing is in every ISR of the killed cluster."""
    left = KafkaLeft.unpack(KILLED, tmp_path)
    left.put_into_twin()
    shutil.rmtree(left.log_directory(3))
    with left.cluster() as cluster:
        left.check(cluster.bootstrap_servers, only="plain")
        until(lambda: len(cluster.isr("transactions", 0)) == 3)  # the one whose disk is empty has copied all
        assert sum(path.stat().st_size for path in left.log_directory(3).glob("transactions-0/*.log")) > 0


@pytest.mark.long
def test_torn_tails_and_missing_indexes_are_mended_and_nothing_that_was_acknowledged_is_lost(tmp_path: Path) -> None:
    """A tail of garbage behind the last batch of each log, as a power cut leaves, and not one index of broker 2."""
    left = KafkaLeft.unpack(KILLED, tmp_path)
    left.put_into_twin()
    for path in left.log_directory(1).glob("*/*.log"):
        if path.stat().st_size:
            with path.open("ab") as file:
                file.write(path.read_bytes()[:40])
    for suffix in ("index", "timeindex"):
        for path in left.log_directory(2).glob(f"*/*.{suffix}"):
            path.unlink()
    with left.cluster() as cluster:
        left.check(cluster.bootstrap_servers)


def test_what_lies_behind_a_gap_that_no_cleaner_checkpoint_names_is_there(tmp_path: Path) -> None:
    """Kafka's follower of a compacted log begins a segment behind what its leader has cleaned, and has cleaned nothing itself."""
    left = KafkaLeft.unpack(CLEAN, tmp_path)
    left.put_into_twin()
    for broker_id in BROKERS:
        directory = left.log_directory(broker_id)
        (directory / "cleaner-offset-checkpoint").write_text("0\n1\nplain 0 1\n")
        segment = directory / "compacted-0" / f"{0:020d}.log"
        *_, (position, cleaned) = batches(segment.read_bytes())
        with segment.open("r+b") as file:
            file.truncate(position)
        for suffix in (".index", ".timeindex"):
            segment.with_suffix(suffix).unlink()
    expected = left.expected["compacted-0-read_committed"]["rows"]
    with left.cluster() as cluster:
        rows = read_all(cluster.bootstrap_servers, "compacted", 0, "read_committed")["rows"]
    assert rows == [row for row in expected if not cleaned.base_offset <= row[0] <= cleaned.last_offset]
    assert rows[-1][0] == 301 > cleaned.last_offset


def test_topics_without_an_id_get_one_and_so_do_their_logs(tmp_path: Path) -> None:
    """As in Kafka 2.8's first start on the znodes of 2.7: version 2 of the topic's znode has no id, and logs have no partition.metadata."""
    left = KafkaLeft.unpack(CLEAN, tmp_path)
    path = "/brokers/topics/plain"
    fields = json.loads(left.znodes[path])
    del fields["topic_id"]
    left.put_into_twin({path: json.dumps({**fields, "version": 2}).encode()})
    for metadata in left.directory.glob(f"broker-*/plain-*/{PARTITION_METADATA}"):
        metadata.unlink()
    with left.cluster() as cluster:
        left.check(cluster.bootstrap_servers, only="plain-0")
        until(lambda: len(cluster.isr("plain", 0)) == 3)
    topic_ids = {read_topic_id(left.log_directory(broker_id) / "plain-0") for broker_id in BROKERS}
    assert len(topic_ids) == 1
    assert None not in topic_ids


def test_a_checkpoint_of_version_1_stops_the_start_and_may_be_given_up(tmp_path: Path) -> None:
    """Given up it is as if it were missing: the log start of `rolled` is found again by no one but the leader that has it."""
    left = KafkaLeft.unpack(CLEAN, tmp_path)
    left.put_into_twin()
    checkpoint = left.log_directory(1) / "recovery-point-offset-checkpoint"
    checkpoint.write_bytes(b"1" + checkpoint.read_bytes()[1:])
    with pytest.raises(Exception, match=r"damaged-files: .*version 1 is unknown.*recovery-point-offset-checkpoint"), left.cluster():
        pass
    with left.cluster(takeover_accept="quotas,damaged-files") as cluster:
        left.check(cluster.bootstrap_servers, only="rolled")

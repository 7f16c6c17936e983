"""What is judged of what was found: what stops, what may be given up, what changes, and the way back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from ottla.config.broker import BrokerSettings
from ottla.coordination.znodes import OwnEpochs, TopicAssignment
from ottla.model import BrokerId, BrokerRegistration, Endpoint, PartitionState, TopicPartition
from ottla.takeover import findings
from ottla.takeover.findings import Severity
from ottla.takeover.first_start import needs_check
from ottla.takeover.found import FoundBroker, FoundCluster, FoundDirectory, FoundLog, FoundTopic

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
TOPIC_ID, OTHER_ID = UUID(int=1), UUID(int=2)
CLUSTER_ID = "Ns1g21eKQ8OHfovMSnVN8w"
PLACE = Path("kafka-logs")


def topic(isr: tuple[BrokerId, ...] = (ONE, TWO), topic_id: UUID | None = TOPIC_ID, **settings: str) -> FoundTopic:
    state = PartitionState(isr[0], 3, isr, (ONE, TWO, THREE))
    return FoundTopic(TopicAssignment(topic_id, ((ONE, TWO, THREE),)), (state,), {k.replace("_", "."): v for k, v in settings.items()})


CLUSTER = FoundCluster(cluster_id=CLUSTER_ID, controller_epoch=3, topics={"clicks": topic()})
CLICKS = TopicPartition("clicks", 0)


def directory(log: FoundLog | None = FoundLog(1000, TOPIC_ID), broker_id: int = 1) -> FoundDirectory:  # noqa: B008  frozen
    logs = {} if log is None else {CLICKS: log}
    return FoundDirectory(PLACE, broker_id, CLUSTER_ID, is_clean=True, logs=logs)


def broker(*directories: FoundDirectory, broker_id: int = 1, **properties: str) -> FoundBroker:
    settings = {"broker.id": str(broker_id), **{name.replace("_", "."): text for name, text in properties.items()}}
    return FoundBroker(f"server-{broker_id}.properties", BrokerSettings.from_properties(settings), directories or (directory(),))


def judged(cluster: FoundCluster, *brokers: FoundBroker) -> dict[str, Severity]:
    found = findings.takeover(cluster, brokers or (broker(),))
    return {finding.name: finding.severity for finding in found if finding.severity is not Severity.TAKEN_OVER}


def test_a_cluster_without_anything_of_note_is_taken_over_as_it_stands() -> None:
    found = findings.takeover(CLUSTER, [broker()])
    assert {finding.severity for finding in found} == {Severity.TAKEN_OVER}
    assert "1 topics with 1 partitions" in found[0].what


def test_what_is_accepted_by_one_broker_is_given_up_and_stops_nothing() -> None:
    cluster = replace(CLUSTER, kept_elsewhere={"acls": ("/kafka-acl/Topic/clicks",)})
    assert judged(cluster) == {"acls": Severity.STOPS}
    assert judged(cluster, broker(takeover_accept="acls")) == {"acls": Severity.GIVEN_UP}
    assert judged(cluster, broker(takeover_accept="quotas")) == {"acls": Severity.STOPS}


@pytest.mark.parametrize(
    ("name", "cluster", "found"),
    [
        ("live-brokers", replace(CLUSTER, brokers=(BrokerRegistration(TWO, (), is_foreign=True),)), directory()),
        ("live-controller", replace(CLUSTER, controller=BrokerId(3000), kraft_epoch=4), directory()),
        ("kraft", CLUSTER, replace(directory(), is_kraft=True)),
        ("foreign-directories", CLUSTER, directory(broker_id=2)),
        ("foreign-directories", replace(CLUSTER, cluster_id=None, topics={}), directory(None)),
        ("message-format", CLUSTER, directory(FoundLog(1000, TOPIC_ID, (("00000000000000000000.log", 0),)))),
    ],
)
def test_what_would_lose_records_or_mix_implementations_cannot_be_accepted(name: str, cluster: FoundCluster, found: FoundDirectory) -> None:
    assert judged(cluster, broker(found, takeover_accept=name)) == {name: Severity.STOPS}


@pytest.mark.parametrize(
    ("name", "cluster", "found"),
    [
        ("damaged-files", CLUSTER, replace(directory(), damaged={"kafka-logs/meta.properties": "bad"})),
        ("damaged-files", CLUSTER, FoundDirectory(PLACE, failure="Permission denied")),
        ("damaged-znodes", replace(CLUSTER, damaged={"/brokers/topics/other": "no JSON"}), directory()),
        ("topic-ids", CLUSTER, directory(FoundLog(1, OTHER_ID))),
        ("missing-logs", replace(CLUSTER, topics={"clicks": topic((ONE,))}), directory(None)),
        ("tiered-topics", replace(CLUSTER, topics={"clicks": topic(remote_storage_enable=" TRUE ")}), directory()),
        ("dynamic-settings", replace(CLUSTER, topics={"clicks": topic(retention_ms="soon")}), directory()),
        ("dynamic-settings", replace(CLUSTER, broker_settings={"2": {"log.cleaner.threads": "none"}}), directory()),
    ],
)
def test_what_is_known_to_be_worse_may_be_accepted(name: str, cluster: FoundCluster, found: FoundDirectory) -> None:
    assert judged(cluster, broker(found)) == {name: Severity.STOPS}
    assert judged(cluster, broker(found, takeover_accept=name)) == {name: Severity.GIVEN_UP}


def test_a_log_of_a_partition_that_was_moved_to_other_brokers_is_said_to_become_a_stray() -> None:
    """Broker 4 has no replica of the topic: its log was renamed at the start, and no finding had said so."""
    found = findings.takeover(CLUSTER, [broker(directory(broker_id=4), broker_id=4)])
    assert [finding.where for finding in found if finding.name == "stray-logs"] == [("kafka-logs/clicks-0",)]
    assert judged(CLUSTER, broker(directory(broker_id=3), broker_id=3)) == {}


def test_a_tiered_topic_is_to_be_copied_as_kafka_does_not_let_it_leave_tiered_storage() -> None:
    """With ZooKeeper Kafka refuses `remote.log.delete.on.disable`, and without that to set `remote.storage.enable` to false
    (`LogConfig.validateNoInvalidRemoteStorageConfigsInZK`, `validateTurningOffRemoteStorageWithDelete`)."""
    tiered = replace(CLUSTER, topics={"clicks": topic(remote_storage_enable="true")})
    (found,) = findings.stops(findings.takeover(tiered, [broker()]))
    assert "remote.storage.enable" not in found.remedy
    assert "copy" in found.remedy


def test_a_release_before_2_8_has_to_be_left_first() -> None:
    """Topic ids came with 2.8."""
    assert judged(CLUSTER, broker(inter_broker_protocol_version="2.7-IV2")) == {"protocol-version": Severity.STOPS}
    assert judged(CLUSTER, broker(inter_broker_protocol_version="2.8-IV1")) == {}


def test_a_topic_whose_znode_has_lost_its_id_does_not_begin_empty() -> None:
    """Tools of before 2.8 write the znode without it (KIP-516). The topic got another id then, and all of its logs became strays."""
    without_id = replace(CLUSTER, topics={"clicks": topic(topic_id=None)})
    found = findings.stops(findings.takeover(without_id, [broker()]))
    assert [(finding.name, finding.where) for finding in found] == [("topic-ids", ("kafka-logs/clicks-0",))]
    assert "topic_id" in found[0].remedy
    assert judged(without_id, broker(directory(FoundLog(1000)))) == {"topic-ids": Severity.CHANGES}


def test_a_protocol_version_that_kafka_did_not_have_would_keep_it_from_reading_offsets() -> None:
    """Kafka 2.8 to 3.2 ends the load of a partition of groups at an offset of version 4 (`GroupMetadataManager.readOffsetMessageValue`).
    It writes `/feature` in version 1 (`FeatureZNode`), and its file need not say the protocol, whose default is its own release."""
    older = replace(CLUSTER, feature_version=1)
    assert judged(older) == {"protocol-version": Severity.STOPS}
    assert judged(older, broker(takeover_accept="protocol-version")) == {"protocol-version": Severity.GIVEN_UP}
    assert judged(older, broker(inter_broker_protocol_version="3.2-IV0")) == {}
    assert judged(replace(CLUSTER, feature_version=2)) == {}


def test_a_log_that_is_missing_is_copied_when_another_in_sync_has_it() -> None:
    """Broker 2, in sync as well, was not looked at, or has it."""
    assert judged(CLUSTER, broker(directory(None))) == {}
    both = broker(directory(None)), broker(directory(broker_id=2), broker_id=2)
    assert judged(CLUSTER, *both) == {}
    neither = broker(directory(None)), broker(directory(None, broker_id=2), broker_id=2)
    assert judged(CLUSTER, *neither) == {"missing-logs": Severity.STOPS}


def test_a_topic_that_is_being_deleted_may_have_lost_its_logs_already() -> None:
    """Its brokers delete them first; the znodes go when all have answered."""
    cluster = replace(CLUSTER, topics={"clicks": topic((ONE,))}, deletions=("clicks",))
    assert judged(cluster, broker(directory(None))) == {"deletion": Severity.CHANGES}
    kept = judged(cluster, broker(directory(None), delete_topic_enable="false"))
    assert kept == {"deletion": Severity.CHANGES, "missing-logs": Severity.STOPS}


def test_what_changes_is_said() -> None:
    moving = FoundTopic(TopicAssignment(None, ((ONE, TWO),), {0: (TWO,)}, {}), (None,))
    cluster = replace(CLUSTER, topics={"moving": moving}, deletions=("moving",))
    assert judged(cluster, broker(num_io_threads="8")) == dict.fromkeys(
        ["settings-without-effect", "reassignment", "deletion", "topic-ids", "stray-logs"], Severity.CHANGES
    )
    found = findings.takeover(cluster, [broker(delete_topic_enable="false")])
    assert next(finding.what for finding in found if finding.name == "deletion").endswith("removed, as delete.topic.enable is false")


def test_moves_between_log_directories_that_do_not_continue_are_said() -> None:
    """Kafka continues with a `-future` copy after a start (`ReplicaManager.maybeAddLogDirFetchers`); ours is deleted without a word."""
    copy = f"clicks-0.{'0123456789abcdef' * 2}-future"
    found = findings.takeover(CLUSTER, [broker(directory(), replace(directory(None), path=Path("other"), copies=(copy,)))])
    assert [(finding.severity, finding.where) for finding in found if finding.name == "moves"] == [(Severity.CHANGES, (f"other/{copy}",))]


def test_a_setting_that_is_refused_is_a_finding_by_its_own_name() -> None:
    found = replace(broker(), refused={"authorizer.class.name": "no ACLs", "my.plugin": "not known"})
    by_name = {finding.name: finding for finding in findings.takeover(CLUSTER, [found])}
    assert by_name["authorizer.class.name"].may_be_accepted
    assert not by_name["my.plugin"].may_be_accepted


def test_a_sentence_has_what_where_what_to_do_and_how_to_give_it_up() -> None:
    paths = tuple(f"/config/users/{number}" for number in range(7))
    (found,) = findings.stops(findings.takeover(replace(CLUSTER, kept_elsewhere={"quotas": paths}), [broker()]))
    assert found.sentence() == (
        "quotas: quotas are set, and none is enforced here, at /config/users/0, /config/users/1, /config/users/2, /config/users/3, "
        "/config/users/4 and 2 more; remove them with kafka-configs.sh while Kafka runs; to give it up: takeover.accept=quotas"
    )


# The way back.


def back(cluster: FoundCluster, found: FoundBroker) -> dict[str, Severity]:
    return {finding.name: finding.severity for finding in findings.way_back(cluster, [found])}


def test_nothing_that_ottla_writes_stands_in_kafkas_way() -> None:
    """A cluster that was Ottla's, stopped in order: what Kafka passes over is said, and nothing stops it."""
    ours = replace(CLUSTER, own_epochs=OwnEpochs(4, 5))
    found = broker(replace(directory(), has_directory_id=True, checked_since=4), takeover_accept="quotas")
    assert back(ours, found) == {"settings": Severity.CHANGES, "znodes": Severity.CHANGES}


def test_settings_of_topics_that_keep_kafka_from_altering_others_are_named() -> None:
    """`LogConfig.validateNames` takes what is set already for unknown, whatever is to be altered. Nothing was said of it."""
    own = replace(CLUSTER, topics={"clicks": topic(ottla_audit="false", retention_ms="5"), "views": topic(retention_ms="5")})
    (found,) = findings.way_back(own, [broker()])
    assert (found.severity, found.name, found.where) == (Severity.CHANGES, "topic-settings", ("/config/topics/clicks",))
    assert "Kafka passes over ottla.audit, and refuses to alter a topic" in found.what


def test_what_keeps_kafka_from_starting_is_found() -> None:
    living = replace(CLUSTER, brokers=(BrokerRegistration(ONE, (Endpoint("PLAINTEXT", "h", 1),)),))
    assert back(living, broker()) == {"live-brokers": Severity.STOPS}
    other = replace(directory(), unknown=("coordination",), set_aside=("clicks-0.abc-stray",), is_clean=False)
    assert back(CLUSTER, broker(other)) == {"unknown-directories": Severity.STOPS, "unclean-stop": Severity.CHANGES}
    older = broker(other, inter_broker_protocol_version="3.5")
    assert back(CLUSTER, older)["stray-logs"] is Severity.STOPS
    new_groups = broker(group_coordinator_rebalance_protocols="classic,consumer")
    assert back(CLUSTER, new_groups) == {"consumer-groups": Severity.CHANGES}


@pytest.mark.parametrize(
    ("cluster", "found"),
    [(CLUSTER, directory(broker_id=2)), (replace(CLUSTER, cluster_id="another"), directory()), (FoundCluster(), directory())],
)
def test_kafka_refuses_the_directories_of_another_broker_or_cluster_too(cluster: FoundCluster, found: FoundDirectory) -> None:
    """`BrokerMetadataCheckpoint.getBrokerMetadataAndOfflineDirs` and `KafkaServer.startup`: InconsistentBrokerIdException,
    InconsistentClusterIdException. The look back had nothing in the way."""
    assert back(cluster, broker(found)) == {"foreign-directories": Severity.STOPS}


# When a broker looks.


@pytest.mark.parametrize(
    ("found", "epoch", "own", "looks"),
    [
        (directory(), 3, OwnEpochs(-1, -1), True),  # Kafka's, as it left it
        (FoundDirectory(PLACE), 0, OwnEpochs(-1, -1), False),  # a new cluster's first broker
        (FoundDirectory(PLACE), 3, OwnEpochs(-1, -1), True),  # an empty disk in Kafka's cluster
        (replace(directory(), has_directory_id=True), 9, OwnEpochs(1, 9), False),  # never Kafka's
        (replace(directory(), has_directory_id=True, checked_since=4), 9, OwnEpochs(4, 9), False),  # checked
        (replace(directory(), has_directory_id=True, checked_since=4), 9, OwnEpochs(4, 10), False),  # elected between the two reads
        (replace(directory(), has_directory_id=True, checked_since=4), 10, OwnEpochs(4, 9), True),  # Kafka was the controller since
        (replace(directory(), has_directory_id=True, checked_since=4), 12, OwnEpochs(12, 12), True),  # and another Ottla was quicker
        (replace(directory(), checked_since=4), 9, OwnEpochs(4, 9), True),  # a directory that Kafka wrote again
        (replace(directory(), has_directory_id=True, is_kraft=True), 1, OwnEpochs(1, 1), True),
    ],
)
def test_a_broker_looks_where_kafka_may_have_written_since(found: FoundDirectory, epoch: int, own: OwnEpochs, looks: bool) -> None:
    assert needs_check(FoundCluster(controller_epoch=epoch, own_epochs=own), (found,)) is looks


def test_own_epochs_end_where_kafka_was_the_controller() -> None:
    epochs = OwnEpochs(-1, -1).with_epoch(4).with_epoch(5)
    assert epochs == OwnEpochs(4, 5)
    assert epochs.with_epoch(5) == epochs
    assert epochs.with_epoch(7) == OwnEpochs(7, 7)

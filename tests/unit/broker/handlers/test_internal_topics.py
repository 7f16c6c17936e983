"""The topics of groups and of transactions where too few brokers live for them: Kafka's sentence, to the client and in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ottla.broker.coordinator.state_partition import partition_of
from ottla.broker.groups.coordinator import OFFSETS_TOPIC
from ottla.broker.handlers import internal_topics
from ottla.broker.handlers.internal_topics import warn_of_missing_brokers
from ottla.errors import CoordinatorNotAvailable, NotCoordinator
from ottla.interbroker.calls import NewTopic
from ottla.protocol.api import ApiKey

COORDINATOR_LOAD_IN_PROGRESS = 14
FACTORS = {"offsets.topic.replication.factor": "2", "transaction.state.log.replication.factor": "5"}
SENTENCES = {
    0: "Number of alive brokers '1' does not meet the required replication factor '2' for the offsets topic "
    "(configured via 'offsets.topic.replication.factor').",
    1: "Number of alive brokers '1' does not meet the required replication factor '5' for the transactions state topic "
    "(configured via 'transaction.state.log.replication.factor').",
}


async def coordinator_of(broker: Any, key_type: int) -> tuple[int, str | None]:
    found = await broker.ask(ApiKey.FIND_COORDINATOR, 4, key_type=key_type, coordinator_keys=["k"])
    return int(found.coordinators[0].error_code), found.coordinators[0].error_message


@pytest.mark.parametrize("key_type", [0, 1])
@pytest.mark.parametrize("broker", [FACTORS], indirect=True)
async def test_too_few_brokers_are_said_to_the_client_and_to_the_log_now_and_then(
    broker: Any, key_type: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def errors() -> int:
        said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert all(line.startswith(SENTENCES[key_type]) for line in said)
        return len(said)

    for _ in range(5):
        assert await coordinator_of(broker, key_type) == (CoordinatorNotAvailable.code, SENTENCES[key_type])
    assert errors() == 1, "clients ask several times a second"
    monkeypatch.setattr(internal_topics, "_SAY_AGAIN_SECONDS", 0.0)
    await coordinator_of(broker, key_type)
    assert errors() == 2


@pytest.mark.parametrize("broker", [FACTORS], indirect=True)
async def test_a_start_says_what_is_not_served(broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_missing_brokers(broker.parts.settings, broker.parts.metadata)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "offsets.topic.replication.factor is 2 and the number of alive brokers is 1: consumer groups are not served until it is 2",
        "transaction.state.log.replication.factor is 5 and the number of alive brokers is 1: transactions are not served until it is 5",
    ]


async def test_a_start_says_nothing_where_brokers_are_enough_or_the_topics_are_there(broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_missing_brokers(broker.parts.settings, broker.parts.metadata)
    assert (await coordinator_of(broker, 0))[0] == 0
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("broker", [{"offsets.topic.num.partitions": "3"}], indirect=True)
async def test_no_offset_is_committed_before_it_is_known_how_many_partitions_the_topic_has(broker: Any) -> None:
    """A broker that starts hears what it leads first. The topic may have another number of partitions than it would be made with here,
    and what is acknowledged in the partition of that number is not found in the right one."""
    metadata, group_id = broker.parts.metadata, "g3"
    assert (partition_of(group_id, 3), partition_of(group_id, 2)) == (1, 0)
    await broker.parts.controller.create_topic(NewTopic(OFFSETS_TOPIC, 2, 1))
    await broker.create("clicks")
    offsets = metadata.topic(OFFSETS_TOPIC)

    async def commit() -> int:
        partitions = [{"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": None}]
        values = {"group_id": group_id, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
        response = await broker.ask(ApiKey.OFFSET_COMMIT, 8, **values, topics=[{"name": "clicks", "partitions": partitions}])
        return int(response.topics[0].partitions[0].error_code)

    while await commit() == COORDINATOR_LOAD_IN_PROGRESS:
        await broker.pause()
    metadata.remove_topic(OFFSETS_TOPIC)
    assert await commit() == NotCoordinator.code
    metadata.put_topic(offsets)
    assert await commit() == 0

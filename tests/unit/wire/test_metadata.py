"""What a client believes of a cluster when it hears old things, new things and hints."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from ottla.errors import LeaderNotAvailable, TopicAuthorizationFailed, UnknownTopicOrPartition
from ottla.model import TopicPartition
from ottla.protocol.fetch import NodeEndpoint
from ottla.wire.metadata import Metadata

CLICKS = TopicPartition("clicks", 0)
FIRST, SECOND = UUID(int=1), UUID(int=2)


def answer(*topics: Any, brokers: tuple[int, ...] = (1, 2), controller_id: int = 1) -> Any:
    found = [SimpleNamespace(node_id=number, host=f"b{number}", port=9092, rack="r") for number in brokers]
    return SimpleNamespace(brokers=found, cluster_id="c", controller_id=controller_id, topics=topics)


def topic(
    leader: int = 1, epoch: int = 5, *, topic_id: UUID | None = FIRST, error_code: int = 0, name: str = "clicks", version: int = 12
) -> Any:
    numbers = {"partition_index": 0, "leader_id": leader, "leader_epoch": epoch, "__version__": version}
    partition = SimpleNamespace(**numbers, replica_nodes=(1, 2), isr_nodes=(1,))
    return SimpleNamespace(
        name=name, topic_id=topic_id, is_internal=False, error_code=error_code, partitions=() if error_code else (partition,)
    )


def heard(*answers: Any) -> Metadata:
    metadata = Metadata()
    for answer in answers:
        metadata.take(answer, everything=False)
    return metadata


def test_what_is_older_is_not_believed() -> None:
    metadata = heard(answer(topic(leader=2, epoch=6)), answer(topic(leader=1, epoch=5)))
    assert metadata.leader(CLICKS) == 2
    metadata.take(answer(topic(leader=1, epoch=6)), everything=False)
    assert metadata.leader(CLICKS) == 1


@pytest.mark.parametrize("topic_id", [FIRST, SECOND])
def test_what_was_known_before_a_broker_did_not_know_the_topic_is_not_older_for_that(topic_id: UUID) -> None:
    """As of one that has just started; unless the topic was made again (Kafka's MetadataTest.testEpochUpdateAfterTopicDeletion)."""
    metadata = heard(answer(topic(leader=2, epoch=6)), answer(topic(topic_id=None, error_code=3)))
    with pytest.raises(UnknownTopicOrPartition):
        metadata.leader(CLICKS)
    metadata.take(answer(topic(leader=1, epoch=5, topic_id=topic_id)), everything=False)
    assert metadata.leader(CLICKS) == (2 if topic_id == FIRST else 1)


def test_a_topic_made_again_begins_with_new_epochs_and_a_new_id() -> None:
    metadata = heard(answer(topic(leader=2, epoch=6)), answer(topic(leader=1, epoch=0, topic_id=SECOND)))
    assert metadata.partition(CLICKS).leader_epoch == 0
    assert metadata.topic("clicks").topic_id == SECOND


def test_a_broker_that_says_no_id_speaks_of_the_same_topic() -> None:
    """As one that was not updated yet (Metadata 9): what it says may be older (Kafka's MetadataTest.testEpochUpdateOnChangedTopicIds)."""
    metadata = heard(answer(topic(leader=2, epoch=6)), answer(topic(leader=1, epoch=5, topic_id=None, version=9)))
    assert metadata.leader(CLICKS) == 2


@pytest.mark.parametrize("version", [7, 8])
def test_an_epoch_of_a_broker_that_may_say_a_former_one_is_not_believed(version: int) -> None:
    """Kafka's MetadataTest.testIgnoreLeaderEpochInOlderMetadataResponse; a fetch in it would be refused without end."""
    metadata = heard(*(answer(topic(leader, epoch, topic_id=None, version=version)) for leader, epoch in ((2, 6), (1, 5))))
    assert metadata.partition(CLICKS)[:2] == (1, -1)


def test_versions_without_epochs_and_ids_are_believed_as_they_come() -> None:
    metadata = heard(answer(topic(leader=2, epoch=-1, topic_id=None)), answer(topic(leader=1, epoch=-1, topic_id=None)))
    assert metadata.leader(CLICKS) == 1


def test_a_hint_is_taken_if_it_is_newer_and_leads_somewhere() -> None:
    """KIP-951."""
    metadata = heard(answer(topic(leader=1, epoch=5)))
    assert not metadata.hint(CLICKS, (2, 5), {})
    assert not metadata.hint(CLICKS, (-1, 7), {})
    assert not metadata.hint(CLICKS, (3, 7), {}), "no one knows where broker 3 is"
    assert not metadata.hint(TopicPartition("clicks", 9), (2, 7), {})
    assert metadata.hint(CLICKS, (3, 7), {3: NodeEndpoint(3, "b3", 9093, None)})
    assert metadata.leader(CLICKS) == 3
    metadata.take(answer(topic(leader=1, epoch=6), brokers=(1, 2, 3)), everything=False)
    assert metadata.leader(CLICKS) == 3, "an answer from before the hint"


def test_what_is_not_known_is_said_with_the_brokers_error() -> None:
    metadata = heard(answer(topic(error_code=29)))
    with pytest.raises(TopicAuthorizationFailed):
        metadata.leader(CLICKS)
    metadata.take(answer(topic(leader=-1)), everything=False)
    with pytest.raises(LeaderNotAvailable, match="has no leader"):
        metadata.leader(CLICKS)
    metadata.take(answer(topic(leader=9, epoch=6)), everything=False)
    with pytest.raises(LeaderNotAvailable, match="leader 9 is not alive"):
        metadata.leader(CLICKS)
    with pytest.raises(UnknownTopicOrPartition):
        metadata.partition(TopicPartition("clicks", 1))
    metadata.take(answer(topic(error_code=3)), everything=False)
    with pytest.raises(UnknownTopicOrPartition):
        metadata.topic("clicks")


def test_topics_that_a_whole_answer_leaves_out_are_gone() -> None:
    metadata = heard(answer(topic(), topic(name="other", topic_id=SECOND)))
    metadata.take(answer(topic(name="other", topic_id=SECOND)), everything=True)
    assert set(metadata.topics) == {"other"}

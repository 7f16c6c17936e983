"""Topics, partitions, configurations, offsets and sizes through the admin clients of three libraries."""

from __future__ import annotations

import pytest

from ottla.testing import EmbeddedCluster

from .clients import CLIENTS, Message

TEN = [Message(b"key", b"%d" % number, (), 1000 + number) for number in range(10)]


def test_confluent_kafka_administers_a_topic_from_creation_to_deletion(ottla_cluster: EmbeddedCluster) -> None:
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        OffsetSpec,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": ottla_cluster.bootstrap_servers})
    name = "administered-by-confluent"
    admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "3600000"})])[name].result(90)
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(90)
    admin.create_partitions([NewPartitions(name, 3)])[name].result(90)
    assert len(admin.list_topics(timeout=60).topics[name].partitions) == 3

    resource = ConfigResource(ResourceType.TOPIC, name)

    def configured(key: str) -> tuple[str | None, bool]:
        (answer,) = admin.describe_configs([resource]).values()
        entry = answer.result(90)[key]
        return entry.value, entry.is_default

    assert configured("retention.ms") == ("3600000", False)
    assert configured("segment.bytes") == ("1073741824", True)
    changes = [
        ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ConfigEntry("segment.bytes", "1048576", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
    ]
    altered = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
    admin.incremental_alter_configs([altered])[altered].result(90)
    assert configured("retention.ms") == ("-1", False)  # as the embedded cluster has it
    assert configured("segment.bytes") == ("1048576", False)
    assert configured("cleanup.policy") == ("delete,compact", False)

    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        wrong = ConfigResource(
            ResourceType.TOPIC, name, incremental_configs=[ConfigEntry("retention.ms", "soon", incremental_operation=AlterConfigOpType.SET)]
        )
        admin.incremental_alter_configs([wrong])[wrong].result(90)

    CLIENTS[0].publish(ottla_cluster.bootstrap_servers, name, "none", TEN)
    partition = TopicPartition(name, 0)

    def offset(spec: OffsetSpec) -> int:
        (answer,) = admin.list_offsets({partition: spec}).values()
        found: int = answer.result(90).offset
        return found

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 10
    assert offset(OffsetSpec.for_timestamp(1004)) == 4
    assert offset(OffsetSpec.max_timestamp()) == 9
    (deleted,) = admin.delete_records([TopicPartition(name, 0, 6)]).values()
    assert deleted.result(90).low_watermark == 6
    assert offset(OffsetSpec.earliest()) == 6

    cluster = admin.describe_cluster().result(90)
    assert [node.id for node in cluster.nodes] == [1] and cluster.cluster_id
    admin.delete_topics([name])[name].result(90)
    assert name not in admin.list_topics(timeout=60).topics


def test_kafka_python_administers_a_topic(ottla_cluster: EmbeddedCluster) -> None:
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewPartitions, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=ottla_cluster.bootstrap_servers)
    try:
        name = "administered-by-kafka-python"
        admin.create_topics([NewTopic(name, 2, 1)])
        admin.create_partitions({name: NewPartitions(3)})
        (described,) = admin.describe_topics([name])
        assert len(described["partitions"]) == 3
        assert name in admin.list_topics()
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "3600000"})])
        assert "3600000" in str(admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)]))
        CLIENTS[1].publish(ottla_cluster.bootstrap_servers, name, "none", TEN)
        assert name in str(admin.describe_log_dirs())
        assert ottla_cluster.bootstrap_servers.rpartition(":")[2] in str(admin.describe_cluster())
        admin.delete_topics([name])
        assert name not in admin.list_topics()
    finally:
        admin.close()


async def test_aiokafka_administers_a_topic(ottla_cluster: EmbeddedCluster) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=ottla_cluster.bootstrap_servers)
    await admin.start()
    try:
        name = "administered-by-aiokafka"
        await admin.create_topics([NewTopic(name, 2, 1)])
        (described,) = await admin.describe_topics([name])
        assert len(described["partitions"]) == 2
        await admin.delete_topics([name])
        assert name not in await admin.list_topics()
    finally:
        await admin.close()


def test_producing_to_a_topic_that_is_not_there_creates_it(ottla_cluster: EmbeddedCluster) -> None:
    """`auto.create.topics.enable` and `num.partitions`."""
    from confluent_kafka.admin import AdminClient

    for client in CLIENTS:
        name = f"created-by-{client.name}"
        assert client.publish(ottla_cluster.bootstrap_servers, name, "none", TEN) == list(range(10))
        admin = AdminClient({"bootstrap.servers": ottla_cluster.bootstrap_servers})
        assert len(admin.list_topics(timeout=60).topics[name].partitions) == 4

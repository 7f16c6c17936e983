"""confluent-kafka's serializers against a topic whose broker looks at schema ids; both framings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from ottla.testing.cluster import EmbeddedCluster

CLICK: Final = json.dumps({"type": "record", "name": "Click", "fields": [{"name": "user", "type": "string"}]})


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[EmbeddedCluster, EmbeddedCluster]]:
    """One with a registry, and one that validates against it."""
    with (
        EmbeddedCluster(services=["schema-registry"]) as elsewhere,
        EmbeddedCluster(settings={"confluent.schema.registry.url": elsewhere.schema_registry_url}) as cluster,
    ):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        config = {"confluent.value.schema.validation": "true"}
        admin.create_topics([NewTopic("clicks", 1, 1, config=config)])["clicks"].result(90)
        yield cluster, elsewhere


def error_of(producer: Producer, value: bytes | None, headers: Any = None) -> KafkaError | None:
    """What comes of one message."""
    errors: list[KafkaError | None] = []
    producer.produce("clicks", value=value, headers=headers, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(120) == 0
    (error,) = errors
    return error


def test_serialized_messages_pass_and_others_are_refused_for_good(clusters: tuple[EmbeddedCluster, EmbeddedCluster]) -> None:
    cluster, elsewhere = clusters
    client = SchemaRegistryClient({"url": elsewhere.schema_registry_url})
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
    context = SerializationContext("clicks", MessageField.VALUE, [])
    assert error_of(producer, AvroSerializer(client, CLICK)({"user": "ada"}, context)) is None
    in_header = AvroSerializer(client, CLICK, conf={"schema.id.serializer": header_schema_id_serializer})
    value = in_header({"user": "bob"}, context)
    assert value is not None and value[0] != 0
    assert error_of(producer, value, context.headers) is None
    assert error_of(producer, None) is None
    elsewhere_only = AvroSerializer(client, CLICK.replace("Click", "Order"))
    for wrong in (b"no id at all", b"\0\0\0\x03\xe7x", elsewhere_only({"user": "eve"}, SerializationContext("orders", MessageField.VALUE))):
        error = error_of(producer, wrong)
        assert error is not None and error.code() == KafkaError.INVALID_RECORD

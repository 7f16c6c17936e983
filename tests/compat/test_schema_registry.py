"""confluent-kafka's serializers and registry clients, unchanged, through a broker and a registry of ours."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    Rule,
    RuleKind,
    RuleMode,
    RuleSet,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.avro import AsyncAvroDeserializer, AsyncAvroSerializer, AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

CLICK: Final = json.dumps(
    {
        "type": "record",
        "name": "Click",
        "namespace": "com.example",
        "fields": [{"name": "user", "type": "string"}, {"name": "at", "type": "long", "default": 0}],
    }
)
CLICK_WITH_PAGE: Final = json.dumps(
    {**json.loads(CLICK), "fields": [*json.loads(CLICK)["fields"], {"name": "page", "type": "string", "default": "/"}]}
)
PERSON: Final = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Person",
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name"],
    }
)


@pytest.fixture
def client(ottla_schema_registry_url: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": ottla_schema_registry_url})


def sent_and_received(servers: str, topic: str, value: bytes, headers: Any = None) -> Any:
    """A message through the broker."""
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, value, headers=headers)
    assert producer.flush(120) == 0
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"group-of-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        for _ in range(40):
            message = consumer.poll(1)
            if message is not None:
                assert message.error() is None
                return message
    finally:
        consumer.close()
    raise AssertionError("nothing came")


def context_of(topic: str, headers: Any = None) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE, headers)


def test_avro_from_a_producer_to_a_consumer(client: SchemaRegistryClient, ottla_bootstrap_servers: str, ottla_topic: str) -> None:
    context = context_of(ottla_topic)
    value = AvroSerializer(client, CLICK)({"user": "ada", "at": 7}, context)
    assert value is not None and value[0] == 0
    message = sent_and_received(ottla_bootstrap_servers, ottla_topic, value)
    assert AvroDeserializer(client)(message.value(), context) == {"user": "ada", "at": 7}
    registered: Any = client.get_latest_version(f"{ottla_topic}-value")
    assert (registered.version, registered.schema_id) == (1, struct.unpack(">I", value[1:5])[0])
    newer = AvroSerializer(client, CLICK_WITH_PAGE)({"user": "bob", "at": 8, "page": "/x"}, context)
    assert client.get_versions(f"{ottla_topic}-value") == [1, 2]
    assert AvroDeserializer(client, CLICK)(newer, context) == {"user": "bob", "at": 8}


def test_avro_by_the_latest_version_and_without_registering(client: SchemaRegistryClient, ottla_topic: str) -> None:
    subject, context = f"{ottla_topic}-value", context_of(ottla_topic)
    configuration = {"auto.register.schemas": False}
    with pytest.raises(SchemaRegistryError) as refused:
        AvroSerializer(client, CLICK, conf=configuration)({"user": "ada"}, context)
    assert (refused.value.http_status_code, refused.value.error_code) == (404, 40401)
    client.register_schema(subject, Schema(CLICK, "AVRO"))
    assert AvroSerializer(client, CLICK, conf=configuration)({"user": "ada"}, context)
    client.register_schema(subject, Schema(CLICK_WITH_PAGE, "AVRO"))
    latest = AvroSerializer(client, conf={**configuration, "use.latest.version": True})({"user": "ada", "at": 1, "page": "/"}, context)
    assert struct.unpack(">I", latest[1:5])[0] == client.get_latest_version(subject).schema_id
    with pytest.raises(SchemaRegistryError) as incompatible:
        client.register_schema(
            subject, Schema('{"type":"record","name":"Click","namespace":"com.example","fields":[{"name":"n","type":"int"}]}', "AVRO")
        )
    assert (incompatible.value.http_status_code, incompatible.value.error_code) == (409, 409)


def test_avro_with_a_reference(client: SchemaRegistryClient, ottla_bootstrap_servers: str, ottla_topic: str) -> None:
    client.register_schema(f"{ottla_topic}-click", Schema(CLICK, "AVRO"))
    session = {"type": "record", "name": "Session", "fields": [{"name": "clicks", "type": {"type": "array", "items": "com.example.Click"}}]}
    references = [SchemaReference("com.example.Click", f"{ottla_topic}-click", 1)]
    context = context_of(ottla_topic)
    value = AvroSerializer(client, Schema(json.dumps(session), "AVRO", references))({"clicks": [{"user": "ada", "at": 1}]}, context)
    message = sent_and_received(ottla_bootstrap_servers, ottla_topic, value)
    assert AvroDeserializer(client)(message.value(), context) == {"clicks": [{"user": "ada", "at": 1}]}
    assert client.get_latest_version(f"{ottla_topic}-value").schema.references == references


def test_json_schema(client: SchemaRegistryClient, ottla_bootstrap_servers: str, ottla_topic: str) -> None:
    context = context_of(ottla_topic)
    value = JSONSerializer(PERSON, client)({"name": "ada", "age": 36}, context)
    message = sent_and_received(ottla_bootstrap_servers, ottla_topic, value)
    assert JSONDeserializer(PERSON)(message.value(), context) == {"name": "ada", "age": 36}
    assert JSONDeserializer(None, schema_registry_client=client)(message.value(), context) == {"name": "ada", "age": 36}
    assert client.get_latest_version(f"{ottla_topic}-value").schema.schema_type == "JSON"


def protobuf_message(name: str, dependency: str | None = None) -> Any:
    """A message class, as protoc makes one: `string text = 1; Other other = 2;`."""
    pool = descriptor_pool.DescriptorPool()
    files = []
    if dependency is not None:
        other = descriptor_pb2.FileDescriptorProto(name=f"{dependency}.proto", package="tests", syntax="proto3")
        field = descriptor_pb2.FieldDescriptorProto
        other.message_type.add(name="Other").field.add(name="number", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
        files.append(other)
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package="tests", syntax="proto3")
    described = file.message_type.add(name="Note")
    field = descriptor_pb2.FieldDescriptorProto
    described.field.add(name="text", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    if dependency is not None:
        file.dependency.append(f"{dependency}.proto")
        described.field.add(name="other", number=2, type=field.TYPE_MESSAGE, type_name=".tests.Other", label=field.LABEL_OPTIONAL)
    files.append(file)
    for described_file in files:
        pool.Add(described_file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.Note"))


@pytest.mark.parametrize("dependency", [None, "other"])
def test_protobuf(client: SchemaRegistryClient, ottla_bootstrap_servers: str, ottla_topic: str, dependency: str | None) -> None:
    """Python's serializer sends a FileDescriptorProto in base64, and registers what it imports under the file's name."""
    note = protobuf_message(f"note-{ottla_topic}", None if dependency is None else f"{dependency}-{ottla_topic}")
    context = context_of(ottla_topic)
    message = note(text="hello")
    if dependency is not None:
        message.other.number = 7
    value = ProtobufSerializer(note, client, {"use.deprecated.format": False})(message, context)
    received = sent_and_received(ottla_bootstrap_servers, ottla_topic, value)
    for deserializer in (
        ProtobufDeserializer(note, {"use.deprecated.format": False}),
        ProtobufDeserializer(note, {"use.deprecated.format": False}, client),
    ):
        assert deserializer(received.value(), context) == message
    registered: Any = client.get_latest_version(f"{ottla_topic}-value")
    assert registered.schema.schema_type == "PROTOBUF" and 'syntax = "proto3"' in registered.schema.schema_str
    assert bool(registered.schema.references) == (dependency is not None)
    serialized: Any = client.get_schema(registered.schema_id, fmt="serialized").schema_str
    assert 'syntax = "proto3"' not in serialized


def test_an_id_in_a_header(client: SchemaRegistryClient, ottla_bootstrap_servers: str, ottla_topic: str) -> None:
    """The GUID of the schema in a header, and nothing before the value."""
    from confluent_kafka.schema_registry import dual_schema_id_deserializer, header_schema_id_serializer

    headers: list[tuple[str, bytes]] = []
    context = context_of(ottla_topic, headers)
    value = AvroSerializer(client, CLICK, conf={"schema.id.serializer": header_schema_id_serializer})(
        {"user": "ada lovelace", "at": 1}, context
    )
    assert headers and headers[0][0] == "__value_schema_id" and len(headers[0][1]) == 17
    received = sent_and_received(ottla_bootstrap_servers, ottla_topic, value, headers)
    deserializer = AvroDeserializer(client, conf={"schema.id.deserializer": dual_schema_id_deserializer})
    found = deserializer(received.value(), context_of(ottla_topic, received.headers()))
    assert found == {"user": "ada lovelace", "at": 1}
    registered: Any = client.get_latest_version(f"{ottla_topic}-value")
    assert client.get_schema_by_guid(registered.guid).schema_str


def test_the_whole_client(client: SchemaRegistryClient, ottla_topic: str) -> None:
    subject = f"{ottla_topic}/with a slash"
    rules = RuleSet(
        domain_rules=[Rule("check", None, RuleKind.CONDITION, RuleMode.WRITE, "CEL", None, None, "true", None, None, False)],
        migration_rules=[],
    )
    schema = Schema(CLICK, "AVRO", [], Metadata(None, MetadataProperties({"owner": "ada"}), None), rules)
    schema_id = client.register_schema(subject, schema)
    assert client.register_schema(subject, schema) == schema_id
    assert client.register_schema_full_response(subject, schema).schema_id == schema_id
    assert subject in client.get_subjects()
    found: Any = client.get_schema(schema_id, subject)
    assert found.metadata.properties.properties == {"owner": "ada"} and found.rule_set.domain_rules[0].name == "check"
    assert client.lookup_schema(subject, schema).version == 1
    assert client.get_version(subject, 1).schema_id == schema_id
    assert client.get_latest_with_metadata(subject, {"owner": "ada"}).version == 1
    assert client.test_compatibility(subject, Schema(CLICK_WITH_PAGE, "AVRO"))
    assert [(version.subject, version.version) for version in client.get_schema_versions(schema_id)] == [(subject, 1)]
    client.set_compatibility(subject, "FULL")
    assert client.get_compatibility(subject) == "FULL"
    client.set_config(subject, ServerConfig(compatibility=ConfigCompatibilityLevel.NONE, compatibility_group="major"))
    assert client.get_config(subject).compatibility_group == "major"
    assert client.get_global_mode() == "READWRITE"
    assert client.get_contexts()[0] == "."
    assert client.delete_version(subject, 1) == 1
    assert client.delete_version(subject, 1, permanent=True) == 1
    with pytest.raises(SchemaRegistryError) as missing:
        client.get_version(subject, 1)
    assert missing.value.error_code == 40401
    client.register_schema(f"{subject}-2", Schema(CLICK, "AVRO"))
    assert client.delete_subject(f"{subject}-2") == [1] == client.delete_subject(f"{subject}-2", permanent=True)


async def test_asyncio(ottla_schema_registry_url: str, ottla_topic: str) -> None:
    async with AsyncSchemaRegistryClient({"url": ottla_schema_registry_url}) as client:
        serializer = await AsyncAvroSerializer(client, CLICK)
        value = await serializer({"user": "ada", "at": 7}, context_of(ottla_topic))
        deserializer = await AsyncAvroDeserializer(client)
        assert await deserializer(value, context_of(ottla_topic)) == {"user": "ada", "at": 7}
        assert (await client.get_latest_version(f"{ottla_topic}-value")).version == 1
        ids = await asyncio.gather(*(client.register_schema(f"{ottla_topic}-{n}", Schema(CLICK, "AVRO")) for n in range(20)))
        assert len(set(ids)) == 1

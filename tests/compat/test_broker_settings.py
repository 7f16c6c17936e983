"""What real admin clients see and change of brokers while they run: addresses, log levels, ACLs that are not there."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from ottla.testing import EmbeddedCluster


def admin_of(cluster: EmbeddedCluster, broker_id: int = 1) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": cluster.address("PLAINTEXT", broker_id)})


def advertised(admin: Any, broker_id: int) -> Any:
    """How the broker describes `advertised.listeners`."""
    from confluent_kafka.admin import ConfigResource, ResourceType

    (answer,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, str(broker_id))]).values()
    return answer.result(90)["advertised.listeners"]


def advertise(admin: Any, broker_id: int, listeners: str | None) -> None:
    """Sets `advertised.listeners`, or gives it back with None."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    operation = AlterConfigOpType.DELETE if listeners is None else AlterConfigOpType.SET
    entry = ConfigEntry("advertised.listeners", listeners, incremental_operation=operation)
    resource = ConfigResource(ResourceType.BROKER, str(broker_id), incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(90)


def hosts(admin: Any) -> dict[int, str]:
    return {broker.id: broker.host for broker in admin.list_topics(timeout=60).brokers.values()}


def wait_for_hosts(cluster: EmbeddedCluster, expected: dict[int, str]) -> None:
    """Until every broker tells them to clients."""
    deadline = time.monotonic() + 120
    for broker_id in (1, 2):
        while (found := hosts(admin_of(cluster, broker_id))) != expected:
            assert time.monotonic() < deadline, f"broker {broker_id} tells {found}"
            time.sleep(0.05)


def test_the_address_that_clients_are_told_changes_while_the_broker_runs() -> None:
    """`advertised.listeners` is a dynamic setting of a broker (KIP-226); the registration and all metadata follow it."""
    from confluent_kafka import KafkaException, Producer

    with EmbeddedCluster(brokers=2, topics={"clicks": 2}, settings={"default.replication.factor": "2"}) as cluster:
        first, second = admin_of(cluster), admin_of(cluster, 2)
        address = f"PLAINTEXT://{cluster.address('PLAINTEXT', 2)}"
        before = advertised(second, 2)
        assert (before.value, before.is_read_only, before.is_default) == (address, False, True)
        port = address.rpartition(":")[2]
        advertise(second, 2, f"PLAINTEXT://localhost:{port}")
        now = advertised(second, 2)
        assert (now.value, now.is_default) == (f"PLAINTEXT://localhost:{port}", False)
        wait_for_hosts(cluster, {1: "127.0.0.1", 2: "localhost"})
        for wrong in ("PLAINTEXT://0.0.0.0:1", "SSL://localhost:1", "nonsense"):
            with pytest.raises(KafkaException):
                advertise(second, 2, wrong)
        producer = Producer({"bootstrap.servers": cluster.address("PLAINTEXT", 2), "acks": "all"})
        for partition in range(2):
            producer.produce("clicks", b"value", partition=partition)
        assert producer.flush(120) == 0

        cluster.expire_session(2)
        wait_for_hosts(cluster, {1: "127.0.0.1", 2: "localhost"})
        cluster.stop_broker(2)
        cluster.start_broker(2)
        wait_for_hosts(cluster, {1: "127.0.0.1", 2: "localhost"})
        advertise(admin_of(cluster, 2), 2, None)
        wait_for_hosts(cluster, {1: "127.0.0.1", 2: "127.0.0.1"})
        assert hosts(first) == {1: "127.0.0.1", 2: "127.0.0.1"}


def test_acls_are_disabled_and_not_unknown(ottla_cluster: EmbeddedCluster) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AclBinding, AclBindingFilter, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    admin = admin_of(ottla_cluster)
    anything: Any = None
    everything = AclBindingFilter(
        ResourceType.ANY, anything, ResourcePatternType.ANY, anything, anything, AclOperation.ANY, AclPermissionType.ANY
    )
    rule = AclBinding(
        ResourceType.TOPIC, "clicks", ResourcePatternType.LITERAL, "User:ann", "*", AclOperation.READ, AclPermissionType.ALLOW
    )
    for answer in (*admin.create_acls([rule]).values(), *admin.delete_acls([everything]).values()):
        with pytest.raises(KafkaException, match=r"SECURITY_DISABLED.*No Authorizer is configured"):
            answer.result(90)


def test_that_acls_are_disabled_is_described(ottla_cluster: EmbeddedCluster) -> None:
    """By kafka-python, for confluent-kafka drops this error and gives an empty list."""
    from kafka.admin import (
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        KafkaAdminClient,
        ResourcePatternFilter,
        ResourceType,
    )
    from kafka.errors import SecurityDisabledError

    admin = KafkaAdminClient(bootstrap_servers=ottla_cluster.bootstrap_servers)
    try:
        topics = ResourcePatternFilter(ResourceType.TOPIC, None, ACLResourcePatternType.ANY)
        with pytest.raises(SecurityDisabledError):
            admin.describe_acls(ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, topics))
    finally:
        admin.close()


def test_log_levels_are_set_by_an_admin_client(ottla_cluster: EmbeddedCluster) -> None:
    """As `kafka-configs --entity-type broker-loggers` does: describe, set, give back."""
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

    logger = logging.getLogger("ottla.broker.replication")
    loggers = ConfigResourceType.BROKER_LOGGER
    before = logger.level
    admin = KafkaAdminClient(bootstrap_servers=ottla_cluster.bootstrap_servers)
    try:
        described = admin.describe_configs([ConfigResource(loggers, "1")], config_filter="all")["broker_logger"]["1"]
        assert {"root", "ottla.broker.replication", "ottla.storage.log"} <= described.keys()
        admin.alter_configs([ConfigResource(loggers, "1", {logger.name: "DEBUG"})], raise_on_unknown=False)
        assert logger.level == logging.DEBUG
        admin.reset_configs([ConfigResource(loggers, "1", [logger.name])], raise_on_unknown=False)
        assert logger.level == logging.NOTSET
    finally:
        logger.setLevel(before)
        admin.close()

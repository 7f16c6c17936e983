"""Kafka's settings, and those of Confluent's schema registry, that are known and refused, with what to do instead.

Running on without what a setting asks for would be worse than not starting: a file that sets up SASL and a
broker that lets everybody in, for one. A broker says so and names the line.
"""

from __future__ import annotations

import re
from typing import Final

_KRAFT: Final = "it belongs to KRaft, which Ottla does not have; remove it"
_NOT_NEEDED: Final = "nothing in Ottla works in a way that it could tune; remove it"
# Before what is set for one listener, and for one of its mechanisms of SASL.
_OF_A_LISTENER: Final = re.compile(r"^listener\.name\.[^.]+\.(?:[^.]+\.(?=sasl\.))?")
_LISTENERS: Final = "listeners and advertised.listeners say hosts and ports, as in Kafka since 3.0"
_REASONS: Final = {
    "zookeeper.sync.time.ms": _NOT_NEEDED,
    "zookeeper.metadata.migration.": _KRAFT,
    "zookeeper.ssl.crl.enable": "revocation lists are not read; remove it",
    "zookeeper.ssl.ocsp.enable": "revocation is not asked for; remove it",
    "advertised.host.name": _LISTENERS,
    "advertised.port": _LISTENERS,
    "host.name": _LISTENERS,
    "port": _LISTENERS,
    "process.roles": _KRAFT,
    "node.id": "it belongs to KRaft, which Ottla does not have; broker.id is what names a broker",
    "controller.quorum.": _KRAFT,
    "controller.listener.names": _KRAFT,
    "metadata.log.": _KRAFT,
    "metadata.max.": _KRAFT,
    "initial.broker.registration.timeout.ms": _KRAFT,
    "broker.heartbeat.interval.ms": _KRAFT,
    "broker.session.timeout.ms": _KRAFT,
    "server.max.startup.time.ms": _KRAFT,
    "log.dir.failure.timeout.ms": _KRAFT,
    "eligible.leader.replicas.enable": _KRAFT,
    "sasl.": "this release has no SASL; an SSL listener with ssl.client.auth=required is what keeps strangers out",
    "connections.max.reauth.ms": "this release has no SASL; remove it",
    "authorizer.class.name": "this release has no ACLs: every client may do everything",
    "super.users": "this release has no ACLs: every client may do everything",
    "allow.everyone.if.no.acl.found": "this release has no ACLs: every client may do everything",
    "delegation.token.": "this release has no delegation tokens",
    "quota.": "this release enforces no quotas",
    "controller.quota.": "this release enforces no quotas",
    "client.quota.callback.class": "this release enforces no quotas",
    "remote.log.": "this release has no tiered storage",
    "remote.storage.": "this release has no tiered storage",
    "remote.fetch.": "this release has no tiered storage",
    "remote.list.": "this release has no tiered storage",
    "rlmm.config.": "this release has no tiered storage",
    "rsm.config.": "this release has no tiered storage",
    "log.local.retention.": "this release has no tiered storage",
    "local.retention.": "this release has no tiered storage",
    "fetch.purgatory.": _NOT_NEEDED,
    "producer.purgatory.": _NOT_NEEDED,
    "delete.records.purgatory.": _NOT_NEEDED,
    "control.plane.listener.name": _NOT_NEEDED,
    "early.start.listeners": _NOT_NEEDED,
    "group.coordinator.threads": _NOT_NEEDED,
    "group.coordinator.append.linger.ms": _NOT_NEEDED,
    "replication.quota.": _NOT_NEEDED,
    "alter.log.dirs.": _NOT_NEEDED,
    "replica.alter.log.dirs.": "copies between log directories are not throttled",
    "max.request.partition.size.limit": "it is 2000, Kafka's default; remove it",
    "password.encoder.": "no password is changed while a broker runs, so that none is encoded in ZooKeeper; remove it",
    "ssl.allow.": "certificates are not changed while a broker runs; remove it",
    "telemetry.": "this release takes no metrics of clients (KIP-714)",
    "num.replica.alter.log.dirs.threads": _NOT_NEEDED,
    "log.initial.task.delay.ms": _NOT_NEEDED,
    "connection.failed.authentication.delay.ms": _NOT_NEEDED,
    "socket.connection.setup.timeout.": _NOT_NEEDED,
    "group.share.": "this release has no share groups",
    "auto.include.jmx.reporter": _NOT_NEEDED,
    "metrics.": "Ottla's metrics are not Kafka's JMX beans; remove it",
    "metric.reporters": "Kafka's reporters are Java classes",
    "kafka.metrics.": "Kafka's reporters are Java classes",
    "principal.builder.class": "Java classes cannot be loaded",
    "create.topic.policy.class.name": "Java classes cannot be loaded",
    "alter.config.policy.class.name": "Java classes cannot be loaded",
    "ssl.engine.factory.class": "Java classes cannot be loaded",
    "security.providers": "Java classes cannot be loaded",
    "kafkastore.connection.url": "schemas are reached by kafkastore.bootstrap.servers, and a leader is elected by zookeeper.connect",
    "kafkastore.sasl.": "this release has no SASL; kafkastore.security.protocol=SSL with a certificate is what it has",
    "kafkastore.ssl.": "TLS 1.2 and 1.3 are spoken as Python's ssl module does it; remove it",
    "kafkastore.topic.config.": "the topic is made with cleanup.policy=compact; make it with more before, or alter it",
    "kafkastore.update.handlers": "Java classes cannot be loaded",
    "schema.providers": "Java classes cannot be loaded; Avro, JSON Schema and Protobuf are there",
    "schema.providers.": "schemas are read in one way: defaults have to fit, and nothing is fetched from elsewhere; remove it",
    "associations.enable": "this release has no associations; remove it",
    "leader.connect.timeout.ms": "request.timeout.ms is for forwarded requests too",
    "leader.read.timeout.ms": "request.timeout.ms is for forwarded requests too",
    "schema.registry.resource.extension.class": "Java classes cannot be loaded",
    "resource.extension.class": "Java classes cannot be loaded",
    "init.resource.extension.class": "Java classes cannot be loaded",
    "rest.servlet.initializor.classes": "Java classes cannot be loaded",
    "websocket.servlet.initializor.classes": "Java classes cannot be loaded",
    "metadata.encoder.": "sensitive properties of metadata are not encrypted",
    "schema.canonicalize.on.consume": "schemas are taken from the topic as they are",
    "resource.static.locations": "no files are served",
    "enable.fips": "Python's ssl module decides",
    "confluent.": "it belongs to Confluent's licensed software",
}


def why_refused(name: str) -> str:
    """Why a setting of Kafka's is not accepted, or an empty text when this module does not know it."""
    plain = _OF_A_LISTENER.sub("", name)
    for prefix, reason in _REASONS.items():
        if plain == prefix or (prefix.endswith(".") and plain.startswith(prefix)):
            return f"{name} cannot be set: {reason}"
    return ""

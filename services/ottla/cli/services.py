"""`ottla schema-registry`, `audit-counter`, `mirror-maker`: each from a properties file or the environment, as a server runs it."""

from __future__ import annotations

import logging
import os
import socket

from ottla.cli.broker import ConfigOption, Overrides, PidFileOption
from ottla.cli.connection import pairs
from ottla.cli.log_lines import FormatOption, LevelOption, ends_told, set_up

log = logging.getLogger(__name__)


def schema_registry(
    config: ConfigOption = None,
    overrides: Overrides = None,
    pid_file: PidFileOption = None,
    log_level: LevelOption = None,
    log_format: FormatOption = None,
) -> None:
    """Run a schema registry with Confluent's API; its schemas are in a topic of the brokers.

    The names are Confluent's; docs/configuration.md lists them all. Any can be given by a variable: OTTLA_SETTING_ and its name in
    upper case, with _ for each dot. Without zookeeper.connect the node leads by itself.

    Examples:

    - `ottla schema-registry --config schema-registry.properties`
    - `OTTLA_SETTING_KAFKASTORE_BOOTSTRAP_SERVERS=localhost:9092 ottla schema-registry`
    """
    from ottla.cli.process import announce, serve_service, settings_of

    chosen_format = set_up(log_level, log_format, default_level="info")
    with ends_told(chosen_format):
        from ottla.config.registry import RegistrySettings
        from ottla.schema_registry.server import SchemaRegistry

        settings = settings_of(RegistrySettings, "schema-registry", config, os.environ, pairs(overrides, "--override"))
        registry = SchemaRegistry(settings, host_name=socket.getfqdn())

        def ready(url: str) -> None:
            announce(log, f"Ottla schema registry is ready on {url}", chosen_format)

        serve_service("schema-registry", registry, lambda: registry.url, ready, pid_file)


def audit_counter(
    config: ConfigOption = None,
    overrides: Overrides = None,
    pid_file: PidFileOption = None,
    log_level: LevelOption = None,
    log_format: FormatOption = None,
) -> None:
    """Run an audit counter: it compares what producers, brokers and consumers say they had.

    docs/configuration.md lists the settings. Any can be given by a variable: OTTLA_SETTING_ and its name in upper case, with _ for
    each dot. Without zookeeper.connect the counter is active by itself.

    Examples:

    - `ottla audit-counter --config audit-counter.properties`
    - `OTTLA_SETTING_BOOTSTRAP_SERVERS=localhost:9092 ottla audit-counter --override audit.directory=./audit`
    """
    from ottla.cli.process import announce, serve_service, settings_of

    chosen_format = set_up(log_level, log_format, default_level="info")
    with ends_told(chosen_format):
        from ottla.audit_counter.server import AuditServer
        from ottla.config.audit import AuditSettings

        settings = settings_of(AuditSettings, "audit-counter", config, os.environ, pairs(overrides, "--override"))
        server = AuditServer(settings, name=f"{socket.gethostname()}:{os.getpid()}")

        def ready(url: str) -> None:
            announce(log, f"Ottla audit counter is ready on {url or 'no port'}", chosen_format)

        serve_service("audit-counter", server, lambda: server.url, ready, pid_file)


def mirror_maker(
    config: ConfigOption = None,
    overrides: Overrides = None,
    pid_file: PidFileOption = None,
    log_level: LevelOption = None,
    log_format: FormatOption = None,
) -> None:
    """Copy topics of other clusters, each record once.

    The file is MirrorMaker 2's `mm2.properties`; docs/configuration.md lists the names. Workers with the same file and the same
    zookeeper.connect share the work. Without zookeeper.connect a worker does all of it.

    Examples:

    - `ottla mirror-maker --config mm2.properties`
    - `ottla mirror-maker --config mm2.properties --override "A->B.topics=clicks"`
    """
    from ottla.cli.process import announce, serve_service, settings_of

    chosen_format = set_up(log_level, log_format, default_level="info")
    with ends_told(chosen_format):
        from ottla.config.mirror import MirrorSettings
        from ottla.mirror_maker.server import MirrorMaker

        settings = settings_of(MirrorSettings, "mirror-maker", config, os.environ, pairs(overrides, "--override"))
        worker = MirrorMaker(settings)

        def ready(address: str) -> None:
            announce(log, f"Ottla mirror maker copies {address}", chosen_format)

        serve_service("mirror-maker", worker, lambda: worker.address, ready, pid_file)

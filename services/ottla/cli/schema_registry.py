"""`ottla schema-registry`: a schema registry from a properties file or the environment, as a server runs it."""

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

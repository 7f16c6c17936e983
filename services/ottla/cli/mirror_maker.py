"""`ottla mirror-maker`: a mirror maker's worker from a properties file, as a server runs it."""

from __future__ import annotations

import logging
import os

from ottla.cli.broker import ConfigOption, Overrides, PidFileOption
from ottla.cli.connection import pairs
from ottla.cli.log_lines import FormatOption, LevelOption, ends_told, set_up

log = logging.getLogger(__name__)


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

"""A broker's part in a takeover: at every start it looks who else lives there, and where Kafka wrote last it checks everything.

Which implementation wrote last is seen by the epochs of controllers: no broker writes a log without a controller, each controller takes
the next epoch, and Ottla's say which were theirs (`/ottla`). A directory has a note of the epoch with which the time began that it
was checked for. A directory without a `directory.id` was never Ottla's.

What stops the start is found before anything is written.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.config.broker import BrokerSettings
from ottla.coordination.interface import Coordination
from ottla.errors import OttlaError
from ottla.lifecycle import Offload
from ottla.takeover import cluster, directories, findings
from ottla.takeover.findings import Finding, Severity
from ottla.takeover.found import FoundBroker, FoundCluster, FoundDirectory

log: Final = logging.getLogger(__name__)


class TakeoverStopped(OttlaError):
    """What was found of Kafka stops the start; has a line for each."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A check that the start passed, to be written down once the directories are this broker's."""

    since_epoch: int
    accepted: tuple[str, ...]


async def check_before_start(coordination: Coordination, settings: BrokerSettings, offload: Offload) -> Checked | None:
    """Looks who lives here, and at everything where Kafka wrote last; None where it did not.

    Raises:
        TakeoverStopped: this broker must not start; nothing was written.
        CoordinationError: the znodes cannot be read.
    """
    who_lives = await cluster.read_who_lives(coordination)
    _stop_for(tuple(findings.mixture(who_lives)))
    found = await offload(directories.read_owners, settings.log_directories)
    if not needs_check(who_lives, found):
        return None
    whole = await cluster.read_cluster(coordination)
    broker = FoundBroker("this broker", settings, await offload(directories.read_directories, settings.log_directories))
    judged = findings.takeover(whole, [broker])
    _stop_for(findings.stops(judged))
    for finding in judged:
        level = logging.WARNING if finding.severity in (Severity.GIVEN_UP, Severity.CHANGES) else logging.INFO
        log.log(level, "takeover from Kafka: %s: %s", finding.severity.value, finding.sentence())
    given_up = tuple(sorted({finding.name for finding in judged if finding.severity is Severity.GIVEN_UP}))
    return Checked(who_lives.since_epoch, given_up)


async def write_down(checked: Checked, paths: list[Path], offload: Offload, now_ms: int) -> None:
    """Writes into the directories that they were checked. Where that fails they are checked again at the next start."""
    try:
        await offload(directories.write_note, paths, checked.since_epoch, checked.accepted, now_ms)
    except OSError as error:
        log.warning("it could not be written down that the log directories were checked: %s", error)


def needs_check(who_lives: FoundCluster, found: tuple[FoundDirectory, ...]) -> bool:
    """Whether Kafka may have written in one of the directories since they were checked last."""
    since = who_lives.since_epoch
    # A cluster whose first controller was Ottla's was never Kafka's.
    return any(
        directory.is_kraft or (directory.is_used and not directory.has_directory_id) or (since > 1 and directory.checked_since != since)
        for directory in found
    )


def _stop_for(found: tuple[Finding, ...]) -> None:
    if found:
        lines = "\n".join(f"  {directory.sentence()}" for directory in found)
        raise TakeoverStopped(f"the broker does not start (`ottla takeover check` says more, {findings.GUIDE} what to do):\n{lines}")

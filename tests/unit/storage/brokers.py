"""A broker's logs without the rest of a broker, for the tests of the log manager."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.lifecycle import Offload, offload_nothing
from ottla.model import TopicPartition
from ottla.storage.log_manager import LogManager
from ottla.testing import ManualClock

from .logs import FailingFiles

CLICKS = [TopicPartition("clicks", index) for index in range(8)]


class Broker:
    """What is left of a broker when there are only logs."""

    def __init__(self, *directories: Path, **properties: str) -> None:
        self.directories = directories
        self.clock = ManualClock()
        self.files = FailingFiles()
        self.overrides: Mapping[str, str] = {}
        self.new_id: Callable[[], UUID] = lambda: UUID(int=7)
        names = {"broker_id": "0", **properties}
        self.settings = BrokerSettings.from_properties(
            {"log.dirs": ",".join(map(str, directories)), **{name.replace("_", "."): value for name, value in names.items()}}
        )

    def manager(self, offload: Offload = offload_nothing) -> LogManager:
        return LogManager(
            self.directories,
            self.settings,
            self.clock,
            offload,
            lambda topic: TopicSettings.of(self.settings, self.overrides),
            files=self.files,
            new_id=self.new_id,
        )


def found_in(path: Path, pattern: str) -> list[Path]:
    """What lies there, in order."""
    return sorted(path.glob(pattern))


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())

"""What the next life of a broker must find, by how the last one ended and what became of its disks since. Real logs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.simulation.auditing import Auditor
from tests.simulation.cluster import Ending
from tests.simulation.disk import Crashed
from tests.simulation.test_log_audit import KEY, TOPIC_ID, batch

from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.lifecycle import offload_nothing
from ottla.storage.log_files import LogFiles
from ottla.storage.log_manager import LogManager
from ottla.storage.segment import Segment
from ottla.testing import ManualClock

SYNCED, WRITTEN = 20, 30


@pytest.mark.parametrize(
    ("endings", "must_be_there"),
    [
        ([Ending.KILLED], WRITTEN),
        ([Ending.LOST_POWER], SYNCED),
        ([Ending.KILLED, Ending.KILLED], WRITTEN),  # the second time before it had loaded anything
        ([Ending.KILLED, Ending.LOST_POWER], SYNCED),  # killed, and the power went while it was down
        ([Ending.KILLED, Ending.LOST_POWER, Ending.KILLED], SYNCED),
        ([Ending.KILLED, Ending.LOST_DISK, Ending.LOST_POWER], 0),
        ([Ending.LOST_DISK, Ending.LOST_POWER], 0),
    ],
)
def test_a_start_must_find_what_no_ending_since_the_last_life_could_take(tmp_path: Path, endings: list[Ending], must_be_there: int) -> None:
    async def scene() -> list[str]:
        settings = BrokerSettings.from_properties({"broker.id": "1", "log.dirs": str(tmp_path)})
        logs = LogManager(settings.log_directories, settings, ManualClock(), offload_nothing, lambda topic: TopicSettings.of(settings, {}))
        await logs.start()
        log = logs.create(KEY, TOPIC_ID)
        for offset in range(WRITTEN):
            log.appender.append_as_received(batch(offset))
            if offset == SYNCED - 1:
                await log.flush()
        violations: list[str] = []
        auditor = Auditor(cast("Any", SimpleNamespace(machines={})), Random(1), violations.append)
        machine: Any = SimpleNamespace(name="broker-1", broker_id=1, disks=[], broker=None, logs=logs)
        for ending in endings:
            auditor.going_down(machine, ending)
            machine.logs = None  # none of the next lives loads its logs
        kept = auditor._kept.get(1, {})
        await logs.shutdown(clean=False)
        assert violations == []
        return [f"{key}: {found.kept_offset}, {len(found.batches)} batches" for key, found in kept.items()]

    assert asyncio.run(scene()) == ([f"{KEY}: {must_be_there}, {must_be_there} batches"] if must_be_there else [])


def test_a_log_that_begins_again_behind_all_it_had_need_not_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leader has nothing of it any more. The crash comes between the first and the second of its segments to go."""

    async def scene() -> list[str]:
        settings = BrokerSettings.from_properties({"broker.id": "1", "log.dirs": str(tmp_path)})

        def manager() -> LogManager:
            return LogManager(
                settings.log_directories, settings, ManualClock(), offload_nothing, lambda topic: TopicSettings.of(settings, {})
            )

        logs = manager()
        await logs.start()
        log = logs.create(KEY, TOPIC_ID)
        for offset in range(WRITTEN):
            if offset == SYNCED:
                log.appender.roll()
            log.appender.append_as_received(batch(offset))
        discard = LogFiles.discard

        def crash(self: LogFiles, segments: Sequence[Segment]) -> None:
            discard(self, segments[:1])
            if segments:
                raise Crashed

        with monkeypatch.context() as patched, pytest.raises(Crashed):
            patched.setattr(LogFiles, "discard", crash)
            log.truncate_fully_and_start_at(2 * WRITTEN)
        auditor = Auditor(cast("Any", SimpleNamespace(machines={})), Random(1), lambda finding: None)
        replicas = SimpleNamespace(partitions={KEY: SimpleNamespace(high_watermark=WRITTEN)})
        auditor.going_down(
            cast(
                "Any", SimpleNamespace(broker_id=1, disks=[], broker=SimpleNamespace(parts=SimpleNamespace(replicas=replicas)), logs=logs)
            ),
            Ending.CRASHED,
        )
        await logs.shutdown(clean=False)
        logs = manager()
        await logs.start()
        try:
            assert [log.log_end_offset for log in logs.logs.values()] == [SYNCED]
            return list(auditor._not_kept(logs, KEY, auditor._kept[1][KEY]))
        finally:
            await logs.shutdown(clean=False)

    assert asyncio.run(scene()) == []

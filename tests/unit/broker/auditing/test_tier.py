"""From where on a broker counts for the audit."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.auditing.counting import BLOCK
from ottla.broker.auditing.tier import CHECKPOINT, AuditTier
from ottla.config.topic import TopicSettings
from ottla.interbroker.calls import PartitionAssignment
from ottla.lifecycle import offload_nothing
from ottla.model import BrokerId, PartitionState, TopicPartition
from ottla.record.audit_records import AuditRecord
from ottla.storage.checkpoints import write_offsets
from ottla.wire.cluster import Cluster

from ..wired import BROKER, batch, topic_id, wired

EVENTS = TopicPartition("events", 0)
TWO = BrokerId(2)


async def test_a_topic_made_again_is_counted_though_the_checkpoint_of_the_last_start_speaks_of_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one was deleted while this broker was away. Its leader dies before it has said anything, and this broker is the next one."""
    said: list[AuditRecord] = []

    async def send(tier: AuditTier, records: list[AuditRecord]) -> None:
        said.extend(records)

    monkeypatch.setattr(AuditTier, "_send", send)
    write_offsets(tmp_path / CHECKPOINT, {EVENTS: 1_000_000})
    async with wired(tmp_path / "broker") as broker, Cluster("two:9092") as cluster:
        parts = broker.parts
        tier = AuditTier(
            BROKER, parts.replicas.partitions, [tmp_path], cluster, parts.clock, offload_nothing, window_ms=60_000, interval_ms=3_600_000
        )
        await tier.start()
        parts.replicas.audit = tier
        broker.settings["events"] = TopicSettings.of(parts.settings, {})
        for epoch, leader in enumerate((TWO, BROKER)):
            state = PartitionState(leader, epoch, (leader,), (TWO, BROKER))
            assigned = PartitionAssignment("events", topic_id("events"), 0, state, epoch, is_new=epoch == 0)
            assert not any(parts.replicas.apply_at_once([assigned], {}).values())
            if leader == TWO:
                assert broker.partition("events").append_as_follower(memoryview(batch(*[b""] * (BLOCK + 2))), epoch, 0, 0)
        await tier.close()
        assert [(record.first_offset, record.next_offset) for record in said if record.windows] == [(0, BLOCK), (BLOCK, BLOCK + 2)]

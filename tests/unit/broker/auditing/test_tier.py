"""From where on a broker counts for the audit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.loops import until
from tests.unit.wire.clusters import brokers, cluster_of, create_topic

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


@pytest.mark.parametrize(("replicas", "reason"), [("2", "NotEnoughReplicas: __audit-"), ("1", "LeaderNotAvailable: __audit-")])
async def test_the_last_broker_does_not_wait_for_a_report_that_cannot_be_written(
    replicas: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the only one in sync of two that there have to be, or other brokers had the only replicas. None comes while it stops."""
    monkeypatch.setattr("ottla.broker.auditing.tier._FINAL_SECONDS", 600.0)
    monkeypatch.setattr("ottla.broker.auditing.tier._SEND_SECONDS", 600.0)
    settings = {
        "default_replication_factor": replicas,
        "min_insync_replicas": replicas,
        "audit_report_interval_ms": "60000",
        "controlled_shutdown_retry_backoff_ms": "1",
    }
    async with brokers(tmp_path, 2, audit_enable="true", **settings) as running, cluster_of(running) as cluster:
        for number in range(8):  # their reports are spread over the partitions of __audit
            await create_topic(cluster, f"clicks-{number}", 2)
        await until(lambda: running.running[TWO].metadata.leader(TopicPartition("__audit", 7)) is not None)
        await running.stop_broker(BrokerId(1))
        await until(lambda: running.running[TWO].metadata.brokers.keys() == {TWO})
        async with asyncio.timeout(60):
            await running.stop_broker(TWO)
    said = [record.getMessage() for record in caplog.records if "the last audit records are not written" in record.getMessage()]
    assert any(reason in line for line in said), said

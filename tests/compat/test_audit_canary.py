"""The audit counter's canary at work: real brokers, real sockets, a counter with its page and its file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from tests.unit.audit_counter.test_server import beside, get, rpc_channel, server_of, settings_of
from tests.unit.wire.clusters import brokers, cluster_of, servers

from ottla.audit_counter.canary.runner import Canary, CanarySchedule
from ottla.audit_counter.server import AuditServer
from ottla.audit_counter.service import Summary
from ottla.broker.in_process import InProcessBrokers
from ottla.cli.main import run
from ottla.clock import SystemClock
from ottla.model import BrokerId, TopicPartition
from ottla.record.audit_records import CANARY_TOPIC, WRONG
from ottla.rpc.v1 import audit_pb2 as messages
from ottla.testing.certificates import Authority
from ottla.wire.cluster import Cluster
from ottla.wire.groups import committed_offsets

pytestmark = pytest.mark.timeout(900)
WAIT_SECONDS: Final = 600.0
FAST: Final = {"audit_canary_enable": "true", "audit_canary_interval_ms": "250", "audit_canary_commit_interval_ms": "1000"}
THREE_COPIES: Final = {
    "default_replication_factor": "3",
    "offsets_topic_replication_factor": "3",
    "transaction_state_log_replication_factor": "3",
    "audit_enable": "true",
    "audit_report_interval_ms": "1000",
}


async def until(what: str, is_so: Callable[[], bool]) -> None:
    """Waits for it, as somebody who looks."""
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while not is_so():  # noqa: ASYNC110 - what a user sees is looked at
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"{what}: not within {WAIT_SECONDS:.0f} s")


@asynccontextmanager
async def three_brokers(directory: Path, **changes: str) -> AsyncIterator[tuple[InProcessBrokers, AuditServer, Canary]]:
    """With copies at each but of `__canary`, as `changes` have it, and a canary that sends."""
    async with brokers(directory, 3, **THREE_COPIES) as running:
        settings = settings_of(servers(running), directory / "audit", audit_tiers="producer,broker", **{**FAST, **changes})
        async with server_of(settings) as server:
            canary = server.canary
            assert canary is not None
            await until("three partitions that are led by three brokers", lambda: led(canary) == {1, 2, 3} and comes_back(canary))
            yield running, server, canary


def led(canary: Canary) -> set[int]:
    """Brokers that lead a partition."""
    return {int(partition.leader) for partition in canary.partitions.values() if partition.leader >= 0}


def comes_back(canary: Canary, since: dict[int, int] | None = None) -> bool:
    """Whether each partition gave back a message, or one after those."""
    return all(ledger.consumed > (since or {}).get(number, 0) for number, ledger in canary.ledgers.items())


def consumed(canary: Canary) -> dict[int, int]:
    """How many each partition gave back."""
    return {number: ledger.consumed for number, ledger in canary.ledgers.items()}


def has_reported(canary: Canary, since: int = 0) -> bool:
    """Whether it has committed more often than that."""
    return canary.reports.commit_seconds.snapshot().count > since


async def check_verdicts_at_the_end(server: AuditServer, canary: Canary) -> None:
    """Once the canary has said its final word, all of it is known, on both edges, and nothing is lost, doubled or another."""
    await canary.close()
    summary: Summary | None = None
    async with asyncio.timeout(WAIT_SECONDS):
        while summary is None or not summary.is_known:
            summary = await server.counter.summary(CANARY_TOPIC, 0, 1 << 60, wait_seconds=10)
    assert {said.edge for _, said in summary.verdicts} >= {"producer->broker", "broker->consumer:__canary"}
    assert not [said for _, said in summary.verdicts if said.verdict in WRONG]


async def test_a_broker_that_is_killed_one_that_comes_back_and_one_that_is_new_lead_what_they_should(tmp_path: Path) -> None:
    """Each broker that is alive leads a partition, messages go through all of them, and none is lost or doubled."""
    async with three_brokers(tmp_path, audit_canary_timeout_ms="60000") as (running, server, canary):
        await running.kill(BrokerId(2))
        await until("brokers 1 and 3 lead all", lambda: led(canary) == {1, 3})
        await until("messages come back from each partition", partial(comes_back, canary, consumed(canary)))
        assert len(canary.partitions) == 3, "a broker that is away keeps its partition"
        await running.start_broker(BrokerId(2))
        await until("broker 2 leads again", lambda: led(canary) == {1, 2, 3})
        await running.start_broker(BrokerId(4))
        await until("broker 4 leads one too", lambda: led(canary) == {1, 2, 3, 4})
        assert (len(canary.partitions), canary.brokers_without_partition) == (4, ())
        await until("messages come back from each partition", partial(comes_back, canary, consumed(canary)))
        assert [(ledger.lost, ledger.doubled) for ledger in canary.ledgers.values()] == [(0, 0)] * 4
        await check_verdicts_at_the_end(server, canary)


async def test_a_partition_without_a_leader_is_not_available_and_the_others_are(tmp_path: Path) -> None:
    """With one copy of each, what is not acknowledged in time has failed: IN_DOUBT at most, and never a loss."""
    changes = {"audit_canary_replication_factor": "1", "audit_canary_timeout_ms": "2000"}
    async with three_brokers(tmp_path, **changes) as (running, server, canary):
        number = next(number for number, partition in canary.partitions.items() if partition.leader == 2)
        failed, others = canary.ledgers[number].failed, {key: count for key, count in consumed(canary).items() if key != number}
        await running.kill(BrokerId(2))
        await until("messages fail", lambda: canary.ledgers[number].failed > failed)
        share, _ = canary.availability(number)
        assert share is not None
        assert share < 1.0
        await until("the others answer", lambda: all(canary.ledgers[key].consumed > count for key, count in others.items()))
        await until("nobody leads it", lambda: canary.partitions[number].leader == -1)  # heard of when the canary looks next
        await running.start_broker(BrokerId(2))
        await until("it is led again", lambda: led(canary) == {1, 2, 3})
        await until("messages come back from each partition", partial(comes_back, canary, consumed(canary)))
        assert [(ledger.lost, ledger.doubled) for ledger in canary.ledgers.values()] == [(0, 0)] * 3
        await check_verdicts_at_the_end(server, canary)


async def test_of_two_canaries_at_a_time_none_counts_what_the_other_has_counted(tmp_path: Path) -> None:
    """A counter that was stopped and does not know yet that another is active: whoever reads on begins where the other had reported."""
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(brokers(tmp_path))
        cluster = await stack.enter_async_context(cluster_of(running))
        settings = settings_of(servers(running), tmp_path / "audit", audit_session_timeout_ms="5000")
        server = await stack.enter_async_context(server_of(settings))
        canaries = []
        for _ in range(2):
            own = await stack.enter_async_context(Cluster(servers(running)))
            canaries.append(Canary(own, CanarySchedule(interval_seconds=0.02, commit_seconds=0.2), SystemClock()))
            stack.push_async_callback(canaries[-1].close)
        for canary in canaries:
            canary.begin()
            await until("it has reported", partial(has_reported, canary))
        await until("they fence each other", lambda: sum(canary.reports.failures for canary in canaries) > 2)
        await canaries[0].close()
        await until("the other one goes on", partial(has_reported, canaries[1], canaries[1].reports.commit_seconds.snapshot().count))
        await canaries[1].close()
        summary = await server.counter.summary(CANARY_TOPIC, 0, 1 << 60, ("log", "consumer:__canary"), WAIT_SECONDS)
        assert summary.is_known
        assert not [said for _, said in summary.verdicts if said.verdict in WRONG]
        end = (await committed_offsets(cluster, "__canary"))[TopicPartition(CANARY_TOPIC, 0)].offset
        counted = {tier: count for topic, tier, count in (await server.counter.sums()).totals if topic == CANARY_TOPIC}
        assert counted["consumer:__canary"] == end


def test_a_canary_can_be_asked_for_and_goes_on_from_where_it_had_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scene() -> None:
        async with brokers(tmp_path) as running, cluster_of(running) as cluster:
            for session in range(2):
                async with server_of(settings_of(servers(running), tmp_path / "audit", **FAST)) as server:
                    assert server.canary is not None

                    async def canary(url: str = server.url) -> Any:
                        return json.loads((await beside(get, url, "/v1/canary"))[2])

                    async with asyncio.timeout(WAIT_SECONDS):
                        while not (found := await canary())["partitions"] or not found["commit_p50_ms"]:  # noqa: ASYNC110 - as above
                            await asyncio.sleep(0.1)
                    assert (found["is_running"], found["brokers_without_partition"], found["partitions"][0]["leader"]) == (True, [], 1)
                    assert not session or found["partitions"][0]["doubled"] == found["partitions"][0]["lost"] == 0
                    assert await beside(run, ["audit", "canary", "--counter", server.url]) == 0
                    _, _, text = await beside(get, server.metrics_url, "/metrics")
                    assert 'ottla_audit_canary_messages_total{outcome="lost",partition="0"} 0.0' in text
                    assert 'ottla_audit_canary_produce_availability_ratio{partition="0"} 1.0' in text
                    async with rpc_channel(server.rpc_port) as channel:
                        answer = await channel.call_named(
                            "/ottla.rpc.v1.Audit/Canary", messages.CanaryRequest(), messages.CanaryResponse, timeout_seconds=60
                        )
                    assert (answer.is_running, list(answer.partitions[0].replicas)) == (True, [1])
            async with server_of(settings_of(servers(running), tmp_path / "audit", audit_verify="records")) as server:
                assert await beside(run, ["audit", "canary", "--counter", server.url]) == 3, "it is off"
                summary = await server.counter.summary("__canary", 0, 1 << 60, wait_seconds=WAIT_SECONDS)
                partition = TopicPartition("__canary", 0)
                committed = (await committed_offsets(cluster, "__canary"))[partition].offset
                assert {(said.edge, str(said.verdict)) for _, said in summary.verdicts} <= {
                    (edge, verdict) for edge in ("producer->log", "log->consumer:__canary") for verdict in ("COMPLETE", "LATE")
                }
                counted = {tier: count for topic, tier, count in (await server.counter.sums()).totals if topic == "__canary"}
                assert set(counted.values()) == {committed}, "each message was counted once at each tier"

    asyncio.run(asyncio.wait_for(scene(), WAIT_SECONDS))
    printed = capsys.readouterr().out
    assert "PRODUCE" in printed
    assert "commits: p50" in printed


async def test_a_canary_sends_and_reads_over_tls(tmp_path: Path) -> None:
    """Brokers that speak TLS alone, with each other too: messages, commits and the audit of them."""
    keystore, truststore = (str(path) for path in Authority("tests").write(tmp_path, "broker"))
    own: dict[str, Any] = {"ssl_keystore_location": keystore, "ssl_keystore_type": "PEM", "listeners": "SSL://127.0.0.1:0"}
    others: dict[str, Any] = {"ssl_truststore_location": truststore, "ssl_truststore_type": "PEM", "security_inter_broker_protocol": "SSL"}
    async with brokers(tmp_path, audit_enable="true", audit_report_interval_ms="1000", **own, **others) as running:
        trusted = {"security_protocol": "SSL", "ssl_truststore_location": truststore, "audit_tiers": "producer,broker"}
        async with server_of(settings_of(servers(running), tmp_path / "audit", **FAST, **trusted)) as server:
            canary = server.canary
            assert canary is not None
            await until("messages come back and are reported", lambda: led(canary) == {1} and comes_back(canary) and has_reported(canary))
            await check_verdicts_at_the_end(server, canary)

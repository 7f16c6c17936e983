"""One run from its first process to its judgement. Whatever happens on the way, nothing is left running."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos import auditing, incarnations
from tests.chaos.brokers import BrokerTrouble
from tests.chaos.checker import Verdict, check
from tests.chaos.cluster import BROKER_IDS, MIN_INSYNC_REPLICAS, PARTITIONS, TOPIC, Cluster, NotHealthy
from tests.chaos.faults import Faults, Injected
from tests.chaos.incarnations import IncarnationVerdict
from tests.chaos.recreating import Recreating
from tests.chaos.replicas import Difference, Writers, differences
from tests.chaos.schedule import Fault
from tests.chaos.transaction_checker import TransactionVerdict
from tests.chaos.transaction_checker import check as check_transactions
from tests.chaos.transaction_workload import COPIES, WRITTEN, TransactionalWorkload
from tests.chaos.transaction_workload import PARTITIONS as TRANSACTION_PARTITIONS
from tests.chaos.workload import Client, Workload, WorkloadFailed

REAL: Final = (sys.executable, "-m", "ottla.cli")
# What is acknowledged is watched for this often; it tells how long nothing was.
_WATCH_SECONDS: Final = 1.0
# After the last fault the cluster works for a while with nothing broken.
_QUIET_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is told."""

    seed: int
    faults: Sequence[Fault]
    directory: Path
    seconds: float
    messages_per_second: float = 1_500
    command: tuple[str, ...] = REAL
    faketime: Path | None = None
    messages_per_batch: int = 10_000
    one_after_the_other: bool = True  # the faults of a lane
    transactions: bool = True
    audit: bool = False


@dataclass(slots=True)
class Result:
    """What a run found."""

    injected: list[Injected] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    transactions: TransactionVerdict = field(default_factory=TransactionVerdict)
    incarnations: IncarnationVerdict = field(default_factory=IncarnationVerdict)
    differences: list[Difference] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    audit: list[auditing.Said] = field(default_factory=list)
    audit_of_transactions: list[auditing.Said] = field(default_factory=list)
    restarts: int = 0  # of brokers that found no ZooKeeper
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    longest_silence_seconds: float = 0.0
    longest_silence_at: float = 0.0
    seconds: float = 0.0

    @property
    def is_sound(self) -> bool:
        """Whether nothing at all is wrong."""
        verdicts = self.verdict, self.transactions, self.incarnations
        return all(verdict.is_sound for verdict in verdicts) and not self.differences and not self.troubles


async def run(options: Options, say: Callable[[str], None]) -> Result:
    """Starts a cluster and clients, breaks what is to be broken, waits until all is well, judges."""
    shutil.rmtree(options.directory, ignore_errors=True)
    cluster = Cluster(options.directory, options.command, options.faketime, auditing.OF_BROKERS if options.audit else {})
    result = Result()
    try:
        say("starting ZooKeeper and three brokers")
        await cluster.start()
        await _run(options, cluster, result, say)
    except (BrokerTrouble, NotHealthy, WorkloadFailed, TimeoutError) as error:
        result.troubles.append(f"{type(error).__name__}: {error}")
    finally:
        await cluster.close()
    result.restarts = sum(broker.restarts for broker in cluster.brokers.values())
    result.troubles += [
        f"broker {broker_id} ended by itself with exit code {code}; its log is {cluster.brokers[broker_id].log_file}"
        for broker_id, code in cluster.unexpected_ends
    ]
    if result.is_sound:
        for broker in cluster.brokers.values():
            shutil.rmtree(broker.data_directory, ignore_errors=True)
    return result


async def _run(options: Options, cluster: Cluster, result: Result, say: Callable[[str], None]) -> None:
    began_at = time.monotonic()

    def now() -> float:
        return time.monotonic() - began_at

    workload = Workload(
        cluster.bootstrap_servers,
        f"127.0.0.1:{cluster.zookeeper.port}/chaos",
        options.directory / "clients",
        options.seed,
        options.messages_per_second,
        began_at,
        options.messages_per_batch,
        options.audit,
    )
    counter = auditing.AuditCounter(cluster.bootstrap_servers, options.directory / "audit")
    transactional = (
        TransactionalWorkload(cluster.bootstrap_servers, options.directory / "clients", options.seed, began_at, is_audited=options.audit)
        if options.transactions
        else None
    )
    told = Recreating(
        cluster.bootstrap_servers,
        len(BROKER_IDS),
        MIN_INSYNC_REPLICAS,
        f"{options.seed}/recreating",
        began_at,
        str(options.directory / "clients" / "recreating.json"),
    )
    recreating = Client("recreating", "tests.chaos.recreating", told, options.directory / "clients")
    faults = Faults(cluster, now, say)
    watch = asyncio.create_task(_watch(workload, result, now))
    try:
        if options.audit:
            await counter.start()
        await workload.start()
        if transactional is not None:
            await transactional.start(len(BROKER_IDS), MIN_INSYNC_REPLICAS)
        await recreating.start()
        await faults.perform(options.faults, options.one_after_the_other)
        await asyncio.sleep(max(_QUIET_SECONDS, options.seconds - now()))
        say(f"{now():7.1f} s  everything is mended; waiting until all replicas are in sync")
        await cluster.until_healthy()
        workload.check()
        recreating.check()
        if transactional is not None:
            transactional.check()
        watch.cancel()
        say(f"{now():7.1f} s  the clients end, and one of them reads everything")
        history, lost_by_the_group = await workload.finish()
        result.troubles += lost_by_the_group
        await recreating.end()
        if options.audit:
            say(f"{now():7.1f} s  the audit is asked")
            result.audit = await counter.said(TOPIC)
        transactions = await transactional.finish(result.troubles) if transactional is not None else None
        if options.audit and transactional is not None:
            result.audit_of_transactions = await counter.said(WRITTEN)
            result.troubles += auditing.accusations(result.audit_of_transactions)
        await _stop(cluster, result)
        say(f"{now():7.1f} s  judging {sum(map(len, history.sends))} messages sent and {sum(map(len, history.polls))} polled")
        writers = Writers(next(iter(cluster.brokers.values())).data_directory, TOPIC)
        result.verdict = await asyncio.to_thread(check, history, writers)
        if options.audit:
            result.troubles += auditing.disagreements(result.audit, result.verdict)
        directories = {broker_id: broker.data_directory for broker_id, broker in cluster.brokers.items()}
        result.differences = await asyncio.to_thread(differences, directories, TOPIC, PARTITIONS)
        lives = await asyncio.to_thread(incarnations.load, recreating.history_file)
        result.incarnations = incarnations.check(lives)
        if transactions is not None:
            say(f"{now():7.1f} s  judging {len(transactions.transactions)} transactions")
            result.transactions = await asyncio.to_thread(check_transactions, transactions, WRITTEN)
            for topic in (WRITTEN, COPIES):
                result.differences += await asyncio.to_thread(differences, directories, topic, TRANSACTION_PARTITIONS)
    finally:
        watch.cancel()
        await counter.close()
        await workload.close()
        await recreating.close()
        result.clients = workload.reports | {recreating.name: recreating.report}
        if transactional is not None:
            await transactional.close()
            result.clients |= transactional.reports
        result.injected = faults.injected
        result.troubles += faults.troubles
        result.seconds = now()


async def _stop(cluster: Cluster, result: Result) -> None:
    """Asks every broker to stop; one that does not, or not cleanly, is a trouble."""
    for broker in cluster.brokers.values():
        try:
            await broker.terminate()
        except BrokerTrouble as error:
            result.troubles.append(f"at the end: {error}")


async def _watch(workload: Workload, result: Result, now: Callable[[], float]) -> None:
    """Notes the longest time in which no message was acknowledged."""
    acknowledged, since = 0, now()
    while True:
        await asyncio.sleep(_WATCH_SECONDS)
        if workload.acknowledged != acknowledged:
            acknowledged, since = workload.acknowledged, now()
        elif now() - since > result.longest_silence_seconds:
            result.longest_silence_seconds, result.longest_silence_at = now() - since, since

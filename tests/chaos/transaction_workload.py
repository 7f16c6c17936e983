"""The transactional clients of a run: writers, copiers and a reader of committed data, beside those without transactions.

In the end the writers end first; when no transaction is open any more one reader reads what they wrote; the copiers go on
until they have copied it; then another reads the copies. A transaction that stays open by then hangs for ever, which is told
as a trouble beside what it kept readers from.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from tests.chaos.copying import GROUP
from tests.chaos.transaction_history import TransactionHistory
from tests.chaos.transactional_clients import Transacting
from tests.chaos.workload import Client

WRITTEN: Final = "transactions"
COPIES: Final = "copies"
PARTITIONS: Final = 3
WRITERS: Final = 2
COPIERS: Final = 2
READERS: Final = ("", "rack-2")  # where each of them is
_REQUEST_SECONDS: Final = 10.0
# Transactions that were left open time out after 15 s, and are looked for every 10.
SETTLED_SECONDS: Final = 60.0
_COPIED_SECONDS: Final = 120.0
_TO_THE_END_SECONDS: Final = 240.0


class TransactionalWorkload:
    """All transactional clients of a run.

    Args:
        bootstrap_servers: where the cluster is.
        directory: for histories and logs.
        seed: the run's.
        began_at: the run's begin, by the monotonic clock.
        is_audited: writers report to the audit, and a reader more, which reads what they write once.
    """

    def __init__(self, bootstrap_servers: str, directory: Path, seed: int, began_at: float, *, is_audited: bool = False) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._directory = directory
        self._seed = seed
        self._began_at = began_at
        both = WRITTEN, COPIES
        self._writers = [self._client("transacting", f"writer-{number}", both, is_audited=is_audited) for number in range(1, WRITERS + 1)]
        self._copiers = [self._client("copying", f"copier-{number}", both) for number in range(1, COPIERS + 1)]
        # One reads from leaders, and one from a replica near it, which knows by itself what is committed and what is aborted.
        self._readers = [self._client("reading_committed", f"reader-{each}", both, rack=rack) for each, rack in enumerate(READERS, 1)]
        if is_audited:
            self._readers.append(self._client("reading_committed", "reader-for-the-audit", (WRITTEN,), is_audited=True))
        self._final = [
            self._client("reading_committed", f"final-reader-of-{topic}", (topic,), to_the_end=True) for topic in (WRITTEN, COPIES)
        ]

    def _client(
        self, module: str, name: str, topics: tuple[str, ...], to_the_end: bool = False, rack: str = "", *, is_audited: bool = False
    ) -> Client:
        file = str(self._directory / f"{name}.history")
        seed = f"{self._seed}/{name}"
        told = Transacting(name, self._bootstrap_servers, topics, PARTITIONS, seed, self._began_at, file, to_the_end, rack, is_audited)
        return Client(name, f"tests.chaos.{module}", told, self._directory)

    async def start(self, replication_factor: int, min_insync_replicas: int) -> None:
        """Makes the topics and starts the clients."""
        config = {"min.insync.replicas": str(min_insync_replicas)}
        topics = [NewTopic(name, PARTITIONS, replication_factor, config=config) for name in (WRITTEN, COPIES)]
        admin = self._admin()
        for made in admin.create_topics(topics, operation_timeout=5, request_timeout=_REQUEST_SECONDS).values():
            await asyncio.to_thread(made.result, 2 * _REQUEST_SECONDS)
        for client in (*self._writers, *self._copiers, *self._readers):
            await client.start()

    @property
    def _all(self) -> list[Client]:
        return [*self._writers, *self._copiers, *self._readers, *self._final]

    @property
    def reports(self) -> dict[str, dict[str, Any]]:
        """What each client last said of itself."""
        return {client.name: client.report for client in self._all}

    def check(self) -> None:
        """Raises when one has ended early."""
        for client in (*self._writers, *self._copiers, *self._readers):
            client.check()

    async def finish(self, troubles: list[str]) -> TransactionHistory:
        """Ends all of them, one kind after the other, and gives what they saw.

        Args:
            troubles: told what kept them from ending as they should.

        Raises:
            WorkloadFailed: one of them could not do its part.
        """
        history = TransactionHistory()
        for writer in self._writers:
            await writer.end()
        troubles += await self._until_settled(WRITTEN)
        await self._read(self._final[0], history)
        last = {row.partition: row.offset for row in history.reads[-1].rows}
        troubles += await self._until_copied(last)
        for copier in self._copiers:
            await copier.end()
        troubles += await self._until_settled(COPIES)
        await self._read(self._final[1], history)
        for reader in self._readers:
            await reader.end()
        for client in (*self._writers, *self._copiers, *self._readers):
            await asyncio.to_thread(history.load, client.history_file)
        return history

    async def close(self) -> None:
        """Ends by force whatever still runs."""
        for client in self._all:
            await client.close()

    async def _read(self, reader: Client, history: TransactionHistory) -> None:
        await reader.start()
        await reader.end(_TO_THE_END_SECONDS, by_itself=True)
        await asyncio.to_thread(history.load, reader.history_file)

    async def _until_settled(self, topic: str) -> list[str]:
        """Waits until no transaction is open; gives those partitions in which one stays so."""
        deadline = time.monotonic() + SETTLED_SECONDS
        while True:
            try:
                hanging = await asyncio.to_thread(self._truncation_unwritten, topic)
            except KafkaException as error:
                hanging = [f"{topic}: {error.args[0].str()}"]
            if not hanging or time.monotonic() > deadline:
                return hanging
            await asyncio.sleep(0.5)

    def _admin(self) -> AdminClient:
        """A new one each time: one that has seen an older leader is refused for its epoch for minutes."""
        return AdminClient({"bootstrap.servers": self._bootstrap_servers, "log_level": 0})

    def _truncation_unwritten(self, topic: str) -> list[str]:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        stable = self._ends(partitions, IsolationLevel.READ_COMMITTED)
        ends = self._ends(partitions, IsolationLevel.READ_UNCOMMITTED)
        return [
            f"a transaction hangs in {topic}-{each}: the last stable offset is {stable[each]}, and the high watermark {end}"
            for each, end in ends.items()
            if stable[each] != end
        ]

    def _ends(self, partitions: list[TopicPartition], isolation: IsolationLevel) -> dict[int, int]:
        admin = self._admin()  # to be kept: what it has asked for ends with it
        found = admin.list_offsets(
            {partition: OffsetSpec.latest() for partition in partitions}, isolation_level=isolation, request_timeout=_REQUEST_SECONDS
        )
        return {each.partition: made.result(2 * _REQUEST_SECONDS).offset for each, made in found.items()}

    async def _until_copied(self, last: dict[str, int]) -> list[str]:
        """Waits until the group has come to the last message of each partition."""
        deadline = time.monotonic() + _COPIED_SECONDS
        while True:
            for copier in self._copiers:
                copier.check()
            try:
                committed = await asyncio.to_thread(self._committed)
            except KafkaException as error:
                missing = [f"the copiers' offsets are not known: {error.args[0].str()}"]
            else:
                missing = [
                    f"the copiers have come to offset {committed.get(partition)} of {partition}, whose last message is at {offset}"
                    for partition, offset in last.items()
                    if committed.get(partition, -1) <= offset
                ]
            if not missing or time.monotonic() > deadline:
                return missing
            await asyncio.sleep(0.5)

    def _committed(self) -> dict[str, int]:
        consumer = Consumer({"bootstrap.servers": self._bootstrap_servers, "group.id": GROUP, "enable.auto.commit": False, "log_level": 0})
        try:
            found = consumer.committed([TopicPartition(WRITTEN, number) for number in range(PARTITIONS)], _REQUEST_SECONDS)
            return {f"{partition.topic}-{partition.partition}": partition.offset for partition in found}
        finally:
            consumer.close()

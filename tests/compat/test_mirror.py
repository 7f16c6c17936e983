"""Mirror makers as processes, killed and stopped by the kernel; the target has each record once and in order."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from tests.unit.mirror_maker.mirrors import Side, batch, committed, create_both, two_sides
from tests.unit.wire.clusters import servers

from ottla.model import TopicPartition
from ottla.wire.producing import BatchProducer

PARTITIONS = 3
BATCHES = 150
RECORDS = 4  # of a batch
WANTED = [TopicPartition("clicks", number) for number in range(PARTITIONS)]


class Worker:
    """One process; several without ZooKeeper all take every slot, and fence each other."""

    def __init__(self, config: Path, log: Path) -> None:
        with log.open("ab") as into:
            command = [sys.executable, "-m", "ottla.cli", "mirror-maker", "--config", str(config)]
            self.process = subprocess.Popen(command, stdout=into, stderr=into, stdin=subprocess.DEVNULL)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(10)


def values_of(partition: TopicPartition) -> list[bytes]:
    return [b"%d-%d" % (partition.partition, number) for number in range(BATCHES * RECORDS)]


async def publish(side: Side) -> None:
    async with BatchProducer(side.cluster) as producer:
        for number in range(BATCHES):
            for partition in WANTED:
                producer.send(partition, batch(*values_of(partition)[number * RECORDS : (number + 1) * RECORDS]))
            await producer.flush()
            await asyncio.sleep(0.03)


async def count_of(side: Side) -> int:
    return sum(map(len, (await committed(side, *WANTED)).values()))


async def reaches(side: Side, count: int, log: Path) -> None:
    try:
        async with asyncio.timeout(240):
            while await count_of(side) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{await count_of(side)} of {count}; see {log}") from None


def _says_that_it_is_fenced(log: Path) -> bool:
    return "another worker has taken ottla-mirror-A-B" in log.read_text()


async def test_each_record_is_there_once_when_workers_are_killed_and_stopped(tmp_path: Path) -> None:
    """kill -9 in the middle of whatever it does, and SIGSTOP for as long as another one takes to have the slots, which then wakes up."""
    log = tmp_path / "workers.log"
    config = tmp_path / "mm2.properties"
    total = PARTITIONS * BATCHES * RECORDS
    async with two_sides(tmp_path) as (a, b):
        await create_both(a, b, "clicks", PARTITIONS)
        config.write_text(
            f"clusters = A, B\nA.bootstrap.servers = {servers(a.brokers)}\nB.bootstrap.servers = {servers(b.brokers)}\n"
            "A->B.enabled = true\nnaming = identity\nslots = 2\nreplication.factor = 1\nrefresh.topics.interval.seconds = 1\n"
        )
        publishing = asyncio.create_task(publish(a))
        workers = [Worker(config, log)]
        try:
            for share in (1, 2, 3):
                await reaches(b, total * share // 8, log)
                workers[-1].signal(signal.SIGKILL)
                workers.append(Worker(config, log))
            await reaches(b, total * 4 // 8, log)
            sleeper = workers[-1]
            sleeper.signal(signal.SIGSTOP)
            workers.append(Worker(config, log))
            await reaches(b, total * 6 // 8, log)
            sleeper.signal(signal.SIGCONT)
            await publishing
            expected = {partition: values_of(partition) for partition in WANTED}
            # Who has slept finds out with the first transaction that it means to commit, so there is something to copy until then.
            async with asyncio.timeout(240), BatchProducer(a.cluster) as producer:
                while not _says_that_it_is_fenced(log):
                    for partition in WANTED:
                        expected[partition].append(b"more %d" % len(expected[partition]))
                        await producer.send(partition, batch(expected[partition][-1]))
                    await asyncio.sleep(0.1)
            await reaches(b, sum(map(len, expected.values())), log)
            found = await committed(b, *WANTED)
            for partition in WANTED:
                assert [record.value for record in found[partition]] == expected[partition]
            workers[-1].signal(signal.SIGTERM)
            await asyncio.get_running_loop().run_in_executor(None, workers[-1].process.wait, 120)
            assert workers[-1].process.returncode == 0
        finally:
            publishing.cancel()
            for worker in workers:
                worker.close()

"""What a program of ours does with a broker by `ottla.wire`: writes one batch over and over, or reads a partition to its end.

`python -m tests.bench.client_load JSON` prints one JSON line, as `tests.bench.load` does for the bench's own generator.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict
from typing import Any

from tests.bench import wire
from tests.bench.load import Meter, Outcome, ProduceLoad, ScanLoad
from tests.bench.processes import cpu_seconds

from ottla.model import TopicPartition
from ottla.wire.cluster import Cluster
from ottla.wire.fetching import Fetcher, FetchSettings
from ottla.wire.producing import BaseOffset, BatchProducer, ProduceSettings


async def produce(load: ProduceLoad) -> Outcome:
    """As many batches on their way as the load's window has; the producer is idempotent if all have to acknowledge."""
    batch = wire.record_batch(load.messages_per_batch, load.message_size)
    meter = Meter(load)
    partition = TopicPartition(load.topic, 0)
    settings = ProduceSettings(load.acks, load.acks == -1, load.window, buffer_bytes=2 * load.window * len(batch))
    answered = 0

    def written(result: asyncio.Future[BaseOffset]) -> None:
        nonlocal answered
        result.result()
        answered += 1
        meter.answered(answered, answered * len(batch))

    async with Cluster(f"127.0.0.1:{load.port}") as cluster, BatchProducer(cluster, settings) as producer:
        while not meter.finished:
            producer.send(partition, batch).add_done_callback(written)
            await producer.room()
            await asyncio.sleep(0)
    return meter.outcome(0, answered)


async def scan(load: ScanLoad, check_crcs: bool) -> Outcome:
    partition = TopicPartition(load.topic, 0)
    settings = FetchSettings(max_partition_bytes=load.max_bytes, check_crcs=check_crcs)
    polled = received = offset = 0
    async with Cluster(f"127.0.0.1:{load.port}") as cluster, Fetcher(cluster, settings) as fetcher:
        await cluster.leader(partition)
        begun_at, server_cpu, own_cpu = time.perf_counter(), cpu_seconds(load.server_pid), time.process_time()
        fetcher.assign(partition, 0)
        while offset < load.end_offset:
            for fetched in await fetcher.poll(20.0):
                polled += 1
                received += len(fetched.records)
                offset = fetched.next_offset
        return Outcome(
            requests=polled,
            bytes=received,
            seconds=time.perf_counter() - begun_at,
            server_cpu_seconds=cpu_seconds(load.server_pid) - server_cpu,
            answer_size=0,
            total_requests=polled,
            generator_cpu_seconds=time.process_time() - own_cpu,
            begun_at=begun_at,
        )


def main() -> None:
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    if "end_offset" in arguments:
        check_crcs = arguments.pop("check_crcs")
        outcome = asyncio.run(scan(ScanLoad(**arguments), check_crcs))
    else:
        outcome = asyncio.run(produce(ProduceLoad(**arguments)))
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")


if __name__ == "__main__":
    main()

"""Every message of a clean run is accounted for on each edge of a pipeline: producer, broker, consumer, mirror, the other broker, load.

Two clusters of two brokers, which are processes, as are the mirror maker, the audited producers and the audited consumer; a group reads in
the first cluster, and Spark loads into a Delta table what the mirror has brought to the second. The audit counter of each cluster says
COMPLETE of each edge it has, with every message at both its ends. `OTTLA_AUDIT_MESSAGES=10000000` is the proof at its full length.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from tests.compat.test_mirror import Worker
from tests.compat.test_mirror_proof import audited, side
from tests.spark.audited_clients import MESSAGES, PARTITIONS, SECONDS, WINDOW_MS, consume, produce

from ottla.testing.zookeeper import ZooKeeperServer, why_unavailable
from ottla.wire.admin import NewTopic, create_topics

pytest.importorskip("deltalake")

from ottla.spark.loading.driver import LoadSettings, SparkExecutor, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRODUCERS: Final = 2


@pytest.mark.timeout(4 * SECONDS)
@pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
async def test_each_edge_of_a_whole_pipeline_is_complete(spark: SparkSession, tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    with (
        ZooKeeperServer(tmp_path / "zookeeper") as zookeeper,
        ProcessPoolExecutor(PRODUCERS + 1, mp_context=get_context("spawn")) as clients,
    ):
        async with side(tmp_path / "a", zookeeper) as a, side(tmp_path / "b", zookeeper) as b:
            for one in (a, b):
                await create_topics(one.cluster, [NewTopic("clicks", PARTITIONS, 2, {})])
            servers = [",".join(broker.address for broker in one.brokers.values()) for one in (a, b)]
            config = tmp_path / "mm2.properties"
            config.write_text(
                f"clusters = A, B\nA.bootstrap.servers = {servers[0]}\nB.bootstrap.servers = {servers[1]}\nA->B.enabled = true\n"
                "topics = clicks\nnaming = identity\nslots = 4\nreplication.factor = 2\n"
                f"zookeeper.connect = 127.0.0.1:{zookeeper.port}/b\naudit.enable = true\n"
            )
            worker = Worker(config, tmp_path / "worker.log")
            try:
                each = MESSAGES // PRODUCERS
                reading = loop.run_in_executor(clients, consume, servers[0])
                await asyncio.gather(
                    *(loop.run_in_executor(clients, produce, servers[0], number * each, each) for number in range(PRODUCERS))
                )
                assert await reading == MESSAGES
                settings = LoadSettings.of(
                    {"kafka.bootstrap.servers": servers[1], "subscribe": "clicks"},
                    str(tmp_path / "table"),
                    "nightly",
                    audit_window_ms=WINDOW_MS,
                )
                rows = 0
                async with asyncio.timeout(SECONDS):
                    while rows < MESSAGES:
                        rows += (await asyncio.to_thread(load, settings, SparkExecutor(lambda: spark))).rows
                assert rows == MESSAGES
                await audited(a, tmp_path / "a.db", ["producer->broker", "broker->consumer:billing", "broker->mirror:A-B"], MESSAGES)
                await audited(b, tmp_path / "b.db", ["mirrored:A-B->broker", "broker->load:nightly"], MESSAGES)
                sys.stdout.write(f"{MESSAGES} messages: five edges are COMPLETE\n")
            finally:
                worker.close()

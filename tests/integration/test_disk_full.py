"""A broker's volume is full: it waits for room, the others continue, and no one loses an acknowledged message.

Unlike Kafka, whose broker ends when its only log directory has no room, Ottla takes a full disk as something that passes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import confluent_kafka
from tests.compat.quiet import quiet
from tests.integration.compose import ComposeCluster
from tests.integration.containers import BROKERS, Containers, broker, broker_image, wait_until
from tests.integration.docker import ROOT, docker
from tests.integration.load import Load
from tests.integration.view import View

ApplyLoad = Callable[[View], AbstractContextManager[Load]]
FULL = "broker-3"


def test_a_full_disk_costs_nobody_an_acknowledged_message(new_cluster: Callable[..., ComposeCluster], applied_load: ApplyLoad) -> None:
    """Clients of the partitions that it leads wait, as what they are told can be tried again; as a follower it leaves the ISR."""
    made = new_cluster("disk", more_files=[ROOT / "tests" / "integration" / "small_disk.yml"])
    made.up("zookeeper", *map(broker, BROKERS))
    containers, view = made.containers, View(made.containers.addresses())
    view.create_topic("much", partitions=len(BROKERS))
    holder = hold(containers)
    with applied_load(view) as running, ThreadPoolExecutor() as threads:
        running.more()
        docker("exec", holder, "sh", "-c", "head -c 64m /dev/zero >/var/lib/ottla/filling || test -s /var/lib/ottla/filling")
        written = threads.submit(write_much, view)
        wait_until("it has fallen out of an ISR", view.out_of_sync, 120, lambda: containers.logs(FULL))
        assert containers.health()[FULL] == "healthy"
        docker("exec", holder, "rm", "/var/lib/ottla/filling")
        written.result(150)
        view.wait_in_sync()
        running.more()
    assert containers.inspect(FULL)["RestartCount"] == 0
    docker("rm", "--force", holder)
    made.down()


def write_much(view: View) -> None:
    """Ten megabytes, which the full volume has no room for. In the end each message is acknowledged."""
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    producer = confluent_kafka.Producer({"bootstrap.servers": view.addresses, "enable.idempotence": True, **quiet()})
    for number in range(100):
        producer.produce("much", os.urandom(100_000), partition=number % len(BROKERS), on_delivery=delivered)
    assert producer.flush(140) == 0
    assert failed == []


def hold(containers: Containers) -> str:
    """A container that has the volume too: a file system in memory is gone as soon as no one has it."""
    return docker(
        *("run", "--detach", "--no-healthcheck", "--label", f"ottla.integration={containers.project}"),
        *("--volume", f"{containers.project}_{FULL}:/var/lib/ottla", "--entrypoint", "sleep", broker_image(), "infinity"),
    )

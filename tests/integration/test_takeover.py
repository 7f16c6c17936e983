"""A cluster in containers takes over what Kafka 3.9.1 left: its volumes hold Kafka's directories, and ZooKeeper's its data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.integration.compose import ComposeCluster
from tests.integration.containers import BROKERS, broker, broker_image
from tests.integration.docker import ROOT, docker
from tests.integration.load import Load
from tests.integration.view import View
from tests.unit.takeover.kafka_left import CLEAN, KILLED, KafkaLeft

ApplyLoad = Callable[[View], AbstractContextManager[Load]]
USER = "10001:10001"  # of the images


@pytest.mark.parametrize("which", [CLEAN, pytest.param(KILLED, marks=pytest.mark.long)])
def test_containers_take_kafkas_place(
    which: str, tmp_path: Path, new_cluster: Callable[..., ComposeCluster], applied_load: ApplyLoad
) -> None:
    """A broker that finds the sessions of a Kafka that was killed ends, and its container is started again until they are over."""
    left = KafkaLeft.unpack(which, tmp_path)
    made = new_cluster(f"takeover-{which}", more_files=[ROOT / "tests" / "integration" / "takeover.yml"])
    services = ("zookeeper", *map(broker, BROKERS))
    made.compose("up", "--no-start", "--no-build", *services)
    fill(made, "zookeeper", tmp_path / "zookeeper", "/data")
    for broker_id in BROKERS:
        fill(made, broker(broker_id), left.log_directory(broker_id), "/var/lib/ottla/data")
    made.up(*services)
    view = View(made.containers.addresses())
    left.check(view.addresses)
    view.wait_in_sync()
    with applied_load(view) as running:
        running.more()
    made.down()


def fill(made: ComposeCluster, volume: str, source: Path, to: str) -> None:
    """Copies a directory into a volume, to where the service of the volume looks for it."""
    mounted = "/data" if to == "/data" else "/var/lib/ottla"
    project = made.containers.project
    holder = docker(
        *("run", "--detach", "--no-healthcheck", "--user", "0", "--label", f"ottla.integration={project}"),
        *("--volume", f"{project}_{volume}:{mounted}", "--entrypoint", "sleep", broker_image(), "infinity"),
    )
    docker("exec", "--user", "0", holder, "mkdir", "-p", to)
    docker("cp", f"{source}/.", f"{holder}:{to}")
    docker("exec", "--user", "0", holder, "chown", "-R", USER, to)
    docker("rm", "--force", holder)

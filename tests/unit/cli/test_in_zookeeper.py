"""Commands that look into ZooKeeper: what they find there, and that they make nothing."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient

from ottla.cli.main import run
from ottla.testing.cluster import EmbeddedCluster


def test_a_chroot_that_is_not_there_is_said_and_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    """A group was set back in one that was made for it, at which no consumer looks."""
    with EmbeddedCluster(settings={"coordination.listener": "127.0.0.1:0"}) as cluster:
        cluster.create_topic("clicks")
        look = KazooClient(cluster.zookeeper_address)
        look.start(120)
        where = ["--zookeeper", f"{cluster.zookeeper_address}/misspelt", "-b", cluster.bootstrap_servers]
        assert run(["groups", "reset-offsets", "billing", "-t", "clicks", "--to-earliest", "--execute", *where]) == 1
        assert "/misspelt: there is no such chroot" in capsys.readouterr().err
        assert look.exists("/misspelt") is None
        assert run(["broker", "drain", "0", "--zookeeper", f"{cluster.zookeeper_address}/misspelt"]) == 1
        assert "broker 0 is not registered" in capsys.readouterr().err
        assert look.exists("/misspelt") is None
        look.stop()
        look.close()

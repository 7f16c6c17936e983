"""Commands that look into ZooKeeper: what they find there, and that they make nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_a_takeover_check_says_in_one_sentence_that_no_zookeeper_answers(tmp_path: Path) -> None:
    """Without what kazoo logs of each attempt."""
    config = tmp_path / "server.properties"
    config.write_text(f"broker.id=1\nlog.dirs={tmp_path}\nzookeeper.connect=127.0.0.1:1\nzookeeper.connection.timeout.ms=500\n")
    command = [sys.executable, "-m", "ottla.cli", "takeover", "check", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("ottla: zookeeper.connect = 127.0.0.1:1: ")

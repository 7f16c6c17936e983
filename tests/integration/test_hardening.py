"""What a container may and what is in it: next to nothing, and only what is needed."""

from __future__ import annotations

import json
import time

import pytest
from tests.integration.containers import Containers, broker_image
from tests.integration.docker import DockerFailed, docker

SERVICES = ("zookeeper", "broker-1", "broker-2", "broker-3", "prometheus")


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_is_nobody_who_can_do_nothing(service: str, containers: Containers) -> None:
    """Read in /proc of its first process: a user's id, no capability whatever it executes, and no way to get one."""
    status = dict(line.split(":", 1) for line in containers.execute(service, "cat", "/proc/1/status").splitlines())
    assert status["Uid"].split() == ["10001"] * 4
    assert status["Gid"].split() == ["10001"] * 4
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"].strip() == "1"


@pytest.mark.parametrize("service", SERVICES)
def test_nothing_is_written_but_to_the_volume(service: str, containers: Containers) -> None:
    assert containers.inspect(service)["HostConfig"]["ReadonlyRootfs"]
    with pytest.raises(DockerFailed, match="Read-only file system"):
        containers.execute(service, "touch", "/written")
    changed = docker("diff", containers.container(service)).splitlines()
    # Where the volume and /tmp are mounted, directories may have had to be made.
    expected = ("A /tmp", "C /tmp", "C /var", "C /data", "C /prometheus", "C /run", "A /run")
    assert not [path for path in changed if not path.startswith(expected)]


@pytest.mark.parametrize("service", SERVICES)
def test_what_a_container_may_use_is_bounded(service: str, containers: Containers) -> None:
    limits = containers.inspect(service)["HostConfig"]
    assert limits["Memory"] > 0
    assert limits["NanoCpus"] > 0 or limits["CpuQuota"] > 0
    assert limits["RestartPolicy"]["Name"] == "unless-stopped"


def test_the_broker_s_image_holds_nothing_to_build_with() -> None:
    looked_for = """for name in gcc cc make; do command -v $name; done; find / -xdev -path '/build/*' -o -path '*/.cache/*'; true"""
    assert docker("run", "--rm", "--entrypoint", "sh", broker_image(), "-c", looked_for) == ""
    installed = docker("run", "--rm", "--entrypoint", "sh", broker_image(), "-c", "ls /opt/ottla/lib/python3*/site-packages")
    assert not {"pip", "setuptools", "wheel"} & set(installed.split())


def test_the_broker_s_image_says_what_it_is() -> None:
    config = json.loads(docker("image", "inspect", broker_image()))[0]["Config"]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.version"] == docker("run", "--rm", broker_image(), "version").split()[-1]
    names = {name.removeprefix("org.opencontainers.image.") for name in labels}
    assert {"title", "description", "revision", "licenses", "base.name"} <= names
    assert sorted(config["ExposedPorts"]) == ["9092/tcp", "9094/tcp", "9095/tcp", "9404/tcp"]
    assert list(config["Volumes"]) == ["/var/lib/ottla"]
    assert config["Entrypoint"][0] == "tini"


def test_a_broker_ends_by_itself_when_it_is_told_to(containers: Containers) -> None:
    """SIGTERM: it hands over what it leads, closes its logs and ends with 0, long before Docker would kill it."""
    since = f"{time.time():.3f}"  # tests before may have had it log errors
    assert containers.stop("broker-3") == 0
    said = docker("logs", "--since", since, containers.container("broker-3"), both=True)
    assert "SIGTERM: stopping" in said and '"level": "ERROR"' not in said
    containers.start("broker-3")

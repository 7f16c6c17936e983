"""A cluster of a test: docker-compose.yml under another project name and on free ports of this machine."""

from __future__ import annotations

import random
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.integration.containers import BROKERS, Containers
from tests.integration.docker import ROOT, compose_command, run

BASE: Final = ("zookeeper", "broker-1", "broker-2", "broker-3")
PORTS: Final = (
    "OTTLA_ZOOKEEPER_PORT",
    "OTTLA_PROMETHEUS_PORT",
    "OTTLA_SCHEMA_REGISTRY_PORT",
    "OTTLA_SCHEMA_REGISTRY_RPC_PORT",
    "OTTLA_SCHEMA_REGISTRY_HTTP_PORT",
    "OTTLA_AUDIT_COUNTER_PORT",
    "OTTLA_AUDIT_COUNTER_RPC_PORT",
    "OTTLA_AUDIT_COUNTER_HTTP_PORT",
    "OTTLA_MIRROR_MAKER_RPC_PORT",
    "OTTLA_MIRROR_MAKER_HTTP_PORT",
    *(f"OTTLA_SPARK_{name}_PORT" for name in ("MASTER", "MASTER_UI", "WORKER_UI", "DRIVER_UI", "DRIVER_HTTP")),
    *(f"OTTLA_REMOTE_BROKER_{number}_{kind}" for number in (1, 2) for kind in ("PORT", "HTTP_PORT")),
    *(f"OTTLA_BROKER_{broker}_PORT" for broker in BROKERS),
    *(f"OTTLA_BROKER_{broker}_HTTP_PORT" for broker in BROKERS),
)
UP_SECONDS: Final = 400.0


def free_ports(count: int) -> list[int]:
    """Ports that no one has. Below those that the system gives out, as a killed container's must still be free when it is back."""
    found: list[int] = []
    candidates = random.SystemRandom().sample(range(20_000, 32_000), 2_000)
    while len(found) < count:
        port = candidates.pop()
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found


def ensemble_variables() -> dict[str, str]:
    """What deploy/ensemble.env says."""
    lines = (ROOT / "deploy" / "ensemble.env").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name: shlex.split(value)[0] for name, _, value in pairs}


class ComposeCluster:
    """One project: brought up, changed and taken away."""

    def __init__(self, project: str, environment: Mapping[str, str] | None = None, files: Sequence[Path] = ()) -> None:
        self.containers = Containers(project)
        ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        self.environment = {"COMPOSE_PROJECT_NAME": project, "OTTLA_SCRAPE_INTERVAL": "1s", **ports, **(environment or {})}
        self._files = [word for path in (ROOT / "docker-compose.yml", *files) for word in ("--file", str(path))]

    def compose(self, *arguments: str, seconds: float = UP_SECONDS, environment: Mapping[str, str] | None = None) -> str:
        """`docker compose …` of this project, with more variables for this call."""
        return run([*compose_command(), *self._files, *arguments], seconds=seconds, environment={**self.environment, **(environment or {})})

    def up(self, *services: str) -> None:
        """Starts these, or everything, from images that are there; and waits until what runs is healthy."""
        self.compose("up", "--detach", "--no-build", *services)
        self.containers.wait_healthy(seconds=UP_SECONDS)

    def down(self) -> None:
        """Stops it in order and removes it, volumes and all."""
        self.compose("down", "--volumes", "--remove-orphans", environment={"COMPOSE_PROFILES": ",".join(profiles())})


def profiles() -> list[str]:
    """Every profile that a service of the compose file is in."""
    lists = re.findall(r"^ *profiles: *\[(.*)\] *$", (ROOT / "docker-compose.yml").read_text(encoding="utf-8"), re.MULTILINE)
    return sorted({name.strip() for names in lists for name in names.split(",")})


def build_images(names: Sequence[str]) -> None:
    """Those that are missing, as `make up` does."""
    run(["sh", str(ROOT / "deploy" / "images.sh"), "--missing", *names], seconds=900)


if __name__ == "__main__":  # for scripts: eval "$(python -m tests.integration.compose)"
    sys.stdout.writelines(f"export {name}={port}\n" for name, port in zip(PORTS, free_ports(len(PORTS)), strict=True))

"""The containers of a compose project, found by their labels, which both releases of compose set; their names differ.

What is done here to a container is what a person does by hand: kill it, stop it, start it, cut it off, look at it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tests.integration.docker import docker

T = TypeVar("T")

BROKERS: Final = (1, 2, 3)
CLIENT_PORT: Final = 9094  # of the listener for the host
HTTP_PORT: Final = 9404
POLL_SECONDS: Final = 0.25
HEALTHY_SECONDS: Final = 300.0
SIDECAR_IMAGE: Final = "ottla/test-sidecar:1"


def broker(broker_id: int) -> str:
    """The service that a broker is."""
    return f"broker-{broker_id}"


def broker_image() -> str:
    """The image that is tested."""
    return os.environ.get("OTTLA_BROKER_IMAGE", "ottla/broker:0.1.0")


def wait_until(what: str, met: Callable[[], T], seconds: float, state: Callable[[], object] = lambda: "") -> T:
    """What `met` gives as soon as that is true; `state` is asked for what to say when it never is."""
    deadline = time.monotonic() + seconds
    while not (found := met()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:.0f} s still not: {what}. {state()}")
        time.sleep(POLL_SECONDS)
    return found


@dataclass(frozen=True, slots=True)
class Containers:
    """One compose project's containers."""

    project: str

    @property
    def network(self) -> str:
        return f"{self.project}_cluster"

    def all(self) -> dict[str, str]:
        """Each service's container, running or not."""
        listed = docker("ps", "--all", "--no-trunc", *self._filters(), "--format", '{{.ID}} {{.Label "com.docker.compose.service"}}')
        return {service: container for container, service in (line.split() for line in listed.splitlines())}

    def _filters(self) -> tuple[str, ...]:
        labels = (f"com.docker.compose.project={self.project}", "com.docker.compose.oneoff=False")
        return tuple(word for label in labels for word in ("--filter", f"label={label}"))

    def container(self, service: str) -> str:
        """The id of a service's container."""
        found = self.all()
        assert service in found, f"project {self.project} has no container of {service}, only of {', '.join(sorted(found)) or 'nothing'}"
        return found[service]

    def address(self, service: str, port: int) -> str:
        """Where on this machine a port of a container is."""
        return docker("port", self.container(service), str(port)).splitlines()[0]

    def addresses(self) -> str:
        """The brokers for clients on this machine, with commas."""
        return ",".join(self.address(broker(broker_id), CLIENT_PORT) for broker_id in BROKERS)

    def inspect(self, service: str) -> Any:
        return json.loads(docker("inspect", self.container(service)))[0]

    def health(self) -> dict[str, str]:
        """`healthy`, `unhealthy` or `starting`; `running` without a health check; `exited` and the like."""
        ids = self.all()
        if not ids:
            return {}
        form = '{{.Id}} {{if and (eq .State.Status "running") .State.Health}}{{.State.Health.Status}}{{else}}{{.State.Status}}{{end}}'
        states = dict(line.split() for line in docker("inspect", "--format", form, *ids.values()).splitlines())
        return {service: states.get(container, "gone") for service, container in ids.items()}

    def last_checks(self, service: str) -> str:
        """What a container's health checks printed of late."""
        health = self.inspect(service)["State"].get("Health") or {}
        return "\n".join(check["Output"].strip() for check in health.get("Log") or [])

    def wait_healthy(self, services: Iterable[str] = (), seconds: float = HEALTHY_SECONDS) -> None:
        """Until each of these, or all that there are, is healthy as Docker sees it."""
        wanted = set(services)

        def is_met() -> bool:
            health = self.health()
            return bool(health) and all(health.get(name) == "healthy" for name in wanted or health)

        wait_until(f"{', '.join(sorted(wanted)) or 'everything'} is healthy", is_met, seconds, self.health)

    def kill(self, service: str, signal: str = "KILL") -> None:
        """As kill -9. It stays dead until `start`, whatever its restart policy says: Docker takes a kill for a wish."""
        docker("kill", "--signal", signal, self.container(service))

    def start(self, *services: str) -> None:
        docker("start", *(self.container(service) for service in services))

    def stop(self, service: str, seconds: int = 75) -> int:
        """As `docker stop`, with as much time as the compose file gives; the exit code."""
        docker("stop", "--time", str(seconds), self.container(service), seconds=seconds + 30)
        return int(self.inspect(service)["State"]["ExitCode"])

    def execute(self, service: str, *command: str, seconds: float = 60.0) -> str:
        """A command inside of a container that runs."""
        return docker("exec", self.container(service), *command, seconds=seconds)

    def logs(self, service: str, tail: int = 40) -> str:
        return docker("logs", "--tail", str(tail), self.container(service), both=True)

    def ottla(self, *arguments: str, given: bytes | None = None, seconds: float = 60.0) -> str:
        """`ottla …` in a container of its own in the cluster's network, as a person there would call it."""
        return docker(
            *("run", "--rm", "--interactive", "--network", self.network, "--read-only", "--label", f"ottla.integration={self.project}"),
            *(broker_image(), *arguments),
            given=given,
            seconds=seconds,
        )

    def sidecar(self, service: str, *command: str) -> str:
        """A command in a container's network, with the right to change that; the container itself has none."""
        return docker(
            *("run", "--rm", "--network", f"container:{self.container(service)}", "--cap-add", "NET_ADMIN", "--user", "0"),
            *("--label", f"ottla.integration={self.project}", SIDECAR_IMAGE, *command),
        )

    def own_address(self, service: str) -> str:
        """A container's address in the cluster's network."""
        return str(self.inspect(service)["NetworkSettings"]["Networks"][self.network]["IPAddress"])

    def cut(self, service: str, others: Sequence[str]) -> None:
        """Packets between a container and others are lost, both ways and without a word; the host still reaches it."""
        addresses = [self.own_address(other) for other in others]
        lines = [f"iptables -A INPUT -s {address} -j DROP && iptables -A OUTPUT -d {address} -j DROP" for address in addresses]
        self.sidecar(service, "sh", "-ec", "\n".join(lines))

    def heal(self, service: str) -> None:
        """Takes back every cut of a container."""
        self.sidecar(service, "sh", "-ec", "iptables -F INPUT && iptables -F OUTPUT")

"""`make demo`: a year's flights through the cluster of `make up`, while the container of a leader is killed; none may be lost.

The events, the clients and the comparison are the quickstart's. A third of the way a leader's container is killed, as
`docker kill` does it; it is started again when others lead what it led. Publishing continues all the while, from this machine,
by the listener for clients outside. The exit code is 0 when every event came back, in its order and once.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.integration.containers import BROKERS, CLIENT_PORT, Containers, broker
from tests.integration.docker import DockerFailed, why_unavailable
from tests.integration.view import View

from ottla.cli import flights
from ottla.cli.errors import CommandFailed
from ottla.cli.output import bytes_of, note, say, table
from ottla.cli.quickstart import TOPIC, Pace, create_topic, publish, read_back
from ottla.errors import OttlaError


@dataclass
class Disturbance:
    """One broker's end and return, in a thread of its own; what it did is told at the end."""

    containers: Containers
    view: View
    started: float = field(default_factory=time.monotonic)
    story: list[tuple[str, str]] = field(default_factory=list)
    failure: BaseException | None = None

    def run(self, acknowledged: Callable[[], int]) -> None:
        """Kills the leader of the topic's first partition, and starts it when another one leads."""
        try:
            leader = self.view.leader(TOPIC)
            self._told(f"killed broker {leader}, which led {TOPIC}-0", acknowledged())
            self.containers.kill(broker(leader))
            others = View(",".join(self.containers.address(broker(broker_id), CLIENT_PORT) for broker_id in BROKERS if broker_id != leader))
            successor = others.leader_besides(TOPIC, leader)
            self._told(f"broker {successor} leads {TOPIC}-0", acknowledged())
            self.containers.start(broker(leader))
            self._told(f"started broker {leader}", acknowledged())
            self.containers.wait_healthy([broker(leader)])
            self._told(f"broker {leader} is healthy", acknowledged())
        except BaseException as error:
            self.failure = error

    def _told(self, what: str, acknowledged: int) -> None:
        self.story.append((f"{time.monotonic() - self.started:.1f} s", f"{what} ({acknowledged:,} events acknowledged)"))


def demo(containers: Containers) -> None:
    """Publishes, kills, reads back and compares.

    Raises:
        CommandFailed: if one event is missing, changed, twice, or out of its order.
    """
    addresses = containers.addresses()
    view = View(addresses)
    events = flights.in_order(list(flights.read(flights.data_directory())))
    expected = flights.Tally()
    for event in events:
        expected.add(event.key, event.value, event.carrier)
    say(f"{len(events):,} flights, {bytes_of(expected.size)}. Cluster: {addresses}")
    create_topic(addresses, replace=True)
    view.wait_in_sync(TOPIC)

    acknowledged = 0
    disturbance = Disturbance(containers, view)
    thread = threading.Thread(target=disturbance.run, args=(lambda: acknowledged,))

    def advance(count: int) -> None:
        nonlocal acknowledged
        acknowledged += count
        if acknowledged >= len(events) // 3 and thread.ident is None:
            thread.start()

    disturbance.started = time.monotonic()
    published = publish(addresses, events, advance)
    thread.join()
    if disturbance.failure is not None:
        raise CommandFailed(f"the broker was not killed and brought back as it should have been: {disturbance.failure}")
    view.wait_in_sync()
    found, read = read_back(addresses, expected.events, lambda count: None)
    say_result(disturbance, published, read, expected, found)
    if wrong := flights.differences(expected, found):
        raise CommandFailed("what came back is not what was published:\n" + "\n".join(f"  {name}" for name in wrong))
    say("\nNot one event was lost, and none came twice: every byte, each aircraft's flights in their order.")


def say_result(disturbance: Disturbance, published: Pace, read: Pace, expected: flights.Tally, found: flights.Tally) -> None:
    say()
    say(table(("after", "what happened"), disturbance.story))
    rows = [
        ("client", published.client, read.client),
        ("events", f"{expected.events:,}", f"{found.events:,}"),
        ("bytes of keys and values", bytes_of(expected.size), bytes_of(found.size)),
        ("seconds", f"{published.seconds:.1f}", f"{read.seconds:.1f}"),
        ("lost", "", f"{max(0, expected.events - found.events):,}"),
        ("twice", "", f"{max(0, found.events - expected.events):,}"),
    ]
    say()
    say(table(("", "in", "out"), rows))


def main() -> int:
    """Against the project that `make up` starts."""
    if (reason := why_unavailable()) is not None:
        note(f"demo: it needs Docker: {reason}")
        return 1
    containers = Containers(os.environ.get("COMPOSE_PROJECT_NAME", "ottla"))
    health = containers.health()
    if missing := [name for name in map(broker, BROKERS) if health.get(name) != "healthy"]:
        note(f"demo: not healthy in project {containers.project}: {', '.join(missing)}; `make up` starts them")
        return 1
    try:
        demo(containers)
    except (OttlaError, DockerFailed, AssertionError) as error:
        note(f"demo: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

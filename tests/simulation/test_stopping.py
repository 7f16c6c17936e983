"""A broker that is to stop while no one answers it: containers are given 30 s, and killed after that.

Kafka's broker may take 3 attempts of `controller.socket.timeout.ms` each to hand over, and is killed in the midst of it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.simulation.faults import Fault, Kind, draw
from tests.simulation.run import run_seed


@pytest.mark.parametrize("kind", [Kind.ISOLATE_ENTIRELY, Kind.ISOLATE_FROM_ZOOKEEPER, Kind.ZOOKEEPER_AWAY])
def test_a_stop_ends_in_time_though_nobody_answers(kind: Kind) -> None:
    """The simulation takes it for a failure when a stop takes longer; here it begins as soon as the broker is cut off."""
    faults = (Fault(1.0, kind, "controller", 45.0, 0.5), Fault(1.5, Kind.STOP, "controller", 0.0, 0.5))
    plan = replace(draw(1), seconds=47.0, scenes=(), faults=faults, produce_every=10.0, consume_every=10.0)
    assert run_seed(1, plan=plan).failures == []

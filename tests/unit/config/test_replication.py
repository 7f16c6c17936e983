"""Settings of replication that must fit each other."""

from __future__ import annotations

import pytest

from ottla.config.broker import BrokerSettings
from ottla.errors import ConfigurationError


@pytest.mark.parametrize("other", ["replica.socket.timeout.ms", "replica.lag.time.max.ms"])
def test_a_fetch_may_not_wait_longer_than_its_answer_is_waited_for_or_the_isr_allows(other: str) -> None:
    """Kafka refuses both: such a follower would never be in sync for long."""
    assert BrokerSettings.from_properties({other: "700", "replica.fetch.wait.max.ms": "700"})
    with pytest.raises(ConfigurationError, match=f"replica.fetch.wait.max.ms = 701: over {other} = 700"):
        BrokerSettings.from_properties({other: "700", "replica.fetch.wait.max.ms": "701"})

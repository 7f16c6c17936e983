"""What tests need of Ottla: a real broker in the test's own process, a clock that can be turned, a disk that can fail,
and a real ZooKeeper in a process of its own (`ottla.testing.zookeeper`).

For Ottla's own tests and for those of any project that talks to Kafka: `pip install ottla` brings the fixtures of
`ottla.testing.plugin` with it.

This package is imported by every run of pytest on a machine that has Ottla, so importing it must cost next to nothing:
the standard library's small modules, and the broker only when one is started.
"""

from ottla.testing.clock import ManualClock
from ottla.testing.cluster import EmbeddedCluster

__all__ = ["EmbeddedCluster", "ManualClock"]

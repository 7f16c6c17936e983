"""Connections and bytes, by listener: what each listener's `Traffic` has counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ottla.metrics import network
from ottla.metrics.family import Family, Pause, single
from ottla.network.listener import AnyListener


class NetworkCollector:
    """`ottla.metrics.network`, but for certificates.

    Args:
        listeners: by name.
    """

    def __init__(self, listeners: Mapping[str, AnyListener]) -> None:
        self._listeners = listeners

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        listeners = list(self._listeners.items())
        traffics = [(name, each.traffic) for name, each in listeners]
        yield Family(network.CONNECTIONS, [((name,), each.connection_count) for name, each in listeners])
        yield Family(network.CONNECTIONS_OPENED, [((name,), each.opened) for name, each in traffics])
        yield Family(
            network.CONNECTIONS_CLOSED, [((name, reason), count) for name, each in traffics for reason, count in each.closed.items()]
        )
        yield Family(network.RECEIVED_BYTES, [((name,), each.received_bytes) for name, each in traffics])
        yield Family(network.SENT_BYTES, [((name,), each.sent_bytes) for name, each in traffics])
        yield single(network.SENDFILE_BYTES, sum(each.sendfile_bytes for _, each in traffics))
        yield single(network.PAUSED_READS, sum(each.paused_reads for _, each in traffics))
        yield single(network.COLD_READS, sum(each.cold_reads for _, each in traffics))

"""When the certificates that a service shows expire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ottla.metrics import network as metrics
from ottla.metrics.family import Family, Pause


class CertificateCollector:
    """`ottla_tls_certificate_expiry_timestamp_seconds`.

    Args:
        expiries: by listener, in seconds since 1970.
    """

    def __init__(self, expiries: Mapping[str, float]) -> None:
        self._expiries = expiries

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        yield Family(metrics.CERTIFICATE_EXPIRY, [((listener,), expiry) for listener, expiry in self._expiries.items()])

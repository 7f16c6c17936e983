"""When the certificates that this broker shows expire. They are read once, when it starts, as the broker reads them."""

from __future__ import annotations

from pathlib import Path

from ottla.config.broker import BrokerSettings
from ottla.config.control import LISTENER_NAME
from ottla.network.certificate_dates import first_expiry


def certificate_expiries(settings: BrokerSettings) -> dict[str, float]:
    """Of the listeners that speak TLS, that for the other brokers' calls among them; it reads files."""
    listeners = [each.name for each in settings.accepted_listeners if each.is_tls]
    if settings.control_address.is_tls:
        listeners.append(LISTENER_NAME)
    found = {name: first_expiry(_chain(settings.for_listener(name))) for name in listeners}
    return {name: expiry for name, expiry in found.items() if expiry is not None}


def _chain(settings: BrokerSettings) -> str:
    if settings.ssl_keystore_location:
        try:
            return Path(settings.ssl_keystore_location).read_text(encoding="ascii", errors="replace")
        except OSError:
            return ""  # whoever listens with it says so
    chain = settings.ssl_keystore_certificate_chain
    return "" if chain is None else str(chain.value if hasattr(chain, "value") else chain)

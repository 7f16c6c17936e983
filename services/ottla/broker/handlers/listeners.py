"""Where a client finds the brokers: through the listener it came by, for only that one is sure to work for it."""

from __future__ import annotations

from ottla.broker.handlers.registry import BrokerParts, RequestContext
from ottla.model import BrokerId, BrokerRegistration, Endpoint


def reachable_brokers(parts: BrokerParts, context: RequestContext) -> dict[BrokerId, tuple[Endpoint, BrokerRegistration]]:
    """The live brokers that have the client's listener, with its address on each."""
    found = {}
    for broker_id, registration in sorted(parts.metadata.brokers.items()):
        endpoint = registration.endpoint(context.listener_name)
        if endpoint is not None:
            found[broker_id] = (endpoint, registration)
    return found

"""The broker's settings as handlers need them: by where they come from."""

from __future__ import annotations

from ottla.broker.handlers.config_entries import BrokerConfig
from ottla.broker.handlers.registry import BrokerParts
from ottla.model import BrokerId


def broker_config(parts: BrokerParts) -> BrokerConfig:
    """What the broker was started with and what was changed since."""
    broker_id, controller = BrokerId(parts.settings.broker_id), parts.controller
    advertised = () if controller.registration is None else controller.registration.endpoints
    return BrokerConfig(parts.settings, controller.broker_overrides(broker_id), controller.broker_overrides(None), advertised)

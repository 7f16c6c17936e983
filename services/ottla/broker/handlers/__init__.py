"""One module per API. Each enters itself in the table of `registry` when it is imported; `load` imports them all."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Fills the table of APIs."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")

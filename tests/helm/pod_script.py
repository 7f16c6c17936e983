"""The scripts that the chart runs in pods, as modules, so that their parts can be tested."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from tests.helm.charting import CHART


def script(name: str) -> ModuleType:
    """helm/ottla/files/scripts/<name>.py."""
    specification = importlib.util.spec_from_file_location(f"chart_{name}", CHART / "files" / "scripts" / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module

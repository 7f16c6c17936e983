"""The pytest plugin, which is loaded in every run of pytest on a machine that has Ottla."""

import subprocess
import sys

import pytest


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, pytest; before = set(sys.modules); import ottla.testing.plugin; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "ottla.testing.plugin" in imported
    assert {name for name in imported if name.startswith("ottla")} <= {
        "ottla",
        "ottla.errors",
        "ottla.testing",
        "ottla.testing.clock",
        "ottla.testing.cluster",
        "ottla.testing.plugin",
    }
    assert not imported & {"asyncio", "confluent_kafka", "kio", "crc32c", "ssl", "typer", "rich"}


def test_the_audit_of_a_run_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """It is on this machine. Where `http_proxy` was set, as in a company's network, the fixture failed."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert request.getfixturevalue("ottla_audit").startswith("http://127.0.0.1:")

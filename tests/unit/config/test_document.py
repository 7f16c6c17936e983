"""docs/configuration.md, and how quickly all of this is imported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.config.broker import PARTS, BrokerSettings
from ottla.config.document import page
from ottla.config.mirror import MirrorSettings
from ottla.config.properties import parse
from ottla.config.registry import RegistrySettings
from ottla.config.settings import Settings
from ottla.config.topic import TopicSettings


def test_the_page_has_a_row_for_each_setting() -> None:
    text = page()
    for name in [*TopicSettings.definitions(), *BrokerSettings.definitions()]:
        assert f"\n| `{name}` | " in text


@pytest.mark.parametrize(("service", "settings"), [("Schema registry", RegistrySettings), ("Mirror maker", MirrorSettings)])
def test_the_section_of_a_service_leads_to_all_that_it_takes(service: str, settings: type[Settings]) -> None:
    """In its own tables, or in those of brokers that it names: nothing else says that a registry has `zookeeper.connect`, or TLS."""
    section = page().split(f"\n## {service}\n")[1].split("\n## ")[0]
    shared = [name for title, part in PARTS.items() if f"[{title}](#" in section for name in part.definitions()]
    assert [name for name in settings.definitions() if f"\n| `{name}` | " not in section and name not in shared] == []


def test_a_setting_that_changes_nothing_says_so_on_the_page() -> None:
    row = next(line for line in page().splitlines() if line.startswith("| `num.io.threads` |"))
    assert "**No effect**: One event loop" in row


def test_a_broker_takes_the_examples_of_the_page_about_zookeeper() -> None:
    """Each alone; what `config.providers` read is in test_providers."""
    text = (Path(__file__).parents[3] / "docs" / "zookeeper.md").read_text(encoding="utf-8")
    examples = [
        example for example in re.findall(r"^```properties\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if "config.providers" not in example
    ]
    assert len(examples) == 3
    for properties in examples:
        assert BrokerSettings.from_properties({"zookeeper.connect": "127.0.0.1:2181", **parse(properties)}).zookeeper_connect is not None


def test_importing_the_settings_brings_in_nothing_heavy() -> None:
    """Every run of `ottla` pays for it. Method: a fresh interpreter lists what it has loaded."""
    program = "import sys, ottla.config.broker; print(' '.join(sys.modules))"
    loaded = set(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split())
    assert not loaded & {"asyncio", "socket", "ssl", "difflib", "pydantic", "kio", "confluent_kafka", "cramjam", "rich", "typer", "logging"}

"""What holds of every service in docker-compose.yml, and the ports that other files rely on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ottla.config.broker import BrokerSettings
from ottla.config.environment import from_environment

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BROKERS = ("broker-1", "broker-2", "broker-3")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_may_do_little_and_its_health_is_known(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] in (True, "${OTTLA_ZOOKEEPER_READ_ONLY:-true}")
    assert service["restart"] == "unless-stopped"
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}
    assert {"test", "interval", "timeout", "retries", "start_period"} <= set(service["healthcheck"])
    assert "container_name" not in service, "two clusters on one machine must not collide"
    assert "ulimits" not in service, "not every machine grants them"


@pytest.mark.parametrize("name", SERVICES)
def test_a_port_is_published_where_its_variable_says_and_else_to_this_machine_alone(name: str) -> None:
    for each in SERVICES[name].get("ports", ()):
        assert each.startswith("${OTTLA_BIND_ADDRESS:-127.0.0.1}:${OTTLA_"), each


@pytest.mark.parametrize("name", SERVICES)
def test_data_lies_on_a_volume_that_is_declared(name: str) -> None:
    mounted = [each.partition(":")[0] for each in SERVICES[name]["volumes"]]
    named = [each for each in mounted if not each.startswith(".")]
    assert named == [name]
    assert name in COMPOSE["volumes"]


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_has_time_to_hand_over_and_is_told_what_exists(name: str) -> None:
    service = SERVICES[name]
    assert int(service["stop_grace_period"].removesuffix("s")) >= 60
    assert service["depends_on"] == {"zookeeper": {"condition": "service_healthy"}}
    settings = from_environment(BrokerSettings, dict.fromkeys(service["environment"], "1"))  # refuses what is no setting
    assert {"broker.id", "listeners", "advertised.listeners", "zookeeper.connect", "log.dirs", "http.listener"} <= set(settings)


def test_brokers_differ_in_nothing_but_who_they_are() -> None:
    def others(name: str) -> dict[str, Any]:
        environment = {
            key: value for key, value in SERVICES[name]["environment"].items() if not key.endswith(("BROKER_ID", "ADVERTISED_LISTENERS"))
        }
        return {**SERVICES[name], "environment": environment, "ports": None, "volumes": None}

    assert others("broker-1") == others("broker-2") == others("broker-3")
    assert [SERVICES[name]["environment"]["OTTLA_SETTING_BROKER_ID"] for name in BROKERS] == ["1", "2", "3"]

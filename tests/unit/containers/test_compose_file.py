"""What holds of every service in docker-compose.yml, and the ports that other files rely on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ottla.config.audit import AuditSettings
from ottla.config.broker import BrokerSettings
from ottla.config.environment import from_environment
from ottla.config.mirror import MirrorSettings
from ottla.config.registry import RegistrySettings

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DATA = {"mirror-maker": [], "spark-master": [], "spark-worker": ["spark-worker", "spark-tables"], "spark-driver": ["spark-tables"]}
BROKERS = ("broker-1", "broker-2", "broker-3")
REMOTE_BROKERS = ("remote-broker-1", "remote-broker-2")
(PROJECT,) = re.findall(r"^export COMPOSE_PROJECT_NAME \?= .*,(\w+)\)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


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
    for port in SERVICES[name].get("ports", ()):
        assert port.startswith("${OTTLA_BIND_ADDRESS:-127.0.0.1}:${OTTLA_"), port


@pytest.mark.parametrize("name", SERVICES)
def test_data_lies_on_a_volume_that_is_declared(name: str) -> None:
    mounted = [volume.partition(":")[0] for volume in SERVICES[name].get("volumes", ())]
    named = [path for path in mounted if not path.startswith(".")]
    assert named == DATA.get(name, [name])
    assert set(named) <= set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_has_time_to_hand_over_and_is_told_what_exists(name: str) -> None:
    service = SERVICES[name]
    assert int(service["stop_grace_period"].removesuffix("s")) >= 60
    assert service["depends_on"] == {"zookeeper": {"condition": "service_healthy"}}
    settings = from_environment(BrokerSettings, dict.fromkeys(service["environment"], "1"))  # refuses what is no setting
    assert {"broker.id", "listeners", "advertised.listeners", "zookeeper.connect", "log.dirs", "http.listener"} <= set(settings)


def given_to(service: str, **variables: str) -> dict[str, str]:
    """Its environment, with what stands in the place of variables that no one has set."""

    def value_of(found: re.Match[str]) -> str:
        return variables.get(found[1], found[2])

    return {name: re.sub(r"\$\{(\w+):-([^}]*)\}", value_of, value) for name, value in SERVICES[service]["environment"].items()}


@pytest.mark.parametrize("name", SERVICES)
def test_log_lines_of_each_service_of_ours_are_as_the_variables_say(name: str) -> None:
    service = SERVICES[name]
    if service.get("build", {}).get("dockerfile") == "services/Dockerfile" and "entrypoint" not in service:
        given = given_to(name, OTTLA_LOG_LEVEL="debug", OTTLA_LOG_FORMAT="text")
        assert (given["OTTLA_LOG_LEVEL"], given["OTTLA_LOG_FORMAT"]) == ("debug", "text")


def test_the_schema_registry_is_told_what_exists_and_where_it_is_reached() -> None:
    """Its topic gets three copies only where three brokers are registered (`kafkastore.topic.replication.factor`)."""
    service = SERVICES["schema-registry"]
    assert {service["depends_on"][name]["condition"] for name in ("zookeeper", *BROKERS)} == {"service_healthy"}
    settings = RegistrySettings.from_properties(from_environment(RegistrySettings, given_to("schema-registry")))
    assert [listener.port for listener in settings.api_listeners] == [8081]
    assert settings.rpc_address is not None and settings.rpc_address.port == 9095
    assert settings.http_address is not None and settings.http_address.port == 9404
    assert settings.advertised_host("a-container") == "schema-registry"
    assert settings.kafkastore_topic_replication_factor == len(settings.bootstrap_servers.split(",")) == 3
    assert [f"{settings.kafkastore_checkpoint_dir}"] == [volume.partition(":")[2] for volume in service["volumes"]]


def test_the_audit_counter_has_a_canary_where_it_is_asked_for() -> None:
    """`OTTLA_AUDIT_CANARY=true`, as docs/audit.md says; its topic has a copy at each broker."""
    for variables, is_on in (({}, False), ({"OTTLA_AUDIT_CANARY": "true"}, True)):
        settings = AuditSettings.from_properties(from_environment(AuditSettings, given_to("audit-counter", **variables)))
        assert settings.audit_canary_enable is is_on
        assert settings.audit_canary_replication_factor == len(settings.bootstrap_servers.split(",")) == 3
        assert settings.audit_tiers == ("producer", "broker")


def test_the_mirror_maker_copies_from_a_second_cluster_and_only_with_its_profile() -> None:
    settings = MirrorSettings.from_properties(from_environment(MirrorSettings, given_to("mirror-maker")))
    assert [(link.source, link.target) for link in settings.links] == [("remote", "local")]
    assert settings.sides["remote"].bootstrap_servers == ",".join(f"{broker}:9092" for broker in REMOTE_BROKERS)
    assert settings.sides["local"].bootstrap_servers == ",".join(f"{broker}:9092" for broker in BROKERS)
    assert settings.rpc_address is not None and settings.rpc_address.port == 9095
    assert settings.http_address is not None and settings.http_address.port == 9404
    assert settings.zookeeper_connect == "zookeeper:2181/ottla"
    for name in ("mirror-maker", *REMOTE_BROKERS):
        assert SERVICES[name]["profiles"] == ["mirror"]
    for name in REMOTE_BROKERS:
        remote = BrokerSettings.from_properties(from_environment(BrokerSettings, given_to(name)))
        assert remote.zookeeper_connect == "zookeeper:2181/remote"
        assert f"remote-broker-{remote.broker_id}" == name
        assert remote.offsets_topic_replication_factor == remote.default_replication_factor == len(REMOTE_BROKERS)


def test_spark_comes_with_its_profile_and_the_driver_finds_the_tables_where_the_worker_writes_them() -> None:
    """And what the driver asks for, the worker has: else an application waits for ever for an executor."""
    trio = [SERVICES[name] for name in ("spark-master", "spark-worker", "spark-driver")]
    assert all(service["profiles"] == ["spark"] and service["image"] == trio[0]["image"] for service in trio)
    _, worker, driver = trio
    assert worker["command"][-1] == "spark://spark-master:7077"
    assert {"--master=spark://spark-master:7077", "--into=/var/lib/ottla/tables/topics"} <= set(driver["command"])
    assert [volume for volume in worker["volumes"] if volume in driver["volumes"]] == ["spark-tables:/var/lib/ottla/tables"]
    assert f"--bootstrap-server={','.join(f'{broker}:9092' for broker in BROKERS)}" in driver["command"]
    defaults = dict(re.findall(r"^(spark\.[\w.]+) +(\S+)$", (ROOT / "services/spark/spark-defaults.conf").read_text("utf-8"), re.MULTILINE))
    offered = worker["environment"]
    assert int(defaults["spark.cores.max"]) * 2 <= int(offered["SPARK_WORKER_CORES"]), "the load and one program beside it"
    assert (defaults["spark.executor.memory"], offered["SPARK_WORKER_MEMORY"]) == ("512m", "1g")


def test_brokers_differ_in_nothing_but_who_they_are() -> None:
    def others(name: str) -> dict[str, Any]:
        environment = {
            key: value for key, value in SERVICES[name]["environment"].items() if not key.endswith(("BROKER_ID", "ADVERTISED_LISTENERS"))
        }
        return {**SERVICES[name], "environment": environment, "ports": None, "volumes": None}

    assert others("broker-1") == others("broker-2") == others("broker-3")
    assert [SERVICES[name]["environment"]["OTTLA_SETTING_BROKER_ID"] for name in BROKERS] == ["1", "2", "3"]


def test_the_page_names_what_bounds_each_service() -> None:
    """By `OTTLA_<service>_MEMORY`; processors go with that, by the same name."""
    bounded = set(re.findall(r"OTTLA_[A-Z_]+_MEMORY", (ROOT / "docker-compose.yml").read_text(encoding="utf-8")))
    assert len(bounded) >= 10
    assert bounded <= set(re.findall(r"OTTLA_[A-Z_]+_MEMORY", (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")))


def test_the_single_broker_of_the_page_can_make_every_internal_topic_alone() -> None:
    """With Kafka's three copies it would serve no group, or no transaction (docs/operations.md, "A broker that is alone")."""
    page = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
    (run,) = re.findall(r"^    docker run -d (.*?)^$", page, re.MULTILINE | re.DOTALL)
    given = dict(re.findall(r"-e (OTTLA_SETTING_\w+)=(\S+)", run))
    settings = BrokerSettings.from_properties(from_environment(BrokerSettings, given))
    assert settings.offsets_topic_replication_factor == 1
    assert settings.transaction_state_log_replication_factor == settings.transaction_state_log_min_isr == 1


def test_commands_of_a_page_find_the_cluster_that_make_has_started() -> None:
    """Compose alone would take the folder's name for the project's, and `ottla` a port at which compose's brokers are not."""
    docs = ROOT / "docs"
    for page in (docs / "containers.md", docs / "operations.md", docs / "runbooks" / "README.md"):
        assert f"export COMPOSE_PROJECT_NAME={PROJECT}" in page.read_text(encoding="utf-8"), page.name
    outside = [f"127.0.0.1:{number}9092" for number in (1, 2, 3)]
    for page in (docs / "operations.md", docs / "runbooks" / "README.md"):
        (servers,) = re.findall(r"OTTLA_BOOTSTRAP_SERVER=([\d.:,]+)", page.read_text(encoding="utf-8"))
        assert set(servers.split(",")) <= set(outside), page.name


def test_the_runbooks_say_where_services_answer_that_are_not_where_their_commands_ask() -> None:
    """Port 9095 of this machine, where compose publishes neither."""
    page = (ROOT / "docs" / "runbooks" / "README.md").read_text(encoding="utf-8")
    published = "".join(port for name in ("mirror-maker", "schema-registry") for port in SERVICES[name]["ports"])
    for variable, said in (("MIRROR_MAKER", "OTTLA_MIRROR_RPC="), ("SCHEMA_REGISTRY", "ottla schema doctor --rpc ")):
        (port,) = re.findall(rf"OTTLA_{variable}_RPC_PORT:-(\d+)", published)
        assert f"{said}127.0.0.1:{port}`" in page


def test_pages_name_profiles_as_make_takes_them() -> None:
    """`make up` goes by PROFILES, and gives compose its COMPOSE_PROFILES itself."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    assert not [page.name for page in pages if re.search(r"COMPOSE_PROFILES=\S+ make", page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    ("profiles", "wrong"), [("mirorr", "mirorr"), ("ensemble,spark,grafana", "grafana"), ("mirror spark", "mirror spark")]
)
def test_a_profile_that_there_is_not_is_refused_before_anything_starts(profiles: str, wrong: str, tmp_path: Path) -> None:
    """Compose takes any name and starts nothing for it: `make up` would say that all of it is healthy."""
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\n[ "$1" = compose ] && [ "$2" = version ] && exit 0\necho "docker $*"\n', encoding="ascii")
    docker.chmod(0o755)
    up = ["sh", str(ROOT / "deploy" / "compose.sh"), "up"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PROFILES": profiles, "OTTLA_UP_SECONDS": "0"}
    ended = subprocess.run(up, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"there is no profile '{wrong}'; there are ensemble,mirror,observability,registries,spark" in ended.stderr


@pytest.mark.parametrize("name", ["Ottla", "my.cluster", "-second", "two words"])
def test_a_project_s_name_of_which_compose_makes_another_is_refused_before_anything_starts(name: str) -> None:
    """docker-compose 1.29 starts `Ottla` as `ottla`: `make up` found none of its containers, and failed after 180 s with `()`."""
    command = ["sh", str(ROOT / "deploy" / "compose.sh"), "up"]
    environment = {"PATH": "/usr/bin:/bin", "COMPOSE_PROJECT_NAME": name}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"COMPOSE_PROJECT_NAME is '{name}'; it may have small letters, digits, - and _" in ended.stderr


def up(folder: Path, script: str = "compose.sh up", root: Path = ROOT, **environment: str) -> list[str]:
    """What a Docker that has every image but the public ones is asked for, on a system without GNU's `timeout`, as macOS is."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("awk", "cat", "date", "dirname", "git", "grep", "head", "paste", "printenv", "sed", "sh", "sleep", "sort", "tail", "tr"):
        (programs / name).symlink_to(str(shutil.which(name)))
    docker = programs / "docker"
    asked = folder / "asked"
    docker.write_text(
        f"""#!/bin/sh
echo "$COMPOSE_PROJECT_NAME: $*" >>{asked}
case "$*" in
"image inspect grafana/"* | "image inspect python:"* | "image inspect ottla/base:"*) exit 1 ;;
"ps --all "*) echo 1 ;;
"inspect "*) echo broker-1 healthy 1 ;;
esac
""",
        encoding="ascii",
    )
    docker.chmod(0o755)
    command = ["sh", *f"{root}/deploy/{script}".split()]
    ended = subprocess.run(command, env={"PATH": str(programs), **environment}, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return asked.read_text(encoding="utf-8").splitlines()


def test_images_are_pulled_where_there_is_no_program_that_bounds_the_time(tmp_path: Path) -> None:
    assert "ottla: pull --quiet grafana/grafana:11.4.0" in up(tmp_path, PROFILES="observability")


def test_the_base_is_pulled_where_there_is_no_program_that_bounds_the_time(tmp_path: Path) -> None:
    """It was said not to be there, and made of Debian's packages, which only Debian can."""
    assert ": pull --quiet python:3.11-slim-bookworm" in up(tmp_path, "images.sh zookeeper")


def test_what_dot_env_says_of_the_project_and_of_images_holds_for_make_up_too(tmp_path: Path) -> None:
    """As compose has it, and docs/containers.md: `make up` changed the project ottla instead, and left Grafana out."""
    (tmp_path / ".env").write_text(
        "# mine\nOTTLA_LOAD_PATTERN=[^_].* # and $more\nCOMPOSE_PROJECT_NAME=\"second\"\nOTTLA_GRAFANA_IMAGE='mirror.example/grafana:11'\n"
        "OTTLA_ZOOKEEPER_IMAGE=zookeeper:3.9\n",
        encoding="utf-8",
    )
    for name in ("deploy", "docker-compose.yml", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    asked = up(tmp_path, root=tmp_path, PROFILES="observability", OTTLA_ZOOKEEPER_IMAGE="mine:1")
    assert {line.partition(":")[0] for line in asked} == {"second"}
    assert "second: image inspect mirror.example/grafana:11" in asked
    assert "second: image inspect mine:1" in asked, "the environment comes first"
    show = [
        "make",
        "-C",
        str(tmp_path),
        "-f",
        f"{ROOT}/Makefile",
        "--no-print-directory",
        "--eval",
        "show: ; @echo $(COMPOSE_PROJECT_NAME)",
        "show",
    ]
    assert subprocess.run(show, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True).stdout == "second\n"


def test_an_image_of_someone_else_s_is_not_said_to_be_older_than_the_source(tmp_path: Path) -> None:
    """`make images` does not build it, as was said at each `make up`."""
    asked = up(tmp_path, "images.sh --missing broker", OTTLA_BROKER_IMAGE="registry.example/ottla/broker:1")
    assert asked == [": version", ": image inspect registry.example/ottla/broker:1"]


def test_an_image_of_someone_else_s_that_cannot_be_pulled_is_named_and_no_build_runs_on_behind_it(tmp_path: Path) -> None:
    """The script ended at once; `docker build` of the images before it was left to itself, and took the machine for minutes."""
    (tmp_path / "docker").write_text(
        f"""#!/bin/sh
case "$*" in
"image inspect python:"*) ;;
"image inspect "* | pull*) exit 1 ;;
build*) sleep 1; touch {tmp_path}/built ;;
esac
""",
        encoding="ascii",
    )
    (tmp_path / "docker").chmod(0o755)
    command = ["sh", str(ROOT / "deploy" / "images.sh"), "--missing", "zookeeper", "prometheus"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "OTTLA_PROMETHEUS_IMAGE": "registry.example/prometheus:1"}
    with (tmp_path / "said").open("w") as said:  # of a pipe the end is waited for, which a build that is left has open
        ended = subprocess.run(command, env=environment, stdout=said, stderr=said, timeout=60, check=False)
    assert (ended.returncode, (tmp_path / "built").exists()) == (1, True)
    assert "images.sh: registry.example/prometheus:1 is not here and cannot be pulled" in (tmp_path / "said").read_text(encoding="utf-8")

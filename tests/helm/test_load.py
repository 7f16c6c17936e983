"""The chart's loads: a CronJob that runs `ottla load` with what the command takes, off by default."""

from __future__ import annotations

from typing import Any

import pytest
from tests.helm.charting import Manifest, refusal, template
from tests.helm.test_promises import CI
from typer.main import get_command

from ottla.cli import load

TO_STORAGE: dict[str, Any] = {"load.enabled": True, "load.topics": ["clicks"], "load.into": "s3://lake/clicks"}


def pod_of(job: Manifest) -> Manifest:
    spec: Manifest = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return spec


def parsed(arguments: list[str]) -> dict[str, Any]:
    """What `ottla load run` understands; an option that it does not know is an error."""
    command = get_command(load.app)
    run = command.get_command(command.make_context("load", ["status", "x"], resilient_parsing=True), load.RUN)  # type: ignore[attr-defined]
    assert arguments[0] == "load"
    found: dict[str, Any] = run.make_context("run", list(arguments[1:])).params
    return found


def test_a_load_is_off_by_default() -> None:
    assert not template().all("CronJob")


def test_loads_do_not_overlap_and_one_that_failed_is_left_to_the_next() -> None:
    job = template(file=CI / "load.yaml").one("CronJob", "load")
    assert (job["apiVersion"], job["spec"]["schedule"], job["spec"]["concurrencyPolicy"]) == ("batch/v1", "*/5 * * * *", "Forbid")
    assert job["spec"]["jobTemplate"]["spec"]["backoffLimit"] == 0
    assert job["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"] == 3600
    assert pod_of(job)["restartPolicy"] == "Never"
    assert template(TO_STORAGE, version="1.20").one("CronJob", "load")["apiVersion"] == "batch/v1beta1"


def test_a_load_logs_as_the_other_pods_do_and_at_the_level_that_is_chosen() -> None:
    for values, expected in (({}, ("info", "json")), ({"load.logLevel": "debug", "load.logFormat": "text"}, ("debug", "text"))):
        [container] = pod_of(template({**TO_STORAGE, **values}).one("CronJob", "load"))["containers"]
        given = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert (given["OTTLA_LOG_LEVEL"], given["OTTLA_LOG_FORMAT"]) == expected
    assert "load.logFormat" in refusal({**TO_STORAGE, "load.logFormat": "xml"})


def test_the_command_takes_what_it_is_given() -> None:
    job = template(file=CI / "load.yaml").one("CronJob", "load")
    assert job["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]["mine-ottla-client"] == "true", "a client of the brokers"
    [container] = pod_of(job)["containers"]
    assert container["image"].startswith("ottla/spark:")
    found = parsed(container["args"])
    assert (found["topics"], found["into"], found["master"]) == (["clicks", "orders"], "/var/lib/ottla/tables/events", "local[*]")
    assert found["bootstrap_server"] == "mine-ottla.streams.svc.cluster.local:9092"
    assert (found["audit_window"], found["compact"]) == ("1m", True)
    mounted = {volume_mount["mountPath"]: volume_mount["name"] for volume_mount in container["volumeMounts"]}
    given = dict(name.split("=", 1) for name in found["properties"])
    assert given.pop("security.protocol") == "SSL"
    assert {path.rpartition("/")[0] for path in given.values()} == {"/etc/ottla-tls"}
    assert set(mounted) == {"/tmp", "/var/lib/ottla/tables", "/etc/ottla-tls"}
    volumes = {volume["name"]: volume for volume in pod_of(job)["volumes"]}
    assert set(volumes) == set(mounted.values())
    assert volumes["tables"]["persistentVolumeClaim"] == {"claimName": "tables"}
    assert container["envFrom"] == [{"secretRef": {"name": "load-credentials"}}]


def test_a_load_that_is_stopped_at_its_deadline_keeps_what_it_has_committed() -> None:
    """In one commit, a backlog that takes longer than the deadline would be begun again for ever."""
    [container] = pod_of(template(TO_STORAGE).one("CronJob", "load"))["containers"]
    assert parsed(container["args"])["max_records"] == 10_000_000
    [container] = pod_of(template({**TO_STORAGE, "load.maxRecords": 2_000_000_000}).one("CronJob", "load"))["containers"]
    assert parsed(container["args"])["max_records"] == 2_000_000_000


def test_where_another_spark_runs_the_tasks_it_finds_the_driver() -> None:
    """In a pod of its own the driver listens for no one else."""
    [alone] = pod_of(template(TO_STORAGE).one("CronJob", "load"))["containers"]
    assert alone["env"][2:] == [{"name": "SPARK_LOCAL_IP", "value": "127.0.0.1"}]
    [driver] = pod_of(template({**TO_STORAGE, "load.master": "spark://spark:7077"}).one("CronJob", "load"))["containers"]
    assert driver["env"][2:] == [{"name": "SPARK_LOCAL_HOSTNAME", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    assert parsed(driver["args"])["master"] == "spark://spark:7077"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"load.into": ""}, "load.enabled needs load.into"),
        ({"load.topics": []}, "load.enabled needs load.topics or load.pattern"),
        ({"load.pattern": "c.*"}, "load: either topics or pattern"),
        ({"load.into": "/var/lib/ottla/tables/clicks"}, "say in load.existingClaim on which volume it is"),
        ({"load.into": "/tmp/clicks", "load.existingClaim": "tables"}, "/tmp/clicks would go with the pod"),
        ({"load.into": "clicks", "load.existingClaim": "tables"}, "name a directory below /var/lib/ottla/tables"),
        ({"load.into": "file:///tmp/clicks"}, "file:///tmp/clicks would go with the pod"),
        ({"load.into": "/lake/clicks", "load.extraVolumeMounts": [{"name": "lake", "mountPath": "/lakes"}]}, "would go with the pod"),
    ],
)
def test_what_makes_no_load_is_refused(values: dict[str, Any], said: str) -> None:
    assert said in refusal({**TO_STORAGE, **values})


@pytest.mark.parametrize(
    "values",
    [
        {"load.into": "/var/lib/ottla/tables", "load.existingClaim": "tables"},
        {"load.into": "file:///var/lib/ottla/tables/clicks", "load.existingClaim": "tables"},
        {"load.into": "/lake/clicks", "load.extraVolumeMounts": [{"name": "lake", "mountPath": "/lake/"}]},
    ],
)
def test_a_table_on_a_volume_is_taken(values: dict[str, Any]) -> None:
    """A table anywhere else is gone when the load has succeeded, and the next one begins at the first record."""
    [container] = pod_of(template({**TO_STORAGE, **values}).one("CronJob", "load"))["containers"]
    assert parsed(container["args"])["into"] == values["load.into"]

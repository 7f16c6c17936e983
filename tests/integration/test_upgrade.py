"""From the image of the release before to this one: container by container, with the data kept and no one noticing.

The image before is OTTLA_PREVIOUS_IMAGE, or what the last tag of the repository builds. Where there is neither, it is this
release's under another name: then it is the replacement of containers that is tested, and no change of a format.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.integration.compose import ComposeCluster
from tests.integration.containers import BROKERS, broker, broker_image
from tests.integration.docker import DockerFailed, docker, run
from tests.integration.load import Load
from tests.integration.view import View

ApplyLoad = Callable[[View], AbstractContextManager[Load]]
PREVIOUS = "ottla/broker:previous"


@pytest.fixture
def previous_image(images: None, tmp_path: Path) -> str:
    """The image to upgrade from."""
    if given := os.environ.get("OTTLA_PREVIOUS_IMAGE"):
        return given
    tag = last_tag_with_an_image()
    if tag is None:
        docker("tag", broker_image(), PREVIOUS)
        return PREVIOUS
    run(["sh", "-ec", f"git archive --output={tmp_path}/source.tar {tag} && tar -x -f {tmp_path}/source.tar -C {tmp_path}"])
    base = docker("image", "inspect", "--format", '{{index .Config.Labels "org.opencontainers.image.base.name"}}', broker_image())
    docker(
        *("build", "--quiet", "--force-rm", "--file", f"{tmp_path}/services/Dockerfile", "--target", "broker"),
        *("--build-arg", f"BASE_IMAGE={base}", "--tag", PREVIOUS, str(tmp_path)),
        seconds=400,
    )
    return PREVIOUS


def last_tag_with_an_image() -> str | None:
    try:
        tag = run(["git", "describe", "--tags", "--abbrev=0", "HEAD^"]).strip()
        run(["git", "cat-file", "-e", f"{tag}:services/Dockerfile"])
    except (DockerFailed, FileNotFoundError):
        return None
    return tag


def test_brokers_are_replaced_one_by_one(previous_image: str, new_cluster: Callable[..., ComposeCluster], applied_load: ApplyLoad) -> None:
    made = new_cluster("upgrade", environment={"OTTLA_BROKER_IMAGE": previous_image})
    made.up("zookeeper", *map(broker, BROKERS))
    containers, view = made.containers, View(made.containers.addresses())
    with applied_load(view) as running:
        for broker_id in BROKERS:
            running.more()
            before = containers.container(broker(broker_id))
            made.compose("up", "--detach", "--no-build", "--no-deps", broker(broker_id), environment={"OTTLA_BROKER_IMAGE": broker_image()})
            assert containers.container(broker(broker_id)) != before
            assert containers.inspect(broker(broker_id))["Config"]["Image"] == broker_image()
            containers.wait_healthy()
            view.wait_in_sync()
        running.more()
    made.down()

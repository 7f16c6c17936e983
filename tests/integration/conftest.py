"""What the integration tests share: images, one cluster for most of them, its view, load; and all healthy again after each.

cluster         the shared ComposeCluster          containers      its containers: kill, start, cut, heal, wait_healthy …
view            leaders, controller, in sync       prometheus_url  its Prometheus
new_cluster     makes another cluster, for a test that needs one of its own
applied_load    three clients that publish and read while a test breaks things
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.compat.failover_clients import APPLICATIONS
from tests.integration.compose import ComposeCluster, build_images
from tests.integration.containers import SIDECAR_IMAGE, Containers
from tests.integration.docker import ROOT, DockerFailed, docker, why_unavailable
from tests.integration.load import Load, load
from tests.integration.reaper import Reaper
from tests.integration.view import View

PREFIX = f"ottla-test-{os.getpid()}-"
TIMEOUT_SECONDS = 900  # of a test with everything that it starts

clusters: list[ComposeCluster] = []
topic_numbers = itertools.count(1)

NewCluster = Callable[..., ComposeCluster]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where no alert may be pending comes first: afterwards brokers have been restarted often indeed."""
    items.sort(key=lambda item: item.path.name != "test_prometheus.py")
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


@pytest.fixture(scope="session")
def images() -> None:
    """Images that are missing are built; those that are there are what is tested."""
    reason = why_unavailable()
    if reason is not None:
        pytest.exit(f"the integration tests need Docker: {reason}", returncode=1)
    build_images(["broker", "zookeeper", "prometheus", "schema-registry", "audit-counter", "mirror-maker", "spark"])
    try:
        docker("image", "inspect", SIDECAR_IMAGE)
    except DockerFailed:
        base = docker("image", "inspect", "--format", '{{index .Config.Labels "org.opencontainers.image.base.name"}}', "ottla/broker:0.1.0")
        docker(
            *("build", "--quiet", "--force-rm", "--tag", SIDECAR_IMAGE, "--build-arg", f"BASE_IMAGE={base}"),
            str(ROOT / "tests" / "integration" / "sidecar"),
            seconds=300,
        )


@pytest.fixture(scope="session")
def new_cluster(images: None) -> Iterator[NewCluster]:
    """Makes clusters that are gone at the end of the session, however that ends."""
    reaper = Reaper(PREFIX)

    def make(name: str, environment: Mapping[str, str] | None = None, more_files: Sequence[Path] = ()) -> ComposeCluster:
        made = ComposeCluster(f"{PREFIX}{name}", environment, [ROOT / "tests" / "integration" / "settings.yml", *more_files])
        clusters.append(made)
        return made

    yield make
    reaper.finish()


@pytest.fixture(scope="session")
def cluster(new_cluster: NewCluster) -> ComposeCluster:
    """One ZooKeeper, three brokers, schema registry, audit counter and Prometheus, for all tests that leave them as they found them."""
    made = new_cluster("shared")
    made.up()
    return made


@pytest.fixture
def containers(cluster: ComposeCluster) -> Iterator[Containers]:
    """The shared cluster's containers. Afterwards all of them must be healthy by themselves, and every replica in sync."""
    yield cluster.containers
    cluster.containers.wait_healthy()
    View(cluster.containers.addresses()).wait_in_sync()


@pytest.fixture
def view(containers: Containers) -> View:
    return View(containers.addresses())


@pytest.fixture(scope="session")
def prometheus_url(cluster: ComposeCluster) -> str:
    return f"http://{cluster.containers.address('prometheus', 9090)}"


@pytest.fixture
def new_topic() -> Callable[[], str]:
    """Names that no other test has."""
    return lambda: f"topic-{next(topic_numbers)}"


@pytest.fixture
def applied_load() -> Callable[[View], AbstractContextManager[Load]]:
    """Three libraries' applications upon new topics; judged where the block ends."""

    def apply(view: View) -> AbstractContextManager[Load]:
        number = next(topic_numbers)
        topics = {application.name: view.create_topic(f"{application.name}-{number}") for application in APPLICATIONS}
        return load(view.addresses, topics)

    return apply


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure is told with what the containers last said."""
    report = yield
    if report.failed:
        for cluster in clusters:
            for service, state in sorted(cluster.containers.health().items()):
                if service != "prometheus":
                    report.sections.append((f"{cluster.containers.project} {service}: {state}", said_by(cluster.containers, service)))
    return report


def said_by(containers: Containers, service: str) -> str:
    """A container's last check, what it warned of lately, and its last lines: few, so that the failure itself stays in sight."""
    try:
        lines = containers.logs(service, tail=1000).splitlines()
        warnings = [line for line in lines if '"level": "WARNING"' in line or '"level": "ERROR"' in line or "Traceback" in line]
        return "\n".join([containers.last_checks(service)[-500:], *warnings[-15:], "…", *lines[-5:]])
    except (DockerFailed, AssertionError) as error:
        return str(error)

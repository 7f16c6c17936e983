"""docs/mirroring.md is true: its examples run, from the first to the last, with a mirror maker between two clusters."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chaos.cluster import free_ports
from tests.compat.test_readme import environment_for, examples, exchanges, type_in

from ottla.testing import EmbeddedCluster

PAGE = Path(__file__).parents[2] / "docs" / "mirroring.md"
SECONDS = 300.0


@contextmanager
def mirror_maker(directory: Path, environment: dict[str, str]) -> Iterator[None]:
    command = ["ottla", "mirror-maker", "--config", "mm2.properties"]
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(120) == 0, (directory / "log").read_text()


def until_copied(directory: Path, environment: dict[str, str]) -> None:
    """What a reader of the page does meanwhile, and then until the group has in the target what it is translated to."""

    def asked(*words: str) -> Any:
        done = subprocess.run(["ottla", *words, "--json"], env=environment, capture_output=True, text=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if [(link["partitions"], link["lag"]) for link in asked("mirror", "list") or ()] != [(2, 0)]:
            continue
        translated = {row["partition"]: row["target_offset"] for row in asked("mirror", "offsets", "A-B", "--group", "billing") or ()}
        group = asked("groups", "describe", "billing", "-b", environment["TARGET"])
        if group and translated == {row["partition"]: row["committed"] for row in group["partitions"]}:
            return
    raise AssertionError((directory / "log").read_text())


def test_the_examples_do_what_the_page_says(tmp_path: Path) -> None:
    with EmbeddedCluster() as a, EmbeddedCluster() as b:
        (port,) = free_ports(1)
        environment = {**environment_for(a.bootstrap_servers), "TARGET": b.bootstrap_servers, "OTTLA_MIRROR_RPC": f"127.0.0.1:{port}"}
        properties, first, *others = examples(PAGE)
        text = properties.text.replace("a-broker-1:9092", a.bootstrap_servers).replace("b-broker-1:9092", b.bootstrap_servers)
        text = text.replace("localhost:9095", f"127.0.0.1:{port}") + "emit.checkpoints.interval.seconds = 1\n"
        (tmp_path / "mm2.properties").write_text(text)
        for exchange in exchanges(first.text):
            type_in(exchange, f"docs/mirroring.md:{first.line}", tmp_path, environment)
        with mirror_maker(tmp_path, environment):
            until_copied(tmp_path, environment)
            for example in others:
                for exchange in exchanges(example.text):
                    type_in(exchange, f"docs/mirroring.md:{example.line}", tmp_path, environment)


def test_there_are_examples() -> None:
    assert sum(len(list(exchanges(example.text))) for example in examples(PAGE)) >= 9

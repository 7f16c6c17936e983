"""The `docker` and `docker compose` commands, as a test calls them: bounded in time, and with what went wrong in the error."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 180.0


class DockerFailed(Exception):
    """A command that ended with another code than 0, or not at all."""


def run(
    command: Sequence[str],
    *,
    seconds: float = SECONDS,
    given: bytes | None = None,
    environment: Mapping[str, str] | None = None,
    both: bool = False,
) -> str:
    """What a command prints, with its errors if `both`; the repository is its directory."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            input=given if given is not None else b"",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if both else subprocess.PIPE,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DockerFailed(f"after {seconds:.0f} s this has not ended: {' '.join(command)}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise DockerFailed(f"{' '.join(command)}: exit code {done.returncode}: {said[-2000:]}")
    return done.stdout.decode(errors="replace")


def docker(*arguments: str, seconds: float = SECONDS, given: bytes | None = None, both: bool = False) -> str:
    """`docker …`, without the spaces around what it prints."""
    return run(["docker", *arguments], seconds=seconds, given=given, both=both).strip()


@functools.cache
def compose_command() -> tuple[str, ...]:
    """`docker compose` where Docker has it, else docker-compose 1.29."""
    try:
        run(["docker", "compose", "version"])
    except DockerFailed:
        return ("docker-compose",)
    return ("docker", "compose")


def why_unavailable() -> str | None:
    """Why no cluster can be started here, as half a sentence; None where one can."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    try:
        docker("version", seconds=20)
    except DockerFailed as error:
        return f"the Docker daemon does not answer ({error})"
    try:
        run([*compose_command(), "version"], seconds=120)
    except (DockerFailed, FileNotFoundError):
        return "neither `docker compose` nor docker-compose is installed"
    return None


if __name__ == "__main__":  # for scripts: exit code 0 where clusters can be started, else why not
    if (reason := why_unavailable()) is not None:
        sys.stdout.write(f"{reason}\n")
        sys.exit(1)

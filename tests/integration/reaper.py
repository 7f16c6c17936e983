"""Removes a session's containers, networks and volumes when its process has gone, in whatever way that went.

It is started as a process of its own with one end of a pipe as its standard input, and sleeps until the other end is closed:
by the session's last line, or by the system after a kill -9.
"""

from __future__ import annotations

import subprocess
import sys

from tests.integration.docker import ROOT, docker


def remove(prefix: str) -> None:
    """Everything of the compose projects whose names begin so, and what tests started beside them."""
    by_project = '{{.ID}} {{.Label "com.docker.compose.project"}}{{.Label "ottla.integration"}}'
    containers = _of(prefix, docker("ps", "--all", "--format", by_project))
    if containers:
        docker("rm", "--force", "--volumes", *containers, seconds=120)
    networks = _of(prefix, docker("network", "ls", "--format", '{{.ID}} {{.Label "com.docker.compose.project"}}'))
    if networks:
        docker("network", "rm", *networks)
    volumes = _of(prefix, docker("volume", "ls", "--format", '{{.Name}} {{.Label "com.docker.compose.project"}}'))
    if volumes:
        docker("volume", "rm", *volumes)


def _of(prefix: str, listed: str) -> list[str]:
    rows = (line.split() for line in listed.splitlines())
    return [row[0] for row in rows if len(row) == 2 and row[1].startswith(prefix)]


class Reaper:
    """The process that waits for this one's end."""

    def __init__(self, prefix: str) -> None:
        # A session of its own, so that Ctrl-C in the terminal does not reach it.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.reaper", prefix], stdin=subprocess.PIPE, cwd=ROOT, start_new_session=True
        )

    def finish(self) -> None:
        """Has it remove everything now."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(180) == 0, "the containers of this session could not all be removed"


if __name__ == "__main__":
    sys.stdin.buffer.read()
    remove(sys.argv[1])

"""`helm test`: each link has begun in this cluster, all its slots have workers, and nothing of it has failed.

mirror_check.py BOOTSTRAP_SERVER WORKERS SECONDS LINK ...

WORKERS is a name of all workers, HOST:PORT; they are asked by gRPC, each by its address. A link makes its map's topic in this cluster
when it has reached both sides, and that is looked for too; alone, where workers answer operators with certificates only: WORKERS is empty
then. CLIENT_PROPERTIES in the environment is JSON: librdkafka's names, for TLS.
"""

# ruff: noqa: T201  (what it prints is the pod's log)
from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

ANSWER_SECONDS = 30.0
PAUSE_SECONDS = 1.0


def links_of(workers: str) -> dict[str, Any]:
    """What all workers say of the links, by their names; OSError or ValueError where that cannot be had."""
    host, _, port = workers.rpartition(":")
    found = sorted({str(each[4][0]) for each in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)})
    targets = ",".join(f"[{address}]:{port}" if ":" in address else f"{address}:{port}" for address in found)
    command = [sys.executable, "-m", "ottla.cli", "mirror", "list", "--json", "--rpc", targets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip())
    return {link["link"]: link for link in json.loads(done.stdout)}


def what_is_missing(topics: set[str], known: dict[str, Any] | None, link: str) -> str:
    """Why a link is not as it should be; empty when it is. What no worker was asked for (None) is not looked at."""
    if known is not None:
        found = known.get(link)
        if found is None:
            return f"{link}: no worker knows it"
        if found["failure"]:
            return f"{link}: {found['failure']}"
        if found["failed"]:
            return f"{link}: {found['failed']} partitions have failed"
        if found["held"] < found["slots"]:
            return f"{link}: {found['held']} of {found['slots']} slots have a worker"
    topic = f"ottla-mirror-{link.replace('->', '-')}"
    return "" if topic in topics else f"{link}: the topic {topic} is not there"


def look(admin: AdminClient, workers: str, links: list[str]) -> str:
    """The first thing that is missing."""
    try:
        topics = set(admin.list_topics(timeout=ANSWER_SECONDS).topics)
        known = links_of(workers) if workers else None
    except KafkaException as error:
        return str(error.args[0].str())
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"{workers}: {error}"
    return next(filter(None, (what_is_missing(topics, known, link) for link in links)), "")


def main() -> None:
    """The check's command."""
    bootstrap_server, workers, seconds, *links = sys.argv[1:]
    properties = json.loads(os.environ.get("CLIENT_PROPERTIES", "{}"))
    admin = AdminClient({"bootstrap.servers": bootstrap_server, "client.id": "ottla-check", **properties})
    deadline = time.monotonic() + float(seconds)
    while missing := look(admin, workers, links):
        print(missing, flush=True)
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds} s: {missing}")
        time.sleep(PAUSE_SECONDS)
    said = "all slots have a worker, and nothing has failed" if workers else "begun; workers answer operators only"
    print(f"{', '.join(links)}: {said}", flush=True)


if __name__ == "__main__":
    main()

"""Refuses an upgrade to fewer brokers while those that would go still hold replicas.

Kubernetes would simply take the last pods away, and partitions would be short of replicas, or gone, until someone noticed.
Run by a pre-upgrade hook, in the broker's image.

    scale_down_check.py BOOTSTRAP_SERVER FIRST END SECONDS

The brokers that would go are those with FIRST <= id < END. CLIENT_PROPERTIES in the environment is JSON: librdkafka's names, for TLS.
"""

# ruff: noqa: T201  (what it prints is the pod's log)
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any


def holding(cluster: Mapping[str, Any], first: int, end: int) -> dict[int, int]:
    """How many replicas each of the brokers in question holds, by `ottla cluster --json`; those that hold none are left out."""
    held = {each["broker_id"]: each["replica_count"] for each in (*cluster["brokers"], *cluster["missing_brokers"])}
    return {broker: count for broker, count in sorted(held.items()) if first <= broker < end and count}


def verdict(held: Mapping[int, int], kept: int) -> str:
    """Why not, and what to do first; empty when nothing is in the way."""
    if not held:
        return ""
    counts = ", ".join(f"broker {broker} holds {count}" for broker, count in held.items())
    return (
        f"{counts} replicas. Move them to brokers below {kept} first "
        "(`ottla reassign execute --topics … --to-brokers …`), then try again. scaleDownCheck.enabled=false does it regardless."
    )


def cluster_seen_from(bootstrap_server: str, properties: Mapping[str, str], seconds: float) -> dict[str, Any] | str:
    """What `ottla cluster` says, asked again while no one answers; in the end why no one does."""
    command = ["ottla", "cluster", "--json", "--bootstrap-server", bootstrap_server]
    for name, value in properties.items():
        command += ["--property", f"{name}={value}"]
    deadline = time.monotonic() + seconds
    while True:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30)
        if asked.returncode == 0:
            found: dict[str, Any] = json.loads(asked.stdout)
            return found
        if time.monotonic() > deadline:
            return asked.stderr.strip()
        time.sleep(2)


def main() -> None:
    """The hook's command."""
    bootstrap_server, first, end, seconds = sys.argv[1:]
    properties = json.loads(os.environ.get("CLIENT_PROPERTIES", "{}"))
    cluster = cluster_seen_from(bootstrap_server, properties, float(seconds))
    if isinstance(cluster, str):
        raise SystemExit(
            f"refused: no broker could say what the others hold: {cluster}. "
            "Without that nothing is taken away; scaleDownCheck.enabled=false does it regardless."
        )
    if refused := verdict(holding(cluster, int(first), int(end)), int(first)):
        raise SystemExit(f"refused: {refused}")
    print(f"Brokers from {first} on hold no replicas.")


if __name__ == "__main__":
    main()

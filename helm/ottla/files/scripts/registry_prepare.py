"""Before a schema registry starts: its key for the brokers, and the brokers themselves.

    registry_prepare.py BOOTSTRAP_SERVER TOPIC BROKERS SECONDS INTO [CERTIFICATE PRIVATE_KEY]

A registry makes its topic with as many copies as there are brokers by then, three at most. In an installation all pods start at once, so
it waits here until there are that many; but not when the topic is there already. CLIENT_PROPERTIES in the environment is JSON:
librdkafka's names, for TLS. What the registry shows to brokers is one PEM file, INTO/keystore.pem.
"""

# ruff: noqa: T201  (what it prints is the container's log)
from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

ANSWER_SECONDS = 10.0
PAUSE_SECONDS = 1.0


def write_keystore(into: Path, parts: Sequence[Path]) -> None:
    """Key and certificate in one file, which no one else may read."""
    path = into / "keystore.pem"
    path.touch(mode=0o600)
    path.write_bytes(b"\n".join(part.read_bytes().strip() for part in parts) + b"\n")


def what_is_missing(admin: AdminClient, topic: str, brokers: int) -> str:
    """Why a registry should not start yet; empty when it may."""
    try:
        found = admin.list_topics(timeout=ANSWER_SECONDS)
    except KafkaException as error:
        return str(error.args[0].str())
    if topic in found.topics or len(found.brokers) >= brokers:
        return ""
    return f"{len(found.brokers)} of {brokers} brokers are there"


def main() -> None:
    """The init container's command."""
    bootstrap_server, topic, brokers, seconds, into, *secrets = sys.argv[1:]
    if secrets:
        write_keystore(Path(into), [Path(path) for path in secrets])
    properties = json.loads(os.environ.get("CLIENT_PROPERTIES", "{}"))
    admin = AdminClient({"bootstrap.servers": bootstrap_server, "client.id": "ottla-schema-registry", **properties})
    deadline = time.monotonic() + float(seconds)
    while missing := what_is_missing(admin, topic, int(brokers)):
        print(missing, flush=True)
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds} s: {missing}")
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()

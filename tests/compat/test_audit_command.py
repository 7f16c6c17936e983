"""`ottla dev --with audit-counter` and `ottla audit`, run as a person runs them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest

from ottla.client.audited_clients import audited

pytestmark = pytest.mark.timeout(900)
COMMAND: Final = [sys.executable, "-m", "ottla.cli"]
WAIT_SECONDS: Final = 300


def test_dev_with_an_audit_counter_says_that_a_message_arrived(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    services = ["--with", "schema-registry", "--with", "audit-counter"]
    arguments = [*COMMAND, "dev", "--ephemeral", "--port", "0", *services, "--pid-file", str(pid_file)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = ""
        while not url:
            line = process.stdout.readline()
            assert line, "it ended before it was ready"
            url = line.split()[-1] if line.strip().startswith("audit") else ""
        servers = pid_file.read_text().splitlines()[1]
        producer: Any = audited(confluent_kafka.Producer)({"bootstrap.servers": servers})
        producer.produce("clicks", b"value")
        assert producer.close_audit(WAIT_SECONDS) == 0
        words = ["audit", "verify", "--topic", "clicks", "--wait", f"{WAIT_SECONDS}s", "--counter", url]
        done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=2 * WAIT_SECONDS, check=False)
        assert (done.returncode, done.stdout) == (0, "clicks: COMPLETE, 1 window\n"), done.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()

"""Three servers of ZooKeeper that elect a leader, each a process, to be killed.

A member has to know the others' ports before any of them listens, so no port can be the system's choice: each has an address of its own
out of 127.0.0.0/8, made of this process's id, and there ZooKeeper's own ports.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ottla.testing.zookeeper import class_path

CLIENT_PORT, MEMBERS = 2181, (1, 2, 3)
START_SECONDS: Final = 60.0


class Ensemble:
    """A context manager. The machine has what `own_zookeeper_server` needs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        process_id = os.getpid()
        network = f"127.{process_id >> 14 & 255}.{process_id >> 6 & 255}"
        self._hosts = {member: f"{network}.{(process_id & 63) << 2 | member}" for member in MEMBERS}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def connect(self) -> str:
        """What clients are told."""
        return ",".join(f"{host}:{CLIENT_PORT}" for host in self._hosts.values())

    def start_member(self, member: int) -> None:
        """Starts one, for the first time or again."""
        directory = self._directory / str(member)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "myid").write_text(str(member))
        servers = "".join(f"server.{each}={host}:2888:3888\n" for each, host in self._hosts.items())
        file = directory / "zoo.cfg"
        file.write_text(
            "tickTime=200\ninitLimit=50\nsyncLimit=20\nmaxSessionTimeout=60000\nadmin.enableServer=false\n4lw.commands.whitelist=*\n"
            f"dataDir={directory}\nclientPort={CLIENT_PORT}\nclientPortAddress={self._hosts[member]}\n{servers}"
        )
        main = ["-cp", class_path() or "", "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(file)]
        command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no", *main]
        with (directory / "log").open("ab") as output:
            self._processes[member] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def kill(self, member: int) -> None:
        """As `kill -9`."""
        process = self._processes.pop(member)
        process.kill()
        process.wait()

    def leader(self) -> int:
        """Who leads, as soon as there is one."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            for member in self._processes:
                if "Mode: leader" in self._status(member):
                    return member
            time.sleep(0.05)
        logs = [(self._directory / str(member) / "log").read_text(errors="replace")[-1_000:] for member in MEMBERS]
        raise AssertionError("the ensemble has no leader:\n" + "\n".join(logs))

    def _status(self, member: int) -> str:
        try:
            with socket.create_connection((self._hosts[member], CLIENT_PORT), 5) as connection:
                connection.sendall(b"srvr")
                return b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return ""

    def __enter__(self) -> Self:
        for member in MEMBERS:
            self.start_member(member)
        self.leader()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for member in list(self._processes):
            self.kill(member)

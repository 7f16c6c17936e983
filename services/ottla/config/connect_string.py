"""`zookeeper.connect`: `host1:2181,host2:2181/chroot`, taken apart.

Pure: a text and its parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.config.listeners import is_host, is_port
from ottla.errors import ConfigurationError

DEFAULT_PORT: Final = 2181


@dataclass(frozen=True, slots=True)
class ConnectString:
    """Which servers there are, and under which path of theirs this cluster lives (empty for the root)."""

    servers: tuple[tuple[str, int], ...]
    chroot: str

    @classmethod
    def parse(cls, text: str) -> ConnectString:
        """Reads it as ZooKeeper does: the chroot follows the last server. Raises ConfigurationError."""
        servers, slash, rest = text.strip().partition("/")
        chroot = (slash + rest).rstrip("/")
        if not chroot.isprintable() or any(name in ("", ".", "..") for name in chroot.split("/")[1:]):
            raise ConfigurationError(f"{chroot!r} is no path of a znode")
        return cls(tuple(_server(server.strip()) for server in servers.split(",")), chroot)

    @property
    def hosts(self) -> str:
        """The servers as ZooKeeper's clients take them, without the chroot."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers)

    def __str__(self) -> str:
        return self.hosts + self.chroot


def _server(server: str) -> tuple[str, int]:
    if server.startswith("["):
        host, _, port = server[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = server.partition(":")
    if not host or not is_host(host) or (port and not (is_port(port) and int(port))):
        raise ConfigurationError(f"{server!r} is not host:port")
    return host, int(port) if port else DEFAULT_PORT

"""A session with a real ZooKeeper: what it is opened with, and the one function that opens it.

kazoo, the client beneath, is imported with the first session: a broker with the embedded twin starts without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.config.connect_string import ConnectString
from ottla.errors import ConfigurationError

if TYPE_CHECKING:
    from ottla.coordination.zookeeper_session import ZooKeeperSession

# Kafka's defaults.
SESSION_TIMEOUT_SECONDS: Final = 18.0
MAX_IN_FLIGHT_REQUESTS: Final = 10


@dataclass(frozen=True, slots=True)
class DigestCredentials:
    """Who we are to ZooKeeper's `digest` scheme."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"DigestCredentials({self.username!r}, [hidden])"


@dataclass(frozen=True, slots=True)
class ZooKeeperTls:
    """TLS towards ZooKeeper. Every file is PEM.

    Attributes:
        truststore: the authorities that may have signed the server's certificate; None leaves it to the system's.
        keystore: our private key and certificate chain, for servers that want to see one.
        key_password: of an encrypted private key.
        check_host_name: whether the certificate must be for the host that we connect to.
    """

    truststore: Path | None = None
    keystore: Path | None = None
    key_password: str | None = None
    check_host_name: bool = True

    def __repr__(self) -> str:
        return f"ZooKeeperTls({self.truststore}, {self.keystore}, check_host_name={self.check_host_name})"


@dataclass(frozen=True, slots=True)
class ZooKeeperOptions:
    """How to reach ZooKeeper and what to be there.

    Attributes:
        connect: the servers and the chroot, which is made when it is missing.
        session_timeout_seconds: how long the session outlives the connection; the server may bound it.
        connection_timeout_seconds: how long opening a session may take.
        max_in_flight_requests: requests that are sent before the answer to the first of them.
        credentials: added to every connection.
        set_acl: whether new znodes may be changed by these credentials only.
        tls: None for plain TCP.
        makes_chroot: whether a chroot that is missing is made; else opening a session raises NoNode.
    """

    connect: ConnectString
    session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS
    connection_timeout_seconds: float = SESSION_TIMEOUT_SECONDS
    max_in_flight_requests: int = MAX_IN_FLIGHT_REQUESTS
    credentials: DigestCredentials | None = None
    set_acl: bool = False
    tls: ZooKeeperTls | None = None
    makes_chroot: bool = True


async def open_session(options: ZooKeeperOptions) -> ZooKeeperSession:
    """A new session.

    Raises:
        ConfigurationError: kazoo is not installed, or a PEM file cannot be used.
        ConnectionLoss: no server gave a session in time.
        CoordinationError: the chroot cannot be made, or is missing and is not to be made.
    """
    try:
        from ottla.coordination.zookeeper_session import ZooKeeperSession
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "kazoo":
            raise
        raise ConfigurationError("zookeeper.connect is set, and kazoo is not installed: pip install 'ottla[server]'") from error
    return await ZooKeeperSession.open(options)

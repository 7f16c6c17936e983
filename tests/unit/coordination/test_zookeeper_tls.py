"""TLS towards a real ZooKeeper, with a certificate of our own where it asks for one. Every file is PEM."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from ottla.clock import SystemClock
from ottla.config.connect_string import ConnectString
from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.coordination.errors import ConnectionLoss
from ottla.coordination.interface import EventType, WatchedEvent
from ottla.coordination.listener.server import CoordinationListener
from ottla.coordination.zookeeper import ZooKeeperOptions, ZooKeeperTls, open_session
from ottla.errors import ConfigurationError
from ottla.testing.zookeeper import ZooKeeperServer
from ottla.testing.zookeeper_proxy import framed, read_frame

PING = (-2).to_bytes(4, "big", signed=True)  # the xid of one


@dataclass(frozen=True, slots=True)
class Guarded:
    """A server that speaks TLS only to those whose certificate it knows, at an address that its own certificate names."""

    port: int
    authority: Path
    keystore: Path  # one key and certificate serve both sides


def issue(directory: Path) -> tuple[Path, Path]:
    """A certificate that is its own authority, and the same with its key before it."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "zookeeper")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    directory.mkdir()
    authority, keystore = directory / "authority.pem", directory / "keystore.pem"
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    authority.write_bytes(pem)
    keystore.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()) + pem
    )
    return authority, keystore


@pytest.fixture(scope="module")
def guarded(a_zookeeper_to_start: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    authority, keystore = issue(directory / "pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    settings = {
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(keystore),
        "ssl.trustStore.location": str(authority),
        "ssl.hostnameVerification": "false",  # of clients' certificates; ours has no name for that
    }
    with ZooKeeperServer(directory / "server", settings=settings):
        yield Guarded(port, authority, keystore)


def options_for(guarded: Guarded, tls: ZooKeeperTls, host: str = "127.0.0.1", timeout: float = 60.0) -> ZooKeeperOptions:
    return ZooKeeperOptions(ConnectString.parse(f"{host}:{guarded.port}"), 10.0, timeout, tls=tls)


async def written_and_read(options: ZooKeeperOptions) -> bytes:
    session = await open_session(options)
    try:
        path = await session.create("/secret", b"x" * 200_000, ephemeral=True, sequential=True)
        return (await session.get(path))[0]
    finally:
        await session.close()


def test_a_session_over_mutual_tls_carries_large_znodes(guarded: Guarded) -> None:
    tls = ZooKeeperTls(guarded.authority, guarded.keystore)
    assert asyncio.run(written_and_read(options_for(guarded, tls))) == b"x" * 200_000


async def test_two_frames_in_one_record_of_tls_are_both_read(tmp_path: Path) -> None:
    """As what ends TLS before a ZooKeeper may join them. What is decrypted already makes no socket readable.

    Method: behind the two frames nothing comes any more that would.
    """
    authority, keystore = issue(tmp_path / "pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(keystore)
    zookeeper = EmbeddedZooKeeper(None, SystemClock())
    listener = CoordinationListener(zookeeper, "127.0.0.1", 0)
    await listener.start()
    joins = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, before = await asyncio.open_connection("127.0.0.1", listener.port)

        async def ask() -> None:
            while data := await reader.read(65536):
                before.write(data)

        tasks.append(asyncio.ensure_future(ask()))
        joined = b""
        while True:
            frame = await read_frame(behind)
            if not joins.is_set():
                writer.write(framed(frame))
            elif frame[:4] != PING:
                if joined:
                    writer.write(joined + framed(frame))
                    return
                joined = framed(frame)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    options = ZooKeeperOptions(
        ConnectString.parse(f"127.0.0.1:{server.sockets[0].getsockname()[1]}"), 60.0, 60.0, tls=ZooKeeperTls(authority)
    )
    session = await open_session(options)
    told: list[WatchedEvent] = []
    await session.create("/a")
    await session.get("/a", told.append)
    joins.set()
    assert (await session.set("/a", b"new")).version == 1
    assert told == [WatchedEvent(EventType.CHANGED, "/a")]
    await listener.close()
    await session.close()
    for task in tasks:
        task.cancel()
    server.close()
    await zookeeper.close()


@pytest.mark.parametrize("what", ["no certificate of ours", "a strange authority", "another host's name"])
def test_whoever_is_not_trusted_gets_no_session(guarded: Guarded, tmp_path: Path, what: str) -> None:
    strange, _ = issue(tmp_path / "strange")
    tls, host = ZooKeeperTls(guarded.authority, guarded.keystore), "127.0.0.1"
    if what == "no certificate of ours":
        tls = ZooKeeperTls(guarded.authority)
    elif what == "a strange authority":
        tls = ZooKeeperTls(strange, guarded.keystore)
    else:
        host = "localhost"
        unchecked = ZooKeeperTls(guarded.authority, guarded.keystore, check_host_name=False)
        assert asyncio.run(written_and_read(options_for(guarded, unchecked, host)))
    with pytest.raises(ConnectionLoss, match="no ZooKeeper gave a session"):
        asyncio.run(written_and_read(options_for(guarded, tls, host, 0.7)))


def test_a_file_that_is_no_pem_is_named(tmp_path: Path) -> None:
    (tmp_path / "junk.pem").write_text("junk")
    options = ZooKeeperOptions(ConnectString.parse("a"), tls=ZooKeeperTls(tmp_path / "junk.pem"))
    with pytest.raises(ConfigurationError, match=r"zookeeper\.ssl: .*junk\.pem"):
        asyncio.run(written_and_read(options))

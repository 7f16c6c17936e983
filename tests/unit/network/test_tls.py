"""TLS contexts from PEM, as KIP-651 has the settings; what is wrong with them is said by name."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from tests.loops import until

from ottla.broker.server import Broker
from ottla.config.broker import BrokerSettings
from ottla.errors import ConfigurationError
from ottla.network.tls import ServerTls, TlsSettings, client_context, server_context
from ottla.testing.certificates import Authority

from .serving import Wire, frame, rest, serving


def client_of(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


async def talk(wire: Wire) -> str:
    """Sends a frame and gives the protocol version that was agreed on."""
    async with serving(wire) as server:
        peer, receiver = await server.connect_and_see()
        await peer.send(frame(b"hello"))
        await until(lambda: receiver.frames == [b"hello"])
        version: str = peer.writer.get_extra_info("ssl_object").version()
        return version


async def test_a_keystore_may_be_given_as_text(certificate: Path) -> None:
    """ssl.keystore.certificate.chain and ssl.keystore.key."""
    key, _, chain = certificate.read_text().partition("-----BEGIN CERTIFICATE-----")  # noqa: ASYNC240
    settings = TlsSettings(keystore_certificate_chain="-----BEGIN CERTIFICATE-----" + chain, keystore_key=key)
    assert await talk(Wire(server_context(settings), client_of(certificate))) == "TLSv1.3"


def test_an_encrypted_key_is_opened_by_its_password_and_nobody_is_asked_for_it(certificate: Path, tmp_path: Path) -> None:
    pem = certificate.read_bytes()
    key = serialization.load_pem_private_key(pem, None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    path = tmp_path / "encrypted.pem"
    path.write_bytes(encrypted + pem[pem.index(b"-----BEGIN CERTIFICATE-----") :])
    assert server_context(TlsSettings(keystore_location=str(path), key_password="secret"))
    for wrong in (None, "guess"):
        with pytest.raises(ConfigurationError, match="cannot be used"):
            server_context(TlsSettings(keystore_location=str(path), key_password=wrong))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_only_the_enabled_protocols_are_spoken(certificate: Path, version: str) -> None:
    server = server_context(TlsSettings(keystore_location=str(certificate), enabled_protocols=(version,)))
    assert await talk(Wire(server, client_of(certificate))) == version


async def test_a_client_must_show_a_trusted_certificate_where_that_is_required(certificate: Path) -> None:
    server = server_context(TlsSettings(keystore_location=str(certificate), truststore_location=str(certificate), client_auth="required"))
    known = client_of(certificate)
    known.load_cert_chain(certificate)
    assert await talk(Wire(server, known))


@pytest.mark.parametrize(
    ("version", "certificate_of", "alert"),
    [
        ("TLSv1.2", "", "SSLV3_ALERT_HANDSHAKE_FAILURE"),
        ("TLSv1.3", "", "TLSV13_ALERT_CERTIFICATE_REQUIRED"),
        ("TLSv1.2", "another", "TLSV1_ALERT_UNKNOWN_CA"),
        ("TLSv1.3", "another", "TLSV1_ALERT_UNKNOWN_CA"),
    ],
)
async def test_a_client_hears_why_its_handshake_failed(
    certificate: Path, tmp_path: Path, version: str, certificate_of: str, alert: str
) -> None:
    """`SslTransportLayerTest.testPeerNotifiedOfHandshakeFailure`: without the alert clients try again for ever and do not say why."""
    trusting = TlsSettings(truststore_location=str(certificate), client_auth="required", enabled_protocols=(version,))
    server = server_context(replace(trusting, keystore_location=str(certificate)))
    client = client_of(certificate)
    if certificate_of:
        path = tmp_path / "client.pem"
        path.write_bytes(Authority(certificate_of).issue("a client"))
        client.load_cert_chain(path)
    async with serving(Wire(server, client)) as listening:
        with pytest.raises(ssl.SSLError, match=alert):
            await (await listening.connect()).read(1)
        assert listening.receivers == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"keystore_location": ""}, "ssl.keystore.location"),
        ({"keystore_location": "/nowhere.pem"}, "/nowhere.pem"),
        ({"keystore_location": "", "keystore_certificate_chain": "no PEM"}, "given as text"),
        ({"enabled_protocols": ()}, "none given"),
        ({"enabled_protocols": ("TLSv1.3", "SSLv3")}, "SSLv3"),
        ({"cipher_suites": ("NO-SUCH-CIPHER",)}, "ssl.cipher.suites"),
        ({"client_auth": "perhaps"}, "'perhaps'"),
        ({"client_auth": "required"}, "no truststore"),
        ({"truststore_location": "/nowhere.pem"}, "ssl.truststore.location"),
        ({"truststore_certificates": "no PEM"}, "ssl.truststore"),
        ({"truststore_certificates": "ü"}, "ssl.truststore"),
    ],
)
def test_what_is_wrong_is_said_with_the_settings_name(certificate: Path, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        server_context(TlsSettings(**{"keystore_location": str(certificate), **wrong}))


async def test_a_connection_that_ends_while_a_step_of_its_handshake_is_computed_waits_for_the_step(tls: Wire) -> None:
    """OpenSSL works in a thread, without the interpreter's lock, on buffers that a lost connection reads."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    computed, shaken = loop.create_future(), loop.create_future()
    handshake = ServerTls(asyncio.Protocol(), tls.server, shaken, lambda *_: computed)  # type: ignore[arg-type]
    transport, _ = await loop.connect_accepted_socket(lambda: handshake, ours)
    client = asyncio.ensure_future(asyncio.open_connection(sock=theirs, ssl=tls.client, server_hostname="localhost"))
    await until(lambda: not transport.is_reading())
    transport.abort()
    await rest()
    assert not shaken.done()
    computed.set_result(None)
    await shaken
    with pytest.raises(ConnectionError):
        await client


async def test_a_bad_frame_that_is_read_after_the_end_of_the_stream_is_no_failure(tls: Wire, caplog: pytest.LogCaptureFixture) -> None:
    """asyncio then shuts a connection down that was aborted meanwhile, which raised."""
    async with serving(tls) as server:
        peer, receiver = await server.connect_and_see()
        receiver.refusing = True
        await peer.send(frame(b"not taken yet"))
        await until(lambda: receiver.connection.read_pauses)
        await peer.send(b"\xff" * 4)
        await rest()
        peer.writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
        await rest()
        receiver.refusing = False
        receiver.connection.resume()
        await until(lambda: receiver.lost)
        await rest()
    assert [record.name for record in caplog.records] == ["ottla.network.connection"]


def test_a_keystore_given_as_text_leaves_no_file(certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigurationError):
        server_context(TlsSettings(keystore_certificate_chain="broken", keystore_key="broken"))
    server_context(TlsSettings(keystore_certificate_chain=certificate.read_text()))
    assert list(tmp_path.iterdir()) == []


async def test_a_broker_shows_its_keystore_to_other_brokers_and_trusts_their_authority(certificate: Path) -> None:
    settings = TlsSettings(keystore_location=str(certificate), truststore_location=str(certificate), client_auth="required")
    assert await talk(Wire(server_context(settings), client_context(settings, check_host_name=True))) == "TLSv1.3"


@pytest.mark.parametrize("client_auth", ["none", "required"])
@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("is_other", [False, True])
def test_a_broker_that_the_others_would_not_trust_does_not_start(
    certificate: Path, tmp_path: Path, client_auth: str, protocol: str, is_other: bool
) -> None:
    """`SslTransportLayerTest.testInterBrokerSslConfigValidationFailure`; it started, and no follower of it or at it replicated."""
    trusted = tmp_path / "authority.pem"
    trusted.write_bytes(Authority("another").pem if is_other else certificate.read_bytes())
    files = {"ssl.keystore.location": str(certificate), "ssl.truststore.location": str(trusted), "ssl.enabled.protocols": protocol}
    files |= {"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM", "ssl.client.auth": client_auth}
    listener = {"listeners": "SSL://127.0.0.1:0", "security.inter.broker.protocol": "SSL", "zookeeper.connect": "zookeeper:2181"}
    broker = Broker(BrokerSettings.from_properties({"broker.id": "1", "log.dirs": str(tmp_path), **listener, **files}))
    with pytest.raises(ConfigurationError, match=r"ssl\.truststore: .*certificate verify failed") if is_other else nullcontext():
        assert broker._tls_between_brokers()


async def test_without_a_truststore_a_broker_trusts_the_systems_authorities_only(certificate: Path) -> None:
    settings = TlsSettings(keystore_location=str(certificate))
    async with serving(Wire(server_context(settings), client_context(settings, check_host_name=True))) as server:
        with pytest.raises(ssl.SSLCertVerificationError):
            await server.connect()


async def test_a_client_needs_no_certificate_of_its_own(certificate: Path) -> None:
    """A keystore is for listeners that ask for one; without it the listener's own certificate is checked all the same."""
    server = server_context(TlsSettings(keystore_location=str(certificate)))
    trusting = TlsSettings(truststore_location=str(certificate))
    assert await talk(Wire(server, client_context(trusting, check_host_name=True))) == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        await talk(Wire(server, client_context(TlsSettings(), check_host_name=True)))
    with pytest.raises(ConfigurationError, match=r"ssl.keystore.location"):
        server_context(trusting)


def test_a_truststore_given_as_text_may_say_whose_certificates_it_holds(certificate: Path) -> None:
    """As `openssl` and `keytool` write it before each, in any letters; Kafka's PEM stores pass over it (KIP-651)."""
    text = "subject=CN = Müller\n" + Authority("Müller").pem.decode()
    context = server_context(TlsSettings(keystore_location=str(certificate), truststore_certificates=text, client_auth="required"))
    assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize("who", ["broker", "client"])
async def test_a_truststore_may_hold_a_certificate_without_the_authority_above_it(tmp_path: Path, who: str) -> None:
    """As a truststore of Java, in which each certificate is an anchor: one's own, or that of an authority below another."""
    authority = Authority("authority")
    stores = {name: authority.issue(name) for name in ("broker", "client")}
    above = dict.fromkeys(stores, authority.pem) | {who: stores[who][stores[who].index(b"-----BEGIN CERTIFICATE-----") :]}
    settings = {}
    for name, other in (("broker", "client"), ("client", "broker")):
        (tmp_path / f"{name}.pem").write_bytes(stores[name])
        (tmp_path / f"{other}-is.pem").write_bytes(above[other])
        settings[name] = TlsSettings(
            keystore_location=str(tmp_path / f"{name}.pem"), truststore_location=str(tmp_path / f"{other}-is.pem"), client_auth="required"
        )
    client = client_context(settings["client"], check_host_name=True)
    assert await talk(Wire(server_context(settings["broker"]), client)) == "TLSv1.3"

"""TLS and SASL by the names of Java's clients and of librdkafka."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from ottla.errors import ConfigurationError
from ottla.network.tls import TlsSettings, server_context
from ottla.testing.certificates import Authority
from ottla.wire.client_security import security_of

JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@pytest.mark.parametrize(
    ("options", "password"),
    [
        ('username="u" password="p;\'";', "p;'"),
        ("username='u' password='p\"';", 'p"'),
        ('username="u" password="a \\"b\\" \\\\c";', 'a "b" \\c'),
        ("username=u password=p-2_$;", "p-2_$"),
    ],
)
def test_sasl_is_read_from_a_jaas_configuration(options: str, password: str) -> None:
    """Kafka's JaasContextTest: quotation marks may be left out (`testSingleOption`)."""
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": f"{JAAS} {options}"}
    credentials = security_of(given).credentials
    assert credentials is not None
    assert (credentials.mechanism, credentials.username, credentials.password) == ("SCRAM-SHA-256", "u", password)


def test_sasl_is_read_from_librdkafkas_names() -> None:
    found = security_of({"security.protocol": "sasl_ssl", "sasl.mechanisms": "PLAIN", "sasl.username": "u", "sasl.password": "p"})
    assert found.protocol == "SASL_SSL"
    assert found.credentials is not None and found.credentials.username == "u"


def test_only_comments_of_certificates_may_have_letters_that_are_not_ascii() -> None:
    with pytest.raises(ConfigurationError, match=r"^ssl\.ca\.pem cannot be used: "):
        security_of({"security.protocol": "SSL", "ssl.ca.pem": "ü"})
    assert security_of({"security.protocol": "SSL", "ssl.ca.pem": "subject=ü\n" + Authority("ü").pem.decode()}).tls is not None


def test_authorities_may_be_given_as_lines_that_were_joined() -> None:
    """As a properties file has them whose lines end in backslashes (KIP-651)."""
    joined = " ".join(Authority("an authority").pem.decode().split("\n"))
    tls = security_of({"security.protocol": "SSL", "ssl.truststore.certificates": joined}).tls
    assert tls is not None and len(tls.get_ca_certs()) == 1


def test_a_certificate_that_is_given_inline_is_refused_by_name() -> None:
    """Else the broker would ask for one in vain, and TLS's error says nothing of it."""
    with pytest.raises(ConfigurationError, match=r"ssl\.certificate\.pem cannot be used"):
        security_of({"security.protocol": "SSL", "ssl.certificate.pem": "-----BEGIN", "ssl.key.pem": "-----BEGIN"})


def test_an_encrypted_key_is_opened_by_its_password_and_no_one_is_asked_for_it(tmp_path: Path) -> None:
    """SslTransportLayerTest.testPemFilesWithoutClientKeyPassword. OpenSSL asks on the terminal, or takes a line of standard input."""
    keystore = tmp_path / "keystore.pem"
    keystore.write_bytes(Authority("authority").issue("client", b"secret"))
    given = {"security.protocol": "SSL", "ssl.keystore.location": str(keystore)}
    assert security_of(given | {"ssl.key.password": "secret"}).tls is not None
    program = f"from ottla.wire.client_security import security_of; security_of({given!r})"
    asked = subprocess.run(
        [sys.executable, "-c", program], input="secret\n", capture_output=True, text=True, check=False, start_new_session=True, timeout=60
    )
    assert "ConfigurationError: ssl.keystore.location cannot be used: " in asked.stderr


async def is_trusted(tls: ssl.SSLContext | None, keystore: Path) -> bool:
    """Whether a client that trusts so much would talk to a broker on localhost with this keystore."""
    broker = server_context(TlsSettings(keystore_location=str(keystore)))
    async with await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=broker) as server:
        _, port = server.sockets[0].getsockname()
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname="localhost")
        except ssl.SSLCertVerificationError:
            return False
        writer.close()
        return True


@pytest.mark.parametrize("is_authority", [True, False], ids=["an authority", "the broker's own certificate"])
async def test_whatever_a_truststore_holds_is_trusted(tmp_path: Path, is_authority: bool) -> None:
    """As a truststore of Java's. An authority needs no key identifiers, as Python 3.13 asks for by itself."""
    authority = Authority("authority")
    keystore, truststore = tmp_path / "keystore.pem", tmp_path / "truststore.pem"
    issued = authority.issue("localhost")
    keystore.write_bytes(issued)
    truststore.write_bytes(authority.pem if is_authority else issued[issued.index(b"-----BEGIN CERTIFICATE-----") :])
    assert await is_trusted(security_of({"security.protocol": "SSL", "ssl.truststore.location": str(truststore)}).tls, keystore)


async def test_authorities_may_be_a_directory_as_librdkafka_takes_it(tmp_path: Path) -> None:
    """Its CONFIGURATION.md: "File or directory path". OpenSSL finds an authority there by a hash of its name."""
    authority, stranger = Authority("authority"), Authority("stranger")
    (tmp_path / "keystore.pem").write_bytes(authority.issue("localhost"))
    (tmp_path / "stranger.pem").write_bytes(stranger.issue("localhost"))
    subject = x509.load_pem_x509_certificate(authority.pem).subject.public_bytes()
    (number,) = struct.unpack("<I", hashlib.sha1(subject[2:], usedforsecurity=False).digest()[:4])
    (tmp_path / f"{number:08x}.0").write_bytes(authority.pem)
    tls = security_of({"security.protocol": "SSL", "ssl.ca.location": str(tmp_path)}).tls
    assert await is_trusted(tls, tmp_path / "keystore.pem")
    assert not await is_trusted(tls, tmp_path / "stranger.pem")

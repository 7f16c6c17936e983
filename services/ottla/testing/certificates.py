"""Authorities and the certificates that they sign, for tests of mutual TLS. Needs the package `cryptography`."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID


class Authority:
    """An authority that signs certificates."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._certificate = _builder(self._name, self._name, self._key.public_key(), is_authority=True).sign(self._key, hashes.SHA256())

    @property
    def pem(self) -> bytes:
        """What those who trust it have."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, password: bytes | None = None, rsa_bits: int = 0) -> bytes:
        """A private key and a certificate of localhost and 127.0.0.1, as one PEM."""
        key = rsa.generate_private_key(65537, rsa_bits) if rsa_bits else ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = (
            _builder(_name(name), self._name, key.public_key(), is_authority=False)
            .add_extension(alternatives, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password)
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        return private + certificate.public_bytes(serialization.Encoding.PEM)

    def write(self, directory: Path, name: str) -> tuple[str, str]:
        """The two files of a broker: its keystore and its truststore."""
        keystore, truststore = directory / f"{name}.pem", directory / f"{name}-trusts.pem"
        keystore.write_bytes(self.issue(name))
        truststore.write_bytes(self.pem)
        return str(keystore), str(truststore)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey, *, is_authority: bool
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )

"""TLS from PEM: between brokers mutual, where each end shows a certificate and each end looks at the other's.

There is no one-sided TLS between brokers: a caller of a broker's control services may take its partitions away.
An authority that signs certificates for clients too would let those in; give the brokers one of their own. A service for any client may
ask for no certificate (`RpcServer(..., asks_for_certificates=False)`), and a client that has none trusts by `RpcAuthorities`.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from ottla.errors import ConfigurationError

_PRIVATE_KEY: Final = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True, repr=False)  # a key is never part of a log line
class RpcTls:
    """Who this end is and whom it trusts, as PEM. Server and channel use the same."""

    private_key: bytes
    certificate_chain: bytes
    authorities: bytes


@dataclass(frozen=True, slots=True)
class RpcAuthorities:
    """Whom a channel trusts that shows no certificate itself, as PEM."""

    authorities: bytes


def read_tls(*, keystore: str, truststore: str, keystore_is_text: bool = False, truststore_is_text: bool = False) -> RpcTls:
    """Reads and checks what both ends need.

    Args:
        keystore: the file with the private key, not encrypted, and the certificate chain.
        truststore: the file with the certificates of the authorities.
        keystore_is_text: whether `keystore` is the PEM itself.
        truststore_is_text: whether `truststore` is the PEM itself.

    Raises:
        ConfigurationError: a file cannot be read, is no PEM, or key and certificate are no pair.
    """
    own = keystore.encode() if keystore_is_text else _read(keystore)
    trusted = truststore.encode() if truststore_is_text else _read(truststore)
    key_name = "the keystore that was given as text" if keystore_is_text else keystore
    key = _PRIVATE_KEY.search(own)
    if key is None:
        raise ConfigurationError(f"{key_name} holds no private key as PEM")
    if b"ENCRYPTED" in key[0]:
        raise ConfigurationError(f"{key_name}: the private key is encrypted, and gRPC takes plain ones only")
    tls = RpcTls(
        key[0] + b"\n", _certificates(own, key_name), _certificates(trusted, "the truststore" if truststore_is_text else truststore)
    )
    _check(tls, key_name)
    return tls


def server_credentials(tls: RpcTls, asks_for_certificates: bool = True) -> grpc.ServerCredentials:
    """For a port that lets only those in who show a certificate of the authorities, or all who trust its own."""
    pair = [(tls.private_key, tls.certificate_chain)]
    if not asks_for_certificates:
        return grpc.ssl_server_credentials(pair)
    return grpc.ssl_server_credentials(pair, tls.authorities, require_client_auth=True)


def channel_credentials(tls: RpcTls | RpcAuthorities) -> grpc.ChannelCredentials:
    """For a channel that shows its certificate, if it has one, and whose server must show one for the host that was called."""
    if isinstance(tls, RpcAuthorities):
        return grpc.ssl_channel_credentials(tls.authorities)
    return grpc.ssl_channel_credentials(tls.authorities, tls.private_key, tls.certificate_chain)


def _read(location: str) -> bytes:
    try:
        return Path(location).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{location} cannot be read: {error.strerror}") from error


def _certificates(pem: bytes, name: str) -> bytes:
    found: list[bytes] = _CERTIFICATE.findall(pem)
    if not found:
        raise ConfigurationError(f"{name} holds no certificate as PEM")
    return b"\n".join(found) + b"\n"


def _check(tls: RpcTls, key_name: str) -> None:
    """gRPC would tell of a bad key or certificate by failing handshakes only, so OpenSSL is asked first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    handle, name = tempfile.mkstemp(prefix="ottla-tls-", suffix=".pem")  # that only we can read
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(tls.private_key + tls.certificate_chain)
        context.load_cert_chain(name, password="")
    except ssl.SSLError as error:
        raise ConfigurationError(f"{key_name}: key and certificate cannot be used: {error}") from error
    finally:
        Path(name).unlink()
    try:
        context.load_verify_locations(cadata=tls.authorities.decode("ascii", errors="replace"))
    except ssl.SSLError as error:
        raise ConfigurationError(f"the certificates of the authorities cannot be used: {error}") from error

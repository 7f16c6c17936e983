"""Mutual TLS from PEM: each end shows a certificate and each end looks at the other's.

There is no one-sided TLS: a caller of a broker may take its partitions away, one of a service may stop it.
An authority that signs certificates for clients too would let those in, so names are looked at as well (`rpc.server.ByName`).
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

from ottla.config.tls import ClusterTlsSettings, TlsSettings
from ottla.errors import ConfigurationError

_PRIVATE_KEY: Final = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True, repr=False)  # a key is never part of a log line
class RpcTls:
    """Who this end is and whom it trusts, as PEM. Server and channel use the same."""

    private_key: bytes
    certificate_chain: bytes
    authorities: bytes


def tls_of(seen: TlsSettings | ClusterTlsSettings) -> RpcTls:
    """What `ssl.…` says, as the listener or the caller sees it. Raises what `read_tls` does."""
    key = chain = authorities = None
    if isinstance(seen, TlsSettings):
        chain, key, authorities = seen.ssl_keystore_certificate_chain, seen.ssl_keystore_key, seen.ssl_truststore_certificates
    in_text = f"{key.value}\n{chain.value}" if key is not None and chain is not None else ""
    return read_tls(
        keystore=seen.ssl_keystore_location or in_text,
        keystore_is_text=not seen.ssl_keystore_location,
        truststore=seen.ssl_truststore_location or (authorities.value if authorities is not None else ""),
        truststore_is_text=not seen.ssl_truststore_location,
    )


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


def server_credentials(tls: RpcTls) -> grpc.ServerCredentials:
    """For a port that lets only those in who show a certificate of the authorities."""
    return grpc.ssl_server_credentials([(tls.private_key, tls.certificate_chain)], tls.authorities, require_client_auth=True)


def channel_credentials(tls: RpcTls) -> grpc.ChannelCredentials:
    """For a channel that shows its certificate, and whose server must show one for the host that was called."""
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

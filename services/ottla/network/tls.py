"""TLS contexts from PEM files or PEM text, as `ssl.keystore.type=PEM` has them in Kafka (KIP-651)."""

from __future__ import annotations

import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.errors import ConfigurationError

_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """What a listener needs. A location is a file; a text is PEM itself; one of each pair is given."""

    keystore_location: str = ""
    keystore_certificate_chain: str = ""
    keystore_key: str = ""
    key_password: str | None = None
    truststore_location: str = ""
    truststore_certificates: str = ""
    client_auth: str = "none"
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context that a listener accepts with.

    Raises:
        ConfigurationError: no certificate, or files that can not be read as PEM; says which setting.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_protocols(context, settings)
    _load_certificate(context, settings)
    if settings.client_auth not in _CLIENT_AUTH:
        raise ConfigurationError(f"ssl.client.auth: {settings.client_auth!r}; none, requested or required")
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    if not _load_truststore(context, settings) and context.verify_mode is not ssl.CERT_NONE:
        raise ConfigurationError("ssl.client.auth asks for client certificates and no truststore says which are trusted")
    return context


def client_context(settings: TlsSettings, *, check_host_name: bool) -> ssl.SSLContext:
    """The context that a broker connects to the listener of another one with: its keystore is what it shows there.

    Args:
        settings: of the same listener here. Without a truststore the system's authorities are trusted.
        check_host_name: whether the certificate must name the host (`ssl.endpoint.identification.algorithm`).

    Raises:
        ConfigurationError: files that can not be read as PEM; says which setting.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_host_name
    _set_protocols(context, settings)
    _load_certificate(context, settings)
    if not _load_truststore(context, settings):
        context.load_default_certs()
    return context


def _set_protocols(context: ssl.SSLContext, settings: TlsSettings) -> None:
    unknown = [each for each in settings.enabled_protocols if each not in _PROTOCOLS]
    if unknown or not settings.enabled_protocols:
        raise ConfigurationError(f"ssl.enabled.protocols: {', '.join(unknown) or 'none given'}; {' and '.join(_PROTOCOLS)} are served")
    versions = [_PROTOCOLS[each] for each in settings.enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if settings.cipher_suites:
        try:
            context.set_ciphers(":".join(settings.cipher_suites))
        except ssl.SSLError as error:
            raise ConfigurationError(f"ssl.cipher.suites: {error}") from error


def _load_truststore(context: ssl.SSLContext, settings: TlsSettings) -> bool:
    """Trusts what the truststore has; says whether there is one."""
    if not settings.truststore_location and not settings.truststore_certificates:
        return False
    try:
        context.load_verify_locations(cafile=settings.truststore_location or None, cadata=settings.truststore_certificates or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"ssl.truststore.location {settings.truststore_location}: {error}") from error
    return True


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    location = settings.keystore_location
    if not location and not settings.keystore_certificate_chain:
        raise ConfigurationError(
            "ssl.keystore.location (or ssl.keystore.certificate.chain and ssl.keystore.key) is needed by an SSL listener"
        )
    # An empty password keeps OpenSSL from asking on the terminal.
    password = settings.key_password or ""
    try:
        if location:
            context.load_cert_chain(location, password=password)
            return
        # Python's ssl takes certificates from files only: the text passes through one that only we can read.
        handle, name = tempfile.mkstemp(prefix="ottla-tls-", suffix=".pem")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(settings.keystore_certificate_chain + "\n" + settings.keystore_key)
            context.load_cert_chain(name, password=password)
        finally:
            Path(name).unlink()
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"ssl.keystore {location or '(given as text)'} can not be used: {error}") from error

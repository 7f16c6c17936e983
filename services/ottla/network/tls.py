"""TLS contexts from PEM files or PEM text, as `ssl.keystore.type=PEM` has them in Kafka (KIP-651), and the server's side of a handshake.

A handshake costs a signature and a key agreement, and a stranger may begin as many as he likes: a thread computes them.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ottla.config import tls as config
from ottla.config.properties import authorities_of
from ottla.config.settings import Password
from ottla.errors import ConfigurationError
from ottla.lifecycle import Offload

_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
# asyncio gives each connection a buffer of a quarter of a megabyte, whatever it is used for; a record has 16 KiB at most.
TLS_BUFFER_BYTES: Final = 64 * 1024
asyncio.sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
TLS_HANDSHAKE_SECONDS: Final = 30.0
# What is private in it is the same from Python 3.11 to 3.13; typeshed describes the class as it was before.
_SslProtocol: Any = asyncio.sslproto.SSLProtocol
_State: Final = asyncio.sslproto.SSLProtocolState

_PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class ServerTls(_SslProtocol):  # type: ignore[misc]  # Any, as said above
    """asyncio's TLS under a protocol, whose handshake `offload` computes: a step for each arrival.

    OpenSSL works in the thread without the interpreter's lock, on buffers that are not for two threads: while it computes a step
    nothing is read, and the loss of the connection waits for its end.

    Args:
        protocol: its connection is made when the handshake is done.
        shaken: takes the outcome of the handshake.
    """

    def __init__(self, protocol: asyncio.BaseProtocol, context: ssl.SSLContext, shaken: asyncio.Future[None], offload: Offload) -> None:
        super().__init__(
            asyncio.get_running_loop(), protocol, context, shaken, server_side=True, ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS
        )
        self._offload = offload
        self._step: asyncio.Future[None] | None = None
        self._lost: list[Exception | None] = []  # with what, if that was during a step

    def abort(self) -> None:
        """Ends the connection at once, also during its handshake."""
        if self._transport is not None:
            self._transport.abort()

    def _set_state(self, new_state: asyncio.sslproto.SSLProtocolState) -> None:
        # asyncio shuts down after it has read what came before the end of the stream: for that the connection may have been aborted.
        if (self._state, new_state) != (_State.UNWRAPPED, _State.SHUTDOWN):
            super()._set_state(new_state)

    def _do_handshake(self) -> None:
        if not self._incoming.pending:
            return  # the client speaks first
        self._transport.pause_reading()
        self._step = asyncio.ensure_future(self._offload(self._sslobj.do_handshake))
        self._step.add_done_callback(self._stepped)

    def _stepped(self, step: asyncio.Future[None]) -> None:
        self._step = None
        error = ConnectionAbortedError("the listener is closed") if step.cancelled() else step.exception()
        if self._lost:
            super().connection_lost(self._lost[0])
        elif not self._transport.is_closing():
            self._transport.resume_reading()
            if error is not None:
                self._process_outgoing()  # the answer, or the alert that says why there is none
            if not isinstance(error, ssl.SSLWantReadError):
                self._on_handshake_complete(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._step is None:
            super().connection_lost(exc)
        else:
            self._lost.append(exc)


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

    @classmethod
    def of(cls, settings: config.TlsSettings) -> TlsSettings:
        """`ssl.…` of a service, or of one of its listeners."""

        def text(secret: Password | None) -> str:
            return "" if secret is None else secret.value

        return cls(
            keystore_location=settings.ssl_keystore_location or "",
            keystore_certificate_chain=text(settings.ssl_keystore_certificate_chain),
            keystore_key=text(settings.ssl_keystore_key),
            key_password=text(settings.ssl_key_password) or None,
            truststore_location=settings.ssl_truststore_location or "",
            truststore_certificates=text(settings.ssl_truststore_certificates),
            client_auth=settings.ssl_client_auth,
            enabled_protocols=tuple(settings.ssl_enabled_protocols),
            cipher_suites=tuple(settings.ssl_cipher_suites or ()),
        )


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context that a listener accepts with.

    Raises:
        ConfigurationError: no certificate, or files that cannot be read as PEM; says which setting.
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
    """The context that one connects to a listener with: the keystore, if there is one, is what is shown there.

    Args:
        settings: a broker's are those of the same listener here. Without a truststore the system's authorities are trusted.
        check_host_name: whether the certificate must name the host (`ssl.endpoint.identification.algorithm`).

    Raises:
        ConfigurationError: files that cannot be read as PEM; says which setting.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_host_name
    _set_protocols(context, settings)
    if settings.keystore_location or settings.keystore_certificate_chain:
        _load_certificate(context, settings)
    if not _load_truststore(context, settings):
        context.load_default_certs()
    return context


def check_between_brokers(settings: TlsSettings) -> None:
    """Has one side of a listener shake hands with the other, as Kafka does at the start: brokers of one cluster have the same authorities.

    Raises:
        ConfigurationError: no other broker would reach this one.
    """
    theirs, ours = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(settings, check_host_name=False).wrap_bio(ours, theirs)
    sides = [client, server_context(settings).wrap_bio(theirs, ours, server_side=True)]
    while sides:
        side = sides.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            sides.append(side)
        except ssl.SSLError as error:
            raise ConfigurationError(f"ssl.truststore: with it a broker does not trust one with the same ssl.keystore: {error}") from error


def cluster_context(settings: config.ClusterTlsSettings) -> ssl.SSLContext:
    """The context that a service connects to brokers with.

    Raises:
        ConfigurationError: files that cannot be read as PEM; says which setting.
    """
    files = TlsSettings(
        keystore_location=settings.ssl_keystore_location or "",
        key_password=settings.ssl_key_password.value if settings.ssl_key_password is not None else None,
        truststore_location=settings.ssl_truststore_location or "",
    )
    return client_context(files, check_host_name=bool(settings.ssl_endpoint_identification_algorithm))


def _set_protocols(context: ssl.SSLContext, settings: TlsSettings) -> None:
    unknown = [protocol for protocol in settings.enabled_protocols if protocol not in _PROTOCOLS]
    if unknown or not settings.enabled_protocols:
        raise ConfigurationError(f"ssl.enabled.protocols: {', '.join(unknown) or 'none given'}; {' and '.join(_PROTOCOLS)} are served")
    versions = [_PROTOCOLS[protocol] for protocol in settings.enabled_protocols]
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
        context.load_verify_locations(settings.truststore_location or None, cadata=authorities_of(settings.truststore_certificates))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"ssl.truststore.location {settings.truststore_location}: {error}") from error
    # Whatever a truststore holds is trusted, as by Java: also an authority below another, or the certificate of the other side.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
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
        raise ConfigurationError(f"ssl.keystore {location or '(given as text)'} cannot be used: {error}") from error

"""TLS and SASL by the names of Kafka's clients: Java's with PEM stores, and librdkafka's of the same things."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast, get_args

from ottla.config.properties import authorities_of, jaas_login, pem_in_lines
from ottla.errors import ConfigurationError
from ottla.wire.broker_connection import Security
from ottla.wire.sasl import Credentials, Mechanism

_INLINE: Final = ("ssl.certificate.pem", "ssl.key.pem", "ssl.keystore.certificate.chain", "ssl.keystore.key")
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def security_of(properties: Mapping[str, str]) -> Security:
    """How a client with these properties reaches brokers.

    Raises:
        ConfigurationError: a protocol, a mechanism or a store that `wire` does not speak, or cannot open; begins with the property.
    """
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise ConfigurationError(f"security.protocol: {protocol!r} is not one of {', '.join(_PROTOCOLS)}")
    tls = _tls(properties) if protocol.endswith("SSL") else None
    return Security(tls, _credentials(properties) if protocol.startswith("SASL") else None)


def login_of(properties: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The name and the password for SASL, of `sasl.jaas.config` or under librdkafka's names; None where there is none."""
    found = jaas_login(properties.get("sasl.jaas.config", ""))
    return found.get("username", properties.get("sasl.username")), found.get("password", properties.get("sasl.password"))


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    for store in ("truststore", "keystore"):
        if properties.get(f"ssl.{store}.location") and properties.get(f"ssl.{store}.type", "PEM").upper() != "PEM":
            raise ConfigurationError(f"ssl.{store}.type: only PEM is read")
    if inline := [name for name in _INLINE if properties.get(name)]:
        raise ConfigurationError(f"{inline[0]} cannot be used: a client's certificate and key are read from files")
    pem = pem_in_lines(properties.get("ssl.truststore.certificates") or properties.get("ssl.ca.pem") or "")
    authorities = properties.get("ssl.truststore.location") or properties.get("ssl.ca.location") or None
    is_directory = authorities is not None and Path(authorities).is_dir()
    try:
        context = ssl.create_default_context(
            cafile=None if is_directory else authorities,
            capath=authorities if is_directory else None,
            cadata=authorities_of(pem),
        )
        own = properties.get("ssl.keystore.location") or properties.get("ssl.certificate.location")
        if own:
            # An empty password keeps OpenSSL from asking on the terminal, or from taking a line of what the command is to read.
            context.load_cert_chain(own, properties.get("ssl.key.location") or None, properties.get("ssl.key.password") or "")
    except (OSError, ValueError) as error:
        given = sorted(name for name in properties if name.startswith("ssl.") and name.endswith((".location", ".pem", ".certificates")))
        raise ConfigurationError(f"{' or '.join(given)} cannot be used: {error}") from error
    # As `network.tls` has it. Python 3.13's own flags ask authorities for extensions that neither Java nor librdkafka asks for.
    context.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST | ssl.VERIFY_X509_PARTIAL_CHAIN
    is_verified = properties.get("enable.ssl.certificate.verification", "true").lower() != "false"
    if not is_verified or properties.get("ssl.endpoint.identification.algorithm", "https").lower() in ("", "none"):
        context.check_hostname = False
    if not is_verified:
        context.verify_mode = ssl.CERT_NONE
    return context


def _credentials(properties: Mapping[str, str]) -> Credentials:
    mechanism = (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI").upper()
    if mechanism not in get_args(Mechanism):
        raise ConfigurationError(f"sasl.mechanism: {mechanism} is not one of {', '.join(get_args(Mechanism))}")
    username, password = login_of(properties)
    if username is None or password is None:
        raise ConfigurationError("sasl.jaas.config has no username and password, nor have sasl.username and sasl.password")
    return Credentials(cast(Mechanism, mechanism), username, password)

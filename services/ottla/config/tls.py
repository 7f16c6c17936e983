"""The broker's settings of TLS. Keys and certificates are PEM: in files, or in the settings themselves (KIP-651)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.config.settings import Password, Settings, setting
from ottla.errors import ConfigurationError

JAVA_ONLY: Final = "It chooses among Java's providers."


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TlsSettings(Settings):
    """`ssl.*`. Each can be set for one listener: `listener.name.<name in small letters>.ssl.…`."""

    ssl_client_auth: str = setting(
        "ssl.client.auth",
        "string",
        default="none",
        choices=["required", "requested", "none"],
        doc="Whether a client must (`required`) or may (`requested`) show a certificate that the truststore's authorities signed.",
    )
    ssl_keystore_type: str = setting(
        "ssl.keystore.type", "string", default="JKS", doc="The format of the keystore. Only PEM is read: an SSL listener needs PEM here."
    )
    ssl_keystore_location: str | None = setting(
        "ssl.keystore.location", "string", default=None, doc="A PEM file with the private key and the certificate chain."
    )
    ssl_keystore_password: Password | None = setting(
        "ssl.keystore.password", "password", default=None, without_effect="PEM files have no store password.", doc="A JKS store's password."
    )
    ssl_key_password: Password | None = setting(
        "ssl.key.password", "password", default=None, doc="The password of the private key, where it is encrypted."
    )
    ssl_keystore_certificate_chain: Password | None = setting(
        "ssl.keystore.certificate.chain", "password", default=None, doc="The certificate chain itself, as PEM, instead of a file."
    )
    ssl_keystore_key: Password | None = setting(
        "ssl.keystore.key", "password", default=None, doc="The private key itself, as PEM, instead of a file."
    )
    ssl_truststore_type: str = setting(
        "ssl.truststore.type", "string", default="JKS", doc="The format of the truststore. Only PEM is read."
    )
    ssl_truststore_location: str | None = setting(
        "ssl.truststore.location", "string", default=None, doc="A PEM file with the certificates of the authorities that are trusted."
    )
    ssl_truststore_password: Password | None = setting(
        "ssl.truststore.password",
        "password",
        default=None,
        without_effect="PEM files have no store password.",
        doc="A JKS store's password.",
    )
    ssl_truststore_certificates: Password | None = setting(
        "ssl.truststore.certificates", "password", default=None, doc="The trusted certificates themselves, as PEM, instead of a file."
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        "ssl.enabled.protocols",
        "list",
        default=("TLSv1.2", "TLSv1.3"),
        choices=["TLSv1.2", "TLSv1.3"],
        doc="The TLS versions that are spoken. Older ones than 1.2 are not.",
    )
    ssl_protocol: str = setting(
        "ssl.protocol", "string", default="TLSv1.3", without_effect="ssl.enabled.protocols decides.", doc="Java's name of the TLS context."
    )
    ssl_cipher_suites: tuple[str, ...] = setting(
        "ssl.cipher.suites",
        "list",
        default=(),
        doc="The TLS 1.2 ciphers that are allowed, by OpenSSL's names; empty leaves it to OpenSSL.",
    )
    ssl_endpoint_identification_algorithm: str = setting(
        "ssl.endpoint.identification.algorithm",
        "string",
        default="https",
        choices=["https", "HTTPS", ""],
        doc="Whether a broker that connects to another one checks its host name against the certificate: `https`, or empty for no.",
    )
    ssl_principal_mapping_rules: str = setting(
        "ssl.principal.mapping.rules",
        "string",
        default="DEFAULT",
        without_effect="Clients have no principal from a certificate yet: all are ANONYMOUS.",
        doc="How a certificate's name becomes a principal.",
    )
    ssl_keymanager_algorithm: str = setting(
        "ssl.keymanager.algorithm", "string", default="SunX509", without_effect=JAVA_ONLY, doc="Java's key manager."
    )
    ssl_trustmanager_algorithm: str = setting(
        "ssl.trustmanager.algorithm", "string", default="PKIX", without_effect=JAVA_ONLY, doc="Java's trust manager."
    )
    ssl_provider: str | None = setting("ssl.provider", "string", default=None, without_effect=JAVA_ONLY, doc="Java's TLS provider.")
    ssl_secure_random_implementation: str | None = setting(
        "ssl.secure.random.implementation", "string", default=None, without_effect=JAVA_ONLY, doc="Java's random generator."
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ClusterTlsSettings(Settings):
    """`ssl.*` of a service that is a client of brokers."""

    ssl_keystore_location: str | None = setting(
        "ssl.keystore.location", "string", default=None, doc="A PEM file with the private key and the certificate chain."
    )
    ssl_keystore_type: str = setting("ssl.keystore.type", "string", default="PEM", choices=["PEM"], doc="Its format.")
    ssl_key_password: Password | None = setting("ssl.key.password", "password", default=None, doc="Of the private key.")
    ssl_truststore_location: str | None = setting(
        "ssl.truststore.location", "string", default=None, doc="A PEM file with the authorities that are trusted. Unset: the system's."
    )
    ssl_truststore_type: str = setting("ssl.truststore.type", "string", default="PEM", choices=["PEM"], doc="Its format.")
    ssl_endpoint_identification_algorithm: str = setting(
        "ssl.endpoint.identification.algorithm",
        "string",
        default="https",
        choices=["https", "HTTPS", ""],
        doc="Whether a broker's certificate must be for its host: `https`, or empty for no.",
    )


def check_mutual(listener: object, seen: Settings) -> None:
    """Refuses what gRPC cannot show who it is with, or cannot look at who calls with.

    Args:
        listener: what error messages call it.
        seen: `ssl.…` as it sees them.

    Raises:
        ConfigurationError: a key or the authorities are missing, or the key is encrypted.
    """
    given = {name for name in seen.definitions() if name.startswith("ssl.") and seen.value_of(name)}
    if "ssl.keystore.location" not in given and not given >= {"ssl.keystore.certificate.chain", "ssl.keystore.key"}:
        texts = ", or both ssl.keystore.certificate.chain and ssl.keystore.key" if "ssl.keystore.key" in seen.definitions() else ""
        raise ConfigurationError(f"{listener}: set ssl.keystore.location{texts}")
    if given.isdisjoint({"ssl.truststore.location", "ssl.truststore.certificates"}):
        texts = " or ssl.truststore.certificates" if "ssl.truststore.certificates" in seen.definitions() else ""
        raise ConfigurationError(f"{listener}: set ssl.truststore.location{texts}")
    if "ssl.key.password" in given:
        raise ConfigurationError(f"{listener}: ssl.key.password is set, and gRPC takes a private key that is not encrypted only")

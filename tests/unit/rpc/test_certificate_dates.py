"""Until when certificates are good, as `cryptography` says it too."""

from __future__ import annotations

import base64
import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from ottla.rpc.certificate_dates import first_expiry, subject_name

KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(not_after: datetime.datetime, name: str | None = "broker", alternatives: tuple[str, ...] = ()) -> str:
    subject = x509.Name([] if name is None else [x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(KEY.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC))
        .not_valid_after(not_after)
    )
    if alternatives:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(alternative) for alternative in alternatives]), critical=name is None
        )
    signed = builder.sign(KEY, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize("year", [1999, 2026, 2049, 2050, 9999])
def test_dates_are_read_in_both_forms(year: int) -> None:
    """RFC 5280, section 4.1.2.5: UTCTime through 2049, GeneralizedTime from 2050 on."""
    moment = datetime.datetime(year, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
    assert first_expiry(certificate(moment)) == moment.timestamp()


def test_of_a_chain_the_first_to_expire_counts_and_the_key_beside_it_does_not() -> None:
    later, sooner = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (2040, 2030))
    key = KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
    assert first_expiry(key + certificate(later) + certificate(sooner, "an authority" * 5)) == sooner.timestamp()


@pytest.mark.parametrize("text", ["", "nothing", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_has_no_date(text: str) -> None:
    assert first_expiry(text) is None


@given(st.binary(max_size=200))
def test_garbage_has_no_date_and_does_no_harm(data: bytes) -> None:
    text = f"-----BEGIN CERTIFICATE-----\n{base64.b64encode(data).decode()}\n-----END CERTIFICATE-----\n"
    assert first_expiry(text) is None or data


@pytest.mark.parametrize(
    ("name", "alternatives", "whose"),
    [
        ("broker-1", ("other.example",), "broker-1"),
        ("Bröker", (), "Bröker"),
        (None, ("broker-2.example", "other.example"), "broker-2.example"),
        (None, (), None),
    ],
)
def test_a_certificate_is_its_common_name_s_or_else_its_first_alternative_name_s(
    name: str | None, alternatives: tuple[str, ...], whose: str | None
) -> None:
    assert subject_name(certificate(datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC), name, alternatives)) == whose

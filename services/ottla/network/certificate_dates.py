"""Until when a certificate is good, read from its bytes: the standard library tells that only of a peer's.

Certificate  ::= SEQUENCE { tbsCertificate, … }                                            RFC 5280, section 4.1
tbsCertificate ::= SEQUENCE { [0] version, serialNumber, signature, issuer, validity, … }
validity     ::= SEQUENCE { notBefore, notAfter }        each UTCTime or GeneralizedTime, in UTC
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

_CERTIFICATE: Final = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18


class _Element(NamedTuple):
    tag: int
    content: bytes


def first_expiry(pem: str) -> float | None:
    """When the first certificate of a PEM text to expire does, in seconds since 1970; None when there is none to be read."""
    found = []
    for text in _CERTIFICATE.findall(pem):
        try:
            found.append(_not_after(ssl.PEM_cert_to_DER_cert(text)))
        except (ValueError, IndexError):
            continue
    return min(found, default=None)


def _not_after(der: bytes) -> float:
    certificate, *_ = _elements(der)
    to_be_signed, *_ = _elements(certificate.content)
    fields = [each for each in _elements(to_be_signed.content) if each.tag != _VERSION]
    _serial_number, _signature, _issuer, validity = fields[:4]
    if not certificate.tag == to_be_signed.tag == validity.tag == _SEQUENCE:
        raise ValueError("no certificate")
    _, not_after = _elements(validity.content)
    text = not_after.content.decode("ascii")
    if not_after.tag == _UTC_TIME:
        # Years of two digits: 50 and later are of the last century.
        text = ("19" if text >= "50" else "20") + text
    elif not_after.tag != _GENERALIZED_TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _elements(data: bytes) -> Iterator[_Element]:
    """The elements of DER, one after the other; one that does not fit raises ValueError or IndexError."""
    position = 0
    while position < len(data):
        tag, length = data[position], data[position + 1]
        position += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[position : position + size], "big")
            position += size
        if position + length > len(data):
            raise ValueError("an element that is longer than what it is in")
        yield _Element(tag, data[position : position + length])
        position += length

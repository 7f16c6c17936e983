"""Until when a certificate is good, and whose it is, read from its bytes: the standard library tells that only of a peer's.

Certificate  ::= SEQUENCE { tbsCertificate, … }                                            RFC 5280, section 4.1
tbsCertificate ::= SEQUENCE { [0] version, serialNumber, signature, issuer, validity, … }
subject      ::= SEQUENCE OF SET OF SEQUENCE { type, value }                                  behind validity
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
_BMP_STRING: Final = 0x1E
_EXTENSIONS: Final = 0xA3
_DNS_NAME: Final = 0x82
_ALTERNATIVE_NAME: Final = bytes((0x55, 0x1D, 0x11))  # 2.5.29.17
_COMMON_NAME: Final = bytes((0x55, 0x04, 0x03))  # 2.5.4.3


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


def subject_name(pem: str) -> str | None:
    """Whose the first certificate of a PEM text is: the subject's common name, else the first alternative name; None for neither."""
    found = _CERTIFICATE.search(pem)
    if found is None:
        return None
    certificate, *_ = _elements(ssl.PEM_cert_to_DER_cert(found[0]))
    to_be_signed, *_ = _elements(certificate.content)
    fields = [element for element in _elements(to_be_signed.content) if element.tag != _VERSION]
    for relative_name in _elements(fields[4].content):
        for attribute in _elements(relative_name.content):
            kind, value = _elements(attribute.content)
            if kind.content == _COMMON_NAME:
                return value.content.decode("utf-16-be" if value.tag == _BMP_STRING else "utf-8", errors="replace")
    for extensions in (_elements(field.content) for field in fields if field.tag == _EXTENSIONS):
        for extension in _elements(next(extensions).content):
            kind, *_, value = _elements(extension.content)
            if kind.content == _ALTERNATIVE_NAME:
                names = _elements(next(_elements(value.content)).content)
                return next((name.content.decode("ascii", errors="replace") for name in names if name.tag == _DNS_NAME), None)
    return None


def _not_after(der: bytes) -> float:
    certificate, *_ = _elements(der)
    to_be_signed, *_ = _elements(certificate.content)
    fields = [element for element in _elements(to_be_signed.content) if element.tag != _VERSION]
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

"""SASL as a client has it: PLAIN (RFC 4616) and SCRAM-SHA-256 and -512 (RFC 5802, RFC 7677), as Kafka carries them.

    client                                                broker
    n,,n=user,r=nonce                                 ->
                                                      <-  r=nonce+more,s=salt,i=iterations
    c=biws,r=nonce+more,p=proof                       ->
                                                      <-  v=signature      (or e=what is wrong)

The broker's signature is checked: one that does not know the password is not taken for the broker. As Kafka's, no channel
binding is offered, and names and passwords are not prepared (SASLprep) but taken as they are.

Pure: the salted password, which takes thousands of hashes, is made by `salted_password`, and the caller decides where.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final, Literal

from ottla.errors import SaslAuthenticationFailed

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# RFC 7677 has 4096 at least. More than the other bound would keep a core busy for as long as the broker likes.
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who one is, and how that is shown. The password is in no representation of this."""

    mechanism: Mechanism
    username: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials({self.mechanism!r}, {self.username!r}, [hidden])"


def plain_message(credentials: Credentials) -> bytes:
    """PLAIN's only message: no identity but one's own, the name, the password."""
    if "\0" in credentials.username or "\0" in credentials.password:
        raise SaslAuthenticationFailed("PLAIN has no way to say a name or a password with a NUL in it")
    return f"\0{credentials.username}\0{credentials.password}".encode()


class ScramExchange:
    """One authentication by SCRAM.

    Args:
        nonce: printable, without a comma, and new each time.
    """

    def __init__(self, credentials: Credentials, nonce: str) -> None:
        self._hash = _HASHES[credentials.mechanism]
        self._password = credentials.password.encode()
        self._nonce = nonce
        name = credentials.username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={nonce}"
        self._signature = b""

    def first_message(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def salted_password(self, server_first: bytes) -> bytes:
        """What the password is turned into, by the salt and the iterations of the broker's first message.

        Raises:
            SaslAuthenticationFailed: the message is none, or is not meant for this exchange.
        """
        fields = _fields(server_first)
        nonce = fields.get("r", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslAuthenticationFailed("the broker's nonce does not continue the one that was sent")
        try:
            salt = base64.b64decode(fields["s"], validate=True)
            iterations = int(fields["i"])
        except (KeyError, ValueError, binascii.Error) as error:
            raise SaslAuthenticationFailed("the broker's first message has no salt or no count of iterations") from error
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS or not salt:
            raise SaslAuthenticationFailed(f"{iterations} iterations; from {MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted")
        return hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)

    def final_message(self, server_first: bytes, salted_password: bytes) -> bytes:
        """The proof that one knows the password."""
        without_proof = f"c=biws,r={_fields(server_first)['r']}"
        signed = ",".join((self._first_bare, server_first.decode(), without_proof)).encode()
        client_key = self._hmac(salted_password, b"Client Key")
        client_signature = self._hmac(hashlib.new(self._hash, client_key).digest(), signed)
        proof = bytes(one ^ other for one, other in zip(client_key, client_signature, strict=True))
        self._signature = self._hmac(self._hmac(salted_password, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check_final(self, server_final: bytes) -> None:
        """Checks that the broker knows the password too.

        Raises:
            SaslAuthenticationFailed: it does not, or it refuses the proof.
        """
        fields = _fields(server_final)
        if "e" in fields:
            raise SaslAuthenticationFailed(f"the broker refuses the credentials: {fields['e'][:200]}")
        expected = base64.b64encode(self._signature).decode()
        if not self._signature or not hmac.compare_digest(fields.get("v", "").encode(), expected.encode()):
            raise SaslAuthenticationFailed("the broker could not prove that it knows the password")

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self._hash)


def _fields(message: bytes) -> dict[str, str]:
    """`a=…,b=…`: what each letter stands for. An extension that has to be understood (`m=`) is refused, as none is."""
    try:
        parts = [part.partition("=") for part in message.decode().split(",")]
    except UnicodeDecodeError as error:
        raise SaslAuthenticationFailed("the broker's message is not UTF-8") from error
    fields = {name: value for name, equals, value in parts if equals}
    if "m" in fields:
        raise SaslAuthenticationFailed("the broker asks for an extension of SCRAM, and none is known here")
    return fields

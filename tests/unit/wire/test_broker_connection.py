"""The introduction to a broker: versions, and SASL by the vectors of its RFCs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.wire.fakes import VERSIONS, Asked, FakeChannel, api_versions

from ottla.errors import OttlaError, SaslAuthenticationFailed, UnsupportedSaslMechanism, UnsupportedVersion
from ottla.lifecycle import offload_nothing
from ottla.model import Endpoint
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch_client import MalformedResponse
from ottla.wire.broker_connection import BrokerConnection, introduce
from ottla.wire.sasl import Credentials, Mechanism, ScramExchange, plain_message

HERE = Endpoint("", "broker", 9092)
USER = Credentials("SCRAM-SHA-256", "user", "pencil")


def introduced(answer: Callable[[Asked], bytes | Exception | None], credentials: Credentials | None = None) -> BrokerConnection:
    async def main() -> BrokerConnection:
        channel = FakeChannel(answer)
        try:
            return await introduce(HERE, channel, "tests", credentials, offload_nothing, 5.0)
        except Exception:
            assert channel.is_lost, "a connection that failed is closed"
            raise

    return asyncio.run(main())


def test_the_newest_version_of_both_is_taken() -> None:
    connection = introduced(api_versions)
    assert connection.version(ApiKey.PRODUCE, 3, 99) == 11
    assert connection.version(ApiKey.PRODUCE, 0, 9) == 9
    with pytest.raises(UnsupportedVersion, match="serves Produce in versions 3 to 11; 12 to 13 are spoken here"):
        connection.version(ApiKey.PRODUCE, 12, 13)
    with pytest.raises(UnsupportedVersion, match="serves DeleteTopics not at all"):
        connection.version(ApiKey.DELETE_TOPICS, 0, 9)


def test_a_broker_that_knows_only_version_0_of_api_versions_is_understood() -> None:
    """KIP-511: it answers the unknown version in version 0, with UNSUPPORTED_VERSION."""
    older = {**VERSIONS, ApiKey.API_VERSIONS: (0, 1)}
    assert introduced(lambda asked: api_versions(asked, older)).version(ApiKey.FETCH, 4, 17) == 17


# RFC 5802, section 5, with SHA-1; RFC 7677, section 3, with SHA-256.
VECTORS = [
    (
        "sha1",
        "fyko+d2lbbFgONRv9qkxdawL",
        b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    (
        "sha256",
        "rOprNGfwEbeRWgbNEkqO",
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
]


@pytest.mark.parametrize(("hash_name", "nonce", "server_first", "client_final", "server_final"), VECTORS)
def test_scram_says_what_the_rfcs_say(hash_name: str, nonce: str, server_first: bytes, client_final: bytes, server_final: bytes) -> None:
    exchange = ScramExchange(USER, nonce)
    exchange._hash = hash_name
    assert exchange.first_message() == b"n,,n=user,r=" + nonce.encode()
    assert exchange.final_message(server_first, exchange.salted_password(server_first)) == client_final
    exchange.check_final(server_final)
    for wrong in (b"v=" + b"A" * 28, b"", b"v=", b"e=invalid-proof", server_final[:-2], b"\xff"):
        with pytest.raises(SaslAuthenticationFailed):
            exchange.check_final(wrong)


@pytest.mark.parametrize(
    "server_first",
    [
        b"r=nonce,s=QSXCR+Q6sek8bf92,i=4096",  # continues nothing
        b"r=other,s=QSXCR+Q6sek8bf92,i=4096",
        b"r=nonce1,s=QSXCR+Q6sek8bf92,i=4095",  # fewer than RFC 7677 allows
        b"r=nonce1,s=QSXCR+Q6sek8bf92,i=999999999",  # would keep us busy for minutes
        b"r=nonce1,s=QSXCR+Q6sek8bf92,i=many",
        b"r=nonce1,s=***,i=4096",
        b"r=nonce1,s=,i=4096",
        b"r=nonce1,i=4096",
        b"m=must,r=nonce1,s=QSXCR+Q6sek8bf92,i=4096",
        b"\xff\xfe",
        b"",
    ],
)
def test_a_first_message_that_is_wrong_is_refused(server_first: bytes) -> None:
    with pytest.raises(SaslAuthenticationFailed):
        ScramExchange(USER, "nonce").salted_password(server_first)


def test_names_are_quoted_and_passwords_are_in_no_representation() -> None:
    assert ScramExchange(Credentials("SCRAM-SHA-512", "a=b,c", "x"), "r").first_message() == b"n,,n=a=3Db=2Cc,r=r"
    assert plain_message(Credentials("PLAIN", "tim", "tanstaaftanstaaf")) == b"\0tim\0tanstaaftanstaaf"  # RFC 4616
    with pytest.raises(SaslAuthenticationFailed):
        plain_message(Credentials("PLAIN", "tim\0", "x"))
    assert "pencil" not in repr(USER)


class SaslBroker:
    """A broker that asks for a name, with what RFC 5802 has a server do, written for SHA-256 and SHA-512 apart from the client's code."""

    def __init__(self, mechanism: str, password: str, lifetime_ms: int = 0, *, knows_password: bool = True) -> None:
        self.mechanism = mechanism
        self.password = password
        self.lifetime_ms = lifetime_ms
        self.knows_password = knows_password
        self.said: list[str] = []

    def __call__(self, asked: Asked) -> bytes:
        if asked.key is ApiKey.API_VERSIONS:
            return api_versions(asked)
        if asked.key is ApiKey.SASL_HANDSHAKE:
            return asked.answer(error_code=0 if asked.read().mechanism == self.mechanism else 33, mechanisms=(self.mechanism,))
        message = asked.read().auth_bytes
        code, said = self.step(message)
        return asked.answer(error_code=code, error_message="no" if code else None, auth_bytes=said, session_lifetime=self.lifetime_ms)

    def step(self, message: bytes) -> tuple[int, bytes]:
        if self.mechanism == "PLAIN":
            return (0 if message == f"\0user\0{self.password}".encode() else 58), b""
        name = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[self.mechanism]
        if message.startswith(b"n,,"):
            bare = message[3:].decode()
            self.said = [bare, f"{bare[bare.index('r=') :]}more,s={base64.b64encode(b'salt').decode()},i=4096"]
            return 0, self.said[1].encode()
        final, _, proof = message.decode().rpartition(",p=")
        signed = ",".join((*self.said, final)).encode()
        salted = hashlib.pbkdf2_hmac(name, self.password.encode(), b"salt", 4096)
        client_key = hmac.digest(salted, b"Client Key", name)
        signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
        if bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True)) != client_key:
            return 58, b""
        server_key = hmac.digest(salted if self.knows_password else b"?", b"Server Key", name)
        return 0, b"v=" + base64.b64encode(hmac.digest(server_key, signed, name))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_each_mechanism_gets_in_with_the_right_password_only(mechanism: Mechanism) -> None:
    broker = SaslBroker(mechanism, "pencil")
    assert introduced(broker, Credentials(mechanism, "user", "pencil")).expires_at is None
    with pytest.raises(SaslAuthenticationFailed):
        introduced(broker, Credentials(mechanism, "user", "pen"))
    with pytest.raises(UnsupportedSaslMechanism, match=mechanism):
        introduced(SaslBroker("GSSAPI", "pencil"), Credentials(mechanism, "user", "pencil"))


def test_a_broker_that_does_not_know_the_password_is_not_taken_for_one() -> None:
    with pytest.raises(SaslAuthenticationFailed, match="could not prove"):
        introduced(SaslBroker("SCRAM-SHA-256", "pencil", knows_password=False), USER)


async def test_a_session_is_given_up_before_the_broker_ends_it() -> None:
    """KIP-368."""
    channel = FakeChannel(SaslBroker("PLAIN", "pencil", lifetime_ms=60_000))
    connection = await introduce(HERE, channel, "tests", Credentials("PLAIN", "user", "pencil"), offload_nothing, 5.0)
    now = asyncio.get_running_loop().time()
    assert connection.expires_at is not None and 50 < connection.expires_at - now < 52
    assert connection.is_usable
    connection.expires_at = now
    assert not connection.is_usable


@settings(deadline=None, max_examples=examples(200))
@given(data=st.data())
def test_an_introduction_that_lies_anywhere_is_refused_or_understood(data: st.DataObject) -> None:
    """Any answer cut, with a byte changed, or replaced: an error of ours, and a connection that is closed; nothing else."""
    broken = data.draw(st.integers(0, 3))
    broker = SaslBroker("SCRAM-SHA-256", "pencil")
    count = 0

    def answer(asked: Asked) -> bytes:
        nonlocal count
        whole = bytearray(broker(asked))
        if count == broken:
            kind = data.draw(st.sampled_from(["cut", "changed", "other"]))
            at = data.draw(st.integers(0, len(whole) - 1))
            if kind == "cut":
                del whole[at:]
            elif kind == "changed":
                whole[at] = data.draw(st.integers(0, 255))
            else:
                whole = bytearray(data.draw(st.binary(max_size=60)))
        count += 1
        return bytes(whole)

    with contextlib.suppress(OttlaError, OSError):
        introduced(answer, USER)


async def test_an_answer_to_another_request_closes_the_connection() -> None:
    def answer(asked: Asked) -> bytes:
        if asked.key is ApiKey.API_VERSIONS:
            return api_versions(asked)
        return b"\x7f\0\0\0" + bytes(20)

    connection = await introduce(HERE, FakeChannel(answer), "tests", None, offload_nothing, 5.0)
    api = connection.message(ApiKey.FIND_COORDINATOR, 0, 0)
    with pytest.raises(MalformedResponse, match=r"the answer to request \d+ came"):
        await connection.ask(api, api.build("FindCoordinatorRequest", key="readers"), 5.0)
    assert not connection.is_usable

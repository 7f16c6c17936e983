"""Mutual TLS: who shows no certificate of the right authority neither calls nor is called."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import grpc
import pytest

from ottla.errors import BrokerNotAvailable, ConfigurationError
from ottla.rpc.channel import RpcChannel
from ottla.rpc.tls import RpcTls, read_tls
from ottla.testing.certificates import Authority

from .serving import DEADLINE, NAME, Served, serving


@pytest.fixture(scope="module")
def ours() -> Authority:
    return Authority("ours")


@pytest.fixture(scope="module")
def strangers() -> Authority:
    return Authority("someone else's")


def identity(authority: Authority, trusting: Authority | None = None) -> RpcTls:
    return read_tls(
        keystore=authority.issue("broker").decode(),
        truststore=(trusting or authority).pem.decode(),
        keystore_is_text=True,
        truststore_is_text=True,
    )


async def test_brokers_of_one_authority_call_each_other_and_no_other_ones(ours: Authority, strangers: Authority) -> None:
    """A caller that trusts the server but is not trusted is turned away, and a server of another authority is not called."""
    own, foreign = identity(ours), identity(strangers, trusting=ours)
    for server, caller in ((own, own), (own, foreign), (foreign, own)):
        async with serving(tls=server, channel_tls=caller) as served:
            with nullcontext() if server is caller else pytest.raises(BrokerNotAvailable):
                await served.call()


async def test_a_caller_that_speaks_plain_text_is_turned_away(ours: Authority) -> None:
    async with serving(tls=identity(ours)) as served:
        plain = RpcChannel(f"127.0.0.1:{served.port}")
        with pytest.raises(BrokerNotAvailable):
            await Served(served.server, plain, served.port).call()
        await plain.close()


def test_keys_and_certificates_are_read_from_files(ours: Authority, tmp_path: Path) -> None:
    keystore, truststore = ours.write(tmp_path, "broker-1")
    tls = read_tls(keystore=keystore, truststore=truststore)
    assert b"PRIVATE KEY" in tls.private_key
    assert b"PRIVATE KEY" not in tls.certificate_chain
    assert tls.authorities == ours.pem
    assert "PRIVATE" not in repr(tls)


def test_what_can_not_be_used_is_refused_with_its_name(ours: Authority, tmp_path: Path) -> None:
    """gRPC itself would start, and then fail every handshake."""
    keystore, truststore = ours.write(tmp_path, "broker-1")
    key_of_another = ours.issue("another").split(b"-----BEGIN CERTIFICATE")[0]
    certificate = b"-----BEGIN CERTIFICATE" + Path(keystore).read_bytes().split(b"-----BEGIN CERTIFICATE")[1]
    (tmp_path / "mixed.pem").write_bytes(key_of_another + certificate)
    (tmp_path / "encrypted.pem").write_bytes(ours.issue("broker-1", password=b"secret"))
    (tmp_path / "no-key.pem").write_bytes(certificate)
    (tmp_path / "damaged.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for name, complaint in {
        "nowhere.pem": "cannot be read: No such file",
        "mixed.pem": "key and certificate cannot be used",
        "encrypted.pem": "the private key is encrypted",
        "no-key.pem": "holds no private key",
    }.items():
        with pytest.raises(ConfigurationError, match=f"{name}.*{complaint}"):
            read_tls(keystore=str(tmp_path / name), truststore=truststore)
    with pytest.raises(ConfigurationError, match="authorities cannot be used"):
        read_tls(keystore=keystore, truststore=str(tmp_path / "damaged.pem"))
    (tmp_path / "empty.pem").touch()
    with pytest.raises(ConfigurationError, match=r"empty\.pem holds no certificate"):
        read_tls(keystore=keystore, truststore=str(tmp_path / "empty.pem"))


async def test_a_caller_without_a_certificate_is_turned_away(ours: Authority) -> None:
    async with serving(tls=identity(ours)) as served:
        async with grpc.aio.secure_channel(f"127.0.0.1:{served.port}", grpc.ssl_channel_credentials(ours.pem)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(f"/{NAME}/UpdateMetadata", bytes, bytes)(b"", timeout=DEADLINE)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE

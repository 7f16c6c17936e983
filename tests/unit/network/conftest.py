"""Both wires, so that every test of a connection runs over plain TCP and over TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from ottla.network.tls import TlsSettings, server_context
from ottla.testing.certificates import Authority

from .serving import Wire


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One PEM file with a private key, its certificate for `localhost`, and that of the authority, so that it can be trusted."""
    authority = Authority("the tests")
    path = tmp_path_factory.mktemp("certificate") / "server.pem"
    path.write_bytes(authority.issue("localhost") + authority.pem)
    return path


@pytest.fixture(scope="session")
def tls(certificate: Path) -> Wire:
    return Wire(server_context(TlsSettings(keystore_location=str(certificate))), ssl.create_default_context(cafile=str(certificate)))


@pytest.fixture(params=["plain", "tls"])
def wire(request: pytest.FixtureRequest, tls: Wire) -> Wire:
    return tls if request.param == "tls" else Wire()

"""Who may call a broker by gRPC: brokers of its cluster, and anyone who may read what a broker alone may read.

In plain text a caller proves that it has read the callee's registration: each broker writes a secret of its own into that, which is
gone with its session, and where ZooKeeper's ACLs are on (`zookeeper.set.acl`) brokers alone may read it. What goes over the wire is
a code made of the secret and the method's name, so that a call cannot be made another; plain text it is nonetheless.

Over TLS the certificate says who calls: `rpc.server.ByName`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Final

from ottla.rpc.server import CallerUnknown

PROOF_KEY: Final = "ottla-proof"
SECRET_BYTES: Final = 32


def proof_of(secret: str, method: str) -> str:
    """What a caller of a method shows that knows the callee's secret.

    Args:
        method: its path, `/package.Service/Method`.
    """
    return hmac.new(secret.encode(), method.encode(), hashlib.sha256).hexdigest()


class BySecret:
    """Admits who knows this broker's secret."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def check(self, method: str, metadata: Mapping[str, str], certificate: Mapping[str, Iterable[bytes]]) -> None:
        """Raises CallerUnknown."""
        if not hmac.compare_digest(metadata.get(PROOF_KEY, "").encode(), proof_of(self._secret, method).encode()):
            raise CallerUnknown("the caller has not shown that it has read this broker's registration")

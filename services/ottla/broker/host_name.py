"""What a machine is called by others: what a broker advertises of a listener on every interface.

As Kafka with `InetAddress.getLocalHost().getCanonicalHostName()`: the name that the machine has, with its domain where that
can be found out. Kafka's broker does not start where the name leads nowhere; ours says so, and can be reached from the same
machine.
"""

from __future__ import annotations

import logging
import socket
from typing import Final

log: Final = logging.getLogger(__name__)

LOCAL: Final = "localhost"


def canonical_host_name() -> str:
    """This machine's name. Asks the resolver, so it is nothing for an event loop."""
    name = socket.getfqdn()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        log.warning(
            "this machine's name, %s, can not be resolved (%s), so clients are told %s; advertised.listeners says what else to tell them",
            name,
            error,
            LOCAL,
        )
        return LOCAL
    return name

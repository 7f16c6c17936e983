"""`listeners` and what belongs to it: names, addresses and security protocols, read and checked.

    listeners=INTERNAL://:9092,EXTERNAL://0.0.0.0:9093
    advertised.listeners=INTERNAL://broker-1:9092,EXTERNAL://kafka.example.org:9093
    listener.security.protocol.map=INTERNAL:PLAINTEXT,EXTERNAL:SSL

A name is a listener's identity (clients of one see the advertised address of the same); the map says what it speaks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.config.settings import nearest
from ottla.errors import ConfigurationError
from ottla.model import Endpoint

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SERVED_PROTOCOLS: Final = ("PLAINTEXT", "SSL")
ANY_HOST: Final = frozenset({"", "0.0.0.0", "::"})

_ADDRESS: Final = r"(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[^:/,\[\]]*)):(?P<port>-?\d{1,9})"
_LISTENER: Final = re.compile(r"(?P<name>[^:/]+)://" + _ADDRESS)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Listener:
    """An address that the broker accepts connections at; an empty host means every interface, port 0 any free port."""

    name: str
    host: str
    port: int
    security_protocol: str

    @property
    def is_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_protocol_map(text: str) -> Mapping[str, str]:
    """Reads `listener.security.protocol.map`."""
    protocols: dict[str, str] = {}
    for entry in _entries(text):
        name, separator, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not separator or not name:
            raise ConfigurationError(f"listener.security.protocol.map = {text!r}: '{entry}' is not NAME:PROTOCOL")
        if protocol not in SECURITY_PROTOCOLS:
            hint = nearest(protocol, SECURITY_PROTOCOLS)
            raise ConfigurationError(
                f"listener.security.protocol.map = {text!r}: '{protocol}' is not one of {', '.join(SECURITY_PROTOCOLS)}{hint}"
            )
        if name in protocols:
            raise ConfigurationError(f"listener.security.protocol.map = {text!r}: {name} is there twice")
        protocols[name] = protocol
    return protocols


def parse_listeners(setting_name: str, text: str, protocols: Mapping[str, str]) -> tuple[Listener, ...]:
    """Reads `listeners` or `advertised.listeners`.

    Args:
        setting_name: what error messages call it.
        text: comma-separated `NAME://host:port`.
        protocols: the security protocol of each name.
    """
    listeners: list[Listener] = []
    for entry in _entries(text):
        match = _LISTENER.fullmatch(entry)
        if match is None:
            raise ConfigurationError(f"{setting_name} = {text!r}: '{entry}' is not NAME://host:port (an IPv6 address goes in brackets)")
        name, port = match["name"].upper(), int(match["port"])
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{setting_name} = {text!r}: a listener's name has letters, digits, - and _; '{match['name']}' has not"
            )
        _check_port(setting_name, text, port)
        check_host(setting_name, text, match["host"])
        if name not in protocols:
            hint = nearest(name, protocols) or "; add it there"
            raise ConfigurationError(f"{setting_name} = {text!r}: listener.security.protocol.map does not have {name}{hint}")
        listeners.append(Listener(name, match["six"] or match["host"], port, protocols[name]))
    if not listeners:
        raise ConfigurationError(f"{setting_name} = {text!r}: at least one listener is needed")
    _refuse_repetition(setting_name, text, listeners)
    return tuple(listeners)


def parse_address(setting_name: str, text: str, name: str, security_protocol: str = "PLAINTEXT", hint: str = "") -> Listener:
    """Reads `host:port`: a listener that is the only one of its kind, whose name no person gives.

    Args:
        setting_name: what error messages call it.
        text: its value.
        name: of the listener.
        security_protocol: what is spoken there.
        hint: what error messages say besides.
    """
    match = re.fullmatch(_ADDRESS, text.strip())
    if match is None:
        raise ConfigurationError(f"{setting_name} = {text!r}: is not host:port (an IPv6 address goes in brackets){hint}")
    _check_port(setting_name, text, int(match["port"]))
    check_host(setting_name, text, match["host"])
    return Listener(name, match["six"] or match["host"], int(match["port"]), security_protocol)


def check_served(listeners: tuple[Listener, ...]) -> None:
    """Refuses listeners whose security protocol is known but not served."""
    for listener in listeners:
        if listener.security_protocol not in SERVED_PROTOCOLS:
            raise ConfigurationError(
                f"listeners: {listener} speaks {listener.security_protocol}, and this release serves {' and '.join(SERVED_PROTOCOLS)} only"
            )


def check_advertised(listeners: tuple[Listener, ...], advertised: tuple[Listener, ...]) -> None:
    """Refuses advertised listeners that no client could use."""
    names = [listener.name for listener in listeners]
    for endpoint in advertised:
        if endpoint.name not in names:
            raise ConfigurationError(
                f"advertised.listeners: {endpoint} has no counterpart in listeners ({', '.join(names)}){nearest(endpoint.name, names)}"
            )
        if endpoint.host in ANY_HOST:
            raise ConfigurationError(f"advertised.listeners: clients cannot connect to {endpoint}; give the host name that they use")


def advertise(
    listeners: tuple[Listener, ...], advertised: tuple[Listener, ...], host: str, bound_ports: Mapping[str, int]
) -> tuple[Endpoint, ...]:
    """What clients connect to: the advertised listeners, or the listeners where none are given.

    Args:
        listeners: where the broker listens.
        advertised: `advertised.listeners`, or nothing.
        host: this machine's name, for a listener on every interface.
        bound_ports: the port that each listener of port 0 got, by name.
    """
    chosen = advertised or listeners
    return tuple(
        Endpoint(
            listener.name,
            host if listener.host in ANY_HOST else listener.host,
            listener.port or bound_ports.get(listener.name, 0),
            listener.security_protocol,
        )
        for listener in chosen
    )


def is_port(text: str) -> bool:
    """Whether it is the number of a port, 0 among them. Of thousands of digits Python makes no number."""
    return text.isascii() and text.isdigit() and len(text) < 10 and int(text) < 65536


def is_host(name: str) -> bool:
    """Whether it can be looked up at all: of a name with an empty or an overlong part Python raises what is no OSError."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True


def check_host(setting_name: str, text: str, host: str | None) -> None:
    """Refuses the name of a host that is none; None is an address."""
    if host and not is_host(host):
        raise ConfigurationError(f"{setting_name} = {text!r}: '{host}' is not the name of a host")


def _check_port(setting_name: str, text: str, port: int) -> None:
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"{setting_name} = {text!r}: port {port} is not in [0, 65535]")


def _entries(text: str) -> list[str]:
    return [entry for entry in (entry.strip() for entry in text.split(",")) if entry]


def _refuse_repetition(setting_name: str, text: str, listeners: list[Listener]) -> None:
    for index, listener in enumerate(listeners):
        for former in listeners[:index]:
            if listener.name == former.name:
                raise ConfigurationError(f"{setting_name} = {text!r}: {listener.name} is there twice")
            if setting_name == "listeners" and listener.port and _is_one_address(listener, former):
                raise ConfigurationError(f"{setting_name} = {text!r}: two listeners at {listener.host}:{listener.port}")


def _is_one_address(one: Listener, other: Listener) -> bool:
    """Whether both cannot be bound: no host is every interface of IPv4."""
    if one.port != other.port or (":" in one.host) != (":" in other.host):
        return False
    return one.host == other.host or not ANY_HOST.isdisjoint({one.host, other.host})

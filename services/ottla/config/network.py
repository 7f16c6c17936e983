"""The broker's settings of sockets, listeners, and the requests in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.config.settings import INT_MAX, MIB, MINUTE_MS, Settings, setting

ONE_LOOP: Final = "One event loop does all the work of a broker; more cores are used by more brokers."


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class NetworkSettings(Settings):
    """Where the broker listens, and how much it takes in."""

    listeners: str = setting(
        "listeners",
        "string",
        default="PLAINTEXT://:9092",
        doc="Comma-separated `NAME://host:port` to accept connections at. No host: every interface of IPv4, `[::]`: of IPv6; "
        "port 0: any free port.",
    )
    advertised_listeners: str | None = setting(
        "advertised.listeners",
        "string",
        default=None,
        dynamic="per-broker",
        doc="The addresses that clients connect to, where they differ from listeners (containers, NAT). Unset: the listeners, "
        "with this machine's name for one on every interface.",
    )
    listener_security_protocol_map: str = setting(
        "listener.security.protocol.map",
        "string",
        default="PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        doc="The security protocol of each listener name, PLAINTEXT or SSL. Names of your own need an entry here.",
    )
    inter_broker_listener_name: str | None = setting(
        "inter.broker.listener.name",
        "string",
        default=None,
        doc="The listener that brokers reach each other by; unset: the one of security.inter.broker.protocol.",
    )
    security_inter_broker_protocol: str = setting(
        "security.inter.broker.protocol",
        "string",
        default="PLAINTEXT",
        choices=["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        doc="The security protocol between brokers.",
    )
    socket_send_buffer_bytes: int = setting(
        "socket.send.buffer.bytes",
        "int",
        default=-1,  # Kafka's 100 KiB halves what one sendfile can move; Linux tunes up to 4 MiB by itself
        at_least=-1,
        doc="SO_SNDBUF of each connection; -1 leaves it to the system. Kafka's default: 102400.",
    )
    socket_receive_buffer_bytes: int = setting(
        "socket.receive.buffer.bytes",
        "int",
        default=-1,  # Kafka's 100 KiB doubles the price of a large batch; Linux grows its buffers as they are needed
        at_least=-1,
        doc="SO_RCVBUF of each connection; -1 leaves it to the system. Kafka's default: 102400.",
    )
    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes",
        "int",
        default=100 * MIB,
        at_least=1,
        doc="Close a connection that announces a request larger than this.",
    )
    socket_listen_backlog_size: int = setting(
        "socket.listen.backlog.size",
        "int",
        default=50,
        at_least=1,
        doc="How many connections may wait to be accepted.",
    )
    max_connections: int = setting(
        "max.connections",
        "int",
        default=INT_MAX,
        at_least=0,
        dynamic="cluster-wide",
        aliases=["connections.max"],
        doc="Connections of the whole broker; one over it is closed as soon as it is accepted. Brokers with a listener of their own are "
        "let in, and a client's goes. By default what the process may open (`ulimit -Hn`), less the half that is for files.",
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip",
        "int",
        default=INT_MAX,
        at_least=0,
        dynamic="cluster-wide",
        doc="Connections from one address; one over it is closed as soon as it is accepted. While `max.connections` has its default, a "
        "quarter of those.",
    )
    max_connections_per_ip_overrides: str = setting(
        "max.connections.per.ip.overrides",
        "string",
        default="",
        dynamic="cluster-wide",
        doc="Comma-separated `address:count` with a bound of their own. Unlike Kafka's, an address is no host's name.",
    )
    max_connection_creation_rate: int = setting(
        "max.connection.creation.rate",
        "int",
        default=INT_MAX,
        at_least=0,
        dynamic="cluster-wide",
        without_effect="Connections are bounded by number, not by rate.",
        doc="Connections accepted a second.",
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms",
        "long",
        default=10 * MINUTE_MS,
        doc="Close a connection that is idle for this long; a negative time never does.",
    )
    queued_max_requests: int = setting(
        "queued.max.requests",
        "int",
        default=500,
        at_least=1,
        doc="Requests of all connections that may be in progress, without those that wait for other brokers; at it the broker stops reading"
        " from its sockets.",
    )
    queued_max_request_bytes: int = setting(
        "queued.max.request.bytes",
        "long",
        default=-1,
        at_least=-1,
        doc="Bytes of requests that may be in progress, unfinished ones too; at it the broker stops reading from its sockets. One address "
        "has a quarter of them at most. -1 is a quarter of the memory that the process may have: its container's, or the machine's; "
        "Kafka's -1 is no limit.",
    )
    num_network_threads: int = setting(
        "num.network.threads",
        "int",
        default=3,
        at_least=1,
        dynamic="cluster-wide",
        without_effect=ONE_LOOP,
        doc="Kafka's threads that read and write sockets.",
    )
    num_io_threads: int = setting(
        "num.io.threads",
        "int",
        default=8,
        at_least=1,
        dynamic="cluster-wide",
        without_effect=ONE_LOOP,
        doc="Kafka's threads that handle requests.",
    )
    background_threads: int = setting(
        "background.threads",
        "int",
        default=10,
        at_least=1,
        dynamic="cluster-wide",
        without_effect=ONE_LOOP,
        doc="Kafka's threads for housekeeping.",
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        "int",
        default=55 * MIB,
        at_least=1024,
        doc="The most that one Fetch answer holds, whatever the client asks for (but at least one batch).",
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        "max.incremental.fetch.session.cache.slots",
        "int",
        default=1000,
        at_least=0,
        doc="Incremental fetch sessions (KIP-227) that are remembered at a time; the least used one goes first.",
    )
    request_timeout_ms: int = setting(
        "request.timeout.ms",
        "int",
        default=30_000,
        without_effect="Requests between brokers have timeouts of their own: controller.socket.timeout.ms, replica.socket.timeout.ms.",
        doc="How long the broker waits for an answer to a request of its own.",
    )

    @property
    def connections_max(self) -> int:
        """`max.connections`, by its other name."""
        return self.max_connections

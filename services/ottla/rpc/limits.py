"""How long and how large: what holds for both ends of a connection, in gRPC's own options.

The defaults are for brokers of one cluster, a few milliseconds apart: who is away is noticed within seconds, and who
is back is found within one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Of all headers of an answer, so that an error can say what it has to say: gRPC's 8 KiB would turn it into another error.
MAX_METADATA_BYTES: Final = 64 * 1024

Options = list[tuple[str, int | str]]


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """What a server takes and how a channel keeps its connection."""

    max_message_bytes: int = 64 * 1024 * 1024  # a LeaderAndIsr for 10,000 partitions is less than 1 MiB
    keepalive_ms: int = 10_000  # of silence, until the peer is asked whether it lives
    keepalive_timeout_ms: int = 5_000  # until it is given up
    connect_timeout_ms: int = 2_000
    reconnect_backoff_ms: int = 50  # the first pause; it doubles
    reconnect_backoff_max_ms: int = 1_000
    idle_ms: int = 60_000  # without a call, until a channel lets go of its connection or of looking for one

    def server_options(self) -> Options:
        """For `grpc.aio.server`."""
        return [
            *self._options_of_both(),
            # By default two servers may take the same port, and each gets some of the connections.
            ("grpc.so_reuseport", 0),
            # A channel may ask whether we live as often as it likes to; by default it would be sent away.
            ("grpc.http2.min_ping_interval_without_data_ms", min(1_000, self.keepalive_ms)),
            ("grpc.http2.max_ping_strikes", 0),
        ]

    def channel_options(self) -> Options:
        """For `grpc.aio.secure_channel` and `insecure_channel`."""
        return [
            *self._options_of_both(),
            ("grpc.initial_reconnect_backoff_ms", self.reconnect_backoff_ms),
            ("grpc.max_reconnect_backoff_ms", self.reconnect_backoff_max_ms),
            ("grpc.min_reconnect_backoff_ms", self.connect_timeout_ms),  # despite its name: how long a connect may take
            ("grpc.client_idle_timeout_ms", self.idle_ms),
            # Or a new channel to the same address would inherit the pause of an old one.
            ("grpc.use_local_subchannel_pool", 1),
            # Brokers are never behind a proxy of the environment's.
            ("grpc.enable_http_proxy", 0),
            # Whether to try again is the caller's decision: it knows its epochs.
            ("grpc.enable_retries", 0),
        ]

    def _options_of_both(self) -> Options:
        return [
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.keepalive_time_ms", self.keepalive_ms),
            ("grpc.keepalive_timeout_ms", self.keepalive_timeout_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]

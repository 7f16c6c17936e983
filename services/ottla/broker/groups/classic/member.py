"""One member of a group, as its coordinator sees it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.broker.groups.classic.effects import StoredMember, Token


class Protocol(NamedTuple):
    """An assignor that a member supports, with what the member says to it: mostly its subscription."""

    name: str
    metadata: bytes


@dataclass(slots=True, eq=False)
class Member:
    """A member. Only its group changes it.

    Attributes:
        protocols: those it supports, the one it likes best first.
        join_token, sync_token: of the request that waits for its answer, if one does.
        deadline_ms: when its session ends unless it is heard from.
        is_new: it has joined and never got an answer. Its client may give up and ask again under another id, so it is
            kept only for so long, whatever it waits for.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    join_token: Token | None = None
    sync_token: Token | None = None
    deadline_ms: int = 0
    is_new: bool = field(default=False)

    @property
    def is_awaiting_join(self) -> bool:
        return self.join_token is not None

    @property
    def is_awaiting_sync(self) -> bool:
        return self.sync_token is not None

    def is_kept_without_heartbeat(self) -> bool:
        """Whether it cannot be expected to send heartbeats, since it waits for an answer of ours."""
        return not self.is_new and (self.is_awaiting_join or self.is_awaiting_sync)

    def matches(self, protocols: Sequence[Protocol]) -> bool:
        """Whether these are the protocols that it has joined with."""
        return self.protocols == tuple(protocols)

    def metadata(self, protocol_name: str) -> bytes:
        """What it says to an assignor that it supports."""
        return next(protocol.metadata for protocol in self.protocols if protocol.name == protocol_name)

    def vote(self, candidates: Collection[str]) -> str:
        """The one of the candidates, all of which it supports, that it likes best."""
        return next(protocol.name for protocol in self.protocols if protocol.name in candidates)

    def stored(self, protocol_name: str | None) -> StoredMember:
        """As it is written to the offsets topic."""
        subscription = b"" if protocol_name is None else self.metadata(protocol_name)
        return StoredMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            subscription,
            self.assignment,
        )

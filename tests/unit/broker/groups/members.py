"""Members of a group for tests: they join, sync and keep what they were answered."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from uuid import UUID

from ottla.broker.groups.classic import joining, membership, rebalancing
from ottla.broker.groups.classic.effects import Effect, Joined, StoreGroup, Synced
from ottla.broker.groups.classic.group import Group, GroupLimits
from ottla.broker.groups.classic.joining import Join
from ottla.broker.groups.classic.member import Protocol
from ottla.broker.groups.classic.membership import Sync
from ottla.errors import ApiError

RANGE = Protocol("range", b"range-subscription")
ROUND_ROBIN = Protocol("roundrobin", b"roundrobin-subscription")
SESSION_MS = 10_000
REBALANCE_MS = 60_000


class Coordinator:
    """A group with a clock that the test turns, and the answers by token. What is to be stored is stored at once, unless
    the test holds it back."""

    def __init__(self, limits: GroupLimits | None = None) -> None:
        self.now_ms = 1_000_000
        self.group = Group("g", limits or GroupLimits(initial_rebalance_delay_ms=0), self.now_ms)
        self.joined: dict[object, Joined] = {}
        self.synced: dict[object, Synced] = {}
        self.stored: list[StoreGroup] = []
        self.held: list[StoreGroup] | None = None
        self._tokens = itertools.count()
        self._unique = itertools.count(1)

    def join(
        self,
        member_id: str = "",
        protocols: Iterable[Protocol] = (RANGE,),
        instance_id: str | None = None,
        requires_known_member_id: bool = False,
        session_timeout_ms: int = SESSION_MS,
        supports_skipping_assignment: bool = False,
        protocol_type: str = "consumer",
    ) -> int:
        """Sends a JoinGroup; gives its token."""
        token = next(self._tokens)
        request = Join(
            member_id,
            instance_id,
            "client",
            "/127.0.0.1",
            session_timeout_ms,
            REBALANCE_MS,
            protocol_type,
            tuple(protocols),
            requires_known_member_id,
            supports_skipping_assignment,
        )
        self.perform(joining.join(self.group, request, token, self.now_ms, lambda: UUID(int=next(self._unique))))
        return token

    def sync(
        self, answer: Joined, assignments: dict[str, bytes] | None = None, instance_id: str | None = None, generation: int | None = None
    ) -> int:
        token = next(self._tokens)
        generation_id = answer.generation_id if generation is None else generation
        request = Sync(answer.member_id, instance_id, generation_id, None, None, assignments or {})
        self.perform(membership.sync(self.group, request, token, self.now_ms))
        return token

    def heartbeat(self, member_id: str, generation_id: int, instance_id: str | None = None) -> type[ApiError] | None:
        try:
            membership.heartbeat(self.group, member_id, instance_id, generation_id, self.now_ms)
        except ApiError as error:
            return type(error)
        return None

    def leave(self, member_id: str, instance_id: str | None = None) -> type[ApiError] | None:
        outcomes, effects = membership.leave(self.group, [membership.Leaver(member_id, instance_id)], self.now_ms)
        self.perform(effects)
        return None if outcomes[0] is None else type(outcomes[0])

    def wait(self, milliseconds: int) -> None:
        """Lets time pass, from deadline to deadline."""
        end = self.now_ms + milliseconds
        while self.group.next_deadline_ms <= end:
            self.now_ms = max(self.now_ms, self.group.next_deadline_ms)
            self.perform(rebalancing.tick(self.group, self.now_ms))
        self.now_ms = end

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Joined():
                    assert effect.token not in self.joined, "answered twice"
                    self.joined[effect.token] = effect
                case Synced():
                    assert effect.token not in self.synced, "answered twice"
                    self.synced[effect.token] = effect
                case StoreGroup() if self.held is not None:
                    self.held.append(effect)
                case StoreGroup():
                    self.store(effect)

    def store(self, effect: StoreGroup, error: ApiError | None = None) -> None:
        if error is None:
            self.stored.append(effect)
        self.perform(rebalancing.stored(self.group, effect.reason, error, self.now_ms))

    def stable(self, count: int, **keywords: object) -> list[Joined]:
        """Brings that many members to a stable generation; the leader comes first."""
        ids = [self.joined[self.join(**keywords)].member_id if index == 0 else "" for index in range(count)]  # type: ignore[arg-type]
        tokens = [self.join(**keywords) for _ in ids[1:]]  # type: ignore[arg-type]
        if ids[1:]:
            tokens.insert(0, self.join(ids[0], **keywords))  # type: ignore[arg-type]
            answers = [self.joined[token] for token in tokens]
        else:
            answers = [next(iter(self.joined.values()))]
        assignments = {answer.member_id: f"part of {answer.member_id}".encode() for answer in answers}
        for joined in sorted(answers, key=lambda answer: answer.leader != answer.member_id):
            self.sync(joined, assignments if joined.leader == joined.member_id else None)
        return sorted(answers, key=lambda answer: answer.leader != answer.member_id)


def error_of(answer: Joined | Synced) -> type[ApiError] | None:
    return None if answer.error is None else type(answer.error)

"""Who leads: the node that holds an ephemeral znode, until its session ends or it resigns.

    /ottla/schema-registry/[group]/leader   where the leader answers, as JSON
    /ottla/schema-registry/[group]/epoch    how many terms there were

The leader is sticky: a node that comes back takes nothing away. ZooKeeper only says whose turn it is. That no one else writes is the
topic's doing: the producer's epoch, which a leader raises before its first write. So a leader that is cut from ZooKeeper can do no harm,
and it leads on for as long as its session may live.

Without ZooKeeper the node leads by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from ottla.coordination.election import Election, Office, Term
from ottla.coordination.errors import NodeExists, NoNode
from ottla.coordination.interface import Coordination, SessionEvent
from ottla.coordination.retries import retried
from ottla.errors import OttlaError, reason_of
from ottla.lifecycle import Tasks
from ottla.schema_registry.state.replay import State
from ottla.schema_registry.store.replaying import Store

log: Final = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a node answers: the other nodes by HTTP, commands by gRPC."""

    url: str
    rpc: str = ""

    def encoded(self) -> bytes:
        """As the znode has it."""
        return json.dumps({"url": self.url, "rpc": self.rpc}).encode()

    @classmethod
    def decoded(cls, data: bytes) -> Address | None:
        """Of a znode's data; None if it is none of ours."""
        try:
            found = json.loads(data)
            return cls(str(found["url"]), str(found["rpc"]))
        except (ValueError, KeyError, TypeError):
            return None


def office_of(group: str) -> Office:
    """The znodes of a group of nodes."""
    path = f"/ottla/schema-registry/{group}"
    return Office("schema registry leader", f"{path}/leader", f"{path}/epoch")


class Leadership:
    """The store, and who may write to it.

    Args:
        store: of this node.
        address: of this node, once it is known.
        is_eligible: `leader.eligibility`.
        changed: called when it has changed who leads.
    """

    def __init__(self, store: Store, address: Callable[[], Address], *, is_eligible: bool = True, changed: Callable[[], None]) -> None:
        self._store = store
        self._address = address
        self._is_eligible = is_eligible
        self._changed = changed
        self._leader: Address | None = None
        self._part: Election | _Observer | None = None
        self._joined: tuple[Coordination, str] | None = None
        self._session_end: asyncio.TimerHandle | None = None
        self._taking_part = asyncio.Lock()  # a session that is renewed while the lead is given up makes no second election
        self._abdicating: Final = Tasks()
        self.term_count = 0

    @property
    def state(self) -> State:
        """What has been replayed."""
        return self._store.state

    @property
    def is_leader(self) -> bool:
        """Whether this node leads. It does so without being able to write where the topic is broken, and then says that."""
        return self._store.is_writing or (bool(self._store.fault) and self._leader == self._address())

    @property
    def leader(self) -> Address | None:
        """Where the leader answers; None when no one is known to lead."""
        return self._leader

    @property
    def leader_url(self) -> str | None:
        """Where the leader answers by HTTP; None for nowhere, and while this node begins to lead."""
        return None if self._leader is None or self._leader.url == self._address().url else self._leader.url

    async def wait_for(self, offset: int) -> None:
        """Waits until the records before an offset are replayed; raises StoreTimedOut."""
        await self._store.wait_for(offset)

    # Leading.

    async def lead_alone(self) -> None:
        """Leads without an election.

        Raises:
            OttlaError, OSError: the topic cannot be written.
        """
        await self._store.lead(1, lambda reason: log.error("another registry writes to the topic, so this one stops: %s", reason))
        self._set(self._address())

    async def join(self, coordination: Coordination, group: str) -> None:
        """Takes part in the election, with one session."""
        async with self._taking_part:
            await self.leave()
            self._joined = coordination, group
            coordination.on_session_event(partial(self._session_happened, coordination))
            await self._take_part()

    async def _take_part(self) -> None:
        assert self._joined is not None
        coordination, group = self._joined
        office = office_of(group)
        with contextlib.suppress(NodeExists):
            await retried(lambda: coordination.create(office.path.rpartition("/")[0], make_parents=True))
        if self._is_eligible:
            name = f"registry {self._address().url}"
            self._part = Election(coordination, office, name, self)
        else:
            self._part = _Observer(coordination, office.path, self._set_from)
        await self._part.start()

    async def resign(self) -> None:
        """Gives the lead up: to another node, if one takes it within a second."""
        async with self._taking_part:
            assert self._joined is not None
            coordination, group = self._joined
            await self.leave()
            try:
                path = office_of(group).path
                with contextlib.suppress(NoNode):
                    _, stat = await coordination.get(path)
                    if stat.ephemeral_owner == coordination.session_id:  # and of no other node, which leads since
                        await coordination.delete(path)
                await asyncio.sleep(_PAUSE_SECONDS)
            finally:
                await self._take_part()

    async def leave(self) -> None:
        """Takes part no more, and does not lead any more."""
        part, self._part = self._part, None
        if part is not None:
            part.close()
            await part.wait_closed()
        self._cancel_session_end()
        await self._store.abdicate("this node leaves")
        self._set(None)

    def lost(self) -> None:
        """The session has ended, and with it the office."""
        self.term_ended()

    def data(self) -> bytes:
        """Where this node answers, for the others to read."""
        return self._address().encoded()

    async def term_begins(self, term: Term) -> None:
        """This node or another leads now."""
        address = Address.decoded(term.holder)
        if not term.is_own:
            if address == self._address():
                log.error("another node leads under the address of this one, %s: writes that come here cannot be forwarded", address.url)
            self._set(address)
            self._write_no_more()
            return
        self.term_count += 1
        part = self._part
        assert isinstance(part, Election)
        try:
            await self._store.lead(term.epoch, part.term_failed)
        except (OttlaError, OSError, TimeoutError) as error:
            part.term_failed(f"the topic cannot be written: {reason_of(error)}")
            return
        self._set(address)

    def term_ended(self) -> None:
        """No one is known to lead."""
        self._set(None)
        self._write_no_more()

    def _write_no_more(self) -> None:
        if self._store.is_writing:
            self._abdicating.begin(self._store.abdicate("the term has ended"))

    def _set_from(self, data: bytes | None) -> None:
        self._set(None if data is None else Address.decoded(data))

    def _set(self, leader: Address | None) -> None:
        if leader != self._leader:
            if leader is not None:
                log.info("the leader is %s%s", leader.url, " (this node)" if leader == self._address() else "")
            self._leader = leader
            self._changed()

    def _session_happened(self, coordination: Coordination, event: SessionEvent) -> None:
        if self._joined is None or self._joined[0] is not coordination:
            return  # a former session's
        self._cancel_session_end()
        if event is SessionEvent.SUSPENDED:
            # ZooKeeper counts from what it heard last, and a lost connection may have been silent for long before it is given up.
            left = coordination.session_timeout_seconds - coordination.silent_seconds
            self._session_end = asyncio.get_running_loop().call_later(max(0.0, left), self._session_ended)

    def _session_ended(self) -> None:
        if self._leader is not None:
            log.warning("ZooKeeper is away for longer than a session lives: it is not known who leads")
            self.term_ended()
            if self._part is not None:  # the session may live after all, and then no watch fires
                self._part.term_failed("ZooKeeper is away for longer than a session lives")

    def _cancel_session_end(self) -> None:
        if self._session_end is not None:
            self._session_end.cancel()
            self._session_end = None


class _Observer:
    """Sees who leads, for a node that must not."""

    def __init__(self, coordination: Coordination, path: str, seen: Callable[[bytes | None], None]) -> None:
        self._coordination = coordination
        self._path = path
        self._seen = seen
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._watching = asyncio.ensure_future(self._watch())

    def term_failed(self, reason: str) -> None:
        """Has another look."""
        self._changed.set()

    async def _watch(self) -> None:
        while True:
            self._changed = changed = asyncio.Event()
            try:
                data = None
                if await self._coordination.exists(self._path, lambda _, changed=changed: changed.set()) is not None:  # type: ignore[misc]  # mypy infers no type of a default
                    with contextlib.suppress(NoNode):
                        data, _ = await self._coordination.get(self._path)
                self._seen(data)
                await changed.wait()
            except OttlaError as error:
                log.warning("it cannot be seen who leads, trying again: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def wait_closed(self) -> None:
        if self._watching is not None:
            await asyncio.wait([self._watching])

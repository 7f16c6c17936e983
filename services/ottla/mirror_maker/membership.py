"""The workers of a link, and who holds which slot, as znodes of the target's ZooKeeper; or one worker that has all.

    /ottla/mirror/<link>/workers/<worker>     ephemeral; {"bytes_per_second": {"3": 10.5}}: what its slots have to do
    /ottla/mirror/<link>/slots/<slot>         ephemeral; the worker that holds it
    /ottla/mirror/<link>/paused               ["clicks", "views-3"]: what an operator has paused; "*" is all
    /ottla/mirror-links/<link>                {"source": "A", "target": "B", "settings": {"topics": "clicks"}}: that a command has made

A slot's znode keeps two workers from working for nothing. That only one can write is the transactional id's affair.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ottla.coordination.errors import BadVersion, NodeExists, NoNode
from ottla.coordination.interface import Coordination

log: Final = logging.getLogger(__name__)

ROOT: Final = "/ottla/mirror"
LINKS: Final = "/ottla/mirror-links"
ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class Members:
    """Who is there, and who has what."""

    workers: frozenset[str] = frozenset()
    holders: Mapping[int, str] = field(default_factory=dict)
    bytes_per_second: Mapping[int, float] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()


class Membership(Protocol):
    """One worker's part in a link."""

    @property
    def may_be_over(self) -> bool:
        """Whether the session may have ended, which ZooKeeper cannot say while it is cut off: others may have the slots."""
        ...

    async def look(self) -> Members:
        """How things are now."""

    async def take(self, slot: int) -> bool:
        """Holds a slot, unless another worker does."""

    async def release(self, slot: int) -> None:
        """Holds it no more."""

    async def publish(self, bytes_per_second: Mapping[int, float]) -> None:
        """Says what the own slots have to do."""

    async def change_paused(self, more: Collection[str], no_more: Collection[str] = ()) -> None:
        """Has the first be paused and the others not, whatever else is."""

    async def leave(self) -> None:
        """Takes part no more."""


class Alone:
    """Without ZooKeeper: one worker, all slots. What is paused is forgotten with the process."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._held: set[int] = set()
        self._paused: frozenset[str] = frozenset()

    @property
    def may_be_over(self) -> bool:
        return False

    async def look(self) -> Members:
        return Members(frozenset({self._worker}), dict.fromkeys(self._held, self._worker), paused=self._paused)

    async def take(self, slot: int) -> bool:
        self._held.add(slot)
        return True

    async def release(self, slot: int) -> None:
        self._held.discard(slot)

    async def publish(self, bytes_per_second: Mapping[int, float]) -> None:
        """No one asks."""

    async def change_paused(self, more: Collection[str], no_more: Collection[str] = ()) -> None:
        self._paused = self._paused.union(more).difference(no_more)

    async def leave(self) -> None:
        self._held.clear()


class Shared:
    """With ZooKeeper, in one session.

    Args:
        changed: called when a worker or a holder comes or goes, or what is paused changes.
    """

    def __init__(self, coordination: Coordination, link: str, worker: str, changed: Callable[[], None]) -> None:
        self._coordination = coordination
        self._path = f"{ROOT}/{link}"
        self._worker = worker
        self._changed = changed
        self._paused_as_read = b""
        self._paused: frozenset[str] = frozenset()

    @property
    def may_be_over(self) -> bool:
        return self._coordination.silent_seconds >= self._coordination.session_timeout_seconds

    async def join(self) -> None:
        """Is a worker from now on."""
        for path in (f"{self._path}/slots", f"{self._path}/workers"):
            with suppress(NodeExists):
                await self._coordination.create(path, make_parents=True)
        with suppress(NodeExists):
            await self._coordination.create(f"{self._path}/paused", b"[]")
        worker = f"{self._path}/workers/{self._worker}"
        try:
            await self._coordination.create(worker, b"{}", ephemeral=True)
        except NodeExists:
            stat = await self._coordination.exists(worker)
            if stat is None or stat.ephemeral_owner != self._coordination.session_id:  # else it was made, and the answer was lost
                raise

    async def look(self) -> Members:
        coordination = self._coordination
        workers = await coordination.children(f"{self._path}/workers", lambda _: self._changed())
        slots = [int(name) for name in await coordination.children(f"{self._path}/slots", lambda _: self._changed()) if name.isdecimal()]
        paused, _ = await coordination.get(f"{self._path}/paused", lambda _: self._changed())
        held = await coordination.get_many([f"{self._path}/slots/{slot}" for slot in slots])
        said = await coordination.get_many([f"{self._path}/workers/{worker}" for worker in workers])
        loads: dict[int, float] = {}
        for found in said:
            if found is not None:
                with suppress(ValueError, TypeError, AttributeError):  # what cannot be read weighs nothing until its worker writes it again
                    loads |= {int(slot): float(rate) for slot, rate in json.loads(found[0]).get("bytes_per_second", {}).items()}
        holders = {slot: found[0].decode(errors="replace") for slot, found in zip(slots, held, strict=True) if found is not None}
        return Members(frozenset(workers), holders, loads, self._paused_in(paused))

    def _paused_in(self, data: bytes) -> frozenset[str]:
        if data != self._paused_as_read:
            self._paused_as_read = data
            try:
                self._paused = _names(json.loads(data))
            except (ValueError, TypeError, RecursionError) as error:  # paused stays what is paused
                log.error("%s/paused cannot be read: %r; pause or resume writes it again", self._path, error)
        return self._paused

    async def take(self, slot: int) -> bool:
        try:
            await self._coordination.create(f"{self._path}/slots/{slot}", self._worker.encode(), ephemeral=True)
        except NodeExists:
            return False
        return True

    async def release(self, slot: int) -> None:
        with suppress(NoNode):
            await self._coordination.delete(f"{self._path}/slots/{slot}")

    async def publish(self, bytes_per_second: Mapping[int, float]) -> None:
        said = {"bytes_per_second": {str(slot): round(rate, 1) for slot, rate in bytes_per_second.items()}}
        await self._coordination.set(f"{self._path}/workers/{self._worker}", json.dumps(said).encode())

    async def change_paused(self, more: Collection[str], no_more: Collection[str] = ()) -> None:
        path = f"{self._path}/paused"
        while True:
            data, stat = await self._coordination.get(path)
            names = self._paused_in(data).union(more).difference(no_more)
            with suppress(BadVersion):  # another operator was faster
                await self._coordination.set(path, json.dumps(sorted(names)).encode(), stat.version)
                return

    async def leave(self) -> None:
        with suppress(NoNode):
            await self._coordination.delete(f"{self._path}/workers/{self._worker}")


class MadeLinks:
    """The links that commands have made, in one session.

    Args:
        changed: called when one comes or goes.
    """

    def __init__(self, coordination: Coordination, changed: Callable[[], None]) -> None:
        self._coordination = coordination
        self._changed = changed

    async def look(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """By their names, what was said of each; and of those that cannot be read, why."""
        with suppress(NodeExists):
            await self._coordination.create(LINKS, make_parents=True)
        names = await self._coordination.children(LINKS, lambda _: self._changed())
        found: dict[str, dict[str, Any]] = {}
        damaged: dict[str, str] = {}
        for name, kept in zip(names, await self._coordination.get_many([f"{LINKS}/{name}" for name in names]), strict=True):
            if kept is not None:
                try:
                    found[name] = _said_of_link(kept[0])
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                    damaged[name] = f"{LINKS}/{name} cannot be read: {error!r}"
        return found, damaged

    async def add(self, name: str, source: str, target: str, settings: Mapping[str, str]) -> None:
        """Raises NodeExists if there is one of that name."""
        said = {"source": source, "target": target, "settings": dict(settings)}
        await self._coordination.create(f"{LINKS}/{name}", json.dumps(said).encode(), make_parents=True)

    async def remove(self, name: str) -> None:
        """With what was paused of it: one that is made again copies."""
        await self._coordination.delete(f"{LINKS}/{name}")
        with suppress(NoNode):
            await self._coordination.set(f"{ROOT}/{name}/paused", b"[]")


def _said_of_link(data: bytes) -> dict[str, Any]:
    said = json.loads(data)
    source, target, settings = said["source"], said["target"], said["settings"]
    if not (isinstance(source, str) and isinstance(target, str) and all(isinstance(value, str) for value in settings.values())):
        raise TypeError("source, target and settings are not all text")
    return {"source": source, "target": target, "settings": dict(settings)}


def _names(said: Any) -> frozenset[str]:
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said):
        raise TypeError("it is no list of names")
    return frozenset(said)

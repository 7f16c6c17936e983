"""An election: the process that takes an ephemeral znode holds an office, and has its next epoch.

The znode and the epoch are written in one transaction, so no two terms ever share an epoch. A watch sees the znode go, and then all try
again. A create whose outcome is unknown is resolved by reading whose session owns the znode. Writes of a holder are made on the condition
that the version of the epoch's znode is still that of its term: then a former holder can write nothing.

One `Election` for each session; it decides nothing but this.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.coordination import znodes
from ottla.coordination.errors import BadVersion, ConnectionLoss, MalformedZnode, NodeExists, NoNode, SessionExpired
from ottla.coordination.interface import Coordination, Create, Operation, SetData, Watch
from ottla.coordination.retries import make_znode, retried
from ottla.errors import ApiError, OttlaError, reason_of
from ottla.lifecycle import Backoff

log: Final = logging.getLogger(__name__)

# Before the next attempt after two terms in a row that failed; it doubles with each further one.
_BACKOFF: Final = Backoff(first_seconds=0.5, longest_seconds=5.0)
# A term that lasts so long is no failed attempt, whatever ends it.
_SOUND_SECONDS: Final = 10.0
# The same reason is logged again only after so long.
_LOGGED_AGAIN_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Office:
    """What is elected.

    Attributes:
        name: in log lines.
        path: of the ephemeral of the holder.
        epoch_path: of the znode that counts the terms.
        own_epochs_path: of the znode that says which terms were Ottla's, of an office that Kafka may have too; written with the epoch.
    """

    name: str
    path: str
    epoch_path: str
    own_epochs_path: str | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """One holder's time.

    Attributes:
        holder: the data of the ephemeral.
        epoch: of this term.
        epoch_version: of the epoch's znode, which every write of the holder checks; None: another session's term.
    """

    holder: bytes
    epoch: int
    epoch_version: int | None

    @property
    def is_own(self) -> bool:
        """Whether this session holds the office."""
        return self.epoch_version is not None


class Candidate(Protocol):
    """What takes part."""

    def data(self) -> bytes:
        """What its ephemeral holds, made at each attempt."""
        ...

    async def term_begins(self, term: Term) -> None:
        """A term begins, of this session or another. An own one that it fails to begin is begun again."""
        ...

    def term_ended(self) -> None:
        """The term that began last is over; called at once."""
        ...


class Election:
    """The election, as one session takes part in it.

    Args:
        coordination: the session.
        office: what is elected.
        name: of the candidate, in log lines.
        candidate: what takes part.
    """

    def __init__(self, coordination: Coordination, office: Office, name: str, candidate: Candidate) -> None:
        self._coordination = coordination
        self._office = office
        self._name = name
        self._candidate = candidate
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._is_closed = False
        self._failures = 0  # terms in a row
        self._failed_at = self._logged_at = -math.inf
        self._logged_reason, self._unlogged_count = "", 0

    async def start(self) -> None:
        """Takes part once, and from then on whenever the ephemeral changes.

        Raises:
            CoordinationError: it cannot be found out who holds the office.
        """
        try:
            await self._elect()
        except ApiError as error:
            log.warning("%s could not begin as the %s, retrying: %s", self._name, self._office.name, error)
            self._happened()
        self._watching = asyncio.ensure_future(self._watch())

    def close(self) -> None:
        """Takes part no more. What is under way stops where it waits."""
        self._is_closed = True
        if self._watching is not None:
            self._watching.cancel()

    async def wait_closed(self) -> None:
        """Waits until nothing is under way any more."""
        if self._watching is not None:
            await asyncio.wait([self._watching])

    def term_failed(self, reason: str) -> None:
        """Has another look, as if the ephemeral had changed: what is known of it has proved wrong.

        At once the first time, and after a pause when the attempt before failed as well: a coordination service whose disk
        is full fails each.
        """
        now = asyncio.get_running_loop().time()
        self._failures = self._failures + 1 if now - self._failed_at < _SOUND_SECONDS + self._pause() else 1
        self._failed_at = now
        if reason != self._logged_reason or now - self._logged_at >= _LOGGED_AGAIN_SECONDS:
            repeated = f" (repeated {self._unlogged_count} times since it was logged last)" if self._unlogged_count else ""
            log.warning("%s cannot continue as the %s, retrying: %s%s", self._name, self._office.name, reason, repeated)
            self._logged_reason, self._logged_at, self._unlogged_count = reason, now, 0
        else:
            self._unlogged_count += 1
        self._happened()

    def _pause(self) -> float:
        return 0.0 if self._failures < 2 else _BACKOFF.seconds(self._failures - 2)

    async def _elect(self) -> None:
        self._changed = changed = asyncio.Event()
        term = await self._take_or_see(lambda _: self._happened(changed))
        if not self._is_closed:
            await self._candidate.term_begins(term)

    def _happened(self, changed: asyncio.Event | None = None) -> None:
        if not self._is_closed and changed in (None, self._changed):
            self._candidate.term_ended()
            self._changed.set()

    async def _watch(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._failed_at + self._pause() - asyncio.get_running_loop().time())
            failed_at = self._failed_at
            try:
                await self._elect()
            except SessionExpired:
                return  # the next session has an election of its own
            except Exception as error:  # a process must not stop taking part in the election
                if not isinstance(error, OttlaError):
                    log.exception("the election of a %s continues after a failure", self._office.name)
                if self._failed_at == failed_at:  # else the candidate has said so before it raised
                    self.term_failed(reason_of(error))

    async def _take_or_see(self, watch: Watch) -> Term:
        """Takes the office, or says who holds it. The watch is on the ephemeral."""
        office, coordination = self._office, self._coordination
        while True:
            with contextlib.suppress(NoNode):
                data, stat = await retried(lambda: coordination.get(office.path, watch))
                epoch, version = await self._epoch()
                if stat.ephemeral_owner == coordination.session_id:
                    log.info("%s is the %s, epoch %d", self._name, office.name, epoch)
                    return Term(data, epoch, version)
                return Term(data, epoch, None)
            try:
                epoch, version = await self._epoch()
            except NoNode:
                await make_znode(coordination, office.epoch_path, znodes.encode_controller_epoch(0))
                continue
            operations: list[Operation] = [
                Create(office.path, self._candidate.data(), ephemeral=True),
                SetData(office.epoch_path, znodes.encode_controller_epoch(epoch + 1), version),
            ]
            if office.own_epochs_path is not None:
                try:
                    own, own_version = await read_own_epochs(coordination, office.own_epochs_path)
                except NoNode:
                    await make_znode(coordination, office.own_epochs_path, b"")
                    continue
                operations.append(SetData(office.own_epochs_path, znodes.encode_own_epochs(own.with_epoch(epoch + 1)), own_version))
            with contextlib.suppress(NodeExists, BadVersion, ConnectionLoss):  # the next look tells what came of it
                await coordination.transaction(operations)

    async def _epoch(self) -> tuple[int, int]:
        data, stat = await retried(lambda: self._coordination.get(self._office.epoch_path))
        return znodes.decode_controller_epoch(self._office.epoch_path, data), stat.version


async def read_own_epochs(coordination: Coordination, path: str) -> tuple[znodes.OwnEpochs, int]:
    """Which epochs were Ottla's, and the version of the znode that says so.

    Raises:
        NoNode: it is not there.
    """
    data, stat = await retried(lambda: coordination.get(path))
    try:
        return znodes.decode_own_epochs(path, data), stat.version
    except MalformedZnode as error:
        log.error("%s; it is written again", error)
        return znodes.NO_OWN_EPOCHS, stat.version

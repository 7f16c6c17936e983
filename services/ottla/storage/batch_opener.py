"""Opens batches outside the loop: small ones in a thread, large ones in a process that has a bound of memory and of time.

A producer's batch is stored as it came. The exceptions are topics that want their records' keys or a codec of their own, and
look-ups by time. What a batch unpacks to is only known once it is unpacked, so a thread tries with small limits first; that
is all for nearly every batch. One that exceeds the process's bounds as well is named in the log once, and not opened again. A job
that ended for another reason, because the machine was too busy for it, may be asked for again.

The process is this Python with one module (`opening_process`); there is one at a time, and jobs wait for each other.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections import OrderedDict
from typing import Any, Final

from ottla import errors
from ottla.errors import ApiError, InvalidRecord, RequestTimedOut
from ottla.lifecycle import ChildProcess, Offload
from ottla.record.batch import read_header
from ottla.record.codecs import DecompressedTooLarge
from ottla.record.opening import Opened, OpeningLimits, StoredAs, first_at_or_after, opened

log = logging.getLogger(__name__)

MODULE: Final = "ottla.storage.opening_process"
# What a thread may take: some milliseconds, in which the loop waits for it now and then.
IN_A_THREAD: Final = OpeningLimits(max_bytes=4 * 1024 * 1024, max_records=5_000)
# By the clock, for a process that says nothing more; the process itself counts its CPU time.
JOB_SECONDS: Final = 60.0
# A tenth of a core that others take all of: a producer waits for it, so it cannot wait for a quiet moment.
NICENESS: Final = 10
# Jobs that wait for the process, each with its batch.
MAX_WAITING: Final = 32
# Batches that are known to be too large, by their checksums and sizes.
MAX_REMEMBERED: Final = 1_000
# Exit codes of a process that was ended from outside, as by a machine without memory: that says nothing of its batch.
ENDED_FROM_OUTSIDE: Final = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP)


class _Ended(Exception):
    """The process was ended from outside."""


class BatchOpener:
    """Opens the batches of one broker.

    Args:
        offload: for threads.
        has_process: whether there is a process for what is too large for a thread; tests and the simulation have none.
    """

    def __init__(self, offload: Offload, *, has_process: bool) -> None:
        self._offload = offload
        self._has_process = has_process
        self._process: ChildProcess | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._too_large: OrderedDict[tuple[int, int], str] = OrderedDict()

    async def opened(self, batch: bytes, wanted: StoredAs) -> Opened:
        """A producer's batch as its topic wants it. Raises as `record.opening.opened`."""
        if not self._has_process:
            return await self._offload(opened, batch, wanted, OpeningLimits())
        try:
            return await self._offload(opened, batch, wanted, IN_A_THREAD)
        except DecompressedTooLarge:
            job = {"open": {"has_keys": wanted.has_keys, "codec": wanted.codec, "level": wanted.level}}
            answer, data = await self._ask(job, batch)
            told = answer["opened"]
            return Opened(data, told["without_key_count"], tuple(told["without_key"]))

    async def first_at_or_after(self, batch: bytes, timestamp: int, start_offset: int) -> tuple[int, int] | None:
        """Timestamp and offset of the first record that is meant. Raises as `record.opening.first_at_or_after`."""
        if not self._has_process:
            return await self._offload(first_at_or_after, batch, timestamp, start_offset, OpeningLimits())
        try:
            return await self._offload(first_at_or_after, batch, timestamp, start_offset, IN_A_THREAD)
        except DecompressedTooLarge:
            answer, _ = await self._ask({"first": [timestamp, start_offset]}, batch)
            return tuple(answer["first"]) if answer["first"] else None

    async def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            await self._process.kill()
            self._process = None

    async def _ask(self, job: dict[str, Any], batch: bytes) -> tuple[dict[str, Any], bytes]:
        key = read_header(batch).crc, len(batch)
        if key in self._too_large:
            raise DecompressedTooLarge(self._too_large[key])
        if self._waiting >= MAX_WAITING:
            raise RequestTimedOut(f"{self._waiting} large batches wait to be opened")  # it may be sound, and is to be sent again
        self._waiting += 1
        try:
            async with self._turn:
                try:
                    answer, data = await self._talk(job, batch)
                except _Ended:
                    answer, data = await self._talk(job, batch)
        except _Ended as error:
            raise RequestTimedOut(f"the process that was to open a batch of {len(batch)} bytes was ended twice: {error}") from error
        except TimeoutError as error:
            raise RequestTimedOut(f"opening a batch of {len(batch)} bytes took more than {JOB_SECONDS:.0f} s") from error
        except (OSError, EOFError, ValueError) as error:
            answer, data = {"error": DecompressedTooLarge.__name__, "message": f"opening a batch of {len(batch)} bytes: {error!r}"}, b""
        finally:
            self._waiting -= 1
        if "error" not in answer:
            return answer, data
        if answer["error"] == DecompressedTooLarge.__name__:
            self._remember(key, answer["message"])
            raise DecompressedTooLarge(answer["message"])
        kind = getattr(errors, answer["error"], InvalidRecord)
        raise kind(answer["message"]) if isinstance(kind, type) and issubclass(kind, ApiError) else InvalidRecord(answer["message"])

    def _remember(self, key: tuple[int, int], message: str) -> None:
        if key not in self._too_large:
            log.error("a batch of %d bytes with CRC %#010x is not opened, now or later: %s", key[1], key[0], message)
            self._too_large[key] = message
            if len(self._too_large) > MAX_REMEMBERED:
                self._too_large.popitem(last=False)

    async def _talk(self, job: dict[str, Any], batch: bytes) -> tuple[dict[str, Any], bytes]:
        try:
            process = await self._take()
        except OSError as error:
            raise RequestTimedOut(f"no process opens a batch of {len(batch)} bytes now: {error}") from error
        try:
            async with asyncio.timeout(JOB_SECONDS):
                await process.write(json.dumps(job | {"size": len(batch)}).encode() + b"\n" + batch)
                line = await process.read()
                if not line.endswith(b"\n"):
                    raise EOFError("its process has ended")
                answer = json.loads(line)
                return answer, await process.read_exactly(answer["size"])
        except BaseException as error:  # no caller waits for its result any more
            self._process = None
            is_broken = isinstance(error, (OSError, EOFError)) and not isinstance(error, TimeoutError)
            exit_code = await process.ended() if is_broken else None
            await process.kill()
            if exit_code in ENDED_FROM_OUTSIDE:
                raise _Ended(f"exit code {exit_code}") from error
            raise

    async def _take(self) -> ChildProcess:
        if self._process is None or self._process.exit_code is not None:
            self._process = await ChildProcess.start(MODULE, niceness=NICENESS)
            log.info("the process %d opens large batches", self._process.process_id)
        return self._process

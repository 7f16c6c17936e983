"""Fetch (key 1), versions 4-17.

v7 sessions (KIP-227), v9 leader epochs (KIP-320), v11 racks (KIP-392), v12 diverging epochs (KIP-595), v13 topic
ids (KIP-516), v15 the replica's broker epoch (KIP-903), v16 where the leader is (KIP-951). The bytes of records go from the
file to the socket; this handler only says which. Followers fetch as consumers do, with a replica id (see `fetch_reading`).
Unlike Kafka: quotas are not enforced, so throttle_time_ms is always 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, cast

from ottla.broker.handlers.fetch_reading import Reading
from ottla.broker.handlers.registry import BrokerParts, EncodedBody, Pieces, RequestContext, handles
from ottla.broker.purgatory import Delayed
from ottla.broker.replication.partition import Partition
from ottla.errors import ApiError
from ottla.protocol import fetch as codec
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch import FetchRequest

# Times as long as a look of a patient fetch took.
RESTS: Final = 4


@handles(ApiKey.FETCH, codec.MIN_VERSION, codec.MAX_VERSION, decode=codec.decode_request)
def fetch(request: FetchRequest, context: RequestContext, parts: BrokerParts) -> EncodedBody | Awaitable[EncodedBody]:
    """Answers with what there is once it is `min_bytes`, or after `max_wait_ms`."""
    version = context.api_version
    try:
        scope = parts.fetch_sessions.begin(request, version >= codec.TOPIC_ID_VERSION)
    except ApiError as error:
        return EncodedBody(cast("Pieces", codec.encode_response(version, error.code, 0, [])))
    reading = Reading(request, scope, context, parts)
    # A task and no coroutine: what waits for bytes is no work under way.
    if reading.is_large:
        return asyncio.ensure_future(_in_slices(reading, request, parts))
    cold = reading.cold()
    return asyncio.ensure_future(_after(cold, reading, request, parts)) if cold else _answer_or_wait(reading, request, parts)


async def _after(cold: list[tuple[Partition, int]], reading: Reading, request: FetchRequest, parts: BrokerParts) -> EncodedBody:
    """Finds the places in old segments outside the loop, so that reading does not wait for the disk on it."""
    await asyncio.gather(*(partition.log.prepare_read(offset) for partition, offset in cold))
    answer = _answer_or_wait(reading, request, parts)
    return answer if isinstance(answer, EncodedBody) else await answer


def _answer_or_wait(reading: Reading, request: FetchRequest, parts: BrokerParts) -> EncodedBody | asyncio.Future[EncodedBody]:
    if reading.is_answerable() or request.max_wait_ms <= 0:
        return reading.answer()
    delayed = DelayedFetch(reading)
    purgatory = parts.fetch_purgatory
    purgatory.watch(delayed, reading.watched(), request.max_wait_ms / 1000)
    delayed.answered.add_done_callback(lambda _: purgatory.forget(delayed))
    return delayed.answered


async def _in_slices(reading: Reading, request: FetchRequest, parts: BrokerParts) -> EncodedBody:
    """A fetch of so many partitions that to read them all takes the loop's time from others."""
    time = asyncio.get_running_loop().time
    until = time() + request.max_wait_ms / 1000
    await reading.find_in_slices()
    for partition, offset in reading.cold():
        await partition.log.prepare_read(offset)
    while True:
        left = until - time()
        change = AnyChange()
        if left > 0:
            # Before the look: what changes in a slice that was read already is nothing that the next one sees.
            parts.fetch_purgatory.watch(change, reading.watched(), left)
        try:
            began = time()
            if await reading.is_answerable_in_slices() or left <= 0:
                break
            if reading.is_patient:
                await asyncio.sleep(min(RESTS * (time() - began), left))
            await change.happened
        finally:
            parts.fetch_purgatory.forget(change)
    return await reading.answer_in_slices()


class AnyChange(Delayed):
    """Waits for a change of any of many partitions, and leaves it to others to look what it is."""

    def __init__(self) -> None:
        self.happened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def try_complete(self) -> bool:
        self.expire()
        return True

    def expire(self) -> None:
        if not self.happened.done():
            self.happened.set_result(None)


class DelayedFetch(Delayed):
    """A fetch that waits for more bytes.

    To look at hundreds of partitions takes milliseconds. One that waits for more than the first byte is in no hurry, so that it looks
    for a fifth of the time at most, however often something is written to one of them.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._rests = False
        self._has_changed = False  # since it rests
        self.answered: asyncio.Future[EncodedBody] = asyncio.get_running_loop().create_future()

    def try_complete(self) -> bool:
        if self._rests:
            self._has_changed = True
            return False
        loop = self.answered.get_loop()
        began = loop.time()
        self._look(is_due=False)
        if self._reading.is_patient and not self.answered.done():
            self._rests, self._has_changed = True, False
            loop.call_later(RESTS * (loop.time() - began), self._continue)
        return self.answered.done()

    def _continue(self) -> None:
        self._rests = False
        if self._has_changed and not self.answered.done():
            self.try_complete()

    def expire(self) -> None:
        self._look(is_due=True)

    def _look(self, *, is_due: bool) -> None:
        """Answers if there is enough, or if the time is up."""
        if self.answered.done():
            return
        try:
            is_answerable = self._reading.is_answerable()
            # A disk that fails under a read has all who wait for its logs asked again, this one too: it may be answered by now.
            if (is_answerable or is_due) and not self.answered.done():
                self.answered.set_result(self._reading.answer())
        except Exception as error:
            # Anyone who appended what this fetch waited for must not pay for its failure; its own connection does.
            if not self.answered.done():
                self.answered.set_exception(error)

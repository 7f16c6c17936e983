"""Three stores over one topic, with leaders that change, that linger, and whose writes fail before or after they are there, by chance.

What is acknowledged is in the topic for everybody, an id stands for one schema, and ids are contiguous. One seed is one history.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from random import Random

import pytest
from tests.unit.schema_registry.registries import TIMEOUT_SECONDS, MemoryLog, record
from tests.unit.schema_registry.test_replay import replayed, seen
from tests.unit.schema_registry.test_replaying import store_of

from ottla.errors import ApiError
from ottla.schema_registry.state.decisions import Registration
from ottla.schema_registry.state.errors import LeaderUnknown, StoreFailed, StoreTimedOut
from ottla.schema_registry.state.records import Record
from ottla.schema_registry.store.replaying import Store

CLIENTS, SCHEMAS, FAULTS = 6, 6, 12


async def history(seed: int) -> None:
    random, log = Random(seed), MemoryLog()
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(store_of(log, epoch=None, timeout_seconds=0.5)) for _ in range(3)]
        given: dict[str, int] = {}
        clients = [asyncio.ensure_future(_register(Random(seed * 100 + number), stores, number, given)) for number in range(CLIENTS)]
        for epoch in range(1, FAULTS + 1):
            await _elect(random, log, stores, epoch)
            for _ in range(random.randrange(20)):
                await asyncio.sleep(0)
        log.before_append = log.after_append = lambda _: None
        for store in stores:
            store._timeout_seconds = TIMEOUT_SECONDS
            await store.abdicate("the faults are over")
        await stores[0].lead(FAULTS + 1, lambda _: None)
        await asyncio.gather(*clients)
        for store in stores:
            await store.wait_for(len(log.records))
            assert store.state.conflict_count == 0
            assert seen(store.state) == seen(stores[0].state) == seen(replayed(log.records)) == seen(replayed(log.compacted()))
        state = stores[0].state
        assert len(given) == CLIENTS * SCHEMAS
        assert {name: state.versions(name)[0].id for name in given} == given, "an acknowledged registration is lost"
        assert len(set(given.values())) == len(given), "an id stands for two schemas"
        assert sorted(state.context(".").schemas) == list(range(1, state.context(".").highest_id + 1)), "ids are contiguous"


async def _elect(random: Random, log: MemoryLog, stores: Sequence[Store], epoch: int) -> None:
    """Another leader, which the former one may not have heard of; and what becomes of one of its writes."""
    failures = [OSError("by chance")] * random.randrange(2)

    def fail(_: Sequence[Record]) -> None:
        if failures and random.random() < 0.5:
            raise failures.pop()

    log.before_append, log.after_append = random.choice([(fail, lambda _: None), (lambda _: None, fail)])
    leader = random.choice(stores)
    for store in stores:
        if store is not leader and random.random() < 0.5:
            await store.abdicate("by chance")
    with suppress(OSError, StoreTimedOut, ApiError):  # the next one may have more luck
        await leader.lead(epoch, lambda _: None)


async def _register(random: Random, stores: Sequence[Store], number: int, given: dict[str, int]) -> None:
    """Asks any store, again and again, until one has registered it."""
    for turn in range(SCHEMAS):
        name = f"s-{number}-{turn}"
        request = Registration(name, text=json.dumps(record(f"R_{number}_{turn}", "a")))
        while name not in given:
            try:
                given[name] = (await random.choice(stores).register(request)).id
            except (LeaderUnknown, StoreFailed, StoreTimedOut):
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("first_seed", range(0, 20, 10))
async def test_nothing_is_lost_and_no_id_given_twice(first_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.schema_registry.store.replaying._PAUSE_SECONDS", 0.001)
    for seed in range(first_seed, first_seed + 10):
        async with asyncio.timeout(120):
            await history(seed)

"""What a request names again and again is answered once, and long answers leave the loop to others."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from unittest import mock

import pytest

from ottla.broker.handlers import waiting
from ottla.broker.handlers.waiting import begun, in_slices, side_by_side
from ottla.protocol.api import ApiKey


@pytest.mark.parametrize(
    ("key", "version", "asked", "answers"),
    [
        (ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["g", "h", "g"]}, lambda of: [group.group_id for group in of.groups]),
        (ApiKey.FIND_COORDINATOR, 4, {"coordinator_keys": ["g", "g"]}, lambda of: [coordinator.key for coordinator in of.coordinators]),
        (
            ApiKey.OFFSET_FETCH,
            8,
            {"groups": [{"group_id": "g", "topics": None}] * 3, "require_stable": False},
            lambda of: [group.group_id for group in of.groups],
        ),
        (
            ApiKey.DESCRIBE_CONFIGS,
            4,
            {"resources": [{"resource_type": 2, "resource_name": "flights", "configuration_keys": None}] * 3},
            lambda of: [result.resource_name for result in of.results],
        ),
        (
            ApiKey.DESCRIBE_PRODUCERS,
            0,
            {"topics": [{"name": "flights", "partition_indexes": (0, 0, 0)}]},
            lambda of: [partition.partition_index for topic in of.topics for partition in topic.partitions],
        ),
        (
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            4,
            {"topics": [{"topic": "flights", "partitions": [{"partition": 0}, {"partition": 0}]}]},
            lambda of: [partition.partition for topic in of.topics for partition in topic.partitions],
        ),
        (
            ApiKey.DELETE_RECORDS,
            2,
            {"topics": [{"name": "flights", "partitions": [{"partition_index": 0, "offset": 0}] * 2}]},
            lambda of: [partition.partition_index for topic in of.topics for partition in topic.partitions],
        ),
        (
            ApiKey.DESCRIBE_TRANSACTIONS,
            0,
            {"transactional_ids": ["t", "t"]},
            lambda of: [state.transactional_id for state in of.transaction_states],
        ),
    ],
)
async def test_what_is_named_again_is_answered_once(broker: Any, key: ApiKey, version: int, asked: dict[str, Any], answers: Any) -> None:
    await broker.create("flights")
    found = answers(await broker.ask(key, version, **asked))
    assert len(found) == len(set(found)), found


@pytest.mark.parametrize("seconds", [60, 0], ids=["in time", "too late"])
@pytest.mark.parametrize(
    ("key", "version", "asked"),
    [
        (
            ApiKey.CREATE_TOPICS,
            7,
            {
                "topics": [
                    {"name": f"t{n}", "num_partitions": 1, "replication_factor": 7, "assignments": (), "configs": ()} for n in range(300)
                ],
                "validate_only": False,
            },
        ),
        (ApiKey.DELETE_TOPICS, 5, {"topic_names": tuple(f"t{n}" for n in range(300))}),
        (
            ApiKey.CREATE_PARTITIONS,
            3,
            {"topics": [{"name": f"t{n}", "count": 2, "assignments": None} for n in range(300)], "validate_only": False},
        ),
        (
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            0,
            {"topics": [{"name": f"t{n}", "partitions": [{"partition_index": 0, "replicas": (1,)}]} for n in range(300)]},
        ),
    ],
)
async def test_refusals_leave_nothing_to_the_garbage_collector(
    broker: Any, key: ApiKey, version: int, asked: dict[str, Any], seconds: int
) -> None:
    """Full collections are put off after a large request: a minute of what they alone can free was 460 MiB, and 1.4 s of the loop."""
    await broker.ask(key, version, timeout=seconds * 1000, **asked)
    left = []
    for _ in range(3):  # what a test before this one has left may become garbage meanwhile, and does so once
        gc.collect()
        gc.disable()
        try:
            await broker.ask(key, version, timeout=seconds * 1000, **asked)
            for _ in range(3):
                await asyncio.sleep(0.01)  # in which what continues ends
            left.append(gc.collect())
        finally:
            gc.enable()
    assert min(left) < 600, "two objects for each refusal, or more"


async def test_work_that_takes_longer_than_a_slice_lets_others_in() -> None:
    """The clock continues by two milliseconds with each look at it, so a slice of five ends after a few steps."""
    turns: list[str] = []
    loop = asyncio.get_running_loop()
    time = iter(range(1_000_000))

    def steps() -> Any:
        for number in range(6):
            turns.append(f"step {number}")
            yield
        return "done"

    def other() -> None:
        turns.append("someone else")

    loop.call_soon(other)
    with mock.patch.object(loop, "time", lambda: next(time) * 0.002):
        rest = begun(steps())
        assert asyncio.iscoroutine(rest)
        assert await rest == "done"
        loop.call_soon(other)
        assert [in_slice async for in_slice in in_slices(range(6))] == list(range(6))
    assert turns.index("someone else") < turns.index("step 5")
    assert turns.count("someone else") == 2


async def test_work_of_one_slice_is_done_at_once() -> None:
    def steps() -> Any:
        yield
        return "done"

    assert begun(steps()) == "done"


async def test_actions_have_their_results_in_order_and_so_many_go_on_at_once() -> None:
    under_way = most = 0

    async def action(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return number

    count = 3 * waiting.AT_ONCE
    results = await side_by_side(action, range(count))
    assert results == list(range(count))
    assert most == waiting.AT_ONCE
    assert await side_by_side(action, ()) == []

"""The virtual clock, and what may not be done under it."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.simulation.loop import NotSimulated, Stuck, VirtualLoop
from tests.simulation.nodes import Node, current_name


def loop() -> VirtualLoop:
    def unhandled(context: dict[str, Any]) -> None:
        raise AssertionError(context)

    return VirtualLoop(unhandled)  # type: ignore[abstract]


def run(story: Callable[[VirtualLoop], Awaitable[Any]]) -> Any:
    running = loop()
    try:
        return running.run_until_complete(story(running))
    finally:
        for task in running.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_an_hour_passes_at_once() -> None:
    async def story(running: VirtualLoop) -> float:
        await asyncio.sleep(3600)
        return running.time()

    assert run(story) == 3600


def test_callbacks_run_in_the_order_in_which_they_became_ready_and_timers_in_that_of_their_times() -> None:
    async def story(running: VirtualLoop) -> list[str]:
        seen: list[str] = []
        running.call_later(2, seen.append, "second")
        running.call_later(1, seen.append, "first")
        running.call_later(1, seen.append, "first, made later")
        running.call_soon(seen.append, "soon")
        running.call_soon(seen.append, "soon after")
        running.call_later(1.5, seen.append, "cancelled").cancel()
        await asyncio.sleep(3)
        return seen

    assert run(story) == ["soon", "soon after", "first", "first, made later", "second"]


def test_timeouts_groups_and_events_are_those_of_asyncio() -> None:
    async def story(running: VirtualLoop) -> list[float]:
        times = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        times.append(running.time())
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1))
            group.create_task(asyncio.sleep(2))
        times.append(running.time())
        await asyncio.gather(asyncio.sleep(3), asyncio.sleep(1))
        times.append(running.time())
        return times

    assert run(story) == [5, 7, 10]


def test_waiting_for_what_can_not_come_is_an_error_and_not_a_hang() -> None:
    async def story(running: VirtualLoop) -> None:
        await running.create_future()

    with pytest.raises(Stuck):
        run(story)


def test_who_is_busy_for_ever_is_stuck_though_a_timer_is_due_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(running: VirtualLoop) -> None:
        while True:
            done = running.create_future()
            running.call_later(0, done.set_result, None)
            await done

    monkeypatch.setattr("tests.simulation.loop.MOST_MEMORY_BYTES", 1)
    with pytest.raises(Stuck, match="bytes of memory"):
        run(story)
    monkeypatch.setattr("tests.simulation.loop.MOST_AT_ONE_TIME", 5_000)
    with pytest.raises(Stuck, match="time does not go on"):
        run(story)


def test_threads_and_sockets_are_refused_by_name() -> None:
    async def story(running: VirtualLoop) -> None:
        with pytest.raises(NotSimulated, match="run_in_executor"):
            await asyncio.to_thread(print)
        with pytest.raises(NotSimulated, match="create_connection"):
            await asyncio.open_connection("127.0.0.1", 9)
        with pytest.raises(NotSimulated, match="create_server"):
            await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        with pytest.raises(NotSimulated, match="subprocess_exec"):
            await asyncio.create_subprocess_exec("true")
        with socket.socket() as unused, pytest.raises(NotSimulated, match="sock_recv"):
            await running.sock_recv(unused, 1)

    run(story)


async def ticks(seen: list[tuple[float, str]]) -> None:
    try:
        while True:
            await asyncio.sleep(1)
            seen.append((asyncio.get_running_loop().time(), current_name()))
    finally:
        seen.append((-1.0, "it said goodbye"))


def test_nothing_of_a_killed_node_runs_any_more_not_even_its_last_words() -> None:
    async def story(running: VirtualLoop) -> list[tuple[float, str]]:
        seen: list[tuple[float, str]] = []
        node = Node("a")
        running.spawn(node, ticks(seen))
        await asyncio.sleep(2.5)
        running.kill(node)
        await asyncio.sleep(10)
        return list(seen)

    assert run(story) == [(1, "a"), (2, "a")]


@pytest.mark.parametrize("delay", [0, 0.5])
def test_an_error_of_a_killed_node_is_not_told_though_what_would_have_looked_at_it_does_not_run(delay: float) -> None:
    told: list[object] = []
    loop = VirtualLoop(lambda context: told.append(context.get("exception")))  # type: ignore[abstract]
    node = Node("a")

    async def fails() -> None:
        raise OSError("full")

    async def kills() -> None:
        loop.kill(node)

    async def waits_for_both() -> None:
        await asyncio.wait([asyncio.ensure_future(fails()), asyncio.ensure_future(asyncio.sleep(1))])

    async def story() -> None:
        loop.spawn(node, fails()).add_done_callback(asyncio.Task.exception, context=node.context)
        loop.spawn(node, waits_for_both())
        await asyncio.sleep(delay)
        loop.spawn(Node("b"), kills())
        await asyncio.sleep(1)

    loop.run_until_complete(loop.create_task(story()))
    loop.tasks.clear()
    gc.collect()
    assert not any(told)


def test_what_a_nodes_code_starts_belongs_to_the_node() -> None:
    async def story(running: VirtualLoop) -> list[str]:
        seen: list[str] = []

        async def starts_others() -> None:
            asyncio.get_running_loop().call_later(1, lambda: seen.append(f"timer of {current_name()}"))
            asyncio.ensure_future(asyncio.sleep(2)).add_done_callback(lambda _: seen.append(f"task of {current_name()}"))

        node = Node("a")
        running.spawn(node, starts_others())
        await asyncio.sleep(1.5)
        running.kill(node)
        await asyncio.sleep(5)
        return seen

    assert run(story) == ["timer of a"]


def test_a_paused_node_goes_on_later_with_all_that_became_ready_in_order() -> None:
    async def story(running: VirtualLoop) -> list[str]:
        seen: list[str] = []
        node = Node("a")
        for second in (1, 2, 3):
            running.call_later(second, seen.append, f"due at {second}", context=node.context.copy())
        await asyncio.sleep(1.5)
        running.pause(node)
        await asyncio.sleep(5)
        seen.append("nothing for 5 s")
        running.resume(node)
        await asyncio.sleep(0)
        return seen

    assert run(story) == ["due at 1", "nothing for 5 s", "due at 2", "due at 3"]


def test_a_set_of_tasks_has_the_order_of_their_making() -> None:
    """By their addresses it would be another one in each run."""

    async def story(running: VirtualLoop) -> list[int]:
        tasks = [running.create_task(asyncio.sleep(1, index)) for index in range(40)]
        done, _ = await asyncio.wait(tasks)
        return [hash(task) for task in done]

    first, second = run(story), run(story)
    assert [offset - first[0] for offset in first] == [offset - second[0] for offset in second]

"""The event loop, measured while it is idle, busy and blocked."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref

import pytest
from tests.loops import LoopClock, until

from ottla.metrics import service
from ottla.metrics.cells import BOUNDS, HistogramSnapshot
from ottla.metrics.family import Family
from ottla.serving import loop as measured
from ottla.serving.loop import LoopProbe, waiting_time


def longest(snapshot: HistogramSnapshot) -> float:
    """The bound below the highest bucket that holds something."""
    index = max(index for index, count in enumerate(snapshot.buckets) if count)
    return BOUNDS[index - 1] if index else 0.0


async def test_a_loop_that_was_blocked_was_late_by_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: its clock is put forward by four probes, which are so far from each other that the next one does not come."""
    monkeypatch.setattr(measured, "PROBE_SECONDS", 600.0)
    clock, probe = LoopClock(), LoopProbe()
    probe.start()
    try:
        clock.put_forward(600.0)
        await until(lambda: probe.lag.snapshot().count == 1)
        assert longest(probe.lag.snapshot()) < BOUNDS[-1]
        clock.put_forward(4 * 600.0)
        await until(lambda: probe.lag.snapshot().count > 1)
        await asyncio.sleep(0.05)
        assert longest(probe.lag.snapshot()) == BOUNDS[-1]
        assert probe.lag.snapshot().count == 2, "it was late once, not for each probe that was missed"
    finally:
        probe.close()


def test_the_busy_ratio_is_what_is_not_spent_waiting() -> None:
    """The time that sockets and timers are waited for is time to spare; all else is not, whether it computes or blocks."""

    async def busy_share(work: float, rest: float) -> float:
        probe = LoopProbe()
        probe.start()
        try:
            for _ in range(10):
                time.sleep(work)  # noqa: ASYNC251 - stands for work
                await asyncio.sleep(rest)
            ratio = probe.busy_ratio
            assert ratio is not None
            return ratio
        finally:
            probe.close()

    # On a machine that has no time to spare a rest takes longer than it should, and work does too: now and then one of them is all.
    assert any(asyncio.run(busy_share(0.03, 0.0)) > 0.9 for _ in range(10))
    assert any(0.0 <= asyncio.run(busy_share(0.0, 0.05)) < 0.6 for _ in range(10))


async def test_a_loop_is_left_as_it_was_found_when_the_last_one_has_gone() -> None:
    """Brokers of a test cluster share one loop; timing it twice would count each wait twice."""
    loop = asyncio.get_running_loop()
    selector = loop._selector  # type: ignore[attr-defined]
    probes = [LoopProbe() for _ in range(3)]
    for probe in probes:
        probe.start()
    assert "select" in vars(selector)
    timing = waiting_time(loop)
    assert timing is not None
    began, waited = loop.time(), timing.seconds
    await asyncio.sleep(0.1)
    assert timing.seconds - waited <= loop.time() - began
    for probe in probes:
        probe.close()
        probe.close()
    assert "select" not in vars(selector)


def test_a_loop_that_was_probed_can_go() -> None:
    """A test run has thousands."""

    async def probed() -> weakref.ref[asyncio.AbstractEventLoop]:
        probe = LoopProbe()
        probe.start()
        probe.close()
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(probed())
    gc.collect()
    assert loop() is None


async def test_a_loop_without_a_selector_has_a_lag_and_no_ratio() -> None:
    """As a simulation's; what cannot be told is left out."""
    loop = asyncio.get_running_loop()
    probe = LoopProbe()
    selector = loop._selector  # type: ignore[attr-defined]
    del loop._selector  # type: ignore[attr-defined]
    try:
        probe.start()
    finally:
        loop._selector = selector  # type: ignore[attr-defined]
    families = [family for family in probe.collect() if isinstance(family, Family)]
    probe.close()
    assert [family.metric for family in families] == [service.EVENT_LOOP_LAG]


def test_the_window_covers_a_scrape_interval_and_no_more_is_kept() -> None:
    probe = LoopProbe()
    assert probe._moments.maxlen is not None
    assert (probe._moments.maxlen - 1) * measured.PROBE_SECONDS * measured.TICKS == measured.WINDOW_SECONDS

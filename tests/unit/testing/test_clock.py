"""The clock that tests turn."""

import pytest

from ottla.testing import ManualClock


def test_it_stands_still_until_it_is_turned() -> None:
    clock = ManualClock(1_000)
    assert (clock.time_ms(), clock.monotonic()) == (1_000, 0.0)
    clock.advance(seconds=1.5)
    clock.advance(milliseconds=250)
    assert (clock.time_ms(), clock.monotonic()) == (2_750, 1.75)


def test_the_wall_clock_may_be_set_back_and_the_monotonic_one_does_not_notice() -> None:
    clock = ManualClock(1_000)
    clock.set_wall_clock(10)
    assert (clock.time_ms(), clock.monotonic()) == (10, 0.0)


def test_time_does_not_run_back() -> None:
    with pytest.raises(ValueError, match="-1 ms"):
        ManualClock().advance(milliseconds=-1)

"""What `--throttle` takes."""

from __future__ import annotations

import pytest

from ottla.cli.errors import UsageError
from ottla.cli.reassign import parsed_rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1", 1), ("50000000", 50_000_000), ("50MB", 50_000_000), ("50MiB", 50 * 1024**2), ("1.5 GiB/s", 3 * 1024**3 // 2), ("10k", 10_000)],
)
def test_rates_are_bytes_a_second_with_or_without_a_unit(text: str, rate: int) -> None:
    assert parsed_rate(text) == rate


@pytest.mark.parametrize("text", ["0", "-1", "fast", "50 MBit", "", "1e6", "8589934592GiB"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--throttle"):
        parsed_rate(text)

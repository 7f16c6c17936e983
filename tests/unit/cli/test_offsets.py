"""Where `ottla consume` starts and ends."""

import pytest

from ottla.cli.errors import UsageError
from ottla.cli.offsets import Beginning, End, Offset, Since, Span, Start, Tail, first_offset, span, timestamp_ms


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("beginning", Beginning()),
        ("earliest", Beginning()),
        ("End", End()),
        ("0", Offset(0)),
        ("1234", Offset(1234)),
        ("-5", Tail(5)),
        ("s@1372896000000", Since(1372896000000)),
        ("s@2013-07-04T00:00:00Z", Since(1372896000000)),
        ("s@2013-07-04T02:00:00+02:00", Since(1372896000000)),
        ("s@-1", Since(0)),  # to a broker -1 is where a partition ends
        ("s@1969-12-31T23:59:59.999Z", Since(0)),
    ],
)
def test_each_way_to_say_a_start_is_understood(text: str, start: Start) -> None:
    assert span([text]) == Span(start)


def test_a_start_and_an_end_by_time_go_together() -> None:
    """As kcat's `-o s@… -o e@…`."""
    assert span(["s@1000", "e@2000"]) == Span(Since(1000), 2000)
    assert span([]) == Span(Beginning(), None)
    assert span(["e@2000"]) == Span(Beginning(), 2000)


@pytest.mark.parametrize("values", [["begin"], ["1.5"], ["--3"], ["s@yesterday"], ["0", "5"], ["e@1", "e@2"], [""]])
def test_what_can_not_be_meant_is_refused_and_quoted(values: list[str]) -> None:
    with pytest.raises(UsageError):
        span(values)


def test_a_time_without_a_zone_is_the_machines() -> None:
    from datetime import datetime

    assert timestamp_ms("2013-07-04T09:30") == int(datetime(2013, 7, 4, 9, 30).astimezone().timestamp() * 1000)


@pytest.mark.parametrize(
    ("start", "at_time", "offset"),
    [
        (Beginning(), None, 100),
        (End(), None, 200),
        (Offset(150), None, 150),
        (Offset(7), None, 100),
        (Offset(900), None, 200),
        (Tail(5), None, 195),
        (Tail(5000), None, 100),
        (Since(1), 120, 120),
        (Since(1), None, 200),
    ],
)
def test_a_start_is_kept_inside_the_log(start: Start, at_time: int | None, offset: int) -> None:
    """The log has offsets 100 to 199. An offset that is gone is moved to the first that is left."""
    assert first_offset(start, 100, 200, at_time) == offset


@pytest.mark.parametrize("text", ["99999999999999999999", "--1", "²"])
def test_what_is_no_time_of_a_record_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="neither milliseconds"):
        timestamp_ms(text)

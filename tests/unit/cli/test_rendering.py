"""How `ottla consume` prints, and that `ottla produce` reads it again."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ottla.cli.errors import UsageError
from ottla.cli.produce import from_json
from ottla.cli.rendering import ReadMessage, as_json, by_format, columns, unescaped

MESSAGE = ReadMessage("clicks", 3, 41, 1372896000123, False, b"ada", b"hello", [("lang", b"en"), ("empty", None)])
NULLS = ReadMessage("clicks", 0, 0, None, False, None, None, [])


def test_by_default_a_line_is_the_value_and_nothing_else() -> None:
    render = columns(position=False, timestamp=False, headers=False, key=False, null=b"")
    assert render(MESSAGE) == b"hello\n"
    assert render(NULLS) == b"\n"


def test_columns_come_in_one_order_whatever_order_the_options_had() -> None:
    render = columns(position=True, timestamp=True, headers=True, key=True, null=b"NULL")
    assert render(MESSAGE) == b"clicks-3@41\t2013-07-04T00:00:00.123Z\tlang=en,empty=NULL\tada\thello\n"
    assert render(NULLS) == b"clicks-0@0\t-\t\tNULL\tNULL\n"


@pytest.mark.parametrize("timestamp_ms", [253_402_300_800_000, (1 << 63) - 1, -(1 << 63)])
def test_a_time_that_no_calendar_has_is_printed_in_milliseconds(timestamp_ms: int) -> None:
    """A client that stamps in nanoseconds: one such message was a traceback, and those behind it were not shown."""
    render = columns(position=False, timestamp=True, headers=False, key=False, null=b"")
    assert render(MESSAGE._replace(timestamp_ms=timestamp_ms)) == b"%d\thello\n" % timestamp_ms


def test_bytes_that_are_no_text_are_printed_as_they_are() -> None:
    render = columns(position=False, timestamp=False, headers=False, key=True, null=b"")
    assert render(ReadMessage("t", 0, 0, 0, False, b"\xff\x00", b"\xfe", [])) == b"\xff\x00\t\xfe\n"


def test_the_format_is_kcats() -> None:
    """kcat(1), 'Format string tokens'."""
    render = by_format(r"%t [%p] %o %T: %k(%K)=%s(%S) %h 100%%\n", b"NULL")
    assert render(MESSAGE) == b"clicks [3] 41 1372896000123: ada(3)=hello(5) lang=en,empty=NULL 100%\n"
    assert render(NULLS) == b"clicks [0] 0 -1: NULL(-1)=NULL(-1)  100%\n"


@pytest.mark.parametrize("text", ["%x", "50%", "%s %"])
def test_a_token_that_the_format_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        by_format(text, b"")


@pytest.mark.parametrize(("text", "expected"), [(r"a\tb", "a\tb"), (r"\\n", r"\n"), ("\\", "\\"), (r"\q", r"\q"), (r"%%", "%%")])
def test_escapes(text: str, expected: str) -> None:
    assert unescaped(text) == expected


def test_json_is_one_line_and_names_everything() -> None:
    line = as_json(MESSAGE)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert json.loads(line) == {
        "topic": "clicks",
        "partition": 3,
        "offset": 41,
        "timestamp": 1372896000123,
        "timestamp_type": "create",
        "key": "ada",
        "value": "hello",
        "headers": [{"name": "lang", "value": "en"}, {"name": "empty", "value": None}],
    }


part = some.none() | some.binary(max_size=40) | some.text(max_size=20).map(str.encode)


@given(key=part, value=part, headers=some.lists(some.tuples(some.text(max_size=10), part), max_size=3), timestamp=some.integers(0, 2**45))
def test_what_consume_prints_as_json_produce_reads_back(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp: int
) -> None:
    """`ottla consume a --json | ottla produce b --json` is a copy, whatever the bytes are."""
    read = from_json(as_json(ReadMessage("t", 0, 0, timestamp, False, key, value, headers)), 1)
    assert (read.key, read.value, list(read.headers), read.timestamp_ms) == (key, value, headers, timestamp)

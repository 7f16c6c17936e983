"""How a line becomes a message."""

import pytest

from ottla.cli.errors import CommandFailed
from ottla.cli.produce import NewMessage, from_json, from_line, headers_of


@pytest.mark.parametrize(
    ("line", "delimiter", "empty_is_null", "message"),
    [
        (b"hello", None, False, NewMessage(None, b"hello")),
        (b"ada:hello", None, False, NewMessage(None, b"ada:hello")),
        (b"ada:hello", b":", False, NewMessage(b"ada", b"hello")),
        (b"ada:a:b", b":", False, NewMessage(b"ada", b"a:b")),
        (b"hello", b":", False, NewMessage(None, b"hello")),
        (b":hello", b":", False, NewMessage(b"", b"hello")),
        (b":hello", b":", True, NewMessage(None, b"hello")),
        (b"ada:", b":", False, NewMessage(b"ada", b"")),
        (b"ada:", b":", True, NewMessage(b"ada", None)),
        (b"", None, False, NewMessage(None, b"")),
        (b"", None, True, NewMessage(None, None)),
        (b"ada::hello", b"::", False, NewMessage(b"ada", b"hello")),
        (b"\xff\t\xfe", b"\t", False, NewMessage(b"\xff", b"\xfe")),
    ],
)
def test_key_and_value_of_a_line(line: bytes, delimiter: bytes | None, empty_is_null: bool, message: NewMessage) -> None:
    assert from_line(line, delimiter, empty_is_null) == message


def test_a_header_may_have_no_value_or_an_empty_one() -> None:
    assert headers_of(["lang=en", "flag", "empty=", "sum=1=1"]) == [("lang", b"en"), ("flag", None), ("empty", b""), ("sum", b"1=1")]


def test_json_written_by_hand_may_leave_things_out_and_have_any_value() -> None:
    assert from_json(b'{"value": "hello"}', 1) == NewMessage(None, b"hello", [])
    assert from_json(b'{"key": 7, "value": {"a": [1]}}', 1) == NewMessage(b"7", b'{"a": [1]}', [])


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        b"[1]",
        b"[" * 100_000,
        b'{"value_base64": "!"}',
        b'{"headers": [{"value": "no name"}]}',
        b'{"headers": [{"name": "\\ud800"}]}',
        b'{"timestamp": "noon"}',
        b'{"timestamp": Infinity}',
        b'{"timestamp": 9223372036854775808}',
    ],
)
def test_a_line_that_is_no_message_is_refused_with_its_number(line: bytes) -> None:
    with pytest.raises(CommandFailed, match="line 12 "):
        from_json(line, 12)

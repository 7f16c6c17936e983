"""Tables and numbers as people read them."""

import json

import pytest

from ottla.cli.output import Count, bytes_of, count_of, say, say_json, table


def test_columns_are_as_wide_as_they_need_and_numbers_are_aligned_to_the_right() -> None:
    """Digits are separated of a Count alone: runbooks have an offset typed into `transactions abort`, a window into `audit missing`."""
    text = table(("topic", "end offset", "isr"), [("clicks", 1234567, (1, 2)), ("a", None, ())])
    assert text.splitlines() == [
        "TOPIC   END OFFSET  ISR",
        "clicks     1234567  1,2",
        "a                -",
    ]
    assert table(("carrier", "flights"), [("UA", Count(58665)), ("OO", Count(32))]).splitlines()[1:] == [
        "UA        58,665",
        "OO            32",
    ]
    assert table(("a", "b"), []) == "A  B"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (82_700_000, "78.9 MiB"), (5 * 1024**3, "5.0 GiB"), (3000 * 1024**4, "3,000.0 TiB")],
)
def test_sizes(size: int, text: str) -> None:
    assert bytes_of(size) == text


def test_plurals() -> None:
    assert [count_of(1, "batch", "batches"), count_of(2, "batch", "batches"), count_of(0, "topic"), count_of(1234, "topic")] == [
        "1 batch",
        "2 batches",
        "0 topics",
        "1,234 topics",
    ]


def test_names_from_outside_move_no_cursor_and_begin_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(table(("group",), [("a\n\x1b[2Jb\u202e",)]))
    say_json({"group": "a\x9b\x1b"})
    shown = capsys.readouterr().out
    assert shown == 'GROUP\na\\u000a\\u001b[2Jb\\u202e\n{\n  "group": "a\\u009b\\u001b"\n}\n'
    assert json.loads(shown.partition("\n")[2].partition("\n")[2]) == {"group": "a\x9b\x1b"}

"""Java's properties files. The expected readings are those of `java.util.Properties.load`'s documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.config import properties
from ottla.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Truth = Beauty", {"Truth": "Beauty"}),
        (" Truth:Beauty", {"Truth": "Beauty"}),
        ("Truth\t\t\t:Beauty", {"Truth": "Beauty"}),
        ("Truth Beauty", {"Truth": "Beauty"}),
        ("cheeses", {"cheeses": ""}),
        ("cheeses=", {"cheeses": ""}),
        ("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}),
        ("a==b", {"a": "=b"}),
        ("# a=1\n! b=2\n\n   # c=3\nd=4", {"d": "4"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("fruits apple, banana, \\\n       pear, \\\n  # not a comment", {"fruits": "apple, banana, pear, # not a comment"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a\\ b\\=c=d", {"a b=c": "d"}),
        ("a=tab\\there\\u00e9\\q", {"a": "tab\thereéq"}),
        ("a=\\uD83D\\uDE00", {"a": "😀"}),
        ("a=x  ", {"a": "x  "}),
        ("a=last\\", {"a": "last"}),
    ],
)
def test_a_file_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    """Separators, comments, continuation lines and escapes."""
    assert dict(properties.parse(text)) == expected


def test_each_name_knows_its_line_though_lines_before_it_were_joined() -> None:
    parsed = properties.parse("# a comment\na=1,\\\n  2,\\\n  3\n\nb=4\n", "server.properties")
    assert (parsed.place_of("a"), parsed.place_of("b")) == ("server.properties:2", "server.properties:6")


def test_a_name_given_twice_is_refused_with_both_lines() -> None:
    """Java lets the last one win, unseen; every other mistake of the file is told too."""
    with pytest.raises(ConfigurationError) as refused:
        properties.parse("a=1\nb=2\na=3\nc=\\u12x4\n=5\n", "f")
    assert str(refused.value).splitlines() == [
        "f:3: 'a' was set in line 1 already",
        "f:4: \\u12x4 is not an escape of four hexadecimal digits",
        "f:5: a value without a name",
    ]


def test_a_file_that_is_not_there_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        properties.load(tmp_path / "none.properties")


@pytest.mark.parametrize("content", [b"# M\xfcnchen\na=\xe9", b"# M\xc3\xbcnchen\na=\xc3\xa9", b"\xef\xbb\xbfa=\xc3\xa9"])
def test_a_file_is_utf_8_or_as_for_java_latin_1(tmp_path: Path, content: bytes) -> None:
    """A file of Kafka with such a letter in a comment kept a broker from starting, and so did the mark that Windows' editors begin with."""
    (tmp_path / "server.properties").write_bytes(content)
    assert dict(properties.load(tmp_path / "server.properties")) == {"a": "é"}


def _escaped(text: str) -> str:
    return "".join(f"\\u{unit:04x}" for unit in _utf_16_units(text))


def _utf_16_units(text: str) -> list[int]:
    encoded = text.encode("utf-16-be")
    return [int.from_bytes(encoded[at : at + 2], "big") for at in range(0, len(encoded), 2)]


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8"))))
def test_what_is_written_with_escapes_only_comes_back(values: dict[str, str]) -> None:
    """Property: any name and any value survive, since every character has an escape."""
    text = "\n".join(f"{_escaped(name)}={_escaped(value)}" for name, value in values.items())
    assert dict(properties.parse(text)) == values


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """Property: nothing but a ConfigurationError comes out."""
    try:
        properties.parse(text)
    except ConfigurationError:
        return

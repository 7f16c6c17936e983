"""How a setting is declared, read from text and shown again.

    log_segment_bytes: int = setting("log.segment.bytes", "int", default=GIB, at_least=14, doc="…")

A class of settings is a frozen dataclass over `Settings`; an attribute is the property's name with `_` for `.`.
The declaration stays reachable at class level (`definitions()`), for DescribeConfigs and the generated page.
Text is read as Kafka's `ConfigDef` reads it: trimmed, 32 and 64 bit integers, lists split at commas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import isfinite
from types import MappingProxyType
from typing import Any, Final, Literal

from ottla.config.properties import pem_in_lines
from ottla.errors import ConfigurationError

Kind = Literal["boolean", "int", "long", "double", "string", "list", "password"]
Check = Callable[[Any], str]  # gives the complaint, or ""
Dynamic = Literal["read-only", "per-broker", "cluster-wide"]

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1  # Kafka's way to say "never" or "no limit"

_INTEGER_BITS: Final = {"int": 32, "long": 64}
_METADATA_KEY: Final = "ottla.setting"


@dataclass(frozen=True, slots=True, repr=False)
class Password:
    """A secret: its value is never part of a log line, a traceback or an answer."""

    value: str

    def __repr__(self) -> str:
        return "[hidden]"

    __str__ = __repr__


@dataclass(frozen=True, slots=True)
class Synonym:
    """The broker's setting that a topic's falls back to; `factor` turns its unit into the topic's."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class SettingDefinition:
    """Everything that is known of one setting but its value."""

    name: str
    kind: Kind
    default: Any
    doc: str
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    dynamic: Dynamic = "read-only"
    aliases: tuple[str, ...] = ()
    synonyms: tuple[Synonym, ...] = ()  # of a topic's setting, first choice first
    without_effect: str = ""  # why it is accepted although it changes nothing
    check: Check | None = None
    in_capitals: bool = False  # its choices; a text may have any letters, as Kafka takes it (`ConfigDef.CaseInsensitiveValidString`)

    @property
    def attribute(self) -> str:
        """The name that it has in Python."""
        return self.name.replace(".", "_").replace("-", "_")

    @property
    def sensitive(self) -> bool:
        """Whether the value is hidden from everybody who asks."""
        return self.kind == "password"

    def parse(self, text: str) -> Any:
        """The value that a text stands for; ConfigurationError, without a place, when it stands for none."""
        text = text.strip()
        try:
            value = _PARSERS[self.kind](text.upper() if self.in_capitals else text)
        except ValueError:
            raise ConfigurationError(f"{self.name} = {self._shown(text)}: not {_KIND_IN_WORDS[self.kind]}") from None
        if complaint := self.complaint_about(value):
            raise ConfigurationError(f"{self.name} = {self._shown(text)}: {complaint}")
        return value

    def text(self, value: Any) -> str | None:
        """A value as DescribeConfigs and a properties file show it; None for none and for a secret."""
        if value is None or isinstance(value, Password):
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def complaint_about(self, value: Any) -> str:
        """What is wrong with a value of the right kind, or an empty text."""
        if self.kind in _INTEGER_BITS and not -(1 << _INTEGER_BITS[self.kind] - 1) <= value < 1 << _INTEGER_BITS[self.kind] - 1:
            return f"does not fit in {_INTEGER_BITS[self.kind]} bits"
        if self.at_least is not None and not value >= self.at_least:  # which is not so of NaN either
            return f"must be at least {self.at_least}"
        if self.at_most is not None and not value <= self.at_most:
            return f"must be at most {self.at_most}"
        if self.choices:
            for item in value if isinstance(value, tuple) else (value,):
                if item not in self.choices:
                    return f"must be one of {', '.join(self.choices)}{nearest(item, self.choices)}"
        return self.check(value) if self.check else ""

    def _shown(self, text: str) -> str:
        return "[hidden]" if self.sensitive else repr(text)


def setting(
    name: str,
    kind: Kind,
    *,
    default: Any,
    doc: str,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: Iterable[str] = (),
    dynamic: Dynamic = "read-only",
    aliases: Iterable[str] = (),
    synonyms: Iterable[Synonym] = (),
    without_effect: str = "",
    check: Check | None = None,
    in_capitals: bool = False,
) -> Any:
    """Declares a setting as a field of a dataclass of settings.

    Args:
        name: Kafka's name of it.
        kind: Kafka's type of it.
        default: a value, not a text; None when it may stay unset.
        doc: one or two sentences for the operator; docs/configuration.md is made of them.
        at_least: the smallest value allowed.
        at_most: the largest value allowed.
        choices: the only texts allowed (for a list: of each element).
        dynamic: whether it can change while the broker runs, and for whom.
        aliases: other names under which it is accepted.
        synonyms: for a topic's setting, the broker's that it falls back to.
        without_effect: why it changes nothing here, when it does not.
        check: gives what is wrong with a value, or an empty text.
        in_capitals: its choices are; a text for them may have any letters.
    """
    definition = SettingDefinition(
        name,
        kind,
        default,
        doc,
        at_least,
        at_most,
        tuple(choices),
        dynamic,
        tuple(aliases),
        tuple(synonyms),
        without_effect,
        check,
        in_capitals,
    )
    return dataclasses.field(default=default, metadata={_METADATA_KEY: definition})


class Settings:
    """What every class of settings can do. Its sub-classes are frozen dataclasses."""

    __slots__ = ()

    @classmethod
    @cache
    def definitions(cls) -> Mapping[str, SettingDefinition]:
        """Each setting of this class by its name, in the order of declaration."""
        found = (field.metadata.get(_METADATA_KEY) for field in dataclasses.fields(cls))  # type: ignore[arg-type]  # each subclass is a dataclass
        return MappingProxyType({declared.name: declared for declared in found if declared is not None})

    def value_of(self, name: str) -> Any:
        """The value under Kafka's name."""
        return getattr(self, self.definitions()[name].attribute)

    def text_of(self, name: str) -> str | None:
        """The value under Kafka's name as a text; None when there is none or it is a secret."""
        return self.definitions()[name].text(self.value_of(name))


def unknown_setting(name: str, known: Iterable[str]) -> str:
    """The complaint about a name that nothing has, with the nearest name that something has."""
    return f"unknown setting '{name}'{nearest(name, known)}"


# What is longer is no misspelt name; comparing costs as much as it is long.
MAX_MISSPELT: Final = 100


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean '…'?`, or nothing when no known word is near."""
    if len(word) > MAX_MISSPELT:
        return ""
    from difflib import get_close_matches  # imported late: only a mistake needs it

    matches = get_close_matches(word.lower(), list(known), n=1, cutoff=0.6) or get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{matches[0]}'?" if matches else ""


def _boolean(text: str) -> bool:
    match text.lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError(text)


def _integer(text: str) -> int:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit()):  # int() also takes '1_000', which Kafka's tools would refuse
        raise ValueError(text)
    return int(text)


def _double(text: str) -> float:
    number = float(text)
    if not isfinite(number) or "_" in text:  # of NaN no bound says that it is outside, and no count comes of infinity
        raise ValueError(text)
    return number


def _list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text else ()


_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "boolean": _boolean,
    "int": _integer,
    "long": _integer,
    "double": _double,
    "string": str,
    "list": _list,
    "password": lambda text: Password(pem_in_lines(text)),
}
_KIND_IN_WORDS: Final = {
    "boolean": "true or false",
    "int": "a whole number",
    "long": "a whole number",
    "double": "a number",
}

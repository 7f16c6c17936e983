"""Subjects and the contexts that they are in: `subject` is in the default context, `:.staging:subject` in `.staging`.

    :.:orders             orders, in the default context
    :.staging:            the context `.staging` itself, as a scope of config and mode
    :.__GLOBAL:           what holds for all contexts
    :*:ord                in a prefix: in every context

Source: `QualifiedSubject.java` in confluentinc/schema-registry.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

DEFAULT_CONTEXT: Final = "."
GLOBAL_CONTEXT: Final = ".__GLOBAL"
GLOBAL_SCOPE: Final = ":.__GLOBAL:"
ANY_CONTEXT: Final = ":*:"
# The scope of the default context; Confluent's key of it has no subject.
TOP: Final = ""
MAX_SUBJECT_CHARACTERS: Final = 2_048

_NAMES_KEPT: Final = 10_000  # one request takes the same name apart a dozen times
_RESERVED: Final = frozenset({"__GLOBAL", "__EMPTY"})
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Name(NamedTuple):
    """A subject's name taken apart; an empty subject stands for the context."""

    context: str
    subject: str

    @property
    def scope(self) -> str:
        """The context as a scope of config and mode, `TOP` for the default one."""
        return TOP if self.context == DEFAULT_CONTEXT else f":{self.context}:"

    @property
    def qualified(self) -> str:
        """The whole name, in one form only."""
        return self.scope + self.subject


@lru_cache(_NAMES_KEPT)
def parse(name: str) -> Name:
    """Takes a name apart."""
    if not name.startswith(":"):
        return Name(DEFAULT_CONTEXT, name)
    if name.startswith(":."):
        context, _, subject = name[1:].partition(":")
        return Name(context, subject)
    if name.startswith(ANY_CONTEXT):
        return Name("*", name[len(ANY_CONTEXT) :])
    return Name(DEFAULT_CONTEXT, name)


def normal(name: str) -> str:
    """The one form of a name: without the default context."""
    return parse(name).qualified if name.startswith(":") else name


def context_of(name: str) -> str:
    """The context that a subject is in."""
    return parse(name).context if name.startswith(":") else DEFAULT_CONTEXT


def context_named(text: str) -> str:
    """The context that a path means: `staging`, `.staging` and `:.staging:` are the same.

    Raises:
        ValueError: a colon stands within it.
    """
    context = text.removeprefix(":").removesuffix(":")
    if ":" in context:
        raise ValueError(text)
    return context if context.startswith(".") else f".{context}"


def within(context: str, subject: str) -> str:
    """A name, put into a context unless it names one itself."""
    if context == DEFAULT_CONTEXT or subject.startswith((":.", ANY_CONTEXT)):
        return subject
    return f":{context}:{subject}"


def has_prefix(name: str, prefix: str) -> bool:
    """Whether a name begins so; a prefix without a context is one of the default context, and `:*:` is any."""
    (context, subject), wanted = parse(name), parse(prefix)
    return wanted.context in ("*", context) and subject.startswith(wanted.subject)


def is_valid(name: str, *, is_scope: bool = False, may_be_empty: bool = True) -> bool:
    """Whether a subject (or a scope of config and mode) may be called so. Of `*` is said what is said of an empty one."""
    if len(name) > MAX_SUBJECT_CHARACTERS or (not name.isprintable() and _CONTROL.search(name)):
        return False
    context, subject = parse(name)
    if not may_be_empty and subject in ("", "*"):
        return False
    return subject not in _RESERVED and context != "*" and (is_scope or context != GLOBAL_CONTEXT)


@lru_cache(_NAMES_KEPT)
def scopes(name: str) -> tuple[str, ...]:
    """Where config and mode of a subject or a scope are looked for, the nearest first."""
    parsed = parse(name)
    return tuple(dict.fromkeys((parsed.qualified, parsed.scope, GLOBAL_SCOPE)))

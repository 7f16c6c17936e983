"""The cluster's topics as consumer groups see them, and which of them a regular expression stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol
from uuid import UUID

from ottla.errors import InvalidRegularExpression
from ottla.model import TopicDescription

# RE2's bound for one compiled expression. It never takes more than linear time, whatever is asked of it.
MAX_REGEX_MEMORY: Final = 1 << 22
# Of the record's key, whose strings have 16 bits of length.
MAX_REGEX_BYTES: Final = 1 << 14


class Topics(Protocol):
    """Where a group looks topics up."""

    def topic(self, name: str) -> TopicDescription | None: ...

    def topic_name(self, topic_id: UUID) -> str | None: ...

    def is_unread(self, name: str) -> bool:
        """Whether there is a topic of which nothing but the name is known."""
        ...

    def names(self) -> Iterable[str]:
        """The topics that a regular expression can stand for."""
        ...


def compiled(regex: str) -> Any:
    """The expression, in the syntax of RE2, as Kafka's (KIP-848).

    Raises:
        InvalidRegularExpression: it is none, or is too large.
    """
    import re2  # imported late: only groups that subscribe so need it

    if len(regex.encode()) > MAX_REGEX_BYTES:
        raise InvalidRegularExpression(f"a regular expression of more than {MAX_REGEX_BYTES} bytes")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_REGEX_MEMORY
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise InvalidRegularExpression(f"SubscribedTopicRegex {regex!r} is not a valid regular expression: {reason}") from error


MaySee = Callable[[str], bool]


def resolved(regex: str, names: Iterable[str], may_see: MaySee) -> frozenset[str]:
    """The topics that the whole expression matches, of those that the member may see."""
    pattern = compiled(regex)
    return frozenset(name for name in names if pattern.fullmatch(name) and may_see(name))

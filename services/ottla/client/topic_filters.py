"""Which topics a group reads, by a regular expression: all that match it, or all that do not.

The expression has to match the whole name; a comma stands for "or", as in Kafka 0.8's `TopicFilter`. It is matched by RE2, because every
consumer of a group matches the expressions of all others, and one of them must not be able to stop the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from ottla.errors import ConfigurationError
from ottla.model import INTERNAL_TOPICS

MEMORY = 1 << 20


@dataclass(frozen=True)
class TopicFilter:
    """A regular expression over names of topics. Raises ConfigurationError when it is none.

    Args:
        expression: in RE2's syntax.
    """

    pattern: ClassVar[str]  # what a consumer's znode calls it
    expression: str

    def __post_init__(self) -> None:
        self._compiled  # noqa: B018

    def allows(self, topic: str, exclude_internal_topics: bool) -> bool:
        """Whether the group reads the topic."""
        if exclude_internal_topics and topic in INTERNAL_TOPICS:
            return False
        return self._is_wanted(self._compiled.fullmatch(topic) is not None)

    def _is_wanted(self, matches: bool) -> bool:
        raise NotImplementedError

    @cached_property
    def _compiled(self) -> Any:
        import re2

        options = re2.Options()
        options.max_mem = MEMORY
        options.log_errors = False
        try:
            return re2.compile("".join(self.expression.split()).replace(",", "|").strip("\"'"), options)
        except (re2.error, UnicodeEncodeError) as error:
            raise ConfigurationError(f"{self.expression!r} is no regular expression of RE2: {error}") from None


class WhiteList(TopicFilter):
    """The topics whose names match."""

    pattern = "white_list"

    def _is_wanted(self, matches: bool) -> bool:
        return matches


class BlackList(TopicFilter):
    """The topics whose names do not match."""

    pattern = "black_list"

    def _is_wanted(self, matches: bool) -> bool:
        return not matches

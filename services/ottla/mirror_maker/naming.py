"""Which topics are mirrored, and what they are called in the target: the replication policies of MirrorMaker 2, and a pattern.

    prefix      clicks of A is A.clicks in B (`DefaultReplicationPolicy`); what came from B, by whatever way, is not sent back
    identity    clicks is clicks (`IdentityReplicationPolicy`)
    regex       `([a-z]+)-(.*)` to `\\2.\\1`

Source: Kafka's connect/mirror, `ReplicationPolicy`, `DefaultTopicFilter`, `DefaultGroupFilter` (KIP-382).

Pure: names in, names out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.errors import ConfigurationError, InvalidTopic
from ottla.model import MAX_TOPIC_NAME_LENGTH

HEARTBEATS: Final = "heartbeats"
MAP_PREFIX: Final = "ottla-mirror-"
# What is internal to a cluster, whatever `topics.exclude` and `groups.exclude` are.
INTERNAL_TOPICS: Final = (r".*[-.]internal", r"\..*", r"__.*", rf"{MAP_PREFIX}.*")
INTERNAL_GROUPS: Final = (rf"{MAP_PREFIX}.*",)
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


class Naming(Protocol):
    """What topics of the source are called in the target."""

    def target_of(self, topic: str) -> str | None:
        """The name in the target; None for a topic that is not to be copied.

        Raises:
            InvalidTopic: no topic can have the name.
        """
        ...


@dataclass(frozen=True, slots=True)
class PrefixNaming:
    """`A.clicks`.

    Attributes:
        source, target: the aliases of the clusters.
    """

    source: str
    target: str
    separator: str = "."

    def target_of(self, topic: str) -> str | None:
        if f"{self.separator}{self.target}{self.separator}" in f"{self.separator}{topic}":
            return None  # it came from there, of three clusters perhaps by way of the third
        return checked(f"{self.source}{self.separator}{topic}")


@dataclass(frozen=True, slots=True)
class IdentityNaming:
    """The same name on both sides."""

    def target_of(self, topic: str) -> str | None:
        return checked(topic)


@dataclass(frozen=True, slots=True)
class RegexNaming:
    """A pattern that the whole name has to match, and what becomes of it; names that do not match are not copied."""

    pattern: re.Pattern[str]
    replacement: str

    def target_of(self, topic: str) -> str | None:
        match = self.pattern.fullmatch(topic)
        return None if match is None else checked(match.expand(self.replacement))


@dataclass(frozen=True, slots=True)
class NameFilter:
    """Names that one of the first patterns matches as a whole, and none of the others."""

    included: re.Pattern[str]
    excluded: re.Pattern[str]

    def __contains__(self, name: str) -> bool:
        return self.included.fullmatch(name) is not None and self.excluded.fullmatch(name) is None


def name_filter(setting: str, included: Sequence[str], excluded: Sequence[str]) -> NameFilter:
    """The filter of two lists of patterns.

    Raises:
        ConfigurationError: one is no pattern; names `setting`.
    """
    return NameFilter(pattern_of(setting, "|".join(included) or "(?!)"), pattern_of(f"{setting}.exclude", "|".join(excluded) or "(?!)"))


def pattern_of(setting: str, text: str) -> re.Pattern[str]:
    """A compiled pattern.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigurationError(f"{setting} = {text!r}: {error}") from None


def is_heartbeats(topic: str, separator: str) -> bool:
    """Whether a topic has the heartbeats of a cluster, this one's or those of one that is copied to it."""
    return topic == HEARTBEATS or topic.endswith(separator + HEARTBEATS)


def checked(topic: str) -> str:
    """The name, if a topic can have it.

    Raises:
        InvalidTopic: it cannot.
    """
    if not _LEGAL.fullmatch(topic) or topic in (".", "..") or len(topic) > MAX_TOPIC_NAME_LENGTH:
        raise InvalidTopic(f"{topic!r}: a topic has up to {MAX_TOPIC_NAME_LENGTH} letters, digits, '.', '_' and '-'")
    return topic

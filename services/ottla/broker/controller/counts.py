"""What a broker has counted as the controller, over all of its terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.metrics.cells import Histogram

# By how the sentence begins that an operation is told with; a label of its own for each topic would be without end.
_EVENTS: Final[Mapping[str, str]] = {
    "taking over": "take_over",
    "resigning": "resign",
    "looking for brokers": "brokers",
    "looking for topics": "topics",
    "looking for log directories": "log_directories",
    "reading the settings": "settings",
    "altering the": "alter_settings",
    "allocating producer ids": "producer_ids",
    "creating topic": "create_topic",
    "deleting topic": "delete_topic",
    "adding partitions": "create_partitions",
    "electing leaders": "elect_leaders",
    "moving partitions": "reassign",
    "giving leaderships back": "rebalance",
    "hearing what": "answers",
    "asking for replicas": "offline_replicas",
    "looking at topic": "topics",
    "watching topics": "topics",
    "looking for partitions to move": "reassign",
    "looking what has been moved": "reassign",
    "looking for elections": "elect_leaders",
    "the end of draining": "undrain",
    "changing ISRs": "alter_partition",
    "the shutdown of": "controlled_shutdown",
}


def event_of(what: str) -> str:
    """The kind of an operation, from the words for it."""
    return next((event for words, event in _EVENTS.items() if what.startswith(words)), "other")


@dataclass(slots=True)
class ControllerCounts:
    """Counted where it happens, and read by whoever measures."""

    elections: int = 0  # leaders chosen, one for each partition
    unclean_elections: int = 0
    election_seconds: Histogram = field(default_factory=Histogram)
    events: Counter[str] = field(default_factory=Counter)

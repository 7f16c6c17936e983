"""The ways in which a broker recovers from something, counted by the lines that it logs: it needs no counter of its own for that.

A path that many seeds never walk is one that the simulation says nothing about; `make sim` names it at its end.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Path:
    """One way.

    Attributes:
        template: a part of the line as it stands in the code, before its arguments are put in.
        said: a part of the line as it is logged, where one template serves several ways.
    """

    name: str
    template: str
    said: str = ""


PATHS: Final = (
    Path("start after a clean stop", "logs loaded from", "after a clean stop"),
    Path("start after an unclean stop", "logs loaded from", "after an unclean stop"),
    Path("clean stop that was not one", "clean shutdown, but the log is inconsistent"),
    Path("log cut where it is not sound", "truncated at offset %d, position"),
    Path("hole between segments", "is removed from the log: %s", "and a segment begins at"),
    Path("segment behind a cut renamed", "is removed from the log: %s"),
    Path("log that ends before its start begins again", "before its start offset %d: it restarts there"),
    Path("log that lost committed records", "is damaged: %s"),
    Path("indexes made again", "the indexes are rebuilt"),
    Path("aborted transactions looked for again", "the aborted transactions are searched for in the log"),
    Path("older producer snapshot tried", "trying an older producer snapshot"),
    Path("leader epochs made again", "leader epochs are rebuilt"),
    Path("checkpoint that cannot be read", "The checkpoint cannot be read"),
    Path("topic id that cannot be read", "the topic id of the log cannot be read"),
    Path("index without its log removed", "has no log and is removed"),
    Path("truncation by leader epoch", "leader epoch %d ends at %d on the leader: truncating from"),
    Path("truncation", "truncated to offset"),
    Path("truncation of everything", "truncated fully, start offset is now"),
    Path("committed records dropped", "committed records from %d to %d are dropped"),
    Path("log of a former topic set aside", "stray log renamed to"),
    Path("topic deleted", "is deleted: directory %s is removed in"),
    Path("segments deleted by retention", "deleting %d segments up to offset"),
    Path("log compacted", "is compacted up to offset"),
    Path("cleaned segment swapped in", "the cleaned segment at %d replaced"),
    Path("move between directories begun", "moving from %s to"),
    Path("move between directories completed", "%s: moved to %s"),
    Path("move between directories ended early", "move to %s cancelled"),
    Path("move between directories failed", "move to %s failed"),
    Path("log directory offline", "has failed and is offline"),
    Path("replicas in a failed or full log directory", "replicas are offline: a log directory has failed"),
    Path("replicas there again", "replicas are online again"),
    Path("producers' snapshot written later", "the producer snapshot at offset %d is delayed"),
    Path("indexes kept in memory by a full disk", "its indexes stay in memory until the log is opened again"),
    Path("files that keep their names for now", "deleted files cannot be renamed yet"),
    Path("flush that makes up for a former one", "the delayed flush is done"),
    Path("two directories of one log", "has two directories"),
    Path("move between directories interrupted", "a move to %s was interrupted"),
    Path("index entries written later", "offset and time index entries of the segment at %d are delayed"),
    Path("aborted transactions written later", "transaction index entries of the segment at %d are delayed"),
    Path("checkpoint not written", "a checkpoint was not written"),
    Path("flush failed", "was not flushed: %s"),
    Path("group commit failed", "the group commit failed"),
    Path("log not closed cleanly", "was not closed cleanly"),
    Path("partition not made in a directory", "could not be created in %s"),
    Path("deleted file stays until a start", "cannot be deleted before the next start"),
    Path("damage in what a leader sent", "the records fetched from broker %d are corrupt"),
    Path("replica that cannot lead or follow", "cannot apply the LeaderAndIsr request"),
    Path("leader elected from the ISR", "leader %d -> %d, ISR"),
    Path("change of an ISR refused", "%s: ISR %s -> %s was refused: "),
    Path("controller elected", "controller epoch %d: loaded"),
    Path("term of a controller that cannot go on", "%s cannot continue as the %s, retrying"),
    Path("lost answer of ZooKeeper looked for", "the response to a write was lost"),
    Path("session expired", "session %#x has expired: its ephemeral znodes are gone"),
    Path("start tried again", "startup failed, retrying"),
    Path("deletion of a topic goes on", "deletion still in progress"),
    Path("groups loaded", "loaded %d groups from"),
    Path("transactions loaded", "loaded %d transactional ids"),
    Path("offsets expired", "offsets have expired"),
    Path("transaction timed out", "its transaction has timed out"),
)


class PathCounts:
    """Counts what is logged; templates are looked at once."""

    def __init__(self) -> None:
        self.counts: Final[Counter[str]] = Counter()
        self._known: Final[dict[str, tuple[Path, ...]]] = {}

    def logged(self, record: logging.LogRecord, message: str) -> None:
        """A broker has logged this."""
        template = str(record.msg)
        paths = self._known.get(template)
        if paths is None:
            paths = self._known[template] = tuple(path for path in PATHS if path.template in template)
        for path in paths:
            if path.said in message:
                self.counts[path.name] += 1

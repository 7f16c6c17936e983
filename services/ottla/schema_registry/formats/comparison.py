"""Comparing two graphs of types, which may lead back to themselves.

A format's comparison of one pair is a generator: it yields the pairs that it has to know of, and returns why the reader of its own
does not read. So graphs may be as deep as they like without a stack, and each pair is looked at once.

A pair that is met again while it is being compared is taken for compatible: data are finite, so only what does not lead back
counts. A result found under such an assumption may be kept too early, as the pair that was assumed can fail later in a union
that has another branch. So pairs found incompatible are remembered and the comparison begins again with them, until no further
ones are found. Without a cycle one pass is enough, and there are at most as many passes as pairs.

Pure, and bounded by a budget of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Final, Generic, TypeVar

from ottla.schema_registry.formats.interface import Budget, Incompatibility, Limits

Node = TypeVar("Node")
Found = Sequence[Incompatibility]
# yields (reader, writer, what goes before the paths of what is found), is sent what is found, returns the same of its own pair
Steps = Generator[tuple[Node, Node, str], Found, Found]
Compare = Callable[[Node, Node, Budget], Steps[Node]]
Pair = tuple[int, int]


class _Pass(Generic[Node]):
    """One pass over pairs of reader and writer, which are found again by identity."""

    def __init__(self, compare: Compare[Node], budget: Budget, incompatible: dict[Pair, Found]) -> None:
        self._compare: Final = compare
        self._budget: Final = budget
        self._incompatible: Final = incompatible
        self._known: Final[dict[Pair, Found]] = {}
        self._open: Final[dict[Pair, tuple[Steps[Node], str]]] = {}
        self._assumed = False

    def run(self, reader: Node, writer: Node) -> Found:
        """Compares one pair and all that it depends on."""
        found = self._begin(reader, writer, "")
        while self._open:
            pair, (steps, path) = next(reversed(self._open.items()))
            try:
                asked = steps.send(found) if found is not None else next(steps)
            except StopIteration as finished:
                del self._open[pair]
                self._known[pair] = finished.value
                found = self._below(path, finished.value)
            else:
                found = self._begin(*asked)
        assert found is not None
        return found

    def _begin(self, reader: Node, writer: Node, path: str) -> Found | None:
        """What is known of a pair, or None when it has been opened."""
        pair = id(reader), id(writer)
        self._budget.spend()
        if pair in self._known:
            return self._below(path, self._known[pair])
        if pair not in self._open:
            self._open[pair] = self._compare(reader, writer, self._budget), path
            return None
        if pair in self._incompatible:
            return self._below(path, self._incompatible[pair])
        self._assumed = True
        return ()

    def _below(self, path: str, found: Found) -> Found:
        self._budget.spend(steps=3 * len(found))  # a reason takes longer than a look
        return [replace(reason, path=path + reason.path) for reason in found] if path else found

    def next_pass(self) -> dict[Pair, Found] | None:
        """What the next pass has to know, or None when it would find the same."""
        incompatible = {pair: found for pair, found in self._known.items() if found}
        return incompatible if self._assumed and incompatible.keys() != self._incompatible.keys() else None


def compare_graphs(reader: Node, writer: Node, compare: Compare[Node], limits: Limits) -> Found:
    """Why a reader does not read what a writer wrote; empty when it does.

    Raises:
        InvalidSchema: the two are too complex together.
    """
    budget = Budget(limits)
    incompatible: dict[Pair, Found] | None = {}
    while incompatible is not None:
        one_pass = _Pass(compare, budget, incompatible)
        found = one_pass.run(reader, writer)
        incompatible = one_pass.next_pass()
    return found

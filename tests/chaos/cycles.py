"""Circles in a graph of who comes before whom: Tarjan's strongly connected components, without recursion.

A history has tens of thousands of transactions in a row, and Python's stack does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping


def circles(after: Mapping[str, Collection[str]]) -> list[list[str]]:
    """All sets of two or more nodes that can each be reached from each other.

    Args:
        after: what comes after a node.
    """
    found: list[list[str]] = []
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    waiting: list[str] = []
    is_waiting: set[str] = set()

    def enter(node: str) -> tuple[str, Iterator[str]]:
        numbers[node] = lowest[node] = len(numbers)
        waiting.append(node)
        is_waiting.add(node)
        return node, iter(sorted(after.get(node, ())))

    for root in sorted(after):
        if root in numbers:
            continue
        path = [enter(root)]
        while path:
            node, rest = path[-1]
            following = next(rest, None)
            if following is not None:
                if following not in numbers:
                    path.append(enter(following))
                elif following in is_waiting:
                    lowest[node] = min(lowest[node], numbers[following])
                continue
            path.pop()
            if path:
                lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
            if lowest[node] == numbers[node]:
                circle = [waiting.pop()]
                while circle[-1] != node:
                    circle.append(waiting.pop())
                is_waiting.difference_update(circle)
                if len(circle) > 1:
                    found.append(sorted(circle))
    return found


def way_back(after: Mapping[str, Collection[str]], circle: Collection[str]) -> list[str]:
    """A shortest way from a node of a circle back to itself, within the circle."""
    nodes = set(circle)
    start = min(nodes)
    came_from: dict[str, str] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for following in sorted(after.get(node, ())):
            if following == start:
                way = [start, node]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return way[::-1]
            if following in nodes and following not in came_from:
                came_from[following] = node
                queue.append(following)
    raise AssertionError(f"{sorted(nodes)} is no circle")

"""Replacing a part of the broker in this process."""

from __future__ import annotations


def replace(owner: object, name: str, replacement: object) -> None:
    """As `setattr`, of something that is there: a sabotage of what has been renamed would be none."""
    assert hasattr(owner, name), f"{owner} has no {name}: the sabotage is out of date"
    setattr(owner, name, replacement)

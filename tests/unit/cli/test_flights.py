"""The quickstart's input and the comparison of what came back with it."""

import json
import zipfile
from pathlib import Path

import pytest

from ottla.cli.flights import Flight, Tally, airline_names, differences, in_order, read

COLUMNS = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,dest,"
    "air_time,distance,hour,minute,time_hour"
)
ROWS = (
    "2013,1,1,533,529,4,850,830,20,UA,1714,N24211,LGA,IAH,227,1416,5,29,2013-01-01T10:00:00Z",
    "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z",
    "2013,1,2,NA,1545,NA,NA,1910,NA,AA,133,NA,JFK,LAX,NA,2475,15,45,2013-01-02T20:00:00Z",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three rows of the real file, packed as the package packs it."""
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join((COLUMNS, *ROWS)) + "\n")
    (tmp_path / "airlines.csv").write_text('carrier,name\nUA,"United Air Lines Inc."\n')
    return tmp_path


def test_flights_come_in_the_order_of_the_timetable(data: Path) -> None:
    flights = in_order(list(read(data)))
    assert [flight.key for flight in flights] == [b"N14228", b"N24211", None]
    assert [flight.timestamp_ms for flight in flights] == [1357035300000, 1357036140000, 1357159500000]


def test_an_event_has_every_column_and_null_where_the_file_has_none(data: Path) -> None:
    *_, cancelled = read(data)
    event = json.loads(cancelled.value)
    assert list(event) == COLUMNS.split(",")
    assert event["tailnum"] is None and event["dep_time"] is None
    assert event["sched_dep_time"] == 1545 and event["carrier"] == "AA"
    assert cancelled.key is None


def test_airlines_are_known_by_name(data: Path) -> None:
    assert airline_names(data) == {"UA": "United Air Lines Inc."}


def tally(flights: list[Flight]) -> Tally:
    counted = Tally()
    for flight in flights:
        counted.add(flight.key, flight.value, flight.carrier)
    return counted


FLIGHTS = [
    Flight(b"N1", b"first", 1, "UA"),
    Flight(b"N1", b"second", 2, "UA"),
    Flight(b"N2", b"third", 3, "AA"),
    Flight(None, b"fourth", 4, "AA"),
    Flight(None, b"fifth", 5, "AA"),
]


def test_keys_may_come_interleaved_and_events_without_a_key_in_any_order() -> None:
    """Partitions are read in turn: only the order within a key is kept."""
    assert differences(tally(FLIGHTS), tally([FLIGHTS[4], FLIGHTS[2], FLIGHTS[0], FLIGHTS[3], FLIGHTS[1]])) == []


@pytest.mark.parametrize(
    ("came_back", "complaint"),
    [
        (FLIGHTS[1:], "5 events were in the file and 4 came back"),
        ([*FLIGHTS, FLIGHTS[0]], "5 events were in the file and 6 came back"),
        ([FLIGHTS[1], FLIGHTS[0], *FLIGHTS[2:]], "out of order"),
        ([Flight(b"N1", b"First", 1, "UA"), *FLIGHTS[1:]], "changed"),
        ([*FLIGHTS[:4], Flight(None, b"sixth", 5, "AA")], "without a key"),
        ([*FLIGHTS[:4], Flight(None, b"fifth", 5, "UA")], "carrier AA: 3 flights in the file and 2 came back"),
    ],
)
def test_whatever_is_not_the_same_is_told(came_back: list[Flight], complaint: str) -> None:
    assert any(complaint in sentence for sentence in differences(tally(FLIGHTS), tally(came_back)))

"""The functions on streams at work: jobs on the flights that `ottla quickstart` puts into a topic, to be run and to be copied.

    ottla spark submit flights hourly-departures --into departures

Each reads the topic as a stream from its beginning, and appends what it finds to a Delta table exactly once, or writes it into another
topic. It ends when it has read what is there, or continues with `--every`; started again with its checkpoint it reads what is new.

A program of its own, which `spark-submit` runs: nothing imports it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.spark.streaming import deduplicate, join_streams, join_table, repartition_by_key, session_counts, windowed_counts
from ottla.spark.table import append

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

# Of an event's JSON, what the jobs ask for. Its time is the scheduled departure, which is the record's.
_EVENT: Final = "carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, dep_delay INT"
# Partitions are read side by side and not in step: what comes so much later is still counted. A window is given when that has passed.
_LATE: Final = "1 day"


@dataclass(frozen=True, slots=True)
class Flights:
    """The topic, as a job reads it."""

    spark: SparkSession
    bootstrap_servers: str
    topic: str

    def stream(self) -> DataFrame:
        """All flights there are, and those to come: the record's `key`, `value` and `timestamp`, and the event's columns."""
        return self._parsed(self.spark.readStream.format("ottla").options(**self._options).load())

    def table(self) -> DataFrame:
        """All flights there are."""
        return self._parsed(self.spark.read.format("ottla").options(**self._options).load())

    @property
    def _options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap_servers, "subscribe": self.topic, "startingOffsets": "earliest"}

    @staticmethod
    def _parsed(frame: DataFrame) -> DataFrame:
        event = f"from_json(cast(value as string), '{_EVENT}') as event"
        return frame.selectExpr("key", "value", "timestamp", event).select("key", "value", "timestamp", "event.*")


def hourly_departures(flights: Flights) -> DataFrame:
    """Departures of each carrier in each hour: windows side by side."""
    return windowed_counts(flights.stream(), ["carrier"], width="1 hour", late=_LATE)


def busy_airports(flights: Flights) -> DataFrame:
    """Departures of each airport in three hours, by the hour: windows that overlap."""
    return windowed_counts(flights.stream(), ["origin"], width="3 hours", slide="1 hour", late=_LATE)


def aircraft_in_use(flights: Flights) -> DataFrame:
    """How often an aircraft left before it stood for twelve hours: sessions."""
    return session_counts(flights.stream().where("tailnum is not null"), ["tailnum"], gap="12 hours", late=_LATE)


def against_the_mean(flights: Flights) -> DataFrame:
    """Each departure's delay, and the mean of its carrier when the job began: a stream with a table."""
    mean = flights.table().groupBy("carrier").mean("dep_delay").toDF("carrier", "mean_delay")
    departures = flights.stream().where("dep_delay is not null").select("timestamp", "carrier", "flight", "dep_delay")
    return join_table(departures, mean, ["carrier"])


def next_departures(flights: Flights) -> DataFrame:
    """Each departure with those of the same aircraft in the six hours behind it: a stream with a stream."""
    first = flights.stream().where("tailnum is not null").select("timestamp", "tailnum", "flight", "dest", "dep_delay")
    second = first.selectExpr("timestamp", "tailnum", "flight as next_flight", "dep_delay as next_delay")
    return join_streams(first, second, ["tailnum"], within="6 hours", late=_LATE).where("other_timestamp > timestamp")


def each_once(flights: Flights) -> DataFrame:
    """Each flight once, also where its event was sent twice: deduplication."""
    columns = ("timestamp", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay")
    return deduplicate(flights.stream().select(*columns), ["carrier", "flight", "origin", "timestamp"], within=_LATE)


JOBS: Final[dict[str, Callable[[Flights], DataFrame]]] = {
    "hourly-departures": hourly_departures,
    "busy-airports": busy_airports,
    "aircraft-in-use": aircraft_in_use,
    "against-the-mean": against_the_mean,
    "next-departures": next_departures,
    "each-once": each_once,
}
BY_CARRIER: Final = "by-carrier"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one of the jobs.

    Args:
        arguments: of the command line; None: this process's.
    """
    from pyspark.sql import SparkSession

    given = _parser().parse_args(arguments)
    spark = SparkSession.builder.appName(f"flights {given.job}").getOrCreate()
    if spark.conf.get("spark.sql.shuffle.partitions") == "200":
        spark.conf.set("spark.sql.shuffle.partitions", "4")  # each is a state of its own, and this is a small stream
    flights = Flights(spark, given.bootstrap_server, given.topic)
    query = _writer(flights, given.job, given.into).option("checkpointLocation", given.checkpoint or f"{given.into}-checkpoint")
    query = query.trigger(availableNow=True) if given.every is None else query.trigger(processingTime=given.every)
    query.start().awaitTermination()


def _writer(flights: Flights, job: str, into: str) -> DataStreamWriter:
    if job == BY_CARRIER:
        options = {"kafka.bootstrap.servers": flights.bootstrap_servers}
        return repartition_by_key(flights.stream(), "carrier", topic=into, options=options)

    def appended(frame: DataFrame, batch: int) -> None:
        append(frame, into, application=job, version=batch)

    return JOBS[job](flights).writeStream.foreachBatch(appended)


def _parser() -> argparse.ArgumentParser:
    described = "\n".join(f"  {name:20}{job.__doc__}" for name, job in JOBS.items())
    described += f"\n  {BY_CARRIER:20}All flights of a carrier in one partition of another topic, in their order, written exactly once."
    parser = argparse.ArgumentParser("ottla spark submit flights", description=described, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("job", choices=[*JOBS, BY_CARRIER], metavar="JOB", help="Which of them.")
    parser.add_argument(
        "--into", required=True, metavar="TABLE", help=f"The Delta table; of {BY_CARRIER} the topic, which has to be there."
    )
    parser.add_argument("--checkpoint", metavar="DIRECTORY", help="Where the query keeps how far it is; without it, TABLE-checkpoint.")
    parser.add_argument("--every", metavar="TIME", help="Go on, and look for more after so long: 10 seconds.")
    parser.add_argument("--topic", default="flights", help="Where the flights are.")
    parser.add_argument("--bootstrap-server", "-b", default="127.0.0.1:9092", metavar="HOST:PORT", help="Where the cluster answers.")
    return parser


if __name__ == "__main__":
    main()

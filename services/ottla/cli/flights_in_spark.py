"""`ottla quickstart --spark`: the flights as a Delta table, and what Spark says of it: delays per carrier and hour, as a table and a plot.

Needs the extra `spark` and a Java; matplotlib for the plot. All of it is imported when it is asked for.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ottla.cli.errors import CommandFailed
from ottla.cli.output import Count, bytes_of, count_of, say, table

_JOB: Final = "quickstart"
_WAIT_SECONDS: Final = 10
_MOST_QUESTIONS: Final = 30  # five minutes: a window may last ten, and this is a quickstart
# Of an event's JSON, those that are asked for.
_EVENT: Final = "carrier STRING, hour INT, dep_delay INT"
# The table has a small file for each day and partition: Spark would make a task of each, once to list them and once to read them.
_SESSION: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.files.openCostInBytes": "1024",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
}
_HOURS: Final = range(5, 24)  # no flight of the file is scheduled to leave before


def why_not() -> str | None:
    """What there is to install, as a sentence; None where everything is there."""
    missing = [name for name in ("pyspark", "deltalake") if find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed: pip install 'ottla[spark]'"
    home = os.environ.get("JAVA_HOME")
    if not (Path(home) / "bin" / "java").exists() if home else shutil.which("java") is None:
        return "Spark needs a Java: apt-get install openjdk-17-jre-headless"
    return None


def report(bootstrap_server: str, topic: str, directory: Path, names: dict[str, str], rows: int, counter: str | None = None) -> None:
    """Loads the topic, and says what its flights were like.

    Args:
        directory: has the table and the plot afterwards; what was there of them is replaced.
        names: of carriers.
        rows: how many events there are.
        counter: address of the audit counter that is asked too; None: none is.

    Raises:
        CommandFailed: something is not installed, the table has not every event once, or the counter does not say that it has.
    """
    if reason := why_not():
        raise CommandFailed(reason)
    from ottla.cli.audit import ask, moment
    from ottla.spark import load
    from ottla.spark.loading import inspection
    from ottla.spark.session import session
    from ottla.spark.table import Table, read

    path = directory / topic
    shutil.rmtree(path, ignore_errors=True)
    window_ms = None if counter is None else int(ask(counter, "/v1/status")["window_ms"])
    with session("ottla quickstart", "local[*]", _SESSION) as spark:
        outcome = load(topic, str(path), bootstrap_servers=bootstrap_server, job=_JOB, spark=spark, audit_window_ms=window_ms)
        what = f"{count_of(outcome.rows, 'row')} in {count_of(outcome.files, 'file')}, {bytes_of(outcome.size)}"
        say(f"\nSpark loaded {what}, into {path} in {outcome.seconds:.1f} s.")
        delays = _delays(read(spark, str(path)))
    verdict = inspection.verify(Table.open(str(path)))
    if verdict.wrong or verdict.rows != rows:
        raise CommandFailed(f"the table has {verdict.rows:,} rows of {rows:,} events: {'; '.join(verdict.wrong) or 'some are missing'}")
    say("COMPLETE: every event is in the table, and once.")
    if counter is not None and window_ms is not None:
        # Windows end, and brokers report what they had, some seconds behind.
        for _ in range(_MOST_QUESTIONS):
            between = {"from": moment("1h"), "to": moment("now") + window_ms}
            found = ask(counter, f"/v1/topics/{topic}/verify", **between, tiers=f"broker,load:{_JOB}", wait=_WAIT_SECONDS)
            counted = sum(edge["downstream_count"] for edge in found["edges"])
            if found["exit_code"] == 1 or (found["exit_code"] == 0 and counted >= rows):
                break
        if found["exit_code"] or counted != rows:
            raise CommandFailed(f"the audit counter says {found['verdict']}, of {counted:,} of {rows:,} events")
        say(f"{found['verdict']}, says the audit counter: the brokers had {counted:,} events, and the table has them.")
    say()
    carriers = sorted({carrier for carrier, _ in delays}, key=lambda carrier: _mean(delays, carrier), reverse=True)
    say(
        table(
            ("carrier", "airline", "flights", "minutes late", "worst hour"),
            [
                (
                    carrier,
                    names.get(carrier, "?"),
                    Count(sum(count for (each, _), (count, _) in delays.items() if each == carrier)),
                    f"{_mean(delays, carrier):.1f}",
                    _worst(delays, carrier),
                )
                for carrier in carriers
            ],
        )
    )
    if find_spec("matplotlib") is None:
        say("\nA plot of it needs matplotlib: pip install matplotlib")
    else:
        say(f"\nMinutes late by carrier and hour: {_plot(delays, carriers, directory / 'delays.png')}")


def _delays(flights: Any) -> dict[tuple[str, int], tuple[int, float]]:
    """Flights that departed, and the sum of their minutes late, by carrier and hour."""
    found = flights.sparkSession.sql(
        f"""SELECT event.carrier, event.hour, count(*) AS flights, sum(event.dep_delay) AS late
            FROM (SELECT from_json(CAST(value AS STRING), '{_EVENT}') AS event FROM {{flights}})
            WHERE event.dep_delay IS NOT NULL GROUP BY ALL""",
        flights=flights,
    )
    return {(row.carrier, row.hour): (row.flights, float(row.late)) for row in found.collect()}


def _mean(delays: dict[tuple[str, int], tuple[int, float]], carrier: str) -> float:
    of_it = [value for (each, _), value in delays.items() if each == carrier]
    return sum(late for _, late in of_it) / sum(count for count, _ in of_it)


def _worst(delays: dict[tuple[str, int], tuple[int, float]], carrier: str) -> str:
    late, hour = max((late / count, hour) for (each, hour), (count, late) in delays.items() if each == carrier)
    return f"{hour:02d}:00, {late:.1f}"


def _plot(delays: dict[tuple[str, int], tuple[int, float]], carriers: list[str], path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    nothing = (1, float("nan"))
    cells = [[late / count for count, late in (delays.get((carrier, hour), nothing) for hour in _HOURS)] for carrier in carriers]
    # Beyond an hour late all is the same to a passenger, and a cell of few flights would take all the colours.
    image = axes.imshow(cells, aspect="auto", cmap="viridis", vmin=0, vmax=60)
    axes.set_xticks(range(len(_HOURS)), [f"{hour:02d}" for hour in _HOURS])
    axes.set_yticks(range(len(carriers)), carriers)
    axes.set(xlabel="hour of the scheduled departure", ylabel="carrier", title="Departures from New York City in 2013")
    figure.colorbar(image, label="mean delay, minutes")
    figure.savefig(path, dpi=120)
    return path

"""`ottla audit` asks an audit counter over its REST API.

`verify` and `canary` are for scripts: 0 when every message arrived, 1 when one is lost, doubled or another, 3 when that is not known.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import quote, urlencode

import typer

from ottla.cli.connection import Json, commands
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.output import count_of, say, say_json, table
from ottla.cli.schema import connection_to
from ottla.errors import reason_of

DEFAULT_URL: Final = "http://127.0.0.1:8090"
_WAIT_SECONDS: Final = 10.0  # of one question; longer waits ask again
_AGAIN_SECONDS: Final = 1.0
_AGO: Final = re.compile(r"(\d{1,6})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

app = commands("Ask an audit counter whether every message arrived.")

Url = Annotated[str, typer.Option("--counter", "-c", metavar="URL", envvar="OTTLA_AUDIT_COUNTER", help="Where the audit counter answers.")]
Topic = Annotated[str, typer.Option("--topic", "-t", help="The topic.")]
From = Annotated[str, typer.Option("--from", help="ISO 8601, milliseconds, or `15m` ago.")]
To = Annotated[str, typer.Option("--to", help="Likewise; `now`.")]


class MessagesDiffer(CommandFailed):
    """Messages are lost, doubled or others."""


class NotKnown(CommandFailed):
    """It is not known whether all arrived: by a counter that does not answer, too."""

    exit_code: ClassVar[int] = 3


def ask(url: str, path: str, failed: type[CommandFailed] = CommandFailed, /, **query: object) -> Any:
    """The answer's JSON.

    Args:
        failed: raised when no one answers, or the counter says no.

    Raises:
        UsageError: the counter says that it cannot be asked so.
    """
    connection, prefix = connection_to(url, "--counter")
    path = prefix.rstrip("/") + path
    asked = urlencode({name: value for name, value in query.items() if value not in (None, "")})
    try:
        connection.request("GET", f"{path}?{asked}" if asked else path)
        response = connection.getresponse()
        found = json.loads(response.read())
        if response.status >= 300 and not (isinstance(found, dict) and "detail" in found):
            raise ValueError(response.reason)
        if response.status < 300 and not _is_answer(path, found):
            raise ValueError("what answers is another service")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise failed(f"no audit counter answers at {url}: {reason_of(error)}") from None
    finally:
        connection.close()
    if response.status >= 300:
        raise (UsageError if response.status == 400 else failed)(str(found["detail"]))
    return found


# What the commands read of each answer: of an object, and of each object of a list.
_OBJECTS: Final = {
    "status": {"is_active", "epoch", "records", "lag"},
    "verify": {"verdict", "exit_code", "windows", "edges"},
    "canary": {"is_enabled", "is_running", "partitions"},
}
_LISTS: Final = {
    "topics": {"topic", "verdicts", "missing", "surplus"},
    "missing": {"partition", "offset", "times"},
    "sessions": {"tier", "topic", "host", "application", "state", "records", "gaps"},
}


def _is_answer(path: str, found: object) -> bool:
    name = path.rpartition("/")[2]
    if name in _LISTS:
        return isinstance(found, list) and all(isinstance(row, dict) and row.keys() >= _LISTS[name] for row in found)
    return isinstance(found, dict) and found.keys() >= _OBJECTS[name]


def moment(text: str) -> int:
    """Milliseconds since the epoch of a time as a person gives it.

    Raises:
        UsageError: it is none.
    """
    if text == "now":
        return time.time_ns() // 1_000_000
    if text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    try:
        if (ago := _AGO.fullmatch(text)) is not None:
            found = datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            found = datetime.fromisoformat(text)
        return int((found if found.tzinfo else found.astimezone()).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is no time: ISO 8601, milliseconds, `15m` ago, or `now`") from None


@app.command()
def status(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Where the counter stands, and what it says of each topic."""
    found, topics = ask(url, "/v1/status"), ask(url, "/v1/topics")
    if as_json:
        say_json({**found, "topics": topics})
        return
    role = "active" if found["is_active"] else "standby"
    say(f"{role}, term {found['epoch']}, {found['records']:,} audit records, {found['lag']:,} to read")
    if topics:
        rows = [
            (
                topic["topic"],
                ", ".join(f"{kind} {count:,}" for kind, count in topic["verdicts"].items()),
                topic["missing"],
                topic["surplus"],
            )
            for topic in topics
        ]
        say(table(("TOPIC", "WINDOWS", "MISSING", "TOO MANY"), rows))


@app.command()
def verify(
    topic: Topic,
    start: From = "1h",
    end: To = "now",
    tiers: Annotated[str, typer.Option("--tiers", help="Only edges between these: producer,log,consumer:billing")] = "",
    wait: Annotated[str, typer.Option("--wait", help="How long to wait until it is known: `60s`.")] = "0s",
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Did every message arrive? Exits 0 when all did, 1 when one is lost, doubled or another, 3 when it is not known.

    Examples:

    - `ottla audit verify --topic clicks --from 15m --wait 60s`
    """
    patience = _AGO.fullmatch(wait)
    if patience is None:
        raise UsageError(f"--wait takes a time such as 60s, and not {wait!r}")
    deadline = time.monotonic() + timedelta(**{_UNITS[patience[2]]: int(patience[1])}).total_seconds()
    from_ms, to_ms = moment(start), moment(end)
    if from_ms >= to_ms:
        raise UsageError("--from is not before --to")
    path = f"/v1/topics/{quote(topic, safe='')}/verify"
    while True:
        began = time.monotonic()
        left = max(0.0, deadline - began)
        try:
            found = ask(url, path, NotKnown, **{"from": from_ms, "to": to_ms, "tiers": tiers, "wait": min(left, _WAIT_SECONDS)})
        except NotKnown:
            if not left:  # a counter that begins, or begins again, does not answer for some seconds
                raise
        else:
            kinds = {found["verdict"], *(edge["verdict"] for edge in found["edges"])}
            if found["exit_code"] != 3 or not kinds & {"PENDING", "UNAUDITED"} or time.monotonic() >= deadline:
                break
        time.sleep(max(0.0, min(began + _AGAIN_SECONDS, deadline) - time.monotonic()))
    if as_json:
        say_json(found)
    else:
        bad = [edge for edge in found["edges"] if edge["verdict"] not in ("COMPLETE", "LATE")]
        if bad:
            rows = [(edge["window"], edge["edge"], edge["verdict"], edge["missing"], edge["surplus"], edge["reason"]) for edge in bad]
            say(table(("WINDOW", "EDGE", "VERDICT", "MISSING", "TOO MANY", "WHY"), rows))
        say(f"{topic}: {found['verdict']}, {count_of(found['windows'], 'window')}")
    if found["exit_code"] == 1:
        raise MessagesDiffer(f"{topic}: messages are lost, doubled or others")
    if found["exit_code"] == 3:
        if "PENDING" in kinds:
            raise NotKnown(f"{topic}: it is not known yet whether all messages arrived")
        unknown = " and ".join(sorted(kinds & {"IN_DOUBT", "UNAUDITED"}))
        raise NotKnown(f"{topic}: it is not known whether all messages arrived: there are {unknown} windows")


@app.command()
def missing(
    topic: Topic,
    window: Annotated[int, typer.Option("--window", help="Where the window begins, in ms, as `verify` shows it.")],
    edge: Annotated[str, typer.Option("--edge", help="upstream->downstream")],
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """The messages that differ on an edge: partition, offset and how often."""
    found = ask(url, f"/v1/topics/{quote(topic, safe='')}/missing", window=window, edge=edge)
    if as_json:
        say_json(found)
        return
    rows = [(one["partition"], one["offset"], "missing" if one["times"] > 0 else "too many", abs(one["times"])) for one in found]
    say(table(("PARTITION", "OFFSET", "", "TIMES"), rows) if rows else "none is named")


@app.command()
def sessions(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Who reports."""
    found = ask(url, "/v1/sessions")
    if as_json:
        say_json(found)
        return
    rows = [(one["tier"], one["topic"], one["host"], one["application"], one["state"], one["records"], one["gaps"]) for one in found]
    say(table(("TIER", "TOPIC", "HOST", "APPLICATION", "STATE", "RECORDS", "GAPS"), rows))


@app.command()
def canary(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """The messages that the counter itself sends through every broker: are they there, how long do they take, is one lost?

    Availability is of the last minute; counts and times are since the counter began. Exits 0, 1 when one is lost or doubled, and 3 when no
    canary runs at this counter.
    """
    found = ask(url, "/v1/canary", NotKnown)
    partitions = found["partitions"]
    if as_json:
        say_json(found)
    elif partitions:
        rows = [
            (
                one["partition"],
                one["leader"] if one["leader"] >= 0 else "none",
                _share(one["produce_availability"]),
                _share(one["consume_availability"]),
                *(_milliseconds(one[name]) for name in ("produce_p50_ms", "produce_p99_ms", "end_to_end_p50_ms", "end_to_end_p99_ms")),
                *(f"{one[name]:,}" for name in ("attempted", "failed", "lost", "doubled")),
            )
            for one in partitions
        ]
        say(table(_CANARY_COLUMNS, rows))
        commits = f"p50 {_milliseconds(found['commit_p50_ms'])}, p99 {_milliseconds(found['commit_p99_ms'])}"
        say(f"commits: {commits}, {found['commit_failures']:,} failed")
        if found["brokers_without_partition"]:
            say(f"brokers that lead no partition: {', '.join(map(str, found['brokers_without_partition']))}")
    if not found["is_running"]:
        why = "another counter is active, or it has just begun" if found["is_enabled"] else "audit.canary.enable is false"
        raise NotKnown(f"no canary runs at this counter: {why}")
    if any(one["lost"] or one["doubled"] for one in partitions):
        raise MessagesDiffer("messages of the canary are lost or doubled")


_CANARY_COLUMNS: Final = (
    *("PARTITION", "LEADER", "PRODUCE", "CONSUME", "PRODUCE P50", "P99", "END TO END P50", "P99"),
    *("ATTEMPTED", "FAILED", "LOST", "DOUBLED"),
)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f} ms"

"""The exposition, read by prometheus-client's own parsers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.metrics.collectors import OPENMETRICS, Given, parsed, registry_of, rendered, sample, samples, slices, text_of

from ottla.clock import SystemClock
from ottla.metrics import broker, log, network, requests, service
from ottla.metrics.cells import BOUNDS, Histogram
from ottla.metrics.family import PAUSE, Family, Pause, single
from ottla.metrics.registry import Registry
from ottla.metrics.rendering import BREATH_SECONDS, LINES_AT_ONCE, format_for

FORMATS = {"text 0.0.4": "", "OpenMetrics": OPENMETRICS}


@pytest.fixture(params=list(FORMATS.values()), ids=list(FORMATS))
def accept(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def observed(*values: float) -> Histogram:
    cell = Histogram()
    for value in values:
        cell.observe(value)
    return cell


def test_each_kind_is_read_back_as_what_it_is(accept: str) -> None:
    text = rendered(
        Family(requests.RECEIVED_BYTES, [(("clicks",), 17), (("views",), 4)]),
        single(service.EVENT_LOOP_BUSY, 0.25),
        Family(requests.SECONDS, [(("Fetch", "total"), observed(0.003, 0.2, 100.0).snapshot())]),
        Family(service.BUILD, [(("0.1.0", "3.11"), 1)]),
        accept=accept,
    )
    families = parsed(text)
    assert families["ottla_broker_received_bytes"].type == "counter"
    assert families["ottla_event_loop_busy_ratio"].type == "gauge"
    assert families["ottla_request_seconds"].type == "histogram"
    assert families["ottla_request_seconds"].documentation == requests.SECONDS.help
    assert sample(text, "ottla_broker_received_bytes_total", topic="clicks") == 17
    assert sample(text, "ottla_event_loop_busy_ratio") == 0.25
    assert sample(text, "ottla_build_info", version="0.1.0", python="3.11") == 1
    buckets = {
        sample.labels["le"]: sample.value
        for sample in families["ottla_request_seconds"].samples
        if sample.name == "ottla_request_seconds_bucket"
    }
    assert [float(bucket) for bucket in buckets] == [*BOUNDS, float("inf")]
    assert buckets["0.0025"] == 0 and buckets["0.005"] == 1 and buckets["0.25"] == 2 and buckets["30.0"] == 2 and buckets["+Inf"] == 3
    assert sample(text, "ottla_request_seconds_count", api="Fetch", stage="total") == 3
    assert sample(text, "ottla_request_seconds_sum", api="Fetch", stage="total") == pytest.approx(100.203)


def test_a_family_in_many_pieces_says_once_what_it_is(accept: str) -> None:
    """Prometheus refuses a second TYPE line for the same name."""
    many = 5 * LINES_AT_ONCE + 3
    text = rendered(Family(log.SIZE_BYTES, [(("clicks", str(number)), number) for number in range(many)]), accept=accept)
    assert text.count("# HELP ottla_log_size_bytes ") == text.count("# TYPE ottla_log_size_bytes ") == 1
    assert [(sample.labels["partition"], sample.value) for sample in parsed(text)["ottla_log_size_bytes"].samples] == [
        (str(number), number) for number in range(many)
    ]


def test_openmetrics_ends_where_it_says_and_the_text_format_says_nothing_of_an_end() -> None:
    one = single(service.READY, 1)
    openmetrics = rendered(one, accept=OPENMETRICS)
    assert openmetrics.count("# EOF\n") == 1 and openmetrics.endswith("# EOF\n")
    assert "EOF" not in rendered(one)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        # Prometheus 2.42
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
        # Prometheus with `scrape_protocols: [PrometheusText0.0.4, OpenMetricsText1.0.0]`, and who refuses OpenMetrics.
        (
            "text/plain;version=0.0.4;q=0.3,application/openmetrics-text;version=1.0.0;q=0.2,*/*;q=0.1",
            "text/plain; version=0.0.4; charset=utf-8",
        ),
        ("application/openmetrics-text; Q=0, */*", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text;q=nan", "text/plain; version=0.0.4; charset=utf-8"),
    ],
)
def test_the_format_is_the_one_that_was_asked_for(accept: str, content_type: str) -> None:
    assert format_for(accept).content_type == content_type
    assert registry_of().render(accept).content_type == content_type


@given(st.text(max_size=30).filter(lambda text: text.isprintable() or "\n" in text), st.sampled_from(list(FORMATS.values())))
def test_whatever_is_in_a_label_comes_back_as_it_was(value: str, accept: str) -> None:
    """A quote, a backslash or a line's end in a topic's or a directory's name must not break the page, or add a sample to it."""
    value = value.replace("\r", "")
    text = rendered(Family(log.DIRECTORY_SIZE, [((value,), 7)]), single(service.READY, 1), accept=accept)
    assert samples(text) == {
        ("ottla_log_directory_size_bytes", frozenset({("directory", value)})): 7,
        ("ottla_ready", frozenset()): 1,
    }


def test_a_metric_without_samples_is_not_shown() -> None:
    assert rendered(Family(network.CONNECTIONS, [])) == ""


def test_the_loop_has_its_turn_between_two_slices() -> None:
    """6,000 samples are rendered; meanwhile a task that always wants to continue gets as many turns as there are slices."""

    async def scrape() -> tuple[list[bytes], int]:
        turns = 0
        ended = asyncio.Event()

        async def others() -> None:
            nonlocal turns
            while not ended.is_set():
                turns += 1
                await asyncio.sleep(0)

        def families() -> Iterator[Family]:
            for metric in (log.SIZE_BYTES, log.START_OFFSET, log.END_OFFSET):
                yield Family(metric, ((("clicks", str(number)), number) for number in range(2_000)))

        task = asyncio.create_task(others())
        pieces = await slices(Registry([Given(*families())], SystemClock()))
        ended.set()
        await task
        return pieces, turns

    pieces, turns = asyncio.run(scrape())
    assert len(pieces) > 20
    assert turns >= len(pieces) - 1
    assert b"".join(pieces).count(b'partition="1999"') == 3


class Ticking(SystemClock):
    """A clock on which each look takes a tenth of a breath."""

    seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += BREATH_SECONDS / 10
        return self.seconds


def test_a_collector_that_works_without_giving_anything_lets_others_have_their_turn_too() -> None:
    class Counting:
        def collect(self) -> Iterator[Family | Pause]:
            for _ in range(100):
                yield PAUSE
            yield Family(service.READY, iter([PAUSE] * 100 + [((), 1.0)]))

    registry = Registry([Counting()], Ticking())
    text = text_of(registry)
    assert sample(text, "ottla_ready") == 1
    again = text_of(registry)
    took = sample(again, "ottla_scrape_seconds")
    assert took >= 200 * BREATH_SECONDS / 10
    assert BREATH_SECONDS <= sample(again, "ottla_scrape_longest_slice_seconds") < 2 * BREATH_SECONDS


def test_a_collector_that_fails_costs_only_its_own_metrics(caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        def collect(self) -> Iterator[Family | Pause]:
            yield single(service.READY, 1)
            raise RuntimeError("what it looks at has gone")

    registry = registry_of(Failing(), Given(single(broker.STATE, 2)))
    text = text_of(registry)
    assert sample(text, "ottla_ready") == 1 and sample(text, "ottla_broker_state") == 2
    assert "metrics of Failing are left out" in caplog.text


def test_a_metric_that_two_collectors_give_is_shown_once(caplog: pytest.LogCaptureFixture) -> None:
    """Twice would make Prometheus refuse the whole page."""
    registry = registry_of(Given(single(service.READY, 1)), Given(single(service.READY, 0)))
    assert sample(text_of(registry), "ottla_ready") == 1
    assert "ottla_ready is given twice" in caplog.text

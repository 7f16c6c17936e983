"""The exposition of a real broker as a whole: everything that is declared is there, nothing that is not, and nothing blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from tests.waiting import until

from ottla.broker.measuring import collectors
from ottla.metrics.table import BROKER_METRICS
from ottla.serving.freshness import Freshness
from ottla.testing import EmbeddedCluster
from ottla.testing.certificates import Authority
from ottla.testing.clock import ManualClock

from .scraping import SETTINGS, scrape, text

# What is only there under circumstances that this broker is not in.
NOT_HERE = {
    "ottla_tls_certificate_expiry_timestamp_seconds",  # no TLS
    "ottla_replica_fetcher_lag_messages",  # follows no one
    "ottla_group_members",
    "ottla_group_state",
    "ottla_group_lag_messages",
    "ottla_group_lag_seconds",
    "ottla_group_committed_offset",
    "ottla_broker_requests_failed_total",
}


def names_in(exposition: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+)", exposition, re.MULTILINE))


@pytest.mark.usefixtures("patient")
def test_everything_that_is_declared_is_exposed_and_can_be_parsed(tmp_path: Path) -> None:
    with EmbeddedCluster(settings={**SETTINGS, "metrics.partition.enabled": "true"}, topics={"clicks": 1}) as cluster:
        port = cluster._broker(1).http_port
        until(lambda: "ottla_scrape_seconds" in text(port))  # of the one before
        exposition = text(port)
    families = {metric.name: metric for metric in parse_text(exposition)}
    assert families["ottla_broker_state"].samples[0].value == 2
    declared = {metric.name for metric in BROKER_METRICS}
    assert names_in(exposition) - {"ottla_build", "ottla_broker"} <= declared
    missing = declared - names_in(exposition) - NOT_HERE
    assert not {name for name in missing if name.startswith("ottla_")}


def test_a_directory_of_a_disk_that_hangs_does_not_hold_a_scrape_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hung is left out, or as it was; everything else is what someone wants to see just then."""
    import threading

    goes_on = threading.Event()
    asked = threading.Event()

    def hanging(paths: Any) -> dict[Path, collectors.Space]:
        asked.set()
        goes_on.wait(120)
        return dict.fromkeys(paths, collectors.Space(100, 40))

    monkeypatch.setattr(collectors, "spaces", hanging)
    with EmbeddedCluster(settings=SETTINGS) as cluster:
        found = scrape(cluster)
        assert asked.wait(120)
        assert found["ottla_broker_state"] == 2
        assert not [name for name in found if name.startswith("ottla_log_directory_free_bytes")]
        goes_on.set()
        until(lambda: 40 in [value for name, value in scrape(cluster).items() if name.startswith("ottla_log_directory_free_bytes")])


async def test_what_is_fresh_is_not_looked_up_again_and_a_failure_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Disk:
        looks = 0
        fails = False

        async def refresh(self) -> None:
            self.looks += 1
            if self.fails:
                raise OSError("the disk is gone")

    clock, disk = ManualClock(), Disk()
    freshness = Freshness(disk, 5, clock)
    for seconds, expected in ((0, 1), (4, 1), (1, 2), (1, 2)):
        clock.advance(seconds=seconds)
        await freshness.prepare()
        assert disk.looks == expected
    disk.fails = True
    clock.advance(seconds=14)
    await freshness.prepare()
    await freshness.prepare()
    assert disk.looks == 4
    await freshness.close()
    assert "reading figures for a scrape failed" in caplog.text


def test_a_flush_is_counted_and_so_is_the_session(tmp_path: Path) -> None:
    with EmbeddedCluster(settings={**SETTINGS, "log.flush.interval.messages": "1"}, topics={"clicks": 1}) as cluster:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        producer.produce("clicks", b"x")
        assert producer.flush(120) == 0
        until(lambda: scrape(cluster)["ottla_log_flush_seconds_count"] >= 1)
        found = scrape(cluster)
        assert found["ottla_zookeeper_session_state"] == 2
        assert found["ottla_zookeeper_request_seconds_count"] > 0
        assert found["ottla_zookeeper_session_expirations_total"] == 0
        cluster.expire_session(1)
        until(lambda: scrape(cluster)["ottla_zookeeper_session_expirations_total"] == 1)
        until(lambda: scrape(cluster)["ottla_zookeeper_session_state"] == 2)


@pytest.mark.usefixtures("patient")
def test_the_end_of_a_listeners_certificate_is_told(tmp_path: Path) -> None:
    from datetime import UTC, datetime, timedelta

    keystore = tmp_path / "broker.pem"
    keystore.write_bytes(Authority("ours").issue("broker"))
    settings = {
        **SETTINGS,
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
    }
    with EmbeddedCluster(settings=settings) as cluster:
        expiry = scrape(cluster)['ottla_tls_certificate_expiry_timestamp_seconds{listener="SSL"}']
    assert abs(datetime.fromtimestamp(expiry, UTC) - datetime.now(UTC) - timedelta(days=1)) < timedelta(minutes=5)


@pytest.mark.usefixtures("patient")
def test_both_formats_say_the_same() -> None:
    import urllib.request

    with EmbeddedCluster(settings=SETTINGS) as cluster:
        request = urllib.request.Request(
            f"http://127.0.0.1:{cluster._broker(1).http_port}/metrics", headers={"Accept": "application/openmetrics-text"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            families = {openmetric.name: openmetric for openmetric in parse_openmetrics(response.read().decode())}
    assert families["ottla_broker_state"].samples[0].value == 2
    assert families["ottla_group_commits"].type == "counter"

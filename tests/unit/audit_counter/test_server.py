"""A counter as it runs: its page, REST, gRPC, metrics, the command, and who is active of two. Real sockets, a real file, a real broker."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from starlette.requests import Request
from starlette.routing import Route
from tests.loops import until
from tests.unit.audit_counter.pipelines import Pipeline
from tests.unit.wire.clusters import brokers, cluster_of, create_topic, servers

from ottla.audit_counter.rest.application import AuditApplication, _listed, _page_text, _windows_listed
from ottla.audit_counter.rest.document import openapi
from ottla.audit_counter.server import AuditServer
from ottla.audit_counter.service import AuditCounter
from ottla.audit_counter.store import Store, StoreFailed, TierRow
from ottla.audit_counter.verdicts import EdgeVerdict
from ottla.cli.main import run
from ottla.clock import SystemClock
from ottla.config.audit import AuditSettings
from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.coordination.sessions import OpenSession
from ottla.errors import (
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    ConfigurationError,
    InvalidRequest,
    KafkaStorageError,
    ResourceNotFound,
)
from ottla.record.audit_records import Verdict
from ottla.rpc.certificate_dates import first_expiry
from ottla.rpc.channel import RpcChannel
from ottla.rpc.tls import RpcTls, read_tls
from ottla.rpc.v1 import audit_pb2 as messages
from ottla.testing.certificates import Authority


def settings_of(bootstrap_servers: str, directory: Path, **changes: str) -> AuditSettings:
    properties = {
        "bootstrap.servers": bootstrap_servers,
        "rest.listener": "127.0.0.1:0",
        "rpc.listener": "127.0.0.1:0",
        "http.listener": "127.0.0.1:0",
        "audit.directory": str(directory),
        **{name.replace("_", "."): value for name, value in changes.items()},
    }
    return AuditSettings.from_properties(properties)


@asynccontextmanager
async def server_of(settings: AuditSettings, open_coordination: OpenSession | None = None, name: str = "one") -> AsyncIterator[AuditServer]:
    server = AuditServer(settings, open_coordination, name=name)
    await server.start()
    try:
        await asyncio.wait_for(server.counter.wait_caught_up(), 120)
        yield server
    finally:
        await server.stop()


@pytest.mark.parametrize(("error", "why", "lines"), [(TimeoutError(), "timed out", 0), (KeyError("clicks"), "'clicks'", 1)])
async def test_a_counter_that_ends_says_why_and_what_no_one_foresaw_is_in_the_log_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, why: str, lines: int
) -> None:
    async def run(_: AuditCounter) -> None:
        raise error

    monkeypatch.setattr(AuditCounter, "run", run)
    server = AuditServer(settings_of("127.0.0.1:1", tmp_path))
    await server.start()
    try:
        assert await asyncio.wait_for(server.failed(), 30) == why
    finally:
        await server.stop()
    assert [entry.exc_info[1] for entry in caplog.records if entry.exc_info] == [error] * lines


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator[tuple[AuditServer, Pipeline]]:
    """A server, with 100 messages of which the consumer lost one."""
    async with brokers(tmp_path) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 2)
        async with server_of(settings_of(servers(running), tmp_path / "audit")) as server:
            now_ms = SystemClock().time_ms()
            line = Pipeline(running, cluster, server.counter, now_ms - now_ms % 60_000 - 120_000)
            await line.produce(100)
            await line.consume(lambda found: [message for message in found if message[:2] != (1, 7)])
            await line.say_final()
            assert (await line.summary()).is_known
            async with asyncio.timeout(120):  # of the producer and the consumer, until the log between them was read
                while {said.upstream for _, said in (await line.summary()).verdicts} != {"producer", "log"}:  # noqa: ASYNC110 - as a user
                    await asyncio.sleep(0.05)
            yield server, line


@asynccontextmanager
async def rpc_channel(port: int, tls: RpcTls | None = None) -> AsyncIterator[RpcChannel]:
    channel = RpcChannel(f"127.0.0.1:{port}", tls=tls)
    try:
        yield channel
    finally:
        await channel.close()


async def beside(function: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


def get(url: str, path: str, accept: str = "") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
    connection.request("GET", path, headers={"Accept": accept} if accept else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["content-type"], body


def test_windows_are_written_as_the_json_of_their_rows_whatever_a_group_is_called() -> None:
    empty = TierRow(
        window=0,
        tier='consumer:"%s"\\\n\u20ac',
        attempted=0,
        acknowledged=0,
        failed=0,
        count=1 << 60,
        bytes=9,
        latency_p50_ms=None,
        latency_p99_ms=None,
        latency_p999_ms=None,
    )
    rows = [empty, TierRow(**{**empty, "window": 60_000, "latency_p50_ms": 0.0, "latency_p99_ms": 12.3456789, "latency_p999_ms": 1e22})]
    assert json.loads(bytes(_windows_listed(Request({"type": "http", "headers": []}), rows).body)) == rows


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (b"text/csv", "text/csv"),
        (b"application/json, Text/CSV; q=0.5", "text/csv"),
        (b"application/json, text/csv; q=0.0", "application/json"),
        (b"text/csv;q=0,*/*", "application/json"),
        (b"", "application/json"),
    ],
)
def test_a_list_is_csv_where_it_is_asked_for_and_not_where_it_is_refused(accept: bytes, kind: str) -> None:
    """RFC 9110, 12.4.2: a weight of 0 means "not acceptable"."""
    answer = _listed(Request({"type": "http", "headers": [(b"accept", accept)]}), [{"topic": "clicks"}])
    assert answer.headers["content-type"].partition(";")[0] == kind


async def test_what_is_known_can_be_asked_for_by_rest_grpc_and_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with served(tmp_path) as (server, line):
        url, window = server.url, line.start_ms
        span = f"from={window}&to={window + 60_000}"

        async def ask(path: str, accept: str = "") -> tuple[int, Any]:
            status, kind, body = await beside(get, url, path, accept)
            return status, json.loads(body) if "json" in kind else body

        assert server._rest is not None and server._rest._limits.deadline_seconds == 60  # also for one that is sent by half
        status, topics = await ask("/v1/topics")
        assert (status, topics[0]["topic"], topics[0]["missing"]) == (200, "clicks", 1)
        assert topics[0]["messages"] == {"producer": 100, "log": 100, "consumer:billing": 99}
        _, edges = await ask(f"/v1/topics/clicks/edges?{span}")
        assert {edge["window_ms"] for edge in edges} == {60_000}
        assert {edge["edge"]: edge["verdict"] for edge in edges} == {"producer->log": "COMPLETE", "log->consumer:billing": "LOSS"}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Store, "has_topic", None)  # the store is asked once
            _, windows = await ask(f"/v1/topics/clicks/windows?{span}&tier=producer")
        assert [(row["tier"], row["attempted"], row["count"]) for row in windows] == [("producer", 100, 100)]
        assert (await ask(f"/v1/topics/clicks/windows?{span}&tier=none"))[1] == []
        _, partitions = await ask(f"/v1/topics/clicks/partitions?{span}")
        by_place = {(row["tier"], row["partition"]): row for row in partitions}
        assert sum(by_place["producer", number]["count"] for number in range(2)) == 100
        assert {row["first_offset"] for row in partitions} == {0}
        missed = [
            int(one) - int(other)
            for one, other in zip(*(by_place[tier, 1]["offsets"] for tier in ("log", "consumer:billing")), strict=True)
        ]
        assert missed == [7, 49, 343]
        assert by_place["log", 0]["placed"] == by_place["producer", 0]["placed"] != by_place["producer", 1]["placed"]
        edge = "log-%3Econsumer:billing"
        assert await ask(f"/v1/topics/clicks/missing?window={window}&edge={edge}") == (200, [{"partition": 1, "offset": 7, "times": 1}])
        _, text = await ask(f"/v1/topics/clicks/missing?window={window}&edge={edge}", "text/csv")
        assert text.splitlines() == ["partition,offset,times", "1,7,1"]
        _, sessions = await ask("/v1/sessions")
        assert {(session["tier"], session["state"]) for session in sessions} == {("producer", "final"), ("consumer:billing", "final")}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Store, "totals", None)  # of all windows, which the status needs not
            patched.setattr(Store, "sessions", None)  # nor a look at each of a week's, which took a second of a hundred thousand
            _, status_body = await ask("/v1/status?wait=10")
        assert status_body["is_active"]
        assert status_body["is_caught_up"]
        assert status_body["quarantined"] == 0
        begin = datetime.fromtimestamp(window / 1000, timezone(timedelta(hours=2))).isoformat(timespec="seconds")
        assert (await ask(f"/v1/topics/clicks/edges?from={begin}&to={window + 60_000}"))[1] == edges, "a + that is not encoded is a space"
        _, verified = await ask(f"/v1/topics/clicks/verify?{span}&tiers=producer,%20log,")
        assert (verified["verdict"], len(verified["edges"])) == ("COMPLETE", 1)
        for path, code in (
            ("/v1/topics/none/edges", 404),
            ("/v1/topics/none/windows", 404),
            ("/v1/topics/clicks/edges?from=5&to=4", 400),
            ("/v1/topics/clicks/edges?from=yesterday", 400),
            ("/v1/status?wait=nan", 400),
            ("/v1/topics/clicks/verify?wait=long", 400),
            ("/v1/topics/clicks/windows?from=0&to=99999999999999", 400),
            ("/v1/topics/clicks/missing?window=1&edge=a-%3Eb", 404),
            ("/v1/topics/clicks/missing?window=1", 400),
            ("/nowhere", 404),
        ):
            found, problem = await ask(path)
            assert (found, problem["status"], bool(problem["detail"])) == (code, code, True), path
        found, page = await ask("/")
        assert (found, "<title>Ottla audit</title>" in page) == (200, True)

        # One edge that is not known keeps no other one's messages from being named, and has none itself.
        said = [verdict for _, verdict in (await line.summary()).verdicts]
        others = [EdgeVerdict("log", "consumer:a", Verdict.PENDING, "why"), EdgeVerdict("log", "consumer:b", Verdict.UNAUDITED, "why")]
        await server.counter._in_store(server.counter._store.put_verdicts, "clicks", window, [*said, *others])
        assert await ask(f"/v1/topics/clicks/missing?window={window}&edge={edge}") == (200, [{"partition": 1, "offset": 7, "times": 1}])
        for group, known in (("a", "not known yet"), ("b", "not known")):
            found, problem = await ask(f"/v1/topics/clicks/missing?window={window}&edge=log-%3Econsumer:{group}")
            assert (found, problem["detail"]) == (409, f"window {window} is {known}: why")
            async with rpc_channel(server.rpc_port) as channel:
                asked = messages.MissingRequest(topic="clicks", window=window, edge=f"log->consumer:{group}")
                with pytest.raises(ResourceNotFound, match=f"window {window} is {known}: why"):
                    await channel.call_named("/ottla.rpc.v1.Audit/Missing", asked, messages.MissingResponse, timeout_seconds=120)
        await server.counter._in_store(server.counter._store.put_verdicts, "clicks", window, said)

        # The command, with the exit codes that a pipeline looks at.
        options = ["--counter", url]
        times = ["--from", str(window), "--to", str(window + 60_000)]
        assert await beside(run, ["audit", "verify", "-t", "clicks", *times, *options]) == 1
        assert await beside(run, ["audit", "verify", "-t", "clicks", *times, "--tiers", "producer,log", "--json", *options]) == 0
        assert await beside(run, ["audit", "verify", "-t", "other", *times, *options]) == 3
        for no_time in ("soon", "0001-01-01", "999999d"):
            assert await beside(run, ["audit", "verify", "-t", "clicks", "--from", no_time, *options]) == 2
        for words in (["status"], ["sessions"], ["missing", "-t", "clicks", "--window", str(window), "--edge", "log->consumer:billing"]):
            assert await beside(run, ["audit", *words, *options]) == 0
        printed = capsys.readouterr().out
        assert "LOSS" in printed
        assert "consumer:billing" in printed

        # gRPC.
        async with rpc_channel(server.rpc_port) as channel:
            service = messages.DESCRIPTOR.services_by_name["Audit"].full_name

            async def call(name: str, request: Any, answer: Any) -> Any:
                return await channel.call_named(f"/{service}/{name}", request, answer, timeout_seconds=120)

            verify = messages.VerifyRequest(topic="clicks", from_ms=window, to_ms=window + 1)
            verified = await call("Verify", verify, messages.VerifyResponse)
            assert (verified.verdict, verified.exit_code, len(verified.verdicts)) == ("LOSS", 1, 2)
            missing = messages.MissingRequest(topic="clicks", window=window, edge="log->consumer:billing")
            found = await call("Missing", missing, messages.MissingResponse)
            assert [(one.partition, one.offset) for one in found.messages] == [(1, 7)]
            with pytest.raises(ResourceNotFound):
                await call("Missing", messages.MissingRequest(topic="clicks", window=window, edge="a->b"), messages.MissingResponse)
            with pytest.raises(InvalidRequest):
                await call("Verify", messages.VerifyRequest(topic="clicks"), messages.VerifyResponse)
            for no_window in ((1 << 63) - 1, -1 << 63):
                with pytest.raises(InvalidRequest):
                    await call("Missing", messages.MissingRequest(topic="clicks", window=no_window, edge="a->b"), messages.MissingResponse)
            standing = await call("Status", messages.AuditStatusRequest(), messages.AuditStatusResponse)
            assert (standing.is_active, standing.is_caught_up, list(standing.topics)) == (True, True, ["clicks"])

        # Metrics, and whether it is ready.
        assert server.is_ready
        _, _, text = await beside(get, server.metrics_url, "/metrics")
        assert 'ottla_audit_missing_messages{edge="log->consumer:billing",topic="clicks"} 1.0' in text
        assert 'ottla_audit_messages{tier="producer",topic="clicks"} 100.0' in text
        assert "ottla_audit_is_active 1.0" in text
        for tier, count in (("producer", 100), ("consumer", 99)):
            assert f'ottla_audit_latency_seconds_count{{tier="{tier}"}} {count}.0' in text


async def test_what_is_not_known_yet_and_a_file_that_fails_are_problems(tmp_path: Path) -> None:
    async with brokers(tmp_path) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 2)
        async with server_of(settings_of(servers(running), tmp_path / "audit")) as server:
            now_ms = SystemClock().time_ms()
            line = Pipeline(running, cluster, server.counter, now_ms - now_ms % 60_000 - 120_000)
            await line.produce(10)
            await line.report(line.producer.records(line.now_ms - 600_000))
            async with asyncio.timeout(60):
                while not (await line.summary(0)).verdicts:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.05)

            async def problem(path: str) -> tuple[int, str, Any]:
                status, kind, body = await beside(get, server.url, path)
                return status, kind, json.loads(body)

            status, kind, body = await problem(f"/v1/topics/clicks/missing?window={line.start_ms}&edge=producer-%3Elog")
            assert (status, kind, body["status"], body["title"]) == (409, "application/problem+json", 409, "Conflict")
            assert body["detail"].startswith(f"window {line.start_ms} is not known: ")
            file = server.counter._store._connection
            file.set_progress_handler(lambda: 1, 1)  # SQLite ends whatever is asked
            for path in ("/v1/topics", "/v1/topics/clicks/windows", "/v1/sessions", "/v1/status"):
                status, kind, body = await problem(path)
                assert (status, kind, body["status"]) == (503, "application/problem+json", 503), path
                assert (body["title"], bool(body["detail"])) == ("Service Unavailable", True)
            with pytest.raises(KafkaStorageError, match="the audit counter's file fails: interrupted"):
                async with rpc_channel(server.rpc_port) as channel:
                    await channel.call_named(
                        "/ottla.rpc.v1.Audit/Status", messages.AuditStatusRequest(), messages.AuditStatusResponse, timeout_seconds=120
                    )
            file.set_progress_handler(None, 1)


async def test_a_counter_judges_what_it_was_stopped_before_it_had_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with brokers(tmp_path / "brokers") as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 2)
        settings = settings_of(servers(running), tmp_path / "audit", audit_verify="records")
        now_ms = SystemClock().time_ms()
        with monkeypatch.context() as stopped:

            async def judge_nothing(*windows: object) -> None:
                """As a counter that is killed here."""

            stopped.setattr(AuditCounter, "_judge", judge_nothing)
            async with server_of(settings) as server:
                line = Pipeline(running, cluster, server.counter, now_ms - now_ms % 60_000 - 120_000)
                await line.produce(100)
                await line.consume(lambda found: [message for message in found if message[:2] != (1, 7)])
                await line.say_final()
                await server.counter.wait_read(120)
                assert not (await line.summary(wait_seconds=0)).verdicts
        async with server_of(settings) as server:
            summary = await server.counter.summary("clicks", 0, 1 << 60, wait_seconds=120)
            assert {said.edge: (str(said.verdict), len(said.named)) for _, said in summary.verdicts} == {
                "producer->log": ("COMPLETE", 0),
                "log->consumer:billing": ("LOSS", 1),
            }


async def test_verdicts_are_sent_as_they_change(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, line):

        def listen(started: Callable[[], None]) -> str:
            connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
            connection.request("GET", "/v1/events?topic=clicks")
            answer = connection.getresponse()
            assert answer.readline() == b"retry: 2000\n"
            started()
            while not (text := answer.readline().decode()).startswith("data:"):
                pass
            connection.close()
            return text

        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        listening = asyncio.ensure_future(beside(listen, lambda: loop.call_soon_threadsafe(begun.set)))
        await begun.wait()
        await line.produce(10)
        await line.report(line.producer.records(line.now_ms))
        event = json.loads((await listening).removeprefix("data: "))
        assert (event["topic"], event["window"]) == ("clicks", line.start_ms)


async def test_of_two_counters_one_is_active_and_the_other_takes_over(tmp_path: Path) -> None:
    """With its own file, brought up to date by reading; the term in the file refuses what is past."""
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(brokers(tmp_path))
        cluster = await stack.enter_async_context(cluster_of(running))
        await create_topic(cluster, "clicks", 2)
        zookeeper = EmbeddedZooKeeper(tmp_path / "zookeeper", SystemClock())
        stack.push_async_callback(zookeeper.close)
        first = AuditServer(settings_of(servers(running), tmp_path / "a"), zookeeper.session, name="a")
        await first.start()
        second = await stack.enter_async_context(server_of(settings_of(servers(running), tmp_path / "b"), zookeeper.session, "b"))
        await until(lambda: first.counter.is_active)
        assert not second.counter.is_active
        now_ms = SystemClock().time_ms()
        line = Pipeline(running, cluster, second.counter, now_ms - now_ms % 60_000 - 120_000)
        await line.produce(20)
        await line.say_final()
        await first.stop()
        # The standby has no log of its own to go by until it is active.
        summary = await line.summary()
        assert second.counter.is_active
        assert second.counter.epoch == 2
        assert summary.exit_code == 0
        with pytest.raises(StoreFailed, match="term 1 is over"):
            await second.counter.activate(1)


async def test_brokers_are_reached_over_tls(tmp_path: Path) -> None:
    keystore, truststore = (str(path) for path in Authority("tests").write(tmp_path, "broker"))
    own: dict[str, Any] = {"ssl_keystore_location": keystore, "ssl_keystore_type": "PEM", "listeners": "SSL://127.0.0.1:0"}
    others: dict[str, Any] = {"ssl_truststore_location": truststore, "ssl_truststore_type": "PEM", "security_inter_broker_protocol": "SSL"}
    async with brokers(tmp_path, **own, **others) as running:
        directory, trusted = tmp_path / "audit", {"security_protocol": "SSL", "ssl_truststore_location": truststore}
        async with server_of(settings_of(servers(running), directory, **trusted)) as server:
            await asyncio.wait_for(server.counter.wait_read(60), 120)


def test_the_page_asks_below_its_own_address_so_that_a_proxy_may_have_it_below_a_path() -> None:
    asked = re.findall(r"""["'`](/?v1/[^"'`]*)["'`]""", _page_text())
    assert len(asked) == 5
    assert {urljoin("https://proxy/audit/", path).removesuffix(path) for path in asked} == {"https://proxy/audit/"}


def test_the_description_of_the_api_has_every_route() -> None:
    application = AuditApplication(None, SystemClock()).application  # type: ignore[arg-type]
    routes = {route.path for route in application.routes if isinstance(route, Route)}
    assert routes - {"/"} == set(openapi()["paths"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("audit_tiers", "producer,moon"), ("rest_listener", "nowhere"), ("audit_window_ms", "5"), ("audit_verify", "perhaps")],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name.replace("_", r"\.")):
        settings_of("localhost:9092", tmp_path, **{name: value})


async def test_over_tls_an_operator_is_answered_and_no_one_else_that_the_authority_has_signed(tmp_path: Path) -> None:
    authority = Authority("ours")
    keystore, truststore = authority.write(tmp_path, "counter")

    def tls_of(name: str) -> RpcTls:
        own, trusted = authority.write(tmp_path, name)
        return read_tls(keystore=own, truststore=trusted)

    secured = {
        "rpc_security_protocol": "SSL",
        "rpc_allowed_principals": "ann",
        "listener_name_rpc_ssl_keystore_location": keystore,
        "listener_name_rpc_ssl_truststore_location": truststore,
    }
    path = f"/{messages.DESCRIPTOR.services_by_name['Audit'].full_name}/Status"
    async with brokers(tmp_path) as running, server_of(settings_of(servers(running), tmp_path / "audit", **secured)) as server:
        _, _, scraped = await beside(get, server.metrics_url, "/metrics")
        (ends,) = re.findall(r'ottla_tls_certificate_expiry_timestamp_seconds\{listener="RPC"\} (\S+)', scraped)
        assert float(ends) == first_expiry(await beside(Path(keystore).read_text))
        for tls, error in ((tls_of("ann"), None), (tls_of("some-consumer"), ClusterAuthorizationFailed), (None, BrokerNotAvailable)):
            async with rpc_channel(server.rpc_port, tls) as channel:
                call = channel.call_named(path, messages.AuditStatusRequest(), messages.AuditStatusResponse, 60)
                if error is None:
                    assert (await call).is_active
                else:
                    with pytest.raises(error):
                        await call

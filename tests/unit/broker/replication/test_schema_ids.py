"""Schema ids in records: where they stand, which fit a topic, and what becomes of a batch while no registry answers.

Sources: Confluent, "Wire format" (00 and an id; 01 and a GUID in a header) and "Validate schema ids on brokers".
"""

from __future__ import annotations

import asyncio
import base64
import gc
import http.server
import json
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loops import until

from ottla.broker.replication import schema_claims as claiming
from ottla.broker.replication import schema_ids
from ottla.broker.replication.schema_claims import Claim, schema_claims
from ottla.broker.replication.schema_ids import ASKED_AGAIN_SECONDS, CACHED_IDS, SchemaIds
from ottla.config.topic import TopicSettings
from ottla.errors import ConfigurationError, InvalidRecord, RequestTimedOut
from ottla.model import TopicPartition
from ottla.record.batch import HEADER_SIZE
from ottla.record.records import Record, build_batch, encode_headers, read_records
from ottla.testing.clock import ManualClock

CLICKS = TopicPartition("clicks", 0)
GUID = uuid.UUID("89791762-2336-4186-9674-299b90a802e2")
VALUES = TopicSettings(confluent_value_schema_validation=True)
BOTH = TopicSettings(confluent_value_schema_validation=True, confluent_key_schema_validation=True)


def framed(number: int, payload: bytes = b"x") -> bytes:
    return b"\0" + number.to_bytes(4, "big", signed=True) + payload


def claims_of(settings: TopicSettings, *records: tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]) -> Any:
    made = build_batch([Record(index, 1, *record) for index, record in enumerate(records)])
    return schema_claims(made, settings)


def test_both_framings_are_read_and_null_needs_no_schema() -> None:
    in_header = (("__value_schema_id", b"\1" + GUID.bytes), ("other", b"1"))
    found = claims_of(VALUES, (None, framed(7), ()), (b"k", framed(8), ()), (b"k", None, ()), (None, framed(7), ()), (None, b"", in_header))
    assert found == {
        Claim(is_key=False, frame=framed(7, b"")): [0, 3],
        Claim(is_key=False, frame=framed(8, b"")): [1],
        Claim(is_key=False, frame=b"\1" + GUID.bytes): [4],
    }
    both = claims_of(BOTH, (framed(1), framed(7), ()), (framed(2), framed(7), (("__key_schema_id", framed(3, b"")),)))
    assert both == {
        Claim(is_key=True, frame=framed(1, b"")): [0],
        Claim(is_key=False, frame=framed(7, b"")): [0, 1],
        Claim(is_key=True, frame=framed(3, b"")): [1],
    }


@pytest.mark.parametrize(
    ("value", "headers"),
    [
        (b"", ()),
        (b"\0\0\0\0", ()),
        (b'{"a":1}', ()),
        (b"\1" + GUID.bytes, ()),  # a GUID stands in a header only
        (framed(7), (("__value_schema_id", b""),)),
        (framed(7), (("__value_schema_id", b"\1" + GUID.bytes[:-1]),)),
        (framed(7), (("__value_schema_id", b"\2" + GUID.bytes),)),
    ],
)
def test_a_record_without_an_id_is_named(value: bytes, headers: tuple[tuple[str, bytes], ...]) -> None:
    with pytest.raises(InvalidRecord) as refused:
        claims_of(VALUES, (None, framed(7), ()), (None, value, headers))
    assert refused.value.record_errors == ((1, "the value has no id of a schema"),)


@given(st.lists(st.binary(max_size=20) | st.none(), min_size=1, max_size=30))
def test_each_record_is_claimed_refused_or_null(contents: list[bytes | None]) -> None:
    without = [index for index, content in enumerate(contents) if content is not None and not (len(content) >= 5 and content[0] == 0)]
    try:
        claims = claims_of(VALUES, *((None, content, ()) for content in contents))
    except InvalidRecord as refused:
        assert [index for index, _ in refused.record_errors] == without
        return
    assert not without
    claimed = {index: claim.frame for claim, indexes in claims.items() for index in indexes}
    assert claimed == {index: content[:5] for index, content in enumerate(contents) if content is not None}


CONTENTS = st.none() | st.binary(max_size=8) | st.binary(min_size=60, max_size=200) | st.just(framed(7))
HEADERS = st.sampled_from([(), (), ((claiming._VALUE_HEADER, b"\1" + GUID.bytes),), (("other", None),)])


def frames_of(batch: bytes) -> tuple[set[bytes | None], set[bytes | None]]:
    """What `plain_frames` should find, with each record read; raises InvalidRecord where a batch cannot be."""
    records = list(read_records(batch))
    if [record.offset for record in records] != [*range(len(records))]:
        raise InvalidRecord("the offsets have gaps")
    return {claiming._frame(record, is_key=True) for record in records}, {claiming._frame(record, is_key=False) for record in records}


@given(st.lists(st.tuples(CONTENTS, CONTENTS, HEADERS, st.integers(0, 10**6)), min_size=1, max_size=80), st.sampled_from([0, 0, 1]))
def test_both_ways_to_read_the_frames_of_a_batch_find_the_same(records: list[Any], codec: int) -> None:
    """The quick one leaves to the other what is compressed or has headers."""
    made = build_batch([Record(index, at, key, value, headers) for index, (key, value, headers, at) in enumerate(records)], codec=codec)
    quick = claiming.plain_frames(made, of_keys=True)
    assert (quick is None) == (codec != 0 or any(headers for _, _, headers, _ in records))
    assert quick in (None, frames_of(made))


@given(st.lists(st.tuples(CONTENTS, CONTENTS, HEADERS), min_size=1, max_size=80))
def test_headers_are_passed_over_where_no_id_is_looked_for(records: list[Any]) -> None:
    """As many as are read on the loop: of records whose headers change from one to the next only the first ones."""
    made = build_batch([Record(index, 1, *record) for index, record in enumerate(records)])
    sizes = [len(encode_headers(headers)) for _, _, headers in records]
    taken_apart = [
        size for size, before, now in zip(sizes, [(), *(record[2] for record in records)], records, strict=False) if before != now[2]
    ]
    quick = claiming.plain_frames(made, of_keys=True, passes_headers=True)
    assert (quick is None) == (sum(taken_apart) > claiming.PLAIN_HEADERS_BYTES)
    without = build_batch([Record(index, 1, key, value) for index, (key, value, _) in enumerate(records)])
    assert quick in (None, frames_of(without))


@given(st.integers(0, 300), st.binary(min_size=1, max_size=3))
def test_broken_headers_are_not_passed_over(position: int, put: bytes) -> None:
    headers = ("ottla.epoch", b"7"), ("other", None)
    records = [
        Record(0, 1, b"k", framed(7), headers),
        Record(1, 9, None, framed(8), headers),
        Record(2, 5, b"z" * 70, b"", (*headers, *headers)),
    ]
    made = bytearray(build_batch(records))
    start = HEADER_SIZE + position % (len(made) - HEADER_SIZE)
    made[start : start + len(put)] = put[: len(made) - start]
    try:
        read = list(read_records(made))
        assert [record.offset for record in read] == [0, 1, 2]
    except (InvalidRecord, AssertionError):
        assert claiming.plain_frames(bytes(made), of_keys=True, passes_headers=True) is None
        return
    has_null_key = any(record.key is None for record in read)
    quick = claiming.plain_frames(bytes(made), of_keys=True, passes_headers=True)
    assert quick is None or (b"" in quick[0]) == has_null_key


@given(st.integers(0, 300), st.binary(min_size=1, max_size=3))
def test_a_broken_payload_is_not_read_quickly_where_it_is_not_read_at_all(position: int, put: bytes) -> None:
    made = bytearray(
        build_batch([Record(0, 1, b"k", framed(7)), Record(1, 900, None, framed(8, b"y" * 100)), Record(2, 5, b"z" * 70, b"")])
    )
    payload = len(made) - HEADER_SIZE
    start = HEADER_SIZE + position % payload
    made[start : start + len(put)] = put[: len(made) - start]
    try:
        slow = frames_of(bytes(made))
    except InvalidRecord:
        assert claiming.plain_frames(bytes(made), of_keys=True) is None
        return
    assert claiming.plain_frames(bytes(made), of_keys=True) in (None, slow)


@given(st.integers(1, 70), st.none() | st.binary(max_size=70), st.integers(60, 200) | st.just(8_190), st.lists(st.binary(min_size=2)))
def test_records_of_one_size_are_read_together_or_one_by_one(count: int, key: bytes | None, size: int, puts: list[bytes]) -> None:
    made = bytearray(build_batch([Record(index, 9, key, framed(7, b"y" * size)) for index in range(count)]))
    assert claiming.plain_frames(bytes(made), of_keys=False) in (None, ({b""} if key is None else set(), {framed(7)[:5]}))
    for put in puts[:2]:
        made[HEADER_SIZE + int.from_bytes(put[:-1]) % (len(made) - HEADER_SIZE)] = put[-1]
    try:
        keys, values = frames_of(bytes(made))
    except InvalidRecord:
        assert claiming.plain_frames(bytes(made), of_keys=False) is None
        return
    assert claiming.plain_frames(bytes(made), of_keys=False) in (None, (keys & {b""}, values))


class Registry(http.server.BaseHTTPRequestHandler):
    """Answers from `subjects`, and counts what it is asked."""

    subjects: dict[str, list[str]]
    guids: dict[str, list[dict[str, Any]]]
    asked: list[str]
    authorizations: list[str | None]
    status: int = 200

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.authorizations.append(self.headers["Authorization"])
        words = self.path.strip("/").split("/")
        found: Any = self.guids.get(words[2])
        if words[1] == "ids":
            found = None if words[2] not in self.subjects else [{"subject": name, "version": 1} for name in self.subjects[words[2]]]
        body = json.dumps({"error_code": 40403, "message": "Schema not found"} if found is None else found).encode()
        self.send_response(404 if found is None and self.status == 200 else self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not to stderr."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry is a thread of this process, which may have to wait for its turn."""
    monkeypatch.setattr(schema_ids, "ANSWER_SECONDS", 120.0)
    monkeypatch.setattr(schema_ids, "LOOK_UP_SECONDS", 120.0)


@pytest.fixture
def registry() -> Iterator[tuple[type[Registry], str]]:
    class Handler(Registry):
        subjects: dict[str, list[str]] = {"7": ["clicks-value"], "8": ["orders-value", "clicks-eu.Click"]}  # noqa: RUF012
        guids: dict[str, list[dict[str, Any]]] = {str(GUID): [{"context": ".", "id": 7}, {"context": ".eu", "id": 8}]}  # noqa: RUF012
        asked: list[str] = []  # noqa: RUF012
        authorizations: list[str | None] = []  # noqa: RUF012

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield Handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def checked(ids: SchemaIds, *frames: bytes, settings: TopicSettings = VALUES, topic: str = "clicks") -> tuple[tuple[int, str], ...]:
    """What is wrong with records that have these ids, one each."""

    async def check() -> tuple[tuple[int, str], ...]:
        try:
            await ids.check({Claim(is_key=False, frame=frame): [index] for index, frame in enumerate(frames)}, topic, settings)
        except InvalidRecord as refused:
            return refused.record_errors
        return ()

    return asyncio.run(check())


def test_an_id_must_be_registered_under_the_topics_subject(registry: tuple[type[Registry], str]) -> None:
    handler, url = registry
    ids = SchemaIds([url], "somebody:secret")
    assert checked(ids, framed(7, b"")) == ()
    assert checked(ids, framed(7, b""), framed(8, b""), framed(9, b""), b"\1" + GUID.bytes) == (
        (1, "the schema id 8 of the value is not registered under the subject clicks-value"),
        (2, "the schema id 9 of the value is not registered under the subject clicks-value"),
    )
    assert set(handler.authorizations) == {"Basic c29tZWJvZHk6c2VjcmV0"}
    ids.close()


@pytest.mark.parametrize(
    ("strategy", "fitting"),
    [
        ("TopicNameStrategy", {7}),
        ("io.confluent.kafka.serializers.subject.TopicNameStrategy", {7}),
        ("TopicRecordNameStrategy", {7, 8}),
        ("io.confluent.kafka.serializers.subject.RecordNameStrategy", {7, 8}),
    ],
)
def test_the_strategy_says_which_subject_that_is(registry: tuple[type[Registry], str], strategy: str, fitting: set[int]) -> None:
    ids = SchemaIds([registry[1]])
    settings = TopicSettings(confluent_value_schema_validation=True, confluent_value_subject_name_strategy=strategy)
    wrong = checked(ids, *(framed(number, b"") for number in (7, 8, 9)), settings=settings)
    assert {7, 8, 9} - {7 + index for index, _ in wrong} == fitting
    # What was asked is known without waiting, on the loop.
    assert {number for number in (7, 8, 9, 10) if ids.fit({None}, {framed(number, b""), b""}, "clicks", settings)} == fitting
    assert not ids.fit({None}, {framed(7, b""), None}, "clicks", settings)
    ids.close()


def test_a_strategy_that_is_none_is_refused() -> None:
    definition = TopicSettings.definitions()["confluent.value.subject.name.strategy"]
    with pytest.raises(ConfigurationError, match="must be one of TopicNameStrategy"):
        definition.parse("com.example.MyStrategy")


def test_what_fits_is_asked_once_and_what_does_not_again_after_a_second(registry: tuple[type[Registry], str]) -> None:
    handler, url = registry
    clock = ManualClock()
    ids = SchemaIds([url], clock=clock)
    for _ in range(3):
        assert checked(ids, framed(7, b"")) == ()
        assert len(checked(ids, framed(9, b""))) == 1
    assert handler.asked == ["/schemas/ids/7/versions", "/schemas/ids/9/versions"]
    handler.subjects["9"] = ["clicks-value"]
    assert len(checked(ids, framed(9, b""))) == 1
    clock.advance(seconds=ASKED_AGAIN_SECONDS)
    assert checked(ids, framed(9, b"")) == ()
    del handler.subjects["9"]
    clock.advance(seconds=100)
    assert checked(ids, framed(9, b"")) == ()
    assert len(handler.asked) == 3
    ids.close()


async def test_requests_for_one_unknown_id_ask_once(registry: tuple[type[Registry], str]) -> None:
    handler, url = registry
    ids = SchemaIds([url])
    claims = {Claim(is_key=False, frame=framed(7, b"")): [0]}
    await asyncio.gather(*(ids.check(claims, "clicks", VALUES) for _ in range(50)))
    assert handler.asked == ["/schemas/ids/7/versions"]
    ids.close()


def test_the_cache_is_bounded(registry: tuple[type[Registry], str], monkeypatch: pytest.MonkeyPatch) -> None:
    handler, url = registry
    assert CACHED_IDS <= 100_000
    monkeypatch.setattr(schema_ids, "CACHED_IDS", 2)
    handler.subjects |= {str(number): ["clicks-value"] for number in range(5)}
    ids = SchemaIds([url])
    for number in range(5):
        assert checked(ids, framed(number, b"")) == ()
    assert checked(ids, framed(4, b""), framed(3, b"")) == ()
    assert len(handler.asked) == 5
    assert checked(ids, framed(0, b"")) == ()
    assert len(handler.asked) == 6
    ids.close()


def test_without_a_registry_known_ids_pass_and_unknown_ones_time_out(registry: tuple[type[Registry], str]) -> None:
    """The producer sends a batch again that was answered with REQUEST_TIMED_OUT. An error of the registry's is no answer either."""
    handler, url = registry
    ids = SchemaIds([url])
    assert checked(ids, framed(7, b"")) == ()
    handler.status = 500
    assert checked(ids, framed(7, b"")) == ()
    with pytest.raises(RequestTimedOut, match="the schema id 8 is not known here"):
        checked(ids, framed(8, b""))
    handler.status = 200
    assert checked(ids, framed(8, b""), topic="orders") == ()
    ids.close()


def test_a_name_and_password_in_the_address_are_sent_and_never_logged(
    registry: tuple[type[Registry], str], caplog: pytest.LogCaptureFixture
) -> None:
    """As Confluent's clients take them, quoted; `confluent.basic.auth.user.info` counts for more."""
    handler, url = registry
    secret = url.replace("://", "://ottla:p%40ss@")
    ids = SchemaIds([secret])
    assert checked(ids, framed(7, b"")) == ()
    handler.status = 500
    with pytest.raises(RequestTimedOut):
        checked(ids, framed(8, b""))
    ids.close()
    other = SchemaIds([secret], "other:one")
    with pytest.raises(RequestTimedOut):
        checked(other, framed(8, b""))
    other.close()
    sent = [base64.b64decode((header or "Basic ").removeprefix("Basic ")).decode() for header in handler.authorizations]
    assert sent == ["ottla:p@ss", "ottla:p@ss", "other:one"]
    assert f"no schema registry of {url} answers" in caplog.text
    assert "p%40ss" not in caplog.text and "p@ss" not in caplog.text


@pytest.mark.parametrize("entry", [{"context": "."}, {"id": None}, {"id": "seven"}])
def test_an_answer_without_what_is_asked_for_is_no_answer(registry: tuple[type[Registry], str], entry: dict[str, Any]) -> None:
    handler, url = registry
    handler.guids = {str(GUID): [entry]}
    ids = SchemaIds([url])
    with pytest.raises(RequestTimedOut, match=f"the schema id {GUID} is not known here"):
        checked(ids, b"\1" + GUID.bytes)
    ids.close()


async def test_a_registry_that_fails_when_no_one_waits_any_more_is_no_error_of_the_brokers(
    registry: tuple[type[Registry], str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handler, url = registry
    handler.status = 500
    ids = SchemaIds([url])
    monkeypatch.setattr(schema_ids, "LOOK_UP_SECONDS", 0.0)
    with pytest.raises(RequestTimedOut):
        await ids.check({Claim(is_key=False, frame=framed(7, b"")): [0]}, "clicks", VALUES)
    await until(lambda: not vars(ids)["_asking"])
    gc.collect()
    assert handler.asked
    assert "never retrieved" not in caplog.text
    ids.close()


def test_the_next_registry_is_asked_when_one_is_away(registry: tuple[type[Registry], str]) -> None:
    ids = SchemaIds(["http://127.0.0.1:1", registry[1]])
    assert checked(ids, framed(7, b"")) == ()
    ids.close()


def test_a_broker_that_knows_no_registry_takes_nothing_for_such_a_topic() -> None:
    ids = SchemaIds()
    with pytest.raises(InvalidRecord, match=r"confluent\.schema\.registry\.url is not set"):
        asyncio.run(ids.check({}, "clicks", VALUES))
    ids.close()

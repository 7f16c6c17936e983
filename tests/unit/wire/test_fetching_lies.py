"""The fetch loop against a broker whose answers are cut, changed or made up: what is delivered is right, and nothing hangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.wire.fakes import Asked, FakeChannel, api_versions, connecting, one_partition

from ottla.errors import TopicAuthorizationFailed
from ottla.model import Endpoint, TopicPartition
from ottla.protocol import fetch, produce
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch import FetchAnswer, FetchRequest
from ottla.protocol.produce import PartitionAnswer
from ottla.record.batch import read_header
from ottla.record.records import Record, build_batch
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.fetching import Fetched, Fetcher, FetchFailed, FetchSettings
from ottla.wire.offsets import LATEST
from ottla.wire.producing import BatchProducer, ProduceSettings

CLICKS = TopicPartition("clicks", 0)
TOPIC_ID = UUID(int=7)
COUNT = 12
LOG = [build_batch([Record(offset, 0, None, b"%d" % offset)], base_offset=offset, leader_epoch=5) for offset in range(COUNT)]


def requested(asked: Asked) -> FetchRequest:
    return fetch.decode_request(asked.frame[asked.body_position :], asked.version)


async def first_from(fetcher: Fetcher) -> Fetched:
    async with asyncio.timeout(120):
        while not (arrived := await fetcher.poll(5.0)):
            pass
    return arrived[0]


class Liar:
    """A broker with one partition, which speaks the truth but for some of its answers to Fetch."""

    def __init__(self, random: Random, share: float, log: Sequence[bytes] = LOG) -> None:
        self.random = random
        self.share = share
        self.log = log
        self.lies = 0

    def __call__(self, asked: Asked) -> bytes | Exception | None:
        match asked.key:
            case ApiKey.API_VERSIONS:
                return api_versions(asked)
            case ApiKey.METADATA:
                return one_partition(asked, TOPIC_ID)
            case _:
                return self.fetch(asked)

    def fetch(self, asked: Asked) -> bytes | Exception | None:
        request = requested(asked)
        if request.session_epoch > 0:
            return self.answer(asked, [], 70)  # FETCH_SESSION_ID_NOT_FOUND: here are none
        ((topic, (wanted,)),) = request.topics
        if wanted.fetch_offset >= COUNT:
            return self.answer(asked, [(topic, [FetchAnswer(0, 0, COUNT, COUNT, 0)])])
        records = self.log[wanted.fetch_offset]
        answer = FetchAnswer(0, 0, COUNT, COUNT, 0, records=records)
        whole = bytearray(self.answer(asked, [(topic, [answer])]))
        if self.random.random() >= self.share:
            return bytes(whole)
        self.lies += 1
        end_of_head = bytes(whole).index(records)
        match self.random.choice(("cut", "head", "crc", "other", "made up", "lost")):
            case "cut":
                return bytes(whole[: self.random.randrange(len(whole))])
            case "head":
                whole[self.random.randrange(end_of_head)] = self.random.randrange(256)
            case "crc":
                whole[end_of_head + self.random.randrange(17, len(records))] ^= 1 << self.random.randrange(8)
            case "other":
                whole[0] ^= 1
            case "made up":
                return bytes(whole[:4]) + self.random.randbytes(self.random.randrange(80))
            case _:
                return ConnectionError("lost")
        return bytes(whole)

    def answer(self, asked: Asked, topics: Any, error_code: int = 0) -> bytes:
        pieces = fetch.encode_response(asked.version, error_code, 0, topics)
        return asked.frame[4:8].tobytes() + b"\0" + b"".join(piece for piece in pieces if isinstance(piece, bytes))


@settings(deadline=None, max_examples=examples(40))
@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.2, 0.6]))
def test_what_is_delivered_is_the_log_however_the_broker_lies(seed: int, share: float) -> None:
    random = Random(seed)
    liar = Liar(random, share)

    async def main() -> list[Fetched]:
        quick = ClusterSettings(retry_backoff_seconds=0.0001, retry_backoff_max_seconds=0.0002, request_timeout_seconds=5.0)
        got: list[Fetched] = []
        async with (
            Cluster("broker:9092", quick, random=random, connect=connecting(liar)) as cluster,
            Fetcher(cluster) as fetcher,
            asyncio.timeout(120),
        ):
            fetcher.assign(CLICKS, 0)
            while len(got) < COUNT:
                try:
                    got += await fetcher.poll(5.0)
                except FetchFailed as failed:  # a checksum, or an error code that the broker never gave
                    assert failed.offset == (got[-1].next_offset if got else 0)
                    fetcher.assign(CLICKS, failed.offset)
        return got

    got = asyncio.run(main())
    assert [bytes(fetched.records) for fetched in got] == LOG
    assert [fetched.next_offset for fetched in got] == [read_header(batch).last_offset + 1 for batch in LOG]


async def test_what_is_read_but_not_handed_over_yet_does_not_count_as_come() -> None:
    """Who looks at `assigned` between two polls takes all below those offsets for read; who continues after a failure begins there."""
    liar = Liar(Random(1), 0.0)
    for turns in range(24):
        async with Cluster("broker:9092", random=Random(1), connect=connecting(liar)) as cluster, Fetcher(cluster) as fetcher:
            fetcher.assign(CLICKS, 0)
            got: list[Fetched] = []
            for _ in range(turns):
                if fetcher._arrived:
                    got += await fetcher.poll(0.0)
                assert fetcher.assigned == {CLICKS: got[-1].next_offset if got else 0}
                await asyncio.sleep(0)
            fetcher.fail(fetcher._places[CLICKS], TopicAuthorizationFailed("not any more"))
            with pytest.raises(FetchFailed) as failed:
                while True:
                    got += await fetcher.poll(5.0)
            assert failed.value.offset == (got[-1].next_offset if got else 0)


async def test_a_partition_that_no_one_led_for_long_is_read_on_when_its_leader_does_not_know_it_at_first() -> None:
    """A broker that starts has not been told of its partitions yet; only a topic that stays unknown is gone."""

    class Starting(Liar):
        answers = iter((3, 0))
        led_from = 0.0

        def fetch(self, asked: Asked) -> bytes | Exception | None:
            request = requested(asked)
            if not request.topics:
                return self.answer(asked, [], 70)
            code = 6 if asyncio.get_running_loop().time() < self.led_from else next(self.answers, 0)
            if not code:
                return super().fetch(asked)
            return self.answer(asked, [(request.topics[0][0], [FetchAnswer(0, code, -1, -1, 0)])])

    starting = Starting(Random(1), 0.0)
    quick = ClusterSettings(retry_backoff_seconds=0.001, retry_backoff_max_seconds=0.002, api_timeout_seconds=0.05)
    async with (
        Cluster("broker:9092", quick, random=Random(1), connect=connecting(starting)) as cluster,
        Fetcher(cluster) as fetcher,
        asyncio.timeout(120),
    ):
        starting.led_from = asyncio.get_running_loop().time() + 2 * quick.api_timeout_seconds
        fetcher.assign(CLICKS, 0)
        assert (await first_from(fetcher)).offset == 0


async def test_a_topic_that_was_refused_for_a_while_is_asked_for_again() -> None:
    """What was known of it before stays no reason to ask no broker: rights that are given back would be refused from memory for ever."""
    error_codes = iter((0, 29))

    class Refusing(Liar):
        def __call__(self, asked: Asked) -> bytes | Exception | None:
            if asked.key is ApiKey.METADATA:
                return one_partition(asked, TOPIC_ID, error_code=next(error_codes, 0))
            return super().__call__(asked)

    refusing = connecting(Refusing(Random(1), 0.0))
    async with Cluster("broker:9092", random=Random(1), connect=refusing) as cluster, Fetcher(cluster) as fetcher:
        await cluster.refresh(("clicks",))
        await cluster.refresh(("clicks",))
        with pytest.raises(TopicAuthorizationFailed):
            cluster.metadata.topic("clicks")
        fetcher.assign(CLICKS, 0)
        assert (await first_from(fetcher)).offset == 0


class Leading(Liar):
    """Broker 1 of two, leader of partition 0 of `clicks`, which has an id, and of `views`, which has none."""

    leads = (1, 5)  # who, and in which leader epoch

    def __init__(self) -> None:
        super().__init__(Random(1), 0.0)

    def __call__(self, asked: Asked) -> bytes | Exception | None:
        if asked.key is not ApiKey.METADATA:
            return super().__call__(asked)
        schema = asked.schema
        partition = schema(
            "MetadataResponsePartition",
            partition_index=0,
            leader_id=self.leads[0],
            leader_epoch=self.leads[1],
            error_code=0,
            replica_nodes=(1, 2),
            isr_nodes=(1, 2),
            offline_replicas=(),
        )
        topics = [
            schema(
                "MetadataResponseTopic",
                error_code=0,
                name=name,
                topic_id=topic_id,
                is_internal=False,
                partitions=[partition],
                topic_authorized_operations=0,
            )
            for name, topic_id in (("clicks", TOPIC_ID), ("views", None))
        ]
        brokers = [schema("MetadataResponseBroker", node_id=number, host=f"broker-{number}", port=9092, rack=None) for number in (1, 2)]
        return asked.answer(throttle_time=0, brokers=brokers, cluster_id="c", controller_id=1, topics=topics)


async def test_no_more_is_asked_of_two_brokers_at_once_than_there_is_room_for() -> None:
    """Also when both have answered within one turn of the loop, as while another's checksums were compared."""
    size = len(LOG[0])
    settings = FetchSettings(max_buffered_bytes=2 * size)
    leading = connecting(Leading())
    async with Cluster("broker-1:9092", random=Random(1), connect=leading) as cluster, Fetcher(cluster, settings) as fetcher:
        views = TopicPartition("views", 0)
        await cluster.refresh(("clicks", "views"))
        assert cluster.metadata.hint(views, (2, 6), {})
        fetcher.assign(CLICKS, 0)
        fetcher.assign(views, 0)
        await asyncio.sleep(0.1)
        assert fetcher._buffered == 3 * size  # the first who was answered has asked once more, and then it was full


async def test_a_replica_is_read_from_for_a_time_and_then_the_leader_says_again_which() -> None:
    """KIP-392, as Kafka's consumer: after `metadata.max.age.ms`. One that has fallen behind for good would be read from for ever."""
    asked_brokers: list[str] = []

    class Following(Leading):
        def fetch(self, asked: Asked) -> bytes | Exception | None:
            ((topic, _),) = requested(asked).topics
            return self.answer(asked, [(topic, [FetchAnswer(0, 0, 0, 0, 0)])])

    class Referring(Leading):
        def fetch(self, asked: Asked) -> bytes | Exception | None:
            if "broker-2" in asked_brokers:
                return super().fetch(asked)
            ((topic, _),) = requested(asked).topics
            return self.answer(asked, [(topic, [FetchAnswer(0, preferred_read_replica=2)])])

    async def connect(endpoint: Endpoint) -> FakeChannel:
        broker = Following() if endpoint.host == "broker-2" else Referring()

        def answer(asked: Asked) -> bytes | Exception | None:
            if asked.key is ApiKey.FETCH:
                asked_brokers.append(endpoint.host)
            return broker(asked)

        return FakeChannel(answer)

    soon = ClusterSettings(metadata_max_age_seconds=0.2)
    async with Cluster("broker-1:9092", soon, random=Random(1), connect=connect) as cluster, Fetcher(cluster) as fetcher:
        fetcher.assign(CLICKS, 0)
        arrived = await first_from(fetcher)
        assert arrived.offset == 0 and "broker-2" in asked_brokers


async def test_a_replica_that_was_not_heard_of_is_looked_up_and_the_leader_asked_meanwhile_after_a_pause() -> None:
    """KIP-392: as Kafka's Fetcher.selectReadReplica. The leader answers at once, so it was asked again thousands of times a second."""
    asked_of: list[tuple[str, ApiKey]] = []

    class Referring(Leading):
        def __call__(self, asked: Asked) -> bytes | Exception | None:
            if asked.key is ApiKey.METADATA and sum(key is ApiKey.METADATA for _, key in asked_of) < 4:
                return one_partition(asked, TOPIC_ID)  # of which the second broker is none yet
            return super().__call__(asked)

        def fetch(self, asked: Asked) -> bytes | Exception | None:
            request = requested(asked)
            key = request.topics[0].topic if request.topics else TOPIC_ID
            return self.answer(asked, [(key, [FetchAnswer(0, preferred_read_replica=2)])])

    async def connect(endpoint: Endpoint) -> FakeChannel:
        broker: Leading = Leading() if endpoint.host == "broker-2" else Referring()

        def answer(asked: Asked) -> bytes | Exception | None:
            asked_of.append((endpoint.host, asked.key))
            return broker(asked)

        return FakeChannel(answer)

    async with Cluster("broker:9092", random=Random(1), connect=connect) as cluster, Fetcher(cluster) as fetcher:
        fetcher.assign(CLICKS, 0)
        assert (await first_from(fetcher)).offset == 0
        assert sum(host != "broker-2" and key is ApiKey.FETCH for host, key in asked_of) < 8


@pytest.mark.parametrize("said", [FetchAnswer(0, 0, 0, 0, 0, diverging_epoch=(5, 1)), FetchAnswer(0, 1), FetchAnswer(0, 78)])
async def test_a_replica_that_has_less_than_was_read_says_nothing_of_the_log(said: FetchAnswer) -> None:
    """One that has lost its end, as by a loss of power, finds that its log ends before: its leader knows (KIP-392, KIP-595).

    OFFSET_NOT_AVAILABLE: as in Kafka's FetchCollectorTest.testFetchWithMetadataRefreshErrors.
    """

    class Behind(Leading):
        def fetch(self, asked: Asked) -> bytes | Exception | None:
            ((topic, _),) = requested(asked).topics
            return self.answer(asked, [(topic, [said])])

    class Referring(Leading):
        has_referred = False

        def fetch(self, asked: Asked) -> bytes | Exception | None:
            topics = requested(asked).topics
            if self.has_referred or not topics or topics[0][1][0].fetch_offset != 2:
                return super().fetch(asked)
            self.has_referred = True
            return self.answer(asked, [(topics[0][0], [FetchAnswer(0, preferred_read_replica=2)])])

    referring = Referring()

    async def connect(endpoint: Endpoint) -> FakeChannel:
        return FakeChannel(Behind() if endpoint.host == "broker-2" else referring)

    async with Cluster("broker-1:9092", random=Random(1), connect=connect) as cluster, Fetcher(cluster) as fetcher:
        fetcher.assign(CLICKS, 0)
        got: list[Fetched] = []
        async with asyncio.timeout(120):
            while len(got) < COUNT:
                got += await fetcher.poll(5.0)
    assert referring.has_referred
    assert [bytes(fetched.records) for fetched in got] == LOG


async def first_of(liar: Liar) -> Fetched:
    """What comes first to who reads from offset 0 on."""
    async with Cluster("broker:9092", random=Random(1), connect=connecting(liar)) as cluster, Fetcher(cluster) as fetcher:
        fetcher.assign(CLICKS, 0)
        return await first_from(fetcher)


async def test_a_partition_of_which_a_broker_says_that_something_has_failed_is_asked_for_again() -> None:
    """Kafka's FetchCollectorTest.testFetchWithUnknownServerError."""
    codes = iter((-1, -1))

    class Failing(Liar):
        def fetch(self, asked: Asked) -> bytes | Exception | None:
            topics = requested(asked).topics
            code = next(codes, 0) if topics else 0
            return self.answer(asked, [(topics[0][0], [FetchAnswer(0, code)])]) if code else super().fetch(asked)

    assert (await first_of(Failing(Random(1), 0.0))).offset == 0


@pytest.mark.parametrize(("code", "is_said"), [(-1, True), (35, True), (70, False), (71, False), (106, False)])
async def test_a_broker_that_refuses_whole_requests_is_spoken_of_unless_it_has_but_forgotten_a_session(
    caplog: pytest.LogCaptureFixture, code: int, is_said: bool
) -> None:
    """Kafka's FetchSessionHandler logs each. A reader that got nothing for ever said nothing at all."""
    codes = iter((code, code))

    class Refusing(Liar):
        def fetch(self, asked: Asked) -> bytes | Exception | None:
            refused = next(codes, 0)
            return self.answer(asked, [], refused) if refused else super().fetch(asked)

    assert (await first_of(Refusing(Random(1), 0.0))).offset == 0
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == is_said and all("fetching from broker 1, trying again" in message for message in said)


async def test_partitions_take_turns_where_a_broker_keeps_no_session_and_one_fills_each_answer() -> None:
    """KIP-74: a broker fills `fetch.max.bytes` in the request's order, and Kafka's consumers put last what they were given."""

    class Filling(Leading):
        def fetch(self, asked: Asked) -> bytes | Exception | None:
            (topic, (first, *_)), *_ = requested(asked).topics
            batch = build_batch([Record(first.fetch_offset, 0, None, b"")], base_offset=first.fetch_offset, leader_epoch=5)
            return self.answer(asked, [(topic, [FetchAnswer(0, 0, 1000, 1000, 0, records=batch)])])

    filling = connecting(Filling())
    async with Cluster("broker-1:9092", random=Random(1), connect=filling) as cluster, Fetcher(cluster) as fetcher:
        for partition in (CLICKS, TopicPartition("views", 0)):
            fetcher.assign(partition, 0)
        got: list[str] = []
        async with asyncio.timeout(120):
            while len(got) < 20:
                got += [fetched.partition.topic for fetched in await fetcher.poll(5.0)]
        assert got[:20].count("clicks") == 10


async def test_what_is_known_is_read_and_written_while_metadata_of_another_topic_is_waited_for() -> None:
    """Kafka's KafkaConsumerTest.testFetchProgressWithMissingPartitionPosition; the broker that is asked may hang."""

    class Hanging(Liar):
        def __call__(self, asked: Asked) -> bytes | Exception | None:
            match asked.key:
                case ApiKey.METADATA if [topic.name for topic in asked.read().topics] != ["clicks"]:
                    return None
                case ApiKey.PRODUCE:
                    answers = [("clicks", [PartitionAnswer(0, 0, COUNT)])]
                    return produce.encode_response(asked.version, asked.correlation_id, answers)[4:]
                case _:
                    return super().__call__(asked)

    hanging = connecting(Hanging(Random(1), 0.0))
    other, settings = TopicPartition("views", 0), ProduceSettings(acks=1, idempotent=False)
    async with Cluster("broker:9092", random=Random(1), connect=hanging) as cluster, Fetcher(cluster) as fetcher:
        await cluster.refresh(("clicks",))
        producer = BatchProducer(cluster, settings)
        unknown = producer.send(other, LOG[0])
        fetcher.assign(other, 0)
        await asyncio.sleep(0.01)
        fetcher.assign(CLICKS, 0)
        async with asyncio.timeout(60):
            assert await producer.send(CLICKS, LOG[0]) == COUNT
            assert (await fetcher.poll(60.0))[0].partition == CLICKS
        assert not unknown.done()
        await producer.close(wait=False)
        assert unknown.exception() is not None


async def test_of_two_topics_one_may_have_no_id_and_be_asked_for_later() -> None:
    """As some brokers of a cluster that is being updated say ids and others do not."""

    class Refusing(Leading):
        def fetch(self, asked: Asked) -> bytes | Exception | None:
            topics = requested(asked).topics
            if "views" not in dict(topics):
                return super().fetch(asked)
            return self.answer(asked, [(topic, [FetchAnswer(0, 7 if topic == "views" else 0)]) for topic, _ in topics])

    refusing = connecting(Refusing())
    async with Cluster("broker-1:9092", random=Random(1), connect=refusing) as cluster, Fetcher(cluster) as fetcher:
        fetcher.assign(CLICKS, 0)
        fetcher.assign(TopicPartition("views", 0), 0)
        assert (await first_from(fetcher)).partition == CLICKS


@pytest.mark.parametrize("said", [FetchAnswer(0, 0, 0, 0, 0, diverging_epoch=(5, 1)), FetchAnswer(0, 1)])
async def test_a_former_leader_that_has_less_than_a_group_has_read_says_nothing_of_the_log(said: FetchAnswer) -> None:
    """Another member read on at the next leader, and committed its epoch. Kafka's consumers wait for metadata of that one (KIP-320)."""
    asked_for_metadata = 0

    class Former(Leading):
        def __call__(self, asked: Asked) -> bytes | Exception | None:
            nonlocal asked_for_metadata
            asked_for_metadata += asked.key is ApiKey.METADATA
            return Next()(asked) if asked.key is ApiKey.METADATA and asked_for_metadata > 2 else super().__call__(asked)

        def fetch(self, asked: Asked) -> bytes | Exception | None:
            ((topic, _),) = requested(asked).topics
            return self.answer(asked, [(topic, [said])])

    class Next(Leading):
        leads = (2, 6)

    async def connect(endpoint: Endpoint) -> FakeChannel:
        return FakeChannel(Next() if endpoint.host == "broker-2" else Former())

    async with Cluster("broker-1:9092", random=Random(1), connect=connect) as cluster, Fetcher(cluster) as fetcher, asyncio.timeout(20):
        fetcher.assign(CLICKS, 2, last_epoch=6)
        arrived = await first_from(fetcher)
    assert arrived.offset == 2 and bytes(arrived.records) == LOG[2]


@pytest.mark.parametrize(("error_code", "name"), [(0, "clicks"), (1, "clicks"), (0, "another")])
async def test_a_broker_that_says_no_offset_of_a_logs_end_is_asked_again_after_a_pause(error_code: int, name: str) -> None:
    """And its other partitions are read (Kafka's KafkaConsumerTest.testFetchProgressWithMissingPartitionPosition)."""
    asked_times = 0

    class Endless(Leading):
        def __call__(self, asked: Asked) -> bytes | Exception | None:
            nonlocal asked_times
            if asked.key is not ApiKey.LIST_OFFSETS:
                return super().__call__(asked)
            asked_times += 1
            numbers = {"partition_index": 0, "error_code": error_code, "timestamp": -1, "offset": -1, "leader_epoch": 5}
            partition = asked.schema("ListOffsetsPartitionResponse", **numbers)
            topic = asked.schema("ListOffsetsTopicResponse", name=name, partitions=[partition])
            return asked.answer(throttle_time=0, topics=[topic])

        def fetch(self, asked: Asked) -> bytes | Exception | None:
            ((topic, _),) = requested(asked).topics
            return super().fetch(asked) or self.answer(asked, [(topic, [FetchAnswer(0, 0, COUNT, COUNT, 0)])])

    endless = connecting(Endless())
    async with (
        Cluster("broker-1:9092", random=Random(1), connect=endless) as cluster,
        Fetcher(cluster, out_of_range=lambda *_: LATEST) as fetcher,
    ):
        fetcher.assign(CLICKS, LATEST)
        fetcher.assign(TopicPartition("views", 0), 0)
        end = asyncio.get_running_loop().time() + 0.5
        got: list[Fetched] = []
        while (left := end - asyncio.get_running_loop().time()) > 0:
            got += await fetcher.poll(left)
    assert [bytes(fetched.records) for fetched in got] == LOG
    assert 1 < asked_times < 10


@pytest.mark.parametrize("writes", [False, True])
async def test_a_leader_that_does_not_know_that_it_leads_no_more_is_left_when_metadata_is_old(writes: bool) -> None:
    """`metadata.max.age.ms`, as Kafka's clients have it: one that is cut off from the controller refuses nothing, and has nothing new.

    Nor has it heard who leads now: another one is asked, though there is no connection to it.
    """

    class CutOff(Leading):
        def __call__(self, asked: Asked) -> bytes | Exception | None:
            if asked.key is ApiKey.INIT_PRODUCER_ID:
                return asked.answer(throttle_time=0, error_code=0, producer_id=7, producer_epoch=0)
            return self.produce(asked, 7, -1) if asked.key is ApiKey.PRODUCE else super().__call__(asked)

        def produce(self, asked: Asked, error_code: int, base_offset: int) -> bytes:  # REQUEST_TIMED_OUT: its followers fetch elsewhere
            return produce.encode_response(
                asked.version, asked.correlation_id, [("clicks", [PartitionAnswer(0, error_code, base_offset)])]
            )[4:]

        def fetch(self, asked: Asked) -> bytes | Exception | None:
            ((topic, _),) = requested(asked).topics
            return self.answer(asked, [(topic, [FetchAnswer(0, 0, 0, 0, 0)])])

    class Successor(CutOff):
        leads = (2, 6)

        def produce(self, asked: Asked, error_code: int, base_offset: int) -> bytes:
            return super().produce(asked, 0, COUNT)

        def fetch(self, asked: Asked) -> bytes | Exception | None:
            return Leading.fetch(self, asked)

    async def connect(endpoint: Endpoint) -> FakeChannel:
        return FakeChannel(Successor() if endpoint.host == "broker-2" else CutOff())

    soon = ClusterSettings(metadata_max_age_seconds=0.2)
    async with Cluster("broker-1:9092", soon, random=Random(1), connect=connect) as cluster, asyncio.timeout(20):
        if writes:
            async with BatchProducer(cluster) as producer:
                assert await producer.send(CLICKS, LOG[0]) == COUNT
        else:
            async with Fetcher(cluster) as fetcher:
                fetcher.assign(CLICKS, 0)
                assert (await first_from(fetcher)).offset == 0

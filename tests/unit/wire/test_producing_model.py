"""The producer against a model of a broker that fails by chance: KIP-98's rules of sequences, and every way to lose an answer."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.wire.fakes import Asked, FakeChannel, api_versions, connecting, one_partition

from ottla.errors import (
    ApiError,
    ClusterAuthorizationFailed,
    MessageTooLarge,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
    TopicAuthorizationFailed,
)
from ottla.model import Endpoint, TopicPartition
from ottla.protocol import produce
from ottla.protocol.api import ApiKey
from ottla.protocol.produce import PartitionAnswer
from ottla.record.batch import BatchHeader, check_batch
from ottla.record.records import Record, build_batch, read_records
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.producing import BatchProducer, ProduceSettings

TOO_LARGE = b"too large"
OTHER = b"another's"
# What may become of a request besides being answered as it should be.
CLEAN = ("not enough replicas",)
REFUSED = "not allowed"  # for good, this once
REFUSALS = {"not leader": (6, -1), "not enough replicas": (19, -1), REFUSED: (29, -1)}
DOUBTFUL = (*CLEAN, "not leader", "lost before", "lost after", "timed out", "not enough replicas any more")


@dataclass
class State:
    """What the partition remembers of one producer."""

    epoch: int
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))  # first and last sequence, base offset


class ModelBroker:
    """One broker with one partition."""

    def __init__(self, random: Random, faults: tuple[str, ...], share: float) -> None:
        self.random = random
        self.faults = faults
        self.share = share
        self.log: list[bytes] = []
        self.states: dict[int, State] = {}
        self.answers: list[int] = []
        self.most = 100  # records that a batch may have
        self.others = 0.0  # how likely another producer writes behind a batch

    def __call__(self, asked: Asked) -> bytes | Exception | None:
        match asked.key:
            case ApiKey.API_VERSIONS:
                return api_versions(asked)
            case ApiKey.METADATA:
                return one_partition(asked, None)
            case ApiKey.INIT_PRODUCER_ID:
                return asked.answer(throttle_time=0, error_code=0, producer_id=7, producer_epoch=0)
            case _:
                return self.produce(asked)

    def produce(self, asked: Asked) -> bytes | Exception:
        frame = asked.frame
        request = produce.decode_request(frame, asked.body_position, len(frame), asked.version)
        ((name, (data,)),) = request.topics
        fault = self.random.choice(self.faults) if self.random.random() < self.share else ""
        if fault == "lost before":
            return ConnectionError(fault)
        code, offset = REFUSALS.get(fault) or self.append(frame[data.start : data.stop])
        if fault == "lost after":
            return ConnectionError(fault)
        if code == 0 and fault in ("timed out", "not enough replicas any more"):
            code = 7 if fault == "timed out" else 20
        self.answers.append(code)
        answer = PartitionAnswer(0, code, offset if code == 0 else -1)
        return produce.encode_response(asked.version, asked.correlation_id, [(name, [answer])])[4:]

    def append(self, batch: memoryview) -> tuple[int, int]:
        """Error code and base offset, as `ProducerAppendInfo.checkSequence` has it."""
        header = check_batch(batch)
        values = [record.value or b"" for record in read_records(batch)]
        if values == [TOO_LARGE] or len(values) > self.most:
            return 10, -1
        state = self.states.get(header.producer_id)
        code, offset = self.check(header, state)
        if code or offset >= 0:
            return code, offset
        if state is None or state.epoch != header.producer_epoch:
            state = self.states[header.producer_id] = State(header.producer_epoch)
        state.recent.append((header.base_sequence, header.base_sequence + header.last_offset_delta, len(self.log)))
        self.log += values
        offset = len(self.log) - len(values)
        if self.random.random() < self.others:
            self.log.append(OTHER)
        return 0, offset

    def check(self, header: BatchHeader, state: State | None) -> tuple[int, int]:
        if state is None:
            return 0, -1
        if header.producer_epoch != state.epoch:
            if header.producer_epoch < state.epoch:
                return 47, -1
            return (45 if header.base_sequence else 0), -1
        for first, last, offset in state.recent:
            if (first, last) == (header.base_sequence, header.base_sequence + header.last_offset_delta):
                return 0, offset
        return (0 if header.base_sequence == state.recent[-1][1] + 1 else 45), -1


def run(broker: ModelBroker, values: list[bytes], random: Random, size: int = 1) -> list[int | BaseException]:
    """Sends so many values a batch, in bursts, and gives what came of each batch."""

    async def main() -> list[int | BaseException]:
        quick = ClusterSettings(retry_backoff_seconds=0.0001, retry_backoff_max_seconds=0.0002)
        async with (
            Cluster("broker:9092", quick, random=random, connect=connecting(broker)) as cluster,
            BatchProducer(cluster, ProduceSettings(max_request_bytes=1)) as producer,
        ):
            results = []
            for first in range(0, len(values), size):
                records = [Record(index, 0, None, value) for index, value in enumerate(values[first : first + size])]
                results.append(producer.send(TopicPartition("clicks", 0), build_batch(records)))
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(0)
            async with asyncio.timeout(120):
                return await asyncio.gather(*results, return_exceptions=True)

    return asyncio.run(main())


def numbered(count: int, too_large: set[int]) -> list[bytes]:
    return [TOO_LARGE if index in too_large else b"%d" % index for index in range(count)]


@settings(deadline=None, max_examples=examples(60))
@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.05, 0.3, 0.6]), count=st.integers(1, 40))
def test_whatever_is_lost_each_batch_is_written_once_and_in_order(seed: int, share: float, count: int) -> None:
    random = Random(seed)
    broker = ModelBroker(random, DOUBTFUL, share)
    values = numbered(count, set())
    assert run(broker, values, random) == list(range(count))
    assert broker.log == values


@settings(deadline=None, max_examples=examples(60))
@given(
    seed=st.integers(0, 2**32),
    share=st.sampled_from([0.0, 0.3]),
    count=st.integers(1, 40),
    too_large=st.sets(st.integers(0, 39), max_size=15),
)
def test_batches_that_are_refused_fail_alone(seed: int, share: float, count: int, too_large: set[int]) -> None:
    random = Random(seed)
    broker = ModelBroker(random, CLEAN, share)
    values = numbered(count, too_large)
    said = run(broker, values, random)
    kept = [value for value in values if value != TOO_LARGE]
    assert [result for result in said if not isinstance(result, MessageTooLarge)] == list(range(len(kept)))
    assert broker.log == kept


@settings(deadline=None, max_examples=examples(60))
@given(seed=st.integers(0, 2**32), count=st.integers(1, 40), too_large=st.sets(st.integers(0, 39), max_size=15))
def test_with_both_nothing_is_written_twice_and_the_order_holds(seed: int, count: int, too_large: set[int]) -> None:
    """Behind a refused batch an answer that was lost may leave no way to tell what is written: then the batch fails, written or not."""
    random = Random(seed)
    broker = ModelBroker(random, DOUBTFUL, 0.2)
    values = numbered(count, too_large)
    said = run(broker, values, random)
    assert all(isinstance(result, int | MessageTooLarge | OutOfOrderSequenceNumber) for result in said)
    acknowledged = [value for value, result in zip(values, said, strict=True) if isinstance(result, int)]
    assert len(set(broker.log)) == len(broker.log)
    assert [value for value in values if value in broker.log] == broker.log
    assert set(acknowledged) <= set(broker.log)


@settings(deadline=None, max_examples=examples(60))
@given(seed=st.integers(0, 2**32), count=st.integers(1, 40))
def test_no_batch_gets_the_sequence_of_one_that_is_refused_and_may_be_written(seed: int, count: int) -> None:
    """The broker would take it for that one, and acknowledge what it does not store."""
    random = Random(seed)
    broker = ModelBroker(random, (*DOUBTFUL, REFUSED), 0.4)
    values = numbered(count, set())
    said = run(broker, values, random)
    assert all(isinstance(result, int | TopicAuthorizationFailed | OutOfOrderSequenceNumber) for result in said)
    acknowledged = [value for value, result in zip(values, said, strict=True) if isinstance(result, int)]
    assert [value for value in values if value in broker.log] == broker.log
    assert set(acknowledged) <= set(broker.log)


@settings(deadline=None, max_examples=examples(60))
@given(
    seed=st.integers(0, 2**32), share=st.sampled_from([0.0, 0.3]), count=st.integers(1, 60), size=st.integers(1, 9), most=st.integers(1, 4)
)
def test_what_is_written_in_parts_is_written_once_and_in_order_and_where_it_is_is_known_or_not_said(
    seed: int, share: float, count: int, size: int, most: int
) -> None:
    """A record's offset is the base offset of its batch and its number there, for all callers."""
    random = Random(seed)
    broker = ModelBroker(random, DOUBTFUL, share)
    broker.most, broker.others = most, random.choice((0.0, 0.2))
    values = numbered(count, set())
    said = run(broker, values, random, size)
    assert len(set(broker.log) - {OTHER}) == len([value for value in broker.log if value != OTHER])
    assert [value for value in values if value in broker.log] == [value for value in broker.log if value != OTHER]
    for number, result in enumerate(said):
        of_it = values[number * size : (number + 1) * size]
        assert isinstance(result, int | OutOfOrderSequenceNumber) and (share or isinstance(result, int))
        if isinstance(result, int):
            places = [broker.log.index(value) for value in of_it]
            is_one = places == list(range(places[0], places[0] + len(places)))
            assert result == (places[0] if is_one else -1) or (share and result == -1)


async def test_many_batches_that_are_refused_at_once_are_sent_again_after_a_growing_pause() -> None:
    """As Kafka's RecordAccumulatorTest.testExponentialRetryBackoff has it (KIP-580), also with more batches behind them."""
    broker = ModelBroker(Random(1), CLEAN, 0.0)
    async with (
        Cluster("broker:9092", random=Random(1), connect=connecting(broker)) as cluster,
        BatchProducer(cluster) as producer,
    ):
        send = [build_batch([Record(0, 0, None, b"%d" % index)]) for index in range(12)]
        clicks = TopicPartition("clicks", 0)
        assert await producer.send(clicks, send[0]) == 0
        broker.answers.clear()
        broker.share = 1.0
        results = [producer.send(clicks, batch) for batch in send[1:]]
        await asyncio.sleep(0.5)
        assert len(broker.answers) <= 3 * ProduceSettings().max_in_flight
        broker.share = 0.0
        assert await asyncio.gather(*results) == list(range(1, 12))


async def test_a_batch_that_is_not_answered_fails_in_its_time_and_those_behind_it_go_on_in_a_new_epoch() -> None:
    """Kafka's SenderTest.testInflightBatchesExpireOnDeliveryTimeout (KIP-91); the request itself may take longer than that."""
    channels: list[FakeChannel] = []
    broker = ModelBroker(Random(1), (), 0.0)
    silent: list[ApiKey] = []

    async def connect(endpoint: Endpoint) -> FakeChannel:
        channels.append(FakeChannel(lambda asked: None if asked.key in silent else broker(asked)))
        return channels[-1]

    send = [build_batch([Record(0, 0, None, b"%d" % index)]) for index in range(3)]
    clicks = TopicPartition("clicks", 0)
    quick = ClusterSettings(retry_backoff_seconds=0.01)
    async with Cluster("broker:9092", quick, random=Random(1), connect=connect) as cluster:
        async with BatchProducer(cluster) as first:  # so that nothing has to be loaded within the time
            await first.send(clicks, send[0])
        broker.log.clear()
        broker.states.clear()
        silent.append(ApiKey.PRODUCE)
        async with BatchProducer(cluster, ProduceSettings(delivery_timeout_seconds=1.0)) as producer:
            results = [producer.send(clicks, batch) for batch in send[:2]]
            async with asyncio.timeout(20):
                said = await asyncio.gather(*results, return_exceptions=True)
            assert all(isinstance(error, RequestTimedOut) for error in said)
            silent.clear()
            later = producer.send(clicks, send[2])
            channels[-1].abort()
            assert await later == 0
            assert (broker.log, broker.states[7].epoch) == ([b"2"], 1)


async def test_batches_behind_some_that_failed_as_their_topic_was_refused_are_written() -> None:
    """A sequence that was sent and is not in the log leaves a gap that no later batch may stand behind."""

    class Refusing(ModelBroker):
        refuses = False

        def __call__(self, asked: Asked) -> bytes | Exception | None:
            if self.refuses and asked.key is ApiKey.METADATA:
                self.refuses = False
                return one_partition(asked, None, error_code=29)
            return super().__call__(asked)

    broker = Refusing(Random(1), ("lost before",), 0.0)
    async with (
        Cluster("broker:9092", random=Random(1), connect=connecting(broker)) as cluster,
        BatchProducer(cluster) as producer,
    ):
        send = [build_batch([Record(0, 0, None, b"%d" % index)]) for index in range(3)]
        clicks = TopicPartition("clicks", 0)
        assert await producer.send(clicks, send[0]) == 0
        broker.refuses, broker.share = True, 1.0
        with pytest.raises(TopicAuthorizationFailed):
            await producer.send(clicks, send[1])
        broker.share = 0.0
        assert await producer.send(clicks, send[2]) == 1
        assert broker.log == [b"0", b"2"]


async def test_a_producer_that_may_not_have_an_id_yet_fails_what_waits_and_asks_again_for_what_is_sent_later() -> None:
    """Kafka's SenderTest.testClusterAuthorizationExceptionInInitProducerIdRequest: an ACL may be added meanwhile."""

    class Refusing(ModelBroker):
        refuses = True

        def __call__(self, asked: Asked) -> bytes | Exception | None:
            if self.refuses and asked.key is ApiKey.INIT_PRODUCER_ID:
                return asked.answer(throttle_time=0, error_code=31, producer_id=-1, producer_epoch=-1)
            return super().__call__(asked)

    broker = Refusing(Random(1), (), 0.0)
    async with (
        Cluster("broker:9092", random=Random(1), connect=connecting(broker)) as cluster,
        BatchProducer(cluster) as producer,
    ):
        send = [build_batch([Record(0, 0, None, b"%d" % index)]) for index in range(3)]
        clicks = TopicPartition("clicks", 0)
        said = await asyncio.gather(*(producer.send(clicks, batch) for batch in send[:2]), return_exceptions=True)
        assert all(isinstance(error, ClusterAuthorizationFailed) for error in said)
        broker.refuses = False
        assert await producer.send(clicks, send[2]) == 0
        assert broker.log == [b"2"]


async def test_when_what_was_acknowledged_is_gone_one_batch_fails_and_the_rest_goes_on_in_a_new_epoch() -> None:
    """An unclean election, as an idempotent producer meets it (KIP-360)."""
    broker = ModelBroker(Random(1), (), 0.0)
    async with (
        Cluster("broker:9092", random=Random(1), connect=connecting(broker)) as cluster,
        BatchProducer(cluster) as producer,
    ):
        send = [build_batch([Record(0, 0, None, b"%d" % index)]) for index in range(6)]
        clicks = TopicPartition("clicks", 0)
        assert [await producer.send(clicks, batch) for batch in send[:3]] == [0, 1, 2]
        del broker.log[1:]
        while len(broker.states[7].recent) > 1:
            broker.states[7].recent.pop()
        said = await asyncio.gather(*(producer.send(clicks, batch) for batch in send[3:]), return_exceptions=True)
        assert isinstance(said[0], OutOfOrderSequenceNumber)
        assert list(said[1:]) == [1, 2]
        assert broker.log == [b"0", b"4", b"5"]
        assert broker.states[7].epoch == 1


@pytest.mark.parametrize(("code", "name"), [(90, "ProducerFenced"), (47, "InvalidProducerEpoch"), (53, "TransactionalId")])
async def test_a_fenced_producer_fails_all_that_waits(code: int, name: str) -> None:
    class Fencing(ModelBroker):
        def append(self, batch: memoryview) -> tuple[int, int]:
            return code, -1

    async with (
        Cluster("broker:9092", connect=connecting(Fencing(Random(1), (), 0.0))) as cluster,
        BatchProducer(cluster) as producer,
    ):
        batch = build_batch([Record(0, 0, None, b"a")])
        results = [producer.send(TopicPartition("clicks", 0), batch) for _ in range(20)]
        said = await asyncio.gather(*results, return_exceptions=True)
        assert all(isinstance(error, ApiError) and type(error).__name__.startswith(name) for error in said)

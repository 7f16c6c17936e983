"""Sources whose answers are wrong, made up or at odds with themselves: a partition or link fails or waits, with a reason."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from tests.loops import until
from tests.unit.mirror_maker.mirrors import (
    SECONDS,
    Side,
    batch,
    caught_up,
    committed,
    copier,
    ends_of,
    reached,
    running,
    same,
    settings,
    side,
    sides_with,
    two_sides,
)
from tests.unit.mirror_maker.test_server import arrives, publish, values_of
from tests.unit.wire.clusters import create_topic, servers

from ottla.clock import Clock
from ottla.config.mirror import MirrorSettings
from ottla.errors import InvalidRecord, InvalidRequest
from ottla.lifecycle import look_at_error
from ottla.mirror_maker import server
from ottla.mirror_maker.partition_states import PartitionState, PartitionStatus
from ottla.mirror_maker.server import MirrorMaker
from ottla.model import Endpoint, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.record.batch import HEADER_SIZE, LOG_OVERHEAD, crc_of, read_header
from ottla.record.codecs import MAXIMUM_DECOMPRESSED, compress
from ottla.record.records import CRC_POSITION, seal
from ottla.wire.cluster import Cluster, ClusterSettings, socket_connect
from ottla.wire.connection import Channel, Piece
from ottla.wire.groups import CommittedOffset, commit_offsets
from ottla.wire.producing import BatchProducer
from ottla.wire.transactions import TransactionalProducer

CLICKS, OTHER = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
MAXIMUM = (1 << 63) - 1
ZSTD = 4
PENDING = PartitionStatus()
# Where these stand in a batch's header, and as what.
BASE_OFFSET, DELTA, COUNT = (0, ">q"), (23, ">i"), (57, ">i")


def changed(batch_: bytes, *changes: tuple[tuple[int, str], int]) -> bytes:
    """A batch that says something else, under a checksum that is right."""
    found = bytearray(batch_)
    for (position, layout), value in changes:
        struct.pack_into(layout, found, position, value)
    struct.pack_into(">I", found, CRC_POSITION, crc_of(found))
    return bytes(found)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([(BASE_OFFSET, 1)], "with offsets 1 to 2, where 2 was to come"),
        ([(BASE_OFFSET, 20), (DELTA, -5), (COUNT, -4)], "with offsets 20 to 15"),
        ([(BASE_OFFSET, MAXIMUM - 1)], f"with offsets {MAXIMUM - 1} to {MAXIMUM}"),
        ([(BASE_OFFSET, 3), (COUNT, 1 << 30)], "a batch of 1073741824 records, where 1000000 are allowed"),
    ],
    ids=["offsets that overlap", "fewer records than none", "an offset behind the last that there can be", "more records than bytes"],
)
async def test_a_batch_at_odds_with_itself_fails_its_partition_and_leaves_the_map_readable(
    tmp_path: Path, changes: list[tuple[tuple[int, str], int]], reason: str
) -> None:
    """We change the second batch in the file of the source's log. Its checksum is right, as that of a broken program would be."""
    async with sides_with(tmp_path, "clicks", 2) as (a, b):
        await publish(a, CLICKS, b"0", b"1")
        await publish(a, CLICKS, b"2", b"3")
        (file,) = (tmp_path / "a").rglob("clicks-0/*.log")
        content = file.read_bytes()
        size = len(content) // 2
        with file.open("r+b") as log:
            log.seek(size)
            log.write(changed(content[size:], *changes))
        one = copier(a, b)
        one.want(same(2, "clicks"))
        async with running(one):
            said = await reached(one, CLICKS, PartitionState.FAILED)
            assert reason in said, said
            await publish(a, OTHER, b"other")
            await caught_up(one, {OTHER: 1})
            with file.open("r+b") as log:
                log.write(content)
            one.repair(CLICKS, "accept gap")
            await caught_up(one, {CLICKS: 4})
        again = copier(a, b)  # another worker, which reads the map
        again.want(same(2, "clicks"))
        async with running(again):
            await publish(a, CLICKS, b"4")
            await caught_up(again, {CLICKS: 5, OTHER: 1})
            assert again.gaps == []
        found = await committed(b, CLICKS, OTHER)
        assert [record.value for record in found[CLICKS]] == [b"0", b"1", b"2", b"3", b"4"]
        assert [record.value for record in found[OTHER]] == [b"other"]


async def test_a_marker_that_is_none_fails_its_partition_and_no_other(tmp_path: Path) -> None:
    """The end of an aborted transaction: who reads on without it may leave out what follows."""
    async with sides_with(tmp_path, "clicks", 2) as (a, b):
        async with await TransactionalProducer.open(a.cluster, "shop") as producer:
            with pytest.raises(ValueError, match="ends so"):
                async with producer.transaction():
                    await (await producer.send(CLICKS, batch(b"aborted")))
                    raise ValueError("ends so")
        async with asyncio.timeout(SECONDS):
            while (await ends_of(a, CLICKS))[CLICKS] < 2:  # noqa: ASYNC110 - the marker is written behind the answer
                await asyncio.sleep(0.01)
        # The marker is of today and the record is not, so it begins a segment.
        file = max((tmp_path / "a").rglob("clicks-0/*.log"))
        marker = bytearray(file.read_bytes())
        # length, attributes, time and offset deltas, the key's length, version:2 type:2
        marker[HEADER_SIZE + 5 + 3] = 7
        with file.open("r+b") as log:
            log.write(changed(bytes(marker)))
        one = copier(a, b)
        one.want(same(2, "clicks"))
        async with running(one):
            assert "type 7" in await reached(one, CLICKS, PartitionState.FAILED)
            await publish(a, OTHER, b"other")
            await caught_up(one, {OTHER: 1})
            assert (await committed(b, CLICKS))[CLICKS] == []


@pytest.mark.long
async def test_a_batch_that_unpacks_to_more_than_is_taken_fails_its_partition_and_no_other(tmp_path: Path) -> None:
    """Some kilobytes that would be more than 128 MiB, where batches have to be opened."""
    bomb = seal(read_header(batch(b"0"))._replace(attributes=ZSTD), compress(ZSTD, bytes(MAXIMUM_DECOMPRESSED + 1)))
    async with sides_with(tmp_path, "clicks", 2) as (a, b):
        async with BatchProducer(a.cluster) as producer:
            await producer.send(CLICKS, bomb)
        one = copier(a, b, settings(a, b, partition_by="key"))
        one.want(same(2, "clicks"))
        async with running(one):
            assert "DecompressedTooLarge" in await reached(one, CLICKS, PartitionState.FAILED)
            await publish(a, OTHER, b"other")
            await caught_up(one, {OTHER: 1})


async def test_a_topic_that_is_called_like_a_map_and_is_none_holds_no_transaction_up(tmp_path: Path) -> None:
    """Whose copies a producer writes is looked for in the maps of the source, and anyone may write to a topic of such a name."""
    async with sides_with(tmp_path, "clicks") as (a, b):
        await create_topic(a.cluster, "ottla-mirror-X-A")
        strange = TopicPartition("ottla-mirror-X-A", 0)
        garbage = bytearray(batch(b"0", b"1"))
        garbage[HEADER_SIZE] = 0x7E  # the length of its first record
        async with BatchProducer(a.cluster) as producer:
            await producer.send(strange, changed(bytes(garbage)))
            await producer.send(strange, batch(b"no page"))
        async with await TransactionalProducer.open(a.cluster, "shop") as shop, shop.transaction():
            await shop.send(CLICKS, batch(b"sold"))
        one = copier(a, b)
        one.want(same(1, "clicks"))
        async with running(one):
            await caught_up(one, {CLICKS: 1})
        assert [record.value for record in (await committed(b, CLICKS))[CLICKS]] == [b"sold"]


async def test_a_source_that_becomes_another_cluster_stops_its_link_and_nothing_of_the_other_one_is_copied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The address is led to another cluster, with a topic of the same name, while the worker runs; a gap would have been accepted."""
    async with two_sides(tmp_path) as (a, b), side(tmp_path / "c") as c:
        for one in (a, c):
            await create_topic(one.cluster, "clicks")
        await publish(a, CLICKS, b"of a")
        for number in range(3):
            await publish(c, CLICKS, b"of c, %d" % number)
        asked = MirrorSettings.from_properties(given(b, {"A": servers(a.brokers)}, **{"on.source.truncation": "gap"}))
        async with started(asked) as mirror:
            copied = TopicPartition("A.clicks", 0)
            await arrives(b, copied, b"of a")
            link = mirror.links["A-B"]
            link._source.begin_with(servers(c.brokers))  # as a name that stands for another address now
            for broker_id in list(a.brokers.running):
                await a.brokers.kill(broker_id)
            await until(lambda: bool(link.failure))
            assert link.failure == f"A-B has copied from cluster {a.cluster_id}, and its source is {c.cluster_id} now"
            assert mirror.status()[1]["reason"] == link.failure
            await until(lambda: not any(copier.is_open for copier in link.slots.values()))
            assert link.gaps == []
            beats = await values_of(b, TopicPartition("heartbeats", 0))
            await asyncio.sleep(0.5)  # a link that copies nothing says nothing of its life
            assert len(await values_of(b, TopicPartition("heartbeats", 0))) <= len(beats) + 1
            assert await values_of(b, copied) == [b"of a"]
            said = [record.message for record in caplog.records if record.levelno == logging.ERROR and record.message == link.failure]
            assert len(said) == 1


@asynccontextmanager
async def started(settings: MirrorSettings, clock: Clock | None = None) -> AsyncIterator[MirrorMaker]:
    mirror = MirrorMaker(settings, clock=clock)
    await mirror.start()
    try:
        yield mirror
    finally:
        await mirror.stop()


def given(b: Side, sources: Mapping[str, str], **properties: str) -> dict[str, str]:
    """The settings of a worker between these clusters and B."""
    return {
        "clusters": ",".join([*sources, "B"]),
        **{f"{alias}.bootstrap.servers": address for alias, address in sources.items()},
        "B.bootstrap.servers": servers(b.brokers),
        **{f"{alias}->B.enabled": "true" for alias in sources},
        "slots": "2",
        "replication.factor": "1",
        "refresh.topics.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        **properties,
    }


class Liar:
    """Between a worker and one broker: some answers are changed, cut, exchanged or made up, and some connections end.

    Attributes:
        share: of answers that are lies.
        lies: how many there were, by the API that was asked.
    """

    def __init__(self, cluster_id: str, random: Random) -> None:
        self.share = 0.0
        self.lies: Counter[str] = Counter()
        self._cluster_id = cluster_id.encode()
        self._random = random
        self._former: dict[ApiKey, bytes] = {}

    def cluster(self, bootstrap_servers: str, settings: ClusterSettings) -> Cluster:
        """As one who asks a cluster has it, with this between them."""
        connect = socket_connect(settings)

        async def lying(endpoint: Endpoint) -> Channel:
            return _LyingChannel(await connect(endpoint), self)

        return Cluster(bootstrap_servers, settings, connect=lying)

    def said(self, key: ApiKey, answer: bytes) -> bytes:
        """What comes in the place of an answer. Raises ConnectionError: nothing does."""
        former = self._former.get(key, b"")
        self._former[key] = answer
        if self._random.random() >= self.share:
            return answer
        self.lies[key.name] += 1
        lie = self._lie(key, bytearray(answer), former)
        # That it is another cluster would be the end of the link, and is another test's.
        return answer if self._cluster_id in answer and self._cluster_id not in lie else lie

    def _lie(self, key: ApiKey, answer: bytearray, former: bytes) -> bytes:
        random = self._random
        match random.choice(("byte", "byte", "number", "number", "cut", "former", "made up", "lost", "batch", "batch", "batch")):
            case "byte":
                answer[random.randrange(4, len(answer))] = random.randrange(256)
            case "number":
                value, layout = random.choice(((-1, ">i"), (1 << 30, ">i"), (MAXIMUM, ">q"), (-2, ">q"), (random.getrandbits(40), ">q")))
                struct.pack_into(layout, answer, random.randrange(4, max(len(answer) - 8, 5)), value) if len(answer) > 16 else None
            case "cut":
                return bytes(answer[: random.randrange(len(answer))])
            case "former":
                return bytes(answer[:4]) + former[4:]
            case "made up":
                return bytes(answer[:4]) + random.randbytes(random.randrange(80))
            case "lost":
                raise ConnectionError("lost")
            case _ if key is ApiKey.FETCH and (begin := answer.find(KNOWN) - RECORDS_BEFORE) > 0:
                # With a checksum that is right: what a broken broker would store.
                end = begin + LOG_OVERHEAD + struct.unpack_from(">i", answer, begin + 8)[0]
                if end <= len(answer):
                    field = random.choice((BASE_OFFSET, DELTA, COUNT, (21, ">h"), (27, ">q"), (35, ">q"), (43, ">q")))
                    value = random.choice((-1, 0, 1, 5, 40, 255, 30_000))
                    answer[begin:end] = changed(bytes(answer[begin:end]), (field, value))
        return bytes(answer)


class _LyingChannel:
    def __init__(self, channel: Channel, liar: Liar) -> None:
        self._channel = channel
        self._liar = liar

    @property
    def is_lost(self) -> bool:
        return self._channel.is_lost

    def send(self, pieces: Sequence[Piece], timeout_seconds: float, *, is_answered: bool = True) -> asyncio.Future[memoryview]:
        key = ApiKey(int.from_bytes(bytes(pieces[0][:2]), "big"))
        answer = self._channel.send(pieces, timeout_seconds, is_answered=is_answered)
        answer.add_done_callback(look_at_error)  # the task below may be cancelled before it has begun to wait for it
        return asyncio.ensure_future(self._answered(key, answer))

    async def _answered(self, key: ApiKey, answer: asyncio.Future[memoryview]) -> memoryview:
        try:
            return memoryview(self._liar.said(key, bytes(await answer)))
        except ConnectionError:
            self._channel.abort()
            raise

    def abort(self) -> None:
        self._channel.abort()

    async def close(self) -> None:
        await self._channel.close()


# What each value of this source's records begins with, and how many bytes of its batch are before the first one.
KNOWN = b"value of the liar"
RECORDS_BEFORE = len(batch(KNOWN).partition(KNOWN)[0])


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("partition_by", ["number", "key"])
def test_a_source_that_lies_harms_no_other_link_and_is_copied_again_when_it_says_the_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seed: int, partition_by: str
) -> None:
    """Half of what it answers is wrong. Partitions fail with a reason, or wait; the other link of the worker goes on."""
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        async with two_sides(tmp_path) as (a, b), side(tmp_path / "c") as c:
            for one in (a, c):
                await create_topic(one.cluster, "clicks", 2)
            liar, address = Liar(c.cluster_id, Random(seed)), servers(c.brokers)
            monkeypatch.setattr(server, "Cluster", lambda to, asked: (liar.cluster if to == address else Cluster)(to, asked))
            properties = {"C->B.partition.by": partition_by, "on.source.truncation": "gap"}
            asked = MirrorSettings.from_properties(given(b, {"A": servers(a.brokers), "C": address}, **properties))
            async with started(asked) as mirror:
                lying = mirror.links["C-B"]
                await until(lambda: len(lying.statuses) == 2 and len(lying.slots) == 2)
                await commit_offsets(c.cluster, "billing", {CLICKS: CommittedOffset(0)})
                liar.share = 0.5
                sent = 0
                while sum(liar.lies.values()) < 150 or len(liar.lies) < 5:
                    await publish(a, CLICKS, b"%d" % sent)
                    for partition in (CLICKS, OTHER):
                        await publish(c, partition, KNOWN + b"%d" % sent)
                        status = lying.statuses.get(partition, PENDING)
                        if status.state is PartitionState.FAILED:
                            assert status.reason
                            with suppress(InvalidRequest):  # by what it says of its topics, the target cannot have it at the moment
                                lying.repair(partition, "accept gap")
                    sent += 1
                    assert sent < 2000, liar.lies
                    await asyncio.sleep(0.02)
                await arrives(b, TopicPartition("A.clicks", 0), *(b"%d" % number for number in range(sent)))
            liar.share = 0.0
            # All that it says is true again. What it has said of leader epochs is believed until the worker is started again.
            async with started(asked) as mirror:
                lying = mirror.links["C-B"]
                await until(lambda: lying.statuses.keys() >= {CLICKS, OTHER})
                for partition in (CLICKS, OTHER):
                    assert lying.repair(partition, "restart")
                await until(lambda: sum("begun again" in gap.cause for _, gap in lying.gaps) == 2)
                await publish(c, CLICKS, KNOWN + b" at the end")
                ends = await ends_of(c, CLICKS, OTHER)
                await until(lambda: all(lying.maps[partition].next_offset == end for partition, end in ends.items()))
                # What says that it is packed by another codec than it is was copied unopened, as it lies in the source.
                # There may be more partitions than the source has, as it has lied of that too.
                await b.cluster.refresh(None)
                numbers = b.cluster.metadata.topic("C.clicks").partitions
                there = await committed(b, *(TopicPartition("C.clicks", number) for number in numbers), leave_out=(InvalidRecord,))
                values = [record.value for records in there.values() for record in records]
                assert all(values.count(KNOWN + b"%d" % number) >= 2 for number in range(sent)), "of either partition"
                assert values.count(KNOWN + b" at the end") == 1

    asyncio.run(main())
    assert [record for record in caplog.records if record.name == "asyncio"] == [], "what nobody waits for has failed"
    assert [record.message for record in caplog.records if record.exc_info is not None] == [], "an error that was not foreseen"

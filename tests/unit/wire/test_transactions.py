"""Transactions of real brokers: what readers of committed data see, who is fenced, and what is left when something fails.

What was committed is read by confluent-kafka's consumer too, which knows nothing of this client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from tests.unit.wire.clusters import all_ended, brokers, cluster_of, create_topic, servers, two_attempts_only
from tests.unit.wire.fakes import AnsweringCluster

from ottla.broker.handlers import txn_offset_commit
from ottla.broker.in_process import InProcessBrokers
from ottla.broker.transactions.markers import MarkerSender
from ottla.errors import (
    ApiError,
    BrokerNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    MessageTooLarge,
    OperationNotAttempted,
    ProducerFenced,
    TopicAuthorizationFailed,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.record.records import Record, build_batch, read_records
from ottla.wire import transactions
from ottla.wire.admin import delete_topics
from ottla.wire.broker_connection import VersionRange
from ottla.wire.cluster import Cluster, CoordinatorKind
from ottla.wire.fetching import Fetcher, FetchSettings, visible_batches
from ottla.wire.groups import CommittedOffset, commit_offsets, committed_offsets
from ottla.wire.offsets import EARLIEST, LATEST, list_offsets
from ottla.wire.producing import ProducerIdentity, ProduceSettings, init_producer_id
from ottla.wire.transactions import (
    TransactionalProducer,
    TransactionState,
    add_offsets,
    add_partitions,
    describe_transaction,
    end_transaction,
    list_transactions,
)

CLICKS, VIEWS = TopicPartition("clicks", 0), TopicPartition("views", 1)


def batch(*values: bytes) -> bytes:
    return build_batch([Record(index, 1_000, None, value) for index, value in enumerate(values)])


@asynccontextmanager
async def running_cluster(tmp_path: Path, count: int = 1, **properties: str) -> AsyncIterator[tuple[InProcessBrokers, Cluster]]:
    async with brokers(tmp_path, count, **properties) as running, cluster_of(running, api_timeout_seconds=20.0) as cluster:
        await create_topic(cluster, "clicks", 1, count)
        await create_topic(cluster, "views", 2, count)
        yield running, cluster


async def committed(cluster: Cluster, *partitions: TopicPartition) -> list[bytes | None]:
    """What a reader of committed data gets up to the last stable offset, partition by partition."""
    await all_ended(cluster)
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), read_committed=True)
    found: dict[TopicPartition, list[bytes | None]] = {partition: [] for partition in partitions}
    async with Fetcher(cluster, FetchSettings(read_committed=True, max_wait_ms=50)) as fetcher:
        positions = {partition: 0 for partition, end in ends.items() if end.offset}
        for partition in positions:
            fetcher.assign(partition, EARLIEST)
        async with asyncio.timeout(120):
            while any(position < ends[partition].offset for partition, position in positions.items()):
                for fetched in await fetcher.poll(1.0):
                    for position, header in visible_batches(fetched.records, fetched.aborted):
                        some = fetched.records[position : position + header.size]
                        found[fetched.partition] += [record.value for record in read_records(some)]
                    positions[fetched.partition] = fetched.next_offset
    return [value for partition in partitions for value in found[partition]]


async def test_a_transaction_is_seen_when_it_is_committed_and_not_when_it_is_aborted(tmp_path: Path) -> None:
    """In every version of its requests; sequences go on from one to the next."""
    async with running_cluster(tmp_path) as (running, cluster):
        connection = await cluster.connection(BrokerId(1))
        served = connection.versions
        expected: list[bytes | None] = []
        async with await TransactionalProducer.open(cluster, "loads") as producer:
            for version in range(5):
                older = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT)
                connection.versions = {**served, **{key: VersionRange(0, version) for key in older}}
                async with producer.transaction():
                    await producer.add_partitions([CLICKS, VIEWS])
                    written = await producer.send(CLICKS, batch(b"a%d" % version, b"b"))
                    await producer.send(CLICKS, batch(b"c"))
                    assert await written >= 0
                    assert await committed(cluster, CLICKS) == expected
                    await producer.commit_offsets("readers", {VIEWS: CommittedOffset(version + 1, metadata="note")})
                    assert VIEWS not in await committed_offsets(cluster, "readers") or version
                expected += [b"a%d" % version, b"b", b"c"]
                assert await committed(cluster, CLICKS) == expected
                offsets = await committed_offsets(cluster, "readers", require_stable=True)
                assert offsets == {VIEWS: CommittedOffset(version + 1, metadata="note")}
                producer.begin()
                await (await producer.send(CLICKS, batch(b"aborted")))
                await producer.commit_offsets("readers", {VIEWS: CommittedOffset(99)})
                await producer.abort()
                assert await committed(cluster, CLICKS) == expected
                assert await committed_offsets(cluster, "readers", require_stable=True) == offsets
            assert producer.identity.producer_epoch == 0
        settings = {"isolation.level": "read_committed", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": servers(running), "group.id": "theirs", **settings})
        try:
            consumer.assign([KafkaTopicPartition("clicks", 0, 0)])
            theirs = await asyncio.get_running_loop().run_in_executor(None, consumer.consume, len(expected), 20)
            assert [message.value() for message in theirs] == expected
        finally:
            await asyncio.get_running_loop().run_in_executor(None, consumer.close)


async def test_what_raises_in_a_transaction_aborts_it_and_an_empty_one_is_nothing(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as (_, cluster), await TransactionalProducer.open(cluster, "loads") as producer:
        with pytest.raises(LookupError):
            async with producer.transaction():
                await producer.send(CLICKS, batch(b"lost"))
                raise LookupError("a program's own")
        async with producer.transaction():
            pass
        producer.begin()
        with pytest.raises(InvalidTransactionState, match="loads is open and not ready"):
            producer.begin()
        await producer.abort()
        with pytest.raises(InvalidTransactionState, match="loads is ready and not open"):
            await producer.send(CLICKS, batch(b"without"))
        async with producer.transaction():
            await producer.send(CLICKS, batch(b"kept"))
        assert await committed(cluster, CLICKS) == [b"kept"]


async def test_a_batch_that_is_refused_fails_the_commit_and_the_next_transaction_goes_on_in_a_new_epoch(tmp_path: Path) -> None:
    """KIP-360. No one looked at what `send` gave."""
    async with (
        running_cluster(tmp_path, message_max_bytes="5000") as (_, cluster),
        await TransactionalProducer.open(cluster, "loads") as producer,
    ):
        with pytest.raises(MessageTooLarge):
            async with producer.transaction():
                await producer.send(VIEWS, batch(b"lost with it"))
                await producer.send(CLICKS, batch(bytes(6_000)))
        assert producer.state is TransactionState.READY
        assert producer.identity.producer_epoch > 0
        async with producer.transaction():
            await producer.send(VIEWS, batch(b"kept"))
        assert await committed(cluster, CLICKS, VIEWS) == [b"kept"]


async def test_a_batch_that_is_larger_than_its_topic_takes_is_written_in_parts_of_its_transaction(tmp_path: Path) -> None:
    """KIP-126."""
    async with (
        running_cluster(tmp_path, message_max_bytes="5000") as (_, cluster),
        await TransactionalProducer.open(cluster, "loads") as producer,
    ):
        large = [b"%d" % index * 2_000 for index in range(9)]
        for _ in range(2):
            async with producer.transaction():
                await asyncio.gather(*[await producer.send(CLICKS, batch(*values)) for values in ([b"before"], large, [b"behind"])])
        assert await committed(cluster, CLICKS) == 2 * [b"before", *large, b"behind"]
        assert producer.identity.producer_epoch == 0


async def test_a_producer_whose_id_was_taken_over_is_fenced_for_good(tmp_path: Path) -> None:
    """KIP-98: the open transaction of the former one is aborted."""
    async with running_cluster(tmp_path) as (_, cluster):
        former = await TransactionalProducer.open(cluster, "loads")
        former.begin()
        await (await former.send(CLICKS, batch(b"former")))
        async with await TransactionalProducer.open(cluster, "loads") as latter:
            assert latter.identity.producer_id == former.identity.producer_id
            with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
                await former.commit()
            assert former.state is TransactionState.FENCED
            with pytest.raises(ProducerFenced, match="loads: epoch 0 is over: another producer has the id"):
                await former.abort()
            async with latter.transaction():
                await latter.send(CLICKS, batch(b"latter"))
        await former.close()
        assert await committed(cluster, CLICKS) == [b"latter"]


async def test_a_producer_whose_transaction_took_too_long_is_told_so_and_what_may_be_asked_for(tmp_path: Path) -> None:
    """There is no other producer then, as the message had it."""
    async with running_cluster(tmp_path, transaction_abort_timed_out_transaction_cleanup_interval_ms="50") as (_, cluster):
        with pytest.raises(ApiError, match="up to 3600000 ms: InvalidTransactionTimeout"):
            await TransactionalProducer.open(cluster, "loads", transaction_timeout_ms=3_600_000)
        async with await TransactionalProducer.open(cluster, "loads", transaction_timeout_ms=100) as producer:
            producer.begin()
            await producer.add_partitions([CLICKS])
            async with asyncio.timeout(60):
                while await list_transactions(cluster, "CompleteAbort") != ["loads"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
                await producer.commit()
            with pytest.raises(ProducerFenced, match=r"epoch 0 is over: .* took longer than 100 ms"):
                producer.begin()


async def test_a_stale_epoch_that_only_a_partition_says_is_asked_the_coordinator_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INVALID_PRODUCER_EPOCH of Produce (KIP-588), as Kafka's TransactionManagerTest.testInvalidProducerEpochFromProduce: abort is next."""
    async with running_cluster(tmp_path) as (_, cluster), await TransactionalProducer.open(cluster, "loads") as producer:
        first = producer.identity
        producer.begin()
        await producer.send(CLICKS, batch(b"before"))
        with monkeypatch.context() as patched:
            refused = asyncio.get_running_loop().create_future()
            refused.set_exception(InvalidProducerEpoch("it has a newer one"))
            patched.setattr(producer._producer, "send", lambda partition, batch: refused)
            await producer.send(CLICKS, batch(b"refused"))
            with pytest.raises(InvalidProducerEpoch):
                await producer.commit()
        await producer.abort()
        assert producer.identity.producer_epoch == first.producer_epoch + 1
        async with producer.transaction():
            await producer.send(CLICKS, batch(b"after"))
        assert await committed(cluster, CLICKS) == [b"after"]


@pytest.mark.parametrize("commit", [True, False])
async def test_a_transaction_of_another_process_is_ended_by_who_knows_its_id_and_epoch(tmp_path: Path, commit: bool) -> None:
    """What a job's driver does with its tasks' transactions. To say it again does no harm; to say the opposite is refused."""
    async with running_cluster(tmp_path) as (running, cluster):
        task = await TransactionalProducer.open(cluster, "task-7")
        task.begin()
        await (await task.send(CLICKS, batch(b"of a task")))
        async with cluster_of(running) as driver:
            await end_transaction(driver, task.identity, commit=commit)
            await end_transaction(driver, task.identity, commit=commit)
            with pytest.raises(InvalidTransactionState):
                await end_transaction(driver, task.identity, commit=not commit)
            assert await committed(driver, CLICKS) == [b"of a task"] * commit
            await init_producer_id(driver, "task-7")
            with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
                await end_transaction(driver, task.identity, commit=commit)
        await task._producer.close(wait=False)


async def test_coordinators_and_leaders_that_move_are_followed(tmp_path: Path) -> None:
    settings = {
        "transaction_state_log_replication_factor": "2",
        "transaction_state_log_num_partitions": "1",
        "offsets_topic_replication_factor": "2",
    }
    async with (
        running_cluster(tmp_path, 2, **settings) as (running, cluster),
        await TransactionalProducer.open(cluster, "loads") as producer,
    ):
        producer.begin()
        await (await producer.send(CLICKS, batch(b"before")))
        await producer.commit_offsets("readers", {VIEWS: CommittedOffset(3)})
        before = await cluster.coordinator(CoordinatorKind.TRANSACTION, "loads")
        await running.stop_broker(before)
        await producer.send(CLICKS, batch(b"after"))
        await producer.commit()
        assert await cluster.coordinator(CoordinatorKind.TRANSACTION, "loads") != before
        assert await committed(cluster, CLICKS) == [b"before", b"after"]
        assert await committed_offsets(cluster, "readers", require_stable=True) == {VIEWS: CommittedOffset(3)}


async def test_a_transaction_begins_soon_after_one_whose_markers_are_still_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-5477: that takes some milliseconds. Each transaction waited for the whole pause of 0.1 s behind the one before it."""
    async with running_cluster(tmp_path) as (_, cluster), await TransactionalProducer.open(cluster, "loads") as producer:
        ask = cluster.ask
        concurrent = SimpleNamespace(partition_index=0, partition_error_code=51)
        refusals = [SimpleNamespace(results_by_topic_v3_and_below=[SimpleNamespace(name="clicks", results_by_partition=[concurrent])])] * 3

        async def refuse_first(broker_id: BrokerId, key: ApiKey, *arguments: Any, **keywords: Any) -> Any:
            if key is ApiKey.ADD_PARTITIONS_TO_TXN and refusals:
                return refusals.pop()
            return await ask(broker_id, key, *arguments, **keywords)

        monkeypatch.setattr(cluster, "ask", refuse_first)
        monkeypatch.setattr(cluster, "pause_seconds", lambda failures: 3_600.0)
        async with producer.transaction():
            await producer.send(CLICKS, batch(b"second"))
        assert not refusals


@contextmanager
def losing_answers(cluster: Cluster, lost: ApiKey) -> Iterator[None]:
    """What is asked for by such requests is done, and the connection lost before it is said; they are not sent again."""
    ask = cluster.ask

    async def lose_the_answer(broker_id: BrokerId, key: ApiKey, *arguments: Any, **keywords: Any) -> Any:
        answer = await ask(broker_id, key, *arguments, **keywords)
        if key is lost and not answer.error_code:
            raise ConnectionResetError("the answer is lost")
        return answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cluster, "ask", lose_the_answer)
        patched.setattr("ottla.wire.cluster.is_healed_by_time", lambda error: isinstance(error, ApiError))
        yield


async def test_a_commit_that_nobody_answered_can_only_be_asked_again(tmp_path: Path) -> None:
    """It may have been done: to abort then would be to lie."""
    async with running_cluster(tmp_path) as (_, cluster), await TransactionalProducer.open(cluster, "loads") as producer:
        with losing_answers(cluster, ApiKey.END_TXN), pytest.raises(ConnectionResetError):
            async with producer.transaction():
                await producer.send(CLICKS, batch(b"once"))
        assert producer.state is TransactionState.COMMITTING
        with pytest.raises(InvalidTransactionState, match="is committing"):
            await producer.abort()
        await producer.commit()
        assert await committed(cluster, CLICKS) == [b"once"]


async def test_an_abort_that_did_not_hear_of_its_new_epoch_is_asked_again_and_no_one_is_fenced(tmp_path: Path) -> None:
    """The transaction is aborted by then; to end it once more in the former epoch is what a replaced producer would do."""
    async with running_cluster(tmp_path) as (_, cluster), await TransactionalProducer.open(cluster, "loads") as producer:
        producer.begin()
        await producer.send(CLICKS, batch(b"never"))
        with losing_answers(cluster, ApiKey.INIT_PRODUCER_ID), pytest.raises(ConnectionResetError):
            await producer.abort()
        await producer.abort()
        async with producer.transaction():
            await producer.send(CLICKS, batch(b"after"))
        assert await committed(cluster, CLICKS) == [b"after"]


async def test_a_transaction_whose_abort_was_not_answered_takes_nothing_more(tmp_path: Path) -> None:
    """It may be aborted by then: what is sent now would be a transaction of its own, and be committed without the batch before."""
    async with running_cluster(tmp_path) as (_, cluster), await TransactionalProducer.open(cluster, "loads") as producer:
        producer.begin()
        await (await producer.send(CLICKS, batch(b"never")))
        with losing_answers(cluster, ApiKey.END_TXN), pytest.raises(ConnectionResetError):
            await producer.abort()
        with pytest.raises(InvalidTransactionState, match="loads is failed and not open"):
            await producer.send(VIEWS, batch(b"half"))
        await producer.abort()
        async with producer.transaction():
            await producer.send(VIEWS, batch(b"after"))
        assert await committed(cluster, CLICKS, VIEWS) == [b"after"]


async def test_a_partition_that_is_not_there_is_named(tmp_path: Path) -> None:
    """And not those that were only not tried because of it."""
    async with brokers(tmp_path, auto_create_topics_enable="false") as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks")
        async with await TransactionalProducer.open(cluster, "loads") as producer:
            producer.begin()
            with two_attempts_only(cluster), pytest.raises(UnknownTopicOrPartition, match="nothing-0 in a transaction of loads"):
                await producer.add_partitions([CLICKS, TopicPartition("nothing", 0)])
            assert producer.state is TransactionState.FAILED


async def test_a_close_that_is_given_up_leaves_nothing_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a coordinator that does not answer: the transaction is left to its timeout, and the connections are not."""
    async with running_cluster(tmp_path) as (_, cluster):
        producer = await TransactionalProducer.open(cluster, "loads")
        producer.begin()
        await (await producer.send(CLICKS, batch(b"a")))
        is_asked = asyncio.Event()

        async def never_answered(*_: object, **__: object) -> None:
            is_asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(transactions, "end_transaction", never_answered)
        closing = asyncio.ensure_future(producer.close())
        await is_asked.wait()
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled() and producer.state is TransactionState.CLOSED
        assert not producer._producer._tasks


def test_errors_of_transactions_have_their_own_classes() -> None:
    assert issubclass(InvalidTransactionState, ApiError) and not InvalidTransactionState.retriable


async def test_a_transaction_ends_without_a_topic_that_was_deleted_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers know by then all topics that there are, so what they do not know is gone."""
    monkeypatch.setattr(MarkerSender.__init__, "__defaults__", (0.01, 3))
    async with running_cluster(tmp_path) as (_, cluster), await TransactionalProducer.open(cluster, "loads") as producer:
        async with producer.transaction():
            await producer.send(CLICKS, batch(b"1"))
            await (await producer.send(VIEWS, batch(b"2")))  # written: what meets the deletion is tried until its delivery timeout
            await delete_topics(cluster, ["views"])
        async with producer.transaction():  # waits for the end of the one before
            await producer.send(CLICKS, batch(b"3"))
        assert await committed(cluster, CLICKS) == [b"1", b"3"]


async def test_a_producer_whose_transactional_id_has_expired_goes_on_after_an_abort(tmp_path: Path) -> None:
    """As Kafka's, which then does not ask for the abort and takes an id again (KIP-588); after `transactional.id.expiration.ms`."""
    soon = {"transactional_id_expiration_ms": "300", "transaction_remove_expired_transaction_cleanup_interval_ms": "100"}
    async with running_cluster(tmp_path, 1, **soon) as (_, cluster), await TransactionalProducer.open(cluster, "loads") as producer:
        async with asyncio.timeout(120):
            while await describe_transaction(cluster, "loads") is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        with pytest.raises(InvalidProducerIdMapping):
            async with producer.transaction():
                await producer.send(CLICKS, batch(b"refused"))
        assert producer.state is TransactionState.READY


async def test_offsets_that_were_given_up_are_none_of_the_next_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They reach the group's coordinator late. What was read up to there was aborted, and would be read by no one any more."""
    has_come, may_go_on = asyncio.Event(), asyncio.Event()
    commit = txn_offset_commit._commit

    async def late(*arguments: Any) -> Any:
        if not has_come.is_set():
            has_come.set()
            await may_go_on.wait()
        return await commit(*arguments)

    monkeypatch.setattr(txn_offset_commit, "_commit", late)
    async with running_cluster(tmp_path, 2) as (_, cluster):
        coordinator = await cluster.coordinator(CoordinatorKind.GROUP, "billing")
        ids = [f"load-{number}" for number in range(50)]
        others = [name for name in ids if await cluster.coordinator(CoordinatorKind.TRANSACTION, name) != coordinator]
        async with await TransactionalProducer.open(cluster, others[0]) as producer:
            producer.begin()
            given_up = asyncio.ensure_future(producer.commit_offsets("billing", {CLICKS: CommittedOffset(100)}))
            await asyncio.wait_for(has_come.wait(), 120)
            given_up.cancel()
            await asyncio.wait([given_up])
            await producer.abort()
            producer.begin()
            committing = asyncio.ensure_future(producer.commit_offsets("billing", {VIEWS: CommittedOffset(5)}))
            async with asyncio.timeout(120):
                while (found := await describe_transaction(cluster, others[0])) is None or not found.is_ongoing:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            may_go_on.set()
            await committing
            await producer.commit()
        assert await committed_offsets(cluster, "billing", require_stable=True) == {VIEWS: CommittedOffset(5)}


@pytest.mark.parametrize("is_added", [False, True])
async def test_an_abort_while_a_partition_is_added_costs_the_next_transaction_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_added: bool
) -> None:
    """As Kafka's TransactionManagerTest.testCancelUnsentAddPartitionsAndProduceOnAbort. The producer was fenced for good by what it had
    asked for itself, or the first batch of the next transaction went to a partition that was not added."""
    has_come, may_go_on = asyncio.Event(), asyncio.Event()

    async def late(*arguments: Any, **keywords: Any) -> None:
        is_first = not has_come.is_set()
        if is_first and is_added:
            await add_partitions(*arguments, **keywords)
        has_come.set()
        if is_first:
            await may_go_on.wait()
        if not (is_first and is_added):
            await add_partitions(*arguments, **keywords)

    monkeypatch.setattr(transactions, "add_partitions", late)
    async with running_cluster(tmp_path) as (_, cluster), await TransactionalProducer.open(cluster, "loads") as producer:
        producer.begin()
        sending = asyncio.ensure_future(producer.send(CLICKS, batch(b"never")))
        behind = asyncio.ensure_future(producer.send(VIEWS, batch(b"never")))
        await asyncio.wait_for(has_come.wait(), 120)
        await producer.abort()
        async with producer.transaction():
            may_go_on.set()
            for sent in (sending, behind):
                with pytest.raises(InvalidTransactionState, match="loads was aborted meanwhile"):
                    await sent
            await producer.send(CLICKS, batch(b"kept"))
        assert await committed(cluster, CLICKS, VIEWS) == [b"kept"]


async def test_a_batch_that_is_sent_while_its_transaction_is_aborted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It came behind the abort and was committed with the next transaction, or by none."""
    async with running_cluster(tmp_path) as (_, cluster), await TransactionalProducer.open(cluster, "loads") as producer:
        end = transactions.end_transaction

        async def and_send(*arguments: Any, **keywords: Any) -> None:
            await end(*arguments, **keywords)
            with pytest.raises(InvalidTransactionState, match="loads is failed and not open"):
                await producer.send(CLICKS, batch(b"late"))

        producer.begin()
        await (await producer.send(CLICKS, batch(b"never")))
        with monkeypatch.context() as patched:
            patched.setattr(transactions, "end_transaction", and_send)
            await producer.abort()
        async with producer.transaction():
            await producer.send(CLICKS, batch(b"kept"))
        assert await committed(cluster, CLICKS) == [b"kept"]


async def test_a_commit_is_no_success_when_the_transaction_is_aborted_before_its_batches_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by another thread that closes the producer."""
    async with running_cluster(tmp_path) as (_, cluster), await TransactionalProducer.open(cluster, "loads") as producer:
        producer.begin()
        await producer.send(CLICKS, batch(b"written"))
        never = asyncio.get_running_loop().create_future()
        with monkeypatch.context() as patched:
            patched.setattr(producer._producer, "send", lambda partition, batch: never)
            await producer.send(CLICKS, batch(b"unanswered"))
        committing = asyncio.ensure_future(producer.commit())
        await asyncio.sleep(0)
        await producer.close()
        never.cancel()
        with pytest.raises(InvalidTransactionState, match="loads is closed and not open"):
            await committing
        assert await committed(cluster, CLICKS) == []


async def test_a_commit_whose_answer_was_lost_is_not_taken_for_aborted_when_another_attempt_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For Kafka's producer such an error is fatal, so it says of no abort that it was one (TransactionManager.EndTxnHandler). Here the
    abort was none, as nothing was open any more, and the producer continued as if the batch was not written."""
    async with running_cluster(tmp_path) as (_, cluster), await TransactionalProducer.open(cluster, "loads") as producer:
        ask = cluster.ask
        commits: list[int] = []

        async def lose_the_answer(broker_id: BrokerId, key: ApiKey, *arguments: Any, **keywords: Any) -> Any:
            if key is ApiKey.END_TXN:
                commits.append(len(commits))
                if commits[-1] == 1:
                    return SimpleNamespace(error_code=UnknownServerError.code)
            answer = await ask(broker_id, key, *arguments, **keywords)
            if commits == [0]:
                raise ConnectionResetError("the answer is lost")
            return answer

        monkeypatch.setattr(cluster, "ask", lose_the_answer)
        with pytest.raises(UnknownServerError) as raised:
            async with producer.transaction():
                await producer.send(CLICKS, batch(b"once"))
        assert "could not be aborted" in raised.value.__notes__[0]
        with pytest.raises(InvalidTransactionState):
            await producer.abort()
        assert await committed(cluster, CLICKS) == [b"once"]
        async with await TransactionalProducer.open(cluster, "loads") as latter:
            assert latter.identity.producer_id == producer.identity.producer_id


async def test_what_an_answer_does_not_speak_of_is_no_part_of_the_transaction() -> None:
    """As Kafka's AddPartitionsToTxnHandler and TxnOffsetCommitHandler. What was written to the partition had never a marker behind it."""
    identity = ProducerIdentity(7, 0, "loads")
    added = SimpleNamespace(name="clicks", results_by_partition=[SimpleNamespace(partition_index=0, partition_error_code=0)])
    with pytest.raises(UnknownServerError, match="views-1"):
        await add_partitions(AnsweringCluster(SimpleNamespace(results_by_topic_v3_and_below=[added])), identity, [CLICKS, VIEWS])
    commit = SimpleNamespace(name="clicks", partitions=[SimpleNamespace(partition_index=0, error_code=0)])
    answers = SimpleNamespace(error_code=0), SimpleNamespace(topics=[commit])
    with pytest.raises(UnknownServerError, match="views-1"):
        await add_offsets(AnsweringCluster(*answers), identity, "readers", dict.fromkeys((CLICKS, VIEWS), CommittedOffset(1)))
    with pytest.raises(UnknownServerError, match="loads"):
        await describe_transaction(AnsweringCluster(SimpleNamespace(transaction_states=[])), "loads")


async def test_a_commit_whose_coordinator_is_not_there_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that has gone since an attempt whose answer was lost. It was taken for a refusal, and `abort` for what is next."""
    added = SimpleNamespace(name="clicks", results_by_partition=[SimpleNamespace(partition_index=0, partition_error_code=0)])
    cluster = AnsweringCluster(SimpleNamespace(results_by_topic_v3_and_below=[added]), SimpleNamespace(error_code=0))
    async with TransactionalProducer(cluster, ProduceSettings(), ProducerIdentity(7, 0, "loads"), 1_000) as producer:
        producer.begin()
        await producer.add_partitions([CLICKS])

        async def gone(*_: object, **__: object) -> None:
            raise BrokerNotAvailable("broker 1 is not known")

        with monkeypatch.context() as patched:
            patched.setattr(transactions, "end_transaction", gone)
            with pytest.raises(BrokerNotAvailable):
                await producer.commit()
        await producer.commit()
        assert producer.state is TransactionState.READY


async def test_what_is_refused_for_good_is_said_at_once_though_another_partition_may_be_heard_of_yet() -> None:
    """As Kafka's TxnOffsetCommitHandler. It was asked for again until the time was over, and the other partition was named for it."""
    identity = ProducerIdentity(7, 0, "loads")
    codes = {0: UnknownTopicOrPartition.code, 1: TopicAuthorizationFailed.code, 2: OperationNotAttempted.code}
    partitions = [TopicPartition("clicks", number) for number in codes]
    answered = [SimpleNamespace(partition_index=number, partition_error_code=code, error_code=code) for number, code in codes.items()]
    added = SimpleNamespace(name="clicks", results_by_partition=answered)
    with pytest.raises(TopicAuthorizationFailed, match="clicks-1"):
        await add_partitions(AnsweringCluster(SimpleNamespace(results_by_topic_v3_and_below=[added])), identity, partitions)
    commit = SimpleNamespace(topics=[SimpleNamespace(name="clicks", partitions=answered[:2])])
    offsets = dict.fromkeys(partitions[:2], CommittedOffset(1))
    with pytest.raises(TopicAuthorizationFailed, match="clicks-1"):
        await add_offsets(AnsweringCluster(SimpleNamespace(error_code=0), commit), identity, "readers", offsets)
    with pytest.raises(TopicAuthorizationFailed, match="clicks-1"):
        await commit_offsets(AnsweringCluster(commit), "readers", offsets)

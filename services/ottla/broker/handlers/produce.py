"""Produce (key 0), versions 3-11; 0-2 are advertised and refused (KAFKA-18659).

v5 adds log_start_offset, v8 record errors (KIP-467), v9 is flexible, v10 names the leader where it is another broker (KIP-951),
v11 adds TRANSACTION_ABORTABLE (KIP-890). One batch per partition, stored as it came. Before the first batch of a transaction its
coordinator is asked.
Unlike Kafka: quotas are not enforced, so throttle_time_ms is always 0, and the records inside a batch are not opened
(docs/decisions) but where a topic asks for it, so record_errors names records without a key on a compacted topic and those whose
schema id is not registered where it is validated, at most a thousand, and no others.

The dispatcher calls `stage` for every request of a read and lets the groups be written once at the end of it; what
is returned here may leave only after that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ottla.broker.handlers.partition_view import CurrentLeaders
from ottla.broker.handlers.registry import BrokerParts, RequestContext
from ottla.broker.handlers.waiting import in_slices
from ottla.broker.replication.partition import ACKS_ALL, Partition
from ottla.broker.replication.schema_claims import PLAIN_BYTES, plain_frames, schema_claims
from ottla.broker.security.authorizer import Operation, Resource, ResourceKind, topic
from ottla.config.topic import TopicSettings
from ottla.errors import (
    ApiError,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTopic,
    InvalidTransactionState,
    KafkaStorageError,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    TopicAuthorizationFailed,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    UnsupportedCompressionType,
)
from ottla.model import INTERNAL_TOPICS, TopicPartition
from ottla.protocol import produce as codec
from ottla.protocol.api import ApiKey
from ottla.protocol.primitives import INT32
from ottla.protocol.produce import PartitionAnswer, PartitionData, ProduceRequest, RepeatedRequest, TopicData
from ottla.protocol.produce_client import decode_response
from ottla.record.batch import HEADER_SIZE, BatchHeader, read_header
from ottla.record.codecs import CODEC_NAMES, codec_number
from ottla.record.opening import StoredAs
from ottla.storage.batch_opener import BatchOpener

# Kafka's tools write to internal topics under this client id.
ADMIN_CLIENT_ID: Final = "__admin_client"
Answer = Callable[[bytes], None]  # takes an encoded response
ZSTD: Final = 4
ZSTD_VERSION: Final = 7  # KIP-110
TRANSACTION_ABORTABLE_VERSION: Final = 11
_SLICE: Final = 20
# A request of more partitions, which all may be files to write to, is staged and written in slices.
LARGE_REQUEST: Final = 500
_NAME: Final = ApiKey.PRODUCE.api_name
# What a coordinator that cannot answer now is known by.
_UNVERIFIABLE: Final = (ConcurrentTransactions, CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator)


class SilentFailure(Exception):
    """acks=0 and something went wrong: all that can be done is to close the connection, so that the client asks for metadata."""


class ProducePartitionStatus:
    """What has to happen before one partition's part of a request is done.

    Once it is committed or has failed it stays so, however long the request waits for other partitions: a replica that leads no more
    may truncate the batch, and its high watermark then passes what another leader has at that offset.
    """

    __slots__ = ("acks", "answer", "error", "is_pending", "leader_epoch", "offset", "partition", "topic")

    def __init__(self, topic_name: str, partition: Partition, acks: int, offset: int, answer: PartitionAnswer) -> None:
        self.topic = topic_name
        self.partition = partition
        self.acks = acks
        self.offset = offset  # committed once the high watermark (or, for acks=1, the flush) has reached it
        self.answer = answer
        self.leader_epoch = partition.leader_epoch  # that it was appended in
        self.is_pending = True
        self.error: ApiError | None = None

    def is_met(self) -> bool:
        """Whether a leader has it committed."""
        partition = self.partition
        reached = partition.high_watermark if self.acks == ACKS_ALL else partition.committed_offset()
        return reached >= self.offset and partition.is_leader

    def look(self) -> bool:
        """Looks whether it is committed or has failed; says whether neither is so yet."""
        if self.is_pending:
            is_met = self.is_met()
            self.error = None if is_met else self._failure()
            self.is_pending = not is_met and self.error is None
        return self.is_pending

    def look_at_epoch(self) -> None:
        """Fails if the partition has a newer leader epoch: nothing looked at it since the append, and the batch may have been truncated."""
        if self.partition.leader_epoch != self.leader_epoch:
            self.is_pending, self.error = False, self._leadership_lost()

    def outcome(self, otherwise: ApiError | None) -> ApiError | None:
        """What to answer: None for success, why it failed, or `otherwise` when it might succeed yet."""
        partition, is_pending = self.partition, self.look()
        if self.error is not None:
            return self.error
        if not is_pending:
            return None
        if self.acks == ACKS_ALL and partition.is_leader and partition.is_under_min_isr:
            return NotEnoughReplicasAfterAppend(
                f"{partition.topic_partition}: written, and then {partition.in_sync.too_few(partition.min_insync_replicas)}"
            )
        return otherwise

    def _failure(self) -> ApiError | None:
        """Why it can no longer be met, if that is so."""
        if self.partition.storage_error is not None:
            return self.partition.storage_error
        if not self.partition.is_leader:
            return self._leadership_lost()
        return None

    def _leadership_lost(self) -> ApiError:
        return NotLeaderOrFollower(f"{self.partition.topic_partition}: leadership was lost before the batch was committed")


class DelayedProduce:
    """A request whose batches are written and not yet committed."""

    __slots__ = (
        "_answer",
        "_answers",
        "_by_partition",
        "_correlation_id",
        "_done_count",
        "_listener_name",
        "_parts",
        "_repeated",
        "_requirements",
        "_version",
        "timeout_seconds",
    )

    def __init__(
        self,
        version: int,
        correlation_id: int,
        timeout_ms: int,
        answers: dict[str, list[PartitionAnswer]],
        requirements: list[ProducePartitionStatus],
        parts: BrokerParts,
        listener_name: str,
        repeated: RepeatedRequest | None = None,
    ) -> None:
        self._version = version
        self._correlation_id = correlation_id
        self._answers = answers
        self._requirements = requirements
        self._done_count = 0  # of them, from the first on
        self._by_partition: dict[TopicPartition, list[ProducePartitionStatus]] = {}  # once they are looked for
        self._parts = parts
        self._listener_name = listener_name
        self._repeated = repeated  # encodes the answer when all is well
        self._answer: Answer | None = None
        self.timeout_seconds = timeout_ms / 1000

    def answer_with(self, answer: Answer) -> None:
        self._answer = answer

    def partitions(self) -> Iterator[TopicPartition]:
        for requirement in self._requirements:
            yield requirement.partition.topic_partition

    def fail(self, failed: Mapping[TopicPartition, KafkaStorageError]) -> None:
        """The groups of these partitions were not written."""
        _fail(self._answers, self._requirements, failed, self._parts)

    def try_complete(self) -> bool:
        requirements = self._requirements
        while self._done_count < len(requirements):
            if requirements[self._done_count].look():
                return False
            self._done_count += 1
        self._finish(None)
        return True

    def holds_up(self, topic_partition: TopicPartition) -> bool:
        """Whether what came later to the partition waits at least as long: the high watermark reaches this request first.

        What has become of this request's own part there is known from then on, whatever it waits for elsewhere.
        """
        by_partition = self._by_partition
        if not by_partition:
            for requirement in self._requirements:
                by_partition.setdefault(requirement.partition.topic_partition, []).append(requirement)
        for requirement in by_partition.get(topic_partition, ()):
            if requirement.look() and not requirement.partition.waits_for_flush:
                return True
        return False

    def expire(self) -> None:
        self._finish(RequestTimedOut("the in-sync replicas did not have the batch in time"))

    def _finish(self, otherwise: ApiError | None) -> None:
        assert self._answer is not None
        if self._repeated is not None:
            (only,) = self._requirements
            if only.outcome(otherwise) is None:
                self._answer(self._repeated.encode_success(self._correlation_id, *only.answer[2:5]))
                return
        for requirement in self._requirements:
            answer, error = requirement.answer, requirement.outcome(otherwise)
            if error is not None:
                answer = PartitionAnswer(answer.partition, error.code, error_message=error.message)
                self._parts.meters.failed(_NAME, error.code)
                requirement.partition.produce_failures += 1
            self._answers.setdefault(requirement.topic, []).append(answer)
        self._answer(_encoded(self._version, self._correlation_id, self._answers, self._parts, self._listener_name))


def _encoded(version: int, correlation_id: int, answers: dict[str, list[PartitionAnswer]], parts: BrokerParts, listener_name: str) -> bytes:
    """The framed response, with the leaders of partitions that others lead where the version has a place for them."""
    leaders = None
    if version >= codec.CURRENT_LEADER_VERSION:
        for name, of_topic in answers.items():
            for position, answer in enumerate(of_topic):
                if answer.error_code == NotLeaderOrFollower.code:
                    leaders = leaders or CurrentLeaders(parts, listener_name)
                    of_topic[position] = answer._replace(current_leader=leaders.of(TopicPartition(name, answer.partition)))
    return codec.encode_response(version, correlation_id, list(answers.items()), leaders.endpoints.values() if leaders else ())


def stage(
    request: ProduceRequest, buffer: memoryview, context: RequestContext, parts: BrokerParts, now_ms: int
) -> bytes | DelayedProduce | Awaitable[bytes | DelayedProduce | None] | None:
    """Stages the batches of the request, whose positions are in `buffer`.

    Returns:
        The framed response, to be sent once the groups are written; or the request as one that waits for the
        high watermark; or None for acks=0. Where batches have to be opened first, an awaitable of one of these:
        nothing is staged before it is awaited, and the body has been copied.

    Raises:
        SilentFailure: acks=0 and a partition failed.
    """
    unverified = [] if request.transactional_id is None else _unverified(request, buffer, context, parts)
    refused = _of_unknown_codecs(request, buffer, context.api_version) if context.api_version < ZSTD_VERSION else {}
    is_large = sum(len(partitions) for _, partitions in request.topics) > LARGE_REQUEST
    if is_large or unverified or (parts.replicas.some_open_batches and _have_to_be_opened(request, buffer, parts)):
        # The buffer is overwritten by the next read, so the batches are copied before anything is waited for.
        copied = [[bytes(buffer[start:stop]) for _, start, stop in partitions] for _, partitions in request.topics]
        return _stage_opened(request, copied, context, parts, now_ms, unverified, refused)
    return _stage(request, buffer, context, parts, now_ms, refused)


def _stage(
    request: ProduceRequest,
    buffer: memoryview,
    context: RequestContext,
    parts: BrokerParts,
    now_ms: int,
    refused: Mapping[tuple[str, int], ApiError],
) -> bytes | DelayedProduce | None:
    answers: dict[str, list[PartitionAnswer]] = {}
    requirements: list[ProducePartitionStatus] = []
    encoded = _append(request, request.topics, buffer, context, parts, now_ms, refused, answers, requirements)
    return encoded or _conclusion(request, context, parts, answers, requirements)


def _append(
    request: ProduceRequest,
    topics: list[TopicData],
    buffer: memoryview,
    context: RequestContext,
    parts: BrokerParts,
    now_ms: int,
    refused: Mapping[tuple[str, int], ApiError],
    answers: dict[str, list[PartitionAnswer]],
    requirements: list[ProducePartitionStatus],
) -> bytes | None:
    """Stages the batches of some topics of a request, and puts down what is to be answered of each, at once or later.

    Returns:
        The framed response when there is one batch only, and it need not wait.
    """
    version = context.api_version
    acks = request.acks
    refusal = _refusal(request, context, parts)
    in_transaction = request.transactional_id is not None
    is_single = len(request.topics) == 1 and len(request.topics[0].partitions) == 1
    for name, partitions in topics:
        refusal_here = refusal or _topic_refusal(name, context, parts)
        topic_answers = answers.setdefault(name, [])
        for index, start, stop in partitions:
            try:
                error = refusal_here or (refused.get((name, index)) if refused else None)
                if error is not None:
                    raise error
                partition = parts.partition(name, index)
                base_offset, last_offset, log_append_time = partition.append_as_leader(
                    buffer, start, stop, acks, now_ms, in_transaction=in_transaction
                )
            except ApiError as error:
                if in_transaction and (error.retriable or isinstance(error, MessageTooLarge)) and stop - start >= HEADER_SIZE:
                    _note_refused(parts, TopicPartition(name, index), read_header(buffer, start))
                record_errors = error.record_errors if isinstance(error, InvalidRecord) else ()
                topic_answers.append(PartitionAnswer(index, error.code, error_message=error.message, record_errors=record_errors))
                _note_failure(parts, name, index, error)
                continue
            if not partition.has_staged:
                parts.replicas.appends.stage(partition)
            if acks == 0:
                continue
            if partition.commits_at_once or (acks != ACKS_ALL and not partition.waits_for_flush):
                if is_single:
                    return codec.encode_success(
                        version, context.correlation_id, name, index, base_offset, log_append_time, partition.log.log_start_offset
                    )
                topic_answers.append(PartitionAnswer(index, 0, base_offset, log_append_time, partition.log.log_start_offset))
            else:
                answer = PartitionAnswer(index, 0, base_offset, log_append_time, partition.log.log_start_offset)
                requirements.append(ProducePartitionStatus(name, partition, acks, last_offset + 1, answer))
    return None


def _conclusion(
    request: ProduceRequest,
    context: RequestContext,
    parts: BrokerParts,
    answers: dict[str, list[PartitionAnswer]],
    requirements: list[ProducePartitionStatus],
) -> bytes | DelayedProduce | None:
    version = context.api_version
    if request.acks == 0:
        for name, topic_answers in answers.items():
            for answer in topic_answers:
                raise SilentFailure(f"{name}-{answer.partition}: {answer.error_message}")
        return None
    if requirements:
        return DelayedProduce(version, context.correlation_id, request.timeout_ms, answers, requirements, parts, context.listener_name)
    return _encoded(version, context.correlation_id, answers, parts, context.listener_name)


def _note_failure(parts: BrokerParts, name: str, index: int, error: ApiError) -> None:
    parts.meters.failed(_NAME, error.code)
    partition = parts.replicas.partitions.get(TopicPartition(name, index))
    if partition is not None:  # the name of no topic may be anything, and there are as many as a client likes
        partition.produce_failures += 1


def _note_refused(parts: BrokerParts, key: TopicPartition, header: BatchHeader) -> None:
    """A batch is to be sent again, as a whole or, where it was too large, in parts: what came behind the first must not overtake it."""
    partition = parts.replicas.partitions.get(key)
    if partition is not None and partition.is_leader and header.is_transactional:
        producers = partition.log.producers
        if producers.may_write_in_transaction(header.producer_id, header.producer_epoch):
            producers.note_refused(header)


def _have_to_be_opened(request: ProduceRequest, buffer: memoryview, parts: BrokerParts) -> bool:
    """Whether one of the batches has."""
    for name, partitions in request.topics:
        for index, start, stop in partitions:
            found = parts.replicas.partitions.get(TopicPartition(name, index))
            if found is not None and found.opens_batches and not _is_fine(found, buffer, start, stop, parts):
                return True
    return False


def _is_fine(partition: Partition, buffer: memoryview, start: int, stop: int, parts: BrokerParts) -> bool:
    """Whether a quick look finds a batch's records as its topic wants them; where it does not, opening the batch says why."""
    settings = partition.settings
    if settings.compression_type != "producer" or stop - start > PLAIN_BYTES:
        return False
    validates = settings.validates_schema_ids
    frames = plain_frames(bytes(buffer[start:stop]), of_keys=settings.confluent_key_schema_validation, passes_headers=not validates)
    if frames is None or (settings.is_compacted and b"" in frames[0]):
        return False
    return not validates or parts.schema_ids.fit(*frames, partition.topic_partition.topic, settings)


class Repeat:
    """A request that a producer repeats, and the partition that it is for.

    A partition that is taken away leads no more, so keeping it here cannot be worse than looking it up.
    """

    __slots__ = ("listener_name", "partition", "request")

    def __init__(self, request: RepeatedRequest, partition: Partition, listener_name: str) -> None:
        self.request = request
        self.partition = partition
        self.listener_name = listener_name


def stage_repeated(
    repeat: Repeat, buffer: memoryview, position: int, end: int, correlation_id: int, parts: BrokerParts, now_ms: int
) -> bytes | DelayedProduce | None:
    """Stages a request that is known but for its records.

    Args:
        position: the byte behind what is known.

    Returns:
        The framed response, or the request as one that waits for the high watermark; or None when anything is not as
        usual: then nothing was staged, and `stage` finds out what it is.
    """
    replicas = parts.replicas
    request, partition = repeat.request, repeat.partition
    found = request.records(buffer, position, end)
    if found is None or not parts.authorizer.allows_all:
        return None
    start, stop = found
    if replicas.some_open_batches and partition.opens_batches and not _is_fine(partition, buffer, start, stop, parts):
        return None
    acks = request.acks
    try:
        base_offset, last_offset, log_append_time = partition.append_as_leader(buffer, start, stop, acks, now_ms)
    except ApiError:
        return None
    if not partition.has_staged:
        replicas.appends.stage(partition)
    if partition.commits_at_once or (acks != ACKS_ALL and not partition.waits_for_flush):
        return request.encode_success(correlation_id, base_offset, log_append_time, partition.log.log_start_offset)
    answer = PartitionAnswer(request.partition, 0, base_offset, log_append_time, partition.log.log_start_offset)
    requirement = ProducePartitionStatus(request.topic, partition, acks, last_offset + 1, answer)
    return DelayedProduce(request.version, correlation_id, request.timeout_ms, {}, [requirement], parts, repeat.listener_name, request)


def _unverified(
    request: ProduceRequest, buffer: memoryview, context: RequestContext, parts: BrokerParts
) -> list[tuple[Partition, BatchHeader]]:
    """The partitions in which a transaction is about to begin, with the header of its batch: its coordinator is to be asked."""
    found: list[tuple[Partition, BatchHeader]] = []
    if _refusal(request, context, parts) is not None:
        return found
    for name, partitions in request.topics:
        for index, start, stop in partitions:
            partition = parts.replicas.partitions.get(TopicPartition(name, index))
            if (
                partition is None
                or not partition.is_leader
                or stop - start < HEADER_SIZE
                or _topic_refusal(name, context, parts) is not None
            ):
                continue
            header = read_header(buffer, start)
            producers = partition.log.producers
            if header.is_transactional and not producers.may_write_in_transaction(header.producer_id, header.producer_epoch):
                found.append((partition, header))
    return found


async def _verified(
    transactional_id: str, unverified: list[tuple[Partition, BatchHeader]], context: RequestContext, parts: BrokerParts
) -> dict[tuple[str, int], ApiError]:
    """Asks the coordinator, and gives the producer's error where it does not know of the transaction."""
    refused: dict[tuple[str, int], ApiError] = {}
    for producer in {(header.producer_id, header.producer_epoch) for _, header in unverified}:
        of_producer = [entry for entry in unverified if (entry[1].producer_id, entry[1].producer_epoch) == producer]
        partitions = [partition for partition, _ in of_producer]
        refusals = await parts.transactions.verification.refusals(transactional_id, *producer, partitions)
        for partition, header in of_producer:
            key = partition.topic_partition
            error = refusals.get(key)
            if error is None:
                continue
            if isinstance(error, _UNVERIFIABLE):
                # The client asks for no metadata at this one, and sends the batch again.
                partition.log.producers.note_refused(header)
                refused[key] = NotEnoughReplicas(f"{key}: the transaction could not be verified: {error.message}")
            elif isinstance(error, InvalidTransactionState) and context.api_version >= TRANSACTION_ABORTABLE_VERSION:
                refused[key] = TransactionAbortable(error.message)
            else:
                refused[key] = error
    return refused


async def _stage_opened(
    request: ProduceRequest,
    copied: list[list[bytes]],
    context: RequestContext,
    parts: BrokerParts,
    now_ms: int,
    unverified: list[tuple[Partition, BatchHeader]],
    refused: dict[tuple[str, int], ApiError],
) -> bytes | DelayedProduce | None:
    """As `_stage`, after what has to be waited for: a coordinator, and batches that are opened outside the loop.

    A topic with a `compression.type` of its own has them compressed again, a compacted one has their keys looked at, and one that has
    schema ids validated has those asked for that are not known here.

    Args:
        copied: the batches, topic by topic and partition by partition as in the request.
        unverified: what the coordinator has to be asked about.
        refused: of which partitions nothing is stored, whatever is found there.
    """
    rewritten = bytearray()
    topics = []
    for (name, partitions), batches in zip(request.topics, copied, strict=True):
        moved = []
        for (index, _, _), batch in zip(partitions, batches, strict=True):
            found = parts.replicas.partitions.get(TopicPartition(name, index))
            if found is not None and found.opens_batches and (name, index) not in refused:
                try:
                    opened = await opened_for_topic(parts.opener, batch, found.topic_partition, found.settings)
                    if found.settings.validates_schema_ids:
                        await parts.schema_ids.check(await parts.offload(schema_claims, batch, found.settings), name, found.settings)
                except ApiError as error:
                    refused[name, index] = error
                    opened = b""
            else:
                opened = batch
            moved.append(PartitionData(index, len(rewritten), len(rewritten) + len(opened)))
            rewritten += opened
        topics.append(TopicData(name, moved))
    if unverified:
        # Last, so that nothing comes between the answer and the append.
        assert request.transactional_id is not None
        refused |= await _verified(request.transactional_id, unverified, context, parts)
    buffer = memoryview(rewritten)
    answers: dict[str, list[PartitionAnswer]] = {}
    requirements: list[ProducePartitionStatus] = []
    # Nothing is pipelined behind an opened request, so its groups are its own, and its buffer ends here.
    async for slice_of_topics in in_slices(_sliced(topics)):
        staged: bytes | DelayedProduce | None = _append(
            request, slice_of_topics, buffer, context, parts, now_ms, refused, answers, requirements
        )
        failed = parts.replicas.appends.complete()
        if failed and request.acks == 0:
            raise silent_failure(failed, parts)
        if failed:
            staged = staged and after_failures(staged, failed, context.api_version, parts, context.listener_name)
            _fail(answers, requirements, failed, parts)
        if staged is not None:
            return staged
    for requirement in requirements:
        requirement.look_at_epoch()  # others had their turn between two slices
    return _conclusion(request, context, parts, answers, requirements)


def _sliced(topics: list[TopicData]) -> Iterator[list[TopicData]]:
    """The topics, a few partitions at a time; all of a request that is not large are one slice."""
    if sum(len(partitions) for _, partitions in topics) <= LARGE_REQUEST:
        yield topics
        return
    for name, partitions in topics:
        for first in range(0, len(partitions), _SLICE):
            yield [TopicData(name, partitions[first : first + _SLICE])]


def _refusal(request: ProduceRequest, context: RequestContext, parts: BrokerParts) -> ApiError | None:
    """What is wrong with the request as a whole, and so with each of its partitions."""
    if request.acks not in (ACKS_ALL, 0, 1):
        return InvalidRequiredAcks(f"acks is {request.acks}; 0, 1 and -1 (all) are known")
    if request.transactional_id is not None:
        resource = Resource(ResourceKind.TRANSACTIONAL_ID, request.transactional_id)
        if not parts.authorizer.allowed(context.principal, Operation.WRITE, resource):
            return TransactionalIdAuthorizationFailed(f"{context.principal} may not use the transactional id {request.transactional_id}")
    return None


def _topic_refusal(name: str, context: RequestContext, parts: BrokerParts) -> ApiError | None:
    if name in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
        return InvalidTopic(f"{name} is internal: only brokers write to it")
    if parts.authorizer.allows_all or parts.authorizer.allowed(context.principal, Operation.WRITE, topic(name)):
        return None
    return TopicAuthorizationFailed(f"{context.principal} may not write to {name}")


def _of_unknown_codecs(request: ProduceRequest, buffer: memoryview, version: int) -> dict[tuple[str, int], ApiError]:
    """The partitions whose batch has a codec that the version does not know, as it was sent: a topic may store it with another."""
    return {
        (name, index): UnsupportedCompressionType(f"zstd needs Produce v{ZSTD_VERSION}, v{version} came")
        for name, partitions in request.topics
        for index, start, stop in partitions
        if stop - start >= HEADER_SIZE and read_header(buffer, start).codec == ZSTD
    }


def after_failures(
    answer: bytes | DelayedProduce, failed: Mapping[TopicPartition, KafkaStorageError], version: int, parts: BrokerParts, listener_name: str
) -> bytes | DelayedProduce:
    """What is answered to a request that had been staged when the groups of these partitions were not written.

    The others keep their answers: a producer without sequences would write them twice.
    """
    if isinstance(answer, DelayedProduce):
        answer.fail(failed)
        return answer
    correlation_id = INT32.unpack_from(answer, INT32.size)[0]
    produced, _ = decode_response(memoryview(answer)[INT32.size :], correlation_id, version)
    answers: dict[str, list[PartitionAnswer]] = {}
    for partition in produced:
        answers.setdefault(partition.topic, []).append(PartitionAnswer._make(partition[1:]))
    _fail(answers, (), failed, parts)
    return _encoded(version, correlation_id, answers, parts, listener_name)


def silent_failure(failed: Mapping[TopicPartition, KafkaStorageError], parts: BrokerParts) -> SilentFailure:
    """What closes the connection of a producer that wants no answer (acks=0) when the groups of these partitions were not written."""
    for (name, index), error in failed.items():
        _note_failure(parts, name, index, error)
    return SilentFailure("; ".join(error.message for error in failed.values()))


def _fail(
    answers: dict[str, list[PartitionAnswer]],
    requirements: Iterable[ProducePartitionStatus],
    failed: Mapping[TopicPartition, KafkaStorageError],
    parts: BrokerParts,
) -> None:
    """Puts the error in the place of success for the partitions whose groups were not written."""
    for requirement in requirements:
        error = failed.get(requirement.partition.topic_partition)
        if error is not None:
            requirement.is_pending, requirement.error = False, error
    for (name, index), error in failed.items():
        of_topic = answers.get(name, [])
        for position, answer in enumerate(of_topic):
            if answer.partition == index and not answer.error_code:
                of_topic[position] = PartitionAnswer(index, error.code, error_message=error.message)
                _note_failure(parts, name, index, error)


_SHOWN: Final = 3


async def opened_for_topic(opener: BatchOpener, batch: bytes, topic_partition: TopicPartition, settings: TopicSettings) -> bytes:
    """The batch as its topic wants it stored.

    Raises:
        MessageTooLarge: it is over the limit as it came. What becomes of it is measured when it is appended.
        InvalidRecord: records without a key on a compacted topic, which it names, or records that cannot be read.
        ApiError: what `record.opening.opened` finds.
    """
    if len(batch) > settings.max_message_bytes:
        raise MessageTooLarge(f"{topic_partition}: a batch of {len(batch)} bytes, max.message.bytes is {settings.max_message_bytes}")
    opened = await opener.opened(batch, wanted_by(settings))
    if opened.without_key_count:
        complaint = f"Compacted topic cannot accept message without key in topic partition {topic_partition}."
        raise _record_errors(opened.without_key_count, opened.without_key, complaint)
    return opened.batch


def wanted_by(settings: TopicSettings) -> StoredAs:
    """How a topic wants its batches."""
    if settings.compression_type == "producer":
        return StoredAs(settings.is_compacted)
    codec = codec_number(settings.compression_type)
    levels = {"gzip": settings.compression_gzip_level, "lz4": settings.compression_lz4_level, "zstd": settings.compression_zstd_level}
    level = levels.get(CODEC_NAMES[codec])
    return StoredAs(settings.is_compacted, codec, None if level == -1 else level)


def _record_errors(count: int, indexes: Sequence[int], complaint: str) -> InvalidRecord:
    """The refusal of a batch for some of its records, in Kafka's words (`LogValidator`)."""
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{complaint}')" for index in indexes[:_SHOWN])
    return InvalidRecord(
        f"One or more records have been rejected due to {count} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]",
        [(index, complaint) for index in indexes],
    )

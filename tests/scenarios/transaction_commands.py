"""The commands of the scenarios of transactions: a partition of `__transaction_state`, who asks of it, and what comes of that.

init t [timeout=s] [as=1000/0]   InitProducerId; `as` is what the producer believes to have (KIP-360)
add t a-0 a-1 [as=1000/0]        AddPartitionsToTxn; without `as` by anyone who has the id now
commit t [as=1000/0]             EndTxn
abort t [as=1000/0]
verify t a-0 [as=1000/0]         a leader asks before the first batch (KIP-890)
describe t                       DescribeTransactions
markers held|flow|refused        markers are held back on their way; arrive; or are refused by a newer coordinator's
log refuses ERROR | log takes    an append fails; works again
wait SECONDS                     time passes, and then it is looked for transactions that take too long
expire                           it is looked for ids that nobody uses
record t STATE 1000/0 [a-0]      another coordinator's record, which the next one finds
fail-over                        another coordinator takes over, and reads the partition
show                             every id
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from itertools import count
from typing import Any

from ottla import errors
from ottla.broker.transactions.records import decode, decode_key, encode, encode_key
from ottla.broker.transactions.shard import TransactionLimits, TransactionPartition
from ottla.broker.transactions.states import TransactionState
from ottla.broker.transactions.transaction import Transaction
from ottla.errors import ApiError, TransactionCoordinatorFenced
from ottla.interbroker.calls import TransactionMarker
from ottla.lifecycle import offload_nothing
from ottla.model import TopicPartition
from ottla.record.records import Record, build_batch
from ottla.testing.clock import ManualClock

KEY = TopicPartition("__transaction_state", 0)
LIMITS = TransactionLimits(max_timeout_ms=900_000, id_expiration_ms=7 * 86_400_000, load_buffer_bytes=1 << 20)
# Turns of the loop after which nothing has anything left to do.
_TURNS = 60


class _Log:
    """The partition: real batches, and a line for each record that is written."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.written: list[tuple[str, Transaction | None]] = []
        self.refusal: ApiError | None = None

    def append(self, key: TopicPartition, records: Sequence[tuple[bytes, bytes | None]]) -> tuple[int, _Log]:
        if self.refusal is not None:
            raise self.refusal
        offset = len(self.batches)
        self.batches.append(build_batch([Record(offset, 0, *record) for record in records], base_offset=offset))
        for data, value in records:
            transactional_id = decode_key(data) or ""
            self.written.append((transactional_id, None if value is None else decode(transactional_id, value)))
        return offset, self

    def is_committed(self, partition: Any, end_offset: int) -> bool:
        return True

    async def check_still_led(self, key: TopicPartition, leader_epoch: int, timeout_seconds: float) -> None:
        """It does: what becomes of a coordinator of the past is told in tests/unit/broker/transactions."""

    async def chunks(
        self, key: TopicPartition, leader_epoch: int, chunk_bytes: int, skipped: Callable[[int], None]
    ) -> AsyncIterator[bytes]:
        for batch in list(self.batches):
            yield batch


class TransactionCommands:
    """One partition. Each command gives the lines that it prints; `steps` are the changes of state that were written."""

    def __init__(self) -> None:
        self.steps: set[tuple[TransactionState, TransactionState]] = set()
        self._states: dict[str, TransactionState] = {}
        self._loop = asyncio.new_event_loop()
        self._clock = ManualClock()
        self._log = _Log()
        self._producers: dict[str, tuple[int, int]] = {}
        self._ids = count(1000)
        self._epoch = 0
        self._lines: list[str] = []
        self._markers_flow = asyncio.Event()
        self._markers_flow.set()
        self._are_refused = False
        self._coordinator = self._made()
        self._perform(self._coordinator.load(offload_nothing))
        self._lines.clear()

    def close(self) -> None:
        self._coordinator.close()
        self._loop.run_until_complete(self._coordinator.ended())
        self._loop.close()

    def execute(self, line: str) -> Iterator[str]:
        """Executes a command."""
        name, *words = line.split()
        options = dict(word.split("=") for word in words if "=" in word)
        getattr(self, "_do_" + name.replace("-", "_"))(*(word for word in words if "=" not in word), **{"as_": "", **_renamed(options)})
        lines, self._lines = self._lines, []
        yield from lines

    def _made(self) -> TransactionPartition:
        return TransactionPartition(KEY, self._epoch, self._log, self._clock, self, self, LIMITS)  # type: ignore[arg-type]

    async def next_id(self) -> int:
        """As `ProducerIds`."""
        return next(self._ids)

    async def send(self, marker: TransactionMarker, topics_known: asyncio.Event) -> None:
        """As `MarkerSender`."""
        what = "COMMIT" if marker.is_commit else "ABORT"
        where = " ".join(map(str, marker.partitions)) or "nobody"
        epochs = f"producer {marker.producer_id}/{marker.producer_epoch}, coordinator epoch {marker.coordinator_epoch}"
        self._lines.append(f"  marker {what} to {where}: {epochs}")
        if self._are_refused:
            raise TransactionCoordinatorFenced("a newer coordinator has written a marker")
        await self._markers_flow.wait()

    def _perform(self, work: Coroutine[Any, Any, Any] | None = None) -> Any:
        """Does it, until nothing happens any more; what is written and answered becomes lines."""

        async def until_quiet() -> Any:
            result = None
            try:
                if work is not None:
                    result = await work
            except ApiError as error:
                self._tell_written()
                self._lines.append(f"refused: {type(error).__name__}")
            for _ in range(_TURNS):
                self._tell_written()
                await asyncio.sleep(0)
            return result

        return self._loop.run_until_complete(until_quiet())

    def _tell_written(self) -> None:
        for transactional_id, transaction in self._log.written:
            before = self._states.get(transactional_id)
            after = TransactionState.DEAD if transaction is None else transaction.state
            if before is not None:
                self.steps.add((before, after))
            self._states[transactional_id] = after
            self._lines.append(f"{transactional_id}: {_told(transaction)}" if transaction else f"{transactional_id}: forgotten")
            if transaction is None:
                del self._states[transactional_id]
        self._log.written.clear()

    def _who(self, transactional_id: str, as_: str) -> tuple[int, int]:
        return _producer(as_) if as_ else self._producers[transactional_id]

    # What producers and leaders ask for.

    def _do_init(self, transactional_id: str, timeout: str = "60", as_: str = "") -> None:
        expected = _producer(as_) if as_ else None
        given = self._perform(self._coordinator.initialise(transactional_id, int(float(timeout) * 1000), expected))
        if given is not None:
            self._producers[transactional_id] = given
            self._lines.append("answer: producer {}/{}".format(*given))

    def _do_add(self, transactional_id: str, *names: str, as_: str) -> None:
        who = self._who(transactional_id, as_)
        self._perform(self._coordinator.add_partitions(transactional_id, *who, [_partition(name) for name in names]))

    def _do_commit(self, transactional_id: str, as_: str) -> None:
        self._perform(self._coordinator.end(transactional_id, *self._who(transactional_id, as_), True))

    def _do_abort(self, transactional_id: str, as_: str) -> None:
        self._perform(self._coordinator.end(transactional_id, *self._who(transactional_id, as_), False))

    def _do_verify(self, transactional_id: str, *names: str, as_: str) -> None:
        try:
            found = self._coordinator.verify(transactional_id, *self._who(transactional_id, as_), [_partition(name) for name in names])
        except ApiError as error:
            self._lines.append(f"refused: {type(error).__name__}")
        else:
            self._lines += [f"{key}: {'yes' if error is None else type(error).__name__}" for key, error in found.items()]

    def _do_describe(self, transactional_id: str, as_: str) -> None:
        try:
            self._lines.append(_told(self._coordinator.describe(transactional_id)))
        except ApiError as error:
            self._lines.append(f"refused: {type(error).__name__}")

    # What happens besides.

    def _do_markers(self, how: str, as_: str) -> None:
        self._are_refused = how == "refused"
        self._markers_flow.clear() if how == "held" else self._markers_flow.set()
        self._perform()

    def _do_log(self, how: str, name: str = "", as_: str = "") -> None:
        self._log.refusal = getattr(errors, name)("the log refuses") if how == "refuses" else None

    def _do_wait(self, seconds: str, as_: str) -> None:
        self._clock.advance(seconds=float(seconds))

        async def look() -> None:
            self._coordinator.abort_timed_out()

        self._perform(look())

    def _do_expire(self, as_: str) -> None:
        self._perform(self._coordinator.expire())

    def _do_record(self, transactional_id: str, state: str, producer: str, *names: str, as_: str) -> None:
        partitions = frozenset(map(_partition, names))
        now_ms = self._clock.time_ms()
        kind = next(known for known in TransactionState if known.title == state)
        record = Transaction(transactional_id, *_producer(producer), 60_000, kind, partitions, now_ms if names else -1, now_ms)
        self._log.append(KEY, [(encode_key(transactional_id), encode(record))])
        self._log.written.clear()
        self._states[transactional_id] = kind
        self._producers[transactional_id] = _producer(producer)

    def _do_fail_over(self, as_: str) -> None:
        self._coordinator.close()
        self._perform(self._coordinator.ended())
        self._epoch += 1
        self._coordinator = self._made()
        self._perform(self._coordinator.load(offload_nothing))

    def _do_show(self, as_: str) -> None:
        found = sorted(self._coordinator.transactions(), key=lambda transaction: transaction.transactional_id)
        self._lines += [f"{transaction.transactional_id}: {_told(transaction)}" for transaction in found] or ["nothing"]


def _renamed(options: dict[str, str]) -> dict[str, str]:
    return {"as_" if name == "as" else name: value for name, value in options.items()}


def _producer(text: str) -> tuple[int, int]:
    producer_id, epoch = map(int, text.split("/"))
    return producer_id, epoch


def _partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def _told(transaction: Transaction) -> str:
    partitions = " ".join(map(str, sorted(transaction.partitions)))
    return f"{transaction.state.title}, producer {transaction.producer_id}/{transaction.epoch}" + (f", {partitions}" if partitions else "")

"""The records of `__transaction_state` against bytes made from the schemas' definitions, and against themselves."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.transactions.records import decode, decode_key, encode, encode_key
from ottla.broker.transactions.states import TransactionState
from ottla.broker.transactions.transaction import Transaction
from ottla.errors import InvalidRecord
from ottla.model import TopicPartition

ONGOING = Transaction("t", 7, 3, 60_000, TransactionState.ONGOING, frozenset({TopicPartition("ab", 1), TopicPartition("ab", 0)}), 10, 20)


def test_a_record_has_kafkas_bytes() -> None:
    """TransactionLogKey version 0 and TransactionLogValue version 0, field by field."""
    assert encode_key("payments") == b"\0\0" + b"\0\x08payments"
    partitions = struct.pack(">ih2siii", 1, 2, b"ab", 2, 0, 1)
    assert encode(ONGOING) == struct.pack(">hqhib", 0, 7, 3, 60_000, 1) + partitions + struct.pack(">qq", 20, 10)
    empty = Transaction("t", 7, 3, 60_000, TransactionState.EMPTY, frozenset(), -1, 20)
    assert encode(empty) == struct.pack(">hqhibi", 0, 7, 3, 60_000, 0, -1) + struct.pack(">qq", 20, -1)


def test_the_flexible_version_is_read_past_tags_that_nobody_knows() -> None:
    previous = b"\0\x08" + struct.pack(">q", 6)
    data = struct.pack(">hqhib", 1, 7, 3, 60_000, 1) + b"\2\3ab\2" + struct.pack(">i", 1) + b"\0" + struct.pack(">qq", 20, 10)
    read = decode("t", data + b"\2" + previous + b"\x09\2xy")
    assert read == replace(ONGOING, partitions=frozenset({TopicPartition("ab", 1)}), previous_producer_id=6)


def test_an_id_whose_producer_goes_on_has_what_that_one_had_before() -> None:
    """TransactionLogValue version 1, with Kafka's tagged field 0 and Ottla's 100; version 0 where a release before 3.5 is to read it."""
    empty = Transaction("t", 7, 3, 60_000, TransactionState.EMPTY, frozenset(), -1, 20, 6, 2)
    data = struct.pack(">hqhib", 1, 7, 3, 60_000, 0) + b"\0" + struct.pack(">qq", 20, -1) + b"\2"
    assert encode(empty) == data + b"\0\x08" + struct.pack(">q", 6) + b"\x64\2" + struct.pack(">h", 2)
    assert decode("t", encode(empty)) == empty
    without = replace(empty, previous_producer_id=-1, previous_epoch=-1)
    assert encode(empty, keeps_previous=False) == encode(without)
    assert decode("t", encode(without)) == without


def test_a_key_of_a_newer_release_is_told_apart() -> None:
    assert decode_key(b"\0\x05whatever") is None


partitions = st.frozensets(st.builds(TopicPartition, st.text(max_size=8), st.integers(0, 2**31 - 1)), max_size=5)
int64s = st.integers(-(2**63), 2**63 - 1)
transactions = st.builds(
    Transaction,
    st.just("t"),
    int64s,
    st.integers(-1, 2**15 - 1),
    st.integers(0, 2**31 - 1),
    st.sampled_from([state for state in TransactionState if state is not TransactionState.EMPTY]),
    partitions,
    int64s,
    int64s,
)


@given(transactions, st.text(max_size=30))
def test_records_come_back_as_they_were(transaction: Transaction, transactional_id: str) -> None:
    assert decode("t", encode(transaction)) == transaction
    assert decode_key(encode_key(transactional_id)) == transactional_id


@given(transactions, st.data())
def test_a_record_cut_anywhere_is_refused(transaction: Transaction, data: st.DataObject) -> None:
    encoded = encode(transaction)
    with pytest.raises(InvalidRecord):
        decode("t", encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@given(st.binary(max_size=60))
def test_bytes_that_are_no_record_are_refused_and_nothing_worse(data: bytes) -> None:
    with contextlib.suppress(InvalidRecord):
        decode("t", data)
    with contextlib.suppress(InvalidRecord):
        decode_key(data)

"""Blocks of producer ids: no id is given twice, no matter who asks (KIP-98, `ProducerIdManager`)."""

from __future__ import annotations

import pytest

from ottla.broker.controller.decisions import BLOCK_SIZE, next_block
from ottla.coordination.znodes import ProducerIdBlock
from ottla.errors import UnknownServerError
from ottla.model import BrokerId


def test_blocks_of_a_thousand_follow_each_other() -> None:
    first = next_block(None, BrokerId(1), 0)
    second = next_block(first, BrokerId(2), 0)
    assert (first, second) == (ProducerIdBlock(BrokerId(1), 0, 999), ProducerIdBlock(BrokerId(2), 1_000, 1_999))


def test_a_block_lies_behind_all_that_were_given_before_its_millisecond() -> None:
    """Also where ZooKeeper does not know them, as it was restored from a copy; and a clock that goes back gives none twice."""
    former = next_block(None, BrokerId(1), 1_700_000_000_000)
    assert former.first == 1_700_000_000_000_000
    assert next_block(None, BrokerId(1), 1_700_000_000_001).first == former.last + 1
    assert next_block(former, BrokerId(1), 1_600_000_000_000).first == former.last + 1


def test_the_last_block_is_the_last() -> None:
    """Ids are 64 bits wide."""
    nearly = ProducerIdBlock(BrokerId(1), 0, 2**63 - 2 - BLOCK_SIZE)
    assert next_block(nearly, BrokerId(1), 0).last == 2**63 - 2
    with pytest.raises(UnknownServerError, match="all producer ids are used up"):
        next_block(next_block(nearly, BrokerId(1), 0), BrokerId(1), 0)

"""Blocks of producer ids: which one comes next. Ids are never given twice, so a block is never taken back."""

from __future__ import annotations

from typing import Final

from ottla.coordination.znodes import ProducerIdBlock
from ottla.errors import UnknownServerError
from ottla.model import BrokerId

# Kafka's size: a broker asks the controller once for a thousand producers.
BLOCK_SIZE: Final = 1_000
_LAST_ID: Final = 2**63 - 1


def next_block(latest: ProducerIdBlock | None, broker_id: BrokerId) -> ProducerIdBlock:
    """The block after the latest one.

    Args:
        latest: the block that was handed out last, None before the first.
        broker_id: who gets the new one.
    """
    first = 0 if latest is None else latest.last + 1
    if first > _LAST_ID - BLOCK_SIZE:
        raise UnknownServerError(f"all producer ids are used up: the latest block ends at {first - 1}")
    return ProducerIdBlock(broker_id, first, first + BLOCK_SIZE - 1)

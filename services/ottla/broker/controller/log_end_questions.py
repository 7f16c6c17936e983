"""Asks replicas where their logs end, before a leader is chosen of those that may have lost records.

Brokers are asked side by side and given a few seconds: the controller does nothing else meanwhile. One that does not
answer can not be elected by its log; whoever asks comes back (`active`).

A driver, for one term of the controller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from ottla.broker.controller.state import ClusterState
from ottla.errors import ApiError
from ottla.interbroker.calls import ControlTransport, LogEnd, LogEndsRequest
from ottla.model import BrokerId, BrokerRegistration, TopicPartition

log: Final = logging.getLogger(__name__)

# A broker looks into its memory to answer.
_ANSWER_SECONDS: Final = 3.0


class LogEndQuestions:
    """What replicas say of their logs goes into the state, and out of it once it was used.

    Args:
        state: what decisions are made on.
        transport: the way to the brokers.
    """

    def __init__(self, state: ClusterState, transport: ControlTransport) -> None:
        self._state = state
        self._transport = transport
        state.log_ends = {}

    async def ask(self, wanted: Iterable[Sequence[TopicPartition]]) -> None:
        """Asks every replica that is there of these partitions. They are looked for, and asked for, a slice at a time."""
        for partitions in wanted:
            if partitions:
                await self._ask(partitions)
            await asyncio.sleep(0)

    def forget(self) -> None:
        """The answers were used; the next question is asked again."""
        self._state.log_ends = {}

    async def _ask(self, partitions: Sequence[TopicPartition]) -> None:
        state = self._state
        log.info("%d partitions have nobody who is known to have everything; asking where their logs end", len(partitions))
        questions: dict[BrokerId, dict[TopicPartition, UUID]] = {}
        for key in partitions:
            known = state.find(key)
            for broker_id in () if known is None else known.state.replicas:
                if broker_id in state.brokers:
                    questions.setdefault(broker_id, {})[key] = state.topics[key.topic].topic_id
        answers = await asyncio.gather(*(self._ask_broker(state.brokers[asked], question) for asked, question in questions.items()))
        assert state.log_ends is not None
        for broker_id, answer in zip(questions, answers, strict=True):
            for key, end in answer.items():
                state.log_ends.setdefault(key, {})[broker_id] = end

    async def _ask_broker(self, broker: BrokerRegistration, question: Mapping[TopicPartition, UUID]) -> Mapping[TopicPartition, LogEnd]:
        request = LogEndsRequest(self._state.controller_id, self._state.controller_epoch, broker.broker_epoch, question)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._transport.broker(broker).log_ends(request)
        except (ApiError, TimeoutError, OSError) as error:
            log.warning("broker %d does not say where %d logs end: %s", broker.broker_id, len(question), error or "it takes too long")
            return {}

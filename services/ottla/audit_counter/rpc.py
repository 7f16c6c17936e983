"""The gRPC service `Audit`; its methods are the proto file's. What it raises becomes a status in `rpc.server`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from ottla.audit_counter.canary.runner import Canary, fields_of_canary
from ottla.audit_counter.service import AuditCounter, fields_of_verdict
from ottla.audit_counter.verdicts import EdgeVerdict
from ottla.errors import InvalidRequest, ResourceNotFound
from ottla.rpc.v1 import audit_pb2 as messages
from ottla.rpc.v1 import audit_pb2_grpc as services

SERVICE: Final = messages.DESCRIPTOR.services_by_name["Audit"].full_name
_LONGEST_WAIT_SECONDS: Final = 600.0
_LATEST_MS: Final = (1 << 63) - 1


class AuditServicer(services.AuditServicer):
    """Answers for a counter."""

    def __init__(self, counter: AuditCounter, canary: Canary | None = None) -> None:
        self._counter = counter
        self._canary = canary

    async def Status(self, request: messages.AuditStatusRequest, context: Any) -> messages.AuditStatusResponse:
        counter = self._counter
        standing = await counter.standing()
        return messages.AuditStatusResponse(
            is_active=counter.is_active,
            is_caught_up=counter.is_caught_up,
            epoch=standing.epoch,
            record_count=standing.counters["records"],
            quarantined_count=standing.counters["quarantined"],
            lag=counter.progress.lag,
            topics=standing.topics,
        )

    async def Verify(self, request: messages.VerifyRequest, context: Any) -> messages.VerifyResponse:
        if not request.topic or not 0 <= request.from_ms < request.to_ms:
            raise InvalidRequest("a topic, and times of which the first is the lower one")
        wait_seconds = min(request.wait_ms / 1000, _LONGEST_WAIT_SECONDS)
        found = await self._counter.verify(request.topic, request.from_ms, request.to_ms, tuple(request.tiers), wait_seconds)
        return messages.VerifyResponse(
            verdict=str(found.verdict),
            exit_code=found.exit_code,
            window_count=found.windows,
            verdicts=[_message(request.topic, start_ms, said) for start_ms, said in found.verdicts],
        )

    async def Missing(self, request: messages.MissingRequest, context: Any) -> messages.MissingResponse:
        if not 0 <= request.window < _LATEST_MS:
            raise InvalidRequest("a window is where it begins, in milliseconds")
        found = await self._counter.summary(request.topic, request.window, request.window + 1)
        for _, said in found.verdicts:
            if said.edge == request.edge:
                if said.unknown:
                    raise ResourceNotFound(f"window {request.window} is {said.unknown}")
                return messages.MissingResponse(missing=said.missing, surplus=said.surplus, messages=_named(said))
        raise ResourceNotFound(f"nothing is said of {request.edge} of {request.topic} in window {request.window}")

    async def Watch(self, request: messages.WatchRequest, context: Any) -> AsyncIterator[messages.WindowVerdict]:
        async for event in self._counter.watch():
            if request.topic in ("", event.topic):
                yield _message(event.topic, event.start_ms, event.verdict)

    async def Canary(self, request: messages.CanaryRequest, context: Any) -> messages.CanaryResponse:
        fields = fields_of_canary(self._canary)
        partitions = [messages.CanaryPartition(**row) for row in fields.pop("partitions")]
        return messages.CanaryResponse(partitions=partitions, **fields)


def _named(said: EdgeVerdict) -> list[messages.NamedMessage]:
    return [messages.NamedMessage(partition=named.partition, offset=named.offset, times=named.times) for named in said.named]


def _message(topic: str, start_ms: int, said: EdgeVerdict) -> messages.WindowVerdict:
    fields: dict[str, Any] = {**fields_of_verdict(said), "named": _named(said)}
    return messages.WindowVerdict(topic=topic, window=start_ms, **fields)

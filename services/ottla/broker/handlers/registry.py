"""The table of APIs. Each handler enters itself here with its versions, so ApiVersions cannot lie about them.

A handler is a plain function of a request, its context and the broker's parts. It returns the response, or an
awaitable of it when it has to wait, or is a generator that yields where the loop may have its turn (`slices`). Most decode and
encode through `protocol.messages`; the hot ones bring their own.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.request_meters import RequestMeters
from ottla.errors import NotLeaderOrFollower, UnknownTopicOrPartition
from ottla.model import Principal
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import MessageSchema, response_schema
from ottla.record.region import FileRegion

if TYPE_CHECKING:
    from ottla.broker.controller.service import ControllerService
    from ottla.broker.fetch_sessions import FetchSessions
    from ottla.broker.groups.coordinator import GroupCoordinator
    from ottla.broker.metadata import MetadataCache
    from ottla.broker.producer_ids import ProducerIds
    from ottla.broker.purgatory import Purgatory
    from ottla.broker.replication.partition import Partition
    from ottla.broker.replication.replicas import ReplicaManager
    from ottla.broker.replication.schema_ids import SchemaIds
    from ottla.broker.replication.throttles import ReplicationThrottles
    from ottla.broker.security.authorizer import Authorizer
    from ottla.broker.transactions.coordinator import Transactions
    from ottla.clock import Clock
    from ottla.config.broker import BrokerSettings
    from ottla.lifecycle import Offload
    from ottla.storage.batch_opener import BatchOpener
    from ottla.storage.log_manager import LogManager
    from ottla.storage.log_moves import LogMoves

# What a request may name that is taken for one that waits.
MOST_UNCOUNTED: Final = 1_000

Pieces = list[bytes | FileRegion]


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What is asked, by whom, in which version, and over which listener."""

    api_key: int
    principal: Principal
    client_id: str | None
    api_version: int
    correlation_id: int
    listener_name: str
    client_host: str

    def response_schema(self) -> MessageSchema:
        """The builder of the response, in the version of the request."""
        return response_schema(self.api_key, self.api_version)


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """What handlers may call. A handler gets the parts and never the broker."""

    settings: BrokerSettings
    clock: Clock
    offload: Offload
    opener: BatchOpener
    authorizer: Authorizer
    metadata: MetadataCache
    replicas: ReplicaManager
    logs: LogManager
    log_moves: LogMoves
    controller: ControllerService
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions
    fetch_purgatory: Purgatory
    throttles: ReplicationThrottles
    groups: GroupCoordinator
    transactions: Transactions
    schema_ids: SchemaIds
    meters: RequestMeters = field(default_factory=RequestMeters)
    topics_not_made: dict[str, float] = field(default_factory=dict)  # internal ones, and when the log last said why

    def partition(self, topic: str, partition: int) -> Partition:
        """The partition as this broker holds it.

        Raises:
            NotLeaderOrFollower: the cluster has it, and this broker has no replica of it, as after a reassignment. Clients look again.
            UnknownTopicOrPartition: this broker does not know that there is one.
        """
        try:
            return self.replicas.get(topic, partition)
        except UnknownTopicOrPartition as error:
            if self.metadata.partition(topic, partition) is None:
                raise
            raise NotLeaderOrFollower(error.message) from None


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """A response that its handler has encoded already: everything after the response header."""

    pieces: Pieces


Response = Any  # a kio response of the request's version, or an EncodedBody
Sliced = Generator[None, None, Response]
Handle = Callable[[Any, RequestContext, BrokerParts], "Response | Awaitable[Response] | Sliced"]
Decode = Callable[[memoryview, int], Any]
Serves = Callable[["BrokerSettings"], bool]


@dataclass(frozen=True, slots=True)
class Api:
    key: ApiKey
    min_version: int
    max_version: int
    handle: Handle
    decode: Decode | None
    serves: Serves | None = None

    def is_served(self, settings: BrokerSettings) -> bool:
        """Whether a broker with these settings serves and advertises it."""
        return self.serves is None or self.serves(settings)


APIS: Final[dict[int, Api]] = {}


def handles(
    key: ApiKey,
    min_version: int,
    max_version: int,
    *,
    decode: Decode | None = None,
    serves: Serves | None = None,
    waits: bool = False,
) -> Callable[[Handle], Handle]:
    """Enters the decorated function as the handler of `key`.

    Args:
        key: the API.
        min_version: the lowest version served and advertised.
        max_version: the highest.
        decode: reads a body (a view, the version) where `protocol.messages` is not used; it raises InvalidRequest.
        serves: says whether a broker with such settings serves it; None for one that every broker serves.
        waits: whether it is a coroutine that mostly waits for other brokers. What waits is no work under way, and five hundred
            commits that a follower holds up must not stop all that others ask for: it does not count for `queued.max.requests`
            unless it names so much that to go through it is work.
    """

    def enter(handle: Handle) -> Handle:
        assert key not in APIS, f"{key.name} has two handlers"
        APIS[key] = Api(key, min_version, max_version, _uncounted(handle) if waits else handle, decode, serves)
        return handle

    return enter


def _uncounted(handle: Handle) -> Handle:
    """The same as a task, which the dispatcher does not count as it does a coroutine."""

    @functools.wraps(handle)
    def begin(request: Any, context: RequestContext, parts: BrokerParts) -> Response:
        answering: Any = handle(request, context, parts)
        return answering if _names_much(request) else asyncio.ensure_future(answering)

    return begin


def _names_much(request: Any) -> bool:
    """Whether a request has more than `MOST_UNCOUNTED` elements; looks no further than needed."""
    found, structs = 0, [request]
    for struct in structs:  # which grows
        for name in getattr(struct, "__dataclass_fields__", ()):
            value = getattr(struct, name)
            if isinstance(value, (list, tuple)):
                found += len(value)
                if found > MOST_UNCOUNTED:
                    return True
                structs += value
    return False

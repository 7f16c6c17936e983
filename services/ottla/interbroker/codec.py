"""`ottla.interbroker.calls`'s requests and answers as messages of `ottla.rpc.v1`, and back.

A dataclass and its message have the same fields, so the way between them is compiled once from both: the dataclass's annotations and
the message's descriptor. What a field of the one is in the other:

| dataclass | message |
|---|---|
| int, str, bool, BrokerId, an enum by its number | the same |
| UUID | bytes |
| `timeout_seconds` | `timeout_ms` |
| X or None | an optional field, which is left out for None |
| tuple, sequence; frozenset, sorted | a repeated field, or a message that has one repeated field and nothing else |
| mapping | a map, or one message for each item: its first field is the key, the others are the value's |
| dataclass, named tuple | a message; its fields themselves where the message around it has no field of this name |
| `broker_id`, `broker_epoch` of a request to the controller | its `caller`'s |

By hand are partitions' assignments, which are grouped by topic, and the few shapes at the end. A field on either side that has no
partner is a mistake, and raises when the operation is compiled.

There may be 10,000 assignments in a request, at 5 to 10 µs each on either side, so they are packed and unpacked in steps that leave
the event loop room.

Invariant: what is sent is what a release before this one would send (`tests/unit/interbroker/golden.txt`).
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from types import NoneType
from typing import Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ottla.errors import InvalidRequest
from ottla.interbroker.calls import (
    OPERATIONS,
    AllReplicas,
    Caller,
    ConfigResource,
    LeaderAndIsrRequest,
    LogEndsRequest,
    PartitionAssignment,
    Request,
    UpdateMetadataRequest,
)
from ottla.model import UNKNOWN_TRANSACTION, BrokerId, BrokerRegistration, PartitionState, TopicPartition, TransactionNumber
from ottla.rpc.v1 import broker_pb2, common_pb2, controller_pb2

T = TypeVar("T")

BROKER_SERVICE: Final = broker_pb2.DESCRIPTOR.services_by_name["Broker"]
CONTROLLER_SERVICE: Final = controller_pb2.DESCRIPTOR.services_by_name["Controller"]

PARTITIONS_AT_ONCE: Final = 200  # about 2 ms

# Fields that have another name in their message.
_RENAMED: Final[Mapping[tuple[type, str], str]] = {
    (AllReplicas, "partitions"): "topics",
    (LogEndsRequest, "partitions"): "replicas",
    (TransactionNumber, "number"): "transaction_number",
}
# Fields that stay at home, with their defaults at the receiver: only the controller uses them, or anyone who has read the znode.
_NOT_SENT: Final = frozenset(
    {
        (PartitionState, "last_known_leader_replicas"),
        (BrokerRegistration, "control_secret"),
        (BrokerRegistration, "is_foreign"),  # a broker of another implementation is never sent
    }
)


class Codec:
    """How an operation's requests and answers go over the wire.

    Args:
        request: the class of the requests.
    """

    def __init__(self, request: type[Request[Any]]) -> None:
        method = method_of(request)
        self.request_message: Final = GetMessageClass(method.input_type)
        self.answer_message: Final = GetMessageClass(method.output_type)
        self._has_caller = "caller" in method.input_type.fields_by_name
        self._request = _message(request, method.input_type, {"caller"})
        self._answer = _answer(_answer_type(request), method.output_type)

    async def encode_request(self, request: Request[Any], caller: Caller) -> Message:
        """The message of a request.

        Args:
            caller: who sends it. A request that names its sender's epoch is sent under that one, which may be an older one by now.
        """
        fields = self._request.pack(request)
        if self._has_caller:
            fields["caller"] = common_pb2.Caller(
                broker_id=getattr(request, "broker_id", caller.broker_id),
                broker_epoch=getattr(request, "broker_epoch", caller.broker_epoch),
                controller_epoch=caller.controller_epoch,
            )
        if isinstance(request, LeaderAndIsrRequest | UpdateMetadataRequest):
            fields["topics"] = await _assignment_messages(request.partitions)
        return self.request_message(**fields)

    async def decode_request(self, message: Message) -> Request[Any]:
        """The request in a message. Raises InvalidRequest for what this release does not know."""
        if isinstance(message, broker_pb2.LeaderAndIsrRequest | broker_pb2.UpdateMetadataRequest):
            request: Request[Any] = self._request.unpack(message, partitions=tuple(await _in_steps(_assignments_of(message.topics))))
            return request
        return self._request.unpack(message)  # type: ignore[no-any-return]  # a Request[Any], as above

    def caller_of(self, message: Any) -> Caller | None:
        """Who sent the message of a request; None where the request itself has the epochs, and its receiver judges them."""
        if not self._has_caller:
            return None
        return Caller(BrokerId(message.caller.broker_id), message.caller.broker_epoch, message.caller.controller_epoch)

    def encode_answer(self, answer: Any) -> Message:
        """The message of an answer."""
        return self.answer_message(**self._answer.pack(answer))

    def decode_answer(self, message: Message) -> Any:
        """The answer in a message."""
        return self._answer.unpack(message)


_codecs: Final[dict[type[Request[Any]], Codec]] = {}


def codec_of(request: type[Request[Any]]) -> Codec:
    """The codec of a request's class, compiled when it is first used."""
    if request not in _codecs:
        _codecs[request] = Codec(request)
    return _codecs[request]


def method_of(request: type[Request[Any]]) -> MethodDescriptor:
    """The method of the proto files that carries a request."""
    operation = OPERATIONS[request]
    return (CONTROLLER_SERVICE if operation.is_for_controller else BROKER_SERVICE).methods_by_name[operation.rpc]


# From annotations and descriptors.

Pack = Callable[[Any], Any]
Unpack = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The way between a value and the fields of a message.

    Attributes:
        pack: the fields, by name.
        unpack: from the message; fields that are unpacked elsewhere come as keywords.
    """

    pack: Pack
    unpack: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Field:
    """The way of one field of a class.

    Attributes:
        name: in the class.
        sent_as: in the message; None where its value is several fields of the message, or none.
        pack: from the value to the field, or to the fields by name.
        unpack: from the whole message to the value.
    """

    name: str
    sent_as: str | None
    pack: Pack
    unpack: Unpack


def _same(value: Any) -> Any:
    return value


def _message(python: Any, descriptor: Descriptor, sent: set[str]) -> _Shape:
    """A dataclass or named tuple against a message; `sent` are fields of the message that have a value already."""
    if python is ConfigResource:
        return _CONFIG_RESOURCE
    shape = _composed(python, _fields(python, descriptor, sent))
    missing = set(descriptor.fields_by_name.keys()) - sent
    if missing:
        raise TypeError(f"{python.__name__} has nothing for {sorted(missing)} of {descriptor.full_name}")
    return shape


def _composed(python: Any, found: Iterable[_Field]) -> _Shape:
    fields = tuple(found)
    plain = [(field.name, field.sent_as, field.pack) for field in fields if field.sent_as is not None]
    flat = [(field.name, field.pack) for field in fields if field.sent_as is None]

    def pack(value: Any) -> dict[str, Any]:
        packed = {
            sent_as: getattr(value, name) if pack_field is _same else pack_field(getattr(value, name))
            for name, sent_as, pack_field in plain
        }
        for name, pack_fields in flat:
            packed |= pack_fields(getattr(value, name))
        return packed

    def unpack(message: Any, **others: Any) -> Any:
        return python(**{field.name: field.unpack(message) for field in fields}, **others)

    return _Shape(pack, unpack if python is not TransactionNumber else lambda message: _known_transaction(unpack(message)))


def _fields(python: Any, descriptor: Descriptor, sent: set[str]) -> Iterator[_Field]:
    by_name = descriptor.fields_by_name
    for name, hint in get_type_hints(python).items():
        sent_as = _RENAMED.get((python, name), name)
        if hint == tuple[PartitionAssignment, ...]:
            sent.add("topics")  # by `Codec`
        elif (python, name) in _NOT_SENT:
            continue
        elif name == "timeout_seconds":
            sent.add("timeout_ms")
            yield _Field(name, "timeout_ms", lambda seconds: round(seconds * 1000), lambda message: message.timeout_ms / 1000)
        elif sent_as in by_name:
            sent.add(sent_as)
            yield _field(name, hint, by_name[sent_as])
        elif name in ("broker_id", "broker_epoch") and "caller" in by_name:
            yield _Field(name, None, lambda _: {}, attrgetter(f"caller.{name}"))
        elif is_dataclass(hint) or _is_named_tuple(hint):
            shape = _composed(hint, _fields(hint, descriptor, sent))
            yield _Field(name, None, shape.pack, shape.unpack)
        else:
            raise TypeError(f"{descriptor.full_name} has no field for {python.__name__}.{name}")


def _field(name: str, hint: Any, field: FieldDescriptor) -> _Field:
    sent_as, is_optional = field.name, NoneType in get_args(hint)
    read: Unpack = attrgetter(sent_as)
    if is_optional:
        if not field.has_presence:
            raise TypeError(f"{field.full_name} has no presence, so it cannot be None")
        (hint,) = (argument for argument in get_args(hint) if argument is not NoneType)
    pack, unpack = _value(hint, field)
    if is_optional:
        return _Field(
            name,
            sent_as,
            lambda value: None if value is None else pack(value),
            lambda message: unpack(read(message)) if message.HasField(sent_as) else None,
        )
    return _Field(name, sent_as, pack, read if unpack is _same else lambda message: unpack(read(message)))


def _value(hint: Any, field: FieldDescriptor) -> tuple[Pack, Unpack]:
    """The way between a value that is not None and its field."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Mapping:
        return _mapping(arguments[0], arguments[1], field)
    if origin is None or not field.is_repeated:
        return _one(hint, field)
    pack_one, unpack_one = _one(arguments[0], field)
    made, in_order = (frozenset, sorted) if origin is frozenset else (tuple, _same)
    if pack_one is _same:
        return in_order, made
    return lambda values: map(pack_one, in_order(values)), lambda values: made(map(unpack_one, values))


def _one(hint: Any, field: FieldDescriptor) -> tuple[Pack, Unpack]:
    """The way between one value and its field, or one of those in a repeated field."""
    if hint is UUID:
        return attrgetter("bytes"), lambda value: UUID(bytes=value)
    if isinstance(hint, type) and issubclass(hint, enum.IntEnum):
        return int, partial(_enumerated, hint)
    if hint is TopicPartition:  # by hand, as it is in most of what there may be 10,000 of
        return _pack_topic_partition, _unpack_topic_partition
    if field.message_type is None:
        return _same, _same
    made = GetMessageClass(field.message_type)
    shape = _message(hint, field.message_type, set()) if get_origin(hint) is None else _wrapped(hint, field.message_type)
    return lambda value: made(**shape.pack(value)), shape.unpack


def _wrapped(hint: Any, descriptor: Descriptor, sent: Sequence[str] = ()) -> _Shape:
    """A value that is the one field which a message has beside those that are sent already."""
    inner = next(field for field in descriptor.fields if field.name not in sent)
    name, field = inner.name, _field(inner.name, hint, inner)
    return _Shape(lambda value: {name: field.pack(value)}, field.unpack)


def _mapping(key_hint: Any, value_hint: Any, field: FieldDescriptor) -> tuple[Pack, Unpack]:
    descriptor = field.message_type
    assert descriptor is not None, "a mapping is a map or repeated messages"
    if descriptor.GetOptions().map_entry:
        return _map(value_hint, descriptor.fields_by_name["value"])
    key, made = descriptor.fields[0].name, GetMessageClass(descriptor)
    pack_key, unpack_key = _one(key_hint, descriptor.fields[0])
    is_flat = is_dataclass(value_hint) or _is_named_tuple(value_hint)
    shape = _message(value_hint, descriptor, {key}) if is_flat else _wrapped(value_hint, descriptor, [key])

    def pack(mapping: Mapping[Any, Any]) -> Iterator[Message]:
        for item_key, value in mapping.items():
            yield made(**{key: pack_key(item_key)}, **shape.pack(value))

    def unpack(messages: Iterable[Any]) -> dict[Any, Any]:
        return {unpack_key(getattr(message, key)): shape.unpack(message) for message in messages}

    return pack, unpack


def _map(hint: Any, field: FieldDescriptor) -> tuple[Pack, Unpack]:
    pack, unpack = _one(hint, field)
    if pack is _same:
        return _same, dict
    return (
        lambda mapping: {key: pack(value) for key, value in mapping.items()},
        lambda mapping: {key: unpack(mapping[key]) for key in sorted(mapping)},
    )


def _answer(hint: Any, descriptor: Descriptor) -> _Shape:
    """An answer that is no dataclass of the message's fields is its one field."""
    if hint is NoneType:
        return _Shape(lambda _: {}, lambda _: None)
    if hint is range:
        return _PRODUCER_IDS
    names = set(descriptor.fields_by_name.keys())
    if is_dataclass(hint) and names & get_type_hints(hint).keys():
        return _message(hint, descriptor, set())
    return _wrapped(hint, descriptor)


def _answer_type(request: type[Request[Any]]) -> Any:
    """A of `Request[A]`."""
    (base,) = request.__orig_bases__  # type: ignore[attr-defined]  # typeshed does not know it
    return get_args(base)[0]


def _is_named_tuple(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def _enumerated(enumeration: type[enum.IntEnum], number: int) -> enum.IntEnum:
    """Proto keeps the numbers of an enum that it does not know."""
    try:
        return enumeration(number)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


# By hand.


def _pack_topic_partition(topic_partition: TopicPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=topic_partition.topic, partition=topic_partition.partition)


def _unpack_topic_partition(message: common_pb2.TopicPartition) -> TopicPartition:
    return TopicPartition(message.topic, message.partition)


def _known_transaction(number: TransactionNumber) -> TransactionNumber:
    """A former release's coordinator sends neither its epoch nor a number."""
    return UNKNOWN_TRANSACTION if number.number == UNKNOWN_TRANSACTION.number else number


def _pack_config_resource(resource: ConfigResource) -> dict[str, Any]:
    if resource.topic is not None:
        return {"topic": resource.topic, "topic_id": None if resource.topic_id is None else resource.topic_id.bytes}
    return {"all_brokers": True} if resource.broker_id is None else {"broker_id": resource.broker_id}


def _unpack_config_resource(message: controller_pb2.ConfigResource) -> ConfigResource:
    match message.WhichOneof("resource"):
        case "topic":
            return ConfigResource(topic=message.topic, topic_id=UUID(bytes=message.topic_id) if message.HasField("topic_id") else None)
        case "broker_id":
            return ConfigResource(broker_id=BrokerId(message.broker_id))
        case "all_brokers":
            return ConfigResource()
        case None:
            raise InvalidRequest("the request names no resource")


_CONFIG_RESOURCE: Final = _Shape(_pack_config_resource, _unpack_config_resource)
_PRODUCER_IDS: Final = _Shape(
    lambda block: {"first": block.start, "count": len(block)},
    lambda message: range(message.first, message.first + message.count),
)


async def _assignment_messages(partitions: Sequence[PartitionAssignment]) -> list[broker_pb2.TopicAssignment]:
    """Neighbours of the same topic share a message, so the order stays."""
    made = await _in_steps(map(_assignment_message, partitions))
    return [
        broker_pb2.TopicAssignment(topic=topic, topic_id=topic_id.bytes, partitions=[message for _, message in group])
        for (topic, topic_id), group in groupby(zip(partitions, made, strict=True), lambda pair: (pair[0].topic, pair[0].topic_id))
    ]


def _assignment_message(assignment: PartitionAssignment) -> broker_pb2.PartitionAssignment:
    state = assignment.state
    return broker_pb2.PartitionAssignment(
        partition=assignment.partition,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        replicas=state.replicas,
        controller_epoch=state.controller_epoch,
        partition_epoch=assignment.partition_epoch,
        adding_replicas=assignment.adding_replicas,
        removing_replicas=assignment.removing_replicas,
        is_new=assignment.is_new,
        eligible_leader_replicas=state.eligible_leader_replicas,
    )


def _assignments_of(topics: Iterable[broker_pb2.TopicAssignment]) -> Iterator[PartitionAssignment]:
    for topic in topics:
        name, topic_id = topic.topic, UUID(bytes=topic.topic_id)
        for message in topic.partitions:
            state = PartitionState(
                BrokerId(message.leader),
                message.leader_epoch,
                _brokers(message.isr),
                _brokers(message.replicas),
                message.controller_epoch,
                _brokers(message.eligible_leader_replicas),
            )
            yield PartitionAssignment(
                name,
                topic_id,
                message.partition,
                state,
                message.partition_epoch,
                _brokers(message.adding_replicas),
                _brokers(message.removing_replicas),
                message.is_new,
            )


def _brokers(ids: Iterable[int]) -> tuple[BrokerId, ...]:
    return cast("tuple[BrokerId, ...]", tuple(ids))


async def _in_steps(items: Iterable[T]) -> list[T]:
    """All of them, and after every PARTITIONS_AT_ONCE of them the event loop runs others."""
    iterator = iter(items)
    result: list[T] = []
    while step := list(islice(iterator, PARTITIONS_AT_ONCE)):
        result += step
        if len(step) == PARTITIONS_AT_ONCE:
            await asyncio.sleep(0)
    return result

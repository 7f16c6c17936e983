"""Every znode that Ottla writes or reads: its path, and its data in the JSON of Kafka 3.9.

The shapes, and the order of their keys, are Kafka's, so that Kafka's tools read what we write and we read what they
wrote. A reader takes no offence at a field that it does not know; data that is not what the path promises is
MalformedZnode, and its message names the path. docs/znodes.md lists what ZNODES has here, each with an example.

Pure: paths and bytes only.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from random import Random
from typing import Any, Final, ParamSpec, TypeVar
from uuid import UUID

from ottla.coordination.errors import BadArguments, MalformedZnode
from ottla.model import BrokerId, BrokerRegistration, Endpoint, PartitionState, TopicPartition

P = ParamSpec("P")
R = TypeVar("R")

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)

DEFAULT_ENTITY: Final = "<default>"  # the name of a cluster-wide configuration
NO_KRAFT_EPOCH: Final = -1
MAX_STREAMS: Final = 10_000  # of one consumer and topic: what a stranger's znode may make us enumerate


@dataclass(frozen=True, slots=True)
class Znode:
    """A kind of znode: the pattern of its path, with each variable part in brackets."""

    pattern: str
    lifetime: str
    purpose: str
    example: bytes = b""

    def path(self, *parts: object) -> str:
        """The path with its variable parts filled in, first to last."""
        pieces = self.pattern.split("[")
        assert len(pieces) == len(parts) + 1, f"{self.pattern} has {len(pieces) - 1} variable parts"
        return pieces[0] + "".join(f"{part}{piece.partition(']')[2]}" for part, piece in zip(parts, pieces[1:], strict=True))


PERSISTENT: Final = "persistent"
EPHEMERAL: Final = "ephemeral"
SEQUENTIAL: Final = "persistent, sequential"

BROKER_IDS: Final = Znode("/brokers/ids", PERSISTENT, "The brokers that live are its children.")
BROKER: Final = Znode(
    "/brokers/ids/[id]",
    EPHEMERAL,
    "A live broker: where its listeners are reached. Its czxid is the broker's epoch. "
    "Its broker writes it again when `advertised.listeners` changes.",
    b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://kafka.example:9092"],'
    b'"rack":"r1","jmx_port":-1,"port":9092,"host":"kafka.example","version":5,"timestamp":"1733000000000",'
    b'"control_endpoint":"kafka.example:9093","previous_broker_epoch":-1}',
)
BROKER_SEQUENCE: Final = Znode("/brokers/seqid", PERSISTENT, "Its version is the source of generated broker ids.")
TOPICS: Final = Znode("/brokers/topics", PERSISTENT, "The topics are its children.")
TOPIC: Final = Znode(
    "/brokers/topics/[topic]",
    PERSISTENT,
    "A topic's id and the replicas of each partition, the preferred leader first.",
    b'{"removing_replicas":{},"partitions":{"0":[1,2],"1":[2,1]},"topic_id":"rT5XwUR8QsaFFSTUbPGcNQ","adding_replicas":{},"version":3}',
)
PARTITIONS: Final = Znode("/brokers/topics/[topic]/partitions", PERSISTENT, "The partitions that have a state are its children.")
PARTITION: Final = Znode("/brokers/topics/[topic]/partitions/[partition]", PERSISTENT, "One partition.")
PARTITION_STATE: Final = Znode(
    "/brokers/topics/[topic]/partitions/[partition]/state",
    PERSISTENT,
    "Who leads the partition, in which epoch, and who is in sync.",
    b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1,2]}',
)
CONTROLLER: Final = Znode(
    "/controller",
    EPHEMERAL,
    "The broker that is the controller.",
    b'{"version":2,"brokerid":1,"timestamp":"1733000000000","kraftControllerEpoch":-1}',
)
CONTROLLER_EPOCH: Final = Znode(
    "/controller_epoch", PERSISTENT, "How many controllers there have been. Every write of a controller checks its version.", b"1"
)
CLUSTER: Final = Znode("/cluster", PERSISTENT, "The parent of the id.")
CLUSTER_ID: Final = Znode("/cluster/id", PERSISTENT, "The cluster's id, made once.", b'{"version":"1","id":"4L6g3nShT-eMCtK--X86sw"}')
TOPIC_CONFIGS: Final = Znode("/config/topics", PERSISTENT, "The topics' own settings are its children.")
TOPIC_CONFIG: Final = Znode(
    "/config/topics/[topic]", PERSISTENT, "What a topic sets for itself.", b'{"version":1,"config":{"retention.ms":"3600000"}}'
)
BROKER_CONFIGS: Final = Znode("/config/brokers", PERSISTENT, "The dynamic settings of brokers are its children.")
BROKER_CONFIG: Final = Znode(
    "/config/brokers/[id]",
    PERSISTENT,
    "What was changed of a broker while it runs; `<default>` in the place of the id holds for all brokers.",
    b'{"version":1,"config":{"log.retention.ms":"3600000"}}',
)
CONFIG_CHANGES: Final = Znode("/config/changes", PERSISTENT, "Notices of changed settings are its children.")
CONFIG_CHANGE: Final = Znode(
    "/config/changes/config_change_[sequence]",
    SEQUENTIAL,
    "Tells the brokers whose settings to read again. Old notices are removed after 15 minutes.",
    b'{"version":2,"entity_path":"topics/page-views"}',
)
DELETE_TOPICS: Final = Znode("/admin/delete_topics", PERSISTENT, "The topics that are to be deleted are its children.")
DELETE_TOPIC: Final = Znode("/admin/delete_topics/[topic]", PERSISTENT, "The topic is to be deleted; goes when that is done.")
REASSIGNMENT: Final = Znode(
    "/admin/reassign_partitions",
    PERSISTENT,
    "Partitions that another tool wants on other brokers. Each is taken out once it is there, or refused; goes with the last.",
    b'{"version":1,"partitions":[{"topic":"page-views","partition":0,"replicas":[2,1]}]}',
)
PREFERRED_ELECTION: Final = Znode(
    "/admin/preferred_replica_election",
    PERSISTENT,
    "Partitions that another tool wants to be led by their preferred replicas; goes when they are.",
    b'{"version":1,"partitions":[{"topic":"page-views","partition":0}]}',
)
PRODUCER_ID_BLOCK: Final = Znode(
    "/latest_producer_id_block",
    PERSISTENT,
    "The block of producer ids that was handed out last, and to which broker.",
    b'{"version":1,"broker":1,"block_start":"1704067200000000","block_end":"1704067200000999"}',
)
ISR_CHANGES: Final = Znode("/isr_change_notification", PERSISTENT, "Notices of changed in-sync replicas are its children.")
ISR_CHANGE: Final = Znode(
    "/isr_change_notification/isr_change_[sequence]",
    SEQUENTIAL,
    "Tells the controller which partition states to read again.",
    b'{"version":1,"partitions":[{"topic":"page-views","partition":0}]}',
)
LOG_DIR_EVENTS: Final = Znode("/log_dir_event_notification", PERSISTENT, "Notices of failed log directories are its children.")
LOG_DIR_EVENT: Final = Znode(
    "/log_dir_event_notification/log_dir_event_[sequence]",
    SEQUENTIAL,
    "Tells the controller that a broker lost a log directory.",
    b'{"version":1,"broker":1,"event":1}',
)
OTTLA: Final = Znode(
    "/ottla",
    PERSISTENT,
    "The parent of what Kafka does not have. Its data are the first and the last of the latest controller epochs in a row that were "
    "Ottla's: where `/controller_epoch` is above the last, Kafka was the controller since.",
    b'{"version":1,"first_controller_epoch":4,"last_controller_epoch":7}',
)
UNCLEAN_STARTS: Final = Znode("/ottla/unclean_starts", PERSISTENT, "The brokers whose starts a controller has dealt with are its children.")
UNCLEAN_START: Final = Znode(
    "/ottla/unclean_starts/[id]",
    PERSISTENT,
    "The epoch of the broker's latest start that a controller has dealt with: after an unclean stop it was taken out of the in-sync "
    "replicas. The next start is an unclean one unless the broker's disk says that it stopped cleanly in this epoch.",
    b'{"version":1,"broker_epoch":"77"}',
)

CONSUMERS: Final = Znode("/consumers", PERSISTENT, "The groups of consumers that meet in ZooKeeper are its children.")
CONSUMER_IDS: Final = Znode("/consumers/[group]/ids", PERSISTENT, "The consumers of the group that live are its children.")
CONSUMER: Final = Znode(
    "/consumers/[group]/ids/[consumer]",
    EPHEMERAL,
    "A live consumer: how many streams it has for each topic, or for the regular expression of a `white_list` or `black_list`.",
    b'{"version":1,"subscription":{"page-views":2},"pattern":"static","timestamp":"1733000000000"}',
)
PARTITION_OWNER: Final = Znode(
    "/consumers/[group]/owners/[topic]/[partition]",
    EPHEMERAL,
    "The stream that reads the partition: its consumer and its number. No other may read it while this is there.",
    b"billing_host-1733000000000-1f2e3d4c-0",
)
GROUP_OFFSET: Final = Znode(
    "/consumers/[group]/offsets/[topic]/[partition]",
    PERSISTENT,
    "The offset at which the group continues; -1 before the first. Written with each claim too, so a former owner's version is refused.",
    b"1234",
)

ZNODES: Final = tuple(znode for znode in list(globals().values()) if isinstance(znode, Znode))

# What a cluster has before its first topic; a parent comes before its children.
SKELETON: Final = (
    "/brokers",
    BROKER_IDS.pattern,
    TOPICS.pattern,
    BROKER_SEQUENCE.pattern,
    CLUSTER.pattern,
    "/config",
    TOPIC_CONFIGS.pattern,
    BROKER_CONFIGS.pattern,
    CONFIG_CHANGES.pattern,
    "/admin",
    DELETE_TOPICS.pattern,
    PRODUCER_ID_BLOCK.pattern,
    ISR_CHANGES.pattern,
    LOG_DIR_EVENTS.pattern,
    OTTLA.pattern,
    UNCLEAN_STARTS.pattern,
)


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """What `/brokers/topics/[topic]` says: the replicas of each partition, indexed by partition."""

    topic_id: UUID | None
    replicas: tuple[tuple[BrokerId, ...], ...]
    adding_replicas: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    removing_replicas: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """A range of producer ids that one broker may give out; both ends belong to it."""

    broker_id: BrokerId
    first: int
    last: int


def encode_uuid(value: UUID) -> str:
    """Kafka's text for a UUID: its 16 bytes in URL-safe base64, unpadded."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def random_uuid(random: Random) -> UUID:
    """A new id of a topic or cluster. As Kafka, none whose text begins with '-': a shell would take it for an option."""
    while True:
        value = UUID(int=random.getrandbits(128), version=4)
        if not encode_uuid(value).startswith("-"):
            return value


def decode_uuid(text: str) -> UUID:
    """The UUID of Kafka's text. Raises ValueError."""
    return UUID(bytes=base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))


def _json(value: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(value).encode()


def _object(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise TypeError(f"a JSON object is needed, not {type(value).__name__}")
    return value


def _integer(value: Any) -> int:
    # Kafka has counts and ids as numbers here and as strings there; both are read, but not 1.5 or true.
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"a whole number is needed, not {value!r}")
    return int(value)


def _broker_ids(values: Any) -> tuple[BrokerId, ...]:
    if not isinstance(values, list):
        raise TypeError(f"a list of broker ids is needed, not {values!r}")
    return tuple(BrokerId(_integer(value)) for value in values)


def _decoder(read: Callable[P, R]) -> Callable[P, R]:
    """Has whatever goes wrong while data is read become MalformedZnode. The path comes first."""

    @wraps(read)
    def named(*arguments: P.args, **keywords: P.kwargs) -> R:
        try:
            return read(*arguments, **keywords)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            reason = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
            raise MalformedZnode(f"{arguments[0]}: {reason}; the data is {str(arguments[1])[:200]}") from error

    return named


def encode_broker(registration: BrokerRegistration, timestamp_ms: int, jmx_port: int = -1) -> bytes:
    """A broker's registration, version 5. Host and port repeat the first PLAINTEXT endpoint, for clients of old.

    The last fields are Ottla's own; Kafka's readers pass over what they do not know.
    """
    plaintext = next((endpoint for endpoint in registration.endpoints if endpoint.security_protocol == "PLAINTEXT"), None)
    fields: dict[str, Any] = {
        "features": {},
        "listener_security_protocol_map": {endpoint.listener_name: endpoint.security_protocol for endpoint in registration.endpoints},
        "endpoints": [str(endpoint) for endpoint in registration.endpoints],
        "jmx_port": jmx_port,
        "port": plaintext.port if plaintext else -1,
        "host": plaintext.host if plaintext else None,
        "version": 5,
        "timestamp": str(timestamp_ms),
    }
    if registration.rack is not None:
        fields["rack"] = registration.rack
    if registration.control_endpoint is not None:
        fields["control_endpoint"] = registration.control_endpoint
    fields["previous_broker_epoch"] = registration.previous_broker_epoch
    if registration.control_secret is not None:
        fields["control_secret"] = registration.control_secret
    return _json(fields)


@_decoder
def decode_broker(path: str, data: bytes, broker_epoch: int = -1) -> BrokerRegistration:
    """A broker's registration of any version; the id is the path's last part, the epoch the znode's czxid."""
    fields = _object(data)
    endpoints: tuple[Endpoint, ...]
    if _integer(fields["version"]) < 2:
        endpoints = (Endpoint("PLAINTEXT", fields["host"], _integer(fields["port"])),)
    else:
        protocols = fields.get("listener_security_protocol_map") or {}
        endpoints = tuple(_endpoint(text, protocols) for text in fields["endpoints"])
    return BrokerRegistration(
        BrokerId(int(path.rpartition("/")[2])),
        endpoints,
        fields.get("rack"),
        broker_epoch,
        fields.get("control_endpoint"),
        _integer(fields.get("previous_broker_epoch", -1)),
        is_foreign="previous_broker_epoch" not in fields,
        control_secret=fields.get("control_secret"),
    )


def _endpoint(text: str, protocols: Mapping[str, str]) -> Endpoint:
    listener_name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon:
        raise ValueError(f"{text!r} is not an endpoint")
    # Before version 4 a listener was named by its protocol.
    return Endpoint(listener_name, host.removeprefix("[").removesuffix("]"), int(port), protocols.get(listener_name, listener_name))


def encode_topic(assignment: TopicAssignment) -> bytes:
    """A topic's id and assignment, version 3."""
    fields: dict[str, Any] = {
        "removing_replicas": {str(key): list(value) for key, value in assignment.removing_replicas.items()},
        "partitions": {str(index): list(replicas) for index, replicas in enumerate(assignment.replicas)},
    }
    if assignment.topic_id is not None:
        fields["topic_id"] = encode_uuid(assignment.topic_id)
    fields["adding_replicas"] = {str(key): list(value) for key, value in assignment.adding_replicas.items()}
    fields["version"] = 3
    return _json(fields)


@_decoder
def decode_topic(path: str, data: bytes) -> TopicAssignment:
    """A topic's assignment of any version; before version 3 it has no id."""
    fields = _object(data)
    partitions = {int(key): _broker_ids(value) for key, value in fields["partitions"].items()}
    if sorted(partitions) != list(range(len(partitions))):
        raise ValueError(f"the partitions are numbered {sorted(partitions)}, and not from 0 on without a gap")
    for index, replicas in partitions.items():
        if not replicas or len(set(replicas)) != len(replicas):
            raise ValueError(f"partition {index} has the replicas {list(replicas)}")
    topic_id = fields.get("topic_id")
    return TopicAssignment(
        decode_uuid(topic_id) if topic_id is not None else None,
        tuple(partitions[index] for index in range(len(partitions))),
        {int(key): _broker_ids(value) for key, value in (fields.get("adding_replicas") or {}).items()},
        {int(key): _broker_ids(value) for key, value in (fields.get("removing_replicas") or {}).items()},
    )


def encode_partition_state(state: PartitionState) -> bytes:
    """A partition's leader and in-sync replicas, version 1, and where there are such the two lists that Kafka does not have."""
    fields: dict[str, object] = {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "version": 1,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }
    if state.eligible_leader_replicas:
        fields["eligible_leader_replicas"] = list(state.eligible_leader_replicas)
    if state.last_known_leader_replicas:
        fields["last_known_leader_replicas"] = list(state.last_known_leader_replicas)
    return _json(fields)


@_decoder
def decode_partition_state(path: str, data: bytes, replicas: Sequence[BrokerId]) -> PartitionState:
    """A partition's state; the replicas are in the topic's znode and not in this one."""
    fields = _object(data)
    return PartitionState(
        BrokerId(_integer(fields["leader"])),
        _integer(fields["leader_epoch"]),
        _broker_ids(fields["isr"]),
        tuple(replicas),
        _integer(fields["controller_epoch"]),
        _broker_ids(fields.get("eligible_leader_replicas", [])),
        _broker_ids(fields.get("last_known_leader_replicas", [])),
    )


def encode_controller(broker_id: BrokerId, timestamp_ms: int) -> bytes:
    """Who is the controller, version 2; no KRaft controller ever was."""
    return _json({"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": NO_KRAFT_EPOCH})


@_decoder
def decode_controller(path: str, data: bytes) -> BrokerId:
    """Who is the controller."""
    return BrokerId(_integer(_object(data)["brokerid"]))


def encode_controller_epoch(epoch: int) -> bytes:
    """The epoch as decimal digits."""
    return b"%d" % epoch


@_decoder
def decode_controller_epoch(path: str, data: bytes) -> int:
    """The controller's epoch."""
    return int(data)


def encode_cluster_id(cluster_id: str) -> bytes:
    """The cluster's id; its version is a string, as Kafka has it."""
    return _json({"version": "1", "id": cluster_id})


@_decoder
def decode_cluster_id(path: str, data: bytes) -> str:
    """The cluster's id."""
    return str(_object(data)["id"])


def encode_config(config: Mapping[str, str]) -> bytes:
    """The settings of a topic or broker."""
    return _json({"version": 1, "config": dict(config)})


@_decoder
def decode_config(path: str, data: bytes) -> dict[str, str]:
    """The settings of a topic or broker; none when the znode has no data."""
    if not data:
        return {}
    config = _object(data).get("config") or {}
    for name, value in config.items():
        if not isinstance(value, str):
            raise TypeError(f"the value of {name} must be a string, not {value!r}")
    return dict(config)


def encode_config_change(entity_path: str) -> bytes:
    """Whose settings changed: `topics/[topic]` or `brokers/[id]`."""
    return _json({"version": 2, "entity_path": entity_path})


@_decoder
def decode_config_change(path: str, data: bytes) -> str:
    """Whose settings changed. Version 1 named type and entity apart."""
    fields = _object(data)
    if _integer(fields["version"]) == 1:
        return f"{fields['entity_type']}/{fields['entity_name']}"
    return str(fields["entity_path"])


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    """The latest block of producer ids; 64-bit numbers are strings."""
    return _json({"version": 1, "broker": block.broker_id, "block_start": str(block.first), "block_end": str(block.last)})


@_decoder
def decode_producer_id_block(path: str, data: bytes) -> ProducerIdBlock | None:
    """The latest block of producer ids; None before the first."""
    if not data:
        return None
    fields = _object(data)
    return ProducerIdBlock(BrokerId(_integer(fields["broker"])), _integer(fields["block_start"]), _integer(fields["block_end"]))


@_decoder
def decode_partitions(path: str, data: bytes) -> list[TopicPartition]:
    """Whose in-sync replicas changed, or who is to be led by the preferred replica."""
    return [TopicPartition(str(entry["topic"]), _integer(entry["partition"])) for entry in _object(data)["partitions"]]


def encode_reassignment(targets: Mapping[TopicPartition, Sequence[BrokerId]]) -> bytes:
    """Where partitions are to be."""
    partitions = [{"topic": partition.topic, "partition": partition.partition, "replicas": list(to)} for partition, to in targets.items()]
    return _json({"version": 1, "partitions": partitions})


@_decoder
def decode_reassignment(path: str, data: bytes) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Where partitions are to be; what a tool says of log directories is for the brokers that it asks itself."""
    found = _object(data)["partitions"]
    return {TopicPartition(str(entry["topic"]), _integer(entry["partition"])): _broker_ids(entry["replicas"]) for entry in found}


def encode_log_dir_event(broker_id: BrokerId) -> bytes:
    """Which broker lost a log directory; failure (1) is the only event there is."""
    return _json({"version": 1, "broker": broker_id, "event": 1})


@_decoder
def decode_log_dir_event(path: str, data: bytes) -> BrokerId:
    """Which broker lost a log directory."""
    return BrokerId(_integer(_object(data)["broker"]))


def encode_unclean_start(broker_epoch: int) -> bytes:
    """The epoch of an unclean start that was dealt with."""
    return _json({"version": 1, "broker_epoch": str(broker_epoch)})


@_decoder
def decode_unclean_start(path: str, data: bytes) -> int:
    """The epoch of an unclean start that was dealt with."""
    return _integer(_object(data)["broker_epoch"])


@dataclass(frozen=True, slots=True)
class OwnEpochs:
    """The latest controller epochs, without a gap, in which the controller was an Ottla broker; both ends belong to them."""

    first: int
    last: int

    def with_epoch(self, epoch: int) -> OwnEpochs:
        """The epochs with another own one: further ones, or the first after a time in which Kafka was the controller."""
        return OwnEpochs(self.first if epoch in (self.last, self.last + 1) else epoch, epoch)


NO_OWN_EPOCHS: Final = OwnEpochs(-1, -1)


def encode_own_epochs(epochs: OwnEpochs) -> bytes:
    """Which controller epochs were Ottla's."""
    return _json({"version": 1, "first_controller_epoch": epochs.first, "last_controller_epoch": epochs.last})


@_decoder
def decode_own_epochs(path: str, data: bytes) -> OwnEpochs:
    """Which controller epochs were Ottla's; NO_OWN_EPOCHS where nothing is said, as before the first."""
    if not data:
        return NO_OWN_EPOCHS
    fields = _object(data)
    return OwnEpochs(_integer(fields["first_controller_epoch"]), _integer(fields["last_controller_epoch"]))


@_decoder
def decode_kraft_epoch(path: str, data: bytes) -> int:
    """The epoch of the KRaft controller that has `/controller` while it migrates the cluster; NO_KRAFT_EPOCH: it is a broker."""
    return _integer(_object(data).get("kraftControllerEpoch", NO_KRAFT_EPOCH))


@_decoder
def decode_feature_version(path: str, data: bytes) -> int:
    """The version of Kafka's `/feature`: 1 for as long as `inter.broker.protocol.version` is below 3.3, and 2 since."""
    return _integer(_object(data)["version"])


@dataclass(frozen=True, slots=True)
class ConsumerRegistration:
    """What a consumer of a group reads: for each topic, or for its one regular expression, how many streams.

    Attributes:
        pattern: `static`, or `white_list` or `black_list` when the key is a regular expression.
    """

    subscription: Mapping[str, int]
    pattern: str = "static"


def encode_consumer(registration: ConsumerRegistration, timestamp_ms: int) -> bytes:
    """A consumer's subscription, version 1."""
    subscription = dict(registration.subscription)
    return _json({"version": 1, "subscription": subscription, "pattern": registration.pattern, "timestamp": str(timestamp_ms)})


@_decoder
def decode_consumer(path: str, data: bytes) -> ConsumerRegistration:
    """A consumer's subscription."""
    fields = _object(data)
    if fields["pattern"] not in ("static", "white_list", "black_list"):
        raise ValueError(f"the pattern is {fields['pattern']!r}")
    subscription = {str(name): _integer(count) for name, count in fields["subscription"].items()}
    if not all(0 < count <= MAX_STREAMS for count in subscription.values()):
        raise ValueError(f"a subscription has 1 to {MAX_STREAMS} streams")
    return ConsumerRegistration(subscription, fields["pattern"])


def encode_group_offset(offset: int) -> bytes:
    """Where a group continues, as decimal digits; -1 before it has read anything."""
    return b"%d" % offset


@_decoder
def decode_group_offset(path: str, data: bytes) -> int:
    """Where a group continues; below 0 for nowhere yet."""
    return int(data) if data else -1


# Paths as ZooKeeper takes them.

_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


def validate_path(path: str, sequential: bool = False) -> None:
    """Raises BadArguments for a path that ZooKeeper refuses.

    Args:
        path: an absolute path.
        sequential: a number will be appended, so that a path may end with a slash.
    """
    if not path:
        raise BadArguments("a znode's path cannot be empty")
    if path[0] != "/":
        raise BadArguments(f"{path!r}: a znode's path starts with '/'")
    if path == "/" and not sequential:
        return
    bad = _FORBIDDEN.search(path)
    if bad is not None:
        raise BadArguments(f"{path!r}: character {bad[0]!r} at {bad.start()} is not allowed in a znode's path")
    for name in (path + "0" if sequential else path)[1:].split("/"):
        if not name:
            raise BadArguments(f"{path!r}: a znode's name cannot be empty")
        if name in (".", ".."):
            raise BadArguments(f"{path!r}: a znode's path cannot be relative ({name!r})")


def parent_of(path: str) -> str:
    """The path one level up; the root is its own parent."""
    return path[: path.rindex("/")] or "/"


def name_of(path: str) -> str:
    """The last part of a path."""
    return path[path.rindex("/") + 1 :]

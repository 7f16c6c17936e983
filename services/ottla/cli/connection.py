"""How a command reaches a cluster: the options that all of them share, librdkafka's configuration, errors as sentences.

The clients are confluent-kafka's (librdkafka). They are imported when a command runs, not when the command line is read.
"""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, ParamSpec, TypeVar
from weakref import WeakSet

import typer

from ottla.cli.errors import CommandFailed, OutputFailed, UsageError
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, ClusterMetadata

    from ottla.rpc.tls import RpcTls

# The address and not the name: `localhost` is also ::1, where a broker started by `ottla dev` does not listen.
DEFAULT_PORT: Final = 9092
DEFAULT_BOOTSTRAP_SERVER: Final = f"127.0.0.1:{DEFAULT_PORT}"
ANSWER_SECONDS: Final = 10.0
_SILENT_SECONDS: Final = 2.0

BootstrapServer = Annotated[
    str,
    typer.Option("--bootstrap-server", "-b", metavar="HOST:PORT", envvar="OTTLA_BOOTSTRAP_SERVER", help="Where the cluster answers."),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="A properties file for the client (librdkafka's names), for instance for TLS; its address and group do not count.",
    ),
]
RpcConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        envvar="OTTLA_RPC_CONFIG",
        help="A properties file for gRPC over TLS: `security.protocol=SSL`, `ssl.keystore.location` and `ssl.truststore.location`.",
    ),
]
ClientProperty = Annotated[
    list[str] | None,
    typer.Option("--property", "-X", metavar="KEY=VALUE", help="A property of the client, over those of the file; may be repeated."),
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

Own = ParamSpec("Own")
Client = TypeVar("Client")


def rpc_tls(command_config: Path | None) -> RpcTls | None:
    """What the file says of gRPC; None for plain text.

    Raises:
        ConfigurationError: it is TLS by half, or its files cannot be used.
    """
    if command_config is None:
        return None
    from ottla.config.properties import load
    from ottla.config.rpc import RpcClientSettings
    from ottla.rpc.tls import tls_of  # it imports grpc, at a tenth of a second

    settings = RpcClientSettings.from_properties(load(command_config))
    return tls_of(settings) if settings.security_protocol == "SSL" else None


def commands(about: str) -> typer.Typer:
    """A group of commands, of which the help has this to say."""
    settings = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(help=about, no_args_is_help=True, rich_markup_mode="markdown", context_settings=settings)


def pairs(values: Sequence[str] | None, option: str) -> dict[str, str]:
    """`["a=1", "b="]` as `{"a": "1", "b": ""}`."""
    found: dict[str, str] = {}
    for value in values or ():
        name, equals, text = value.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{option} takes KEY=VALUE, and {value!r} is not of that form")
        found[name.strip()] = text.strip()
    return found


@dataclass(frozen=True, slots=True)
class Connection:
    """A cluster's address and how to speak to it."""

    bootstrap_server: str
    properties: Mapping[str, str] = field(default_factory=dict)

    def client_configuration(self, **more: Any) -> dict[str, Any]:
        """librdkafka's configuration: ours, then the command's, then what the person asked for."""
        _last_errors.clear()
        return {
            "bootstrap.servers": self.bootstrap_server,
            "client.id": "ottla",
            # We report a failed connection once; librdkafka would repeat it every second.
            "log_level": 2,
            "error_cb": _heard,
            **more,
            **self.properties,
        }

    @property
    def addresses(self) -> str:
        """The address with its port, as `ottla.wire` takes it; librdkafka knows by itself which one is meant where none is given."""
        return ",".join(part if ":" in part else f"{part}:{DEFAULT_PORT}" for part in _entries(self.bootstrap_server))

    def must_listen(self) -> None:
        """Fails at once when nothing listens at any of the addresses: librdkafka would continue trying until its timeout."""
        import socket

        from ottla.config.listeners import is_port

        reason = ""
        if not (entries := _entries(self.bootstrap_server)):
            raise UsageError(f"--bootstrap-server takes HOST:PORT, and {self.bootstrap_server!r} has none")
        addresses = [(host, port) for host, _, port in (entry.rpartition(":") for entry in entries)]
        for host, port in addresses:
            if host and not (is_port(port) and int(port)):
                raise UsageError(f"--bootstrap-server takes HOST:PORT, and {port[:20]!r} is not a port")
        for host, port in addresses:
            try:
                socket.create_connection((host.strip("[]") or port, int(port) if host else DEFAULT_PORT), ANSWER_SECONDS).close()
            except ConnectionRefusedError:
                reason = reason or (" (`ottla dev` starts one)" if _is_loopback(host) else ": the connection was refused")
            except (socket.gaierror, UnicodeError):  # a part of a name between dots is empty, or too long
                reason = reason or f": the host name {host or port} cannot be resolved"
            except OSError as error:
                reason = reason or f": {error.strerror or error}"
            else:
                return
        raise CommandFailed(f"no broker answers at {self.bootstrap_server}{reason}")

    def client(self, kind: Callable[[dict[str, Any]], Client], **more: Any) -> Client:
        """A client of that kind. Raises UsageError."""
        from confluent_kafka import KafkaException

        try:
            return kind(self.client_configuration(**more))
        except KafkaException as error:
            raise UsageError(f"the client refuses its configuration: {error.args[0].str()}") from None

    def admin(self) -> AdminClient:
        """An admin client; nothing has been asked yet but whether the address accepts connections."""
        from confluent_kafka.admin import AdminClient

        self.must_listen()
        admin = self.client(AdminClient)
        _admins.add(admin)
        return admin


# confluent-kafka's own properties that are functions or other objects; the others end in `_cb`.
_OBJECTS: Final = frozenset({"logger", "on_commit", "on_delivery", "default.topic.config"})
# What a command says itself: of these a file has the application's values, by which a look at a group would commit for it.
_OF_READERS: Final = ("group.id", "enable.auto.commit", "enable.partition.eof")
_OF_PRODUCERS: Final = ("transactional.id", "delivery.report.only.error")
_OWN: Final = frozenset({"bootstrap.servers", "metadata.broker.list", *_OF_READERS, *_OF_PRODUCERS})
# librdkafka's last reason why it has no connection. Here, because a process runs one command with several clients.
_last_errors: Final[deque[KafkaError]] = deque(maxlen=1)
_admins: Final[WeakSet[AdminClient]] = WeakSet()


def _heard(error: KafkaError) -> None:
    """librdkafka tells each failed connection, and after the last one that all brokers are down, which explains nothing."""
    from confluent_kafka import KafkaError

    if error.code() != KafkaError._ALL_BROKERS_DOWN:
        _last_errors.append(error)


def last_error() -> str:
    """Why the command's clients have no connection, by their last error; empty if they have said nothing."""
    return _last_errors[0].str() if _last_errors else ""


def _entries(bootstrap_server: str) -> list[str]:
    """An empty one, as behind a last comma, is none."""
    return [entry for part in bootstrap_server.split(",") if (entry := part.strip())]


def _says_nothing(address: str) -> bool:
    """Whether a request of plain text is neither answered nor refused there, as by a broker that hangs."""
    import socket
    import struct

    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]") or port, int(port) if host else DEFAULT_PORT), _SILENT_SECONDS) as connection:
            connection.sendall(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 0, -1))  # length, key, version, correlation, no name
            connection.recv(1)
    except TimeoutError:
        return True
    except OSError:
        pass
    return False


def _is_loopback(host: str) -> bool:
    return host.strip("[]") in ("", "localhost", "::1") or host.startswith("127.")


def connection(
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    command_config: CommandConfig = None,
    properties: ClientProperty = None,
) -> Connection:
    """What the shared options say.

    Raises:
        UsageError: a property is none, or one whose value is an object of Python's or the command's to say. Of the file, those of
            the last kind are left out.
    """
    chosen: dict[str, str] = {}
    if command_config is not None:
        from ottla.config.properties import load

        chosen.update((name, value) for name, value in load(command_config).items() if name not in _OWN)
    given = pairs(properties, "-X")
    if own := sorted(_OWN & given.keys()):
        raise UsageError(f"-X {own[0]}: the command says this itself")
    chosen.update(given)
    if objects := [name for name in chosen if name.endswith("_cb") or name in _OBJECTS]:
        raise UsageError(f"{objects[0]} takes an object of a program, which a command has no way to give")
    return Connection(bootstrap_server, chosen)


_SHARED: Final = inspect.signature(connection, eval_str=True).parameters


def connects(command: Callable[Concatenate[Connection, Own], None]) -> Callable[..., None]:
    """Gives a command the shared options, behind its own; what they say is its first argument."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        shared = {name: options.pop(name) for name in _SHARED if name in options}
        command(connection(**shared), *arguments, **options)

    signature = inspect.signature(command, eval_str=True)
    _, *own = signature.parameters.values()
    run.__signature__ = signature.replace(parameters=[*own, *_SHARED.values()])  # type: ignore[attr-defined]  # what Typer reads
    return run


def sentence(error: KafkaError, bootstrap_server: str, subject: str = "") -> str:
    """A client's error as a sentence that says what to do where there is something to do."""
    from confluent_kafka import KafkaError

    unreachable = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT)
    if error.code() in unreachable:
        for admin in list(_admins):
            admin.poll(0)  # errors arrive by callbacks, which run within a call
        if not _last_errors and error.code() == KafkaError._TRANSPORT:
            # librdkafka tells a connection that is closed before the first answer to its log only, and one without an answer likewise.
            if all(map(_says_nothing, _entries(bootstrap_server))):
                return f"no answer from {bootstrap_server}: it accepts connections, and says nothing"
            return f"no connection to {bootstrap_server}: it is closed at once; where the listener speaks TLS, set -X security.protocol=ssl"
        if not _last_errors:
            # The address accepts connections, or nothing would have been asked (`must_listen`).
            return f"{subject or 'the request'}: the cluster at {bootstrap_server} did not answer in time: {error.str()}"
        error = _last_errors[0]
        if error.code() != KafkaError._SSL:
            return f"no connection to {bootstrap_server}: {error.str()}"
    if error.code() == KafkaError._SSL:
        return f"no TLS connection to {bootstrap_server}: {error.str()}"
    missing = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
    if subject and error.code() in missing:
        return f"{subject} does not exist on {bootstrap_server}"
    if subject and error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
        return f"{subject} exists already on {bootstrap_server}"
    return f"{subject}: {error.str()}" if subject else error.str()


@contextmanager
def told_plainly(bootstrap_server: str, subject: str = "") -> Iterator[None]:
    """A client's exception inside becomes a `CommandFailed` with a sentence."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as exception:
        error = exception.args[0]
        raise CommandFailed(sentence(error, bootstrap_server, subject)) from None


def each_deleted(answers: Mapping[str, Future[Any]], bootstrap_server: str, kind: str) -> Iterator[str]:
    """The names that were deleted, of those that were asked for at once; at the end a `CommandFailed` with what became of the others.

    All are waited for before the first is given: who prints them may have to stop.
    """
    deleted: list[str] = []
    failures: list[str] = []
    for name, answer in answers.items():
        with noted(failures), told_plainly(bootstrap_server, f"{kind} {name!r}"):
            answer.result(ANSWER_SECONDS + 5)
            deleted.append(name)
    yield from deleted
    if failures:
        raise CommandFailed("; ".join(failures))


@contextmanager
def noted(failures: list[str]) -> Iterator[None]:
    """What fails of one does not keep the others from being done; what was typed wrong does, and output that no one takes."""
    try:
        yield
    except (UsageError, OutputFailed):
        raise
    except CommandFailed as error:
        failures.append(str(error))


def cluster_metadata(admin: AdminClient, bootstrap_server: str, topic: str | None = None) -> ClusterMetadata:
    """Brokers and topics. A topic that is asked for by name must exist; it is never created by being asked for."""
    with told_plainly(bootstrap_server):
        # Always the whole list: a request for one topic by name may create it (`auto.create.topics.enable`).
        metadata = admin.list_topics(timeout=ANSWER_SECONDS)
    if topic is not None and topic not in metadata.topics:
        raise CommandFailed(f"topic {topic!r} does not exist on {bootstrap_server}")
    return metadata


def topics_like(topics: Iterable[str], pattern: str, internal: bool = False) -> list[str]:
    """The topics whose whole names match, in order; those that begin with `__` only if the pattern does, or if they are asked for."""
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{pattern!r} is no regular expression: {error}") from None
    return sorted(topic for topic in topics if regex.fullmatch(topic) and (internal or pattern.startswith("__") or topic[:2] != "__"))

"""Holding back the copying of a reassignment (KIP-73): the settings that say so, and their removal when it is over.

A broker's rate counts for the replicas that their topic lists, so both are set: the rates on the brokers that take
part, the lists on the topics that move.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.cli.connection import ANSWER_SECONDS, Connection, told_plainly
from ottla.cli.errors import UsageError
from ottla.cli.reassignment_plan import Throttled

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConfigEntry

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"

_UNITS: Final = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}


def parsed_rate(text: str) -> int:
    """Bytes a second: `50000000`, `50MB`, `50MiB`.

    Raises:
        UsageError: it is neither.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?|)b?(?:/s)?", text.strip(), re.IGNORECASE)
    rate = round(float(found[1]) * _UNITS[found[2].lower()]) if found else 0
    if rate <= 0:
        raise UsageError(f"--throttle takes bytes a second, for instance 50MiB, and not {text!r}")
    return rate


def throttle(admin: AdminClient, where: Connection, rate: int, brokers: Iterable[int], topics: Mapping[str, Throttled]) -> None:
    """Sets the rate on each broker, and adds the replicas to what each topic lists."""
    listed = _listed(admin, where, topics)
    for name, replicas in topics.items():
        wanted = {LEADERS: replicas.leaders, FOLLOWERS: replicas.followers}
        merged = {key: _merged(listed[name].get(key, ""), values) for key, values in wanted.items()}
        _change(admin, where, "topic", name, merged)
    for broker in brokers:
        _change(admin, where, "broker", str(broker), dict.fromkeys(RATES, str(rate)))


def unthrottle(admin: AdminClient, where: Connection, brokers: Iterable[int], topics: Iterable[str]) -> None:
    """Removes the rates of these brokers and the lists of these topics; nothing is wrong where there are none."""
    for name in topics:
        _change(admin, where, "topic", name, {LEADERS: None, FOLLOWERS: None})
    for broker in brokers:
        _change(admin, where, "broker", str(broker), dict.fromkeys(RATES))


def _merged(listed: str, replicas: Iterable[str]) -> str:
    already = [each.strip() for each in listed.split(",") if each.strip()]
    return "*" if "*" in already else ",".join(dict.fromkeys([*already, *replicas]))


def _listed(admin: AdminClient, where: Connection, names: Iterable[str]) -> dict[str, dict[str, str]]:
    from confluent_kafka.admin import ConfigResource, ResourceType

    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    if not resources:
        return {}
    with told_plainly(where.bootstrap_server):
        answers = admin.describe_configs(resources, request_timeout=ANSWER_SECONDS)
        described: dict[str, dict[str, ConfigEntry]] = {each.name: answer.result(ANSWER_SECONDS + 5) for each, answer in answers.items()}
    return {name: {key: entry.value or "" for key, entry in entries.items()} for name, entries in described.items()}


def _change(admin: AdminClient, where: Connection, kind: str, name: str, values: Mapping[str, str | None]) -> None:
    """One resource a request: librdkafka sends a broker's to that broker, and takes one of them at a time."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries: list[Any] = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET)
        for key, value in values.items()
    ]
    resource_type = ResourceType.TOPIC if kind == "topic" else ResourceType.BROKER
    resource = ConfigResource(resource_type, name, incremental_configs=entries)
    with told_plainly(where.bootstrap_server, f"{kind} {name}"):
        admin.incremental_alter_configs([resource], request_timeout=ANSWER_SECONDS)[resource].result(ANSWER_SECONDS + 5)

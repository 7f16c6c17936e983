"""Writes docs/configuration.md from the declarations: `python -m ottla.config.document docs/configuration.md`.

`make docs` runs it, and CI fails when the page in the tree is another one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ottla.config.audit import PARTS as AUDIT_PARTS
from ottla.config.broker import PARTS
from ottla.config.client import ConsumerSettings, ProducerSettings
from ottla.config.mirror import PARTS as MIRROR_PARTS
from ottla.config.mirror import MirrorSettings
from ottla.config.registry import PARTS as REGISTRY_PARTS
from ottla.config.registry import RegistrySettings
from ottla.config.settings import INT_MAX, LONG_MAX, SettingDefinition, Settings
from ottla.config.topic import TopicSettings

# A section for each service, of the parts that its settings are made of.
SERVICES: Final[Mapping[str, Mapping[str, type[Settings]]]] = {
    "Brokers": PARTS,
    "Clients": {"Consumer connector": ConsumerSettings, "Producer": ProducerSettings},
    "Schema registry": REGISTRY_PARTS,
    "Audit counter": AUDIT_PARTS,
    "Mirror maker": MIRROR_PARTS,
}
# These take more than their own parts, which is in the tables of brokers.
_WHOLE: Final[Mapping[str, type[Settings]]] = {"Schema registry": RegistrySettings, "Mirror maker": MirrorSettings}
_INTRODUCTION: Final = """\
# Configuration

<!-- Made from the declarations in services/ottla/config by `make docs`. Change those, not this page. -->

A broker's settings are Kafka 3.9's, by name, type, default and bounds, where a row does not say another. Ottla's own are `audit.…`,
`control.…`, `coordination.…`, `http.listener`, `metrics.partition.enabled`, `ottla.audit`, `takeover.accept` and `zookeeper.digest.…`;
`confluent.…` are Confluent's.
`ottla broker --config FILE` reads them from a Java properties file. A name that is unknown, a name that is given twice
and a value out of bounds are refused with file and line, and with the nearest right name:

    server.properties:7: unknown setting 'log.segment.byte'; did you mean 'log.segment.bytes'?

Each can be given by an environment variable too: `OTTLA_SETTING_` and the name in upper case with `_` for `.`. That is how
containers are given theirs, and then `--config` may be left out:

    OTTLA_SETTING_BROKER_ID=1
    OTTLA_SETTING_ZOOKEEPER_CONNECT=zookeeper:2181
    OTTLA_SETTING_LISTENER_NAME_EXTERNAL_SSL_KEYSTORE_LOCATION=/etc/ottla/external.pem

`--override NAME=VALUE` is over a variable, and a variable is over the file. `OTTLA_LOG_LEVEL` (debug, info, warning, error)
and `OTTLA_LOG_FORMAT` (text, or json: one object a line) stand for `--log-level` and `--log-format`.

What Kafka knows and Ottla cannot do (KRaft, Java classes, and what this release does not have yet) is refused with the
reason. A setting that is only accepted so that a file written for Kafka loads says **No effect** here, and the broker
says so at its start.

Sizes are bytes and times are in the unit that ends the name. *Changes* says whether a setting can be altered while the
broker runs: for all brokers at once or for one (`cluster-wide`), for one (`per-broker`), or not (`read-only`).
`ottla configs alter` does it, and `ottla configs describe` shows what holds and where it comes from.
A password is never shown. `ssl.*` can be set for one listener with `listener.name.<name in small letters>.` before it.
"""
_TOPIC_INTRODUCTION: Final = """\
What a topic does not set it takes from its broker: the first setting under *From the broker* that is set there.
All can change while the topic is in use (`ottla topics alter`).
"""
_WORDS: Final = {INT_MAX: "2^31 - 1", LONG_MAX: "2^63 - 1"}


def page() -> str:
    """The whole of docs/configuration.md."""
    pieces = [_INTRODUCTION, "## Topics\n", _TOPIC_INTRODUCTION, "\n".join(_table(TopicSettings, for_topics=True)) + "\n"]
    for service, parts in SERVICES.items():
        pieces.append(f"## {service}\n")
        if service in _WHOLE:
            shared = [title for title, part in PARTS.items() if issubclass(_WHOLE[service], part)]
            links = " and ".join(f"[{title}](#{title.lower().replace(' ', '-')})" for title in shared)
            pieces.append(f"What brokers have under {links} holds here too.\n")
        for title, part in parts.items():
            pieces += [f"### {title}\n", "\n".join(_table(part, for_topics=False)) + "\n"]
    return "\n".join(pieces)


def _table(settings: type[Settings], *, for_topics: bool) -> Iterator[str]:
    yield f"| name | meaning | type | default | allowed | {'from the broker' if for_topics else 'changes'} |"
    yield "|---|---|---|---|---|---|"
    for definition in settings.definitions().values():
        meaning = definition.doc
        if definition.aliases:
            meaning += f" Also: {_names(definition.aliases)}."
        if definition.without_effect:
            meaning += f" **No effect**: {definition.without_effect}"
        last = _names(synonym.name for synonym in definition.synonyms) if for_topics else definition.dynamic
        allowed = _cell(_allowed(definition))
        yield f"| `{definition.name}` | {_cell(meaning)} | {definition.kind} | {_default(definition)} | {allowed} | {last} |"


def _default(definition: SettingDefinition) -> str:
    if definition.default in _WORDS and definition.kind in ("int", "long"):
        return _WORDS[definition.default]
    text = definition.text(definition.default)
    return "" if text is None or text == "" else f"`{text}`"


def _allowed(definition: SettingDefinition) -> str:
    if definition.choices:
        return ", ".join(definition.choices)
    if definition.at_least is not None and definition.at_most is not None:
        return f"{definition.at_least} … {_WORDS.get(int(definition.at_most), definition.at_most)}"
    if definition.at_least is not None:
        return f"≥ {definition.at_least}"
    return f"≤ {definition.at_most}" if definition.at_most is not None else ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Writes the page to the path given."""
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

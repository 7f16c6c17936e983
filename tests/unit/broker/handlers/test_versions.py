"""The versions that are served and advertised."""

from __future__ import annotations

import re
from pathlib import Path

from ottla.broker import handlers
from ottla.broker.handlers.registry import APIS
from ottla.protocol import produce
from ottla.protocol.api import ApiKey

PAGE = Path(__file__).parents[4] / "docs" / "compatibility.md"
_ROW = re.compile(r"^\| (\w+) \| (\d+) \| (\d+)(?:-(\d+))? \|$", re.MULTILINE)


_HANDLER = re.compile(r"@handles\(\s*ApiKey\.(\w+),[^)]*\)\s*(?:async )?def \w+\(\s*request: ([\w | ]+),")


def test_each_handler_has_its_request_as_the_highest_version_that_is_served() -> None:
    """For that is what it is read into, whichever version was sent (`Api.max_version`); Fetch is read by hand."""
    handlers.load()
    typed = {}
    for path in Path(handlers.__file__).parent.glob("*.py"):
        source = path.read_text()
        for name, annotation in _HANDLER.findall(source):
            typed[ApiKey[name]] = annotation.split(" | ")[0]
            if name != "FETCH":
                expected = f"kio.schema.{name.lower()}.v{APIS[ApiKey[name]].max_version}.request import"
                assert re.search(rf"{expected} .*\b{ApiKey[name].api_name}Request\b", source), path.name
    assert typed.keys() == APIS.keys()
    assert {key for key, annotation in typed.items() if annotation != f"{key.api_name}Request"} == set()


def test_the_page_of_compatibility_lists_what_is_served() -> None:
    """Clients infer the broker's release from these ranges, so the page, which is written by hand, has those of one release:
    Kafka 3.9's with Kafka 4's minima (KIP-896). ListOffsets 0 is served for Kafka 0.8's getOffsetsBefore, OffsetCommit 1 for Sarama;
    AddPartitionsToTxn 4 and 5 are for brokers among themselves.
    """
    handlers.load()
    listed = [(name, int(key), int(low), int(high or low)) for name, key, low, high in _ROW.findall(PAGE.read_text(encoding="utf-8"))]
    served = [(ApiKey.PRODUCE.api_name, int(ApiKey.PRODUCE), produce.MIN_VERSION, produce.MAX_VERSION)]
    served += [(api.key.api_name, key, api.min_version, api.max_version) for key, api in sorted(APIS.items())]
    assert listed == served

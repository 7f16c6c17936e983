"""Log levels while the broker runs (KIP-412): the resource that `kafka-configs --entity-type broker-loggers` speaks of."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.broker.security.authorizer import Operation

from .test_configs import APPEND, BROKER_LOGGER, DELETE, SET, SUBTRACT, change, describe

FETCHER = "ottla.broker.replication.fetchers"


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Leaves the loggers of the test process as they were."""
    logging.getLogger(FETCHER)
    loggers = [logging.root, *(logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger))]
    before = [(logger, logger.level) for logger in loggers]
    yield
    for known in logging.root.manager.loggerDict.values():
        if isinstance(known, logging.Logger):
            known.setLevel(logging.NOTSET)
    for logger, level in before:
        logger.setLevel(level)


async def described(broker: Any, version: int = 4) -> dict[str, str]:
    result = await describe(broker, BROKER_LOGGER, "1", version=version)
    assert result.error_code == 0
    assert {(config.config_source, config.read_only, config.is_sensitive) for config in result.configs} == {(6, False, False)}
    return {config.name: config.value for config in result.configs}


@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_every_logger_is_described_with_the_level_that_holds_for_it(broker: Any, version: int) -> None:
    logging.root.setLevel(logging.WARNING)
    logging.getLogger("ottla.broker").setLevel(logging.DEBUG)
    levels = await described(broker, version)
    assert (levels["root"], levels["ottla.broker"], levels[FETCHER]) == ("WARN", "DEBUG", "DEBUG")
    assert levels["ottla.storage.log"] == "WARN"
    assert next(iter(levels)) == "root"
    assert all(name == "root" or name.split(".")[0] == "ottla" for name in levels)


async def test_a_level_is_set_and_given_back(broker: Any) -> None:
    logging.root.setLevel(logging.INFO)
    logger = logging.getLogger(FETCHER)
    for name, level in {"FATAL": 50, "ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10}.items():
        assert await change(broker, BROKER_LOGGER, "1", (FETCHER, SET, name)) == 0
        assert logger.getEffectiveLevel() == level
        assert (await described(broker))[FETCHER] == name
    assert await change(broker, BROKER_LOGGER, "1", (FETCHER, SET, "TRACE"), ("ottla.storage", SET, "OFF")) == 0
    assert logger.isEnabledFor(5)
    assert not logging.getLogger("ottla.storage.log").isEnabledFor(logging.CRITICAL)
    assert await change(broker, BROKER_LOGGER, "1", (FETCHER, DELETE, None), ("root", SET, "ERROR")) == 0
    assert (await described(broker))[FETCHER] == "ERROR"


async def test_a_bad_change_is_refused_and_changes_nothing(broker: Any) -> None:
    logging.getLogger(FETCHER).setLevel(logging.ERROR)
    good = (FETCHER, SET, "DEBUG")
    refused = {
        40: [("no.such.logger", SET, "DEBUG"), ("no.such.logger", DELETE, None), ("ottla.storage", SET, "LOUD")],
        42: [("root", DELETE, None), ("ottla.storage", APPEND, "INFO"), ("ottla.storage", SUBTRACT, "INFO"), (FETCHER, SET, "INFO")],
    }
    for code, changes in refused.items():
        for bad in changes:
            assert await change(broker, BROKER_LOGGER, "1", good, bad) == code, bad
    assert await change(broker, BROKER_LOGGER, "1", ("ottla.storage", SET, None)) == 42
    assert await change(broker, BROKER_LOGGER, "1", good, validate_only=True) == 0
    for name in ("2", "", "one"):
        assert await change(broker, BROKER_LOGGER, name, good) == 42
        assert (await describe(broker, BROKER_LOGGER, name)).error_code == 42
    assert logging.getLogger(FETCHER).level == logging.ERROR
    broker.rules.denied |= {(Operation.DESCRIBE_CONFIGS, "kafka-cluster"), (Operation.ALTER_CONFIGS, "kafka-cluster")}
    assert await change(broker, BROKER_LOGGER, "1", good) == 31
    assert (await describe(broker, BROKER_LOGGER, "1")).error_code == 31

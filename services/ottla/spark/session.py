"""A Spark session of ours, and how Spark's workers find this package.

Workers run this very Python (PYSPARK_PYTHON), or they would take the first `python3` of the path, which has neither pyarrow nor us.

The only module beside `source` that imports pyspark, and it does so when a session is asked for.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


@contextmanager
def session(name: str, master: str = "local[*]", configuration: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session for as long as the block; it is stopped at the end.

    Args:
        name: as Spark's pages show it.
        master: `local[*]`, `local[2]`, `spark://host:7077`.
        configuration: Spark's own.
    """
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {"spark.log.level": "ERROR", **(configuration or {})}.items():
        builder = builder.config(key, value)
    started = builder.getOrCreate()
    try:
        yield started
    finally:
        try:
            started.stop()
        except (Py4JError, OSError) as error:  # what was done in it is done, and what was not has failed before
            log.warning("the JVM of %s had ended before its session: %s", name, error)

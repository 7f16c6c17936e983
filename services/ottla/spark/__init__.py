"""The data pipeline on PySpark: the data source `ottla`, exactly-once appends to Delta tables, and loads (`load`, `ottla load`).

Executors read whole batches by `ottla.wire` and make Arrow columns of them by `record.columnar`: no record is a Python object. The
options, columns, offsets and promises of the source are those of Spark's own Kafka source, so that a query moves by another format name.

`settings`, `offsets`, `commits` and `loading.ranges` decide and do nothing else; pyspark is imported by `source`, `sink` and `session`, and
deltalake where a table is opened.

Nothing here touches a log directory, and no offset of a load or a query is kept in a consumer group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.spark.loading.driver import LoadOutcome
    from ottla.spark.loading.schemas import Decoding


def load(
    topics: str | Sequence[str],
    into: str,
    *,
    bootstrap_servers: str = "127.0.0.1:9092",
    job: str = "load",
    spark: SparkSession | None = None,
    decoding: Decoding | str | None = None,
    options: Mapping[str, str] | None = None,
    **more: Any,
) -> LoadOutcome:
    """Loads what is new of topics into a Delta table: data and offsets in one commit. What `ottla load` does, once.

    Args:
        topics: their names; one commit has all of them.
        into: the table's directory or address; it is made if it is not there.
        job: whose offsets they are; a table may take several jobs, of different topics.
        spark: runs the tasks; None runs them in this process.
        decoding: how values become columns, or a registry's address; None leaves them bytes.
        options: further ones of the source in a batch, such as `startingOffsets`, `failOnDataLoss`, `onCorrupt`, `kafka.…`.
        more: of `loading.driver.LoadSettings`: `until_ms`, `max_records`, `group`, …

    Raises:
        OptionRefused, ConfigurationError: an argument is wrong.
        OttlaError: as `loading.driver.load`; nothing is committed.
    """
    from ottla.spark.loading import driver
    from ottla.spark.loading.schemas import Decoding

    names = [topics] if isinstance(topics, str) else topics
    source = {"subscribe": ",".join(names), "kafka.bootstrap.servers": bootstrap_servers, **(options or {})}
    how = Decoding(decoding) if isinstance(decoding, str) else decoding
    settings = driver.LoadSettings.of(source, into, job, decoding=how, **more)
    return driver.load(settings, driver.LocalExecutor() if spark is None else driver.SparkExecutor(lambda: spark))

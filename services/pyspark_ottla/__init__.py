"""Where Spark finds the format `ottla` by itself: it imports every top-level package whose name begins with `pyspark_`.

Nothing but the name is here, so that Spark's first look for a format stays quick.
"""

from ottla.spark.source import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]

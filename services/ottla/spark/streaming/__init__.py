"""What a stream of records is made into most often: counts by window and by session, joins, topics by another key, no duplicates.

Each is a function from frames to a frame, with the watermark that it needs, so that state is dropped and a query may append. They work
on any stream that has a time column; the paper names them as the work to come.

Nothing here starts a query, and nothing reads or writes a topic but `repartition_by_key`.
"""

from ottla.spark.streaming.counts import session_counts, windowed_counts
from ottla.spark.streaming.joins import join_streams, join_table
from ottla.spark.streaming.keys import deduplicate, repartition_by_key

__all__ = ["deduplicate", "join_streams", "join_table", "repartition_by_key", "session_counts", "windowed_counts"]

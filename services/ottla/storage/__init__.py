"""Partitions' logs on disk: segments, indexes, recovery, producer states, retention, log directories, checkpoints.

The files, their names and their bytes are Kafka's. One event loop owns every object here; what reads or writes in bulk
is a plain function on files that the loop hands to a thread. No other package writes under a log directory.
"""

"""The bytes of a record batch (magic 2), from its header's fields to the records inside.

One byte format serves the producer, the disk, the wire and the consumer, so the broker reads headers and never
rebuilds a batch. Nothing here opens a socket or knows what a topic is.
"""

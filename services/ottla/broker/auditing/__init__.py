"""The broker's tier of the audit: what was appended, by batches' headers, reported to `__audit`.

`counting` adds up runs and headers; `tier` attaches counters to the partitions that are led here, and reports. What is reported are
ranges of offsets that divide at the same places no matter who reports them, so that the next leader may count again what the former one had
not said: the audit counter puts the new ranges in the place of the old ones. Imported where `audit.enable` is true only, as it needs
the extra `audit`. Nothing here delays a request, and nothing writes to a log but by Kafka's protocol.
"""

"""The audit counter: reads what every tier says it has seen (`__audit`), and tells for each topic, window and edge whether all arrived.

`server` puts it together; `rest/` and `rpc` answer; `service` reads and writes the cluster by `ottla.wire`; `store` keeps counts and
offsets in one file; `books`, `verdicts` and `windows` decide and do no I/O. Nothing here writes to a topic that someone else writes.
"""

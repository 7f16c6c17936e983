"""The broker: requests in, answers out, one event loop that owns every piece of state.

`server` wires; `dispatcher` takes frames to `handlers`; `replication` owns the truth of each partition. Calls go
down and values come up: nothing below the server is handed the server.
"""

"""The registry over HTTP: Confluent's paths, parameters, media types, codes and quirks.

`http` speaks HTTP/1.1, `routes` is the one table of what there is, `api` answers it from the state, `security` says who may, `forwarding`
sends a write to the leader, `document` makes OpenAPI and the page of the API from the table, `application` puts them together.

Nothing here decides what may be registered, and nothing waits for a client that is slow.
"""

"""What the topic `_schemas` says, and what may be written to it: records in, records and answers out.

`names` takes subjects and contexts apart, `schemas` has the data, `records` the bytes in Confluent's form, `replay` what records add up
to, `decisions` what a command writes, `errors` what is answered when it may not, `drafts` what is found out about a schema before.

Nothing here opens a file or a socket, knows of time or of which node it runs on, or waits, but for `formats` in `drafts`.
"""

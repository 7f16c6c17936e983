"""The canary: a message a second to a partition of every broker, and back: whether a cluster works is known before a user asks.

`placement` decides which broker leads which partition of `__canary`, `ledger` what became of each message; both do no I/O. `runner` writes
and reads with clients of its own, `reports` says that to `__audit` as any audited client does. Nothing here reads the counter's file.
"""

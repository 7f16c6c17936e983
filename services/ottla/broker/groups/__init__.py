"""Consumer groups: who is in which, what each member reads, and how far the group has come.

A group of the classic protocol (`classic/`) is a state machine: events go in with the time, effects come out. One of the
consumer protocol (`consumer/`) changes by values that are its records.
`offsets` holds what was committed. `shard` and what it is made of (`consumer_groups`, `commits`) perform what is decided:
they write `__consumer_offsets`, answer requests and keep the timers.

No state machine here knows a socket, a clock or a log.
"""

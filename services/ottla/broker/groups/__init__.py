"""Consumer groups: who is in which, what each member reads, and how far the group has come.

A group is a state machine (`group`, `transitions`, `rebalancing`, `joining`, `membership`): events go in with the
time, effects come out. `offsets` holds what was committed. The coordinator beside them performs the effects: it writes
`__consumer_offsets`, answers requests and keeps the timer.

No state machine here knows a socket, a clock or a log.
"""

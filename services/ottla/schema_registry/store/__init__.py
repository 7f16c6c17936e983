"""The topic `_schemas` as a store: one replay that feeds the state, and on the leader one writer that waits for it.

`topic` is the topic itself, through `ottla.wire`; `replaying` reads it into the state and writes to it; `snapshot` is a file from which a
start need not read it all.

Nothing here decides who leads.
"""

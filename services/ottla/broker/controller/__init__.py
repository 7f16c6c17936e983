"""Which topics there are, where their replicas lie, and what is set for topics and brokers.

The controller is whoever holds `/controller`. Every decision is a pure function (`topics`, `configs`, `producer_ids`);
`controller` performs them: it writes znodes, and then tells the broker what changed.

Nothing here opens a log or knows a request; the only way to the disk is the coordination service.
"""

"""Which topics there are, where their replicas lie, who leads them, and what is set for topics and brokers.

The controller is whoever holds `/controller`. Every decision is a pure function of what is known (`state`): `decisions`
is where they are asked for, and their effects are data. `active` is one term: it performs them, writing znodes first
and telling the brokers afterwards. `service` is what every broker has of it, controller or not.

Nothing here opens a log or knows a request; the only way to the disk is the coordination service.
"""

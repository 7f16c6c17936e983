"""The calls between brokers: what they are (`calls`), their messages, and two carriers: gRPC, and plain calls in one process.

A caller has an object with the methods of `calls`, whichever carrier is behind it. What a call does is the broker's affair.

Nothing here knows of a log, a socket of a client or a znode.
"""

"""The calls between brokers: the table of them (`calls`), their messages (`codec`), forwarding to the controller, and two carriers.

The carriers are gRPC (`rpc`) and plain calls in one process (`local`). A caller has an object with the methods of `calls`, whichever
carrier is behind it. What a call does is the broker's affair.

Invariant: nothing here knows of a log, a socket of a client or a znode.
"""

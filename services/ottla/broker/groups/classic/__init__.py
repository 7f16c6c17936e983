"""Groups of the classic protocol: members join, their leader assigns, and every change is a rebalance of all.

No state machine here knows a socket, a clock or a log.
"""

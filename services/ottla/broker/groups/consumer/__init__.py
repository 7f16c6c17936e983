"""Groups of the consumer protocol (KIP-848): the coordinator assigns, and each member comes to its part by heartbeats.

What such a group is, is what its records say (`changes`): a decision writes changes, each of which is applied at once, and
a coordinator that loads the group applies the same. `heartbeat` judges requests, `advancing` moves the group to a new
epoch and a member towards its target, `assignors` say who is to read what, `classic_members` serves those that still speak the
classic protocol, `converting` makes one kind of group of the other.

No module here knows a socket, a clock or a log.
"""

"""The cluster's controller: what it knows, what it decides, and how that reaches ZooKeeper and the brokers.

`service` is one broker's part, whichever broker is the controller; `active` is one term as the controller. Pure are `state`, `effects`,
`decisions`, `elections`, `isr_changes`, `reassignments`, `deletions`, `topics`, `configs` and `request_batch`; the rest drives them.

Invariant: nothing outside uses more of this package than `service`, `membership` and the plain data of its modules.
"""

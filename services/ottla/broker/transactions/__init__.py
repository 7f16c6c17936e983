"""Transactions: which producer has which transactional id, what its transaction has touched, and how it ends (KIP-98).

A transaction is a state machine (`states`, `transaction`, `decisions`): a request and the time go in, and what is to be
written to `__transaction_state` comes out. The coordinator next to it writes, answers, and has the markers written that
tell every partition how the transaction ended.

Nothing pure here knows a socket, a clock or a log.
"""

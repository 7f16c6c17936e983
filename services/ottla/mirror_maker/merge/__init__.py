"""Many sources into one cluster: batches are copied, and the position with them, in one transaction.

Whoever holds a slot is the only one that can write under its transactional id, so each record is copied once.
"""

"""Many sources into one cluster: batches are copied, and the position with them, in one transaction.

The holder of a slot is the only one that can write under its transactional id, so each record is copied once.
"""

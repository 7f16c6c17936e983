"""What a coordinator of groups and one of transactions have in common: the partitions that it leads, and the records in them.

Nothing here knows what a record is about.
"""

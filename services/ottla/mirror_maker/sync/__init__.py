"""What is brought along beside records: topics, their settings, the offsets of groups, and MirrorMaker 2's own records.

Nothing here copies a record of a user's topic.
"""

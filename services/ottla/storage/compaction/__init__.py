"""Compaction of logs: of every key only the last record stays.

The cleaner chooses a log and puts cleaned segments into it (`cleaner`, on the loop); a process of its own reads and writes the
files (`process`, `clean`). Nothing here changes a log's last segment, and only `swap` gives files their names.
"""

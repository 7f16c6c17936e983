"""A load: topics into a Delta table, whose own log holds the offsets that it has come to.

    table's last commit --offsets--> ranges --tasks--> files that no one sees --checked--> one commit: files and offsets

`ranges` decides what is read and whether what was written is all of it; `files` is what a task does; `driver` does one load after the
other. A process that is killed, whenever, leaves a table in which every record up to its offsets is there once.

Offsets are kept in the table alone. The consumer group that is committed afterwards is for tools that show lag, and is never read.
"""

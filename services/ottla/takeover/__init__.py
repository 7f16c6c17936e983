"""Taking over a Kafka cluster on ZooKeeper as it stands, and giving it back.

    cluster.py       its znodes, read
    directories.py   its log directories, read
    found.py         what both found, as values
    findings.py      what follows from it: what stops, what changes, what is given up; and the same of the way back
    first_start.py   the part of a broker that starts where Kafka wrote last

Reading and judging are apart: `findings` is pure. To know before the day, run the command (`ottla takeover check`), and
a broker asks itself.

Nothing here writes to a znode or below a log directory, but for the note of `first_start` that a directory was checked.
"""

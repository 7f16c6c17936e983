"""What the brokers agree on: znodes with ZooKeeper's semantics behind one small interface.

`interface` says what ZooKeeper promises and `znodes` what Kafka keeps there. `embedded` is the twin that lives in the
broker's own process and keeps its tree in a SQLite file, so that a laptop needs neither Java nor Docker.
`zookeeper` opens sessions with a real one. Both pass the same contract tests.

Nothing here knows what a controller does with a znode, and no other package writes the embedded tree's file.
"""

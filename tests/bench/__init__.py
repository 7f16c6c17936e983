"""Benchmarks: what the broker does per second and per byte, beside floors measured in the same run.

Nothing here imports the broker: a server is a command that is started, talked to over loopback and stopped by its
process id, so that any server of the Kafka protocol can be measured by the same code. Only a ZooKeeper comes from
`ottla.testing`, for the benches of a cluster. docs/benchmarks.md explains the figures.
"""

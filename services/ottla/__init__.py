"""Ottla: a message log that every Kafka client can talk to, in Python that can be read in an afternoon.

Each sub-package is one layer; ARCHITECTURE.md lists them, and import-linter keeps their order.
"""

"""Ottla: a message log that every Kafka client can talk to, in Python, in layers.

Each sub-package is one layer; ARCHITECTURE.md lists them, and import-linter keeps their order.
"""

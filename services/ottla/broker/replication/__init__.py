"""The truth of each partition on this broker: who leads, what is committed, what may be read.

A partition takes its state (leader, epoch, in-sync replicas) and returns what changed. It calls its log and
nothing else.
"""

"""The truth of each partition on this broker: who leads, what is committed, what may be read.

A partition is told what it is (leader, epoch, in-sync replicas) and says what came of it. It calls its log and
nobody else.
"""

"""The sources, sentence by sentence: each test cites one and shows that it holds for a real broker.

Sources: "Kafka: a Distributed Messaging System for Log Processing" (NetDB 2011), the design document of Kafka 0.7.
"""

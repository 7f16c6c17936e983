"""The mirror maker: copies topics of other clusters into one, each record once, and says where each of them went.

A source is a plain cluster that is asked by `ottla.wire`; whether it is Ottla's or Kafka's does not matter. `coordination` is for what
workers share, and for a cluster whose brokers are found by `A.zookeeper.connect`.

Nothing here keeps a file: what a worker must know after a crash is in the target, in the topic `ottla-mirror-<link>`.
"""

"""How one asks a cluster: Kafka's client side over whole batches, under every service, the paper's consumers and Spark.

`Cluster` knows the brokers, who leads what, and keeps a connection to each; `Fetcher` reads batches and `Sender` writes them.
A batch passes as the bytes it is: nothing here makes an object of a record, and nothing decompresses one.

Everything runs on the caller's event loop. Clock, chance, the opening of connections and work beside the loop come in as
arguments, so that the simulation runs the same code.

Nothing here reads a log directory or knows a group's members, and nothing imports confluent_kafka.
"""

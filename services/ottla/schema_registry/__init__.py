"""The schema registry: Confluent's REST API over a compacted topic, and never two schemas under one id.

`server` puts the parts together and is the one importer of grpc; `rest` answers by HTTP; `leadership` says which node writes;
`store` reads and writes the topic `_schemas`; `state` is what the topic says, and every decision; `formats` knows Avro, JSON Schema
and Protobuf.

Nothing here is written anywhere but to `_schemas`, to the leader's znodes and to the snapshot, which may be lost.
"""

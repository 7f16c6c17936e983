"""How brokers call each other and operators call services, by gRPC: what every server and every channel of ours has.

`v1` is made of proto/ottla/rpc/v1 by `make proto`. `server` answers with health and reflection beside our services,
`channel` calls with a deadline, `status` takes Ottla's errors there and back, `tls` makes both ends show who they are,
`limits` says how long and how large.

Importing grpc costs a tenth of a second, which a broker of its own need not pay: import these modules where a server or
a channel is made, not at the top of what every broker imports.

Nothing here knows what a call means, or keeps anything beyond the life of a server or a channel.
"""

"""Version 1 of the services that brokers call each other by: made of proto/ottla/rpc/v1 by `make proto`.

Change the proto files, not what is here.
"""

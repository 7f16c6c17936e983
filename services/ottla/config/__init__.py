"""Settings, each declared once under Kafka's own name with its type, default, bounds and a sentence.

From the one declaration come the parsing, the error messages, DescribeConfigs and docs/configuration.md.
Importing it must stay quick (every command of `ottla` does so): the standard library and nothing else.

Nothing here opens a socket; only `properties.load` and `providers` read files.
"""

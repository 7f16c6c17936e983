"""Every metric declared once, in one table, with the cells that count and the rendering that Prometheus reads.

From the one declaration come the native name, the name that Kafka's JMX exporter gives the same thing, and
docs/metrics.md. Who counts imports `cells` and keeps them in the objects that own them; who is scraped has a collector
that reads those. Only `rendering` and `process_figures` import prometheus-client, which is an extra.

Nothing here opens a socket, and nothing here knows what a partition is.
"""

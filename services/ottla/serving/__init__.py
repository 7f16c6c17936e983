"""What every service has around it: HTTP for probes and Prometheus, scrapes, readiness, and a start and stop in order.

A service brings its settings, its conditions of readiness and its collectors; `surface` puts the rest around them. The broker is one
such service.

Nothing here knows of a topic, of Kafka's protocol, or of gRPC.
"""

"""Sockets and nothing else: listeners, connections, sending bytes and file regions, TLS.

Nothing here knows what a topic is.
"""

"""Kafka's wire protocol, sans-IO: frames, headers, the versions we serve and the hand-written hot codecs.

Nothing here opens a socket.
"""

"""The cluster of docker-compose.yml from outside: real clients, real containers, real faults. `make integration` runs it.

Each session has a compose project, host ports and volumes of its own, so it meets neither a person's cluster nor another
session. Whatever way it ends, `reaper.py` removes all of it. Nothing here runs a broker in
its own process.
"""
